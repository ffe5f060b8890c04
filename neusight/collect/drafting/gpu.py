"""A GPU's device file from what its driver reports; what no driver says is taken from a device of its kind.

The one place that asks torch.cuda and NVML for a device's figures. Operations a clock and multiprocessor are those
behind the published rates of a catalogued device of the same architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

from neusight.collect.drafting.sheet import ASSUMPTION, Sheet, facts, slug
from neusight.devices import GpuSpec, Link, load_gpu
from neusight.errors import DeviceError

DRIVER = "reported by the driver through PyTorch or NVML"
L2_PER_DIE_BYTES = 4 * 2**20
"""L2 of one compute die of CDNA 3 and 4 (AMD's architecture whitepapers)."""


class Kin(NamedTuple):
    """Catalogued relatives of a compute capability or GCN architecture, see ``facts.toml``."""

    like: str
    geforce: str = ""
    transfers_per_clock: int = 2
    sms_per_die: int = 0


KIN = {capability: Kin(**kin) for capability, kin in facts()["kin"].items()}


def known_capability(capability: str) -> str:
    """The capability itself where ``KIN`` has it; else the newest that is not above it (the oldest, where all are)."""
    same_vendor = [name for name in KIN if name.startswith("gfx") == capability.startswith("gfx")]
    return next((name for name in reversed(same_vendor) if _rank(name) <= _rank(capability)), same_vendor[0])


def _rank(capability: str) -> tuple[int, ...]:
    """Sorts ``8.9`` before ``10.0``, and ``gfx90a`` before ``gfx942``."""
    if capability.startswith("gfx"):
        return (int(capability.removeprefix("gfx"), 16),)
    return tuple(map(int, capability.split(".")))


@dataclass(frozen=True, kw_only=True)
class GpuReadings:
    """Figures that a driver reports, in SI units, named as those of ``GpuSpec``; None where it does not say.

    ``compute_capability`` is CUDA's (``9.0``) or the GCN architecture (``gfx942``), ``nvlinks`` the number of links
    that are up.
    """

    name: str
    compute_capability: str
    sm_count: int
    dram_capacity_bytes: int
    l2_capacity_bytes: int | None = None
    warp_size: int | None = None
    max_threads_per_sm: int | None = None
    shared_memory_per_sm_bytes: int | None = None
    registers_per_sm: int | None = None
    boost_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    memory_bus_bits: int | None = None
    tdp_w: float | None = None
    pcie_generation: int | None = None
    pcie_lanes: int | None = None
    nvlinks: int = 0
    nvlink_version: str | None = None


_PROPERTIES = {
    "l2_capacity_bytes": ("L2_cache_size", 1),
    "warp_size": ("warp_size", 1),
    "max_threads_per_sm": ("max_threads_per_multi_processor", 1),
    "shared_memory_per_sm_bytes": ("shared_memory_per_multiprocessor", 1),
    "registers_per_sm": ("regs_per_multiprocessor", 1),
    "memory_bus_bits": ("memory_bus_width", 1),
    # CUDA gives the published boost clock, NVML the highest that can be set: on GeForce boards that is more.
    "boost_clock_hz": ("clock_rate", 1e3),
    "memory_clock_hz": ("memory_clock_rate", 1e3),
}
"""PyTorch's device properties by field of ``GpuReadings``, with the factor to SI units."""


def read_gpu(index: int) -> GpuReadings:
    """Read one GPU through PyTorch and, on NVIDIA's, NVML (package nvidia-ml-py) where it is installed.

    Raises:
        DeviceError: no such GPU.
    """
    import torch

    if not torch.cuda.is_available():
        build = "install a build for CUDA or ROCm and its driver, or take the CPU with --device cpu"
        raise DeviceError(f"PyTorch {torch.__version__} finds no GPU: {build}")
    count = torch.cuda.device_count()
    if not 0 <= index < count:
        raise DeviceError(f"no GPU {index}: PyTorch finds {count}, counted from 0")
    properties = torch.cuda.get_device_properties(index)
    amd = torch.version.hip is not None
    # Older versions of PyTorch lack figures that NVML may fill in.
    nvml = {} if amd else _nvml(str(getattr(properties, "uuid", "")))
    pytorch = {field: _times(getattr(properties, name, None), factor) for field, (name, factor) in _PROPERTIES.items()}
    return GpuReadings(
        name=properties.name.strip(),
        compute_capability=properties.gcnArchName.split(":")[0] if amd else f"{properties.major}.{properties.minor}",
        sm_count=properties.multi_processor_count,
        dram_capacity_bytes=properties.total_memory,
        **nvml | {field: value for field, value in pytorch.items() if value},
    )


def _nvml(uuid: str) -> dict[str, Any]:
    """Fields of ``GpuReadings`` that NVML knows; none where it is not installed or does not know the device."""
    try:
        import pynvml

        from neusight.collect.instruments import nvml_device

        handle = nvml_device(uuid)
    except Exception:  # NVML has its own exceptions, which cannot be named where it is not installed.
        return {}

    def ask(name: str, *arguments: Any) -> Any:
        """An answer, or None: boards, partitions and versions differ in what they answer."""
        question: Callable[..., Any] | None = getattr(pynvml, name, None)
        try:
            return question(*arguments) if question else None
        except pynvml.NVMLError:
            return None

    return {
        "boost_clock_hz": _times(ask("nvmlDeviceGetMaxClockInfo", handle, pynvml.NVML_CLOCK_SM), 1e6),
        "memory_clock_hz": _times(ask("nvmlDeviceGetMaxClockInfo", handle, pynvml.NVML_CLOCK_MEM), 1e6),
        "memory_bus_bits": ask("nvmlDeviceGetMemoryBusWidth", handle),
        "tdp_w": _times(ask("nvmlDeviceGetPowerManagementDefaultLimit", handle), 1e-3),
        "pcie_generation": ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
        "pcie_lanes": ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
        **_nvlinks(ask, handle, pynvml.NVML_NVLINK_MAX_LINKS),
    }


def _nvlinks(ask: Callable[..., Any], handle: Any, most: int) -> dict[str, Any]:
    up = [link for link in range(most) if ask("nvmlDeviceGetNvLinkState", handle, link)]
    version = ask("nvmlDeviceGetNvLinkVersion", handle, up[0]) if up else None
    return {"nvlinks": len(up), "nvlink_version": facts()["nvlink_versions"].get(str(version))}


def _times(number: float | None, factor: float) -> float | None:
    return number * factor if number else None


def gpu_spec(readings: GpuReadings) -> GpuSpec:
    """Draft the device file of a GPU.

    Args:
        readings: of its driver.

    Returns:
        Figures with their sources; those that begin with ``assumption`` are not of this device.

    Raises:
        DeviceError: a figure that cannot be.
    """
    capability = known_capability(readings.compute_capability)
    kin, is_listed = KIN[capability], capability == readings.compute_capability
    like = load_gpu((is_geforce(readings.name) and kin.geforce) or kin.like)
    sheet = Sheet()
    _put_driver(sheet, readings, kin)
    _put_like(sheet, like, is_listed)
    _put_rates(sheet, readings.name, like, is_listed)
    return sheet.spec(
        id=slug(readings.name),
        name=readings.name,
        vendor=like.vendor,
        architecture=like.architecture if is_listed else f"{readings.compute_capability}, taken as {like.architecture}",
        notes=_notes(readings, like, is_listed),
    )


def is_geforce(name: str) -> bool:
    """True if a driver's name is that of a GeForce board."""
    return "GEFORCE" in name.upper()


def _put_driver(sheet: Sheet, readings: GpuReadings, kin: Kin) -> None:
    names = {field.name for field in fields(GpuSpec)} - {"name"}
    reported = {name: value for name, value in asdict(readings).items() if name in names}
    sheet.put(DRIVER, **reported | {"l2_capacity_bytes": _l2_bytes(readings, kin), "links": _links(readings)})
    transfers = kin.transfers_per_clock
    bus_bytes = (readings.memory_bus_bits or 0) / 8
    sheet.put(
        f"derived: {transfers} transfers a clock on the memory bus, whose clock and width the driver reports",
        dram_bandwidth_bytes_per_s=transfers * (readings.memory_clock_hz or 0.0) * bus_bytes,
    )


def _l2_bytes(readings: GpuReadings, kin: Kin) -> float | None:
    """L2 of all dies; some versions of ROCm report that of a single one."""
    if not readings.l2_capacity_bytes or not kin.sms_per_die:
        return readings.l2_capacity_bytes
    dies = max(1, round(readings.sm_count / kin.sms_per_die))
    return max(readings.l2_capacity_bytes, dies * L2_PER_DIE_BYTES)


def _links(readings: GpuReadings) -> tuple[Link, ...]:
    lanes, version, generation = readings.pcie_lanes or 0, str(readings.nvlink_version), readings.pcie_generation
    nvlink = readings.nvlinks * facts()["nvlink_bytes_per_s"].get(version, 0.0)
    pcie = lanes * facts()["pcie_lane_bytes_per_s"].get(str(generation), 0.0)
    links = []
    if nvlink:
        links.append(Link(kind="nvlink", generation=version, bandwidth_bytes_per_s=nvlink))
    if pcie:
        links.append(Link(kind="pcie", generation=f"{generation}.0 x{lanes}", bandwidth_bytes_per_s=pcie))
    return tuple(links)


def _put_like(sheet: Sheet, like: GpuSpec, known: bool) -> None:
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


def _put_rates(sheet: Sheet, name: str, like: GpuSpec, known: bool) -> None:
    """Rates of ``like`` at this device's clocks and multiprocessors; GTX boards have no matrix units."""
    clocks_per_s = sheet.values["sm_count"] * sheet.values["boost_clock_hz"]
    share = clocks_per_s / (like.sm_count * like.boost_clock_hz)

    def scaled(rates: Mapping[str, float]) -> dict[str, float]:
        return {dtype: float(f"{share * rate:.4g}") for dtype, rate in rates.items()}

    what = f"operations a clock and multiprocessor of {like.name}, at this device's boost clock"
    sheet.put(
        f"derived: {what}" if known else f"{ASSUMPTION}{what}",
        matrix_flops_per_s={} if "GTX" in name.upper() else scaled(like.matrix_flops_per_s),
        vector_flops_per_s=scaled(like.vector_flops_per_s),
    )


def _notes(readings: GpuReadings, like: GpuSpec, known: bool) -> str:
    notes = ["Drafted from what the driver reports; not compared with a datasheet."]
    if not known:
        known_as, reported_name = like.compute_capability, readings.compute_capability
        what = "architecture" if reported_name.startswith("gfx") else "compute capability"
        notes.append(f"The {what} {reported_name} is not known: taken as {known_as}.")
    if is_geforce(readings.name) and like.matrix_flops_per_s:
        notes.append("The float16 and float8 matrix rates are those with float32 accumulation.")
    return " ".join(notes)
