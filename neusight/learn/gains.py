"""``neusight fit gains``: how uncertain gains are, by measured pairs: the constants of ``neusight.what_if.gain``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.executors.costs import NORMAL_90
from neusight.laws.doubts import spread
from neusight.learn import Report
from neusight.learn.evidence import ConstantsFit, Evidence, FitOptions, FoundConstants, ask_each, group_weights
from neusight.learn.physics.solve import likeliest
from neusight.learn.sums import weighted_quantiles
from neusight.measured import MeasuredTable
from neusight.measured.compare import gain_of, question_of
from neusight.measured.folder import learned_tables
from neusight.what_if.gain import Unexplained, ratio_doubts

if TYPE_CHECKING:
    from neusight.api import Predictor

_DEGREES = 3.0
"""Of freedom of the t distribution that errors are taken of: some pairs are far off, and must not set the width."""
_INSIDE = 0.9


@dataclass(frozen=True)
class Residual:
    """A pair: the logarithm of the predicted over the measured gain, the deviation that the doubts of both answers
    leave, and the ratio.
    """

    of_set: str
    memory: bool
    error: float
    sources: float
    ratio: float
    gpu: str = ""


def read_gains(options: FitOptions, report: Report | None = None) -> Evidence[Residual]:
    """Pairs in a folder of measured rows, beside their predicted gains."""
    from neusight.api import Predictor

    tables, left_out = learned_tables(options.data, "gains"), Counter[str]()
    predictor, pairs = Predictor.load(), list[Residual]()
    for done, table in enumerate(tables):
        if report:
            report(f"gains of {table.path.stem}", done, len(tables), float("nan"))
        pairs += residuals(table, predictor, left_out)
    return Evidence(rows=pairs, files=[table.path for table in tables], skipped=left_out)


def solve_gains(evidence: Evidence[Residual], options: FitOptions, report: Report | None = None) -> FoundConstants:
    """Doubts of times and of memory."""
    pairs = evidence.rows
    kinds = {name: [p for p in pairs if p.memory is (name == "memory")] for name in ("time", "memory")}
    doubts = {name: asdict(fitted(own)) for name, own in kinds.items() if own}
    values = {
        f"{name}.{part}": float(f"{value:.3g}") for name, parts in doubts.items() for part, value in parts.items()
    }
    error = round(float(np.mean([abs(np.expm1(pair.error)) for pair in pairs])), 4)
    return FoundConstants(**evidence.about(), values=values, error=error)


def residuals(table: MeasuredTable, predictor: Predictor, left_out: Counter[str]) -> Iterator[Residual]:
    """Of every row of gains that is answered; others are counted by reason."""

    def residual(row: Mapping[Any, Any]) -> Residual:
        answers = predictor.ask(question_of(row, table))
        gain = gain_of(answers)
        known = spread(ratio_doubts(answers.before, answers.after, gain.metric))
        error = float(np.log(gain.ratio / row["gain"]))
        gpu = row["gpu"] if isinstance(row.get("gpu"), str) else ""
        return Residual(str(row.get("source")), gain.metric == "peak", error, known, gain.ratio, gpu)

    return ask_each(table.frame.to_dict("records"), residual, left_out)


def fitted(pairs: Sequence[Residual]) -> Unexplained:
    """Deviations beyond the doubts of both answers under which nine of ten pairs lie inside their intervals, where each
    set has equal weight: the likeliest shape, then the size.
    """
    sets = np.unique([pair.of_set for pair in pairs], return_inverse=True)[1]
    # A set counts as the root of its pairs.
    weights = np.sqrt(group_weights(sets, 1.0))
    weights /= weights.sum()
    errors, sources, effects = np.array([(pair.error, pair.sources, np.log(pair.ratio)) for pair in pairs]).T

    def deviations(shape: np.ndarray) -> np.ndarray:
        effect, floor = shape
        return np.maximum(np.sqrt(sources**2 + (effect * effects) ** 2 + floor**2), 1e-3)

    def surprise(shape: np.ndarray) -> float:
        tails = (_DEGREES + 1.0) / 2.0 * np.log1p((errors / deviations(shape)) ** 2 / _DEGREES)
        return float(weights @ (np.log(deviations(shape)) + tails))

    shape = likeliest(surprise, [0.15, 0.02])
    beyond = np.sqrt(np.maximum((errors / NORMAL_90) ** 2 - sources**2, 0.0))
    size = weighted_quantiles(beyond / np.hypot(shape[0] * effects, shape[1]), weights, _INSIDE)
    return Unexplained(*(size * shape).tolist())


GAINS = ConstantsFit(read=read_gains, solve=solve_gains, rows="gains that are answered")
