"""NeuSight as published: Lee et al., "Forecasting GPU Performance for Deep Learning Training and Inference", ASPLOS'25.

The tile of a kernel is that of the nearest observed row. A network an operator type sees four ratios of the tile to one
SM's share of the device and gives ``alpha`` and ``gamma``, both through a sigmoid; with ``waves = ceil(tiles / SMs)``

    utilisation = gamma - alpha / waves
    latency = waves * (seconds of a wave at full rate) / utilisation

Nothing keeps the utilisation above zero: the artifact calls a latency below zero zero, and so does this. Loss,
optimizer, depth and the choice of large rows for memory-bound operators are the artifact's. Its networks are 512 wide
and see a hundred epochs; here most are 128 wide and see a few thousand batches at rates raised in return, so that all
five train on a CPU core in a minute. Gradients count with their forward operators. Other kernels (convolutions among
them, which the paper does not predict) take the roofline's time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np

from neusight.devices.spec import GpuSpec
from neusight.errors import DataError
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.kernels.work import element_bytes, work_of
from neusight.lab.baselines.networks import Recipe, TrainedNetwork, train_network
from neusight.lab.baselines.roofline import by_type, over_roofline
from neusight.laws.bounds import flops_per_s
from neusight.learn.training_data import DeviceRows

RECIPES: Mapping[str, Recipe] = {
    "linear": Recipe(learning_rate=2e-3, steps=8000),
    "bmm": Recipe(learning_rate=1e-3, steps=6000),
    "elementwise": Recipe(learning_rate=1e-3, steps=4000),
    "softmax": Recipe(learning_rate=8e-6, steps=2400, batch_rows=16, width=256),
    "layer_norm": Recipe(learning_rate=8e-6, steps=2400, batch_rows=16, width=256),
}
"""The artifact's learning rates are 5e-3, 1e-5, 5e-4, 1e-6 and 1e-6, in batches of 128, 128, 64, 16 and 16. The last
two hardly move a network from its start, which is what lets it extrapolate: steps times rate are kept near theirs.
"""
LARGE_ELEMENTS = 8192 * 512
LARGE_ROWS, LARGE_COLS = 4096, 512
"""The artifact trains on elementwise kernels and row reductions above these sizes, clear of the launch."""
FLOPS_PER_ELEMENT = {"softmax": 5.0, "layer_norm": 6.0}
"""Of row reductions, as the artifact counts them; elementwise kernels have one."""
USUAL_POINTWISE_TILE = 512.0
"""Outputs of a block of PyTorch's vectorised kernels, where none was observed."""
_MIB = 2.0**20


@dataclass(frozen=True)
class TileTable:
    """Tiles that were observed, by operator: a search tree over shape and device, and (tile_m, tile_n)."""

    entries: dict[str, tuple[Any, np.ndarray]]

    @staticmethod
    def of(rows: Sequence[DeviceRows]) -> TileTable:
        """The tiles of products and elementwise kernels; those of row reductions are rows and need no table."""
        from scipy.spatial import KDTree

        parts: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
        for r in rows:
            if r.batch.family in ("gemm", "elementwise"):
                known = r.take(np.isfinite(r.observed_m) & np.isfinite(r.observed_n))
                tiles = np.stack([known.observed_m, known.observed_n], axis=1)
                for op in np.unique(known.batch["op"]):
                    mask = known.batch["op"] == op
                    parts.setdefault(str(op), []).append((_place(known.batch.take(mask), known.device), tiles[mask]))
        joined = {op: [np.concatenate(column) for column in zip(*p, strict=True)] for op, p in parts.items()}
        return TileTable({op: (KDTree(places), tiles) for op, (places, tiles) in joined.items()})

    def tiles(self, batch: KernelBatch, device: GpuSpec) -> np.ndarray:
        """(tile_m, tile_n) of the nearest row of the same operator, shape (n, 2); operators without a row have NaN,
        elementwise ones the usual tile.
        """
        usual = (1.0, USUAL_POINTWISE_TILE) if batch.family == "elementwise" else (np.nan, np.nan)
        nearest_tiles, ops = np.tile(usual, (len(batch), 1)), batch["op"].astype(str)
        for op in set(ops.tolist()) & self.entries.keys():
            mask = ops == op
            tree, tiles = self.entries[op]
            nearest_tiles[mask] = tiles[tree.query(_place(batch.take(mask), device))[1]]
        return nearest_tiles


