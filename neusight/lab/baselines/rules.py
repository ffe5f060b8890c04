"""What knows no physics: trees on shapes and datasheets, and the kernel of the nearest shape.

They learn from the rows that tile models learn from, and predict single kernels under their conditions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from neusight.devices import GpuSpec
from neusight.executors.gpu.tile_models.artifact import kernel_kinds
from neusight.executors.gpu.tile_models.gbm import SETTINGS
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.kernels.work import work_of
from neusight.lab.baselines.roofline import roofline_s
from neusight.laws.bounds import flops_per_s
from neusight.learn.training_data import DeviceRows

TREES, LEAVES = 300, 63
APART = 8.0
"""Octaves of shape that another engine, variant or way of scaling counts as."""


def _extents(batch: KernelBatch) -> np.ndarray:
    """log2 of every whole number of a kernel, shape (n, numbers)."""
    names = [name for name in sorted(batch.columns) if np.issubdtype(batch[name].dtype, np.integer)]
    return np.column_stack([np.log2(1.0 + batch[name]) for name in names])


def _labels(batch: KernelBatch, conditions: Conditions) -> list[np.ndarray]:
    """What is no number: operator, dtype, scaling, engine, way of timing."""
    words = [batch[name] for name in sorted(batch.columns) if not np.issubdtype(batch[name].dtype, np.number)]
    return [np.asarray(w).astype(str) for w in (*words, conditions.engine, conditions.variant, conditions.timing)]


def _codes(column: np.ndarray, known: Sequence[str]) -> np.ndarray:
    """Number of each word among those known; a new one is the number after the last."""
    place = {word: number for number, word in enumerate(known)}
    words, where = np.unique(column, return_inverse=True)
    return np.array([place.get(str(word), len(known)) for word in words])[where]


def _datasheet(batch: KernelBatch, device: GpuSpec) -> np.ndarray:
    """log2 of what a datasheet tells, and of the work in its units, shape (n, figures)."""
    work, peak = work_of(batch), flops_per_s(batch, device)
    bandwidth, l2 = device.dram_bandwidth_bytes_per_s, device.l2_capacity_bytes
    figures = (bandwidth, l2, device.sm_count, device.boost_clock_hz, device.tdp_w)
    compute_s, dram_s = work.flops / peak, work.bytes / bandwidth
    own = (peak, np.maximum(compute_s, 1e-12), np.maximum(dram_s, 1e-12), np.maximum(work.bytes / l2, 1e-9))
    whole = [np.full(len(batch), float(figure)) for figure in figures]
    return np.log2(np.column_stack([*whole, *np.broadcast_arrays(*own)]))


class Trees:
    """Gradient-boosted trees on log time over shapes, engine and datasheet, a forest a family."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.boosters_: dict[str, Any] = {}
        self.words_: dict[str, list[list[str]]] = {}
        """Labels that occurred in training, by family, a list a column."""

    def fit(self, rows: Sequence[DeviceRows]) -> Self:
        """Learn log times; every GPU and family counts alike."""
        import lightgbm

        for family in sorted({r.batch.family for r in rows}):
            own = [r for r in rows if r.batch.family == family]
            columns = zip(*(_labels(r.batch, r.conditions) for r in own), strict=True)
            self.words_[family] = [sorted({str(w) for part in column for w in np.unique(part)}) for column in columns]
            inputs = np.concatenate([self._inputs(r.batch, r.device, r.conditions) for r in own])
            target = np.log(np.concatenate([r.latency_s for r in own]))
            weight = np.concatenate([np.full(len(r), len(r) ** -0.5) for r in own])
            settings = SETTINGS | {"num_leaves": LEAVES, "learning_rate": 0.1, "seed": self.seed, "num_threads": 1}
            settings |= {"min_data_in_leaf": 20}
            data = lightgbm.Dataset(inputs, target, weight=weight / weight.mean())
            self.boosters_[family] = lightgbm.train(settings, data, num_boost_round=TREES)
        return self

    def latency_s(self, batch: KernelBatch, device: GpuSpec, conditions: Conditions) -> np.ndarray:
        """Seconds of each kernel, shape (n,); NaN for a family that was not in training."""
        if batch.family not in self.boosters_:
            return np.full(len(batch), np.nan)
        return np.exp(self.boosters_[batch.family].predict(self._inputs(batch, device, conditions)))

    def _inputs(self, batch: KernelBatch, device: GpuSpec, conditions: Conditions) -> np.ndarray:
        labels = zip(_labels(batch, conditions), self.words_[batch.family], strict=True)
        codes = [_codes(column, words) for column, words in labels]
        cycled = np.log2(np.clip(conditions.cycled_bytes / device.l2_capacity_bytes, 2.0**-8, 2.0**8))
        return np.column_stack([_extents(batch), _datasheet(batch, device), cycled, conditions.launches, *codes])


