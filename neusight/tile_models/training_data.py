"""From measured rows to what a tile model learns from: clean, situate, weigh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from neusight.datasets import RULES, clean, load_kernels, observed_tiles, to_batches
from neusight.devices import DeviceSpec, load_device
from neusight.errors import DataError
from neusight.features import FeatureContract, feature_matrix, situate
from neusight.kernels import KernelBatch
from neusight.laws.work import by_distinct
from neusight.tile_models.protocol import TrainingSet
from neusight.tiling import TileChoice
from neusight.tiling.learn import ObservedTiles, fit_choice, tile_index

if TYPE_CHECKING:
    import pandas as pd

FAMILIES = ("gemm", "conv2d", "elementwise", "row_reduction")
THROTTLED_RULE = "throttled_split"
FLOOR_ROWS = 20
FLOOR_LIMIT_S = 70e-6
"""A GPU whose fastest rows of an op take longer than this never measured an empty launch of it."""


@dataclass(frozen=True)
class DeviceRows:
    """Clean rows of one family on one GPU."""

    device: DeviceSpec
    batch: KernelBatch
    latency_s: np.ndarray
    split: np.ndarray
    observed_m: np.ndarray
    observed_n: np.ndarray


@dataclass(frozen=True)
class Corpus:
    """All clean rows, by family, with the cleaning report and the files' place.

    ``throttled`` are rows that cleaning set aside because the same GPU ran the same op much faster at another time:
    useless for learning shapes, but evidence of the states in which the GPU may be met.
    """

    rows: dict[str, list[DeviceRows]]
    throttled: dict[str, list[DeviceRows]]
    report: pd.DataFrame
    source: Path

    def gpus(self, family: str) -> list[str]:
        """Devices that have rows of the family."""
        return [r.device.id for r in self.rows.get(family, [])]


def load_corpus(source: Path, gpus: Sequence[str], families: Sequence[str] = FAMILIES) -> Corpus:
    """Read, clean and sort measurements.

    Args:
        source: parquet file, or folder of parquet files, in the kernel schema.
        gpus: devices to keep; an empty sequence keeps all.
        families: kernel families to keep.

    Raises:
        DataError: no row is left.
    """
    frame = load_kernels(source)
    frame = frame[frame["family"].isin(families)]
    if len(gpus):
        frame = frame[frame["gpu"].isin(list(gpus))]
    if not len(frame):
        raise DataError(f"{source} has no rows of {', '.join(families)} on {', '.join(gpus) or 'any GPU'}")
    frame = frame.reset_index(drop=True)
    result = clean(frame)
    others = clean(frame, rules=[rule for rule in RULES if rule.name != THROTTLED_RULE]).frame
    slow = others.loc[others.index.difference(result.frame.index)]
    return Corpus(_by_family(result.frame, families), _by_family(slow, families), result.report, source)


def _by_family(frame: pd.DataFrame, families: Sequence[str]) -> dict[str, list[DeviceRows]]:
    rows: dict[str, list[DeviceRows]] = {family: [] for family in families}
    for gpu, part in frame.groupby("gpu", sort=True):
        tiles = observed_tiles(part)
        for batch, where in to_batches(part):
            rows[batch.family].append(_device_rows(load_device(str(gpu)), batch, part.iloc[where], tiles.iloc[where]))
    return rows


def _device_rows(device: DeviceSpec, batch: KernelBatch, part: pd.DataFrame, tiles: pd.DataFrame) -> DeviceRows:
    split = part["split"].to_numpy(dtype=str) if "split" in part else np.full(len(part), "train")
    latency_s = part["latency_ms"].to_numpy(dtype=float) * 1e-3
    return DeviceRows(device, batch, latency_s, split, tiles["tile_m"].to_numpy(float), tiles["tile_n"].to_numpy(float))


def learn_choice(rows: Sequence[DeviceRows], seed: int = 0) -> TileChoice:
    """The library's tile choice from GEMM rows."""
    observed = [ObservedTiles(r.device, r.batch, tile_index(r.observed_m, r.observed_n)) for r in rows]
    return fit_choice(observed, seed=seed)


def launch_floors(rows: Sequence[DeviceRows]) -> dict[str, float]:
    """Seconds that a lone launch of each op takes beyond its execution: the median over GPUs of their floors."""
    floors: dict[str, list[float]] = {}
    for r in rows:
        for op in np.unique(r.batch["op"]):
            floor = _floor(r, r.batch["op"] == op)
            if floor is not None:
                floors.setdefault(str(op), []).append(floor)
    return {op: float(np.median(values)) for op, values in sorted(floors.items())}


def _floor(r: DeviceRows, mask: np.ndarray) -> float | None:
    """A GPU's fastest rows of an op are all launch, when there are enough of them and they are fast."""
    fastest = float(np.quantile(r.latency_s[mask], 0.002))
    return 0.97 * fastest if mask.sum() >= FLOOR_ROWS and fastest < FLOOR_LIMIT_S else None


def training_set(
    rows: Sequence[DeviceRows], contract: FeatureContract, choice: TileChoice, floors: dict[str, float]
) -> TrainingSet:
    """Features, prior and weights of rows of one family, for one or more GPUs.

    A row weighs by the share of its time that is execution. Each (GPU, op, split) counts with the root of its number
    of rows, so that the many small random shapes do not drown the large ones that models are made of.
    """
    numbers = {name: number for number, name in enumerate(group_names(rows))}
    parts = [_one_device(r, contract, choice, floors, numbers) for r in rows]
    return TrainingSet(**{name: np.concatenate([p[name] for p in parts]) for name in parts[0]})


def group_names(rows: Sequence[DeviceRows]) -> list[str]:
    """``gpu/op`` of each group of a training set, in the order of its numbers."""
    return [f"{r.device.id}/{op}" for r in rows for op in np.unique(r.batch["op"].astype(str))]


def _one_device(
    r: DeviceRows, contract: FeatureContract, choice: TileChoice, floors: dict[str, float], numbers: dict[str, int]
) -> dict[str, np.ndarray]:
    situation = situate(r.batch, r.device, choice)
    ops = r.batch["op"].astype(str)
    floor_s = np.empty(len(ops))
    for op in np.unique(ops):
        own = _floor(r, ops == op)
        floor_s[ops == op] = own if own is not None else min(floors.get(op, 3e-5), 0.9 * r.latency_s[ops == op].min())
    floor_s = np.minimum(floor_s, 0.97 * r.latency_s)
    share = 1.0 - floor_s / r.latency_s
    return {
        "features": feature_matrix(situation, contract.features),
        "prior": situation.prior,
        "bound_s": situation.bound_s,
        "floor_s": floor_s,
        "latency_s": r.latency_s,
        "weight": _balanced(share, ops, r.split),
        "group": by_distinct(ops, lambda op: numbers[f"{r.device.id}/{op}"]).astype(int),
    }


def _balanced(weight: np.ndarray, ops: np.ndarray, split: np.ndarray) -> np.ndarray:
    out = np.zeros(len(weight))
    for op in np.unique(ops):
        for part in np.unique(split):
            mask = (ops == op) & (split == part)
            if weight[mask].sum() > 0:
                out[mask] = weight[mask] / weight[mask].sum() * np.sqrt(mask.sum())
    return out / out.sum()
