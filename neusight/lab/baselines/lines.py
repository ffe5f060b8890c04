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

from collections.abc import Sequence
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
        if not (points := _points(rows)):
            raise DataError("Li et al. learn from products, convolutions, elementwise kernels, softmax and layer_norm")
        self.lines_ = {kind: {gpu: line(*xy) for gpu, xy in by_gpu.items()} for kind, by_gpu in points.items()}
        bandwidth = {r.device.id: r.device.dram_bandwidth_bytes_per_s for r in rows}
        self.rates_ = {kind: _over_bandwidth(lines, bandwidth) for kind, lines in self.lines_.items()}
        return self

    def latency_s(self, batch: KernelBatch, device: GpuSpec, conditions: Conditions) -> np.ndarray:
        """Seconds of each kernel, not below zero, shape (n,). What has no line takes the roofline's time."""
        latency_s, kinds = roofline_s(batch, device), operator_types(batch)
        amount = _amount(batch, kinds)
        for kind in np.unique(kinds):
            if (fitted_line := self._line(str(kind), device)) is not None:
                mask = kinds == kind
                latency_s[mask] = np.maximum(fitted_line[0] * amount[mask] + fitted_line[1], 0.0)
        return latency_s

    def _line(self, kind: str, device: GpuSpec) -> Line | None:
        """The GPU's own, or that of its bandwidth; None where there is none, or it says that no work is done."""
        if kind not in self.lines_:
            return None
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


def _amount(batch: KernelBatch, kinds: np.ndarray) -> np.ndarray:
    work = work_of(batch)
    return np.where(np.isin(kinds, COMPUTE_TYPES), work.flops, work.bytes)


def _points(rows: Sequence[DeviceRows]) -> dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]:
    """Work and seconds of all rows of each operator type and GPU."""
    parts: dict[str, dict[str, list[np.ndarray]]] = {}
    for r in rows:
        kinds = operator_types(r.batch)
        both = np.stack([_amount(r.batch, kinds), r.latency_s])
        for kind in set(kinds.tolist()) - {""}:
            parts.setdefault(kind, {}).setdefault(r.device.id, []).append(both[:, kinds == kind])
    joined = {kind: {gpu: np.concatenate(p, axis=1) for gpu, p in by_gpu.items()} for kind, by_gpu in parts.items()}
    return {kind: {gpu: (p[0], p[1]) for gpu, p in by_gpu.items()} for kind, by_gpu in joined.items()}


def _over_bandwidth(lines: dict[str, Line], bandwidth: dict[str, float]) -> Line:
    """Work a second of the GPUs, the inverse of their slopes, over their bandwidth."""
    gpus = [gpu for gpu, (slope, _) in lines.items() if slope > 0]
    if not gpus:
        return 0.0, 0.0
    return line(np.array([bandwidth[gpu] for gpu in gpus]), np.array([1.0 / lines[gpu][0] for gpu in gpus]))
