"""Questions in TOML files: tables ``[[question]]`` of a ``kind`` and words; lists of values make several questions."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
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
"""Version of the files that are written; others are refused."""
KINDS: Mapping[str, type[Question]] = {noun.KIND: noun for noun in (KernelCall, Step, Training, Serving)}
"""Questions by the command that answers them."""


def read_entries(path: str | Path) -> list[tuple[str, Mapping[str, Any]]]:
    """The tables of the questions of a file with their places; of a .json file those of the answers in it.

    Raises:
        DataError: no such file, no TOML or JSON, another version, or no question.
    """
    file = user_path(str(path))
    language, read = ("JSON", _table_of_answers) if file.suffix == ".json" else ("TOML", tomllib.loads)
    try:
        table = read(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file} does not read as {language}: {error}: mend it") from None
    if (version := table.get("version")) != VERSION:
        has = "no version" if version is None else f"version {shown(version)}"
        raise DataError(f"{file} has {has}: write `version = {VERSION}` on top")
    entries = table.get("question")
    if not isinstance(entries, list) or not entries:
        raise DataError(f"{file} has no questions: write tables [[question]] with a kind and words")
    tables = [(f"{file}, question {place}", entry) for place, entry in enumerate(entries, 1)]
    if wrong := [(where, entry) for where, entry in tables if not isinstance(entry, Mapping)]:
        raise DataError(f"{wrong[0][0]}: {shown(wrong[0][1])}: write a table with a kind and words")
    return tables


def _table_of_answers(text: str) -> dict[str, Any]:
    """The table of the questions of answers in JSON."""
    return {"version": VERSION, "question": list(_repeatable(json.loads(text)))}


def _repeatable(answer: Any) -> Iterator[Any]:
    """The question of an answer, else those of the answers that it holds."""
    if isinstance(answer, dict) and answer.get("question"):
        yield answer["question"]
    elif isinstance(answer, dict | list):
        for part in answer.values() if isinstance(answer, dict) else answer:
            yield from _repeatable(part)


def questions_of(where: str, entry: Mapping[str, Any]) -> list[Question]:
    """The question of an entry, several where words are lists.

    Raises:
        DataError: an unknown kind. FieldError: a word that a question cannot take.
    """
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
    if noun is KernelCall and {"graph", "cuda_graph"} & {words.get("timer"), words.get("timing")}:
        words.setdefault("launches_per_graph", words.pop("launches", 1))
    return noun.named(words)
