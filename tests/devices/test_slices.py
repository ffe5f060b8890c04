"""Slices of a GPU have their share of its figures."""

from __future__ import annotations

import pytest

from neusight import load_device
from neusight.devices.slices import slice_of
from neusight.errors import DeviceError


def test_a_slice_has_its_share_of_sms_memory_and_l2() -> None:
    """As NVIDIA's table of A100's profiles: 2g.10gb is 28 SMs, two of eight memory slices."""
    board = load_device("a100-sxm-40gb")
    part = load_device("a100-sxm-40gb", slice_of(board, 2))
    assert part.sm_count == 28
    assert part.dram_capacity_bytes == pytest.approx(10e9)
    assert part.dram_bandwidth_bytes_per_s == pytest.approx(board.dram_bandwidth_bytes_per_s / 4)
    assert part.l2_capacity_bytes == pytest.approx(board.l2_capacity_bytes / 4)
    assert part.gemm_flops_per_s("float16") == pytest.approx(board.gemm_flops_per_s("float16") * 28 / 108)
    assert part.boost_clock_hz == board.boost_clock_hz


def test_slices_that_are_not_there_are_refused() -> None:
    with pytest.raises(DeviceError, match="one of 1, 2, 3, 4, 7"):
        slice_of(load_device("h100-sxm-80gb"), 5)
    with pytest.raises(DeviceError, match="no slices"):
        slice_of(load_device("l4"), 1)
