"""What a user asks of a collection, and the data set that comes of it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import neusight
from neusight.collect.names import SHARE, join_names, unnamed
from neusight.collect.plan import check_names, plan, usual_limits
from neusight.collect.session import Progress, Report, collect
from neusight.collect.tasks import Task
from neusight.collect.workers import Worker, local_workers
from neusight.devices.read import read_table
from neusight.errors import DataError

TARGETS = ("cuda", "cpu")


@dataclass(frozen=True, kw_only=True)
class Request:
    """Which devices to measure, for how long, into which folder. ``ray`` is the address of a cluster, '' none."""

    out: Path
    target: str = "cuda"
    minutes: float = 20.0
    limit: int | None = None
    workers: int = 0
    ray: str | None = None
    seed: int = 0
    budget_s: float = 0.06

    def hired(self) -> Sequence[Worker]:
        """The workers, each with its device.

        Raises:
            DataError: an impossible request. DeviceError: no such device.
        """
        if self.target not in TARGETS:
            raise DataError(f"no device '{self.target}': one of {', '.join(TARGETS)}")
        if not self.minutes > 0:
            raise DataError(f"{self.minutes:g} minutes are no time: give a positive number")
        if self.ray is None:
            return local_workers(self.target, self.workers, self.seed, self.budget_s)
        from neusight.collect.ray_workers import ray_workers

        return ray_workers(self.ray, self.target, self.workers, self.seed, self.budget_s)


def collect_kernels(
    request: Request, families: Sequence[str] = (), dtypes: Sequence[str] = (), progress: Progress | None = None
) -> Report:
    """Measure kernels of the devices at hand and leave a data set with its card.

    Args:
        request: where, how long, into which folder.
        families, dtypes: what to measure; empty for all.
        progress: called after every kernel.

    Raises:
        DataError: an unknown family or dtype, or a folder that is not to be used. DeviceError: no such device.
    """
    check_names(families, dtypes)
    asked = {"target": request.target, "families": list(families), "dtypes": list(dtypes), "seed": request.seed}

    def tasks(device: str) -> Iterable[Task]:
        spec = read_table(tomllib.loads(device), "the drafted device")
        return plan(spec, families, dtypes, request.seed, usual_limits(spec, request.target != "cpu"))

    timing = replace(request, minutes=request.minutes * (1.0 - SHARE)) if request.target != "cpu" else request
    report = run(timing, {"kernels": asked}, tasks, progress)
    if request.target != "cpu":
        _take_names(replace(request, minutes=request.minutes * SHARE, limit=None), progress)
    return report


def _take_names(request: Request, progress: Progress | None) -> None:
    """Profile what was timed, in new processes, and write the names into the rows."""
    run(request, {}, lambda _: unnamed(request.out), progress)
    join_names(request.out)
    write_card(request.out, request.target)


def run(
    request: Request,
    asked: Mapping[str, Mapping[str, Any]],
    tasks: Callable[[str], Iterable[Task]],
    progress: Progress | None,
) -> Report:
    """Collect with the requested workers; the folder gets its manifest and card, also when it is interrupted.

    Arguments and errors are those of ``session.collect``.
    """
    workers = request.hired()
    try:
        return collect(tasks, workers, request.out, asked, request.minutes, request.limit, progress)
    finally:
        if (request.out / "devices").is_dir():
            write_card(request.out, request.target)


def write_card(folder: Path, target: str) -> None:
    """Manifest and card of what is in the folder."""
    from neusight.datasets import About, write_dataset_card

    kind = "a CPU as a stand-in for a GPU" if target == "cpu" else "GPUs"
    if not any(folder.glob("*/*.parquet")):
        return
    write_dataset_card(
        folder,
        About(
            title=f"Measured by neusight on {kind}",
            origin=f"neusight {neusight.__version__} collect, on the machines that the rows name",
            licence="the collector's own: state it before you pass the data on",
        ),
    )
