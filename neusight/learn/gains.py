"""``neusight fit gains``: how uncertain gains are, by measured pairs: the constants of ``neusight.what_if.gain``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from neusight.api import Predictor
from neusight.laws.doubts import spread
from neusight.learn.evidence import (
    ConstantsFit,
    Evidence,
    FitOptions,
    FoundConstants,
    Report,
    group_weights,
    grouped,
    significant,
)
from neusight.learn.sums import fit_shares
from neusight.measured.compare import gain_of
from neusight.measured.folder import learned_tables
from neusight.what_if.gain import Unexplained, ratio_doubts

FREEDOM = 3.0
"""Degrees of freedom of the t distribution that errors are taken of: some pairs are far off, and must not set the
width."""
FIRST = (0.15, 0.02)
"""Effect and floor from which the likeliest are sought."""


@dataclass(frozen=True)
class Residual:
    """A pair of ``kind`` time or memory: the logarithm of the predicted over the measured gain, the deviation that the
    doubts of both answers leave, and the ratio.
    """

    of_set: str
    kind: str
    error: float
    sources: float
    ratio: float
    gpu: str = ""


def read_gains(options: FitOptions, report: Report | None = None) -> Evidence[Residual]:
    """Pairs in a folder of measured rows, beside their predicted gains."""
    return Evidence.of(learned_tables(options.data, "gains"), partial(_residual, Predictor.load()), report=report)


def _residual(predictor: Predictor, row: Mapping[Any, Any], question: Any) -> Residual:
    answers = predictor.ask(question)
    gain = gain_of(answers)
    return Residual(
        of_set=str(row.get("source")),
        kind="memory" if gain.metric == "peak" else "time",
        error=float(np.log(gain.ratio / row["gain"])),
        sources=spread(ratio_doubts(answers.before, answers.after, gain.metric)),
        ratio=gain.ratio,
        gpu=row["gpu"] if isinstance(row.get("gpu"), str) else "",
    )


def solve_gains(evidence: Evidence[Residual], options: FitOptions, report: Report | None = None) -> FoundConstants:
    """Doubts of times and of memory."""
    values: dict[str, float] = {}
    for kind, pairs in grouped(evidence.rows, lambda pair: pair.kind).items():
        values |= {f"{kind}.{part}": value for part, value in asdict(fitted(pairs)).items()}
    error = round(float(np.mean([abs(np.expm1(pair.error)) for pair in evidence.rows])), 4)
    return FoundConstants(**evidence.about(), values=significant(values, 3), error=error)


def fitted(pairs: Sequence[Residual]) -> Unexplained:
    """Deviations beyond the doubts of both answers under which nine of ten pairs lie inside their intervals, where each
    set has equal weight.
    """
    sets = np.unique([pair.of_set for pair in pairs], return_inverse=True)[1]
    errors, sources, effects = np.array([(pair.error, pair.sources, np.log(pair.ratio)) for pair in pairs]).T
    terms = np.stack([effects, np.ones_like(effects)], axis=1)
    # A set counts as the root of its pairs.
    weight = np.sqrt(group_weights(sets, 1.0))
    return Unexplained(*fit_shares(errors, terms, sources, FIRST, weight=weight, freedom=FREEDOM).tolist())


GAINS = ConstantsFit(read=read_gains, solve=solve_gains, rows="gains that are answered")
