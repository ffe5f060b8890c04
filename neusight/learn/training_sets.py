"""What a tile model learns from: features, prior and weights of rows, and how much of each latency is launch.

A lone kernel takes time before and after its work: the launch, which replays of a graph do not show, and the start of
its blocks, which they do. Both count as launch, since neither goes with the work. Where executions were timed, the
first is measured row by row and the second is the shortest execution; else both are the shortest latency.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from neusight.executors.gpu.expected.times import launch_s, lone_s
from neusight.executors.gpu.features import FeatureContract, Situation, feature_matrix, situate
from neusight.executors.gpu.tile_models.artifact import launch_floor_s, launch_kinds
from neusight.executors.gpu.tile_models.protocol import TrainingSet
from neusight.executors.gpu.tiling import TileChoice
from neusight.kernels.work import by_distinct, work_of
from neusight.laws.bounds import bound_of
from neusight.laws.physics import Physics
from neusight.learn.evidence import group_weights
from neusight.learn.training_data import DeviceRows

FLOOR_ROWS = 20
FLOOR_LIMIT_S = 70e-6
"""A GPU whose fastest rows of an op take longer than this never measured an empty launch of it."""
PLANNED_SHARE, PLANNED_LIMIT_S = 0.25, 400e-6
"""Where an engine plans on the host, in Python, a quarter of the rows takes no longer than that does, which varies;
the limit is as above (assumption)."""
START_LIMIT_S = 10e-6
"""The same for executions: blocks start within a few microseconds (assumption)."""
USUAL_FLOOR_S = 3e-5
SHORTEST_SHARE = 0.1
"""Rows whose launch stands for the op's: in longer ones the noise of the execution is as large as a launch."""
LEAST_ROWS = 1000
"""Fewer rows tell no drift from chance (assumption)."""
LEAST_GROWTH = 2.0
"""By which a floor grows at least to count as drifting (assumption)."""
UNORDERED = 0.05
"""Rank correlation of work with place, at most: in tables that are sorted by shape the work itself rises."""
SHORT_SHARE, QUANTILE = 0.1, 0.1
"""Rows with the least work that show the launch, and how many of them lie below the floor (assumption)."""


@dataclass(frozen=True)
class Knowledge:
    """What a tile model stands on: fitted constants, the tiles of float32 libraries, and lone launches by op."""

    physics: Physics
    choice: TileChoice
    floors: Mapping[str, float]

    def situation(self, r: DeviceRows) -> Situation:
        """Rows in the state in which they were measured."""
        return situate(r.batch, r.device, self.choice, physics=self.physics, conditions=r.conditions)


def training_set(rows: Sequence[DeviceRows], contract: FeatureContract, known: Knowledge) -> TrainingSet:
    """Features, prior and weights of rows of one tile model, for one or more GPUs.

    A row weighs by the share of its time that is work, squared where that share was measured row by row: the noise of
    launch and start blurs what is left for the work in proportion. Each (GPU, op, dtype, split) counts with the root
    of its number of rows, so that the many small random shapes do not drown the large ones that models are made of.
    """
    numbers = {name: number for number, name in enumerate(group_names(rows))}
    parts = [_one_device(r, contract, known, numbers) for r in rows]
    return TrainingSet(**{name: np.concatenate([p[name] for p in parts]) for name in parts[0]})


def group_names(rows: Sequence[DeviceRows]) -> list[str]:
    """Name of each group of a training set, in the order of its numbers; data sets share those of a GPU."""
    return list(dict.fromkeys(str(name) for r in rows for name in np.unique(r.groups)))


def _one_device(
    r: DeviceRows, contract: FeatureContract, known: Knowledge, numbers: dict[str, int]
) -> dict[str, np.ndarray]:
    situation = known.situation(r)
    floor_s = added_floors(r, situation, known)
    share = 1.0 - floor_s / r.latency_s
    weight = np.where(r.execution_s > 0, share**2, share)
    return {
        "features": feature_matrix(situation, contract.features),
        "prior": situation.prior,
        "bound_s": situation.bound_s,
        "floor_s": floor_s,
        "latency_s": r.latency_s,
        "weight": _balanced(weight, r.groups, r.split),
        "group": by_distinct(r.groups, lambda name: numbers[name]).astype(int),
    }


def added_floors(r: DeviceRows, s: Situation, known: Knowledge) -> np.ndarray:
    """What the launch adds to each row [s], as far as the expected execution does not hide it; at most 97 % of it."""
    floor_s = launch_s(r.conditions, known.physics)
    alone = r.conditions.timing == "stream"
    if alone.any():
        lone = lone_s(row_floors(r, known.floors), s.expected_s, s.fixed_overhead_s, known.physics) - s.expected_s
        floor_s = np.where(alone, lone, floor_s)
    return np.clip(floor_s, 1e-9, 0.97 * r.latency_s)


def _balanced(weight: np.ndarray, groups: np.ndarray, split: np.ndarray) -> np.ndarray:
    """Weights, of sum 1, by which each group of a split counts with the root of its number of rows."""
    number = np.unique(np.char.add(groups.astype(str), split.astype(str)), return_inverse=True)[1]
    balanced = group_weights(number, 1.0, weight) * np.sqrt(np.bincount(number))[number]
    return np.asarray(balanced / balanced.sum())


