"""How uncertain gains are, fitted to pairs that were measured: the constants of ``neusight.what_if.gain``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from neusight.errors import NeusightError
from neusight.executors.costs import NORMAL_90
from neusight.measured import MeasuredTable
from neusight.measured.compare import gain_of, question_of
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


def residuals(table: MeasuredTable, predictor: Predictor) -> list[Residual]:
    """Of every row of gains that is answered."""
    found = []
    for row in table.frame.to_dict("records"):
        try:
            answers = predictor.ask(question_of(row, table))
        except NeusightError:
            continue
        gain = gain_of(answers)
        known = known_doubt(answers.before, answers.after, gain.metric)
        error = float(np.log(gain.ratio / row["gain"]))
        found.append(Residual(str(row.get("source")), gain.metric == "peak", error, known, gain.ratio))
    return found


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
