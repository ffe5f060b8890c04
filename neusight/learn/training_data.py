"""Measured rows to learn from: read, cleaned, by the tile model that answers them and GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from neusight.datasets.batches import single_kernels
from neusight.datasets.columns import strings_or
from neusight.datasets.conditions import WALL_FLOOR_S, conditions_of
from neusight.datasets.load import sets_in
from neusight.datasets.measured import answerable
from neusight.devices import DeviceSpec, GpuSpec
from neusight.errors import DataError
from neusight.executors.gpu.expected.laws import LAWS, answering_model
from neusight.executors.gpu.tile_models.artifact import bias_name, kernel_kinds
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.kernels.work import winograd_gain

if TYPE_CHECKING:
    import pandas as pd

MODELS = ("gemm", "conv2d", *LAWS)
"""Tile models, by the kernels that they answer; see ``answering_model``."""
EACH = 2500
"""Rows of a table of serving engines, at most, of each GPU, operator, dtype, engine and kernel: more of them take time
and tell no more (the tables have up to a million)."""
ALIKE = ("gpu", "family", "op", "dtype", "framework", "kernel", "phase")
"""Columns that rows share of which more tell no more."""
THROTTLED_RULE = "throttled_split"
COLUMNS = ("latency_s", "execution_s", "split", "observed_m", "observed_n", "place")
"""Of ``DeviceRows``, beside the kernels themselves."""


@dataclass(frozen=True)
class DeviceRows:
    """Clean rows of one family and tile model on one GPU. ``execution_s`` is NaN where a row was timed by single
    launches only; ``place`` is where it lies in its table.
    """

    device: GpuSpec
    batch: KernelBatch
    latency_s: np.ndarray
    execution_s: np.ndarray
    split: np.ndarray
    observed_m: np.ndarray
    observed_n: np.ndarray
    place: np.ndarray
    conditions: Conditions

    def __len__(self) -> int:
        return len(self.latency_s)

    @cached_property
    def groups(self) -> np.ndarray:
        """Name of each row's bias: its GPU and kind of kernel."""
        return np.char.add(bias_name(self.device.id, ""), kernel_kinds(self.batch))

    def take(self, index: np.ndarray) -> DeviceRows:
        """The rows that ``index`` (integers or a mask) selects."""
        columns: dict[str, Any] = {name: getattr(self, name)[index] for name in COLUMNS}
        return replace(self, batch=self.batch.take(index), conditions=self.conditions.take(index), **columns)


def thinned(rows: Sequence[DeviceRows], most: int) -> list[DeviceRows]:
    """At most so many rows of each GPU and family, drawn by a fixed seed."""
    return [r.take(np.sort(np.random.default_rng(0).permutation(len(r))[:most])) if len(r) > most else r for r in rows]


@dataclass(frozen=True)
class Corpus:
    """All clean rows, by tile model, with the cleaning report and the files' place.

    ``throttled`` are rows that cleaning set aside because the same GPU ran the same op much faster at another time:
    useless for learning shapes, but evidence of the states in which the GPU may be met. ``brought`` are the devices
    that lie beside the data.
    """

    rows: dict[str, list[DeviceRows]]
    throttled: dict[str, list[DeviceRows]]
    report: pd.DataFrame
    source: Path
    brought: Mapping[str, DeviceSpec]

    def gpus(self, model: str) -> list[str]:
        """Devices that have rows which the model answers."""
        return sorted({r.device.id for r in self.rows.get(model, [])})

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
    hold_out: Sequence[str] = (),
) -> Corpus:
    """Read, clean and sort measurements. What was measured once more to know the noise is left out.

    Args:
        source: parquet file, folder of parquet files in the kernel schema, folder of a data set, or of several; tables
            of serving engines are sampled, see ``EACH``.
        gpus: devices to keep; an empty sequence keeps all.
        hold_out: devices to leave out of those.

    Raises:
        DataError: no row is left. DeviceError: a GPU that neither the catalogue nor the data describe.
    """
    import pandas as pd

    corpora = [_read(path, gpus, hold_out) for path in sets_of(source)]
    read = [one for one in corpora if one is not None]
    if not read:
        named = ", ".join(gpu for gpu in gpus if gpu not in hold_out)
        raise DataError(f"{source} has no kernels on {named or 'any GPU that is not held out'}")
    rows, throttled = (
        {m: _joined([r for one in read for r in getattr(one, name)[m]]) for m in MODELS} for name in _ROWS
    )
    devices = {gpu: device for one in read for gpu, device in one.brought.items()}
    return Corpus(rows, throttled, pd.concat([one.report for one in read], ignore_index=True), source, devices)


_ROWS = ("rows", "throttled")


def sets_of(source: Path) -> list[Path]:
    """The data sets that a path means: those in it where it is a folder of several, else itself."""
    several = source.is_dir() and not (source / "kernels").is_dir() and not list(source.glob("*.parquet"))
    return (sets_in(source) if several else []) or [source]


