"""What a user asks of a collection, and the data set that comes of it."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

import neusight
from neusight.collect.collectives import measure, planned
from neusight.collect.names import SHARE, join_names, unnamed
from neusight.collect.plan import check_names, plan, read_plan, usual_limits
from neusight.collect.session import Progress, Report, collect, introduced, write_devices
from neusight.collect.store import Store, read_rows
from neusight.collect.tasks import Task, identity
from neusight.collect.workers import Worker, device_count, local_workers
from neusight.datasets.schema import COLLECTED_TABLES
from neusight.devices.read import read_table
from neusight.errors import DataError

TARGETS = ("cuda", "cpu")
COLLECTIVES = "collective"


@dataclass(frozen=True, kw_only=True)
class CollectionRequest:
    """Which devices to measure, for how long, into which folder. ``ray`` is the address of a cluster, '' none;
    ``plan`` a file with the kernels to measure, in place of those of a collection.
    """

    out: Path
    target: str = "cuda"
    minutes: float = 20.0
    limit: int | None = None
    workers: int = 0
    ray: str | None = None
    seed: int = 0
    budget_s: float = 0.06
    plan: Path | None = None

    def hired(self) -> Sequence[Worker]:
        """The workers, each with its device.

        Raises:
            DataError: an impossible request. DeviceError: no such device.
        """
        if self.target not in TARGETS:
            raise DataError(f"no device '{self.target}': one of {', '.join(TARGETS)}")
        if not self.minutes > 0:
            raise DataError(f"{self.minutes:g} minutes: give a positive number")
        if self.ray is None:
            return local_workers(self.target, self.workers, self.seed, self.budget_s)
        from neusight.collect.ray_workers import ray_workers

        return ray_workers(self.ray, self.target, self.workers, self.seed, self.budget_s)


def collect_kernels(
    request: CollectionRequest,
    families: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    progress: Progress | None = None,
) -> Report:
    """Measure kernels of the devices at hand and leave a data set with its card.

    Args:
        request: where, how long, into which folder.
        families: of kernels, and ``collective`` for what several devices do together; empty for all, collectives only
            between GPUs and without a plan.
        dtypes: of kernels; empty for all.
        progress: called after every kernel.

    Raises:
        DataError: an unknown family or dtype, a plan that is none, or a folder that is not to be used.
        DeviceError: no such device.
    """
    kernels = [family for family in families if family != COLLECTIVES]
    check_names(kernels, dtypes, (COLLECTIVES,))
    together = COLLECTIVES in families or (not families and request.target != "cpu" and request.plan is None)
    reports = [] if families and not kernels else [_kernels(request, kernels, dtypes, progress)]
    if together:
        reports.append(_collectives(request))
    return replace(reports[-1], new=sum(r.new for r in reports), seconds=sum(r.seconds for r in reports))


def _kernels(
    request: CollectionRequest, families: Sequence[str], dtypes: Sequence[str], progress: Progress | None
) -> Report:
    """Time kernels; on a GPU, take the names of what ran in the last part of the time."""
    options = {"target": request.target, "families": list(families), "dtypes": list(dtypes), "seed": request.seed}
    planned = read_plan(request.plan) if request.plan else []
    if planned:
        options = {"target": request.target, "plan": identity([task.sample for task in planned])}

    def tasks(device: str) -> Iterable[Task]:
        if planned:
            return planned
        spec = read_table(tomllib.loads(device), "the drafted device")
        return plan(spec, families, dtypes, request.seed, usual_limits(spec, request.target != "cpu"))

    if request.target == "cpu":
        return run(request, {"kernels": options}, tasks, progress)
    timing = replace(request, minutes=request.minutes * (1.0 - SHARE))
    report = run(timing, {"kernels": options}, tasks, progress)
    naming = replace(request, minutes=request.minutes * SHARE, limit=None)
    # In new processes: one that has profiled launches more slowly from then on.
    run(naming, {}, lambda _: unnamed(request.out), progress)
    join_names(request.out)
    write_card(request.out, request.target)
    return report


def _collectives(request: CollectionRequest) -> Report:
    """Time collectives between the devices of this host, where there are several."""
    began, on_gpu = monotonic(), request.target != "cpu"
    devices = device_count(request.target) if on_gpu else min(2, os.cpu_count() or 1)
    (worker,) = local_workers(request.target, 1)
    store = Store(request.out, {COLLECTIVES: {"target": request.target}})
    before = store.rows
    try:
        (answer,) = introduced([worker]).values()
        write_devices(request.out, [answer])
        for outcome in measure(
            [t for t in planned(devices, on_gpu) if t.sample not in store.done], answer["gpu"], on_gpu
        ):
            store.add(outcome)
    finally:
        worker.stop()
        store.finish()
        store.close()
        write_card(request.out, request.target)
    skipped = store.counts.get("skipped", 0)
    return Report(
        folder=request.out,
        rows=store.rows - skipped,
        skipped=skipped,
        new=store.rows - before,
        seconds=monotonic() - began,
        lost_workers=0,
        gpus=(answer["gpu"],),
    )


def run(
    request: CollectionRequest,
    options: Mapping[str, Mapping[str, Any]],
    tasks: Callable[[str], Iterable[Task]],
    progress: Progress | None,
) -> Report:
    """Collect with the requested workers; the folder gets its manifest and card, also when it is interrupted.

    Arguments and errors are those of ``session.collect``.
    """
    workers = request.hired()
    try:
        return collect(
            tasks,
            workers,
            request.out,
            options=options,
            minutes=request.minutes,
            limit=request.limit,
            progress=progress,
        )
    finally:
        if (request.out / "devices").is_dir():
            write_card(request.out, request.target)


def write_card(folder: Path, target: str) -> None:
    """Manifest and card of what is in the folder; the card says what is missing."""
    from neusight.datasets import About, write_dataset_card

    if not any(folder.glob("*/*.parquet")):
        return
    kind = "a core of a CPU, which stands in for a GPU" if target == "cpu" else "GPUs"
    write_dataset_card(
        folder,
        About(
            title=f"Measured by neusight on {kind}",
            origin=f"neusight {neusight.__version__} collect, on the machines that the rows name",
            licence="the collector's own: state it before you pass the data on",
            known_faults=tuple(_missing(folder, target)),
        ),
    )


def _missing(folder: Path, target: str) -> Iterator[str]:
    """What a reader might expect in the folder and does not find."""
    kernels = {family: read_rows(folder, family) for family in COLLECTED_TABLES}
    rows = [row for rows_of in kernels.values() for row in rows_of]
    if target == "cpu":
        yield "A CPU is no GPU: no graph replays, no clocks or power, no kernel names; latencies are those of calls."
    if absent := [family for family, rows_of in kernels.items() if not rows_of]:
        yield f"No rows of {', '.join(absent)}."
    if target != "cpu" and rows and not any(row["power_w"] for row in rows):
        yield "No clocks, power or temperature: the package nvidia-ml-py was missing, or not allowed to read."
    if target != "cpu" and (unnamed_rows := sum(not row["kernel_name"] for row in rows)):
        yield f"{unnamed_rows:,} of {len(rows):,} rows have no kernel name: the profiler had no time, or no right."
    if not read_rows(folder, "models"):
        yield "No whole models: `neusight collect models` adds them."