def _place(batch: KernelBatch, device: GpuSpec) -> np.ndarray:
    """Where a kernel lies among others: its shape and the device's figures in datasheet units, unscaled."""
    names = ("batch", "m", "n", "k") if batch.family == "gemm" else ("elements", "read_bytes", "write_bytes")
    columns = [batch[name].astype(float) for name in names]
    if batch.family == "elementwise":
        columns = [columns[0], (columns[1] + columns[2]) / columns[0]]
    figures = (
        device.sm_count,
        device.gemm_flops_per_s("float32") / 1e9,
        device.dram_capacity_bytes / 1e9,
        device.dram_bandwidth_bytes_per_s / 1e9,
        device.l2_capacity_bytes / _MIB,
    )
    return np.stack([*columns, *(np.full(len(batch), float(figure)) for figure in figures)], axis=1)


@dataclass(frozen=True)
class PaperTiles:
    """Columns of shape (n,): FLOPs and bytes of a tile, blocks launched, and FLOPs a byte of the whole operator."""

    flops: np.ndarray
    bytes: np.ndarray
    blocks: np.ndarray
    intensity: np.ndarray

    @staticmethod
    def of(batch: KernelBatch, tiles: np.ndarray, kind: str) -> PaperTiles:
        """Cut kernels of one operator type by their tiles, shape (n, 2)."""
        if batch.family == "gemm":
            return _products(batch, tiles)
        return _rows(batch, kind) if batch.family == "row_reduction" else _pointwise(batch, tiles)

    def waves(self, device: GpuSpec) -> np.ndarray:
        """Whole rounds of one tile an SM."""
        return np.ceil(self.blocks / device.sm_count)

    def wave_s(self, peak: np.ndarray, device: GpuSpec) -> np.ndarray:
        """Seconds of a wave at full utilisation: every SM one tile, at its share of peak and bandwidth."""
        rate = np.minimum(peak, self.intensity * device.dram_bandwidth_bytes_per_s)
        return self.flops * device.sm_count / rate

    def inputs(self, peak: np.ndarray, device: GpuSpec) -> np.ndarray:
        """log2 of four ratios, shape (n, 4): tile FLOPs to an SM's rate, tile bytes to its bandwidth, and the bytes of
        its waves to its share of DRAM and of L2. Units are the artifact's, which bring them near each other.
        """
        share, waves_mib = 1.0 / device.sm_count, self.waves(device) * self.bytes / _MIB
        ratios = (
            self.flops / 1e9 / (peak / 1e12 * share),
            self.bytes / _MIB / (device.dram_bandwidth_bytes_per_s / 1e9 * share),
            waves_mib / (device.dram_capacity_bytes / 1e9 * 1024 * share),
            waves_mib / (device.l2_capacity_bytes / _MIB * 1024 * share),
        )
        return np.log2(np.stack(ratios, axis=1))


def _products(batch: KernelBatch, tiles: np.ndarray) -> PaperTiles:
    """A tile has the whole depth. The operator's FLOPs count padding, its bytes one product of the batch."""
    b, m, n, k = (batch[name].astype(float) for name in ("batch", "m", "n", "k"))
    size, tile_m, tile_n = element_bytes(batch), tiles[:, 0], tiles[:, 1]
    down, across = np.ceil(m / tile_m), np.ceil(n / tile_n)
    return PaperTiles(
        flops=2 * tile_m * tile_n * k,
        bytes=size * (tile_m * k + k * tile_n + tile_m * tile_n),
        blocks=b * down * across,
        intensity=2 * down * tile_m * across * tile_n * k / (size * (m * k + k * n + m * n)),
    )


