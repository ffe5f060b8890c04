"""Which kernels are measured, in what order: any beginning of a plan is a balanced set.

Kinds of kernels and dtypes take turns by their weights. Within one, shapes that carry the time of the ready workloads
alternate with points that fill the space; a twentieth is measured once more later, which tells the noise. A finite
plan, such as the kernels that calibrate a device best, may be kept in a file.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from heapq import heapify, heappop, heapreplace
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np

from neusight.collect.sampling import STRATA, Stratum, points, stratum_of
from neusight.collect.tasks import KernelTask, identity
from neusight.devices.spec import GpuSpec
from neusight.errors import DataError, nearest
from neusight.executors.gpu.predictor import KernelPredictor
from neusight.kernels import Conv2d, Gemm, Kernel, KernelBatch, group_by_family
from neusight.kernels.families import kernel_of
from neusight.kernels.work import by_distinct, work_of
from neusight.learn.calibration import calibration_plan
from neusight.paths import read_json
from neusight.workloads import Workload, list_workloads, shipped_step

DTYPE_WEIGHTS = {"bfloat16": 1.0, "float32": 0.7, "float16": 0.5, "tf32": 0.5, "float8": 0.5}
REPEAT_EVERY = 20
REPEAT_AFTER = 10
"""A kernel is measured again when this many others have come in between."""
TRIES = 4096
"""Points that a kind of kernel may lose in a row to the limits of the device before it is given up."""
CANDIDATES = 1000
"""Kernels to choose those of a calibration from: the beginning of a plan, half of it shapes of the ready workloads."""
STEPS = (("inference", 1), ("inference", 8), ("training", 2), ("training", 8))
"""Mode and batch of the ready workloads' steps whose kernels are taken."""
_TRACED_AS = {"tf32": "float32", "float8": "bfloat16", "float16": "bfloat16"}
"""Dtypes that run another's steps: float16 all of it, the others its products."""
PROTOCOL = 1
"""Version of a plan's file."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one kernel's use of the device."""

    bytes: float
    seconds: float

    def allow(self, kernel: Kernel, device: GpuSpec) -> bool:
        """True if the kernel is within the limits, by its compulsory bytes and its time at the datasheet's peaks."""
        work = work_of(KernelBatch.of([kernel]))
        size, flops = float(work.bytes[0]), float(work.least_flops[0])
        seconds = max(flops / device.gemm_flops_per_s(kernel.dtype), size / device.dram_bandwidth_bytes_per_s)
        return size <= self.bytes and seconds <= self.seconds


def usual_limits(device: GpuSpec, on_gpu: bool) -> Limits:
    """A sixteenth of the memory and 20 ms of a GPU; 64 MB and 10 ms of a host, which stands in for one."""
    if on_gpu:
        return Limits(bytes=device.dram_capacity_bytes / 16, seconds=0.02)
    return Limits(bytes=64e6, seconds=0.01)


def plan(
    device: GpuSpec, families: Sequence[str], dtypes: Sequence[str], seed: int, limits: Limits
) -> Iterator[KernelTask]:
    """Kernels in the order of measuring, without end and without doubles; the same for the same arguments.

    Args:
        device: whose rates decide which dtypes and sizes are asked of it.
        families: kernel families; empty for all.
        dtypes: element types; empty for all that the device has.
        seed: of the sampled shapes.
        limits: what a kernel may take.

    Raises:
        DataError: an unknown family or dtype, or nothing is left to measure.
    """
    chosen = _choose(device, families, dtypes)
    ready = {dtype: workload_kernels(device, dtype) for dtype in {d for _, d in chosen}}
    turns = [
        (s.weight * DTYPE_WEIGHTS[d], _turn(s, d, seed, lambda k: limits.allow(k, device), ready[d].get(s.name, ())))
        for s, d in chosen
    ]
    if not turns:
        raise DataError(f"{device.id} has none of these dtypes for these families: ask for others")
    return _with_repeats(_interleave(turns))


