"""Instruments of a bench: stopwatches (CUDA events and graph replays, or a counter), and device states from NVML."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from statistics import median
from time import perf_counter
from typing import Any

import torch

from neusight.collect.launches.launch import Operands, Run

REPLAY_S = 2e-3
"""Duration that one replay of a graph should have [s]: long against the event's own microseconds."""
MOST_LAUNCHES = 512
"""Kernels in one graph, at most."""


class Stopwatch:
    """Times what a device does; this one a device that runs a call before it returns, by a counter."""

    held_bytes = 0
    """Bytes of the device's memory that the bench keeps allocated."""

    def synchronise(self) -> None:
        """Wait until the device is idle."""

    def flush(self) -> None:
        """Drive everything out of the last-level cache; on a host, operands rotate through more than that already."""

    def once(self, function: Callable[[], Any]) -> float:
        """Seconds that one call takes on the device, launch included."""
        begin = perf_counter()
        function()
        return perf_counter() - begin

    def replays(self, run: Run, sets: Sequence[Operands], usual_s: float, budget_s: float) -> list[float]:
        """Seconds a kernel in each of several replays of a graph of many launches; empty where there are no graphs."""
        return []


def repeated(once: Callable[[], float], budget_s: float) -> list[float]:
    """Repeat a measurement until the budget is full: 5 times at least, 50 at most."""
    times: list[float] = []
    while len(times) < 5 or (sum(times) < budget_s and len(times) < 50):
        times.append(once())
    return times


class EventStopwatch(Stopwatch):
    """CUDA (and HIP) events; ``cache_bytes`` is the size of the L2.

    From now on the process works on a stream of its own, not on the default one, which cannot be captured: the
    backward pass of a graph that was made on a stream runs on that stream.
    """

    def __init__(self, cache_bytes: float) -> None:
        torch.cuda.set_stream(torch.cuda.Stream())
        self.sweep = torch.empty(int(2 * cache_bytes), dtype=torch.int8, device="cuda")
        self.held_bytes = self.sweep.nbytes
        self.begin, self.end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def synchronise(self) -> None:
        """Wait for all streams."""
        torch.cuda.synchronize()

    def flush(self) -> None:
        """Write twice the size of the cache, and wait: the launch to be timed shall find an idle device."""
        self.sweep.zero_()
        torch.cuda.synchronize()

    def once(self, function: Callable[[], Any]) -> float:
        """Time between two events around one call [s]."""
        self.begin.record()
        function()
        self.end.record()
        self.end.synchronize()
        return 1e-3 * self.begin.elapsed_time(self.end)

    def replays(self, run: Run, sets: Sequence[Operands], usual_s: float, budget_s: float) -> list[float]:
        """Capture as many launches as fill ``REPLAY_S``, and replay them until the budget is spent.

        An operator that cannot be captured (it waits for the host) has no replays.
        """
        launches = int(min(MOST_LAUNCHES, max(len(sets), REPLAY_S / usual_s)))
        graph = self._capture(run, sets, launches)
        if graph is None:
            return []
        graph.replay()
        times = repeated(lambda: self.once(graph.replay), budget_s)
        graph.reset()
        return [t / launches for t in times]

    def _capture(self, run: Run, sets: Sequence[Operands], launches: int) -> torch.cuda.CUDAGraph | None:
        """Begun and ended by hand: the context manager also collects garbage, which takes longer than a kernel."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        graph.capture_begin()
        try:
            for turn in range(launches):
                run(*sets[turn % len(sets)])
            graph.capture_end()
        except RuntimeError as error:
            _abandon(graph)
            if isinstance(error, torch.OutOfMemoryError):
                raise
            return None
        return graph


def _abandon(graph: torch.cuda.CUDAGraph) -> None:
    """End a capture that something in it has spoilt, which is an error of its own."""
    with suppress(RuntimeError):
        graph.capture_end()
    torch.cuda.synchronize()


def stopwatch(torch_device: str, cache_bytes: float) -> Stopwatch:
    """The stopwatch for a device."""
    return Stopwatch() if torch_device.startswith("cpu") else EventStopwatch(cache_bytes)


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


def summary(readings: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Median clocks and power, highest temperature, every reason for throttling of several readings."""
    columns = {name: [reading[name] for reading in readings] for name in readings[0]}
    reasons = reduce(or_, map(int, columns.pop("throttle")))
    hottest = float(max(columns.pop("temperature_c")))
    medians = {name: float(median(values)) for name, values in columns.items()}
    throttle = ";".join(name for bit, name in _REASONS.items() if reasons & bit)
    return {**medians, "temperature_c": hottest, "throttle": throttle}


@dataclass
class Monitor:
    """Watches a device while something is measured: reads NVML from a thread, so that the readings fall into that time.

    Without a ``handle`` the device says nothing of itself.
    """

    handle: Any = None
    _readings: list[dict[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.handle is not None:
            threading.Thread(target=self._watch, daemon=True).start()

    def start(self) -> None:
        """Forget what was seen; a reading that is being made goes to the list that is forgotten."""
        self._readings = []

    def read(self) -> dict[str, Any]:
        """Readings since ``start``, as columns of a row, or one reading now where the time was too short for any; empty
        where nothing can be read.
        """
        return summary(list(self._readings) or [self._look()]) if self.handle is not None else {}

    def _watch(self) -> None:
        pause = threading.Event()
        while not pause.wait(PERIOD_S):
            readings = self._readings
            readings.append(self._look())

    def _look(self) -> dict[str, float]:
        """Columns of a row now; ``throttle`` has the bits of its reasons."""
        import pynvml as nvml

        return {
            "clock_mhz": nvml.nvmlDeviceGetClockInfo(self.handle, nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": nvml.nvmlDeviceGetClockInfo(self.handle, nvml.NVML_CLOCK_MEM),
            "board_power_w": nvml.nvmlDeviceGetPowerUsage(self.handle) / 1e3,
            "temperature_c": nvml.nvmlDeviceGetTemperature(self.handle, nvml.NVML_TEMPERATURE_GPU),
            "throttle": nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self.handle),
        }


def nvml_device(uuid: str) -> Any:
    """NVML's handle of the GPU, or of the part of one, that PyTorch knows by a UUID.

    Raises:
        ImportError, pynvml.NVMLError: NVML is not installed, may not be read, or does not know the device.
    """
    import pynvml as nvml

    nvml.nvmlInit()
    return nvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")


def monitor(torch_device: str) -> Monitor:
    """NVML's for an NVIDIA GPU where the package ``nvidia-ml-py`` is installed and allowed to read; else none."""
    if torch_device.startswith("cpu"):
        return Monitor()
    try:
        watching = Monitor(nvml_device(str(torch.cuda.get_device_properties(torch_device).uuid)))
        watching.read()
        return watching
    except Exception:  # NVML has its own exceptions, which cannot be named where it is not installed.
        return Monitor()
