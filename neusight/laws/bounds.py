"""The roofline: no kernel runs faster than its arithmetic, its DRAM traffic or its L2 traffic allows.

Williams et al. 2009, extended by the cache: what L2 holds need not come from DRAM, so that DRAM is charged only the
bytes beyond the capacity of L2, and L2 all of them. The bound therefore also holds for operands that an earlier
kernel, or an earlier run of the same one, left in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from neusight.devices.spec import DeviceSpec
from neusight.kernels import KernelBatch
from neusight.kernels.work import Work, by_distinct, work_of

L2_BYTES_PER_CLOCK_PER_SM = 64.0
"""Port between an SM and L2, bytes a clock: 64 since Volta (Jia et al. 2018), at most that before."""

GEMM_FAMILIES = ("gemm", "conv2d", "attention", "grouped_gemm")
LIMITERS = np.array(["compute", "dram", "l2"])
TINY_S = 1e-12


@dataclass(frozen=True)
class Bound:
    """Lower bounds in seconds, one column a law, shape (n,)."""

    compute_s: np.ndarray
    dram_s: np.ndarray
    l2_s: np.ndarray

    @property
    def bound_s(self) -> np.ndarray:
        """The largest of the laws; never zero, since a kernel without work still is one."""
        return np.maximum(np.maximum(self.compute_s, self.dram_s), np.maximum(self.l2_s, TINY_S))

    @property
    def limiter(self) -> np.ndarray:
        """Name of the law that binds: compute, dram or l2."""
        return LIMITERS[np.argmax(np.stack([self.compute_s, self.dram_s, self.l2_s]), axis=0)]


def flops_per_s(batch: KernelBatch, device: DeviceSpec) -> np.ndarray:
    """Peak rate for each kernel's dtype: matrix units for products, else the vector pipelines.

    Dtypes without a vector rate of their own (float8, bool, integers) are computed in float32.

    Raises:
        DeviceError: a product in a dtype that the device lacks.
    """
    product = batch.family in GEMM_FAMILIES
    return by_distinct(batch["dtype"], lambda dtype: peak_flops_per_s(device, dtype, product=product))


def peak_flops_per_s(device: DeviceSpec, dtype: str, *, product: bool) -> float:
    """Peak rate [FLOP/s] of products, or of pointwise and row-wise arithmetic, in a dtype; see ``flops_per_s``.

    Raises:
        DeviceError: a product in a dtype that the device lacks.
    """
    rates = device.vector_flops_per_s
    if product:
        return device.gemm_flops_per_s(dtype)
    single = rates.get("float32") or max(rates.values())
    return rates["float64"] if dtype == "float64" and "float64" in rates else max(rates.get(dtype, single), single)


def l2_bytes_per_s(device: DeviceSpec) -> float:
    """Published L2 bandwidth, or the ports of all SMs where none is published."""
    ports = device.sm_count * device.boost_clock_hz * L2_BYTES_PER_CLOCK_PER_SM
    return max(device.l2_bandwidth_bytes_per_s or ports, ports)


def bound_of(batch: KernelBatch, work: Work, device: DeviceSpec) -> Bound:
    """Lower bounds of each kernel on a device.

    compute: ``least_flops / peak``; dram: ``max(0, bytes - L2) / bandwidth``; l2: ``bytes / L2 bandwidth``.
    """
    uncached = np.maximum(work.bytes - device.l2_capacity_bytes, 0.0)
    return Bound(
        compute_s=work.least_flops / flops_per_s(batch, device),
        dram_s=uncached / device.dram_bandwidth_bytes_per_s,
        l2_s=work.bytes / l2_bytes_per_s(device),
    )


def cold_s(batch: KernelBatch, device: DeviceSpec) -> np.ndarray:
    """Lower bound of kernels whose operands all lie in device memory: every compulsory byte at peak bandwidth [s]."""
    return work_of(batch).bytes / device.dram_bandwidth_bytes_per_s
