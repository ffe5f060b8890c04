"""Habitat (Yu et al., ATC'21): wave scaling of kernels that are the same everywhere, networks for those that are not.

"Habitat: A Runtime-Based Computational Performance Predictor for Deep Neural Network Training". Products and
convolutions get a network each, from shape and four figures of the GPU (DRAM capacity and bandwidth, SMs, peak rate),
standardised, to plain milliseconds, with the mean relative error as loss. Elementwise kernels, softmax and layer_norm
are wave-scaled from an origin GPU, in ASPLOS'25 (Lee et al., artifact) a V100, or a P100 where the V100 is asked for.

Where this departs: the original measures the model itself on the origin, and multiplies that by the ratio of what a
network says of both GPUs. Here networks answer alone, as in ASPLOS'25, and the origin's latency comes from the rows
that were measured there, interpolated over bytes. The networks are 128 wide and see 8000 batches (the original's 1024
and 80 epochs, those of ASPLOS'25 512 and 100), so that all three train on a CPU core in a minute. Gradients of a
convolution count as the forward pass. Other kernels take the roofline's time, most being pure traffic.

Wave scaling (section 3.3) holds for kernels that are the same on both GPUs. With bandwidth D, clock C, blocks a wave W
and boundedness ``gamma``

    T_d = T_o (D_o / D_d)^gamma (W_o C_o / (W_d C_d))^(1 - gamma)

for kernels of more than one wave; a kernel that no GPU needs more than one wave for is carried over by clock and by
the blocks that its busiest SM runs, both to the power of ``1 - gamma``. ``gamma`` follows from the arithmetic intensity
x and the ridge point R of the destination: ``1 - x / 2R`` below the ridge, ``R / 2x`` above it. So does the code that
was published with the paper (``analysis/wave_scaling``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from neusight.devices.spec import GpuSpec
from neusight.errors import DataError
from neusight.executors.gpu.tiling import TileChoice, Tiling, tile
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.kernels.work import work_of
from neusight.lab.baselines.lines import COMPUTE_TYPES, by_type, over_roofline
from neusight.lab.baselines.networks import Lesson, Recipe, TrainedNetwork, relative_error, train_network
from neusight.laws.bounds import flops_per_s
from neusight.laws.fitted import shipped_physics
from neusight.learn.training_data import DeviceRows

ORIGINS = ("v100-pcie-32gb", "p100-pcie-16gb")
"""GPUs to scale from, the first that was measured and is not the one asked for; else any that was."""
RECIPE = Recipe(learning_rate=1e-3, steps=8000)
_NO_PRODUCTS = TileChoice({}, {}, {})
"""Kernels that are the same on every GPU are no products, whose tile is a choice."""
CURVE_POINTS = 40
"""Medians along the sizes measured of an operator: enough to follow the step from cache to DRAM."""

_SHAPES: dict[str, tuple[str, ...]] = {
    "gemm": ("batch", "m", "k", "n"),
    "conv2d": ("batch", "in_channels", "out_channels", "kernel_height", "height", "stride", "padding"),
}


@dataclass(frozen=True)
class Shaped:
    """A network from shape and GPU to milliseconds, with the standardisation of its inputs."""

    network: TrainedNetwork
    mean: np.ndarray
    scale: np.ndarray

    def seconds(self, batch: KernelBatch, device: GpuSpec) -> np.ndarray:
        """Not below zero, shape (n,)."""
        inputs = (_inputs(batch, device) - self.mean) / self.scale
        return 1e-3 * np.maximum(self.network.outputs(inputs)[:, 0], 0.0)


@dataclass(frozen=True)
class Origin:
    """A measured GPU: for each operator log2 of bytes and of seconds along its sizes."""

    device: GpuSpec
    curves: dict[str, tuple[np.ndarray, np.ndarray]]


class Habitat:
    """Networks for linear, bmm and conv2d, wave scaling for elementwise kernels and row reductions."""

    def __init__(self, seed: int = 0, recipe: Recipe = RECIPE) -> None:
        self.seed = seed
        self.recipe = recipe
        self.networks_: dict[str, Shaped] = {}
        self.origins_: dict[str, Origin] = {}

    def fit(self, rows: Sequence[DeviceRows]) -> Self:
        """Train a network an operator type and keep what each GPU measured.

        Raises:
            DataError: no rows at all.
        """
        if not rows:
            raise DataError("Habitat learns from products, convolutions, elementwise kernels and row reductions")
        self.networks_ = {kind: self._trained(parts) for kind, parts in by_type(rows, COMPUTE_TYPES).items()}
        self.origins_ = _origins(rows)
        return self

    def latency_s(self, batch: KernelBatch, device: GpuSpec, conditions: Conditions) -> np.ndarray:
        """Seconds of each kernel, shape (n,)."""
        latency_s = over_roofline(batch, device, {kind: network.seconds for kind, network in self.networks_.items()})
        if batch.family in ("elementwise", "row_reduction") and (origin := self._origin(device)) is not None:
            self._scale(batch, origin, device, latency_s)
        return latency_s

    def _trained(self, parts: Sequence[DeviceRows]) -> Shaped:
        inputs = np.concatenate([_inputs(r.batch, r.device) for r in parts])
        seconds = np.concatenate([r.latency_s for r in parts])
        mean, spread = inputs.mean(axis=0), inputs.std(axis=0)
        scale = np.where(spread > 0, spread, 1.0)
        lesson = Lesson(
            inputs=(inputs - mean) / scale,
            constants=np.empty((len(seconds), 0)),
            target=1e3 * seconds,
            outputs=1,
            answer=lambda outputs, _: outputs[:, 0],
            loss=relative_error,
        )
        return Shaped(train_network(lesson, self.recipe, self.seed), mean, scale)

    def _origin(self, device: GpuSpec) -> Origin | None:
        others = [gpu for gpu in (*ORIGINS, *sorted(self.origins_), device.id) if gpu in self.origins_]
        return next((self.origins_[gpu] for gpu in others if gpu != device.id), None) or self.origins_.get(device.id)

    @staticmethod
    def _scale(batch: KernelBatch, origin: Origin, device: GpuSpec, latency_s: np.ndarray) -> None:
        """Overwrite the latencies of kernels whose operator the origin measured."""
        size, ops = np.log2(work_of(batch).bytes), batch["op"].astype(str)
        for op in set(ops.tolist()) & origin.curves.keys():
            mask = ops == op
            measured_s = np.exp2(_along(size[mask], *origin.curves[op]))
            latency_s[mask] = measured_s * scaling_factor(batch.take(mask), origin.device, device)


def _inputs(batch: KernelBatch, device: GpuSpec) -> np.ndarray:
    """Shape, then GB of DRAM, GB/s, SMs and GFLOP/s, shape (n, inputs)."""
    shape = [batch[name].astype(float) for name in _SHAPES[batch.family]]
    figures = (device.dram_capacity_bytes / 1e9, device.dram_bandwidth_bytes_per_s / 1e9, float(device.sm_count))
    same = [np.full(len(batch), figure) for figure in figures]
    return np.stack([*shape, *same, flops_per_s(batch, device) / 1e9], axis=1)


def _origins(rows: Sequence[DeviceRows]) -> dict[str, Origin]:
    origins: dict[str, Origin] = {}
    for r in rows:
        if r.batch.family in ("elementwise", "row_reduction"):
            origin = origins.setdefault(r.device.id, Origin(r.device, {}))
            size, seconds = np.log2(work_of(r.batch).bytes), np.log2(r.latency_s)
            for op in np.unique(r.batch["op"]):
                mask = r.batch["op"] == op
                origin.curves[str(op)] = _curve(size[mask], seconds[mask])
    return origins


def _curve(size: np.ndarray, seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Medians of equal shares of the rows, ordered by size."""
    shares = np.array_split(np.argsort(size, kind="stable"), min(CURVE_POINTS, len(size)))
    return np.array([np.median(size[s]) for s in shares]), np.array([np.median(seconds[s]) for s in shares])


