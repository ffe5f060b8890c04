"""What a baseline is: something that learns from measured rows and says how long kernels take on a device.

Whole models are the plain sum of kernels, each as if launched alone: so the published predictors compose them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from neusight.devices.spec import GpuSpec
from neusight.errors import DataError, nearest
from neusight.kernels import KernelBatch
from neusight.learn.training_data import Corpus, DeviceRows
from neusight.plans import TracedStep
from neusight.workloads.workload import PHASES

_CLASSES = {
    "roofline": ("neusight.experiments.baselines.lines", "Roofline"),
    "habitat": ("neusight.experiments.baselines.habitat", "Habitat"),
    "li": ("neusight.experiments.baselines.lines", "LinearRegression"),
    "neusight-paper": ("neusight.experiments.baselines.neusight_paper", "NeusightPaper"),
}
NAMES = tuple(_CLASSES)


class Baseline(Protocol):
    """A published predictor. Fitted state ends in ``_``; the same rows and seed give the same predictions."""

    name: ClassVar[str]

    def fit(self, rows: Sequence[DeviceRows]) -> Self:
        """Learn from rows of any families and GPUs, one entry a family and GPU (or several).

        Raises:
            DataError: rows of a family that the method learns from are missing.
        """
        ...

    def predict_s(self, batch: KernelBatch, device: GpuSpec) -> np.ndarray:
        """Seconds of each kernel launched alone, shape (n,)."""
        ...


def new_baseline(name: str, seed: int = 0) -> Baseline:
    """An untrained baseline.

    Args:
        name: one of ``NAMES``.
        seed: of networks and batches; without effect where nothing is random.

    Raises:
        DataError: an unknown name.
    """
    if name not in _CLASSES:
        raise DataError(f"no baseline '{name}': one of {', '.join(NAMES)}{nearest(name, NAMES)}")
    module, kind = _CLASSES[name]
    make: Callable[..., Any] = getattr(import_module(module), kind)
    baseline: Baseline = make(seed=seed)
    return baseline


def rows_of(corpus: Corpus) -> list[DeviceRows]:
    """The rows of a corpus that a baseline learns from, every family and GPU, with those that were set aside because
    their GPU ran slow at the time: published predictors learned from them.

    Raises:
        DataError: there is no row.
    """
    rows = [r for parts in (*corpus.rows.values(), *corpus.throttled.values()) for r in parts if len(r)]
    if not rows:
        raise DataError(f"{corpus.files[0].parent} has no rows that a baseline learns from: give their split")
    return rows


def whole_model_s(baseline: Baseline, program: TracedStep, device: GpuSpec) -> Mapping[str, float]:
    """Seconds of each phase of a step (forward, backward, optimizer; those that the step has).

    Args:
        baseline: fitted.
        program: the step on one device.
        device: where it runs.
    """
    totals: dict[str, float] = {}
    for batch, positions in program.batches:
        launches = [program.launches[i] for i in positions]
        counted_s = baseline.predict_s(batch, device) * np.array([launch.count for launch in launches])
        for launch, seconds in zip(launches, counted_s.tolist(), strict=True):
            totals[launch.phase] = totals.get(launch.phase, 0.0) + seconds
    return {phase: totals[phase] for phase in PHASES if phase in totals}
