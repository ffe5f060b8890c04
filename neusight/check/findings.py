"""``check``: measured figures of a result beside their predictions, inside of their 90 % intervals or outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from math import isnan
from typing import TYPE_CHECKING, Any

from neusight.check.results import Result
from neusight.errors import DataError
from neusight.measured.compare import compare
from neusight.questions.question import Question
from neusight.quick_dataclasses import dataclass

if TYPE_CHECKING:
    from neusight.api import Predictor

_PHASES = {"ttft": "prefill", "tpot": "decode", "itl": "decode"}
"""Passes that a latency of a served model is made of."""


@dataclass(frozen=True, kw_only=True)
class CheckedFigure:
    """A measured figure and its prediction, in the unit of the column.

    Attributes:
        row: the result's place in its file, from 1.
        quantity: measured column.
        predicted, measured: the figures.
        low, high: ends of the 90 % interval; None where none is stated.
        inside: whether the measurement is between them; None where none is stated.
        errors: standard deviations by cause, as shares of the time of the step, kernel or whole answer.
        limiter: the largest part of the passes of a latency, and what it is limited by, else what limits the answer.
        assumed: fields that are left open, with the values that are taken for them.
    """

    row: int
    quantity: str
    predicted: float
    measured: float
    low: float | None = None
    high: float | None = None
    inside: bool | None = None
    errors: Mapping[str, float] = field(default_factory=dict)
    limiter: str = ""
    assumed: Mapping[str, str] = field(default_factory=dict)

    @property
    def error(self) -> float:
        """Prediction over measurement, less 1, in percent."""
        return 100.0 * (self.predicted / self.measured - 1.0)


def check(result: Result, predictor: Predictor) -> tuple[list[CheckedFigure], list[str]]:
    """Findings on all rows, and reasons why some figures have no prediction.

    Raises:
        DataError: none has.
    """
    lines, skipped = compare(result.table, predictor)
    reasons = list(dict.fromkeys(reason for reason, _ in skipped))
    if lines.empty:
        raise DataError(f"{result.table.path}: {reasons[0]}; options such as --model replace words of the file")
    findings: list[CheckedFigure] = []
    for place, part in lines.groupby("place", sort=False):
        answer = predictor.ask(result.questions[int(place)])
        findings += [_finding(int(place) + 1, line, answer) for line in part.to_dict("records")]
    return findings, reasons


def _finding(row: int, line: Mapping[str, Any], answer: Any) -> CheckedFigure:
    low, high, measured = (float(line[name]) for name in ("low", "high", "measured"))
    stated = not (isnan(low) or isnan(high))
    return CheckedFigure(
        row=row, quantity=line["quantity"], predicted=float(line["predicted"]), measured=measured,
        low=low if stated else None, high=high if stated else None, inside=low <= measured <= high if stated else None,
        errors=answer.errors if stated else {}, limiter=_limiter(line["quantity"], answer), assumed=answer.assumed,
    )  # fmt: skip


def _limiter(quantity: str, answer: Any) -> str:
    phase = getattr(answer, _PHASES.get(quantity.partition("_")[0], ""), None)
    return f"{phase.part} {phase.share:.0%}, {phase.resource}" if phase else str(answer.limiter)


def differing_fields(questions: Sequence[Question]) -> list[str]:
    """Fields in which questions differ."""
    names = dict.fromkeys(name for question in questions for name in question.words())
    return [name for name in names if len({str(getattr(question, name)) for question in questions}) > 1]
