"""The roofline: no kernel runs faster than its arithmetic, its DRAM traffic or its L2 traffic allows.

Williams et al. 2009, extended by the cache: what L2 holds need not come from DRAM, so that DRAM is charged only the
bytes beyond the capacity of L2, and L2 all of them. The bound therefore also holds for operands that an earlier
kernel, or an earlier run of the same one, left in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from neusight.devices.spec import DeviceSpec
from neusight.kernels import KernelBatch
from neusight.kernels.work import Work, by_distinct, work_of
from neusight.quick_dataclasses import dataclass

GEMM_FAMILIES = ("gemm", "conv2d", "attention", "grouped_gemm", "moe")
"""Families that multiply matrices, on matrix units where the device has them."""
LIMITERS = np.array(["compute", "dram", "l2"])
"""Names of the laws, in the order of ``Bound``'s columns."""
TINY_S = 1e-12
"""Bound of a kernel without work [s]: less than a clock, so that it never binds (numerics)."""

CLOCKS = 1.05
"""Rate over the datasheet's that a clock above the usual one explains, in a measurement (assumption: boards run up to
5 % above their boost clock; times of products at known clocks would tell)."""


@dataclass(frozen=True)
class Bound:
    """Lower bounds [s], one column a law, shape (n,)."""

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
    """Peak rate [FLOP/s] for each kernel's dtype: matrix units for products, else the vector pipelines.

    Args:
        batch: kernels of one family.
        device: its peak rates by dtype [FLOP/s].

    Source: datasheets. Validity: dense operands, boost clock. Dtypes without a vector rate of their own (float8, bool,
    integers) and those with a slower one (float16 before Volta) are computed in float32.

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


def overlapped_s(times_s: Sequence[np.ndarray], exponent: np.ndarray | float) -> np.ndarray:
    r"""Time [s] of resources that work side by side: :math:`(\sum_i t_i^p)^{1/p}`, p infinite where they overlap
    perfectly and 1 where not at all; at least ``TINY_S``.
    """
    largest = np.maximum(reduce(np.maximum, times_s), TINY_S)
    together = sum((each / largest) ** exponent for each in times_s)
    return np.asarray(largest * np.maximum(together, 1.0) ** (1.0 / exponent))


def bound_of(batch: KernelBatch, work: Work, device: DeviceSpec) -> Bound:
    r"""Lower bounds [s] of each kernel on a device.

    .. math:: t \ge \frac{F}{R},\quad t \ge \frac{\max(0, B - C)}{W},\quad t \ge \frac{B}{W_{L2}}

    Args:
        batch: kernels of one family.
        work: F the least operations of any known algorithm [FLOP], B the compulsory bytes [B].
        device: R its peak rate [FLOP/s], C its caches [B], W its DRAM bandwidth [B/s], W_L2 that of L2, or of what
            is in its place [B/s].

    Source: Williams, Waterman and Patterson 2009, with what caches may hold taken off. Validity: any kernel that counts
    its operands once, at the published clocks and bandwidths, operands cold or resident.
    """
    uncached = np.maximum(work.bytes - device.cached_bytes, 0.0)
    return Bound(
        compute_s=work.least_flops / flops_per_s(batch, device),
        dram_s=uncached / device.dram_bandwidth_bytes_per_s,
        l2_s=work.bytes / device.on_chip_bytes_per_s,
    )


def cold_s(batch: KernelBatch, device: DeviceSpec) -> np.ndarray:
    """Lower bound of kernels whose operands all lie in device memory: every compulsory byte at peak bandwidth [s]."""
    return work_of(batch).bytes / device.dram_bandwidth_bytes_per_s
