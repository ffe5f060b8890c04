"""The bench and what it reads: rotating operands, stability, conditions, and names from a profiler's trace."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from neusight.collect.bench import MOST_SETS, Bench, Timing, stable
from neusight.collect.instruments import Reading, summary
from neusight.collect.launches import Launch, Source, prepare
from neusight.collect.names import named
from neusight.devices import load_device
from neusight.kernels import Elementwise, Gemm

DEVICE = load_device("l4")
MIB = 2**20


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(DEVICE, "cpu", budget_s=0.01)


def relu(elements: int) -> Elementwise:
    return Elementwise(op="relu", elements=elements, read_bytes=4 * elements, write_bytes=4 * elements, flops=elements)


def test_operands_rotate_through_more_than_the_cache(bench: Bench) -> None:
    row = bench.kernel(prepare(relu(MIB)))
    sets = row["operand_sets"]
    assert (sets - 1) * 8 * MIB <= 2 * DEVICE.l2_capacity_bytes < sets * 8 * MIB
    assert bench.kernel(prepare(relu(16)))["operand_sets"] == MOST_SETS


def test_every_launch_gets_the_next_operands(bench: Bench) -> None:
    seen: list[int] = []
    launch = prepare(relu(MIB))
    spy = Launch(kernel=launch.kernel, operands=launch.operands, run=lambda x: seen.append(x.data_ptr()))
    sets = bench.kernel(spy)["operand_sets"]
    assert len(seen) >= sets
    assert len(set(seen[:sets])) == sets


def test_a_row_carries_its_statistics(bench: Bench) -> None:
    row = bench.kernel(prepare(Gemm(m=64, n=64, k=64)))
    assert 0 < row["latency_p10_ms"] <= row["latency_ms"] <= row["latency_p90_ms"]
    assert row["launches"] >= 5
    assert row["cached_ms"] is None and "execution_ms" not in row


def test_larger_kernels_take_longer(bench: Bench) -> None:
    small, large = (bench.kernel(prepare(Gemm(m=n, n=n, k=n)))["latency_p10_ms"] for n in (64, 768))
    assert large > 20 * small


def test_what_does_not_fit_is_not_tried(bench: Bench) -> None:
    with pytest.raises(MemoryError, match="GiB exceed"):
        bench.kernel(prepare(relu(10**10)))


def test_phases_are_timed_in_order_and_apart(bench: Bench) -> None:
    calls: list[str] = []
    a, b = torch.randn(8, 8), torch.randn(400, 400)

    def short() -> None:
        calls.append("short")
        a @ a

    def long() -> None:
        calls.append("long")
        for _ in range(20):
            b @ b

    first, second = bench.timed([short, long], budget_s=0.02)
    assert calls[:4] == ["short", "long", "short", "long"]
    assert first.count == second.count >= 3
    assert second.median_s > first.median_s


def test_timing_is_in_order_statistics() -> None:
    timing = Timing.of([float(i) for i in range(101)])
    assert (timing.p10_s, timing.median_s, timing.p90_s, timing.count) == (10.0, 50.0, 90.0, 101)
    assert timing.spread == pytest.approx(1.6)
    assert timing.columns("latency", "launches")["latency_p90_ms"] == 90_000.0


@pytest.mark.parametrize(
    ("p90_s", "throttle", "expected"),
    [(1.1, "", True), (1.6, "", False), (1.1, "sw_power_cap", True), (1.1, "hw_thermal_slowdown", False)],
)
def test_heat_and_spread_make_a_row_unstable(p90_s: float, throttle: str, expected: bool) -> None:
    assert stable(Timing(1.0, 0.95, p90_s, 9), {"throttle": throttle}) is expected
    assert stable(Timing(1.0, 0.95, 1.1, 9), {}) is True


def test_conditions_are_medians_the_hottest_and_every_reason() -> None:
    readings = [
        Reading(1980, 2619, 300, 40, 0x01),
        Reading(1200, 2619, 700, 60, 0x04),
        Reading(1900, 2619, 690, 55, 0x60),
    ]
    found = summary(readings)
    assert (found["clock_mhz"], found["power_w"], found["temperature_c"]) == (1900, 690, 60)
    assert found["throttle"] == "sw_power_cap;sw_thermal_slowdown;hw_thermal_slowdown"
    assert summary([]) == {}
    assert summary(readings[:1])["throttle"] == ""


def event(name: str, duration: float, category: str = "kernel") -> dict[str, Any]:
    """As PyTorch's profiler writes a kernel into a Chrome trace."""
    sizes = {"grid": [8, 4, 1], "block": [256, 1, 1], "blocks per SM": 0.24, "warps per SM": 1.94}
    return {"ph": "X", "cat": category, "name": name, "dur": duration, "args": {"device": 0, **sizes}}


def test_the_longest_kernel_names_the_row() -> None:
    found = named([event("memset", 1.0), event("ampere_sgemm_128x64_tn", 9.5), event("aten::mm", 30.0, "cpu_op")])
    assert found["kernel_name"] == "ampere_sgemm_128x64_tn"
    assert found["kernel_names"] == "memset;ampere_sgemm_128x64_tn"
    assert (found["grid_x"], found["grid_y"], found["grid_z"], found["block_x"]) == (8, 4, 1, 256)
    assert found["blocks_per_sm"] == 0.24
    assert named([event("aten::mm", 30.0, "cpu_op")]) == {}


def test_equal_seeds_give_equal_operands() -> None:
    one, two, other = (Source("cpu", seed).normal(100, dtype="float32") for seed in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
