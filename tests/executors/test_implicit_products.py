"""Convolutions in TF32 as implicit products: chunks of channels, zeros of strides, tiles of gradients."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from neusight.devices import load_device
from neusight.executors.gpu.expected.matrix import matrix_times, product_tiling
from neusight.executors.gpu.expected.products import GRADIENT_COLUMNS, TAP_CHANNELS, implicit_product
from neusight.executors.gpu.features.situation import LawfulSituation, situate
from neusight.executors.gpu.tiling import tile
from neusight.executors.gpu.tiling.library import shipped_choice
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.kernels.work import conv_gemm
from neusight.laws.physics import PRIOR, Physics

GPUS = ("a100-sxm-80gb", "h100-sxm-80gb", "l4")
DEVICE = load_device("a100-sxm-80gb")


def under(**constants: float) -> Physics:
    return replace(PRIOR, implicit=replace(PRIOR.implicit, **constants))


def convolutions(**columns: Any) -> KernelBatch:
    usual = {"batch": [16], "out_channels": [64], "in_channels": [64], "height": [64], "width": [64]}
    kernel = {"kernel_height": [3], "kernel_width": [3], "padding": [1], "dtype": ["tf32"]}
    return KernelBatch.from_columns("conv2d", **usual | kernel | columns)


def times_s(batch: KernelBatch, gpu: str, physics: Physics) -> np.ndarray:
    device, conditions = load_device(gpu), Conditions.of(len(batch))
    return matrix_times(
        batch, device, conditions, physics, product_tiling(batch, device, conditions, physics)
    ).unlimited_s


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize(("op", "reduced"), [("forward", "in_channels"), ("input_grad", "out_channels")])
def test_channels_of_a_tap_are_taken_in_chunks(gpu: str, op: str, reduced: str) -> None:
    counts = np.array([1, 3, 8, 31, 32])
    product = implicit_product(convolutions(op=[op], **{reduced: counts}), load_device(gpu), under(fill=1.0))
    assert product.k == pytest.approx(9 * TAP_CHANNELS)
    filled = implicit_product(convolutions(op=[op], **{reduced: counts}), load_device(gpu), under(fill=0.0))
    assert filled.k == pytest.approx(9 * counts)


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize(("op", "reduced"), [("forward", "in_channels"), ("input_grad", "out_channels")])
@pytest.mark.parametrize("fill", [0.3, 0.8, 1.0])
def test_more_channels_are_never_faster(gpu: str, op: str, reduced: str, fill: float) -> None:
    found = times_s(convolutions(op=[op], **{reduced: np.arange(1, 130)}), gpu, under(fill=fill))
    assert (np.diff(found) >= -1e-12).all()


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("dtype", ["tf32", "float16"])
def test_what_is_expected_holds_all_that_the_law_asks_for(gpu: str, dtype: str) -> None:
    # Winograd, which is expected of 3x3 filters in float32, would take half of it.
    batch = convolutions(in_channels=[256], out_channels=[256], dtype=[dtype])
    found = situate(batch, load_device(gpu), shipped_choice(), physics=PRIOR)
    assert isinstance(found, LawfulSituation)
    assert found.unlimited_s == pytest.approx(found.times.unlimited_s)
    assert found.expected_s >= found.times.compute_s + found.fixed_overhead_s


def test_zeros_of_a_stride_are_skipped_in_part() -> None:
    batch = convolutions(op=["input_grad"], stride=[2])
    exact = conv_gemm(batch)[3]
    skipped, partly, whole = (implicit_product(batch, DEVICE, under(zeros=w)).k for w in (0.0, 0.5, 1.0))
    assert skipped == pytest.approx(exact)
    # Of a gradient that is dilated in both directions one pixel in four is not zero.
    assert whole == pytest.approx(4 * exact)
    assert whole == pytest.approx(64 * 9)
    assert partly == pytest.approx(2 * exact)


def test_depth_is_dilated_too() -> None:
    """A 3-d convolution of stride 2, 16 x 16 x 16 to 8 x 8 x 8 pixels."""
    folded = {"height": [16 * 16], "width": [16], "kernel_height": [9], "output_height": [64], "output_width": [8]}
    batch = convolutions(op=["input_grad"], stride=[2], **folded)
    assert implicit_product(batch, DEVICE, under(zeros=1.0)).k == pytest.approx(8 * conv_gemm(batch)[3])


def test_ordinary_pipelines_compute_zeros_too() -> None:
    t4, batch = load_device("t4"), convolutions(op=["forward", "input_grad"], stride=[2], dtype=["float32"])
    forward, gradient = tile(batch, t4, shipped_choice(), under(zeros=1.0)).depth
    assert (forward, gradient) == pytest.approx((64 * 9, 64 * 9))
    assert tile(batch, t4, shipped_choice(), under(zeros=0.0)).depth[1] == pytest.approx(64 * 9 / 4)


@pytest.mark.parametrize("channels", [1, 3, 16, 64, 128])
def test_tiles_of_gradients_have_columns_for_many_channels(channels: int) -> None:
    narrow = convolutions(op=["forward", "input_grad"], out_channels=[channels, 64], in_channels=[64, channels])
    forward, gradient = product_tiling(narrow, DEVICE, Conditions.of(len(narrow)), PRIOR).tile_n
    assert gradient >= GRADIENT_COLUMNS
    assert forward < GRADIENT_COLUMNS or channels > 16


def test_kernels_for_ampere_reach_a_share_of_units_that_read_shared_memory() -> None:
    shares = [
        implicit_product(convolutions(), load_device(gpu), under(share=0.5, synchronous=0.6)).share for gpu in GPUS
    ]
    assert np.concatenate(shares) == pytest.approx([0.5, 0.3, 0.5])


@pytest.mark.parametrize("op", ["forward", "input_grad", "weight_grad"])
@pytest.mark.parametrize("columns", [{"dtype": ["float16"]}, {"kernel_height": [1], "kernel_width": [1]}])
def test_16_bit_and_filters_of_one_pixel_are_plain_products(op: str, columns: dict[str, Any]) -> None:
    batch = convolutions(op=[op], stride=[2], in_channels=[3], **columns)
    product = implicit_product(batch, DEVICE, PRIOR)
    _, m, n, k = conv_gemm(batch)
    assert (product.m, product.n, product.k) == (m, n, k)
    assert (product.share, product.least_columns) == (1.0, 1.0)
