"""Draft the device file of the machine at hand: the catalogue's where it knows the device, else from the driver."""

from __future__ import annotations

from neusight.collect.drafting.cpu import cpu_spec, probe_cpu, read_cpu
from neusight.collect.drafting.gpu import gpu_spec, read_gpu
from neusight.collect.drafting.sheet import Draft, compared
from neusight.errors import DeviceError

__all__ = ["Draft", "draft_device"]


def draft_device(target: str, index: int = 0) -> Draft:
    """Draft the device file of a GPU or of the CPU; a CPU is measured for about two seconds.

    Args:
        target: ``cuda`` (also for PyTorch's ROCm builds) or ``cpu``.
        index: which of several GPUs, as PyTorch counts them.

    Raises:
        DeviceError: no such device.
    """
    if target == "cuda":
        return compared(gpu_spec(read_gpu(index)))
    if target != "cpu":
        raise DeviceError(f"unknown kind of device '{target}': use cuda or cpu")
    if index:
        raise DeviceError(f"no CPU {index}: all cores together are device 0")
    return Draft(cpu_spec(read_cpu(), probe_cpu()), known=False)