def check_names(families: Sequence[str], dtypes: Sequence[str], others: Sequence[str] = ()) -> None:
    """Refuse names that no plan knows; ``others`` are families that are measured without one.

    Raises:
        DataError: with the nearest name.
    """
    all_families = [*sorted({s.family for s in STRATA}), *others]
    for what, names, options in (("kernel family", families, all_families), ("dtype", dtypes, list(DTYPE_WEIGHTS))):
        if unknown := [name for name in names if name not in options]:
            raise DataError(f"no {what} '{unknown[0]}': one of {', '.join(options)}{nearest(unknown[0], options)}")


def _choose(device: GpuSpec, families: Sequence[str], dtypes: Sequence[str]) -> list[tuple[Stratum, str]]:
    check_names(families, dtypes)
    able = {*device.matrix_flops_per_s, *device.vector_flops_per_s}
    return [
        (stratum, dtype)
        for stratum in STRATA
        for dtype in stratum.dtypes
        if (not families or stratum.family in families) and (not dtypes or dtype in dtypes) and dtype in able
    ]


def _turn(
    stratum: Stratum, dtype: str, seed: int, fits: Callable[[Kernel], bool], from_workloads: Sequence[Kernel]
) -> Iterator[KernelTask]:
    """The kernels of one kind and dtype, workload shapes and sampled ones in turn, until limits leave no more."""
    fitting = filter(fits, from_workloads)
    sampled = points(stratum.axes, int(identity(stratum.name, dtype, seed), 16) % 2**32)
    while True:
        yield from (KernelTask(kernel=kernel, split="test") for kernel in islice(fitting, 1))
        made = (stratum.make(point, dtype) for point in islice(sampled, TRIES))
        kernel = next((kernel for kernel in made if kernel is not None and fits(kernel)), None)
        if kernel is None:
            return
        yield KernelTask(kernel=kernel, split="train")


def _interleave(turns: Sequence[tuple[float, Iterator[KernelTask]]]) -> Iterator[KernelTask]:
    """Merge task streams by stride scheduling: the least served for its weight is next; duplicates are dropped."""
    seen: set[str] = set()
    waiting = [(0.5 / weight, place) for place, (weight, _) in enumerate(turns)]
    heapify(waiting)
    while waiting:
        due, place = waiting[0]
        weight, tasks = turns[place]
        task = next((task for task in tasks if task.sample not in seen), None)
        if task is None:
            heappop(waiting)
            continue
        heapreplace(waiting, (due + 1.0 / weight, place))
        seen.add(task.sample)
        yield task


def _with_repeats(tasks: Iterator[KernelTask]) -> Iterator[KernelTask]:
    recent: deque[KernelTask] = deque(maxlen=REPEAT_AFTER)
    for number, task in enumerate(tasks, start=1):
        yield task
        recent.append(task)
        if number % REPEAT_EVERY == 0 and len(recent) == REPEAT_AFTER:
            yield replace(recent[0], repeat=1)


def workload_kernels(device: GpuSpec, dtype: str) -> Mapping[str, tuple[Kernel, ...]]:
    """Kernels of all ready workloads by stratum, in falling order of their share of a workload's least time."""
    shares: dict[Kernel, float] = {}
    for step in ready_steps(_TRACED_AS.get(dtype, dtype)):
        for kernel, share in _shares(step, device, dtype):
            shares[kernel] = shares.get(kernel, 0.0) + share
    strata: dict[str, list[Kernel]] = {}
    for kernel in sorted(shares, key=lambda kernel: (-shares[kernel], repr(kernel))):
        strata.setdefault(stratum_of(kernel), []).append(kernel)
    return {name: tuple(kernels) for name, kernels in strata.items()}


@cache
def ready_steps(dtype: str) -> tuple[Mapping[Kernel, int], ...]:
    """Kernels of the ready workloads' steps with how often each runs, as far as they were traced in the dtype.

    Kept for the process: several dtypes run the steps of one.
    """
    attention = "eager" if dtype == "float32" else "flash"
    steps = []
    for workload, (mode, batch) in product(list_workloads(), STEPS):
        optimizer = "adamw" if mode == "training" else "none"
        step = shipped_step(
            workload.name, mode=mode, batch=batch, dtype=dtype, attention=attention, optimizer=optimizer
        )
        if step is not None:
            steps.append(counted_kernels(step))
    return tuple(steps)


