"""The order in which kernels are measured: any beginning of the plan is a balanced set.

Kinds of kernels and dtypes take turns by their weights. Within one, shapes that carry the time of the ready workloads
alternate with points that fill the space; a twentieth is measured once more later, which tells the noise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

from neusight.collect.catalogue_shapes import workload_kernels
from neusight.collect.sampling import STRATA, Stratum, points
from neusight.collect.tasks import KernelTask, identity
from neusight.devices.spec import DeviceSpec
from neusight.errors import DataError, nearest
from neusight.kernels import Kernel, KernelBatch
from neusight.kernels.work import work_of

DTYPE_WEIGHTS = {"bfloat16": 1.0, "float32": 0.7, "float16": 0.5, "tf32": 0.5, "float8": 0.5}
REPEAT_EVERY = 20
REPEAT_AFTER = 10
"""A kernel is measured again when this many others have come in between."""
TRIES = 4096
"""Points that a kind of kernel may lose in a row to the limits of the device before it is given up."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one kernel may ask of the device."""

    bytes: float
    seconds: float

    def allow(self, kernel: Kernel, device: DeviceSpec) -> bool:
        """Whether the kernel fits, by its compulsory bytes and the time that the datasheet's peaks allow."""
        work = work_of(KernelBatch.of([kernel]))
        size, flops = float(work.bytes[0]), float(work.least_flops[0])
        seconds = max(flops / device.gemm_flops_per_s(kernel.dtype), size / device.dram_bandwidth_bytes_per_s)
        return size <= self.bytes and seconds <= self.seconds


def usual_limits(device: DeviceSpec, on_gpu: bool) -> Limits:
    """A sixteenth of the memory and 20 ms of a GPU; 64 MB and 10 ms of a host, which stands in for one."""
    if on_gpu:
        return Limits(bytes=device.dram_capacity_bytes / 16, seconds=0.02)
    return Limits(bytes=64e6, seconds=0.01)


def plan(
    device: DeviceSpec, families: Sequence[str], dtypes: Sequence[str], seed: int, limits: Limits
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
    chosen = _chosen(device, families, dtypes)
    known = {dtype: workload_kernels(device, dtype) for dtype in {d for _, d in chosen}}
    turns = [_Turn(s, d, device, seed, limits, known[d].get(s.name, ())) for s, d in chosen]
    if not turns:
        raise DataError(f"{device.id} has none of these dtypes for these families: ask for others")
    return _with_repeats(_interleaved(turns))


def check_names(families: Sequence[str], dtypes: Sequence[str], others: Sequence[str] = ()) -> None:
    """Refuse names that no plan knows; ``others`` are families that are measured without one.

    Raises:
        DataError: with the nearest name.
    """
    known = [*sorted({s.family for s in STRATA}), *others]
    for what, asked, options in (("kernel family", families, known), ("dtype", dtypes, list(DTYPE_WEIGHTS))):
        if unknown := [name for name in asked if name not in options]:
            raise DataError(f"no {what} '{unknown[0]}': one of {', '.join(options)}{nearest(unknown[0], options)}")


def _chosen(device: DeviceSpec, families: Sequence[str], dtypes: Sequence[str]) -> list[tuple[Stratum, str]]:
    check_names(families, dtypes)
    able = {*device.matrix_flops_per_s, *device.vector_flops_per_s}
    return [
        (stratum, dtype)
        for stratum in STRATA
        for dtype in stratum.dtypes
        if (not families or stratum.family in families) and (not dtypes or dtype in dtypes) and dtype in able
    ]


class _Turn:
    """The kernels of one kind and dtype, workload shapes and sampled ones in turn."""

    def __init__(
        self,
        stratum: Stratum,
        dtype: str,
        device: DeviceSpec,
        seed: int,
        limits: Limits,
        from_workloads: Sequence[Kernel],
    ) -> None:
        self.stratum, self.dtype, self.device, self.limits = stratum, dtype, device, limits
        self.weight = stratum.weight * DTYPE_WEIGHTS[dtype]
        own_seed = int(identity(stratum.name, dtype, seed), 16) % 2**32
        self.points = points(stratum.axes, own_seed)
        self.known = deque(kernel for kernel in from_workloads if self._fits(kernel))
        self.from_workload = True

    def next(self) -> KernelTask | None:
        """The next kernel; None when the device's limits leave no more."""
        self.from_workload = not self.from_workload
        if not self.from_workload and self.known:
            return KernelTask(kernel=self.known.popleft(), split="test")
        for _ in range(TRIES):
            kernel = self.stratum.make(next(self.points), self.dtype)
            if kernel is not None and self._fits(kernel):
                return KernelTask(kernel=kernel, split="train")
        return None

    def _fits(self, kernel: Kernel) -> bool:
        return self.limits.allow(kernel, self.device)


def _interleaved(turns: list[_Turn]) -> Iterator[KernelTask]:
    """Who has had the least for its weight is next; a kernel that came before is not given again."""
    seen: set[str] = set()
    waiting = [(0.5 / turn.weight, place) for place, turn in enumerate(turns)]
    heapify(waiting)
    while waiting:
        due, place = waiting[0]
        task = turns[place].next()
        while task is not None and task.sample in seen:
            task = turns[place].next()
        if task is None:
            waiting = waiting[1:]
            heapify(waiting)
            continue
        heapreplace(waiting, (due + 1.0 / turns[place].weight, place))
        seen.add(task.sample)
        yield task


def _with_repeats(tasks: Iterator[KernelTask]) -> Iterator[KernelTask]:
    recent: deque[KernelTask] = deque(maxlen=REPEAT_AFTER)
    for number, task in enumerate(tasks, start=1):
        yield task
        recent.append(task)
        if number % REPEAT_EVERY == 0 and len(recent) == REPEAT_AFTER:
            earlier = recent[0]
            yield KernelTask(kernel=earlier.kernel, split=earlier.split, repeat=1)
