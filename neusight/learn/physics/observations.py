"""What the fit of physics reads: a balanced sample of every table of measured kernels, with its conditions.

Rows weigh by groups: a device, kind of kernel and way of measuring counts the same however many rows it has, since
what its rows have in common is one observation of the device and not thousands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.devices import gpu_of
from neusight.devices.spec import GpuSpec
from neusight.errors import DataError
from neusight.executors.gpu.expected.laws import answering_model, law_names
from neusight.executors.gpu.expected.times import launch_s, lone_s
from neusight.executors.gpu.features.situation import situate
from neusight.executors.gpu.tiling.library import shipped_choice
from neusight.kernels import KernelBatch
from neusight.kernels.work import work_of
from neusight.laws.constants import priors
from neusight.laws.physics import PRIOR, Physics
from neusight.learn import Report
from neusight.learn.evidence import FitOptions, sample, source_of
from neusight.learn.physics.problem import KernelMeasurements
from neusight.learn.training_data import Corpus, DeviceRows, load_corpus
from neusight.learn.training_sets import launch_floors, row_floors
from neusight.measured import KernelPart, MeasuredTable, read_table
from neusight.measured.folder import (
    alike,
    is_of_lone_launches,
    kernel_files,
    states_rates,
    suspected,
    table_parts,
    timings_of,
)
from neusight.measured.kernels import Skip, computed_rows

if TYPE_CHECKING:
    import pandas as pd

USUAL_EXTENT = 3072
"""Middle of the sizes 1024 to 10240 of which one best figure is told, as powers go."""
RATE_WEIGHT = 2.0
"""Rows that a device and dtype counts as: one figure, whose submitters differ by up to 18 %."""
MOST_SUSPECT = 0.05
"""Share of a table's rows that may be faster than the datasheet allows before none of them is believed (assumption)."""
MANY = 20
"""Suspect rows from which they say something of the others (assumption)."""
OWN = {"attention": "attention", "moe": "moe", "stream": "stream", "convolution": "conv2d", "implicit": "programs"}
"""Groups of constants that only the kernels of one tile model know, or only ``programs``: the others' derivatives are
zero."""
BORROWED = {"moe": "matrix", "attention": "matrix"}
"""Groups of constants that kernels of a tile model use and do not change: single products tell what they are, and what
layers of experts or attention miss by is for their own constants to explain (a cut in the graph of a model, Plummer
2015)."""


@dataclass(frozen=True, kw_only=True)
class ProblemPart(KernelMeasurements):
    """Kernels of one kind; ``floor_s`` is what the launch of each took, where it is known from the data [s]; None where
    the conditions tell it.
    """

    device: GpuSpec
    floor_s: np.ndarray | None = None

    def __post_init__(self) -> None:
        model = str(answering_model(self.batch, self.device)[0])
        groups = {name: name.partition(".")[0] for name in priors(PRIOR)}
        self.foreign.update(name for name, group in groups.items() if OWN.get(group, model) != model)
        self.foreign.update(name for name, group in groups.items() if group == BORROWED.get(model))

    def timed(self, constants: Physics, held: Any = None) -> tuple[np.ndarray, Any]:
        """Times with launch [s], and the tiles that they were computed with."""
        s = situate(self.batch, self.device, shipped_choice(), held, physics=constants, conditions=self.conditions)
        if self.floor_s is None:
            return s.expected_s + launch_s(self.conditions, constants), s.tiling
        return lone_s(self.floor_s, s.expected_s, s.fixed_overhead_s, constants), s.tiling


