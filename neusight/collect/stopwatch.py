"""Stopwatches: CUDA events and graph replays on a GPU, the performance counter on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any, Protocol

import torch

from neusight.collect.launches import Operands

REPLAY_S = 2e-3
"""How long one replay of a graph should take: long against the event's own microseconds."""
MOST_LAUNCHES = 512
"""Kernels in one graph, at most."""


class Stopwatch(Protocol):
    """Times what a device does."""

    def synchronise(self) -> None:
        """Wait until the device is idle."""

    def flush(self) -> None:
        """Drive everything out of the last-level cache."""

    def once(self, function: Callable[[], Any]) -> float:
        """Seconds that one call takes on the device, launch included."""

    def replays(
        self, run: Callable[..., Any], sets: Sequence[Operands], usual_s: float, budget_s: float
    ) -> list[float]:
        """Seconds a kernel in each of several replays of a graph of many launches; empty where there are no graphs."""


class EventStopwatch:
    """CUDA (and HIP) events; ``cache_bytes`` is the size of the L2.

    From now on the process works on a stream of its own, not on the default one, which cannot be captured: the
    backward pass of a graph that was made on a stream runs on that stream.
    """

    def __init__(self, cache_bytes: float) -> None:
        torch.cuda.set_stream(torch.cuda.Stream())
        self.sweep = torch.empty(int(2 * cache_bytes), dtype=torch.int8, device="cuda")
        self.begin, self.end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def synchronise(self) -> None:
        """Wait for all streams."""
        torch.cuda.synchronize()

    def flush(self) -> None:
        """Write twice the size of the cache, and wait: the launch to be timed shall find an idle device."""
        self.sweep.zero_()
        torch.cuda.synchronize()

    def once(self, function: Callable[[], Any]) -> float:
        """From event to event around one call."""
        self.begin.record()
        function()
        self.end.record()
        self.end.synchronize()
        return 1e-3 * self.begin.elapsed_time(self.end)

    def replays(
        self, run: Callable[..., Any], sets: Sequence[Operands], usual_s: float, budget_s: float
    ) -> list[float]:
        """Capture as many launches as fill ``REPLAY_S``, and replay them until the budget is spent.

        An operator that cannot be captured (it waits for the host) has no replays.
        """
        launches = int(min(MOST_LAUNCHES, max(len(sets), REPLAY_S / usual_s)))
        graph = self._captured(run, sets, launches)
        if graph is None:
            return []
        graph.replay()
        times: list[float] = []
        while len(times) < 5 or (sum(times) < budget_s and len(times) < 50):
            times.append(self.once(graph.replay))
        graph.reset()
        return [t / launches for t in times]

    def _captured(
        self, run: Callable[..., Any], sets: Sequence[Operands], launches: int
    ) -> torch.cuda.CUDAGraph | None:
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


class CounterStopwatch:
    """The performance counter, for a device that runs a call before it returns."""

    def synchronise(self) -> None:
        """Nothing runs on its own."""

    def flush(self) -> None:
        """Operands rotate through more than the cache already; a sweep would cost more than most kernels."""

    def once(self, function: Callable[[], Any]) -> float:
        """From call to return."""
        begin = perf_counter()
        function()
        return perf_counter() - begin

    def replays(
        self, run: Callable[..., Any], sets: Sequence[Operands], usual_s: float, budget_s: float
    ) -> list[float]:
        """There are no graphs."""
        return []


def stopwatch(torch_device: str, cache_bytes: float) -> Stopwatch:
    """The stopwatch for a device."""
    return CounterStopwatch() if torch_device.startswith("cpu") else EventStopwatch(cache_bytes)
