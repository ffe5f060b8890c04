"""A CPU as a device file: cores stand for multiprocessors, caches for what a GPU has in their place.

The system is read, and two short measurements add the clock and the memory's bandwidth: a virtual machine tells
neither, and a container may hide the rest, so that every figure can be missing.
"""

from __future__ import annotations

import math
import os
import platform
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from neusight.collect.drafting.sheet import ASSUMPTION, Sheet, facts, slug
from neusight.devices import GpuSpec
from neusight.devices.schema import FIGURES

PRODUCTS = (512, 1024)
"""Extents of the square float32 products that the probe times."""
COPY_MIB = 256
"""Several times the last-level cache of most processors."""
SYSTEM = "reported by the system (/proc, /sys)"
HIGHEST_CLOCK_HZ = 6.5e9
"""No processor sold runs faster: a product that would need more has units that the flags do not tell of."""
AMX_FLOPS_PER_CLOCK = 1024
"""Rate of one core's tile unit in bfloat16: 16 x 16 x 32 multiply-adds in 16 clocks (assumption)."""


@dataclass(frozen=True, kw_only=True)
class CpuReadings:
    """Figures that the system reports, SI; None where it does not. ``cores`` are physical ones that this process may
    use, ``last_cache_bytes`` all last-level caches that they reach.
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
    """Rates that PyTorch reached: float32 products on all its threads and on a single one, traffic to memory, a launch.

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
    cpus = _allowed_cores()
    processor = _pairs(root / "proc/cpuinfo")
    caches = _caches(root, cpus)
    top = max((level for level, _ in caches), default=0)
    shared = sum(sum(groups.values()) for (level, kind), groups in caches.items() if level == top)
    return CpuReadings(
        model=processor.get("model name") or platform.processor() or platform.machine() or "unknown",
        flags=frozenset((processor.get("flags") or processor.get("Features") or "").split()),
        vendor=processor.get("vendor_id", ""),
        family=int(processor.get("cpu family", 0)),
        cores=_physical_cores(root, cpus),
        clock_hz=_clock_hz(root, processor),
        memory_bytes=_memory_bytes(root),
        l1_bytes=_one(caches, 1),
        l2_bytes=_one(caches, 2),
        last_cache_bytes=shared or None,
    )


def probe_cpu() -> CpuProbe:
    """Time matrix products, a copy, a sum and a tiny addition, best of repeats: about two seconds."""
    import torch

    source, scalar, threads = torch.ones(COPY_MIB * 2**18), torch.ones(1), torch.get_num_threads()
    target, size = torch.ones_like(source), COPY_MIB * 2.0**20
    rates = {"copy": 2.0 * size / _best_s(lambda: target.copy_(source)), "sum": size / _best_s(source.sum)}
    traffic = max(rates, key=rates.__getitem__)
    return CpuProbe(
        threads=threads,
        flops_per_s=_product_flops_per_s(threads),
        thread_flops_per_s=_product_flops_per_s(1),
        bytes_per_s=rates[traffic],
        traffic=traffic,
        launch_s=_best_s(lambda: torch.add(scalar, scalar, out=scalar)),
    )


def _product_flops_per_s(threads: int) -> float:
    """The best rate of the square products, on some threads."""
    import torch

    usual = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        factors = [torch.ones(extent, extent) for extent in PRODUCTS]
        return max(2.0 * len(x) ** 3 / _best_s(partial(torch.mm, x, x)) for x in factors)
    finally:
        torch.set_num_threads(usual)


def _best_s(call: Callable[[], object]) -> float:
    """Shortest of the calls that fit into a fifth of a second, after one to warm up."""
    from neusight.collect.instruments import Stopwatch, repeated

    call()
    return min(repeated(partial(Stopwatch().once, call), budget_s=0.2))


