"""Contestants on kernels of GPUs that were left out: physics, what is learned on it, and what knows no physics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from neusight.devices import DeviceSpec
from neusight.executors.gpu.predictor import KernelPredictor
from neusight.executors.gpu.tile_models.artifact import Artifact
from neusight.executors.gpu.tile_models.gbm import SETTINGS
from neusight.experiments.baselines import roofline_s
from neusight.experiments.entrants import Forecast
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.kernels.work import work_of
from neusight.laws.bounds import flops_per_s
from neusight.learn.training_data import DeviceRows

SHARE, LAUNCH_S = 0.8, 3e-6
"""Of the roofline that a rule of thumb reckons with, and what it adds."""
TREES, LEAVES = 300, 63
APART = 8.0
"""Octaves of shape that another engine, variant or way of scaling counts as."""

Group = Callable[[KernelBatch], np.ndarray]
"""Family of each kernel, as reports tell them apart."""
Forecaster = Callable[[KernelBatch, DeviceSpec, Conditions], Forecast]
"""What a contestant predicts of kernels under their conditions."""


def with_shrinkage(predictor: KernelPredictor, shrinkage: float) -> KernelPredictor:
    """The same with a share of what was learned, on every device."""

    def shrunk(artifact: Artifact) -> Artifact:
        return replace(artifact, manifest=replace(artifact.manifest, kinds=[], shrinkage=shrinkage))

    return replace(predictor, artifacts={name: shrunk(a) for name, a in predictor.artifacts.items()})


def of_predictor(predictor: KernelPredictor) -> Forecaster:
    """What tile models say, with their interval."""

    def forecast(batch: KernelBatch, device: DeviceSpec, conditions: Conditions) -> Forecast:
        costs = predictor.predict(batch, device, conditions)
        return Forecast(costs.latency_s, costs.low_s, costs.high_s)

    return forecast


def of_roofline(batch: KernelBatch, device: DeviceSpec, conditions: Conditions) -> Forecast:
    """A share of the roofline, and a launch."""
    return Forecast(roofline_s(batch, device) / SHARE + LAUNCH_S)


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


def _datasheet(batch: KernelBatch, device: DeviceSpec) -> np.ndarray:
    """log2 of what a datasheet tells, and of the work in its units, shape (n, figures)."""
    work, peak = work_of(batch), flops_per_s(batch, device)
    bandwidth, l2 = device.dram_bandwidth_bytes_per_s, device.l2_capacity_bytes
    figures = (bandwidth, l2, device.sm_count, device.boost_clock_hz, device.tdp_w)
    compute_s, dram_s = work.flops / peak, work.bytes / bandwidth
    own = (peak, np.maximum(compute_s, 1e-12), np.maximum(dram_s, 1e-12), np.maximum(work.bytes / l2, 1e-9))
    whole = [np.full(len(batch), float(figure)) for figure in figures]
    return np.log2(np.column_stack([*whole, *np.broadcast_arrays(*own)]))


@dataclass
class Flexible:
    """Gradient-boosted trees on log time over shapes, engine and datasheet, a forest a family: no physics.

    ``words_`` are the labels that occurred in training, by family, a list a column.
    """

    seed: int = 0

    def __post_init__(self) -> None:
        self.boosters_: dict[str, Any] = {}
        self.words_: dict[str, list[list[str]]] = {}

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

    def forecast(self, batch: KernelBatch, device: DeviceSpec, conditions: Conditions) -> Forecast:
        """Without an interval; NaN for a family that was not in training."""
        if batch.family not in self.boosters_:
            return Forecast(np.full(len(batch), np.nan))
        return Forecast(np.exp(self.boosters_[batch.family].predict(self._inputs(batch, device, conditions))))

    def _inputs(self, batch: KernelBatch, device: DeviceSpec, conditions: Conditions) -> np.ndarray:
        labels = zip(_labels(batch, conditions), self.words_[batch.family], strict=True)
        codes = [_codes(column, words) for column, words in labels]
        cycled = np.log2(np.clip(conditions.cycled_bytes / device.l2_capacity_bytes, 2.0**-8, 2.0**8))
        return np.column_stack([_extents(batch), _datasheet(batch, device), cycled, conditions.launches, *codes])


@dataclass(frozen=True)
class _Shelf:
    """Kernels of one family of one GPU, by their shapes, with the ratio of time to roofline."""

    device: DeviceSpec
    tree: Any
    words: list[list[str]]
    ratio: np.ndarray


@dataclass
class Nearest:
    """Nearest-shape transfer: the measured kernel of the nearest shape on the most similar GPU that has the family,
    its time scaled by the ratio of the two rooflines.
    """

    group: Group

    def __post_init__(self) -> None:
        self.shelves_: dict[tuple[str, str], list[_Shelf]] = {}

    def fit(self, rows: Sequence[DeviceRows]) -> Self:
        """Keep all rows."""
        for r in rows:
            groups = self.group(r.batch)
            for group in np.unique(groups):
                own = r.take(np.flatnonzero(groups == group))
                self.shelves_.setdefault((r.batch.family, str(group)), []).append(_shelf(own))
        return self

    def forecast(self, batch: KernelBatch, device: DeviceSpec, conditions: Conditions) -> Forecast:
        """Without an interval; NaN for a family that no GPU has."""
        latency_s, groups = np.full(len(batch), np.nan), self.group(batch)
        for group in np.unique(groups):
            if shelves := self.shelves_.get((batch.family, str(group))):
                rows = np.flatnonzero(groups == group)
                shelf = min(shelves, key=lambda s: _distance(s.device, device))
                part = batch.take(rows)
                _, near = shelf.tree.query(_places(part, conditions.take(rows), shelf.words))
                latency_s[rows] = shelf.ratio[near] * roofline_s(part, device)
        return Forecast(latency_s)


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


def _distance(one: DeviceSpec, other: DeviceSpec) -> float:
    """How far two datasheets lie apart: the root of the sum of squared logarithms."""

    def figures(device: DeviceSpec) -> np.ndarray:
        peak = max(device.matrix_flops_per_s.values(), default=device.gemm_flops_per_s("float32"))
        return np.log([peak, device.dram_bandwidth_bytes_per_s, device.l2_capacity_bytes, device.boost_clock_hz])

    return float(np.linalg.norm(figures(one) - figures(other)))


def contestants(
    predictor: KernelPredictor, floor: KernelPredictor | None, rows: Sequence[DeviceRows], group: Group
) -> Mapping[str, Forecaster]:
    """All contestants by name, trained on rows without what is left out; ``floor`` was trained with it."""
    own = {
        "ours": of_predictor(predictor),
        "physics": of_predictor(with_shrinkage(predictor, 0.0)),
        "learned": of_predictor(with_shrinkage(predictor, 1.0)),
        "flexible": Flexible().fit(rows).forecast,
        "nearest": Nearest(group).fit(rows).forecast,
        "roofline": of_roofline,
    }
    return own | ({"floor": of_predictor(floor)} if floor else {})
