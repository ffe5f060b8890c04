"""Collectives over several devices of a host: NCCL (RCCL) on GPUs, Gloo between the cores of a stand-in.

Sizes follow nccl-tests: ``bytes`` is the larger of what a rank puts in and what it gets out, so that for an all-gather
it is the gathered whole and for a reduce-scatter what is to be scattered.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from neusight.collect.tasks import SOURCE, KernelTask, Outcome, identity
from neusight.kernels import DTYPE_BYTES, Collective

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
SIZES = tuple(2**exponent for exponent in range(10, 31, 2))
HOST_SIZES = SIZES[:7]
ROUNDS = 5
ROUND_S = 0.02
"""One round repeats the collective for about this long; the row is the median of the rounds."""


@dataclass(frozen=True, kw_only=True)
class CollectiveTask(KernelTask):
    """One collective of several ranks of a host."""

    kernel: Collective
    split: str = "train"

    @property
    def sample(self) -> str:
        """Identity by all fields."""
        return identity("collective", asdict(self.kernel))


def planned(devices: int, on_gpu: bool) -> list[CollectiveTask]:
    """Tasks over powers of two of the devices, smaller messages first."""
    ranks = [2**i for i in range(1, devices.bit_length()) if 2**i <= devices]
    sizes, dtype = (SIZES, "bfloat16") if on_gpu else (HOST_SIZES, "float32")
    return [
        CollectiveTask(kernel=Collective(op=op, ranks=n, bytes=size, dtype=dtype))
        for size, n, op in product(sizes, ranks, OPS)
    ]


def measure(tasks: list[CollectiveTask], gpu: str, on_gpu: bool) -> Iterator[Outcome]:
    """Run the collectives, those of equal rank count together, and yield a row each.

    Raises:
        RuntimeError: the ranks could not meet, or one of them failed.
    """
    import torch
    from torch import multiprocessing

    library = f"nccl {'.'.join(map(str, torch.cuda.nccl.version()))}" if on_gpu else "gloo"
    stamp = {"gpu": gpu, "source": SOURCE, "software": f"torch {torch.__version__}, {library}"}
    for count in sorted({task.kernel.ranks for task in tasks}):
        chosen = [task for task in tasks if task.kernel.ranks == count]
        with tempfile.TemporaryDirectory() as folder:
            multiprocessing.spawn(_rank, (count, chosen, folder, on_gpu), nprocs=count)
            times = torch.load(Path(folder, "times.pt"), weights_only=True)
        for task, latency_s in zip(chosen, times.tolist(), strict=True):
            row = {**task.describe(), **stamp, "latency_ms": 1e3 * latency_s}
            yield Outcome(sample=task.sample, table="collective", row=row)


def _rank(rank: int, count: int, tasks: list[CollectiveTask], folder: str, on_gpu: bool) -> None:
    """One process: every rank times alike, the first writes."""
    import warnings

    import torch
    from torch import distributed

    # Newer releases of PyTorch rename the collectives on one tensor; the old names work in all of them.
    warnings.simplefilter("ignore", FutureWarning)
    if on_gpu:
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = f"file://{folder}/meeting"
    distributed.init_process_group("nccl" if on_gpu else "gloo", init_method=store, rank=rank, world_size=count)
    try:
        times = torch.tensor([_time(_call(task, on_gpu), on_gpu) for task in tasks], dtype=torch.float64)
    finally:
        distributed.destroy_process_group()
    if rank == 0:
        torch.save(times, Path(folder, "times.pt"))


def _call(task: CollectiveTask, on_gpu: bool) -> Callable[[], Any]:
    """The collective on random buffers."""
    import torch
    from torch import distributed

    from neusight.collect.launches import OperandSource

    kernel = task.kernel
    size = max(1, kernel.bytes // DTYPE_BYTES[kernel.dtype] // kernel.ranks)
    whole = OperandSource("cuda" if on_gpu else "cpu").normal(size * kernel.ranks, dtype=kernel.dtype)
    part, other = torch.empty_like(whole[:size]), torch.empty_like(whole if kernel.op == "all_to_all" else whole[:0])
    calls = {
        "all_reduce": lambda: distributed.all_reduce(whole),
        "all_gather": lambda: distributed.all_gather_into_tensor(whole, part),
        "all_to_all": lambda: distributed.all_to_all_single(other, whole),
        "reduce_scatter": lambda: distributed.reduce_scatter_tensor(part, whole),
    }
    return calls[kernel.op]


def _time(call: Callable[[], Any], on_gpu: bool) -> float:
    """Seconds a call; all ranks repeat equally often, as the slowest of them needs."""
    import torch
    from torch import distributed

    from neusight.collect.instruments import stopwatch

    watch = stopwatch("cuda" if on_gpu else "cpu", 1.0)
    call()
    once = torch.tensor([watch.once(call)], device="cuda" if on_gpu else "cpu")
    distributed.all_reduce(once, distributed.ReduceOp.MAX)
    repeats = int(min(200, max(2, ROUND_S / float(once))))

    def several() -> None:
        for _ in range(repeats):
            call()

    rounds = []
    for _ in range(ROUNDS):
        distributed.barrier()
        rounds.append(watch.once(several) / repeats)
    return sorted(rounds)[ROUNDS // 2]
