"""Predictors at work in one fold: all answer alike, for kernels and whole models, with an interval or without.

Baselines learn from the same rows as tile models, and take a whole model for the sum of its kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from neusight.devices import GpuSpec, load_gpu
from neusight.errors import DataError
from neusight.executors.gpu.predictor import KernelPredictor
from neusight.executors.gpu.tile_models.artifact import Artifact
from neusight.experiments.baselines import Baseline, new_baseline, whole_model_s
from neusight.experiments.baselines.rules import RULES, Rule
from neusight.learn.training_data import DeviceRows
from neusight.measured.score import Scored
from neusight.plans import TracedStep, single
from neusight.workloads import load_workload

if TYPE_CHECKING:
    import pandas as pd

    from neusight.api import Predictor
    from neusight.kernels import KernelBatch
    from neusight.kernels.conditions import Conditions

REMEMBERED = 128
"""Steps whose kernels are kept: every baseline and GPU asks for the same ones."""


@dataclass(frozen=True)
class Forecast:
    """Seconds of a batch of kernels, each launched alone, shape (n,); no interval where none is stated.

    ``execution_s`` is without the launch and ``bound_s`` the least that it can be, where a predictor tells them.
    """

    latency_s: np.ndarray
    low_s: np.ndarray | None = None
    high_s: np.ndarray | None = None
    execution_s: np.ndarray | None = None
    bound_s: np.ndarray | None = None

    def scored(self, keys: pd.DataFrame, measured_s: np.ndarray) -> Scored:
        """In milliseconds beside what was measured; rows of which a predictor says nothing are left out."""
        unknown = np.full(len(self.latency_s), np.nan)
        low, high = (unknown if end is None else 1e3 * end for end in (self.low_s, self.high_s))
        rows = Scored(keys, 1e3 * self.latency_s, low, high, 1e3 * measured_s)
        return rows.take(~np.isnan(self.latency_s))


@dataclass(frozen=True)
class StepForecast:
    """Milliseconds of one step of a whole model."""

    latency_ms: float
    low_ms: float | None = None
    high_ms: float | None = None

    def longer_by(self, added_ms: float) -> StepForecast:
        """The same with more to do."""
        low, high = (None if end is None else end + added_ms for end in (self.low_ms, self.high_ms))
        return StepForecast(self.latency_ms + added_ms, low, high)


class Entrant(Protocol):
    """A predictor that was trained, if it had to be, without the fold's held-out GPUs."""

    @property
    def name(self) -> str:
        """As declared."""

    @property
    def seed(self) -> int:
        """Of its training."""

    @property
    def label(self) -> str:
        """Name, with the seed where there are several."""

    def kernels(self, batch: KernelBatch, device: GpuSpec, conditions: Conditions) -> Forecast:
        """What it says of kernels that were measured under these conditions."""

    def step(self, record: Mapping[str, Any], config: Path) -> StepForecast:
        """What it says of a row of ``load_models`` whose model that configuration describes."""

    def provenance(self) -> dict[str, Any]:
        """What answered, and what it learned from."""


@dataclass(frozen=True)
class TileModelEntrant:
    """This project's predictor, with tile models of its own."""

    name: str
    seed: int
    label: str
    predictor: Predictor

    def kernels(self, batch: KernelBatch, device: GpuSpec, conditions: Conditions) -> Forecast:
        """With the 90 % interval."""
        costs = self.predictor.kernels(batch, device, conditions=conditions)
        return Forecast(costs.latency_s, *costs.interval_s(), costs.execution_s, costs.bound_s)

    def step(self, record: Mapping[str, Any], config: Path) -> StepForecast:
        """With the 90 % interval; operators without a rule count as data movement."""
        estimate = self.predictor.estimate(config, record["gpu"], **step_options(record), allow_fallback=True)
        low_s, high_s = estimate.interval
        return StepForecast(1e3 * estimate.latency_s, 1e3 * low_s, 1e3 * high_s)

    def provenance(self) -> dict[str, Any]:
        """Hashes of the tile models, and their training GPUs."""
        manifests = [artifact.manifest for artifact in self.predictor.kernel_predictor.artifacts.values()]
        hashes = {m.name: f"{m.backend}, {m.weights_sha256[:12]}" for m in manifests}
        return {"tile_models": hashes, "training_gpus": sorted({gpu for m in manifests for gpu in m.training_gpus})}


@dataclass(frozen=True)
class BaselineEntrant:
    """A fitted baseline or rule; it states no interval."""

    name: str
    seed: int
    label: str
    baseline: Baseline | Rule
    training: tuple[str, ...]

    def kernels(self, batch: KernelBatch, device: GpuSpec, conditions: Conditions) -> Forecast:
        """Without an interval; published predictors know no conditions."""
        if isinstance(self.baseline, Rule):
            return Forecast(self.baseline.latency_s(batch, device, conditions))
        return Forecast(self.baseline.predict_s(batch, device))

    def step(self, record: Mapping[str, Any], config: Path) -> StepForecast:
        """The sum of all phases.

        Raises:
            DataError: a rule that predicts single kernels alone.
        """
        if isinstance(self.baseline, Rule):
            raise DataError(f"'{self.baseline.name}' predicts single kernels alone: declare it without models")
        program = program_of(record, config)
        return StepForecast(1e3 * sum(whole_model_s(self.baseline, program, load_gpu(record["gpu"])).values()))

    def provenance(self) -> dict[str, Any]:
        """What it learned from."""
        return {"baseline": self.baseline.name, "seed": self.seed, "training_gpus": sorted(self.training)}


def step_options(record: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a step that a row of ``load_models`` tells."""
    return {
        "batch": int(record["batch"]),
        "seq_len": None if record["seq_len"] is None else int(record["seq_len"]),
        **{key: record[key] for key in ("mode", "dtype", "optimizer", "attention")},
    }


def with_shrinkage(predictor: KernelPredictor, shrinkage: float) -> KernelPredictor:
    """The same with a share of what was learned, on every device."""

    def shrunk(artifact: Artifact) -> Artifact:
        return replace(artifact, manifest=replace(artifact.manifest, silicon={}, shrinkage=shrinkage))

    return replace(predictor, artifacts={name: shrunk(a) for name, a in predictor.artifacts.items()})


def fitted_baseline(kind: str, seed: int, rows: Callable[[], Sequence[DeviceRows]]) -> Baseline | Rule:
    """A baseline or a rule of this kind, trained on rows."""
    untrained: Baseline | Rule = RULES[kind](seed) if kind in RULES else new_baseline(kind, seed)
    return untrained.fit(rows())


def program_of(record: Mapping[str, Any], config: Path) -> TracedStep:
    """The kernels of a row of ``load_models`` whose model that configuration describes."""
    return _program(config, tuple(step_options(record).items()))


@lru_cache(maxsize=REMEMBERED)
def _program(config: Path, options: tuple[tuple[str, Any], ...]) -> TracedStep:
    return single(load_workload(str(config), **dict(options), allow_fallback=True))