def _pointwise(batch: KernelBatch, tiles: np.ndarray) -> PaperTiles:
    elements, tile = batch["elements"].astype(float), tiles[:, 1]
    each = work_of(batch).bytes / elements
    blocks = np.ceil(elements / tile)
    return PaperTiles(flops=tile, bytes=each * tile, blocks=blocks, intensity=blocks * tile / (each * elements))


def _rows(batch: KernelBatch, kind: str) -> PaperTiles:
    """A tile is a row, whatever the kernel's blocks are."""
    rows, cols, flops = batch["rows"].astype(float), batch["cols"].astype(float), FLOPS_PER_ELEMENT[kind]
    each = work_of(batch).bytes / (rows * cols)
    return PaperTiles(flops=flops * cols, bytes=each * cols, blocks=rows, intensity=flops / each)


class NeusightPaper:
    """A network for each of linear, bmm, elementwise, softmax and layer_norm.

    Args:
        seed: of networks and batches.
        recipes: how each is trained.
    """

    def __init__(self, seed: int = 0, recipes: Mapping[str, Recipe] = RECIPES) -> None:
        self.seed = seed
        self.recipes = recipes
        self.tiles_ = TileTable({})
        self.networks_: dict[str, TrainedNetwork] = {}

    def fit(self, rows: Sequence[DeviceRows]) -> Self:
        """Fill the tile table and train a network an operator type.

        Raises:
            DataError: no row has a tile and is of a type that the paper predicts.
        """
        self.tiles_ = TileTable.of(rows)
        lessons = _lessons(rows)
        if not lessons:
            raise DataError("NeuSight learns from products, elementwise kernels, softmax and layer_norm with tiles")
        self.networks_ = {
            kind: train_network(inputs, waves, target, self.recipes[kind], self.seed)
            for kind, (inputs, waves, target) in lessons.items()
        }
        return self

    def latency_s(self, batch: KernelBatch, device: GpuSpec, conditions: Conditions) -> np.ndarray:
        """Seconds of each kernel, shape (n,): zero where the utilisation is not above zero."""
        return over_roofline(batch, device, {kind: partial(self._seconds, kind) for kind in self.networks_})

    def _seconds(self, kind: str, batch: KernelBatch, device: GpuSpec) -> np.ndarray:
        peak = flops_per_s(batch, device)
        cut = PaperTiles.of(batch, self.tiles_.tiles(batch, device), kind)
        alpha, gamma = 0.5 + 0.5 * np.tanh(0.5 * self.networks_[kind].outputs(cut.inputs(peak, device)).T)
        waves = cut.waves(device)
        share = gamma - alpha / waves
        full_s = waves * cut.wave_s(peak, device)
        return np.where(share > 0, full_s / np.where(share > 0, share, 1.0), 0.0)


def _lessons(rows: Sequence[DeviceRows]) -> dict[str, list[np.ndarray]]:
    """What each network learns: inputs, waves, and seconds of a wave over those at full rate, the inverse of
    utilisation.
    """
    learnable = [r.take(mask) for r in rows if (mask := _learnable(r)).any()]
    parts = by_type(learnable, RECIPES)
    learned = {kind: zip(*(_learned(own, kind) for own in several), strict=True) for kind, several in parts.items()}
    return {kind: [np.concatenate(column) for column in columns] for kind, columns in learned.items()}


def _learned(own: DeviceRows, kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs (n, 4), waves (n,) and target (n,) of rows of one operator type."""
    peak = flops_per_s(own.batch, own.device)
    cut = PaperTiles.of(own.batch, np.stack([own.observed_m, own.observed_n], axis=1), kind)
    waves = cut.waves(own.device)
    return cut.inputs(peak, own.device), waves, own.latency_s / (waves * cut.wave_s(peak, own.device))


def _learnable(r: DeviceRows) -> np.ndarray:
    """Rows with a tile, and of memory-bound families the large ones, as a mask."""
    batch = r.batch
    if batch.family == "row_reduction":
        return (batch["rows"] > LARGE_ROWS) & (batch["cols"] > LARGE_COLS)
    known = np.isfinite(r.observed_m) & np.isfinite(r.observed_n)
    return known & (batch["elements"] > LARGE_ELEMENTS) if batch.family == "elementwise" else known
