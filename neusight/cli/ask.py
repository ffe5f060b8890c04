"""``neusight ask``: the questions of a file, each answered by its command."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from neusight.cli import options as opt
from neusight.cli.output import Output, table
from neusight.questions.field import required
from neusight.quick_dataclasses import dataclass
from neusight.units import milliseconds

if TYPE_CHECKING:
    from neusight.questions import Question


@dataclass(frozen=True, kw_only=True)
class AskOptions(opt.Models, opt.Formatted):
    """A file of questions, and what predicts."""

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
    from neusight.questions.files import read_questions

    questions = read_questions(options.file)
    if len(questions) == 1:
        raise typer.Exit(run(questions[0], options, options.form))
    answers = [_answer(question, options) for question in questions]
    rows = [_row(question, answer) for question, answer in zip(questions, answers, strict=True)]
    Output(options.form).data(answers, rows, lambda: _show(rows))
    if not any(answers):
        raise typer.Exit(1)


def run(question: Question, options: AskOptions, form: str) -> int:
    """Print the answer of the question's command; returns the exit status."""
    from neusight.cli.app import command_line

    predictor = opt.Models(tile_models=options.tile_models, calibration=options.calibration).options()
    words = [question.KIND, *question.command_line(), *predictor, "--format", form]
    return command_line(question.KIND)(words, prog_name="neusight", standalone_mode=False) or 0


def _answer(question: Question, options: AskOptions) -> dict[str, Any]:
    """The JSON of the question's command; {} where it fails, which a line on stderr says."""
    with redirect_stdout(StringIO()) as printed:
        failed = run(question, options, "json")
    answer: dict[str, Any] = {} if failed else json.loads(printed.getvalue())
    return answer


def _row(question: Question, answer: Mapping[str, Any]) -> dict[str, Any]:
    figures = {name: answer.get(name) for name in ("gpu", "latency_s", "low_s", "high_s", "limiter")}
    return {"kind": question.KIND, "name": next(text for _, text in question.texts()), **figures}


def _show(rows: Sequence[Mapping[str, Any]]) -> None:
    columns = ("kind", "~question", "gpu", ">latency", ">90 % interval", "limited by")
    table(columns, map(_cells, rows))


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    if row["latency_s"] is None:
        return row["kind"], row["name"], "-", "-", "-", "-"
    latency, low, high = (milliseconds(row[name]) for name in ("latency_s", "low_s", "high_s"))
    return row["kind"], row["name"], row["gpu"], latency, f"{low} - {high}", row["limiter"]
