"""Measured rows to learn from: read, cleaned, by family and GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from neusight.datasets import (
    RULES,
    Rule,
    clean,
    device_of,
    devices_beside,
    load_kernels,
    observed_tiles,
    to_batches,
)
from neusight.devices import DeviceSpec
from neusight.errors import DataError
from neusight.executors.gpu.tile_models.artifact import level_name
from neusight.kernels import KERNEL_CLASSES, KernelBatch
from neusight.kernels.families import COMPOSED
from neusight.kernels.work import winograd_gain

if TYPE_CHECKING:
    import pandas as pd

FAMILIES = tuple(family for family in KERNEL_CLASSES if family not in COMPOSED)
THROTTLED_RULE = "throttled_split"
COLUMNS = ("latency_s", "execution_s", "split", "observed_m", "observed_n")
"""Of ``DeviceRows``, beside the kernels themselves."""


@dataclass(frozen=True)
class DeviceRows:
    """Clean rows of one family on one GPU. ``execution_s`` is NaN where a row was timed by single launches only."""

    device: DeviceSpec
    batch: KernelBatch
    latency_s: np.ndarray
    execution_s: np.ndarray
    split: np.ndarray
    observed_m: np.ndarray
    observed_n: np.ndarray

    def __len__(self) -> int:
        return len(self.latency_s)

    @cached_property
    def groups(self) -> np.ndarray:
        """Name of each row's level: its GPU, op and dtype."""
        ops, dtypes = (self.batch[name].astype(str) for name in ("op", "dtype"))
        named = np.empty(len(ops), dtype=object)
        for dtype in np.unique(dtypes):
            for op in np.unique(ops[dtypes == dtype]):
                named[(ops == op) & (dtypes == dtype)] = level_name(self.device.id, str(op), str(dtype))
        return named.astype(str)

    def take(self, index: np.ndarray) -> DeviceRows:
        """The rows that ``index`` (integers or a mask) selects."""
        return DeviceRows(self.device, self.batch.take(index), *(getattr(self, name)[index] for name in COLUMNS))


@dataclass(frozen=True)
class Corpus:
    """All clean rows, by family, with the cleaning report and the files' place.

    ``throttled`` are rows that cleaning set aside because the same GPU ran the same op much faster at another time:
    useless for learning shapes, but evidence of the states in which the GPU may be met. ``brought`` are the devices
    that lie beside the data.
    """

    rows: dict[str, list[DeviceRows]]
    throttled: dict[str, list[DeviceRows]]
    report: pd.DataFrame
    source: Path
    brought: Mapping[str, DeviceSpec]

    def gpus(self, family: str) -> list[str]:
        """Devices that have rows of the family."""
        return [r.device.id for r in self.rows.get(family, [])]

    def of_split(self, split: str) -> Corpus:
        """The rows of a split, "" for all. Cleaning has seen all of them: what is wrong with a row may only show beside
        the others of its GPU.
        """
        if not split:
            return self
        return replace(self, rows=_of_split(self.rows, split), throttled=_of_split(self.throttled, split))


def _of_split(rows: Mapping[str, list[DeviceRows]], split: str) -> dict[str, list[DeviceRows]]:
    """Without devices that have none."""
    chosen = {family: [r.take(r.split == split) for r in parts] for family, parts in rows.items()}
    return {family: [r for r in parts if len(r)] for family, parts in chosen.items()}


def load_corpus(
    source: Path,
    gpus: Sequence[str] = (),
    families: Sequence[str] = FAMILIES,
    hold_out: Sequence[str] = (),
) -> Corpus:
    """Read, clean and sort measurements. What was measured once more to know the noise is left out.

    Args:
        source: parquet file, folder of parquet files in the kernel schema, or the folder of a collected data set.
        gpus: devices to keep; an empty sequence keeps all.
        families: kernel families to keep.
        hold_out: devices to leave out of those.

    Raises:
        DataError: no row is left. DeviceError: a GPU that neither the catalogue nor the data describe.
    """
    frame = load_kernels(source)
    keep = frame["family"].isin(families) & ~frame["gpu"].isin(list(hold_out))
    if len(gpus):
        keep &= frame["gpu"].isin(list(gpus))
    if "repeat" in frame:
        keep &= ~(frame["repeat"] > 0)
    frame = frame[keep].reset_index(drop=True)
    if not len(frame):
        named = ", ".join(gpu for gpu in gpus if gpu not in hold_out)
        raise DataError(f"{source} has no rows of {', '.join(families)} on {named or 'any GPU that is not held out'}")
    brought = devices_beside(source)
    rules = (*RULES, PRODUCTS)
    result = clean(frame, brought, rules)
    others = clean(frame, brought, [rule for rule in rules if rule.name != THROTTLED_RULE]).frame
    slow = others.loc[others.index.difference(result.frame.index)]
    rows, throttled = (_by_family(kept, families, brought) for kept in (result.frame, slow))
    return Corpus(rows, throttled, result.report, source, brought)


def _slow_convolutions(frame: pd.DataFrame) -> np.ndarray:
    """Convolutions without a fast algorithm, as a mask."""
    mask = np.zeros(len(frame), dtype=bool)
    convolutions = np.flatnonzero(frame["family"] == "conv2d")
    for batch, where in to_batches(frame.iloc[convolutions]):
        mask[convolutions[where]] = winograd_gain(batch) == 1.0
    return mask


PRODUCTS = Rule(
    name="no_fast_algorithm",
    why="a convolution that is computed as a matrix product: the tile model of products answers it",
    mask=_slow_convolutions,
)


def _by_family(
    frame: pd.DataFrame, families: Sequence[str], brought: Mapping[str, DeviceSpec]
) -> dict[str, list[DeviceRows]]:
    rows: dict[str, list[DeviceRows]] = {family: [] for family in families}
    for gpu, part in frame.groupby("gpu", sort=True):
        device, tiles = device_of(str(gpu), brought), observed_tiles(part)
        found: dict[str, list[DeviceRows]] = {}
        for batch, where in to_batches(part):
            own = _device_rows(device, batch, part.iloc[where], tiles.iloc[where])
            found.setdefault(batch.family, []).append(own)
        for family, parts in found.items():
            rows[family].append(_joined(parts))
    return rows


def _joined(parts: Sequence[DeviceRows]) -> DeviceRows:
    """Rows of one GPU and family that came from tables of several kinds."""
    first = parts[0]
    kernels = {name: np.concatenate([p.batch[name] for p in parts]) for name in first.batch.columns}
    columns = ([getattr(p, name) for p in parts] for name in COLUMNS)
    return DeviceRows(first.device, KernelBatch(first.batch.family, kernels), *map(np.concatenate, columns))


def _device_rows(device: DeviceSpec, batch: KernelBatch, part: pd.DataFrame, tiles: pd.DataFrame) -> DeviceRows:
    split = part["split"].to_numpy(dtype=str) if "split" in part else np.full(len(part), "train")
    execution = part["execution_ms"].to_numpy(dtype=float) if "execution_ms" in part else np.full(len(part), np.nan)
    seconds = (part["latency_ms"].to_numpy(dtype=float) * 1e-3, execution * 1e-3)
    return DeviceRows(device, batch, *seconds, split, *(tiles[name].to_numpy(float) for name in ("tile_m", "tile_n")))
