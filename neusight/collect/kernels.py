"""Collection of kernels and, on a GPU, of their names, and of collectives between several devices."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace

from neusight.collect.collectives import measure, planned
from neusight.collect.names import SHARE, join_names, unnamed
from neusight.collect.plan import check_names, plan, read_plan, usual_limits
from neusight.collect.session import Progress, Report, introduced, opened, run, write_card, write_devices
from neusight.collect.tasks import Task, identity
from neusight.collect.workers import CollectionRequest, device_count, local_workers
from neusight.devices.load import gpu_of, read_text

COLLECTIVES = "collective"


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
        spec = gpu_of(read_text(device, "the drafted device"))
        return planned or plan(spec, families, dtypes, request.seed, usual_limits(spec, request.target != "cpu"))

    if request.target == "cpu":
        return run(request, {"kernels": options}, tasks, progress)
    timing = replace(request, minutes=request.minutes * (1.0 - SHARE))
    report = run(timing, {"kernels": options}, tasks, progress)
    # A short plan leaves time over, and a profiler takes seconds to start.
    left = request.minutes - report.seconds / 60
    naming = replace(request, minutes=max(left, request.minutes * SHARE), limit=None)
    # In new processes: one that has profiled launches more slowly from then on.
    run(naming, {}, lambda _: unnamed(request.out), progress)
    join_names(request.out)
    write_card(request.out, request.target)
    return report


def _collectives(request: CollectionRequest) -> Report:
    """Time collectives between the devices of this host, where there are several."""
    on_gpu = request.target != "cpu"
    devices = device_count(request.target) if on_gpu else min(2, os.cpu_count() or 1)
    (worker,) = local_workers(replace(request, workers=1))
    with opened(request, {COLLECTIVES: {"target": request.target}}) as collection:
        try:
            answer = introduced(worker)
        finally:
            worker.stop()
        collection.gpus |= write_devices(request.out, [answer]).keys()
        tasks = [task for task in planned(devices, on_gpu) if task.sample not in collection.store.done]
        for outcome in measure(tasks, answer["gpu"], on_gpu):
            collection.store.add(outcome)
    return collection.report()
