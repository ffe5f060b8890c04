"""Tiles as NeuSight sees them: looked up in what was observed, and weighed against one SM's share of the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neusight.devices.spec import DeviceSpec
from neusight.kernels import KernelBatch
from neusight.kernels.work import element_bytes, work_of
from neusight.learn.training_data import DeviceRows

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

    def tiles(self, batch: KernelBatch, device: DeviceSpec) -> np.ndarray:
        """(tile_m, tile_n) of the nearest row of the same operator, shape (n, 2); operators without a row have NaN,
        elementwise ones the usual tile.
        """
        usual = (1.0, USUAL_POINTWISE_TILE) if batch.family == "elementwise" else (np.nan, np.nan)
        found, ops = np.tile(usual, (len(batch), 1)), batch["op"].astype(str)
        for op in set(ops.tolist()) & self.entries.keys():
            mask = ops == op
            tree, tiles = self.entries[op]
            found[mask] = tiles[tree.query(_place(batch.take(mask), device))[1]]
        return found


def _place(batch: KernelBatch, device: DeviceSpec) -> np.ndarray:
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

    def waves(self, device: DeviceSpec) -> np.ndarray:
        """Whole rounds of one tile an SM."""
        return np.ceil(self.blocks / device.sm_count)

    def wave_s(self, peak: np.ndarray, device: DeviceSpec) -> np.ndarray:
        """Seconds of a wave at full utilisation: every SM one tile, at its share of peak and bandwidth."""
        rate = np.minimum(peak, self.intensity * device.dram_bandwidth_bytes_per_s)
        return self.flops * device.sm_count / rate

    def inputs(self, peak: np.ndarray, device: DeviceSpec) -> np.ndarray:
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
