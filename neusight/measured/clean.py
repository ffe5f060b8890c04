"""Rows of kernels whose figures no device can reach."""

from __future__ import annotations

import numpy as np

from neusight.devices import gpu_of
from neusight.errors import NeusightError
from neusight.kernels.work import work_of
from neusight.laws.bounds import GEMM_FAMILIES, peak_flops_per_s
from neusight.measured.kernels import KernelPart

PRODUCTS = (*GEMM_FAMILIES, "attention")
"""Families that run on matrix units."""
CLOCKS = 1.05
"""By which clocks may exceed the datasheet."""


def faults_of(part: KernelPart, latency_s: np.ndarray) -> dict[str, np.ndarray]:
    """Masks of rows of a GPU that tell nothing of their kernel, by reason: in a dtype that the device does not compute
    in, or faster than its datasheet allows.

    Args:
        part: the kernels.
        latency_s: what was measured of each [s].
    """
    work, device, faults = work_of(part.batch), gpu_of(part.device), {}
    fast = np.zeros(len(part.batch), dtype=bool)
    for dtype in np.unique(part.batch["dtype"]):
        own = part.batch["dtype"] == dtype
        try:
            peak = peak_flops_per_s(device, str(dtype), product=part.batch.family in PRODUCTS)
        except NeusightError as error:
            faults[str(error)] = own
            continue
        fast |= own & (work.least_flops > CLOCKS * peak * latency_s)
    # Twice the L2 is room for partial hits; a pass may find there what the one before it wrote.
    uncached = work.bytes / part.batch.columns.get("passes", 1) > 2.0 * device.on_chip_bytes
    fast |= uncached & (work.bytes > CLOCKS * device.dram_bandwidth_bytes_per_s * latency_s)
    return faults | {"more work a second than the GPU can do: the timer or the shape is wrong": fast}