NOT_ESTIMATED = "not_estimated"


def _read(source: Path, gpus: Sequence[str], hold_out: Sequence[str]) -> Corpus | None:
    """One data set; None without a row that is wanted."""
    import pandas as pd

    frame = load_kernels(source)
    keep = ~np.any([*unlearnable(frame).values(), frame["gpu"].isin(list(hold_out))], axis=0)
    if len(gpus):
        keep &= frame["gpu"].isin(list(gpus))
    if "repeat" in frame:
        keep &= ~(frame["repeat"] > 0)
    frame = frame[keep]
    brought = devices_beside(source)
    able = answerable(frame, brought)
    unable = _unanswered(frame[~able])
    frame = _sampled(frame[able].reset_index(drop=True))
    if not len(frame):
        return None
    rules = (*RULES, PRODUCTS)
    result = clean(frame, brought, rules)
    others = clean(frame, brought, [rule for rule in rules if rule.name != THROTTLED_RULE]).frame
    slow = others.loc[others.index.difference(result.frame.index)]
    rows, throttled = (_by_model(kept, brought) for kept in (result.frame, slow))
    return Corpus(rows, throttled, pd.concat([result.report, unable], ignore_index=True), source, brought)


def unlearnable(frame: pd.DataFrame) -> dict[str, np.ndarray]:
    """Rows that tell nothing of a single kernel, by reason, as masks."""
    wall = strings_or(frame, "timing") == "wall"
    return {
        "several devices": ~single_kernels(frame),
        "the host's time": wall & (frame["latency_ms"] < 1e3 * WALL_FLOOR_S).to_numpy(),
    }


def _unanswered(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows in a dtype that nothing estimates or their device lacks, counted as a cleaning report counts."""
    counted = frame.groupby(["gpu", "family", "op"]).size().to_frame("removed").reset_index()
    why = "a dtype that is not estimated, or that the device lacks"
    return counted.assign(rule=NOT_ESTIMATED, why=why, of=counted["removed"])


def _sampled(frame: pd.DataFrame) -> pd.DataFrame:
    """``EACH`` rows at most of what is alike in a table of serving engines; other tables whole."""
    if "kernel" not in frame and "timing" not in frame:
        return frame
    kept = []
    for rows in frame.groupby([name for name in ALIKE if name in frame], dropna=False, sort=True).indices.values():
        kept.append(np.sort(rows[np.random.default_rng(len(rows)).permutation(len(rows))[:EACH]]))
    return frame.iloc[np.concatenate(kept)].reset_index(drop=True) if kept else frame


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


def _by_model(frame: pd.DataFrame, brought: Mapping[str, DeviceSpec]) -> dict[str, list[DeviceRows]]:
    rows: dict[str, list[DeviceRows]] = {model: [] for model in MODELS}
    for gpu, part in frame.groupby("gpu", sort=True):
        device, tiles = device_of(str(gpu), brought), observed_tiles(part)
        if not isinstance(device, GpuSpec):
            continue
        for batch, where in to_batches(part):
            own = _device_rows(device, batch, part.iloc[where], tiles.iloc[where])
            names = answering_model(batch, device)
            for model in np.unique(names):
                rows[str(model)].append(own.take(np.flatnonzero(names == model)))
    return {model: _joined(parts) for model, parts in rows.items()}


def _joined(parts: Sequence[DeviceRows]) -> list[DeviceRows]:
    """Rows of one GPU and family that came from tables of several kinds, as one."""
    alike: dict[tuple[str, str], list[DeviceRows]] = {}
    for part in parts:
        alike.setdefault((part.device.id, part.batch.family), []).append(part)
    return [_one(several) for several in alike.values()]


def _one(parts: Sequence[DeviceRows]) -> DeviceRows:
    first = parts[0]
    kernels = {name: np.concatenate([p.batch[name] for p in parts]) for name in first.batch.columns}
    columns: dict[str, Any] = {name: np.concatenate([getattr(p, name) for p in parts]) for name in COLUMNS}
    conditions = Conditions.joined([p.conditions for p in parts])
    return replace(first, batch=KernelBatch(first.batch.family, kernels), conditions=conditions, **columns)


def _device_rows(device: GpuSpec, batch: KernelBatch, part: pd.DataFrame, tiles: pd.DataFrame) -> DeviceRows:
    split = part["split"].to_numpy(dtype=str) if "split" in part else np.full(len(part), "train")
    execution = part["execution_ms"].to_numpy(dtype=float) if "execution_ms" in part else np.full(len(part), np.nan)
    seconds = (part["latency_ms"].to_numpy(dtype=float) * 1e-3, execution * 1e-3)
    tile_m, tile_n = (tiles[name].to_numpy(float) for name in ("tile_m", "tile_n"))
    conditions = conditions_of(part, batch, device)
    return DeviceRows(device, batch, *seconds, split, tile_m, tile_n, part.index.to_numpy(), conditions)
