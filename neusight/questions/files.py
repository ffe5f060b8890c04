"""Questions in TOML files: tables ``[[question]]`` of a ``kind`` and words; lists of values make several questions."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from neusight.errors import DataError, nearest, shown
from neusight.paths import user_path
from neusight.questions.field import FieldError
from neusight.questions.kernel import KernelCall
from neusight.questions.question import Question
from neusight.questions.serving import Serving
from neusight.questions.step import Step
from neusight.questions.training import Training

VERSION = 1
"""Of the files that are written; others are refused."""
KINDS: Mapping[str, type[Question]] = {noun.KIND: noun for noun in (KernelCall, Step, Training, Serving)}
"""Questions by the command that answers them."""


def read_questions(path: str | Path) -> list[Question]:
    """The questions of a file, in their order; of a .json file those of the answers that a command printed.

    Raises:
        DataError: no such file, no TOML or JSON, another version, or a question of an unknown kind.
        FieldError: a word that a question cannot take.
    """
    file = user_path(str(path))
    language, read = ("JSON", _answered) if file.suffix == ".json" else ("TOML", tomllib.loads)
    try:
        table = read(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file} does not read as {language}: {error}: mend it") from None
    if (version := table.get("version")) != VERSION:
        raise DataError(f"{file} has version {shown(version)}: write `version = {VERSION}` on top")
    entries = table.get("question")
    if not isinstance(entries, list) or not entries:
        raise DataError(f"{file} has no questions: write tables [[question]] with a kind and words")
    return [
        question for place, entry in enumerate(entries, 1) for question in _several(entry, f"{file}, question {place}")
    ]


def _answered(text: str) -> dict[str, Any]:
    """The table of the questions of answers in JSON."""
    answers = json.loads(text)
    listed = answers if isinstance(answers, list) else [answers]
    questions = [answer["question"] for answer in listed if isinstance(answer, dict) and "question" in answer]
    return {"version": VERSION, "question": questions}


def _several(entry: Mapping[str, Any], where: str) -> list[Question]:
    if not isinstance(entry, Mapping):
        raise DataError(f"{where}: {shown(entry)}: write a table with a kind and words")
    words = dict(entry)
    noun = _noun(str(words.pop("kind", "")), f"{where}: ")
    try:
        return list(noun.several(words))
    except FieldError as error:
        raise FieldError(f"{where}: {error.field}", error.reason) from None


def _noun(kind: str, where: str = "") -> type[Question]:
    if kind not in KINDS:
        raise DataError(f"{where}unknown kind '{shown(kind)}'{nearest(kind, KINDS)}: one of {', '.join(KINDS)}")
    return KINDS[kind]


def question_of(row: Mapping[str, Any], kind: str) -> Question:
    """The question of a row of measurements: of the kind in its column ``command``, else of ``kind``.

    A column without a value is the option's default, but that a kernel in a graph has its launch to itself.

    Raises:
        DataError: an unknown kind. FieldError: a column or a value that the question cannot have.
    """
    words = {name: value for name, value in row.items() if value is not None}
    noun = _noun(str(words.pop("command", kind)))
    if noun is KernelCall and words.get("timing") == "graph":
        words.setdefault("launches", 1)
    return noun.named(words)


def question_text(questions: Sequence[Question]) -> str:
    """The file that ``read_questions`` reads as these questions."""
    lines = [f"version = {VERSION}"]
    for question in questions:
        lines += ["", "[[question]]", *(f"{name} = {json.dumps(value)}" for name, value in question.record().items())]
    return "\n".join(lines) + "\n"
