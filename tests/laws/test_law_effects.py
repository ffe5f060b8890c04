"""Waves, cache and power: smooth laws whose ends and directions are known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neusight.devices import device_ids, load_device
from neusight.laws.cache import Panels, gemm_dram_bytes, missed_share, reread_missed_share, reusable_l2_bytes
from neusight.laws.constants import with_values
from neusight.laws.dram import sustained_dram_bytes_per_s
from neusight.laws.fitted import shipped_physics
from neusight.laws.power import (
    LEAST_CLOCK,
    PowerDemand,
    budget_w,
    clock_w,
    flop_energy_j,
    shared_clock,
    slow_down,
    sustained_clock,
    traffic_pj_per_byte,
)
from neusight.laws.waves import idle_factor, issue_share, operand_factor, resident_blocks, rounds, tile_overhead_s

PHYSICS = shipped_physics().physics

COUNTS = st.integers(1, 10**6)
ONE = np.ones(1)


@given(tiles=COUNTS, sm_count=st.integers(1, 300))
def test_rounds_lie_between_the_even_share_and_the_next_whole_number(tiles: int, sm_count: int) -> None:
    (found,) = rounds(np.array([tiles], dtype=float), sm_count, PHYSICS.cuda_cores.tail_share)
    assert max(tiles / sm_count, 1.0) <= found * (1 + 1e-12)
    assert found <= np.ceil(tiles / sm_count) * (1 + 1e-12)


def test_rounds_at_the_quantum() -> None:
    one, full, more = rounds(np.array([1.0, 216.0, 217.0]), 108, PHYSICS.cuda_cores.tail_share)
    assert (one, full) == (1.0, 2.0)
    assert 2.0 < more < 3.0


def test_rounds_never_fall_within_a_wave() -> None:
    # Across waves too: the busiest SM never has less to do when one tile more is launched.
    found = rounds(np.arange(1, 2000, dtype=float), 80, PHYSICS.cuda_cores.tail_share)
    assert (np.diff(found) >= -1e-12).all()


def test_idling_costs_until_the_sm_is_full() -> None:
    resident = np.array([1.0, 2.0, 4.0, 8.0])
    found = idle_factor(np.full(4, 64.0 * 64.0), resident, PHYSICS.cuda_cores.idle_cost)
    assert (np.diff(found) <= 0).all()
    assert found[0] > 1.0
    assert found[2] == found[3] == 1.0  # four blocks of 64x64 are 128x128 accumulators


def test_operands_slow_an_sm_of_twice_the_lanes_as_tiles_of_half_the_intensity_do() -> None:
    device = load_device("h100-sxm-80gb")
    lane = 2.0 * device.boost_clock_hz
    tile = np.array([32.0, 64.0, 128.0])
    found = operand_factor(tile, tile, 128.0 * lane, device, PHYSICS)
    assert found == pytest.approx(operand_factor(tile / 2, tile / 2, 64.0 * lane, device, PHYSICS))
    assert (np.diff(found) < 0).all()
    assert found[-1] > 1.0


def test_a_tile_waits_once_for_all_that_share_its_sm_and_writes_its_part_by_itself() -> None:
    device, elements = load_device("a100-pcie-40gb"), np.array([128.0 * 128.0])
    alone, shared = (tile_overhead_s(elements, np.array([n]), device, PHYSICS)[0] for n in (1.0, 2.0))
    assert alone - shared == pytest.approx(PHYSICS.cuda_cores.fill_s / 2)
    every_s = elements[0] * 4 * device.sm_count / sustained_dram_bytes_per_s(device, PHYSICS)
    assert shared == pytest.approx(PHYSICS.cuda_cores.fill_s / 2 + PHYSICS.cuda_cores.exposed_write * every_s)


def test_registers_hold_two_of_the_largest_tiles_and_no_more_than_sixteen() -> None:
    # 65,536 registers over 1.9 an accumulator.
    held = resident_blocks(np.array([256.0 * 128.0, 128.0 * 128.0, 32.0 * 32.0]), load_device("a100-pcie-40gb"))
    assert held.tolist() == [1.0, 2.0, 16.0]


def test_issue_slots_leave_the_same_to_all_sms_of_128_lanes() -> None:
    dense = {issue_share(load_device(gpu), PHYSICS) for gpu in ("l4", "a40", "h100-sxm-80gb", "b200-sxm-180gb")}
    assert dense == {PHYSICS.cuda_cores.issue_contended}
    assert {issue_share(load_device(gpu), PHYSICS) for gpu in ("v100-pcie-32gb", "a100-pcie-40gb", "p4")} == {1.0}


@given(log2_ratio=st.floats(-30, 30), more=st.floats(0, 10))
def test_rereads_between_waves_miss_the_more_the_larger_the_panels(log2_ratio: float, more: float) -> None:
    low, high = missed_share(2.0 ** np.array([log2_ratio, log2_ratio + more]), 1.0, PHYSICS)
    cache = PHYSICS.cache
    assert cache.always_missed <= low <= high <= 1.0
    tiny, half, huge = missed_share(np.array([1e-9, 2.0**cache.miss_centre, 1e9]), 1.0, PHYSICS)
    assert (tiny, huge) == pytest.approx((cache.always_missed, 1.0), abs=1e-6)
    assert half == pytest.approx((1.0 + cache.always_missed) / 2.0)


@given(log2_ratio=st.floats(-30, 30), more=st.floats(0, 10))
def test_second_passes_miss_more_the_more_rows_are_in_flight(log2_ratio: float, more: float) -> None:
    low, high = reread_missed_share(2.0 ** np.array([log2_ratio, log2_ratio + more]), 1.0, PHYSICS)
    assert 0.0 <= low <= high <= 1.0
    tiny, half, huge = reread_missed_share(np.array([1e-9, 2.0**PHYSICS.cache.row_miss_centre, 1e9]), 1.0, PHYSICS)
    assert (tiny, half, huge) == pytest.approx((0.0, 0.5, 1.0), abs=1e-3)


def test_product_traffic_lies_between_compulsory_and_every_block_by_itself() -> None:
    panel = 2.0 ** np.arange(-10, 30)
    panels = Panels(panel, shared=np.full(40, 5.0), unshared=np.full(40, 20.0))
    p100 = load_device("p100-pcie-16gb").model_copy(update={"l2_capacity_bytes": 1.0})
    found = gemm_dram_bytes(np.full(40, 2.0), panels, np.ones(40), p100, PHYSICS)
    assert (np.diff(found) >= 0).all()
    assert found[0] == pytest.approx(2.0, rel=0.1)
    # Blocks that have lost step fetch more than they use.
    assert found[-1] == pytest.approx(5.0 + PHYSICS.cache.drift * 15.0, rel=0.01)


def test_blocks_lose_step_over_rounds_and_hardly_from_volta_on() -> None:
    panels = Panels(np.full(3, 2e8), shared=np.full(3, 1e9), unshared=np.full(3, 1e10))
    rounds_of = np.array([1.0, 16.0, 256.0])

    def extra(gpu: str) -> np.ndarray:
        return gemm_dram_bytes(np.full(3, 1e9), panels, rounds_of, load_device(gpu), PHYSICS) - 1e9

    old, new = extra("p100-pcie-16gb"), extra("v100-pcie-32gb")
    assert (np.diff(old) > 0).all()
    assert (new < old / 4).all()


def test_hbm_of_pascal_sustains_a_smaller_share() -> None:
    def share(gpu: str) -> float:
        device = load_device(gpu)
        return sustained_dram_bytes_per_s(device, PHYSICS) / device.dram_bandwidth_bytes_per_s

    assert share("v100-pcie-32gb") == share("a100-pcie-40gb") == share("mi100") == PHYSICS.memory.hbm_share
    assert share("p100-pcie-16gb") == pytest.approx(PHYSICS.memory.hbm_share / PHYSICS.memory.controller_gain)
    assert share("p4") == share("l4") == PHYSICS.memory.gddr_share


def test_product_traffic_is_never_below_compulsory() -> None:
    panels = Panels(ONE * 1e-3, shared=ONE, unshared=ONE)
    assert gemm_dram_bytes(ONE * 7.0, panels, ONE, load_device("l4"), PHYSICS) >= 7.0


def test_two_partitions_of_l2_hold_half_for_what_all_read() -> None:
    a100, l4 = load_device("a100-pcie-80gb"), load_device("l4")
    assert reusable_l2_bytes(a100) == a100.l2_capacity_bytes / 2
    assert reusable_l2_bytes(l4) == l4.l2_capacity_bytes


EXPONENT = 0.6
BURST_S = PHYSICS.power.burst_s
SECONDS, JOULES = st.floats(1e-6, 1.0), st.floats(0.0, 500.0)


def demand(
    clocked: float, dram: float, core: float, memory: float, budget: float = 100.0, clocks: float = 0.0
) -> PowerDemand:
    values = {
        "clocked_s": clocked,
        "ports_s": 0.0,
        "dram_s": dram,
        "compute_j": core,
        "sram_j": 0.0,
        "dram_j": memory,
        "overlap": 3.0,
    }
    values["lone"] = 1.0
    columns = {name: np.full(1, value) for name, value in values.items()}
    return PowerDemand(**columns, clock_w=clocks, budget_w=budget, speed_exponent=EXPONENT)


def power_w(kernels: PowerDemand, clock: np.ndarray | float) -> float:
    return float(kernels.energy_j(clock).sum() / kernels.time_s(clock).sum())


def test_light_loads_run_at_full_clock() -> None:
    assert sustained_clock(demand(1.0, 0.5, 60.0, 30.0)).tolist() == [1.0]
    assert slow_down(demand(1.0, 0.5, 60.0, 30.0), BURST_S).tolist() == [1.0]


@given(clocked=SECONDS, dram=SECONDS, core=JOULES, memory=st.floats(0, 50.0), budget=st.floats(10.0, 1000.0))
def test_more_energy_is_never_faster_and_a_higher_limit_never_slower(
    clocked: float, dram: float, core: float, memory: float, budget: float
) -> None:
    kernel = (clocked, dram, core, memory)
    base = slow_down(demand(*kernel, budget, 20.0), BURST_S)
    assert base >= 1.0
    for worse in (demand(clocked, dram, 2.0 * core, memory, budget, 20.0), demand(*kernel, budget, 40.0)):
        assert slow_down(worse, BURST_S) >= base * (1 - 1e-9)
    cooler = demand(*kernel, 2.0 * budget, 20.0)
    assert slow_down(cooler, BURST_S) <= base * (1 + 1e-9)
    assert LEAST_CLOCK <= sustained_clock(demand(*kernel, budget, 20.0)) <= sustained_clock(cooler) * (1 + 1e-9)
    assert 1.0 <= slow_down(demand(*kernel, budget, 20.0), BURST_S, burst=1.0) <= base


def test_the_sustained_clock_meets_the_budget() -> None:
    hot = demand(1.0, 0.5, core=200.0, memory=10.0, clocks=15.0)
    assert power_w(hot, sustained_clock(hot)) == pytest.approx(100.0, rel=1e-9)
    # All switching: power is energy 200 c^(1/x - 1) over time 1/c, so that the clock is (100 / 200)^x.
    assert sustained_clock(demand(1.0, 0.0, 200.0, 0.0)) == pytest.approx(0.5**EXPONENT, rel=1e-9)
    # Clocks alone: power is 200 c^(1/x).
    assert sustained_clock(demand(1.0, 0.0, 0.0, 0.0, clocks=200.0)) == pytest.approx(0.5**EXPONENT, rel=1e-9)


def test_what_waits_for_memory_takes_as_long_at_a_lower_clock() -> None:
    copy, product = demand(0.05, 1.0, 100.0, 60.0), demand(1.0, 0.05, 100.0, 60.0)
    assert sustained_clock(copy) < 0.6
    assert slow_down(copy, BURST_S) < 1.01
    assert slow_down(product, BURST_S) > 1.2


def test_a_burst_of_the_limiter_s_window_feels_half_of_the_slow_down() -> None:
    # Lengths [s] of a burst, of one kernel or of many, and the share of the slow-down that b / (b + burst_s) gives.
    for time_s, kernels, share in ((BURST_S, 1.0, 0.5), (BURST_S / 10, 10.0, 0.5), (3 * BURST_S, 1.0, 0.75)):
        hot = demand(time_s, 0.0, 1e3 * time_s, 0.0)
        whole = slow_down(hot, BURST_S) - 1.0
        assert slow_down(hot, BURST_S, kernels) - 1.0 == pytest.approx(share * whole)


def test_kernels_of_a_step_lend_power_to_each_other() -> None:
    product, copy = demand(1.0, 0.0, 250.0, 0.0), demand(0.1, 1.0, 20.0, 10.0)
    both = PowerDemand.joined([product, copy])
    clock = shared_clock(both)
    assert sustained_clock(product) < clock < 1.0
    assert power_w(both, clock) == pytest.approx(100.0, rel=1e-9)
    # A kernel by itself, however often it runs, is a step of its own.
    assert shared_clock(product) == pytest.approx(float(sustained_clock(product)[0]), rel=1e-12)
    assert shared_clock(product.scaled(1000.0)) == pytest.approx(shared_clock(product), rel=1e-12)
    assert shared_clock(copy) == 1.0


def test_energy_of_a_byte_by_kind_of_memory() -> None:
    gddr, hbm = (traffic_pj_per_byte(load_device(gpu), PHYSICS) for gpu in ("l4", "a100-sxm-80gb"))
    assert gddr == (PHYSICS.power.core_pj_per_byte, PHYSICS.power.gddr_memory_pj_per_byte)
    assert hbm == (PHYSICS.power.core_pj_per_byte, PHYSICS.power.hbm_memory_pj_per_byte)


MEASURED_W = {"a100-sxm-40gb": (1.37e12, 230.0), "h200-sxm-141gb": (3.76e12, 572.0), "a40": (0.68e12, 206.0)}
"""Bytes a second of a stream, and what the board drew (gpu-benches, power at 0.25 FLOP a byte)."""


@pytest.mark.parametrize("gpu", MEASURED_W)
def test_power_of_a_stream_is_what_boards_draw(gpu: str) -> None:
    device, (bytes_per_s, watts) = load_device(gpu), MEASURED_W[gpu]
    traffic_w = 1e-12 * sum(traffic_pj_per_byte(device, PHYSICS)) * bytes_per_s
    assert PHYSICS.power.static_w + clock_w(device, PHYSICS) + traffic_w == pytest.approx(watts, rel=0.15)


def test_a_board_below_its_node_s_usual_clock_spends_less_on_a_flop() -> None:
    device = load_device("t4")
    slower = device.model_copy(update={"boost_clock_hz": device.boost_clock_hz / 2})
    ratio = flop_energy_j(slower, PHYSICS) / flop_energy_j(device, PHYSICS)
    assert ratio == pytest.approx(0.5**PHYSICS.power.voltage_exponent)


def test_some_of_the_limit_is_left_to_work(subtests: pytest.Subtests) -> None:
    for gpu in device_ids():
        with subtests.test(gpu=gpu):
            device = load_device(gpu)
            assert 0.5 * device.tdp_w <= budget_w(device, PHYSICS) < device.tdp_w


def test_dram_family(subtests: pytest.Subtests) -> None:
    for gpu, kind in [("t4", "GDDR"), ("a100-sxm-80gb", "HBM"), ("p4", "GDDR"), ("mi300x", "HBM")]:
        with subtests.test(gpu=gpu, kind=kind):
            assert load_device(gpu).dram_family == kind


def test_lpddr_is_not_mistaken_for_gddr() -> None:
    device = load_device("l4")
    assert device.model_copy(update={"dram_kind": "LPDDR5X"}).dram_family == "LPDDR"
    assert device.model_copy(update={"dram_kind": "something"}).dram_family == "GDDR"


def test_finer_nodes_never_spend_more_on_a_flop() -> None:
    device = load_device("l4")
    nodes = (28, 16, 14, 12, 8, 7, 5, 4, 3)
    energies = [flop_energy_j(device.model_copy(update={"process_nm": node}), PHYSICS) for node in nodes]
    assert energies == sorted(energies, reverse=True)
    # Without voltages the law is a power of the node, and stated at 7 nm.
    flat = with_values(PHYSICS, {"power.voltage_exponent": 0.0})
    one, two = (flop_energy_j(device.model_copy(update={"process_nm": node}), flat) for node in (7, 14))
    assert one == pytest.approx(1e-12 * PHYSICS.power.lane_pj)
    assert two / one == pytest.approx(2.0**PHYSICS.power.lane_node_exponent)
