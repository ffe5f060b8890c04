"""From what a GPU's driver reports to its device file; what no driver says is taken from a device of its kind."""

from __future__ import annotations

from collections.abc import Mapping

from neusight.collect.drafting_architectures import (
    Architecture,
    architecture_of,
    is_geforce,
    like_of,
    matrix_rates,
)
from neusight.collect.drafting_gpu_readings import GpuReadings
from neusight.collect.drafting_sheet import ASSUMPTION, Sheet, slug
from neusight.devices import DeviceSpec, Link, load_device
from neusight.devices.schema import DTYPES

DRIVER = "reported by the driver through PyTorch or NVML"
L2_PER_DIE_BYTES = 4 * 2**20
"""Of one compute die of CDNA 3 and 4 (AMD's architecture whitepapers)."""

_LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.984375e9, 4: 1.96875e9, 5: 3.9375e9, 6: 7.875e9}
"""PCIe by generation, one direction; sixteen lanes as the catalogue rounds them."""
_NVLINK_BYTES_PER_S = {
    **{"1.0": 20e9, "2.0": 25e9, "2.2": 25e9, "3.0": 25e9},
    **{"3.1": 14.0625e9, "4.0": 25e9, "5.0": 50e9},
}
"""One link, one direction, by generation: what the catalogue's bandwidths are multiples of."""


def gpu_spec(readings: GpuReadings) -> DeviceSpec:
    """Draft the device file of a GPU.

    Args:
        readings: of its driver.

    Returns:
        Figures with their sources; those that begin with ``assumption`` are not of this device.

    Raises:
        DeviceError: a figure that cannot be.
    """
    architecture = architecture_of(readings.capability)
    like = load_device(like_of(architecture, readings.name))
    known = architecture.capability == readings.capability
    sheet = Sheet()
    _put_driver(sheet, readings, architecture)
    _put_like(sheet, like, known)
    _put_rates(sheet, architecture, readings.name, like, known)
    return sheet.spec(
        id=slug(readings.name),
        name=readings.name,
        vendor=like.vendor,
        architecture=like.architecture if known else f"{readings.capability}, taken as {like.architecture}",
        notes=_notes(readings, like, known),
    )


def _put_driver(sheet: Sheet, readings: GpuReadings, architecture: Architecture) -> None:
    sheet.put(
        DRIVER,
        compute_capability=readings.capability,
        sm_count=readings.sm_count,
        boost_clock_hz=readings.clock_hz,
        dram_capacity_bytes=readings.memory_bytes,
        l2_capacity_bytes=_l2_bytes(readings, architecture),
        shared_memory_per_sm_bytes=readings.shared_memory_per_sm_bytes,
        registers_per_sm=readings.registers_per_sm,
        max_threads_per_sm=readings.max_threads_per_sm,
        warp_size=readings.warp_size,
        tdp_w=readings.power_limit_w,
        links=_links(readings),
    )
    transfers = architecture.transfers_per_clock
    bus_bytes = (readings.memory_bus_bits or 0) / 8
    sheet.put(
        f"derived: {transfers} transfers a clock on the memory bus, whose clock and width the driver reports",
        dram_bandwidth_bytes_per_s=transfers * (readings.memory_clock_hz or 0.0) * bus_bytes,
    )


def _l2_bytes(readings: GpuReadings, architecture: Architecture) -> float | None:
    """L2 of all dies; some versions of ROCm report that of a single one."""
    if not readings.l2_bytes or not architecture.sms_per_die:
        return readings.l2_bytes
    dies = max(1, round(readings.sm_count / architecture.sms_per_die))
    return max(readings.l2_bytes, dies * L2_PER_DIE_BYTES)


def _links(readings: GpuReadings) -> tuple[Link, ...]:
    links = []
    if readings.nvlinks and (version := readings.nvlink_version) in _NVLINK_BYTES_PER_S:
        bandwidth = readings.nvlinks * _NVLINK_BYTES_PER_S[version]
        links.append(Link(kind="nvlink", generation=version, bandwidth_bytes_per_s=bandwidth))
    if readings.pcie_lanes and (lane := _LANE_BYTES_PER_S.get(readings.pcie_generation or 0)):
        generation = f"{readings.pcie_generation}.0 x{readings.pcie_lanes}"
        links.append(Link(kind="pcie", generation=generation, bandwidth_bytes_per_s=readings.pcie_lanes * lane))
    return tuple(links)


def _put_like(sheet: Sheet, like: DeviceSpec, known: bool) -> None:
    """Fill what is still missing with the figures of ``like``."""
    fields = (
        *("boost_clock_hz", "release_date", "process_nm", "dram_kind", "dram_bandwidth_bytes_per_s", "tdp_w"),
        *("l2_capacity_bytes", "shared_memory_per_sm_bytes", "registers_per_sm", "max_threads_per_sm", "warp_size"),
        *("launch_overhead_s", "links"),
    )
    as_like = f"{ASSUMPTION}as {like.name}; the driver does not say"
    sheet.put(as_like, **{field: getattr(like, field) for field in fields})
    blocks = like.sources["max_blocks_per_sm"] if known else as_like
    sheet.put(blocks, max_blocks_per_sm=like.max_blocks_per_sm)
    share = like.base_clock_hz / like.boost_clock_hz
    base_hz = round(share * sheet.values["boost_clock_hz"], -6)
    sheet.put(f"{ASSUMPTION}the share of boost clock of {like.name}; the driver does not say", base_clock_hz=base_hz)


def _put_rates(sheet: Sheet, architecture: Architecture, name: str, like: DeviceSpec, known: bool) -> None:
    clocks_per_s = sheet.values["sm_count"] * sheet.values["boost_clock_hz"]

    def at_boost(rates: Mapping[str, float]) -> dict[str, float]:
        return {dtype: rates[dtype] * clocks_per_s for dtype in DTYPES if dtype in rates}

    what = f"operations a clock and multiprocessor of {like.name}, at this device's boost clock"
    sheet.put(
        f"derived: {what}" if known else f"{ASSUMPTION}{what}",
        matrix_flops_per_s=at_boost(matrix_rates(architecture, name)),
        vector_flops_per_s=at_boost(architecture.vector),
    )


def _notes(readings: GpuReadings, like: DeviceSpec, known: bool) -> str:
    notes = ["Drafted from what the driver reports; not compared with a datasheet."]
    if not known:
        capability = "architecture" if readings.capability.startswith("gfx") else "compute capability"
        notes.append(f"The {capability} {readings.capability} is not known: taken as {like.compute_capability}.")
    if is_geforce(readings.name) and like.matrix_flops_per_s:
        notes.append("The float16 and float8 matrix rates are those with float32 accumulation.")
    return " ".join(notes)
