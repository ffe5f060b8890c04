"""Measured kernels whose truth is known: what a predictor says, times a factor that the test plants."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.devices import DeviceSpec
from neusight.executors.gpu.predictor import KernelPredictor
from neusight.kernels import KernelBatch
from neusight.learn.calibration.fit import parts_of

if TYPE_CHECKING:
    import pandas as pd

Factor = Callable[[KernelBatch], Any]
"""From the kernels of a family to measured over predicted execution time."""


def products(count: int, seed: int = 0, large: bool = True) -> pd.DataFrame:
    """Linear layers without a latency yet; ``large`` ones take much longer than their launch."""
    import pandas as pd

    rng = np.random.default_rng(seed)
    m, n, k = np.exp2(rng.uniform(9 if large else 4, 12 if large else 6, (3, count))).astype(int)
    return pd.DataFrame({"family": "gemm", "op": "linear", "batch": 1, "m": m, "n": n, "k": k})


def pointwise(count: int, seed: int = 0) -> pd.DataFrame:
    """Large additions of two tensors without a latency yet."""
    import pandas as pd

    rows, cols = np.exp2(np.random.default_rng(seed).uniform(11, 14, (2, count))).astype(int)
    return pd.DataFrame({"family": "elementwise", "op": "add", "rows": rows, "cols": cols})


def measured(
    frame: pd.DataFrame,
    predictor: KernelPredictor,
    device: DeviceSpec,
    factor: Factor | float = 1.0,
    launch: float = 1.0,
    noise: float = 0.02,
    seed: int = 0,
) -> pd.DataFrame:
    """The rows with a latency: predicted execution times ``factor``, launch times ``launch``, and noise."""
    out = frame.assign(gpu=device.id, dtype="float32", split="test")
    latency_s = np.empty(len(out))
    for part in parts_of(out, device):
        found = predictor.predict(part.batch, device, part.conditions)
        execution_s = (found.latency_s - found.overhead_s) * (factor(part.batch) if callable(factor) else factor)
        latency_s[part.rows] = launch * found.overhead_s + execution_s
    latency_s *= np.exp(noise * np.random.default_rng(seed).standard_normal(len(out)))
    return out.assign(latency_ms=1e3 * latency_s)
