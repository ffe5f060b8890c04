"""What the fit of physics reads: a balanced sample of every table of measured kernels, with its conditions.

Rows weigh by groups: a device, kind of kernel and way of measuring counts the same however many rows it has, since
what its rows have in common is one observation of the device and not thousands."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.datasets import device_of, devices_beside, load_kernels, to_batches
from neusight.datasets.batches import single_kernels
from neusight.datasets.clean import suspected
from neusight.datasets.conditions import WALL_FLOOR_S, conditions_of
from neusight.datasets.load import root_of, sets_in, tables_in
from neusight.datasets.measured import unable
from neusight.datasets.schema import read_parquet
from neusight.devices import load_device
from neusight.devices.spec import DeviceSpec
from neusight.errors import DataError, DeviceError
from neusight.executors.gpu.expected.laws import law_names
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.learn.physics.problem import ProblemPart
from neusight.learn.training_data import DeviceRows, load_corpus
from neusight.learn.training_sets import launch_floors, row_floors

if TYPE_CHECKING:
    import pandas as pd


FILE = Path("matmul-rates") / "matmul_rates.parquet"
USUAL_EXTENT = 3072
"""Middle of the sizes 1024 to 10240 of which one best figure is told, as powers go."""
BURST = 3.0
"""Products that run before a rest (assumption)."""
WEIGHT = 2.0
"""Rows that a device and dtype counts as: one figure, whose submitters differ by up to 18 %."""
SHARED_POWER = ("jetson", "laptop")
"""Parts of names of boards whose power limit is not the GPU's alone, or not told."""
EMULATED = "emulated"


def rate_parts(data: Path, hold_out: Collection[str] = ()) -> list[ProblemPart]:
    """A part a device and dtype, where the catalogue has the device and the device the dtype; none without the file."""
    if not (data / FILE).is_file():
        return []
    frame = read_parquet(data / FILE).to_pandas()
    frame = frame[(frame["batch"] == 1) & ~frame["note"].fillna("").str.contains(EMULATED)]
    parts = []
    for (gpu, dtype), rows in frame.groupby(["gpu", "dtype"], sort=True):
        device = _known(str(gpu))
        if device is None or gpu in hold_out or not _comparable(device, str(dtype)):
            continue
        extents = {name: rows[name].fillna(USUAL_EXTENT).to_numpy(dtype=np.int64) for name in "mnk"}
        flops = 2.0 * np.prod([extents[name].astype(float) for name in "mnk"], axis=0)
        parts.append(
            ProblemPart(
                device=device,
                kind=f"rates/{dtype}".replace("bfloat16", "float16"),
                batch=KernelBatch.from_columns("gemm", dtype=str(dtype), **extents),
                conditions=Conditions.of(len(rows), timing="profiler", burst=BURST),
                latency_s=flops / (rows["tflop_per_s"].to_numpy(dtype=float) * 1e12),
                floor_s=np.zeros(len(rows)),
                weight=np.full(len(rows), WEIGHT / len(rows)),
            )
        )
    return parts


def _known(gpu: str) -> DeviceSpec | None:
    if any(word in gpu for word in SHARED_POWER):
        return None
    try:
        return load_device(gpu)
    except DeviceError:
        return None


def _comparable(device: DeviceSpec, dtype: str) -> bool:
    """Whether the dtype runs on matrix units, or is float32."""
    return dtype == "float32" or dtype in device.matrix_flops_per_s


GROUP_WEIGHT = 4.0
"""Rows that a group counts as against the priors: more of them say little that the first did not (10 and 50 are worse
with GH100 and GA100 left out)."""
LONE_LAUNCHES = ("neusight-fp32", "neusight-fp32-h100")
"""Data sets of lone launches, whose floors the data tell operator by operator; see ``lane_parts``."""


@dataclass(frozen=True)
class Observed:
    """Kernels of one device, law and way of measuring; columns of shape (n,)."""

    data: str
    law: str
    device: DeviceSpec
    batch: KernelBatch
    conditions: Conditions
    latency_s: np.ndarray

    def __len__(self) -> int:
        return len(self.batch)

    def take(self, index: np.ndarray) -> Observed:
        """The rows that ``index`` selects."""
        return replace(
            self,
            batch=self.batch.take(index),
            conditions=self.conditions.take(index),
            latency_s=self.latency_s[index],
        )


def observe(
    data: Path,
    each: int,
    seed: int = 0,
    hold_out: Collection[str] = (),
    report: Callable[[str], None] | None = None,
) -> list[Observed]:
    """A sample of the rows that have a law of their own, from every data set in a folder.

    Args:
        data: folder of data sets, each with its tables in ``kernels``.
        each: rows, at most, of each device, table, operator, dtype, engine and kernel.
        seed: of the sample.
        hold_out: devices to leave out.
        report: called with the name of each file.

    Raises:
        DataError: no row is left.
    """
    observed: list[Observed] = []
    for path in kernel_files(data):
        name = root_of(path).name
        if name in LONE_LAUNCHES:
            continue
        if report:
            report(f"{name}/{path.stem}")
        observed.extend(_of_file(path, each, seed, hold_out))
    if not observed:
        raise DataError(f"{data} has no kernels that have a law of their own: give the folder of the data sets")
    return observed


