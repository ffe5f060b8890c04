"""What a GPU's driver says of it: the one place that touches torch.cuda and NVML for a device file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from neusight.errors import DeviceError

_NVLINK_VERSIONS = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0"}
"""NVML's numbers of NVLink generations (nvml.h, nvmlNvlinkVersion_t)."""


@dataclass(frozen=True, kw_only=True)
class GpuReadings:
    """Figures that a driver reports, in SI units; None where it does not say.

    ``capability`` is CUDA's compute capability (``9.0``) or the GCN architecture (``gfx942``), ``clock_hz`` the highest
    clock of the multiprocessors, ``nvlinks`` the number of those that are up.
    """

    name: str
    capability: str
    sm_count: int
    memory_bytes: int
    l2_bytes: int | None = None
    warp_size: int | None = None
    max_threads_per_sm: int | None = None
    shared_memory_per_sm_bytes: int | None = None
    registers_per_sm: int | None = None
    clock_hz: float | None = None
    memory_clock_hz: float | None = None
    memory_bus_bits: int | None = None
    power_limit_w: float | None = None
    pcie_generation: int | None = None
    pcie_lanes: int | None = None
    nvlinks: int = 0
    nvlink_version: str | None = None


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
    said = torch.cuda.get_device_properties(index)
    amd = torch.version.hip is not None
    return _readings(said, amd, {} if amd else _nvml(str(getattr(said, "uuid", ""))))


def _readings(said: Any, amd: bool, nvml: dict[str, Any]) -> GpuReadings:
    """``said`` are PyTorch's device properties; what older versions lack, NVML may fill in."""
    figures = {
        "l2_bytes": "L2_cache_size",
        "warp_size": "warp_size",
        "max_threads_per_sm": "max_threads_per_multi_processor",
        "shared_memory_per_sm_bytes": "shared_memory_per_multiprocessor",
        "registers_per_sm": "regs_per_multiprocessor",
        "memory_bus_bits": "memory_bus_width",
    }
    # CUDA gives the published boost clock, NVML the highest that can be set: on GeForce boards that is more.
    clocks = {"clock_hz": "clock_rate", "memory_clock_hz": "memory_clock_rate"}
    pytorch = {field: getattr(said, name, None) for field, name in figures.items()}
    pytorch |= {field: _times(getattr(said, name, None), 1e3) for field, name in clocks.items()}
    return GpuReadings(
        name=said.name.strip(),
        capability=said.gcnArchName.split(":")[0] if amd else f"{said.major}.{said.minor}",
        sm_count=said.multi_processor_count,
        memory_bytes=said.total_memory,
        **nvml | {field: value for field, value in pytorch.items() if value},
    )


def _nvml(uuid: str) -> dict[str, Any]:
    """Fields of ``GpuReadings`` that NVML knows; none where it is not installed or does not know the device."""
    try:
        import pynvml
    except ImportError:
        return {}

    def ask(name: str, *arguments: Any) -> Any:
        """An answer, or None: boards, partitions and versions differ in what they answer."""
        question: Callable[..., Any] | None = getattr(pynvml, name, None)
        try:
            return question(*arguments) if question else None
        except pynvml.NVMLError:
            return None

    ask("nvmlInit")
    handle = ask("nvmlDeviceGetHandleByUUID", uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")
    if handle is None:
        return {}
    return {
        "clock_hz": _times(ask("nvmlDeviceGetMaxClockInfo", handle, pynvml.NVML_CLOCK_SM), 1e6),
        "memory_clock_hz": _times(ask("nvmlDeviceGetMaxClockInfo", handle, pynvml.NVML_CLOCK_MEM), 1e6),
        "memory_bus_bits": ask("nvmlDeviceGetMemoryBusWidth", handle),
        "power_limit_w": _times(ask("nvmlDeviceGetPowerManagementDefaultLimit", handle), 1e-3),
        "pcie_generation": ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
        "pcie_lanes": ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
        **_nvlinks(ask, handle, pynvml.NVML_NVLINK_MAX_LINKS),
    }


def _nvlinks(ask: Callable[..., Any], handle: Any, most: int) -> dict[str, Any]:
    up = [link for link in range(most) if ask("nvmlDeviceGetNvLinkState", handle, link)]
    version = ask("nvmlDeviceGetNvLinkVersion", handle, up[0]) if up else None
    return {"nvlinks": len(up), "nvlink_version": _NVLINK_VERSIONS.get(version or 0)}


def _times(number: float | None, factor: float) -> float | None:
    return number * factor if number else None
