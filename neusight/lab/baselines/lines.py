"""Two predictors of straight lines, the roofline and Li et al.'s, and the operator types that baselines tell apart.

Roofline (Williams, Waterman and Patterson 2009): the longer of arithmetic and DRAM traffic, at datasheet rates. The
other baselines fall back on it where they have no predictor.

Li et al. ("Path Forward Beyond Simulators: Fast and Accurate GPU Execution Time Prediction for DNN Workloads",
MICRO'23): latency is a straight line over the work, for each operator type and GPU. Work is FLOPs of products and
convolutions, bytes of the rest. A GPU without rows takes its slope from the others: its inverse, the rate at which work
is done, is a straight line over DRAM bandwidth; its intercept is zero. So it was set up for the comparison in ASPLOS'25
(Lee et al., artifact, script ``run_train_nvidia_micro.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Self

import numpy as np

from neusight.devices.spec import GpuSpec
from neusight.errors import DataError
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.kernels.work import by_distinct, work_of
from neusight.laws.bounds import flops_per_s
from neusight.learn.training_data import DeviceRows

TYPES = ("", "linear", "bmm", "conv2d", "elementwise", "softmax", "layer_norm")
"""As in the artifact of Lee et al. (ASPLOS'25), with convolutions; ``""`` is whatever has no predictor."""
COMPUTE_TYPES = ("linear", "bmm", "conv2d")
Line = tuple[float, float]
"""Slope and intercept."""


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


class LinearRegression:
    """Ordinary least squares, by operator type and GPU, and over bandwidth between GPUs. Nothing in it is random."""

    def __init__(self, seed: int = 0) -> None:
        self.lines_: dict[str, dict[str, Line]] = {}
        """By operator type and GPU: seconds per FLOP or byte, and seconds."""
        self.rates_: dict[str, Line] = {}
        """By operator type: work a second over bytes a second of DRAM."""

    def fit(self, rows: Sequence[DeviceRows]) -> Self:
        """One line an operator type and GPU, one line an operator type over the GPUs.

        Raises:
            DataError: no row is of an operator type that is known.
        """
        points = {kind: _points(parts, kind) for kind, parts in by_type(rows, TYPES[1:]).items()}
        if not points:
            raise DataError("Li et al. learn from products, convolutions, elementwise kernels, softmax and layer_norm")
        self.lines_ = {kind: {gpu: line(*xy) for gpu, xy in by_gpu.items()} for kind, by_gpu in points.items()}
        bandwidth = {r.device.id: r.device.dram_bandwidth_bytes_per_s for r in rows}
        self.rates_ = {kind: _over_bandwidth(lines, bandwidth) for kind, lines in self.lines_.items()}
        return self

    def latency_s(self, batch: KernelBatch, device: GpuSpec, conditions: Conditions) -> np.ndarray:
        """Seconds of each kernel, not below zero, shape (n,). What has no line takes the roofline's time."""
        lines = {kind: fitted for kind in self.lines_ if (fitted := self._line(kind, device)) is not None}
        return over_roofline(batch, device, {kind: partial(_along, kind, *fitted) for kind, fitted in lines.items()})

    def _line(self, kind: str, device: GpuSpec) -> Line | None:
        """The GPU's own, or that of its bandwidth; None where there is none, or it says that no work is done."""
        if device.id in self.lines_[kind]:
            return self.lines_[kind][device.id]
        slope, intercept = self.rates_[kind]
        rate = slope * device.dram_bandwidth_bytes_per_s + intercept
        return (1.0 / rate, 0.0) if rate > 0 else None


def line(x: np.ndarray, y: np.ndarray) -> Line:
    """Slope and intercept of least squares; the line through the origin where all ``x`` are the same."""
    centred = x - x.mean()
    spread = float(centred @ centred)
    if spread == 0.0:
        return float(y.mean() / x.mean()), 0.0
    slope = float(centred @ (y - y.mean())) / spread
    return slope, float(y.mean() - slope * x.mean())


def _along(kind: str, slope: float, intercept: float, batch: KernelBatch, _: GpuSpec) -> np.ndarray:
    return np.maximum(slope * _amount(batch, kind) + intercept, 0.0)


def _amount(batch: KernelBatch, kind: str) -> np.ndarray:
    work = work_of(batch)
    return work.flops if kind in COMPUTE_TYPES else work.bytes


def _points(parts: Sequence[DeviceRows], kind: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Work and seconds of all rows of an operator type by their GPU."""
    by_gpu: dict[str, list[np.ndarray]] = {}
    for r in parts:
        by_gpu.setdefault(r.device.id, []).append(np.stack([_amount(r.batch, kind), r.latency_s]))
    return {gpu: tuple(np.concatenate(points, axis=1)) for gpu, points in by_gpu.items()}


def _over_bandwidth(lines: dict[str, Line], bandwidth: dict[str, float]) -> Line:
    """Work a second of the GPUs, the inverse of their slopes, over their bandwidth."""
    gpus = [gpu for gpu, (slope, _) in lines.items() if slope > 0]
    if not gpus:
        return 0.0, 0.0
    return line(np.array([bandwidth[gpu] for gpu in gpus]), np.array([1.0 / lines[gpu][0] for gpu in gpus]))
