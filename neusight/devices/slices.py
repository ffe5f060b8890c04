"""Parts of a board: slices of a GPU with SMs, memory and L2 of their own (Multi-Instance GPU), cores of a chip of
systolic arrays that programs see as devices."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from neusight.devices.cluster import Cluster
from neusight.devices.load import gpu_of
from neusight.devices.read import parse_file
from neusight.devices.spec import DeviceSpec, GpuSpec, SystolicSpec
from neusight.errors import DeviceError

_FILE = Path(__file__).parent / "slices.toml"


@cache
def _profiles() -> tuple[dict[str, Any], ...]:
    return tuple(parse_file(_FILE)["gpu"])


def slice_of(device: DeviceSpec, compute_slices: int) -> tuple[str, ...]:
    """Changes of a device's figures, as ``load_device`` takes them, that make it a slice of itself.

    Args:
        device: the whole board.
        compute_slices: of how many; all of them are the board under MIG, which may have fewer SMs than without.

    Returns:
        ``key=value`` of SMs, bandwidth and capacity of memory, and L2. Clocks stay; so does the board's power, which
        slices share, since none of them can draw all of it.

    Raises:
        DeviceError: the device cannot be shared so, or not in such slices.
    """
    gpu = gpu_of(device)
    key = (gpu.compute_capability, gpu.sm_count)
    profile = next((p for p in _profiles() if (p["compute_capability"], p["sm_count"]) == key), None)
    if profile is None or device.hypothetical:
        raise DeviceError(f"{device.id} has no slices that are known: those of A100, A30, H100 SXM and H200 are")
    if str(compute_slices) not in profile["sm"]:
        raise DeviceError(f"{device.id} has no slice of {compute_slices}: one of {', '.join(profile['sm'])}")
    share = profile["memory"][str(compute_slices)] / profile["memory_slices"]
    return _changes(gpu, profile["sm"][str(compute_slices)], share)


def halves_of(device: DeviceSpec) -> tuple[str, ...]:
    """Changes that make a GPU what one of two equal jobs has of it that run side by side (MPS).

    Raises:
        DeviceError: the device is no GPU.
    """
    gpu = gpu_of(device)
    return _changes(gpu, gpu.sm_count // 2, 0.5)


def _changes(gpu: GpuSpec, sm_count: int, share: float) -> tuple[str, ...]:
    """Changed figures of a part with ``sm_count`` SMs and a share of memory."""
    changes = {
        "dram_bandwidth": f"{share * gpu.dram_bandwidth_bytes_per_s} B/s",
        "dram_capacity": f"{share * gpu.dram_capacity_bytes} B",
        "dram_usable": f"{share * gpu.usable_bytes} B",
        "l2_capacity": f"{share * gpu.l2_capacity_bytes} B",
    }
    return (f"sm_count={sm_count}", *(f"{name}={value}" for name, value in changes.items()))


def cores_of(cluster: Cluster) -> Cluster:
    """The same cluster, each core of its devices a device of its own."""
    core = core_of(cluster.device)
    cores = cluster.device.core_count // core.core_count
    return cluster.model_copy(update={"device": core, "per_node": cores * cluster.per_node})


def core_of(device: DeviceSpec) -> DeviceSpec:
    """One of a chip's cores with its share of arrays, vector units and memory, and all of the chip's links: in a cycle
    through all cores every second hop stays inside a chip. A device with one core, or of another kind, is its core.
    """
    if not isinstance(device, SystolicSpec) or device.cores == 1:
        return device
    cores = device.cores
    shared: dict[str, Any] = {
        name: getattr(device, name) / cores
        for name in ("dram_bandwidth_bytes_per_s", "dram_capacity_bytes", "on_chip_capacity_bytes", "tdp_w")
    }
    for name in ("dram_usable_bytes", "on_chip_bandwidth_bytes_per_s", "price_usd_per_hour"):
        value = getattr(device, name)
        shared[name] = value / cores if value else None
    for name in ("matrix_flops_per_s", "vector_flops_per_s"):
        shared[name] = {dtype: rate / cores for dtype, rate in getattr(device, name).items()}
    arrays = max(1, device.array_count // cores)
    return device.model_copy(update={**shared, "cores": 1, "array_count": arrays, "name": f"{device.name}, a core"})