def launch_floors(rows: Sequence[DeviceRows]) -> dict[str, float]:
    """Seconds that a lone launch of each kind of kernel takes beyond its work: the median over GPUs of their floors."""
    floors: dict[str, list[float]] = {}
    for r in rows:
        alone, kinds = r.conditions.timing == "stream", launch_kinds(r.batch, r.conditions)
        for kind in np.unique(kinds[alone]):
            floor = _floor(r, alone & (kinds == kind), str(kind))
            if floor is not None:
                for name in {str(kind), str(kind).partition(",")[0]}:
                    floors.setdefault(name, []).append(floor)
    return {kind: float(np.median(values)) for kind, values in sorted(floors.items())}


def row_floors(r: DeviceRows, floors: Mapping[str, float]) -> np.ndarray:
    """Seconds of each row of a GPU that are launch, at most 97 % of it.

    Of rows with an execution their own, of others the GPU's floor of the kind as it was when the row was measured, or
    where it has none that of ``floors``.
    """
    kinds = launch_kinds(r.batch, r.conditions)
    floor_s, least_s = np.empty(len(kinds)), bound_of(r.batch, work_of(r.batch), r.device).bound_s
    for kind in np.unique(kinds):
        mask = kinds == kind
        own, least = _floor(r, mask, str(kind)), r.latency_s[mask].min()
        usual_s = launch_floor_s(floors, str(kind), USUAL_FLOOR_S)
        floor_s[mask] = own if own is not None else min(usual_s, 0.9 * least)
        if not (r.execution_s[mask] > 0).any():
            drifting = drifting_floor_s(r.place[mask], r.latency_s[mask], least_s[mask])
            floor_s[mask] = floor_s[mask] if drifting is None else drifting
        timed = mask & (r.execution_s > 0)
        if timed.any():
            floor_s[timed] = _beside_work(r, timed)
    return np.minimum(floor_s, 0.97 * r.latency_s)


def _floor(r: DeviceRows, mask: np.ndarray, kind: str) -> float | None:
    """Of a kind's shortest rows, where executions were timed; else a GPU's fastest rows of a kind are all launch, when
    there are enough of them and they are fast.
    """
    timed = mask & (r.execution_s > 0)
    if timed.any():
        shortest = np.argsort(r.latency_s[timed])[: int(np.ceil(SHORTEST_SHARE * timed.sum()))]
        return float(np.median(_beside_work(r, timed)[shortest]))
    if "," in kind:
        planned_s = float(np.quantile(r.latency_s[mask], PLANNED_SHARE))
        return planned_s if planned_s < PLANNED_LIMIT_S else None
    return _fastest(r.latency_s[mask], FLOOR_LIMIT_S)


def _beside_work(r: DeviceRows, timed: np.ndarray) -> np.ndarray:
    """Latency less execution, plus the start of the blocks: the op's shortest execution, or that of the family."""
    start_s = _fastest(r.execution_s[timed], START_LIMIT_S)
    if start_s is None:
        start_s = _fastest(r.execution_s[r.execution_s > 0], START_LIMIT_S)
    # No launch at all would have no logarithm.
    return np.maximum(r.latency_s[timed] - r.execution_s[timed], 1e-9) + (start_s or 0.0)


def _fastest(times_s: np.ndarray, limit_s: float) -> float | None:
    """A little less than the shortest time, but for outliers; None where too few or too slow rows tell nothing."""
    fastest = float(np.quantile(times_s, 0.002))
    return 0.97 * fastest if len(times_s) >= FLOOR_ROWS and fastest < limit_s else None


def drifting_floor_s(place: np.ndarray, latency_s: np.ndarray, least_s: np.ndarray) -> np.ndarray | None:
    r"""Launch of each row [s], a parabola in its place, or None where it does not drift.

    .. math:: f(x) = a + b x + c x^2,\quad \text{the 10 % quantile of } t - t_{least}

    Args:
        place: where the row lies in its table, which is the order of measuring.
        latency_s: t, with launch [s].
        least_s: what the work takes at least [s].

    Source: quantile regression (Koenker and Bassett 1978).
    Validity: a thousand rows and more of one operator on one GPU, timed by single launches.
    """
    from scipy.stats import spearmanr
    from sklearn.linear_model import QuantileRegressor

    if len(place) < LEAST_ROWS or abs(spearmanr(place, least_s).statistic) > UNORDERED:
        return None
    low, high = place.min(), place.max()
    powers = np.vander((place - low) / max(high - low, 1), 3)
    short = least_s <= np.quantile(least_s, SHORT_SHARE)
    regressor = QuantileRegressor(quantile=QUANTILE, alpha=0.0, fit_intercept=False)
    # In microseconds, as the tolerance of the linear program asks for.
    floor_s = 1e-6 * regressor.fit(powers[short], 1e6 * (latency_s - least_s)[short]).predict(powers)
    grown = floor_s[np.argmax(place)] >= LEAST_GROWTH * floor_s[np.argmin(place)]
    return floor_s if grown and floor_s.min() > 0 else None
