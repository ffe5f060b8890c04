"""A CPU as a device file: cores stand for multiprocessors, caches for what a GPU has in their place."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from datetime import date

from neusight.collect.drafting_cpu_readings import COPY_MIB, CpuProbe, CpuReadings
from neusight.collect.drafting_sheet import ASSUMPTION, Sheet, slug
from neusight.devices import DeviceSpec

SYSTEM = "reported by the system (/proc, /sys)"
W_PER_CORE = 10.0
"""Server processors have 4 to 8 W a core, memory included: enough that no power limit binds (assumption)."""


HIGHEST_CLOCK_HZ = 6.5e9
"""No processor sold runs faster: a product that would need more has units that the flags do not tell of."""
AMX_FLOPS_PER_CLOCK = 1024
"""Of one core's tile unit in bfloat16: 16 x 16 x 32 multiply-adds in 16 clocks (assumption)."""


@dataclass(frozen=True)
class VectorUnits:
    """What one core's vector units do, and the first processors that have them.

    Attributes:
        label: of the instruction set and its width.
        flops_per_clock: float32 operations of a core; a multiply-add is two.
        lanes: float32 numbers in a register.
        since: release of the first such processors (assumption).
        process_nm: their node (assumption).
    """

    label: str
    flops_per_clock: int
    lanes: int
    since: date
    process_nm: float


_XEON = VectorUnits("AVX-512, two units of 512 bits", 64, 16, date(2017, 7, 11), 14.0)
_ZEN_5 = VectorUnits("AVX-512 of Zen 5, two units of 512 bits", 64, 16, date(2024, 10, 10), 4.0)
_ZEN_4 = VectorUnits("AVX-512 of Zen 4, two units of 256 bits that take two passes", 32, 16, date(2022, 11, 10), 5.0)
_AVX512 = VectorUnits("AVX-512, one unit of 512 bits", 32, 16, date(2019, 8, 1), 10.0)
_AVX2 = VectorUnits("AVX2, two multiply-add units of 256 bits", 32, 8, date(2013, 6, 4), 14.0)
_AVX = VectorUnits("AVX, a multiplier and an adder of 256 bits", 16, 8, date(2011, 1, 9), 32.0)
_SVE = VectorUnits("SVE, 512 bits of multiply-add units in all", 32, 4, date(2022, 5, 23), 5.0)
_NEON = VectorUnits("NEON, two multiply-add units of 128 bits", 16, 4, date(2019, 12, 3), 7.0)
_APPLE = VectorUnits("NEON of Apple's cores, four multiply-add units of 128 bits", 32, 4, date(2020, 11, 17), 5.0)
_UNKNOWN = VectorUnits("unknown vector units, taken as 128 bits", 8, 4, date(2003, 4, 22), 130.0)


def vector_units(cpu: CpuReadings) -> VectorUnits:
    """The widest multiply-add units among the flags, two or one by vendor and family."""
    flags = cpu.flags
    if "avx512f" in flags:
        if cpu.vendor == "AuthenticAMD":
            return _ZEN_4 if cpu.family <= 25 else _ZEN_5
        return _XEON if "xeon" in cpu.model.lower() else _AVX512
    if {"avx2", "fma"} <= flags:
        return _AVX2
    if not flags and cpu.model.lower().startswith(("arm", "apple")):
        return _APPLE
    return next((units for flag, units in (("avx", _AVX), ("sve", _SVE), ("asimd", _NEON)) if flag in flags), _UNKNOWN)


def cpu_spec(cpu: CpuReadings, probe: CpuProbe) -> DeviceSpec:
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
    _put_stand_ins(sheet, units)
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
    return replace(units, label=f"{units.label}, by measurement wider", flops_per_clock=wider)


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
    sheet.put(
        f"measured by neusight: {probe.traffic} of {COPY_MIB} MiB",
        dram_bandwidth_bytes_per_s=_rounded_up(probe.bytes_per_s),
    )
    sheet.put(SYSTEM, dram_capacity_bytes=cpu.memory_bytes)
    sheet.put(f"stand-in: the last-level caches, {SYSTEM}", l2_capacity_bytes=cpu.last_cache_bytes)
    sheet.put(f"stand-in: a core's level-2 cache, {SYSTEM}", shared_memory_per_sm_bytes=cpu.l2_bytes)
    sheet.put(f"stand-in: 32-bit words of a core's level-1 cache, {SYSTEM}", registers_per_sm=(cpu.l1_bytes or 0) // 4)
    sheet.put("measured by neusight: an addition of one element", launch_overhead_s=_rounded_up(probe.launch_s))
    sheet.put(
        f"{ASSUMPTION}the system does not say; 8 GiB of memory, caches of 2 MiB, 256 KiB and 32 KiB a core",
        dram_capacity_bytes=8 * 2**30,
        l2_capacity_bytes=sheet.values["sm_count"] * 2 * 2**20,
        shared_memory_per_sm_bytes=256 * 2**10,
        registers_per_sm=32 * 2**10 // 4,
    )


def _put_stand_ins(sheet: Sheet, units: VectorUnits) -> None:
    sheet.put(
        f"{ASSUMPTION}stand-in: a core works on one block of 128 threads at a time, a vector register is a warp",
        max_threads_per_sm=128,
        max_blocks_per_sm=1,
        warp_size=units.lanes,
    )
    sheet.put(
        f"{ASSUMPTION}first processors with {units.label}",
        release_date=units.since,
        process_nm=units.process_nm,
    )
    sheet.put(f"{ASSUMPTION}the system does not say which", dram_kind="DDR")
    sheet.put(f"{ASSUMPTION}{W_PER_CORE:.0f} W a core", tdp_w=W_PER_CORE * sheet.values["sm_count"])


def _rounded_up(value: float) -> float:
    """Up to three digits, so that a peak is never below what was reached."""
    digits = 2 - math.floor(math.log10(value))
    return round(math.ceil(round(value * 10.0**digits, 6)) / 10.0**digits, max(digits, 0))
