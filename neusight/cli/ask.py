"""``neusight ask``: the questions of a file, each answered by its command."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import typer

from neusight.cli import options as opt
from neusight.cli.output import Output, figures
from neusight.cli.spread import options_of
from neusight.errors import nearest, shown
from neusight.questions.field import FieldError, required
from neusight.quick_dataclasses import dataclass

OF_OPTIONS = ("memory", "plan", "what-if")
"""Commands whose entries contain values of their options: no kind of question has them all."""


@dataclass(frozen=True, kw_only=True)
class AskOptions(opt.Models, opt.Formatted):
    """A file of questions, and tile models with calibrations."""

    file: Path = required(
        "Questions: a .toml file with tables [[question]], or a .json answer of a command.", "", kind="path"
    )


def ask(options: AskOptions) -> None:
    """Answer the questions of a file, each as its command does.

    One question is shown in full, several as a table of headline figures. JSON of several is a list.

    Examples:

    - `neusight ask question.toml`

    - `neusight predict gpt2 --gpu l4 --format json > answer.json`, then `neusight ask answer.json`
    """
    from neusight.questions.files import read_entries

    calls = [call for where, entry in read_entries(options.file) for call in _calls(where, entry)]
    if len(calls) == 1:
        raise typer.Exit(_run(calls[0], options, options.form))
    answers = [_answer(call, options) for call in calls]
    rows = [_row(call, answer) for call, answer in zip(calls, answers, strict=True)]
    Output(options.form).data(answers, rows, lambda: figures(_COLUMNS, rows))
    if not any(answers):
        raise typer.Exit(1)


def _calls(where: str, entry: Mapping[str, Any]) -> Iterator[list[str]]:
    """Command lines that answer an entry of a file of questions.

    Raises:
        DataError, FieldError: as ``questions_of``.
    """
    from neusight.cli.app import command_named
    from neusight.questions.files import KINDS, questions_of

    kind, words = str(entry.get("kind", "")), {name: value for name, value in entry.items() if name != "kind"}
    if kind in OF_OPTIONS:
        yield [kind, *_words(where, words, kind)]
        return
    known = {*options_of(command_named(kind))} - {*KINDS[kind].fields()} if kind in KINDS else set()
    beside = {name: words.pop(name) for name in [*words] if name in known}
    options = list(_words(where, beside, kind)) if beside else []
    yield from ([kind, *one.command_line(), *options] for one in questions_of(where, {"kind": kind, **words}))


def _words(where: str, words: Mapping[str, Any], kind: str) -> Iterator[str]:
    """Words of a command line that set the options of a command."""
    from neusight.cli.app import command_named

    fields = options_of(command_named(kind))
    for name, value in words.items():
        if name not in fields:
            raise FieldError(f"{where}: {shown(name)}", f"is no option of `neusight {kind}`{nearest(name, fields)}")
        option, values = fields[name], value if isinstance(value, list) else [value]
        texts = [option.field.write(option.field.check(name, item)) for item in values if option.field.kind != "texts"]
        for text in [",".join(texts)] if texts else values:
            yield from option.command_words(text)


def _run(call: list[str], options: AskOptions, form: str) -> int:
    """Print the answer of a command; returns the exit status."""
    from neusight.cli.app import command_line

    predictor = opt.Models(tile_models=options.tile_models, calibration=options.calibration).options()
    words = [*call, *predictor, "--format", form]
    return command_line(call[0])(words, prog_name="neusight", standalone_mode=False) or 0


def _answer(call: list[str], options: AskOptions) -> dict[str, Any]:
    """The JSON of the command; {} where it fails, which a line on stderr reports."""
    with redirect_stdout(StringIO()) as printed:
        failed = _run(call, options, "json")
    answer: dict[str, Any] = {} if failed else json.loads(printed.getvalue())
    return answer


def _row(call: list[str], answer: Mapping[str, Any]) -> dict[str, Any]:
    figures = {
        name: answer.get("after", answer).get(name) for name in ("gpu", "latency_s", "low_s", "high_s", "limiter")
    }
    return {"kind": call[0], "name": call[1], **figures}


_COLUMNS = (
    "kind | ~question = name | gpu | >latency = latency_s | >90 % interval = {low_s} - {high_s} | limited by = limiter"
)
