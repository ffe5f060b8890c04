"""Predictors at work in one fold: all answer alike, for kernels and whole models, with an interval or without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from neusight.api import Predictor
    from neusight.devices import DeviceSpec
    from neusight.kernels import KernelBatch


@dataclass(frozen=True)
class Forecast:
    """Seconds of a batch of kernels, each launched alone, shape (n,); no interval where none is stated."""

    latency_s: np.ndarray
    low_s: np.ndarray | None = None
    high_s: np.ndarray | None = None


@dataclass(frozen=True)
class StepForecast:
    """Milliseconds of one step of a whole model."""

    latency_ms: float
    low_ms: float | None = None
    high_ms: float | None = None


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

    def kernels(self, batch: KernelBatch, device: DeviceSpec) -> Forecast:
        """What it says of kernels."""

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

    def kernels(self, batch: KernelBatch, device: DeviceSpec) -> Forecast:
        """With the 90 % interval."""
        said = self.predictor.kernels(batch, device)
        return Forecast(said.latency_s, said.low_s, said.high_s)

    def step(self, record: Mapping[str, Any], config: Path) -> StepForecast:
        """With the 90 % interval; operators without a rule count as data movement."""
        estimate = self.predictor.estimate(config, record["gpu"], **asked(record), allow_fallback=True)
        low_s, high_s = estimate.interval
        return StepForecast(1e3 * estimate.latency_s, 1e3 * low_s, 1e3 * high_s)

    def provenance(self) -> dict[str, Any]:
        """Hashes of the tile models, and their training GPUs."""
        return dict(self.predictor.kernel_predictor.provenance)


def asked(record: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a step that a row of ``load_models`` tells."""
    return {
        "batch": int(record["batch"]),
        "seq_len": None if record["seq_len"] is None else int(record["seq_len"]),
        **{key: record[key] for key in ("mode", "dtype", "optimizer", "attention")},
    }
