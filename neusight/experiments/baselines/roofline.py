"""The classic roofline as a predictor: the longer of arithmetic and DRAM traffic, at datasheet rates.

Williams, Waterman and Patterson 2009. The other baselines fall back on it where they have no predictor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np

from neusight.devices.spec import DeviceSpec
from neusight.kernels import KernelBatch
from neusight.kernels.work import work_of
from neusight.laws.bounds import flops_per_s
from neusight.learn.training_data import DeviceRows


def roofline_s(batch: KernelBatch, device: DeviceSpec) -> np.ndarray:
    """``max(flops / peak, compulsory bytes / DRAM bandwidth)`` in seconds, shape (n,)."""
    work = work_of(batch)
    return np.maximum(work.flops / flops_per_s(batch, device), work.bytes / device.dram_bandwidth_bytes_per_s)


class Roofline:
    """``roofline_s``; there is nothing to learn."""

    name: ClassVar[str] = "roofline"

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def fit(self, rows: Sequence[DeviceRows]) -> Self:
        """Nothing to do."""
        return self

    def predict_s(self, batch: KernelBatch, device: DeviceSpec) -> np.ndarray:
        """Seconds of each kernel, shape (n,)."""
        return roofline_s(batch, device)
