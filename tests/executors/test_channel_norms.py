"""Batch normalisation in training: a block walks along each channel in NCHW, in NHWC all blocks share all channels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neusight.devices import load_device
from neusight.executors.gpu.expected.streams import stream_times
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.laws.dram import sustained_dram_bytes_per_s
from neusight.laws.fitted import shipped_physics

PHYSICS = shipped_physics().physics

GPUS = ("v100-pcie-32gb", "l4", "h100-sxm-80gb")
ELEMENTS = 2**26


def norms(rows: int, layout: str = "nchw", op: str = "batch_norm", **more: Any) -> KernelBatch:
    size = 2 if more.get("dtype", "float16") == "float16" else 4
    columns = {"rows": [rows], "cols": [ELEMENTS // rows], "dtype": ["float16"], "flops": [ELEMENTS]}
    moved = {"read_bytes": [size * ELEMENTS], "write_bytes": [size * ELEMENTS]}
    return KernelBatch.from_columns("row_reduction", op=[op], image_layout=[layout], **columns | moved | more)


def serial_s(batch: KernelBatch, gpu: str) -> float:
    return float(stream_times(batch, load_device(gpu), Conditions.of(1), PHYSICS).serial_s[0])


@pytest.mark.parametrize("gpu", GPUS)
def test_a_block_walks_twice_along_its_channel(gpu: str) -> None:
    device, stream = load_device(gpu), PHYSICS.stream
    # Four channels, each an SM's only block: 512 threads with two loads, for the statistics and to apply them.
    step = stream.step_cycles * (device.max_threads_per_sm // 512 * 512 / 2048) ** stream.crowding
    steps = 2 * np.ceil(ELEMENTS / 4 / (512 * 2))
    assert serial_s(norms(4), gpu) == pytest.approx((stream.row_cycles + steps * step) / device.boost_clock_hz)


@pytest.mark.parametrize("gpu", GPUS)
def test_a_gradient_loads_from_two_tensors(gpu: str) -> None:
    start_s = PHYSICS.stream.row_cycles / load_device(gpu).boost_clock_hz
    forward, backward = (serial_s(norms(4, op=op), gpu) - start_s for op in ("batch_norm", "batch_norm_backward"))
    assert backward == pytest.approx(2 * forward)


@pytest.mark.parametrize("gpu", GPUS)
def test_few_channels_leave_a_device_idle_in_nchw_alone(gpu: str) -> None:
    device = load_device(gpu)
    few, many = (norms(rows) for rows in (4, 4096))
    assert serial_s(few, gpu) > 10 * serial_s(many, gpu)
    nhwc = [stream_times(norms(r, "nhwc"), device, Conditions.of(1), PHYSICS).unlimited_s for r in (4, 4096)]
    assert nhwc[0] == pytest.approx(nhwc[1])
    # Read and written at least; what it reads again may lie in L2.
    assert nhwc[0] >= 2 * 2 * ELEMENTS / sustained_dram_bytes_per_s(device, PHYSICS)


def test_other_reductions_know_no_layout() -> None:
    assert serial_s(norms(64, op="layer_norm"), "l4") == serial_s(norms(64, "nhwc", op="layer_norm"), "l4")