@dataclass(frozen=True)
class ObservationReader:
    """What to read; ``skipped`` counts rows that tell nothing, by reason."""

    options: FitOptions
    skipped: Counter[str] = field(default_factory=Counter)

    def tables(self, *, lone: bool = False) -> list[Path]:
        """Tables of kernels with times that were measured: those of lone launches, or the others."""
        out = self.options.hold_out
        files = kernel_files(self.options.data, lambda family, gpu: family != "collective" and gpu not in out, GpuSpec)
        return [file for file in files if not states_rates(file) and is_of_lone_launches(file) == lone]

    def observe(self, report: Report | None = None) -> list[ProblemPart]:
        """A sample of the rows that have a law of their own, from every table in a folder of measured rows.

        Raises:
            DataError: no row is left.
        """
        parts: list[ProblemPart] = []
        for path in self.tables():
            if report:
                report(f"reading {path.stem}", 0, 1, float("nan"))
            parts.extend(self._of_file(path))
        if not parts:
            raise DataError(
                f"{self.options.data} has no kernels that have a law of their own: give the folder of measured rows"
            )
        return parts

    def _of_file(self, path: Path) -> Iterator[ProblemPart]:
        table, source = read_table(path), source_of(path)
        frame = table.frame[~table.frame["gpu"].isin(self.options.hold_out)]
        faults = _faults(frame)
        self.skipped.update({reason: int(faulty.sum()) for reason, faulty in faults.items() if faulty.any()})
        frame = frame[~np.any(list(faults.values()), axis=0)]
        sampled = [self._sample(rows) for rows in alike(frame)]
        group = np.repeat(np.arange(len(sampled)), [len(rows) for rows in sampled])
        frame = frame.iloc[np.concatenate([np.zeros(0, dtype=int), *sampled])]
        latency_s = 1e-3 * frame["latency_ms"].to_numpy(dtype=float)
        for part in self._on_gpus(replace(table, frame=frame)):
            for number in np.unique(group[part.rows]):
                similar = part.take(group[part.rows] == number)
                for law, chosen in by_law(similar.batch, gpu_of(part.device)):
                    if law:
                        own = similar.take(chosen)
                        yield ProblemPart.of(own, latency_s[own.rows], kind=kind_of(law, own.batch), source=source)

    def _on_gpus(self, table: MeasuredTable) -> Iterator[KernelPart]:
        """Kernels of GPUs in dtypes that these compute in; others are counted."""
        unread: list[Skip] = []
        for part in table_parts(table, unread):
            if isinstance(part.device, GpuSpec):
                yield part.take(computed_rows(part, unread))
            else:
                unread.append((f"of devices of kind {part.device.kind}", part.rows))
        self.skipped.update(Counter(reason for reason, rows in unread for _ in rows))

    def _sample(self, rows: np.ndarray) -> np.ndarray:
        """Those of some positions that are kept, in their order."""
        return rows[sample(len(rows), self.options.each, self.options.seed)]

    def lanes(self) -> list[ProblemPart]:
        """Kernels of all tables of lone launches; see ``lanes_of``."""
        corpora = {file: load_corpus([file], hold_out=self.options.hold_out) for file in self.tables(lone=True)}
        return [part for file, corpus in corpora.items() for part in self.lanes_of(corpus, source_of(file))]

    def lanes_of(self, corpus: Corpus, source: str = "") -> list[ProblemPart]:
        """Lone launches, each with what its launch took on that GPU and operator, which its table tells."""
        parts = []
        for (_, reason), rows_left_out in corpus.left_out.items():
            self.skipped[reason] += rows_left_out
        for devices in corpus.rows.values():
            floors = launch_floors(devices)
            for rows in devices:
                floor_s, kinds = row_floors(rows, floors), _kinds(rows)
                for kind in sorted(set(kinds)):
                    mine = self._sample(np.flatnonzero(kinds == kind))
                    own = rows.take(mine)
                    parts.append(ProblemPart.of(own, own.latency_s, kind=kind, floor_s=floor_s[mine], source=source))
        return parts

    def rates(self) -> list[ProblemPart]:
        """Rates of single matrix products without scales, a part a device and dtype that it has; none without a table
        of them.
        """
        import pandas as pd

        folder, skipped = self.options.data, self.skipped
        files = [*filter(states_rates, (*folder.glob("kernels/*.parquet"), *folder.glob("rates/*.parquet")))]
        if not files:
            return []
        tables, source = [read_table(file) for file in files], source_of(files[0])
        rows = pd.concat([table.frame for table in tables], ignore_index=True).sort_values("row")
        shared = suspected(rows, "shared_power")
        skipped.update({"rates of boards that share their power limit": int(shared.sum())} if shared.any() else {})
        told = rows.reindex(columns=["batch", "scaling"])
        plain = told["batch"].fillna(1).eq(1) & told["scaling"].isna()
        rows = rows[~shared & plain & ~rows["gpu"].isin(self.options.hold_out)]
        extents = {name: [USUAL_EXTENT if np.ndim(cell) else cell for cell in rows[name]] for name in "mnk"}
        rows = rows.assign(**extents)
        parts = []
        for part in self._on_gpus(replace(tables[0], frame=rows)):
            for dtype in np.unique(part.batch["dtype"]):
                own = part.take(part.batch["dtype"] == dtype)
                if dtype != "float32" and dtype not in gpu_of(part.device).matrix_flops_per_s:
                    skipped["rates in a dtype that the device's matrix units lack"] += len(own)
                    continue
                latency_s = work_of(own.batch).flops / (1e12 * rows["tflop_per_s"].to_numpy(dtype=float)[own.rows])
                kind, floor_s = kind_of("rates", own.batch), np.zeros(len(own))
                parts.append(ProblemPart.of(own, latency_s, RATE_WEIGHT, kind=kind, floor_s=floor_s, source=source))
        return parts


