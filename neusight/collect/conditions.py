"""Conditions of a measurement: clocks, power, temperature and reasons for throttling, from NVML where it is there."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol

PERIOD_S = 0.02
"""Between two readings."""
_REASONS = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}
"""Bits of nvmlClocksEventReasons (NVML API reference); idle and the application's own clock settings are no fault."""


class Monitor(Protocol):
    """Watches a device while something is measured."""

    def start(self) -> None:
        """Forget what was seen."""

    def read(self) -> dict[str, Any]:
        """What was seen since ``start``, as columns of a row; empty where nothing can be read."""


class NoMonitor:
    """For devices that say nothing of themselves."""

    def start(self) -> None:
        """Nothing to forget."""

    def read(self) -> dict[str, Any]:
        """Nothing."""
        return {}


@dataclass(frozen=True)
class Reading:
    """One look at the device."""

    clock_mhz: float
    memory_clock_mhz: float
    power_w: float
    temperature_c: float
    reasons: int


def summary(readings: list[Reading]) -> dict[str, Any]:
    """Median clocks and power, highest temperature, every reason that was given at any time."""
    if not readings:
        return {}
    given = 0
    for reading in readings:
        given |= reading.reasons
    return {
        "clock_mhz": float(median(r.clock_mhz for r in readings)),
        "memory_clock_mhz": float(median(r.memory_clock_mhz for r in readings)),
        "power_w": float(median(r.power_w for r in readings)),
        "temperature_c": float(max(r.temperature_c for r in readings)),
        "throttle": ";".join(name for bit, name in _REASONS.items() if given & bit),
    }


@dataclass
class NvmlMonitor:
    """Reads NVML from a thread, so that the readings fall into the time of measuring."""

    handle: Any
    _readings: list[Reading] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        threading.Thread(target=self._watch, daemon=True).start()

    def start(self) -> None:
        """Forget what was seen."""
        with self._lock:
            self._readings.clear()

    def read(self) -> dict[str, Any]:
        """The summary of what was seen, of one look now where the time was too short for any."""
        with self._lock:
            seen = list(self._readings)
        return summary(seen or [self._look()])

    def _watch(self) -> None:
        pause = threading.Event()
        while not pause.wait(PERIOD_S):
            reading = self._look()
            with self._lock:
                self._readings.append(reading)

    def _look(self) -> Reading:
        import pynvml as nvml

        return Reading(
            clock_mhz=nvml.nvmlDeviceGetClockInfo(self.handle, nvml.NVML_CLOCK_SM),
            memory_clock_mhz=nvml.nvmlDeviceGetClockInfo(self.handle, nvml.NVML_CLOCK_MEM),
            power_w=nvml.nvmlDeviceGetPowerUsage(self.handle) / 1e3,
            temperature_c=nvml.nvmlDeviceGetTemperature(self.handle, nvml.NVML_TEMPERATURE_GPU),
            reasons=nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self.handle),
        )


def monitor(torch_device: str) -> Monitor:
    """NVML's for an NVIDIA GPU where the package ``nvidia-ml-py`` is installed and allowed to read; else none."""
    if torch_device.startswith("cpu"):
        return NoMonitor()
    try:
        import pynvml as nvml
        import torch

        nvml.nvmlInit()
        uuid = str(torch.cuda.get_device_properties(torch_device).uuid)
        watching = NvmlMonitor(nvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"))
        watching.read()
        return watching
    except Exception:  # NVML has its own exceptions, which cannot be named where it is not installed.
        return NoMonitor()