def _allowed_cores() -> list[int]:
    """Logical processors that this process may use; all where the system has no affinity."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _pairs(path: Path) -> dict[str, str]:
    """Keys and values of the first paragraph of a file such as /proc/cpuinfo."""
    first = _text(path).split("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _physical_cores(root: Path, cpus: list[int]) -> int:
    """Hardware threads of one core name the same siblings; each counts by itself where the system does not say."""
    siblings_of = (_text(_cpu(root, cpu) / "topology/thread_siblings_list") for cpu in cpus)
    return len({siblings or f"alone {cpu}" for cpu, siblings in zip(cpus, siblings_of, strict=True)})


def _clock_hz(root: Path, processor: dict[str, str]) -> float | None:
    """The highest clock if the kernel knows it, else the current or nominal one, which is all that a guest sees."""
    highest = _text(_cpu(root, 0) / "cpufreq/cpuinfo_max_freq")
    if highest.isdigit():
        return float(highest) * 1e3
    return float(processor["cpu MHz"]) * 1e6 if "cpu MHz" in processor else None


def _memory_bytes(root: Path) -> int | None:
    if total := _pairs(root / "proc/meminfo").get("MemTotal"):
        return int(total.split()[0]) * 1024
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _caches(root: Path, cpus: list[int]) -> dict[tuple[int, str], dict[str, int]]:
    """Bytes of each cache, by level and type and then by the processors that share it; none for instructions."""
    caches: dict[tuple[int, str], dict[str, int]] = {}
    for cpu in cpus:
        for index in sorted((_cpu(root, cpu) / "cache").glob("index*")):
            level, kind, size = (_text(index / name) for name in ("level", "type", "size"))
            if kind != "Instruction" and level.isdigit() and size[:-1].isdigit():
                owners = _text(index / "shared_cpu_list") or str(cpu)
                caches.setdefault((int(level), kind), {})[owners] = int(size[:-1]) * {"K": 2**10, "M": 2**20}[size[-1]]
    return caches


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


class VectorUnits(NamedTuple):
    """Vector units of one core, as ``facts.toml`` lists them."""

    label: str
    flops_per_clock: int
    lanes: int
    since: date
    process_nm: float
    when: Mapping[str, Any]


def vector_units(cpu: CpuReadings) -> VectorUnits:
    """The first of the listed units whose conditions the CPU meets."""
    return next(VectorUnits(**row) for row in facts()["vector_units"] if _meets(cpu, **row["when"]))


def _meets(
    cpu: CpuReadings, *, flags: Sequence[str] = (), vendor: str = "", family: int = sys.maxsize, model: str = "",
    without_flags: bool = False,
) -> bool:  # fmt: skip
    fits = cpu.flags.issuperset(flags) and vendor in ("", cpu.vendor) and cpu.family <= family
    return fits and re.match(model, cpu.model.lower()) is not None and not (without_flags and cpu.flags)


def cpu_spec(cpu: CpuReadings, probe: CpuProbe) -> GpuSpec:
    """Draft the device file of the CPU as PyTorch uses it: its threads, on a core each.

    Args:
        cpu: what the system reports.
        probe: what PyTorch reached; no peak of the file lies below.

    Raises:
        DeviceError: a figure that cannot be.
    """
    cores = min(cpu.cores, probe.threads)
    core_flops_per_s = max(probe.thread_flops_per_s, probe.flops_per_s / cores)
    units = _wide_enough(vector_units(cpu), core_flops_per_s)
    sheet = Sheet()
    sheet.put("threads of PyTorch, on a physical core each", sm_count=cores)
    _put_clocks(sheet, cpu.clock_hz, core_flops_per_s, units)
    _put_rates(sheet, cpu.flags, units)
    _put_memory(sheet, cpu, probe)
    _put_assumptions(sheet, units)
    return sheet.spec(
        id=f"cpu-{_short(cpu.model)}-{cores}c",
        name=f"{cpu.model}, {cores} cores" if cores > 1 else f"{cpu.model}, 1 core",
        vendor="other",
        architecture=units.label,
        notes="A CPU in the place of a GPU: cores are multiprocessors. Figures depend on the machine's load.",
    )


def _short(model: str) -> str:
    """``Intel(R) Xeon(R) CPU @ 2.20GHz`` gives ``intel-xeon``."""
    return slug(re.sub(r"\((R|TM)\)|@.*|\d+-Core|\b(CPU|Processor)\b", " ", model, flags=re.IGNORECASE))


def _wide_enough(units: VectorUnits, core_flops_per_s: float) -> VectorUnits:
    """The units, doubled as often as it takes to reach the probe's rate at a clock that can be."""
    least = core_flops_per_s / HIGHEST_CLOCK_HZ / units.flops_per_clock
    if least <= 1.0:
        return units
    wider = units.flops_per_clock * 2 ** math.ceil(math.log2(least))
    return units._replace(label=f"{units.label}, by measurement wider", flops_per_clock=wider)