@dataclass(frozen=True)
class _Shelf:
    """Kernels of one family of one GPU, by their shapes, with the ratio of time to roofline."""

    device: GpuSpec
    tree: Any
    words: list[list[str]]
    ratio: np.ndarray


class Nearest:
    """Nearest-shape transfer: the measured kernel of the nearest shape on the most similar GPU that has the family,
    its time scaled by the ratio of the two rooflines.
    """

    def __init__(self, seed: int = 0) -> None:
        self.shelves_: dict[tuple[str, str], list[_Shelf]] = {}

    def fit(self, rows: Sequence[DeviceRows]) -> Self:
        """Keep all rows."""
        for r in rows:
            groups = kernel_kinds(r.batch)
            for group in np.unique(groups):
                own = r.take(np.flatnonzero(groups == group))
                self.shelves_.setdefault((r.batch.family, str(group)), []).append(_shelf(own))
        return self

    def latency_s(self, batch: KernelBatch, device: GpuSpec, conditions: Conditions) -> np.ndarray:
        """Seconds of each kernel, shape (n,); NaN for a family that no GPU has."""
        latency_s, groups = np.full(len(batch), np.nan), kernel_kinds(batch)
        for group in np.unique(groups):
            if shelves := self.shelves_.get((batch.family, str(group))):
                rows = np.flatnonzero(groups == group)
                shelf = min(shelves, key=lambda s: _distance(s.device, device))
                part = batch.take(rows)
                _, near = shelf.tree.query(_places(part, conditions.take(rows), shelf.words))
                latency_s[rows] = shelf.ratio[near] * roofline_s(part, device)
        return latency_s


def _shelf(rows: DeviceRows) -> _Shelf:
    from scipy.spatial import cKDTree

    words = [sorted({str(w) for w in np.unique(column)}) for column in _labels(rows.batch, rows.conditions)]
    tree = cKDTree(_places(rows.batch, rows.conditions, words))
    return _Shelf(rows.device, tree, words, rows.latency_s / roofline_s(rows.batch, rows.device))


def _places(batch: KernelBatch, conditions: Conditions, words: Sequence[Sequence[str]]) -> np.ndarray:
    """Shapes in octaves; each other word lies far away."""
    flags = [
        APART * (column[:, None] == np.array(known)[None, :])
        for column, known in zip(_labels(batch, conditions), words, strict=True)
    ]
    return np.concatenate([_extents(batch), *flags], axis=1)


def _distance(one: GpuSpec, other: GpuSpec) -> float:
    """How far two datasheets lie apart: the root of the sum of squared logarithms."""

    def figures(device: GpuSpec) -> np.ndarray:
        peak = max(device.matrix_flops_per_s.values(), default=device.gemm_flops_per_s("float32"))
        return np.log([peak, device.dram_bandwidth_bytes_per_s, device.l2_capacity_bytes, device.boost_clock_hz])

    return float(np.linalg.norm(figures(one) - figures(other)))
