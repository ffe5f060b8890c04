"""Gains of optimisations as public projects measured them, before and after, against what ``neusight.what_if`` says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.datasets.rows import positive, read_rows
from neusight.errors import NeusightError
from neusight.evaluation.what_if.cases import Pair, UnnamedModelError, pair_of
from neusight.measured.score import Progress, Row, Scored, Selection, compared, some
from neusight.what_if.gain import Answer, Gain
from neusight.what_if.questions import Question, facts

if TYPE_CHECKING:
    from neusight.api import Predictor

NEEDED = ("optimisation", "as_written", "model", "gpu", "metric", "gain", "told")
_NAMES = ("set", "optimisation", "as_written", "model", "mode", "level", "gpu", "metric", "source")
BY = ("metric", "gpu", "set")
ALL = "all"
"""The row of all optimisations together."""
CLEAR = 0.05
"""Share that a gain differs from 1 by, from which its sign counts."""


def evaluate_what_if(
    path: Path,
    predictor: Predictor,
    *,
    optimisations: tuple[str, ...] = (),
    sets: tuple[str, ...] = (),
    selection: Selection | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Predict the gain of every pair and compare; nothing is fitted to them.

    Args:
        path: parquet, CSV or TOML of pairs: optimisation, as_written, model, gpu, metric, gain, and what is ``told`` of
            the conditions (JSON).
        predictor: whose predictions.
        optimisations, sets: which rows; default all.
        selection: of some GPUs, and so many of them, drawn at random.
        progress: called with (done, of) a row.

    Returns:
        ``rows``: set, optimisation, as_written, model, mode, level, gpu, metric, applied, predicted_gain, low_gain,
        high_gain, measured_gain, ape, bias, inside. ``optimisations``, ``total``: of each and of ``all`` the pairs,
        those whose model can be named, the percent of these that is answered, and errors of the gain with ``sign``: the
        percent of gains clearly above or below 1 on whose side the prediction is. ``means``: those errors by ``BY``.
        ``skipped``: rows without an answer, with the reason and whether the model is ``named``.

    Raises:
        DataError: no such file, a foreign one, or no row that is answered.
    """
    records = read_rows(Path(path), NEEDED, "pairs of measurements")
    records = [r for r in records if not optimisations or r["optimisation"] in optimisations]
    records = (selection or Selection()).of([r for r in records if not sets or r.get("set") in sets])
    answers = _Memo(predictor.answer)
    rows: list[dict[str, Any]] = []
    skipped: list[dict[str, Any]] = []
    for done, record in enumerate(records, start=1):
        names = {name: record.get(name, "") for name in _NAMES}
        try:
            case = pair_of(record)
            rows.append(
                names | {"applied": ",".join(case.applied)} | _row(case, answers, positive(record, "gain", 1e6))
            )
        except NeusightError as error:
            skipped.append(names | {"named": not isinstance(error, UnnamedModelError), "reason": str(error)})
        if progress:
            progress(done, len(records))
    some(rows, path, skipped)
    return {
        "rows": rows,
        "means": {name: _summary(rows, name) for name in BY},
        "optimisations": _optimisations(rows, skipped),
        "total": _of_optimisation(ALL, rows, skipped),
        "skipped": skipped,
    }


class _Memo:
    """Answers to questions, each asked once."""

    def __init__(self, ask: Callable[[Question], Answer]) -> None:
        self._ask = ask
        self._answers: dict[str, Answer] = {}

    def __call__(self, question: Question) -> Answer:
        key = repr(sorted(facts(question).items()))
        if key not in self._answers:
            self._answers[key] = self._ask(question)
        return self._answers[key]


def _row(case: Pair, answers: _Memo, measured: float) -> dict[str, Any]:
    gain = Gain.of(answers(case.before), answers(case.after), case.metric)
    figures = compared(gain.ratio, (gain.low, gain.high), measured, "_gain")
    return {"applied": ",".join(case.applied)} | figures


def _summary(rows: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [names | _figures(part) for names, part in Scored.of(rows, "_gain").groups(name)]


def _figures(scored: Scored) -> dict[str, Any]:
    clear = np.abs(scored.measured - 1.0) > CLEAR
    right = (scored.predicted > 1.0) == (scored.measured > 1.0)
    return scored.figures() | {"sign": 100.0 * float(right[clear].mean()) if clear.any() else None}


def _optimisations(rows: Sequence[Row], skipped: Sequence[Row]) -> list[dict[str, Any]]:
    names = sorted({str(row["optimisation"]) for row in (*rows, *skipped)})
    return [_of_optimisation(name, rows, skipped) for name in names]


def _of_optimisation(name: str, rows: Sequence[Row], skipped: Sequence[Row]) -> dict[str, Any]:
    answered, refused = ([row for row in some if name in (ALL, row["optimisation"])] for some in (rows, skipped))
    named = len(answered) + sum(bool(row["named"]) for row in refused)
    counts = {"optimisation": name, "pairs": len(answered) + len(refused), "named": named}
    counts["answered"] = 100.0 * len(answered) / named if named else None
    return counts | _figures(Scored.of(answered, "_gain"))
