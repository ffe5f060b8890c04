"""The predictor that others published, trained here on the same rows, and what knows no physics, as yardsticks of this
project's estimates. Each answers as ``Predictor`` does, for kernels and for steps on one device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, Self

import numpy as np

from neusight.devices import DeviceSpec, GpuSpec, gpu_of
from neusight.errors import DataError
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.lab.baselines.published import NeusightPaper
from neusight.lab.baselines.roofline import Roofline
from neusight.lab.baselines.rules import Nearest, Trees
from neusight.learn.training_data import Corpus, DeviceRows
from neusight.questions import Step
from neusight.steps.answers import StepAnswers

_STEPS = StepAnswers({})
"""Programs of steps, which every baseline and device asks for again."""


class Baseline(Protocol):
    """Fitted state ends in ``_``; the same rows and seed give the same predictions."""

    def fit(self, rows: Sequence[DeviceRows]) -> Self:
        """Learn from rows of any families and GPUs, one entry a family and GPU (or several).

        Raises:
            DataError: rows of a family that the method learns from are missing.
        """

    def latency_s(self, batch: KernelBatch, device: GpuSpec, conditions: Conditions) -> np.ndarray:
        """Seconds of each kernel under its conditions, shape (n,); published predictors know no conditions."""


BASELINES: dict[str, Callable[[int], Baseline]] = {
    "roofline": Roofline,
    "rule-of-thumb": partial(Roofline, share=0.8, launch_s=3e-6),
    "neusight-paper": NeusightPaper,
    "trees": Trees,
    "nearest": Nearest,
}
"""Untrained ones by name, made with a seed."""


def rows_of(corpus: Corpus) -> list[DeviceRows]:
    """The rows of a corpus that a baseline learns from, every family and GPU, with those that were set aside because
    their GPU ran slow at the time: published predictors learned from them.
    """
    return [r for parts in (*corpus.rows.values(), *corpus.throttled.values()) for r in parts if len(r)]


@dataclass(frozen=True)
class PlainAnswer:
    """Seconds, of kernels or of a step, launch included; no interval is stated."""

    latency_s: Any
    low_s: float = np.nan
    high_s: float = np.nan

    @property
    def execution_s(self) -> np.ndarray:
        """Times without the launch, which are not told."""
        return np.full(len(self.latency_s), np.nan)

    def interval_s(self) -> tuple[np.ndarray, np.ndarray]:
        """Ends that are not stated."""
        return self.execution_s, self.execution_s


@dataclass(frozen=True)
class BaselinePredictor:
    """A fitted baseline, asked as this project's predictor is."""

    baseline: Baseline

    def kernels(self, batch: KernelBatch, device: DeviceSpec, *, conditions: Conditions) -> PlainAnswer:
        """Kernels that were measured under these conditions."""
        return PlainAnswer(self.baseline.latency_s(batch, gpu_of(device), conditions))

    def ask(self, question: Any) -> PlainAnswer:
        """A step: the plain sum of its kernels, each as if launched alone; so the published predictors compose them.

        Raises:
            DataError: any other question.
        """
        if not isinstance(question, Step) or question.cluster:
            raise DataError("a baseline answers for kernels and for steps on one device: leave out other rows")
        ready = _STEPS.ready(question.resolve(question.device()))
        program, device, seconds = ready.program, gpu_of(ready.device), 0.0
        for batch, positions in program.batches:
            own = self.baseline.latency_s(batch, device, Conditions.of(len(batch)))
            seconds += float(own @ program.counts[positions])
        return PlainAnswer(seconds)
