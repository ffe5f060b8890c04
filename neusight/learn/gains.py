"""``neusight fit gains``: how uncertain gains are, by measured pairs: the constants of ``neusight.what_if.gain``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from neusight.errors import DataError, NeusightError
from neusight.executors.costs import NORMAL_90
from neusight.learn import FoundConstants, Report
from neusight.measured import MeasuredTable
from neusight.measured.compare import gain_of, question_of
from neusight.measured.folder import hashes, learned_tables
from neusight.what_if.gain import Doubt, known_doubt

if TYPE_CHECKING:
    from neusight.api import Predictor

_DEGREES = 3.0
"""Of freedom of the t distribution that errors are taken of: some pairs are far off, and must not set the width."""
_INSIDE = 0.9


@dataclass(frozen=True)
class Residual:
    """A pair: the logarithm of the predicted over the measured gain, and what ``Doubt.deviation`` takes."""

    of_set: str
    memory: bool
    error: float
    sources: float
    ratio: float


def fit_gains(data: Path, predictor: Predictor, report: Report | None = None) -> FoundConstants:
    """Doubts of times and of memory, from gains in a folder of measured rows.

    Args:
        data: the folder.
        predictor: whose gains are doubted.
        report: called with progress.

    Raises:
        DataError: no gains there.
    """
    tables, left_out = learned_tables(data, "gains"), Counter[str]()
    pairs: list[Residual] = []
    for done, table in enumerate(tables):
        if report:
            report(f"gains of {table.path.stem}", done, len(tables), float("nan"))
        pairs += residuals(table, predictor, left_out)
    if not pairs:
        raise DataError(f"{data} has no gains that are answered: give the folder of measured rows")
    kinds = {name: [p for p in pairs if p.memory is (name == "memory")] for name in ("time", "memory")}
    doubts = {name: asdict(fitted(own)) for name, own in kinds.items() if own}
    values = {f"{name}.{part}": value for name, parts in doubts.items() for part, value in parts.items()}
    return FoundConstants(
        values={name: float(f"{value:.3g}") for name, value in values.items()},
        gpus=sorted({str(gpu) for table in tables for gpu in table.frame["gpu"].dropna()}),
        data=hashes(table.path for table in tables),
        rows=len(pairs),
        error=round(float(np.mean([abs(np.expm1(pair.error)) for pair in pairs])), 4),
        skipped=left_out,
    )


def residuals(table: MeasuredTable, predictor: Predictor, left_out: Counter[str]) -> Iterator[Residual]:
    """Of every row of gains that is answered; others are counted by reason."""
    for row in table.frame.to_dict("records"):
        try:
            answers = predictor.ask(question_of(row, table))
        except NeusightError as error:
            left_out[str(error)] += 1
            continue
        gain = gain_of(answers)
        known = known_doubt(answers.before, answers.after, gain.metric)
        error_of = float(np.log(gain.ratio / row["gain"]))
        yield Residual(str(row.get("source")), gain.metric == "peak", error_of, known, gain.ratio)


def fitted(pairs: Sequence[Residual]) -> Doubt:
    """The doubt under which nine of ten pairs lie inside their intervals, where every set counts alike: the likeliest
    shape, then the width.
    """
    from scipy.optimize import minimize

    names = [pair.of_set for pair in pairs]
    weights = np.array([names.count(name) ** -0.5 for name in names])
    weights /= weights.sum()
    errors = np.array([pair.error for pair in pairs])

    def of(parts: Sequence[float]) -> np.ndarray:
        doubt = Doubt(1.0, *(abs(float(part)) for part in parts))
        return np.array([max(doubt.deviation(p.sources, p.ratio), 1e-3) for p in pairs])

    def unlikely(parts: Sequence[float]) -> float:
        deviations = of(parts)
        tails = (_DEGREES + 1.0) / 2.0 * np.log1p((errors / deviations) ** 2 / _DEGREES)
        return float(weights @ (np.log(deviations) + tails))

    shape = minimize(unlikely, [0.15, 0.02], method="Nelder-Mead").x
    scores = np.abs(errors) / of(shape)
    order = np.argsort(scores)
    most = scores[order][np.searchsorted(np.cumsum(weights[order]), _INSIDE)] / NORMAL_90
    return Doubt(float(most), *(float(most * abs(part)) for part in shape))
