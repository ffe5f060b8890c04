"""The bench and what it reads: rotating operands, stability, conditions, and names from a profiler's trace."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from neusight.collect.bench import MOST_SETS, Bench, Timing, doubt
from neusight.collect.instruments import stopwatch, summary
from neusight.collect.launches import KernelLaunch, OperandSource, prepare
from neusight.collect.names import named
from neusight.devices import load_device
from neusight.kernels import Elementwise, Gemm

DEVICE = load_device("l4")
MIB = 2**20


class Script:
    """A stopwatch whose times are written down beforehand, whatever the machine is doing; it counts what it runs."""

    def __init__(self, *times_s: float, replay_s: float | None = None) -> None:
        self.times_s, self.replay_s = itertools.cycle(times_s), replay_s
        self.replayed: list[int] = []

    def flush(self) -> None: ...

    def once(self, function: Callable[[], Any]) -> float:
        function()
        return next(self.times_s)

    def replays(self, run: Any, sets: Sequence[Any], usual_s: float, budget_s: float) -> list[float]:
        self.replayed.append(len(sets))
        return [] if self.replay_s is None else [self.replay_s] * 5


def scripted(*times_s: float, replay_s: float | None = None) -> Bench:
    bench = Bench(DEVICE, "cpu", budget_s=0.01)
    bench._stopwatch = Script(*times_s, replay_s=replay_s)
    return bench


def relu(elements: int) -> Elementwise:
    return Elementwise(op="relu", elements=elements, read_bytes=4 * elements, write_bytes=4 * elements, flops=elements)


@pytest.mark.parametrize("elements", [MIB, 16])
def test_kernel_rotates_operands_through_more_than_the_cache(elements: int) -> None:
    launch, seen = prepare(relu(elements)), []
    run: Callable[..., None] = lambda x: seen.append(x.data_ptr())  # noqa: E731
    row = scripted(1e-3).kernel(KernelLaunch(kernel=launch.kernel, operands=launch.operands, run=run))
    assert (row["timer"], row["operands"]) == ("events", "cold")
    sets = min(MOST_SETS, int(2 * DEVICE.l2_capacity_bytes // (8 * elements)) + 1, len(seen))
    assert len(set(seen[:sets])) == sets


def test_kernel_gives_statistics_of_a_row() -> None:
    # Three launches to warm up, and then as many as fit into the budget.
    row = scripted(*[1e-3] * 3, *[1.0e-3, 1.1e-3, 1.2e-3, 1.3e-3, 1.4e-3] * 4).kernel(prepare(Gemm(m=64, n=64, k=64)))
    found = {name: row[name] for name in ("latency_p10_ms", "latency_ms", "latency_p90_ms")}
    assert found == pytest.approx({"latency_p10_ms": 1.0, "latency_ms": 1.2, "latency_p90_ms": 1.32})
    assert (row["repeats"], row["cached_ms"], row.get("execution_ms")) == (9, None, None)
    bench = scripted(1e-3, replay_s=4e-4)
    row = bench.kernel(prepare(relu(MIB)))
    assert (row["execution_ms"], row["cached_ms"], row["replays"]) == (pytest.approx(0.4), pytest.approx(0.4), 5)
    assert bench._stopwatch.replayed[1:] == [1]
    with pytest.raises(MemoryError, match="GiB exceed"):
        bench.kernel(prepare(relu(10**10)))


def test_timed_runs_phases_in_order_and_apart() -> None:
    calls: list[str] = []
    first, second = scripted(1.0, 2.0).timed([lambda: calls.append("a"), lambda: calls.append("b")], budget_s=0.02)
    # One iteration to warm up, three at least.
    assert calls == ["a", "b"] * 4
    assert (first.count, first.median_s, second.count, second.median_s) == (3, 1.0, 3, 2.0)


def test_stopwatch_of_a_host_counts_seconds() -> None:
    watch = stopwatch("cpu", 0.0)
    assert watch.once(lambda: time.sleep(0.01)) >= 0.01
    assert watch.replays(print, [()], 1.0, 1.0) == []


def test_doubt_names_heat_and_spread() -> None:
    found = {
        (p90_s, throttle): doubt(Timing(1.0, 0.95, p90_s, 9), {"throttle": throttle})
        for p90_s in (1.1, 1.6)
        for throttle in ("", "sw_power_cap", "hw_thermal_slowdown")
    }
    assert {case for case, why in found.items() if why is None} == {(1.1, ""), (1.1, "sw_power_cap")}
    assert found[1.1, "hw_thermal_slowdown"].startswith("throttled:") and found[1.6, ""].startswith("unstable:")


def test_summary_has_medians_the_hottest_and_every_reason() -> None:
    names = ("clock_mhz", "memory_clock_mhz", "board_power_w", "temperature_c", "throttle")
    seen = ((1980, 2619, 300, 40, 0x01), (1200, 2619, 700, 60, 0x04), (1900, 2619, 690, 55, 0x60))
    readings = [dict(zip(names, values, strict=True)) for values in seen]
    reasons = "sw_power_cap;sw_thermal_slowdown;hw_thermal_slowdown"
    assert tuple(summary(readings)[name] for name in names) == (1900, 2619, 690, 60, reasons)
    assert summary(readings[:1])["throttle"] == ""


def event(name: str, duration: float, category: str = "kernel") -> dict[str, Any]:
    """As PyTorch's profiler writes a kernel into a Chrome trace."""
    sizes = {"grid": [8, 4, 1], "block": [256, 1, 1]}
    return {"ph": "X", "cat": category, "name": name, "dur": duration, "args": {"device": 0, **sizes}}


def test_named_takes_the_longest_kernel() -> None:
    found = named([event("memset", 1.0), event("ampere_sgemm_128x64_tn", 9.5), event("aten::mm", 30.0, "cpu_op")])
    names = {"kernel_name": "ampere_sgemm_128x64_tn", "kernel_names": "memset;ampere_sgemm_128x64_tn"}
    assert found == {**names, "grid": "8x4x1", "block": "256x1x1"}
    assert named([event("aten::mm", 30.0, "cpu_op")]) == {}
    assert named([event("Memcpy DtoD", 2.0, "gpu_memcpy")])["kernel_name"] == "Memcpy DtoD"


def test_operand_source_repeats_by_its_seed() -> None:
    one, two, other = (OperandSource("cpu", seed).normal(100, dtype="float32") for seed in (1, 1, 2))
    assert torch.equal(one, two) and not torch.equal(one, other)