def kernel_files(data: Path) -> list[Path]:
    """Tables of kernels of every data set in a folder, in order of their names."""
    return [file for folder in sets_in(data) for file in tables_in(folder)]


def _of_file(path: Path, each: int, seed: int, hold_out: Collection[str]) -> Iterator[Observed]:
    frame = load_kernels(path)
    keep = single_kernels(frame) & ~frame["gpu"].isin(list(hold_out)).to_numpy()
    if "eager" in frame:
        keep &= ~frame["eager"].fillna(False).to_numpy(dtype=bool)
    if "timing" in frame:
        keep &= ~((frame["timing"] == "wall") & (frame["latency_ms"] < 1e3 * WALL_FLOOR_S)).to_numpy()
    frame = frame[keep & ~suspected(frame)]
    names = [name for name in ("gpu", "family", "op", "dtype", "framework", "kernel", "phase") if name in frame]
    frame = frame.iloc[_sample(frame, names, each, seed)].reset_index(drop=True)
    beside = devices_beside(path)
    for rows in frame.groupby(names, dropna=False, sort=True).indices.values():
        yield from _observed(root_of(path).name, frame.iloc[rows].reset_index(drop=True), beside)


def _sample(frame: pd.DataFrame, names: Sequence[str], each: int, seed: int) -> np.ndarray:
    kept = [np.zeros(0, dtype=int)]
    for rows in frame.groupby(list(names), dropna=False, sort=True).indices.values():
        drawn = np.random.default_rng(seed).permutation(len(rows))[:each]
        kept.append(np.sort(rows[drawn]))
    return np.concatenate(kept)


def _observed(data: str, rows: pd.DataFrame, beside: Any) -> Iterator[Observed]:
    device = device_of(str(rows["gpu"].iloc[0]), beside)
    if unable(device, str(rows["family"].iloc[0]), str(rows["dtype"].iloc[0])):
        return
    latency_s = rows["latency_ms"].to_numpy(dtype=float) * 1e-3
    for batch, where in to_batches(rows):
        laws = law_names(batch, device)
        for law in sorted({str(name) for name in laws} - {""}):
            chosen = np.flatnonzero(laws == law)
            part = rows.iloc[where[chosen]]
            own = batch.take(chosen)
            yield Observed(data, law, device, own, conditions_of(part, own, device), latency_s[where[chosen]])


def parts_of(observed: Sequence[Observed], kind: Callable[[Observed], str] | None = None) -> list[ProblemPart]:
    """Parts of the fit, each with the same weight however many rows it has."""
    return [
        ProblemPart(
            device=o.device,
            kind=(kind or kind_of)(o),
            batch=o.batch,
            conditions=o.conditions,
            latency_s=o.latency_s,
            floor_s=np.full(len(o), np.nan),
            weight=np.full(len(o), GROUP_WEIGHT / len(o)),
        )
        for o in observed
    ]


def kind_of(o: Observed) -> str:
    """Kind of kernels that share what a device has of its own: law, bits of the operands and how they are scaled."""
    dtype = str(o.batch["dtype"][0])
    more = [str(o.batch[name][0]) for name in ("scaling", "weight_dtype", "kv_dtype") if name in o.batch.columns]
    return "/".join(part for part in (o.law, dtype.replace("bfloat16", "float16"), *more) if part)


def lane_parts(source: Path, each: int, hold_out: Collection[str] = (), seed: int = 0) -> list[ProblemPart]:
    """Float32 kernels in lone launches, cleaned, each with what its launch took on that GPU and operator."""
    corpus, parts = load_corpus(source, hold_out=tuple(hold_out)), []
    for devices in corpus.rows.values():
        floors = launch_floors(devices)
        for rows in devices:
            floor_s, kinds = row_floors(rows, floors), _kinds(rows)
            for kind in sorted(set(kinds)):
                mine = np.flatnonzero(kinds == kind)
                mine = np.sort(mine[np.random.default_rng(seed).permutation(len(mine))[:each]])
                parts.append(
                    ProblemPart(
                        device=rows.device,
                        kind=kind,
                        batch=rows.batch.take(mine),
                        conditions=rows.conditions.take(mine),
                        latency_s=rows.latency_s[mine],
                        floor_s=floor_s[mine],
                        weight=np.full(len(mine), GROUP_WEIGHT / len(mine)),
                    )
                )
    return parts


def _kinds(rows: DeviceRows) -> np.ndarray:
    """Operators that are programs of their own; those of other families differ in their arithmetic alone."""
    family, ops = rows.batch.family, rows.batch["op"].astype(str)
    kinds = ops if family in ("gemm", "row_reduction") else np.full(len(ops), family)
    return kinds if rows.device.vendor == "nvidia" else np.char.add(kinds, f"/{rows.device.vendor}")