def counted_kernels(step: Workload) -> Mapping[Kernel, int]:
    """The kernels of a step with how often each runs."""
    counts: Counter[Kernel] = Counter()
    for launch in step.launches:
        counts[launch.kernel] += launch.count
    return counts


def _shares(step: Mapping[Kernel, int], device: GpuSpec, dtype: str) -> Iterator[tuple[Kernel, float]]:
    """Each kernel as it is to be measured, with its share of the step's time by the datasheet's peaks."""
    kernels = list(step)
    times_s = np.zeros(len(kernels))
    for batch, places in group_by_family(kernels):
        work = work_of(batch)
        rates = by_distinct(batch["dtype"], lambda name: device.gemm_flops_per_s(_computed_in(name, device)))
        least_s = np.maximum(work.least_flops / rates, work.bytes / device.dram_bandwidth_bytes_per_s)
        times_s[places] = least_s * [step[kernels[place]] for place in places]
    for kernel, share in zip(kernels, times_s / times_s.sum(), strict=True):
        if (converted := _in_dtype(kernel, dtype)) is not None:
            yield converted, float(share)


def _computed_in(dtype: str, device: GpuSpec) -> str:
    """Integers and what the device has no rate for count as float32: only shares of time hang on it."""
    return dtype if dtype in device.matrix_flops_per_s or dtype in device.vector_flops_per_s else "float32"


def _in_dtype(kernel: Kernel, dtype: str) -> Kernel | None:
    """The kernel itself where it has the dtype, or as it is in a step of that dtype; None for what keeps another."""
    if kernel.dtype == dtype:
        return kernel
    if kernel.dtype != _TRACED_AS.get(dtype):
        return None
    if isinstance(kernel, Gemm) and dtype == "float8":
        # The products of 8-bit floats are those of a layer's forward pass, without a bias in the epilogue.
        is_forward = kernel.op == "linear" and kernel.layout == "tn"
        return replace(kernel, dtype=dtype, bias=False) if is_forward else None
    runs = dtype == "float16" or isinstance(kernel, Gemm) or (isinstance(kernel, Conv2d) and dtype == "tf32")
    return replace(kernel, dtype=dtype) if runs else None


def chosen_tasks(
    predictor: KernelPredictor,
    device: GpuSpec,
    count: int,
    *,
    families: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    seed: int = 0,
) -> list[KernelTask]:
    """``count`` kernels to measure on a device, the most informative first; the same for the same arguments.

    Args:
        predictor: whose errors on the device are to be found.
        device: the GPU.
        count: at most ``CANDIDATES``.
        families: kernel families; empty for all.
        dtypes: element types; empty for all that the device has.
        seed: of the sampled shapes.

    Raises:
        DataError: an unknown family or dtype, or nothing to measure.
    """
    endless = plan(device, families, dtypes, seed, usual_limits(device, on_gpu=True))
    tasks = list(islice((task for task in endless if task.repeat == 0), CANDIDATES))
    places = calibration_plan(predictor, device, [task.kernel for task in tasks], count)
    return [tasks[place] for place in places]


def write_plan(path: Path, tasks: Sequence[KernelTask]) -> None:
    """Write kernels in the order of measuring as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"protocol": PROTOCOL, "kernels": [task.describe() for task in tasks]}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read_plan(path: Path) -> list[KernelTask]:
    """Read what ``write_plan`` wrote.

    Raises:
        DataError: missing, malformed, of another protocol, empty, or with a kernel that its sample does not name.
    """
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read the plan {path}: {error}; write one with neusight calibrate plan --out") from None
    protocol = content.get("protocol") if isinstance(content, dict) else None
    if protocol != PROTOCOL:
        raise DataError(f"{path}: protocol {protocol} is not {PROTOCOL}: write it again with neusight calibrate plan")
    try:
        tasks = [_task(row) for row in content["kernels"]]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} is no plan ({error}): write it again with neusight calibrate plan") from None
    if not tasks:
        raise DataError(f"{path} has no kernels: write it again with neusight calibrate plan")
    return tasks


def _task(row: dict[str, Any]) -> KernelTask:
    kernel = kernel_of(row["family"], row)
    task = KernelTask(kernel=kernel, split=row["split"], repeat=row["repeat"])
    if task.sample != row["sample"]:
        raise ValueError(f"sample {row['sample']} is another kernel")
    return task
