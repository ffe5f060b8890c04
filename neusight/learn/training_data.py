"""Measured rows to learn from, by the tile model that answers them and GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from os.path import commonpath
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from neusight.devices import DeviceSpec, GpuSpec, load_device
from neusight.errors import DataError
from neusight.executors.gpu.expected.laws import LAWS, answering_model
from neusight.executors.gpu.tile_models.artifact import effect_name, kernel_kinds
from neusight.kernels import KernelBatch
from neusight.kernels.columns import ColumnRecord
from neusight.kernels.conditions import Conditions
from neusight.kernels.work import winograd_gain
from neusight.learn.evidence import grouped, sample
from neusight.measured.folder import alike, devices_beside, sound, stated, suspected
from neusight.measured.kernels import KernelPart, Skip, column, computed_rows, kernel_parts
from neusight.measured.table import read_table

if TYPE_CHECKING:
    import pandas as pd

MODELS = ("gemm", "conv2d", *LAWS)
"""Tile models, by the kernels that they answer; see ``answering_model``."""
EACH = 2500
"""Rows, at most, of what is alike in a table without splits: more of them take time and tell no more (some tables have
up to a million)."""
THROTTLED = "throttled_split"
"""Rule by which rows are suspect that their GPU ran much slower than at another time."""
STATES = ("rows", "throttled")


@dataclass(frozen=True)
class DeviceRows(ColumnRecord):
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

    @cached_property
    def groups(self) -> np.ndarray:
        """Its GPU and kind of kernel of each row, by ``effect_name``."""
        return np.char.add(effect_name(self.device.id, ""), kernel_kinds(self.batch))


def thinned(rows: Sequence[DeviceRows], most: int) -> list[DeviceRows]:
    """At most so many rows of each GPU and family, drawn by a fixed seed."""
    return [r.take(sample(len(r), most, 0)) if len(r) > most else r for r in rows]


@dataclass(frozen=True)
class Corpus:
    """Sound rows by tile model, how many others were left out by family and reason, and the files that were read.

    ``throttled`` are rows that are suspect because the same GPU ran the same op much faster at another time: useless
    for learning shapes, but evidence of the states in which the GPU may be met.
    """

    rows: dict[str, list[DeviceRows]]
    throttled: dict[str, list[DeviceRows]]
    left_out: Mapping[tuple[str, str], int]
    files: tuple[Path, ...]

    def gpus(self, model: str) -> list[str]:
        """Devices that have rows which the model answers."""
        return sorted({r.device.id for r in self.rows.get(model, [])})

    def of_split(self, split: str) -> Corpus:
        """The rows of a split, "" for all."""
        if not split:
            return self
        return replace(self, rows=_of_split(self.rows, split), throttled=_of_split(self.throttled, split))


def _of_split(rows: Mapping[str, list[DeviceRows]], split: str) -> dict[str, list[DeviceRows]]:
    """Without devices that have none."""
    chosen = {family: [r.take(r.split == split) for r in parts] for family, parts in rows.items()}
    return {family: [r for r in parts if len(r)] for family, parts in chosen.items()}


def load_corpus(files: Sequence[Path], gpus: Sequence[str] = (), hold_out: Sequence[str] = ()) -> Corpus:
    """Read and sort measurements. What was measured once more to know the noise is left out.

    Args:
        files: tables of kernels; those without splits are sampled, see ``EACH``.
        gpus: devices to keep; an empty sequence keeps all.
        hold_out: devices to leave out of those.

    Raises:
        DataError: no row is left, with the first reason why. DeviceError: a GPU that nothing describes.
    """
    parts_of: dict[tuple[str, str], list[DeviceRows]] = {}
    left_out: Counter[tuple[str, str]] = Counter()
    described: dict[Path, None] = {}
    for file in files:
        beside = devices_beside(file)
        frame = _wanted(read_table(file).frame, gpus, hold_out)
        described |= {beside[gpu][0]: None for gpu in frame["gpu"].unique() if gpu in beside}
        devices = {gpu: beside[gpu][1] if gpu in beside else load_device(gpu) for gpu in frame["gpu"].unique()}
        for key, found in grouped(_read(frame, devices, left_out), lambda found: found[:2]).items():
            parts = _joined([part for *_, part in found])
            parts_of.setdefault(key, []).extend(part.take(np.argsort(part.place)) for part in parts)
    if not parts_of:
        named = ", ".join(gpu for gpu in gpus if gpu not in hold_out)
        why = f": {next(iter(left_out))[1]}" if left_out else ""
        place = commonpath(files) if files else "the data"
        raise DataError(f"{place} has no kernels on {named or 'any GPU that is not held out'}{why}")
    rows, throttled = ({model: _joined(parts_of.get((name, model), ())) for model in MODELS} for name in STATES)
    return Corpus(rows, throttled, left_out, (*files, *described))


def _wanted(frame: pd.DataFrame, gpus: Sequence[str], hold_out: Sequence[str]) -> pd.DataFrame:
    """Rows of devices that count, whose time was measured and follows from no rate, not of the host or once more."""
    kept = ~frame["gpu"].isin(list(hold_out)) & ~np.isnan(stated(frame, "latency_ms"))
    kept &= np.isnan(stated(frame, "tflop_per_s"))
    if gpus:
        kept &= frame["gpu"].isin(list(gpus))
    if "repeat" in frame:
        kept &= ~(frame["repeat"] > 0)
    frame = frame[kept & ~suspected(frame, "host_time")].reset_index(drop=True)
    if "split" in frame:
        return frame
    sampled = [rows[sample(len(rows), EACH, len(rows))] for rows in alike(frame)]
    return frame.iloc[np.concatenate(sampled)].reset_index(drop=True) if sampled else frame


def _read(
    frame: pd.DataFrame, devices: Mapping[str, DeviceSpec], left_out: Counter[tuple[str, str]]
) -> Iterator[tuple[str, str, DeviceRows]]:
    """Rows by their state and tile model; others are counted by family and reason."""
    skipped: list[Skip] = []
    for part in kernel_parts(frame, skipped, devices):
        device = part.device
        if not isinstance(device, GpuSpec) or part.batch.family == "collective":
            continue
        own, family = frame.iloc[part.rows], part.batch.family
        states, models = {"rows": sound(own), "throttled": suspected(own, THROTTLED)}, _models(part, device, left_out)
        doubts = own.loc[~states["rows"], "suspect"].str.partition(":")[0] if not states["rows"].all() else []
        left_out.update((family, rule) for rule in doubts)
        rows = _device_rows(part, device, frame)
        for state, chosen in states.items():
            for model in np.unique(models[chosen & (models != "")]):
                yield state, str(model), rows.take(np.flatnonzero(chosen & (models == model)))
    for reason, places in skipped:
        left_out["", reason] += len(places)


def _models(part: KernelPart, device: GpuSpec, left_out: Counter[tuple[str, str]]) -> np.ndarray:
    """Name of the tile model that answers each row; "" of dtypes that the device lacks and of convolutions without a
    fast algorithm, which are computed as matrix products: the tile model of products answers them.
    """
    batch, names = part.batch, np.full(len(part.batch), "", dtype=object)
    skipped: list[Skip] = []
    rows = np.flatnonzero(computed_rows(part, skipped))
    left_out.update({(batch.family, reason): len(places) for reason, places in skipped})
    if len(rows):
        names[rows] = answering_model(batch.take(rows), device)
    if batch.family == "conv2d":
        slow = (winograd_gain(batch) == 1.0) & (names != "")
        left_out.update({(batch.family, "no_fast_algorithm"): int(slow.sum())} if slow.any() else {})
        names[slow] = ""
    return names


def _device_rows(part: KernelPart, device: GpuSpec, frame: pd.DataFrame) -> DeviceRows:
    names = ("latency_ms", "execution_ms", "tile_m", "tile_n")
    latency, execution, tile_m, tile_n = (stated(frame, name)[part.rows] for name in names)
    split = np.ma.filled(column(frame, "split", part.rows), "") if "split" in frame else np.full(len(part.rows), "")
    seconds = (1e-3 * latency, 1e-3 * execution)
    return DeviceRows(device, part.batch, *seconds, split, tile_m, tile_n, part.rows, part.conditions)


def _joined(parts: Sequence[DeviceRows]) -> list[DeviceRows]:
    """Rows of one GPU and family as one, by GPU."""
    alike = grouped(parts, lambda part: (part.device.id, part.batch.family))
    return sorted(map(DeviceRows.joined, alike.values()), key=lambda rows: rows.device.id)
