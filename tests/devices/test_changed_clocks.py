"""One figure of a device is changed alone, and what depends on it follows; short names of families are taken."""

from __future__ import annotations

import pytest

from neusight.api import Predictor
from neusight.devices import gpu_of, load_device
from neusight.devices.load import find_device
from neusight.errors import DeviceError


@pytest.mark.parametrize(("gpu", "clock"), [("l4", "0.5GHz"), ("a100-sxm-80gb", "300MHz"), ("mi300x", "0.6GHz")])
def test_load_device_lowers_the_base_clock_with_the_boost_clock(gpu: str, clock: str) -> None:
    before, after = gpu_of(load_device(gpu)), gpu_of(load_device(gpu, [f"boost_clock={clock}"]))
    assert after.base_clock_hz == after.boost_clock_hz < before.base_clock_hz
    ratio = after.boost_clock_hz / before.boost_clock_hz
    for dtype, rate in after.matrix_flops_per_s.items():
        assert rate == pytest.approx(ratio * before.matrix_flops_per_s[dtype])
    assert f"base_clock={clock}" in after.hypothetical


def test_load_device_keeps_a_base_clock_below_the_boost_clock() -> None:
    spec = gpu_of(load_device("l4", ["boost_clock=1GHz"]))
    assert (spec.base_clock_hz, spec.boost_clock_hz) == (795e6, 1e9)
    with pytest.raises(DeviceError, match=r"^--set boost_clock=0\.5GHz --set base_clock=0\.6GHz: base_clock is above"):
        load_device("l4", ["boost_clock=0.5GHz", "base_clock=0.6GHz"])


@pytest.mark.parametrize(
    ("gpu", "key", "clocks"),
    [
        ("l4", "boost_clock", (0.3, 0.5, 0.79, 0.8, 1.2, 2.04)),
        ("h100-sxm-80gb", "boost_clock", (0.3, 0.9, 1.2, 1.755)),
        ("t4", "boost_clock", (0.3, 0.5, 0.585, 1.0, 1.59)),
        ("tpu-v5e", "clock", (0.3, 0.8, 1.5)),
    ],
)
def test_estimate_is_never_faster_with_a_slower_clock(
    gpu: str, key: str, clocks: tuple[float, ...], predictor: Predictor
) -> None:
    times = [predictor.estimate("gpt2", gpu, overrides=[f"{key}={clock}GHz"]).latency_s for clock in clocks]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize(
    ("short", "taken"),
    [
        ("rtx-pro-6000", "rtx-pro-6000-server"),
        ("RTX PRO 6000", "rtx-pro-6000-server"),
        ("6000 workstation", "rtx-pro-6000-workstation"),
        ("a100 40gb", "a100-sxm-40gb"),
        ("a100 pcie", "a100-pcie-40gb"),
        ("v100 32gb", "v100-sxm2-32gb"),
        ("v100-pcie", "v100-pcie-16gb"),
        ("rx 7900", "rx-7900-xt"),
        ("jetson", "jetson-agx-orin"),
    ],
)
def test_find_device_takes_one_of_a_family(short: str, taken: str) -> None:
    match = find_device(short)
    assert match.name == taken
    assert match.others
    assert match.assumption.startswith(f"{short} taken as {taken}; others: ")


@pytest.mark.parametrize("short", ["titan", "6000", "rtx 4000"])
def test_find_device_refuses_a_name_of_several_architectures(short: str) -> None:
    with pytest.raises(DeviceError, match="name one of them"):
        find_device(short)
