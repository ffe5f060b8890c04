"""The measuring bench of one worker: a device, its stopwatch, random operands, and the conditions while it measures.

A kernel is timed twice over. Single launches between events, each after a sweep through the last-level cache, are what
a lone operator costs, launch included. Replays of a CUDA graph, which launches one kernel after another on changing
operands, are what the device alone takes; on one set of operands, what it takes when they lie in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import cycle
from typing import Any

import numpy as np
import torch

from neusight.collect.instruments import Monitor, Stopwatch, monitor, repeated, stopwatch
from neusight.collect.launches import KernelLaunch, Operands, OperandSource
from neusight.devices.spec import GpuSpec

MOST_SETS = 64
"""Sets of operands that launches rotate through, at most."""
SPREAD = 0.25
"""A row is stable when its 10th and 90th percentile lie within this share of the median of each other."""
TIMED = {"timer": "events", "operands": "cold"}
"""Conditions of ``latency_ms`` of kernels: a launch of its own, after its operands have left the cache."""
HEAT = ("thermal", "brake", "hw_slowdown")
"""Reasons for throttling that no figure of the datasheet foresees; a power limit is part of the device."""


@dataclass(frozen=True)
class Timing:
    """Statistics of repeated measurements, in seconds."""

    median_s: float
    p10_s: float
    p90_s: float
    count: int

    @staticmethod
    def of(times_s: Sequence[float]) -> Timing:
        """Timing from single times [s]."""
        p10, median, p90 = np.percentile(times_s, (10, 50, 90))
        return Timing(float(median), float(p10), float(p90), len(times_s))

    @property
    def spread(self) -> float:
        """Distance of the outer percentiles over the median."""
        return (self.p90_s - self.p10_s) / self.median_s

    def columns(self, name: str, count: str) -> dict[str, Any]:
        """Columns of a row, in milliseconds."""
        values = {f"{name}_ms": self.median_s, f"{name}_p10_ms": self.p10_s, f"{name}_p90_ms": self.p90_s}
        return {key: 1e3 * value for key, value in values.items()} | {count: self.count}


@dataclass
class Bench:
    """One device ready to measure, the process's current one from now on. ``budget_s`` is the time that the single
    launches of one kernel may take.
    """

    device: GpuSpec
    torch_device: str
    seed: int = 0
    budget_s: float = 0.06
    _monitor: Monitor = field(init=False)
    _stopwatch: Stopwatch = field(init=False)

    def __post_init__(self) -> None:
        if not self.torch_device.startswith("cpu"):
            torch.cuda.set_device(self.torch_device)
        self._monitor = monitor(self.torch_device)
        self._stopwatch = stopwatch(self.torch_device, self.device.l2_capacity_bytes)

    @property
    def held_bytes(self) -> int:
        """Bytes that instruments keep allocated on the device."""
        return self._stopwatch.held_bytes

    @property
    def on_gpu(self) -> bool:
        """True if the device is a GPU."""
        return not self.torch_device.startswith("cpu")

    @cached_property
    def memory_bytes(self) -> float:
        """Memory that all operands may take [B]: half of the device's, a sixteenth of a host's."""
        return self.device.dram_capacity_bytes / (2 if self.on_gpu else 16)

    def synchronise(self) -> None:
        """Wait until the device has nothing to do."""
        self._stopwatch.synchronise()

    def conditions(self) -> dict[str, Any]:
        """Clocks, power, temperature and reasons for throttling since the last call that timed something."""
        return self._monitor.read()

    def kernel(self, launch: KernelLaunch) -> dict[str, Any]:
        """Time one kernel.

        Returns:
            Columns of a measured row: quantities, conditions, and the state of the device.

        Raises:
            torch.OutOfMemoryError, RuntimeError: as the operator does.
        """
        sets = self._operand_sets(launch)
        self._monitor.start()
        with launch.setting():
            single = self._single(launch, sets)
            replayed = self._stopwatch.replays(launch.run, sets, single.p10_s, self.budget_s)
            cached = self._time_cached(launch, sets, single.p10_s) if replayed else None
        conditions = self.conditions()
        return {
            **TIMED,
            **single.columns("latency", "repeats"),
            **(Timing.of(replayed).columns("execution", "replays") if replayed else {}),
            "cached_ms": 1e3 * float(np.median(cached)) if cached else None,
            **conditions,
            "suspect": doubt(Timing.of(replayed) if replayed else single, conditions),
        }

    def timed(self, functions: Sequence[Callable[[], Any]], budget_s: float) -> list[Timing]:
        """Time the consecutive phases of one iteration, each from an idle device to an idle device.

        Args:
            functions: the phases in order; an iteration runs all of them.
            budget_s: what all iterations may take together; three are run at least.
        """
        self._monitor.start()
        self._iteration(functions)
        laps = [self._iteration(functions)]
        while len(laps) < 3 or (sum(map(sum, laps)) < budget_s and len(laps) < 100):
            laps.append(self._iteration(functions))
        return [Timing.of(phase) for phase in zip(*laps, strict=True)]

    def _iteration(self, functions: Sequence[Callable[[], Any]]) -> list[float]:
        return [self._stopwatch.once(function) for function in functions]

    def _operand_sets(self, launch: KernelLaunch) -> list[Operands]:
        """Enough that the cache has lost a set before it comes round again; one where the operands exceed it."""
        size = max(1, launch.bytes)
        if size > self.memory_bytes:
            raise MemoryError(f"operands of {size / 2**30:.1f} GiB exceed half of the memory")
        count = int(min(MOST_SETS, 2 * self.device.l2_capacity_bytes // size + 1, self.memory_bytes // size))
        source = OperandSource(self.torch_device, self.seed)
        return [launch.operands(source) for _ in range(max(1, count))]

    def _single(self, launch: KernelLaunch, sets: Sequence[Operands]) -> Timing:
        """Single launches on changing operands, after a warm-up."""
        calls = _rotating(launch.run, sets)
        self._warm_up(calls)

        def cold() -> float:
            self._stopwatch.flush()
            return self._stopwatch.once(calls)

        return Timing.of(repeated(cold, self.budget_s))

    def _warm_up(self, call: Callable[[], Any]) -> None:
        """Until three launches in a row agree within 5 %, or a tenth of a second has gone by."""
        last = [self._stopwatch.once(call) for _ in range(3)]
        spent = sum(last)
        while max(last) > 1.05 * min(last) and spent < 0.1:
            last = [*last[1:], self._stopwatch.once(call)]
            spent += last[-1]

    def _time_cached(self, launch: KernelLaunch, sets: Sequence[Operands], usual_s: float) -> list[float]:
        """Replays on one set, where it fits into the cache."""
        if launch.bytes > self.device.l2_capacity_bytes:
            return []
        return self._stopwatch.replays(launch.run, sets[:1], usual_s, self.budget_s / 2)


def doubt(timing: Timing, conditions: Mapping[str, Any]) -> str | None:
    """Reason why a row is suspect: heat slowed the device down, or the repetitions disagree; None if it is sound."""
    reasons = conditions.get("throttle") or ""
    if any(word in reasons for word in HEAT):
        return f"throttled: the driver lowered the clocks ({reasons})"
    if timing.spread > SPREAD:
        return f"unstable: percentiles 10 and 90 lie {100 * timing.spread:.0f} % of the median apart"
    return None


def _rotating(run: Callable[..., Any], sets: Sequence[Operands]) -> Callable[[], Any]:
    """A function that runs with the next set of operands each time it is called."""
    turns = cycle((*sets[1:], *sets[:1]))
    return lambda: run(*next(turns))
