"""Learn the prior of corrections from other GPUs: each one's errors under tile models that had not seen it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from neusight.executors.gpu.calibration.prior import FamilyPrior, Prior
from neusight.learn.calibration.observe import Timings, linearised, noise_scales

STEPS = (0.5, 0.7, 1.4, 2.0)
"""Factors by which each figure of a prior is changed in search of a better one."""
ROUNDS = 4
ROWS = 50
"""Of each kind on each GPU."""
LEARNED = ("family", "op", "alone", "joint", "reach", "alike", "noise")
"""Figures that rows of one dtype can tell."""
LIMITS = dict.fromkeys(LEARNED, (1e-3, 10.0)) | {"alike": (0.05, 1.0), "noise": (0.01, 1.0)}
"""No measurement is believed to better than one percent."""
DIGITS = 4


def learned_prior(gpus: Sequence[Timings], start: Prior | None = None, seed: int = 0) -> Prior:
    """The prior under which the errors on several GPUs are most probable, found figure by figure.

    Args:
        gpus: rows of one GPU each (``timings_of``), predicted by tile models that were trained without it; for a test
            on a GPU, those of others.
        start: where the search begins, and what families without rows keep.
        seed: of the sample of the rows.
    """
    start = start or Prior()
    samples = [_sample(timings, seed) for timings in gpus]
    families = {name for timings in samples for name in timings.points.family.tolist()}
    found = {name: _learned(name, samples, start) if name in families else p for name, p in start.families.items()}
    return replace(start, families=found)


def _sample(timings: Timings, seed: int) -> Timings:
    shuffled = np.random.default_rng(seed).permutation(len(timings))
    kind = timings.points.kind[shuffled]
    return timings.take(np.sort(np.concatenate([shuffled[kind == name][:ROWS] for name in np.unique(kind)])))


def _learned(family: str, samples: Sequence[Timings], start: Prior) -> FamilyPrior:
    own = [sample.take(sample.points.family == family) for sample in samples]
    own = [sample for sample in own if len(sample)]
    best, evidence = start.families[family], _evidence(own, start, family, start.families[family])
    for _ in range(ROUNDS):
        before = best
        for figure in LEARNED:
            for step in STEPS:
                value = float(np.clip(getattr(best, figure) * step, *LIMITS[figure]))
                tried = replace(best, **{figure: round(value, DIGITS)})
                reached = _evidence(own, start, family, tried)
                if reached > evidence:
                    best, evidence = tried, reached
        if best == before:
            break
    return best


def _evidence(samples: Sequence[Timings], start: Prior, family: str, p: FamilyPrior) -> float:
    """Log probability of the errors of all GPUs; a figure four times off the start counts as a standard deviation."""
    prior = replace(start, families={**start.families, family: p})
    known = sum(noise_scales(linearised(sample, prior), prior)[1] for sample in samples)
    off = [np.log2(getattr(p, figure) / getattr(start.families[family], figure)) / 2.0 for figure in LEARNED]
    return known - 0.5 * float(np.square(off).sum())
