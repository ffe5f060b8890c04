"""What the system says of the CPU, and what two short measurements add: the clock and the memory's bandwidth.

A virtual machine tells neither, and a container may hide the rest: every figure can be missing.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

PRODUCTS = (512, 1024)
"""Extents of the square float32 products that the probe times."""
COPY_MIB = 256
"""Several times the last-level cache of most processors."""


@dataclass(frozen=True, kw_only=True)
class CpuReadings:
    """What the system reports, SI; None where it does not say. ``cores`` are physical ones that this process may use,
    ``last_cache_bytes`` all last-level caches that they reach.
    """

    model: str
    flags: frozenset[str] = frozenset()
    vendor: str = ""
    family: int = 0
    cores: int = 1
    clock_hz: float | None = None
    memory_bytes: int | None = None
    l1_bytes: int | None = None
    l2_bytes: int | None = None
    last_cache_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class CpuProbe:
    """What PyTorch reached: float32 products on all its threads and on a single one, traffic to memory, a launch.

    A single thread finds a free core on a busy machine. ``traffic`` names the faster of a copy and a sum.
    """

    threads: int
    flops_per_s: float
    thread_flops_per_s: float
    bytes_per_s: float
    traffic: str
    launch_s: float


def read_cpu(root: Path = Path("/")) -> CpuReadings:
    """Read the CPU from /proc and /sys below ``root``, as far as they are there."""
    cpus = _allowed()
    said = _cpuinfo(root)
    caches = _caches(root, cpus)
    top = max((level for level, _ in caches), default=0)
    shared = sum(sum(groups.values()) for (level, kind), groups in caches.items() if level == top)
    return CpuReadings(
        model=said.get("model name") or platform.processor() or platform.machine() or "unknown",
        flags=frozenset((said.get("flags") or said.get("Features") or "").split()),
        vendor=said.get("vendor_id", ""),
        family=int(said.get("cpu family", 0)),
        cores=_physical_cores(root, cpus),
        clock_hz=_clock_hz(root, said),
        memory_bytes=_memory_bytes(root),
        l1_bytes=_one(caches, 1),
        l2_bytes=_one(caches, 2),
        last_cache_bytes=shared or None,
    )


def probe_cpu() -> CpuProbe:
    """Time matrix products, a copy, a sum and a tiny addition, best of repeats: about two seconds."""
    import torch

    traffic, bytes_per_s = _traffic()
    one = torch.ones(1)
    return CpuProbe(
        threads=torch.get_num_threads(),
        flops_per_s=_product_flops_per_s(torch.get_num_threads()),
        thread_flops_per_s=_product_flops_per_s(1),
        bytes_per_s=bytes_per_s,
        traffic=traffic,
        launch_s=_best_s(lambda: torch.add(one, one, out=one), seconds=0.02),
    )


def _product_flops_per_s(threads: int) -> float:
    """The best of the square products, on so many threads."""
    import torch

    usual = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        factors = [torch.ones(extent, extent) for extent in PRODUCTS]
        return max(2.0 * len(x) ** 3 / _best_s(partial(torch.mm, x, x)) for x in factors)
    finally:
        torch.set_num_threads(usual)


def _traffic() -> tuple[str, float]:
    """The faster of copying and summing ``COPY_MIB``: its name and bytes/s, read and written."""
    import torch

    source = torch.ones(COPY_MIB * 2**18)
    target, size = torch.ones_like(source), COPY_MIB * 2.0**20
    rates = {
        "copy": 2.0 * size / _best_s(lambda: target.copy_(source)),
        "sum": size / _best_s(source.sum),
    }
    return max(rates.items(), key=lambda pair: pair[1])


def _best_s(call: Callable[[], object], seconds: float = 0.2) -> float:
    """Shortest of the calls that fit into ``seconds``, at least three, after one to warm up."""
    call()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)


def _allowed() -> list[int]:
    """Logical processors that this process may use; all where the system has no affinity."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _cpuinfo(root: Path) -> dict[str, str]:
    """The first processor of /proc/cpuinfo."""
    first = _text(root / "proc/cpuinfo").strip().split("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _physical_cores(root: Path, cpus: list[int]) -> int:
    """Hardware threads of one core name the same siblings; each counts by itself where the system does not say."""
    said = (_text(_cpu(root, cpu) / "topology/thread_siblings_list") for cpu in cpus)
    return len({siblings or f"alone {cpu}" for cpu, siblings in zip(cpus, said, strict=True)})


def _clock_hz(root: Path, said: dict[str, str]) -> float | None:
    """The highest clock if the kernel knows it, else the current or nominal one, which is all that a guest sees."""
    highest = _text(_cpu(root, 0) / "cpufreq/cpuinfo_max_freq")
    if highest.isdigit():
        return float(highest) * 1e3
    return float(said["cpu MHz"]) * 1e6 if "cpu MHz" in said else None


def _memory_bytes(root: Path) -> int | None:
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _caches(root: Path, cpus: list[int]) -> dict[tuple[int, str], dict[str, int]]:
    """Bytes of each cache, by level and type and then by the processors that share it; none for instructions."""
    found: dict[tuple[int, str], dict[str, int]] = {}
    for cpu in cpus:
        for index in sorted((_cpu(root, cpu) / "cache").glob("index*")):
            level, kind, size = (_text(index / name) for name in ("level", "type", "size"))
            if kind != "Instruction" and level.isdigit() and size[:-1].isdigit():
                owners = _text(index / "shared_cpu_list") or str(cpu)
                found.setdefault((int(level), kind), {})[owners] = int(size[:-1]) * {"K": 2**10, "M": 2**20}[size[-1]]
    return found


def _one(caches: dict[tuple[int, str], dict[str, int]], level: int) -> int | None:
    """Bytes of a single cache of a level."""
    return next((size for (at, _), groups in caches.items() if at == level for size in groups.values()), None)


def _cpu(root: Path, cpu: int) -> Path:
    return root / f"sys/devices/system/cpu/cpu{cpu}"


def _text(path: Path) -> str:
    """The file's text without the line's end; empty where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
