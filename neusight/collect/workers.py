"""What a worker does that measures: takes its post at a device, introduces itself, measures one task at a time."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from traceback import clear_frames
from typing import Any

from neusight.collect.tasks import SOURCE, Outcome, Task
from neusight.errors import DeviceError, NeusightError, UnmeasurableError
from neusight.workers import LocalWorker, Worker, WorkerLost

_FATAL = ("CUDA error", "HIP error", "device-side assert", "cuDNN error", "CUBLAS_STATUS_EXECUTION_FAILED")
"""After these the process cannot be trusted any more: the fault stays with its context."""


@dataclass(frozen=True, kw_only=True)
class Post:
    """Where a worker is to work: ``target`` is cuda or cpu, ``index`` the device on its host."""

    target: str
    index: int = 0
    seed: int = 0
    budget_s: float = 0.06


_POST: dict[str, Any] = {}
"""The bench of this process, once it is a worker."""


def take_post(post: Post) -> None:
    """Make this process a worker."""
    import socket

    import torch

    from neusight.collect.bench import Bench
    from neusight.collect.drafting import draft_device
    from neusight.devices import to_toml

    if post.target == "cpu":
        # Threads that wait for one another measure the scheduler of a shared machine, not the kernel.
        torch.set_num_threads(1)
    draft = draft_device(post.target, post.index)
    torch_device = "cpu" if post.target == "cpu" else f"cuda:{post.index}"
    _POST["bench"] = Bench(draft.spec, torch_device, post.seed, post.budget_s)
    _POST["introduction"] = {
        "device": to_toml(draft.spec),
        "gpu": draft.spec.id,
        "host": f"{socket.gethostname()}/{torch_device}",
        "software": _software(post.target),
    }


def introduction() -> dict[str, Any]:
    """Of this process's device and libraries, with the process's own number."""
    return {**_POST["introduction"], "pid": os.getpid()}


def perform(task: Task) -> Outcome:
    """Measure one task in this process; a fault of the kernel becomes the outcome's reason.

    Raises:
        WorkerLost: the fault has spoilt the process.
    """
    from datetime import UTC, datetime

    bench = _POST["bench"]
    row: dict[str, Any] = {**task.describe(), "gpu": bench.gpu}
    try:
        measured = _measure(task, bench)
    except UnmeasurableError as error:
        return Outcome(sample=task.sample, table=task.table, row=row, reason=str(error))
    except Exception as error:
        clear_frames(error.__traceback__)  # They hold the operands, or the model.
        _forget_memory()
        reason = _reason(error)
        if any(word in reason for word in _FATAL):
            raise WorkerLost(reason) from None
        return Outcome(sample=task.sample, table=task.table, row=row, reason=reason)
    stamp = {key: _POST["introduction"][key] for key in ("host", "software")}
    stamp |= {"source": SOURCE, "measured_on": datetime.now(UTC).date().isoformat()}
    return Outcome(sample=task.sample, table=task.table, row={**row, **measured, **stamp})


def _measure(task: Task, bench: Any) -> dict[str, Any]:
    """Measure, and once more where memory ran out: the capture of a graph cannot free what earlier graphs left."""
    try:
        return task.measure(bench)
    except Exception as error:
        if not _is_out_of_memory(error):
            raise
        clear_frames(error.__traceback__)
    _forget_memory()
    return task.measure(bench)


def _software(target: str) -> str:
    import torch

    if target == "cpu":
        return f"torch {torch.__version__}"
    platform = f"cuda {torch.version.cuda}" if torch.version.cuda else f"hip {torch.version.hip}"
    return f"torch {torch.__version__}, {platform}"


def _reason(error: Exception) -> str:
    """One line; memory that runs out has its own, whoever reports it."""
    first = next((line for line in str(error).splitlines() if line.strip()), "no message")
    if _is_out_of_memory(error):
        return f"out of memory: {first}"
    return first if isinstance(error, NeusightError) else f"{type(error).__name__}: {first}"


def _is_out_of_memory(error: Exception) -> bool:
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or "not enough memory" in str(error)


def _forget_memory() -> None:
    """Give operands back before the next task needs their room."""
    import gc

    import torch

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


def local_workers(post: Post, count: int = 0) -> list[Worker]:
    """One worker a GPU, or ``count`` of them, each with its own index; a worker on a CPU is one core.

    Raises:
        DeviceError: no such device, or fewer than ``count``.
    """
    have = device_count(post.target)
    if post.target != "cpu" and count > have:
        raise DeviceError(f"this host has {have} GPUs, not {count}: ask for fewer workers, or use --ray")
    posts = [replace(post, index=0 if post.target == "cpu" else place) for place in range(count or have)]
    return [LocalWorker(f"{each.target}:{each.index}", take_post, each) for each in posts]
