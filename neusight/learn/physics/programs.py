"""What whole programs tell of convolutions in TF32, of which there are no tables: timings of programs that take most of
their time for one convolution, against the sum of all of their kernels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

import numpy as np

from neusight.devices import load_gpu
from neusight.devices.spec import GpuSpec
from neusight.errors import NeusightError
from neusight.executors.gpu.features.situation import situate
from neusight.executors.gpu.tiling.library import shipped_choice
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.kernels.families import Kernel, group_by_family
from neusight.laws.constants import priors
from neusight.laws.physics import PRIOR, Physics
from neusight.learn.physics.observations import ProblemPart, by_law
from neusight.measured import KernelPart, read_table
from neusight.measured.folder import program_files, sound
from neusight.transforms.precision import as_computed
from neusight.workloads import load_workload
from neusight.workloads.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

KIND = "convolutions"
TAUGHT = ("implicit.", "stream.window_instructions")
"""Beginnings of the names of the constants that programs tell: their other kernels are priced and change nothing."""
LEAST_MS = 1.0
"""From which the host of an eager program hardly counts."""
LEAST_SHARE = 0.5
"""Of a program's expected time that its largest convolution takes, at least."""


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """Kernels of one law, the number of the program that each is of, and how often it runs in it."""

    batch: KernelBatch
    program: np.ndarray
    count: np.ndarray


@dataclass(frozen=True, kw_only=True)
class ProgramPart(ProblemPart):
    """Programs on one device; ``batch`` are their largest convolutions, ``kernels`` all of theirs."""

    kernels: tuple[Kernels, ...]

    def __post_init__(self) -> None:
        self.foreign.update(name for name in priors(PRIOR) if not name.startswith(TAUGHT))

    def timed(self, constants: Physics, held: Any = None) -> tuple[np.ndarray, Any]:
        """Sums of the times of kernels [s], and the tiles of each law's."""
        total_s, tilings = np.zeros(len(self)), []
        for number, part in enumerate(self.kernels):
            tiling = None if held is None else held[number]
            s = situate(part.batch, self.device, shipped_choice(), tiling, physics=constants)
            np.add.at(total_s, part.program, part.count * s.expected_s)
            tilings.append(s.tiling)
        return total_s, tuple(tilings)


def program_parts(data: Path, hold_out: Collection[str], skipped: Counter[str]) -> list[ProgramPart]:
    """A part a device that multiplies in TF32, of eager programs whose time one convolution makes up; none where the
    data has no timings of programs.

    Args:
        data: folder of measured rows.
        hold_out: devices that are left out.
        skipped: gets the number of timings that tell nothing, by reason.
    """
    parts: list[ProgramPart] = []
    for file in program_files(data):
        timed = _timings(file, skipped)
        traces = _traces(file.parent, sorted(set(timed["model"])), skipped)
        timed = timed[~timed["gpu"].isin(list(hold_out)) & timed["model"].isin(list(traces))]
        for gpu, rows in timed.groupby("gpu", sort=True):
            device = load_gpu(str(gpu))
            if device.multiplies("tf32"):
                parts += _part(device, rows.groupby("model", sort=True)["latency_ms"].median(), traces)
    return parts


def _timings(path: Path, skipped: Counter[str]) -> pd.DataFrame:
    """Eager ones with convolutions in TF32, long and steady enough."""
    rows = read_table(path).frame
    rows = rows[rows.reindex(columns=["launch", "dtype"]).isna().all(axis=1)]
    faults = {"programs below 1 ms": rows["latency_ms"] < LEAST_MS, "suspect programs": ~sound(rows)}
    skipped.update({reason: int(np.sum(faulty)) for reason, faulty in faults.items() if np.any(faulty)})
    return rows[~np.any(list(faults.values()), axis=0)]


def _traces(folder: Path, programs: Collection[str], skipped: Counter[str]) -> dict[str, Workload]:
    """Steps of the programs that have convolutions, by name."""
    traces = {}
    for name in programs:
        path = folder / name
        if not path.is_file() or not _has_convolution(path):
            continue
        try:
            workload = load_workload(str(path), dtype="float32", launch="eager")
        except NeusightError as error:
            skipped[f"programs that cannot be read ({type(error).__name__})"] += 1
            continue
        traces[name] = as_computed(workload, tf32=True)
    return traces


def _has_convolution(path: Path) -> bool:
    """Whether an exported program names one, before all of it is read."""
    with ZipFile(path) as archive:
        return any(b"aten.conv" in archive.read(name) for name in archive.namelist() if name.endswith("model.json"))


def _part(device: GpuSpec, measured_ms: pd.Series, traces: dict[str, Workload]) -> Iterator[ProgramPart]:
    """Programs of one device, but for those of which no convolution is ``LEAST_SHARE``."""
    chosen: list[str] = []
    largest: list[Kernel] = []
    for name in map(str, measured_ms.index):
        kernels = _by_law(device, [traces[name]])
        situations = (situate(part.batch, device, shipped_choice(), physics=PRIOR) for part in kernels)
        times_s = [part.count * s.expected_s for part, s in zip(kernels, situations, strict=True)]
        products_s = [times * (part.batch["dtype"] == "tf32") for part, times in zip(kernels, times_s, strict=True)]
        number = int(np.argmax([times.max() for times in products_s]))
        if products_s[number].max() >= LEAST_SHARE * sum(times.sum() for times in times_s):
            chosen.append(name)
            largest.append(kernels[number].batch.kernel(int(np.argmax(products_s[number]))))
    if chosen:
        batch, conditions = KernelBatch.of(largest), Conditions.of(len(chosen))
        yield ProgramPart.of(
            KernelPart(device=device, batch=batch, conditions=conditions, rows=np.arange(len(chosen))),
            1e-3 * measured_ms[chosen].to_numpy(dtype=float),
            kind=KIND,
            source=KIND,
            kernels=_by_law(device, [traces[name] for name in chosen]),
        )


def _by_law(device: GpuSpec, programs: list[Workload]) -> tuple[Kernels, ...]:
    """All kernels of some programs, together where they are of one family and law."""
    listed = [
        (kernel, number, node.copies)
        for number, workload in enumerate(programs)
        for node in workload.nodes
        for kernel in node.kernels
    ]
    numbers, counts = (np.array(column) for column in list(zip(*listed, strict=True))[1:])
    parts = []
    for batch, places in group_by_family(kernel for kernel, *_ in listed):
        for _, own in by_law(batch, device):
            parts.append(Kernels(batch=batch.take(own), program=numbers[places[own]], count=counts[places[own]]))
    return tuple(parts)
