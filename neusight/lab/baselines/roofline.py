"""The roofline, and the operator types that the published predictor tells apart.

Roofline (Williams, Waterman and Patterson 2009): the longer of arithmetic and DRAM traffic, at datasheet rates. The
published predictor falls back on it where it has no network.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Self

import numpy as np

from neusight.devices.spec import GpuSpec
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.kernels.work import by_distinct, work_of
from neusight.laws.bounds import flops_per_s
from neusight.learn.training_data import DeviceRows

TYPES = ("", "linear", "bmm", "elementwise", "softmax", "layer_norm")
"""As in the artifact of Lee et al. (ASPLOS'25); ``""`` is whatever has no predictor."""


def operator_types(batch: KernelBatch) -> np.ndarray:
    """The type of each kernel, shape (n,). Gradients count with their forward operator."""
    codes = by_distinct(batch["op"], lambda op: TYPES.index(_type_of(batch.family, op)))
    return np.array(TYPES)[codes.astype(int)]


def _type_of(family: str, op: str) -> str:
    if family == "gemm":
        return "bmm" if op == "bmm" else "linear"
    if family == "row_reduction":
        return "softmax" if "softmax" in op else "layer_norm" if "norm" in op else ""
    return family if family in TYPES else ""


def roofline_s(batch: KernelBatch, device: GpuSpec) -> np.ndarray:
    """``max(flops / peak, compulsory bytes / DRAM bandwidth)`` in seconds, shape (n,)."""
    work = work_of(batch)
    return np.maximum(work.flops / flops_per_s(batch, device), work.bytes / device.dram_bandwidth_bytes_per_s)


def by_type(rows: Sequence[DeviceRows], types: Collection[str]) -> dict[str, list[DeviceRows]]:
    """Rows of each of some operator types, in their order."""
    parts: dict[str, list[DeviceRows]] = {}
    for r in rows:
        kinds = operator_types(r.batch)
        for kind in sorted(set(kinds.tolist()) & set(types)):
            parts.setdefault(kind, []).append(r.take(kinds == kind))
    return parts


def over_roofline(
    batch: KernelBatch, device: GpuSpec, seconds: Mapping[str, Callable[[KernelBatch, GpuSpec], np.ndarray]]
) -> np.ndarray:
    """Seconds of each kernel by the function of its operator type, shape (n,); the roofline's where there is none."""
    latency_s, kinds = roofline_s(batch, device), operator_types(batch)
    for kind in sorted(set(kinds.tolist()) & seconds.keys()):
        latency_s[kinds == kind] = seconds[kind](batch.take(kinds == kind), device)
    return latency_s


class Roofline:
    """A share of ``roofline_s``, and a launch; there is nothing to learn."""

    def __init__(self, seed: int = 0, share: float = 1.0, launch_s: float = 0.0) -> None:
        self.share = share
        self.launch_s = launch_s

    def fit(self, rows: Sequence[DeviceRows]) -> Self:
        """Nothing to do."""
        return self

    def latency_s(self, batch: KernelBatch, device: GpuSpec, conditions: Conditions) -> np.ndarray:
        """Seconds of each kernel, shape (n,)."""
        return roofline_s(batch, device) / self.share + self.launch_s
