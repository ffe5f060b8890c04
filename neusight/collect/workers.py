"""Workers that measure: a request says on which devices; each introduces itself and measures one task at a time."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from traceback import clear_frames
from typing import Any

from neusight.collect.tasks import SOURCE, Outcome, Task
from neusight.errors import DataError, DeviceError, NeusightError
from neusight.workers import LocalWorker, Worker, WorkerLost

TARGETS = ("cuda", "cpu")
_FATAL = ("CUDA error", "HIP error", "device-side assert", "cuDNN error", "CUBLAS_STATUS_EXECUTION_FAILED")
"""After these the process cannot be trusted any more: the fault stays with its context."""


@dataclass(frozen=True, kw_only=True)
class CollectionRequest:
    """Which devices to measure, for how long, into which folder. ``limit`` counts rows and skipped samples in the set;
    ``ray`` is the address of a cluster; ``plan`` a file with the kernels to measure, in place of a collection's.
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
            return local_workers(self)
        from neusight.workers.ray_cluster import ray_workers

        return ray_workers(self.ray, self.workers, take_post, self, kind="CPU" if self.target == "cpu" else "GPU")


_POST: dict[str, Any] = {}
"""The bench of this process, once it is a worker, and its introduction."""


def take_post(request: CollectionRequest, index: int = 0) -> None:
    """Make this process a worker at a device of its host, counted from 0."""
    import socket

    import torch

    from neusight.collect.bench import Bench
    from neusight.collect.drafting import draft_device
    from neusight.devices import to_toml

    if request.target == "cpu":
        # Threads that wait for one another measure the scheduler of a shared machine, not the kernel.
        torch.set_num_threads(1)
    draft = draft_device(request.target, index)
    torch_device = "cpu" if request.target == "cpu" else f"cuda:{index}"
    _POST["bench"] = Bench(draft.spec, torch_device, request.seed, request.budget_s)
    _POST["introduction"] = {"device": to_toml(draft.spec), "gpu": draft.spec.id}
    host, software = f"{socket.gethostname()}/{torch_device}", _software(request.target)
    _POST["stamp"] = {"host": host, "software": software, "source": SOURCE}


def introduction() -> dict[str, Any]:
    """The device of this process, its id and its file."""
    return dict(_POST["introduction"])


def perform(task: Task) -> Outcome:
    """Measure one task in this process; a fault of the kernel becomes the outcome's reason.

    Raises:
        WorkerLost: the fault has spoilt the process.
    """
    from datetime import UTC, datetime

    bench = _POST["bench"]
    row: dict[str, Any] = {**task.describe(), "gpu": bench.device.id}
    try:
        measured = _measure(task, bench)
    except Exception as error:
        _forget_operands(error)
        reason = _reason(error)
        if any(word in reason for word in _FATAL):
            raise WorkerLost(reason) from None
        return Outcome(sample=task.sample, table=task.table, row=row, reason=reason)
    stamp = _POST["stamp"] | {"measured_on": datetime.now(UTC).date().isoformat()}
    return Outcome(sample=task.sample, table=task.table, row={**row, **measured, **stamp})


def _measure(task: Task, bench: Any) -> dict[str, Any]:
    """Measure, and once more where memory ran out: the capture of a graph cannot free what earlier graphs left."""
    try:
        return task.measure(bench)
    except Exception as error:
        if not _is_out_of_memory(error):
            raise
        _forget_operands(error)
    return task.measure(bench)


def _software(target: str) -> str:
    import torch

    if target == "cpu":
        return f"torch {torch.__version__}"
    platform = f"cuda {torch.version.cuda}" if torch.version.cuda else f"hip {torch.version.hip}"
    return f"torch {torch.__version__}, {platform}"


def _reason(error: Exception) -> str:
    """The reason in one line; memory that runs out has one line for all sources."""
    first = next((line for line in str(error).splitlines() if line.strip()), "no message")
    if _is_out_of_memory(error):
        return f"out of memory: {first}"
    return first if isinstance(error, NeusightError) else f"{type(error).__name__}: {first}"


def _is_out_of_memory(error: Exception) -> bool:
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or "not enough memory" in str(error)


def _forget_operands(error: Exception) -> None:
    """Give back operands, or a model, that frames of an error hold, before the next task needs their room."""
    import gc

    import torch

    clear_frames(error.__traceback__)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def device_count(target: str) -> int:
    """Devices of this host, asked in a process of its own, since asking binds a process to its devices.

    Raises:
        DeviceError: none.
    """
    if target == "cpu":
        return 1
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        count = pool.submit(_cuda_devices).result()
    if not count:
        raise DeviceError("PyTorch sees no GPU here: install a CUDA or ROCm build of it, or say --device cpu")
    return count


def _cuda_devices() -> int:
    import torch

    return torch.cuda.device_count()


def local_workers(request: CollectionRequest) -> list[Worker]:
    """One worker a GPU, or as many as are requested, each with its own index; a worker on a CPU is one core.

    Raises:
        DeviceError: no such device, or fewer than requested.
    """
    have, count = device_count(request.target), request.workers
    if request.target != "cpu" and count > have:
        raise DeviceError(f"this host has {have} GPUs, not {count}: ask for fewer workers, or use --ray")
    places = [0] * (count or have) if request.target == "cpu" else range(count or have)
    return [LocalWorker(f"{request.target}:{place}", take_post, request, place) for place in places]
