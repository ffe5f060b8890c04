"""Microcontrollers: cycles by formula, memories of their own, boards of one's own, and measured inferences."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from neusight.api import Predictor
from neusight.devices import load_device
from neusight.devices.spec import DeviceSpec, MicrocontrollerSpec
from neusight.errors import DeviceError
from neusight.executors import Options, load_executor
from neusight.kernels import KernelBatch
from neusight.kernels.families import Conv2d, Gemm
from neusight.laws.fitted import FittedMicrocontrollers, shipped
from neusight.laws.integer_kernels import PRIOR, active_power_w, kernel_cycles
from neusight.learn.evidence import FitOptions
from neusight.learn.microcontrollers import MICROCONTROLLERS

DATA = Path(os.environ.get("NEUSIGHT_DATA", "/nowhere"))
CONV = Conv2d(
    batch=1, in_channels=16, height=8, width=8, out_channels=32, kernel_height=3, kernel_width=3, stride=1, padding=1,
    dtype="int8",
)  # fmt: skip


def board(name: str = "nucleo-l4r5zi", *changes: str) -> MicrocontrollerSpec:
    device = load_device(name, changes)
    assert isinstance(device, MicrocontrollerSpec)
    return device


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor.load()


def test_cycles_are_those_of_multiply_adds_and_of_runs() -> None:
    layers, device = PRIOR.layers, board()
    scalar = 3.41 / device.coremark_per_mhz
    products, runs = 8 * 8 * 32 * 16 * 9, 8 * 8 * 32 * 3
    assert kernel_cycles(KernelBatch.of([CONV]), device, PRIOR) == pytest.approx(
        [scalar * (products * layers.convolution + runs * layers.run)]
    )
    dense = Gemm(op="linear", batch=1, m=1, n=128, k=640, dtype="int8")
    assert kernel_cycles(KernelBatch.of([dense]), device, PRIOR) == pytest.approx(
        [640 * 128 * layers.dense + scalar * 128 * layers.run]
    )


def test_each_channel_by_itself_and_single_taps_have_cycles_of_their_own() -> None:
    depthwise = replace(CONV, groups=16, out_channels=16)
    pointwise = replace(CONV, kernel_height=1, kernel_width=1, padding=0)
    layers, device = PRIOR.layers, board("nucleo-l4r5zi", "coremark=3.41CoreMark/MHz")
    outs = 8 * 8
    assert kernel_cycles(KernelBatch.of([depthwise, pointwise]), device, PRIOR) == pytest.approx(
        [outs * 16 * (9 * layers.depthwise + 3 * layers.run), outs * 32 * (16 * layers.pointwise + layers.run)]
    )


def test_a_faster_clock_and_more_lanes_are_never_slower() -> None:
    executor, batch = load_executor("microcontroller"), KernelBatch.of([CONV])

    def time_s(device: DeviceSpec) -> float:
        costs = executor.cost(batch, device, Options())
        assert costs.bound_s[0] <= costs.low_s[0] <= costs.latency_s[0] <= costs.high_s[0]
        return float(costs.latency_s[0])

    usual = time_s(board())
    assert time_s(board("nucleo-l4r5zi", "clock=160MHz")) < usual
    assert time_s(board("nucleo-l4r5zi", "clock=60MHz")) == pytest.approx(2 * usual, rel=1e-3)
    assert time_s(board("nucleo-l4r5zi", "vector_flops.int8=960MFLOP/s")) < usual
    with pytest.raises(DeviceError, match="is of kind gpu"):
        executor.cost(batch, load_device("t4"), Options())


def test_weights_lie_in_flash_and_all_else_in_sram(predictor: Predictor) -> None:
    step = predictor.estimate("mlperf-tiny-vww", "nucleo-f446re")
    assert step.fits
    assert "KiB of SRAM" in str(step.fit)
    assert step.fit.needed_bytes < step.peak_bytes
    wide = predictor.estimate("mlperf-tiny-vww", "nucleo-f446re", dtype="float32")
    assert not wide.fits
    small = predictor.estimate("mlperf-tiny-vww", "nucleo-f446re", overrides=["flash_capacity=100KiB"])
    assert not small.fits
    assert "of 100 KiB of flash" in str(small.fit)


def test_energy_is_power_times_time(predictor: Predictor) -> None:
    step, device = predictor.estimate("mlperf-tiny-kws", "nucleo-f446re"), board("nucleo-f446re")
    drawn_w = active_power_w(device, shipped(FittedMicrocontrollers).physics)
    assert step.board_energy is not None
    assert step.board_energy.low_j < step.board_energy.expected_j < step.board_energy.high_j
    assert step.board_energy.expected_j == pytest.approx(drawn_w * step.latency_s, rel=0.05)


def test_libraries_that_are_not_told_widen_the_interval(predictor: Predictor) -> None:
    from neusight.engines import Libraries

    usual = predictor.estimate("mlperf-tiny-ic", "nucleo-h7a3zi-q")
    told = predictor.estimate("mlperf-tiny-ic", "nucleo-h7a3zi-q", libraries=Libraries(factor=0.8, spread=0.05))
    assert told.latency_s == pytest.approx(0.8 * usual.latency_s, rel=0.02)
    width, narrow = (e.interval[1] / e.interval[0] for e in (usual, told))
    assert narrow < width


def test_a_board_of_ones_own_answers_or_names_what_it_lacks(tmp_path: Path, predictor: Predictor) -> None:
    file = tmp_path / "mine.toml"
    lines = {
        "id": '"mine"', "name": '"Mine"', "vendor": '"other"', "kind": '"microcontroller"',
        "architecture": '"Cortex-M55"', "release_date": "2023-01-01", "process": '"22 nm"', "clock": '"400 MHz"',
        "coremark": '"4.4 CoreMark/MHz"', "sram_capacity": '"4 MiB"', "sram_bandwidth": '"3.2 GB/s"',
        "flash_capacity": '"8 MiB"', "active_power": '"60 mW"',
    }  # fmt: skip
    rates = '[vector_flops]\nint8 = "6.4 GFLOP/s"\n'
    file.write_text("\n".join(f"{key} = {value}" for key, value in lines.items()) + "\n" + rates)
    assert predictor.estimate("mlperf-tiny-ic", str(file)).fits
    file.write_text("\n".join(f"{key} = {value}" for key, value in lines.items() if key != "clock") + "\n" + rates)
    with pytest.raises(DeviceError, match="clock"):
        predictor.estimate("mlperf-tiny-ic", str(file))


@pytest.mark.skipif(not DATA.is_dir(), reason="the measured data are not here")
def test_constants_that_ship_are_those_of_the_tables() -> None:
    fitted, known = MICROCONTROLLERS.fitted(FitOptions(data=DATA)), shipped(FittedMicrocontrollers)
    assert fitted.values == pytest.approx(known.values, rel=1e-3)