def _put_clocks(sheet: Sheet, clock_hz: float | None, core_flops_per_s: float, units: VectorUnits) -> None:
    """The reported clock, or that at which the probe's products would have run at peak, if that is higher."""
    reached_hz = _rounded_up(core_flops_per_s / units.flops_per_clock)
    reported_hz = round(clock_hz or 0.0, -6)
    if reached_hz > reported_hz:
        reported = f"{reported_hz / 1e6:.0f} MHz are" if reported_hz else "no clock is"
        product = f"float32 products reached {core_flops_per_s / 1e9:.1f} GFLOP/s a core"
        sheet.put(f"measured by neusight: {product}, this clock's peak; {reported} reported", boost_clock_hz=reached_hz)
        sheet.put(SYSTEM, base_clock_hz=reported_hz)
    sheet.put(SYSTEM, boost_clock_hz=reported_hz)
    sheet.put(f"{ASSUMPTION}as boost clock; the system does not say", base_clock_hz=sheet.values["boost_clock_hz"])


def _put_rates(sheet: Sheet, flags: frozenset[str], units: VectorUnits) -> None:
    """Rates at boost clock; bfloat16 without instructions of its own is computed in float32."""
    clocks_per_s = sheet.values["sm_count"] * sheet.values["boost_clock_hz"]
    single = units.flops_per_clock * clocks_per_s
    what = f"{units.flops_per_clock} float32 operations a clock and core ({units.label}), float64 half of them, "
    what += "bfloat16 the same"
    vector = {"float64": single / 2, "float32": single, "bfloat16": single}
    # PyTorch multiplies float16 value by value where there are no instructions for it: a hundred times slower.
    if flags & {"avx512_fp16", "asimdhp"}:
        what, vector = f"{what}, float16 twice", {**vector, "float16": 2.0 * single}
    sheet.put(f"{ASSUMPTION}{what}", vector_flops_per_s=vector)
    if "amx_bf16" in flags:
        dtypes = ("float16", "bfloat16") if "amx_fp16" in flags else ("bfloat16",)
        matrix = dict.fromkeys(dtypes, AMX_FLOPS_PER_CLOCK * clocks_per_s)
        sheet.put(f"{ASSUMPTION}{AMX_FLOPS_PER_CLOCK} operations a clock and core (AMX)", matrix_flops_per_s=matrix)
    for flag, gain in (("avx512_bf16", 2.0), ("bf16", 4.0)):
        if flag in flags:
            what = f"instructions {flag} multiply at {gain:.0f} times the float32 rate"
            sheet.put(f"{ASSUMPTION}{what}", matrix_flops_per_s={"bfloat16": gain * single})


def _put_memory(sheet: Sheet, cpu: CpuReadings, probe: CpuProbe) -> None:
    # On a machine that others keep busy a copy may come out below what a device file takes for a slip of unit.
    bytes_per_s = max(_rounded_up(probe.bytes_per_s), FIGURES["dram_bandwidth"].low)
    sheet.put(f"measured by neusight: {probe.traffic} of {COPY_MIB} MiB", dram_bandwidth_bytes_per_s=bytes_per_s)
    sheet.put(SYSTEM, dram_capacity_bytes=cpu.memory_bytes)
    sheet.put(f"stand-in: the last-level caches, {SYSTEM}", l2_capacity_bytes=cpu.last_cache_bytes)
    sheet.put(f"stand-in: a core's level-2 cache, {SYSTEM}", shared_memory_per_sm_bytes=cpu.l2_bytes)
    sheet.put(f"stand-in: 32-bit words of a core's level-1 cache, {SYSTEM}", registers_per_sm=(cpu.l1_bytes or 0) // 4)
    sheet.put("measured by neusight: an addition of one element", launch_overhead_s=_rounded_up(probe.launch_s))


def _put_assumptions(sheet: Sheet, units: VectorUnits) -> None:
    """Fill what is still missing by ``facts.toml``, and what follows from the vector units."""
    for row in facts()["cpu"]:
        per_core = {name: value * sheet.values["sm_count"] for name, value in row.get("per_core", {}).items()}
        sheet.put(f"{ASSUMPTION}{row['source']}", **row.get("figures", {}), **per_core)
    sheet.put(f"{ASSUMPTION}stand-in: a vector register is a warp", warp_size=units.lanes)
    first = f"{ASSUMPTION}first processors with {units.label}"
    sheet.put(first, release_date=units.since, process_nm=units.process_nm)


def _rounded_up(value: float) -> float:
    """Up to three digits, so that a peak is never below what was reached."""
    digits = 2 - math.floor(math.log10(value))
    return round(math.ceil(round(value * 10.0**digits, 6)) / 10.0**digits, max(digits, 0))
