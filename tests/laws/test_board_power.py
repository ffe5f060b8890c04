"""What boards draw: at least what they draw waiting, at most their limit, more for more work and for more time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neusight import Predictor
from neusight.devices import load_device
from neusight.devices.spec import DeviceSpec
from neusight.laws.board_power import (
    METER,
    PRIOR,
    EnergyUse,
    array_energy,
    board_j,
    energy_interval_j,
    idle_w,
    metered,
    stream_energy,
)
from neusight.laws.fitted import shipped_boards, shipped_physics
from neusight.laws.power import PowerDemand

BOARDS, PHYSICS = shipped_boards().physics, shipped_physics().physics
DEVICES = ("h100-sxm-80gb", "l4", "mi300x", "tpu-v4", "trainium1", "gaudi2")
SECONDS, JOULES = st.floats(1e-6, 10.0), st.floats(0.0, 1e4)
DOUBT = 0.2


def drawn_j(device: DeviceSpec, kernels_j: float, time_s: float) -> float:
    return float(board_j(device, np.array([kernels_j]), np.array([time_s]), BOARDS)[0])


@given(gpu=st.sampled_from(DEVICES), kernels_j=JOULES, more_j=JOULES, time_s=SECONDS, longer_s=SECONDS)
def test_energy_lies_between_waiting_and_the_limit_and_grows(
    gpu: str, kernels_j: float, more_j: float, time_s: float, longer_s: float
) -> None:
    device = load_device(gpu)
    energy_j = drawn_j(device, kernels_j, time_s)
    assert idle_w(device, BOARDS) * time_s <= energy_j <= device.tdp_w * time_s
    assert drawn_j(device, kernels_j, time_s + longer_s) >= energy_j
    assert drawn_j(device, kernels_j + more_j, time_s) >= energy_j


@given(
    gpu=st.sampled_from(DEVICES), kernels_j=JOULES, time_s=SECONDS, early=st.floats(0.5, 1.0), late=st.floats(1.0, 2.0)
)
def test_intervals_hold_the_bounds_at_both_ends(
    gpu: str, kernels_j: float, time_s: float, early: float, late: float
) -> None:
    device, times_s = load_device(gpu), (early * time_s, time_s, late * time_s)
    energy_j = drawn_j(device, kernels_j, time_s)
    low_j, high_j = energy_interval_j(device, energy_j, times_s, BOARDS, DOUBT)
    assert low_j <= energy_j <= high_j
    assert low_j >= min(idle_w(device, BOARDS) * times_s[0], energy_j)
    assert high_j <= max(METER * device.tdp_w * times_s[2], energy_j)


def test_a_board_that_waits_is_as_uncertain_as_its_time_and_its_meter() -> None:
    device = load_device("h100-sxm-80gb")
    waiting_j = drawn_j(device, 0.0, 1.0)
    _, high_j = energy_interval_j(device, waiting_j, (1.0, 1.0, np.exp(0.3)), BOARDS, 0.4)
    assert high_j == pytest.approx(waiting_j * np.exp(0.5))  # 3-4-5: all of it is idle


def test_kinds_with_energies_of_their_own_have_neither_idle_power_nor_a_limit() -> None:
    device = load_device("tensordash")
    assert idle_w(device, BOARDS) == 0.0
    assert drawn_j(device, 1e6, 1.0) == 1e6
    # All of it goes with the time.
    low_j, high_j = energy_interval_j(device, 2.0, (0.5, 1.0, 3.0), BOARDS, 0.0)
    assert (low_j, high_j) == (pytest.approx(1.0), pytest.approx(6.0))


def test_a_meter_shows_a_share_of_what_the_power_law_has() -> None:
    parts = {name: np.full(1, value) for name, value in (("compute_j", 10.0), ("sram_j", 4.0), ("dram_j", 2.0))}
    times = {name: np.ones(1) for name in ("clocked_s", "ports_s", "dram_s", "overlap", "lone")}
    demand = PowerDemand(**parts, **times, clock_w=50.0, budget_w=1e3, speed_exponent=0.5, clock=0.5)
    board = replace(PRIOR.gpu, switching=0.5, traffic=2.0)
    shown = metered(demand, board)
    # At half the clock they run for twice as long, and would ask for the same power without the limit.
    longer = float(demand.time_s(0.5)[0] / demand.time_s(1.0)[0])
    assert longer > 1.0
    parts_j = [float(part[0]) for part in (shown.compute_j, shown.sram_j, shown.dram_j)]
    assert parts_j == pytest.approx([longer * joules for joules in (5.0, 8.0, 4.0)])
    assert float(shown.total_j[0]) == pytest.approx(float(shown.compute_j[0] + shown.traffic_j[0]))


def test_a_step_that_the_limit_slows_draws_the_limit(predictor: Predictor) -> None:
    step = predictor.estimate("gpt2-large", "l4", mode="training", seq_len=1024)
    assert step.limiter == "power"
    assert step.board_energy_j == pytest.approx(load_device("l4").tdp_w * step.latency_s, rel=0.1)


def test_energy_of_arrays_by_formula() -> None:
    device = load_device("tpu-v4").model_copy(update={"process_nm": 14.0})
    one = np.ones(1)
    shown = array_energy(1e12 * one, 1e9 * one, np.array([1.0]), device, PRIOR.systolic)
    # 0.3 pJ at 7 nm, 2^0.55 at twice the node, 0.6 at half the bits; 5 and 44 pJ a byte.
    assert float(shown.compute_j[0]) == pytest.approx(0.3 * 2**0.55 * 0.6)
    assert (float(shown.sram_j[0]), float(shown.dram_j[0])) == (pytest.approx(5e-3), pytest.approx(44e-3))


@pytest.mark.parametrize(("gpu", "least_w", "mean_w", "most_w"), [("tpu-v3", 123, 220, 262), ("tpu-v4", 90, 170, 192)])
def test_arrays_at_work_draw_what_is_published_of_them(gpu: str, least_w: float, mean_w: float, most_w: float) -> None:
    """Google Cloud, TPU versions: minimum, mean and maximum power."""
    device, one = load_device(gpu), np.ones(1)
    assert idle_w(device, BOARDS) == pytest.approx(least_w, rel=0.05)
    rate, width = device.gemm_flops_per_s("bfloat16"), np.full(1, 2.0)
    for share in (0.5, 1.0):
        kernels = array_energy(
            share * rate * one, share * device.dram_bandwidth_bytes_per_s * one, width, device, BOARDS.systolic
        )
        watts = drawn_j(device, float(kernels.total_j[0]), 1.0)
        assert watts == pytest.approx(mean_w if share < 1.0 else most_w, rel=0.22)


def test_streams_add_what_their_bytes_take() -> None:
    bytes_moved = np.array([0.0, 1e12])
    for gpu in DEVICES:
        added = stream_energy(bytes_moved, load_device(gpu), BOARDS, PHYSICS)
        assert added.compute_j.tolist() == [0.0, 0.0]
        assert added.total_j[0] == 0.0 < added.total_j[1]


def test_launches_add_up() -> None:
    one = EnergyUse(**{name: np.array([1.0, 2.0]) for name in ("compute_j", "sram_j", "dram_j")})
    assert one.plus(one, 2.0).total_j.tolist() == [9.0, 18.0]
    assert one.take(np.array([1])).total_j.tolist() == [6.0]
