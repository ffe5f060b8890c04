"""Waves, cache and power: smooth laws whose ends and directions are known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neusight.devices import device_ids, load_device
from neusight.laws.cache import Panels, gemm_dram_bytes, missed_share
from neusight.laws.power import SPEED_EXPONENT, PowerDemand, dram_family, flop_energy_j, slow_down, sustained_clock
from neusight.laws.waves import idle_factor, rounds

COUNTS = st.integers(1, 10**6)
ONE = np.ones(1)


@given(tiles=COUNTS, sm_count=st.integers(1, 300))
def test_rounds_lie_between_the_even_share_and_the_next_whole_number(tiles: int, sm_count: int) -> None:
    (found,) = rounds(np.array([tiles], dtype=float), sm_count)
    assert max(tiles / sm_count, 1.0) <= found * (1 + 1e-12)
    assert found <= np.ceil(tiles / sm_count) * (1 + 1e-12)


def test_rounds_at_the_quantum() -> None:
    one, full, more = rounds(np.array([1.0, 216.0, 217.0]), 108)
    assert (one, full) == (1.0, 2.0)
    assert 2.0 < more < 3.0


def test_rounds_never_fall_within_a_wave() -> None:
    # Across waves too: the busiest SM never has less to do when one tile more is launched.
    found = rounds(np.arange(1, 2000, dtype=float), 80)
    assert (np.diff(found) >= -1e-12).all()


def test_idling_costs_until_the_sm_is_full() -> None:
    resident = np.array([1.0, 2.0, 4.0, 8.0])
    found = idle_factor(np.full(4, 64.0 * 64.0), resident)
    assert (np.diff(found) <= 0).all()
    assert found[0] > 1.0
    assert found[2] == found[3] == 1.0  # four blocks of 64x64 are 128x128 accumulators


@given(log2_ratio=st.floats(-30, 30), more=st.floats(0, 10))
def test_missed_share_rises_from_a_twentieth_to_one(log2_ratio: float, more: float) -> None:
    low, high = missed_share(2.0 ** np.array([log2_ratio, log2_ratio + more]), 1.0)
    assert 0.05 <= low <= high <= 1.0


def test_missed_share_at_its_ends() -> None:
    tiny, twice, huge = missed_share(np.array([1e-9, 2.0, 1e9]), 1.0)
    assert tiny == pytest.approx(0.05, abs=1e-3)
    assert twice == pytest.approx(0.525)  # half way at twice the capacity
    assert huge == pytest.approx(1.0, abs=1e-3)


def test_product_traffic_lies_between_compulsory_and_every_block_by_itself() -> None:
    panel = 2.0 ** np.arange(-10, 30)
    panels = Panels(panel, shared=np.full(40, 5.0), unshared=np.full(40, 20.0))
    found = gemm_dram_bytes(np.full(40, 2.0), panels, 1.0)
    assert (np.diff(found) >= 0).all()
    assert found[0] == pytest.approx(2.0, rel=0.1)
    assert found[-1] == pytest.approx(20.0, rel=0.01)


def test_product_traffic_is_never_below_compulsory() -> None:
    panels = Panels(ONE * 1e-3, shared=ONE, unshared=ONE)
    assert gemm_dram_bytes(ONE * 7.0, panels, 1.0) >= 7.0


@pytest.mark.parametrize("gpu", device_ids())
def test_light_loads_run_at_full_clock(gpu: str) -> None:
    assert slow_down(load_device(gpu), ONE, 0 * ONE, 0 * ONE, 0 * ONE) == pytest.approx(1.0)


@given(
    gpu=st.sampled_from(device_ids()),
    flops=st.floats(0, 1e14),
    dram=st.floats(0, 1e12),
    l2=st.floats(0, 1e13),
    more=st.floats(1.0, 10.0),
    which=st.integers(0, 2),
)
def test_slow_down_grows_with_energy_and_falls_with_the_limit(
    gpu: str, flops: float, dram: float, l2: float, more: float, which: int
) -> None:
    device, load = load_device(gpu), [flops * ONE, dram * ONE, l2 * ONE]
    base = slow_down(device, ONE, *load)
    assert base >= 1.0
    heavier = [value * more if number == which else value for number, value in enumerate(load)]
    assert slow_down(device, ONE, *heavier) >= base
    assert slow_down(device, ONE / more, *load) >= base
    cooler = device.model_copy(update={"tdp_w": device.tdp_w * more})
    assert slow_down(cooler, ONE, *load) <= base


def test_far_above_the_limit_speed_goes_with_power_to_the_exponent() -> None:
    once, twice = (slow_down(load_device("l4"), ONE, f * 1e15 * ONE, 0 * ONE, 0 * ONE) for f in (1, 2))
    assert twice / once == pytest.approx(2**SPEED_EXPONENT, rel=1e-3)


@pytest.mark.parametrize(("gpu", "kind"), [("t4", "GDDR"), ("a100-sxm-80gb", "HBM"), ("p4", "GDDR"), ("mi300x", "HBM")])
def test_dram_family(gpu: str, kind: str) -> None:
    assert dram_family(load_device(gpu)) == kind


def test_lpddr_is_not_mistaken_for_gddr() -> None:
    device = load_device("l4")
    assert dram_family(device.model_copy(update={"dram_kind": "LPDDR5X"})) == "LPDDR"
    assert dram_family(device.model_copy(update={"dram_kind": "something"})) == "GDDR"


def test_finer_nodes_never_spend_more_on_a_flop() -> None:
    device = load_device("l4")
    nodes = (28, 16, 14, 12, 8, 7, 5, 4, 3)
    energies = [flop_energy_j(device.model_copy(update={"process_nm": node})) for node in nodes]
    assert energies == sorted(energies, reverse=True)
    assert 5e-12 < energies[-1] < energies[0] < 30e-12


def demand(clocked: float, dram: float, switching: float, traffic: float, n: int = 1) -> PowerDemand:
    values = {"clocked_s": clocked, "dram_s": dram, "switching_j": switching, "traffic_j": traffic}
    return PowerDemand(**{name: np.full(n, value) for name, value in values.items()})


def test_the_sustained_clock_meets_the_budget() -> None:
    hot = demand(clocked=1.0, dram=0.0, switching=200.0, traffic=10.0)
    clock = sustained_clock(hot, budget=100.0)
    assert hot.energy_j(clock) / hot.time_s(clock) == pytest.approx(100.0, rel=1e-6)
    # All switching: power is energy 200 c^(1/x - 1) over time 1/c, so that the clock is (100 / 200)^x.
    assert sustained_clock(demand(1.0, 0.0, 200.0, 0.0), 100.0) == pytest.approx(0.5**SPEED_EXPONENT, rel=1e-6)


def test_what_fits_the_budget_keeps_its_clock() -> None:
    assert sustained_clock(demand(1.0, 0.5, 60.0, 30.0), budget=100.0).tolist() == [1.0]


def test_cool_kernels_lend_their_share_to_hot_ones() -> None:
    both = PowerDemand.joined([demand(1.0, 0.0, 150.0, 0.0), demand(0.1, 1.0, 20.0, 10.0)])
    alone = sustained_clock(both, 100.0)
    shared = sustained_clock(both, 100.0, counts=np.array([1.0, 1.0]))
    assert alone[0] < shared <= alone[1] == 1.0
    more = sustained_clock(both, 100.0, counts=np.array([1.0, 5.0]))
    assert more >= shared
    # A stream of one kernel, however often, is that kernel.
    often = sustained_clock(both.take(np.array([0])), 100.0, counts=np.array([7.0]))
    assert often == pytest.approx(alone[0])


@given(
    clocked=st.floats(1e-6, 1.0),
    dram=st.floats(0, 1.0),
    switching=st.floats(0, 500.0),
    traffic=st.floats(0, 50.0),
    budget=st.floats(10.0, 1000.0),
)
def test_more_budget_never_lowers_the_clock(
    clocked: float, dram: float, switching: float, traffic: float, budget: float
) -> None:
    wanted = demand(clocked, dram, switching, traffic)
    low, high = sustained_clock(wanted, budget), sustained_clock(wanted, 2 * budget)
    assert 0.1 <= low <= high <= 1.0
    assert wanted.time_s(low) >= wanted.time_s(high) >= wanted.time_s(1.0)