def _along(size: np.ndarray, sizes: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Interpolated; as many times longer as the kernel is larger than the largest measured."""
    return np.interp(size, sizes, seconds) + np.maximum(size - sizes[-1], 0.0)


def scaling_factor(batch: KernelBatch, origin: GpuSpec, destination: GpuSpec) -> np.ndarray:
    """Latency on the destination over that on the origin, of elementwise kernels or row reductions, shape (n,)."""
    here, there = (tile(batch, device, _NO_PRODUCTS, shipped_physics().physics) for device in (origin, destination))
    compute = 1.0 - boundedness(batch, destination)
    clock = origin.base_clock_hz / destination.base_clock_hz
    bandwidth = origin.dram_bandwidth_bytes_per_s / destination.dram_bandwidth_bytes_per_s
    waves = _blocks_a_wave(here) / _blocks_a_wave(there)
    large = bandwidth ** (1.0 - compute) * (waves * clock) ** compute
    busiest = np.ceil(there.waves) / np.ceil(here.waves)
    small = (there.tile_count < _blocks_a_wave(there)) & (here.tile_count < _blocks_a_wave(here))
    return np.where(small, (clock * busiest) ** compute, large)


def boundedness(batch: KernelBatch, device: GpuSpec) -> np.ndarray:
    """``gamma``: how much of a kernel's time goes with DRAM bandwidth, from 1 (all) to 0, shape (n,)."""
    work = work_of(batch)
    over_ridge = work.flops / work.bytes * device.dram_bandwidth_bytes_per_s / flops_per_s(batch, device)
    return np.where(over_ridge <= 1.0, 1.0 - 0.5 * over_ridge, 0.5 / np.maximum(over_ridge, 1.0))


def _blocks_a_wave(tiling: Tiling) -> np.ndarray:
    return tiling.sm_count * tiling.resident