def _faults(frame: pd.DataFrame) -> dict[str, np.ndarray]:
    """Rows that tell nothing of a kernel, by reason, as masks."""
    return {
        "the host's time": suspected(frame, "host_time"),
        "launched without a graph": _alone(frame),
        "suspect": suspected(frame, "source"),
        "of a table whose rows beat the datasheet": _doubted(frame),
    }


def _alone(frame: pd.DataFrame) -> np.ndarray:
    """Launches on the operands of the last one beside replays of graphs: the engine plans them on the host."""
    timings = timings_of(frame)
    if not (timings == "graph").any():
        return np.zeros(len(frame), dtype=bool)
    return np.asarray((timings == "stream") & frame["cycled_bytes"].notna())


def _doubted(frame: pd.DataFrame) -> np.ndarray:
    """Rows of a dtype of which many, and more than ``MOST_SUSPECT``, are suspect: others, on other GPUs too, were timed
    or counted alike.
    """
    if "dtype" not in frame:
        return np.zeros(len(frame), dtype=bool)
    marked = frame.assign(marked=suspected(frame, "source")).groupby("dtype", dropna=False, observed=True)["marked"]
    return np.asarray((marked.transform("mean") > MOST_SUSPECT) & (marked.transform("sum") >= MANY))


def by_law(batch: KernelBatch, device: GpuSpec) -> Iterator[tuple[str, np.ndarray]]:
    """Laws of kernels, "" where there is none, with the positions of theirs."""
    laws = law_names(batch, device)
    for law in np.unique(laws):
        yield str(law), np.flatnonzero(laws == law)


def kind_of(law: str, batch: KernelBatch) -> str:
    """Kind of kernels that share what a device has of its own: law, bits of the operands and how they are scaled."""
    dtype = str(batch["dtype"][0])
    more = [str(batch[name][0]) for name in ("scaling", "weight_dtype", "kv_dtype") if name in batch.columns]
    return "/".join(part for part in (law, dtype.replace("bfloat16", "float16"), *more) if part)


def _kinds(rows: DeviceRows) -> np.ndarray:
    """Operators that are programs of their own; those of other families differ in their arithmetic alone."""
    family, ops = rows.batch.family, rows.batch["op"].astype(str)
    kinds = ops if family in ("gemm", "row_reduction") else np.full(len(ops), family)
    return kinds if rows.device.vendor == "nvidia" else np.char.add(kinds, f"/{rows.device.vendor}")
