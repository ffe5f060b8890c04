"""Convolutions in 16 bit: layouts, overlapping windows, depthwise filters; and reductions of short rows."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from neusight.devices import DeviceSpec, load_device
from neusight.executors.gpu.expected.convolutions import as_streams, is_depthwise, layout_transform_s
from neusight.executors.gpu.expected.laws import law_names
from neusight.executors.gpu.expected.matrix import matrix_times, product_tiling
from neusight.executors.gpu.expected.streams import stream_times
from neusight.executors.gpu.expected.times import start_s
from neusight.executors.gpu.tiling import Tiling
from neusight.kernels import KernelBatch, work_of
from neusight.kernels.conditions import Conditions
from neusight.laws.dram import sustained_dram_bytes_per_s
from neusight.laws.fitted import shipped_physics

PHYSICS = shipped_physics().physics

GPUS = ("v100-pcie-32gb", "l4", "h100-sxm-80gb")


def tiling_of(batch: KernelBatch, device: DeviceSpec) -> Tiling:
    return product_tiling(batch, device, Conditions.of(len(batch)), PHYSICS)


def convolutions(**changes: Any) -> KernelBatch:
    columns = {
        "batch": [32], "in_channels": [64], "out_channels": [64], "height": [28], "width": [28], "kernel_height": [3],
        "kernel_width": [3], "padding": [1], "dtype": ["float16"],
    }  # fmt: skip
    return KernelBatch.from_columns("conv2d", **columns | changes)


@pytest.mark.parametrize("gpu", GPUS)
def test_turning_reads_and_writes_input_and_output_once(gpu: str) -> None:
    device, conditions = load_device(gpu), Conditions.of(1)
    found = layout_transform_s(convolutions(), device, conditions, PHYSICS)
    moved = 2 * 2 * (2 * 32 * 64 * 28 * 28) / sustained_dram_bytes_per_s(device, PHYSICS)
    assert found == pytest.approx(moved + 2 * start_s(device, conditions, PHYSICS))


@pytest.mark.parametrize(("op", "images"), [("forward", 1), ("input_grad", 2), ("weight_grad", 2)])
def test_in_tf32_only_gathered_gradients_are_turned_back(op: str, images: int) -> None:
    device, conditions = load_device("l4"), Conditions.of(1)
    found = layout_transform_s(convolutions(op=[op], dtype=["tf32"]), device, conditions, PHYSICS)
    moved = 2 * 4 * (images * 32 * 64 * 28 * 28) / sustained_dram_bytes_per_s(device, PHYSICS)
    assert found == pytest.approx(moved + images * start_s(device, conditions, PHYSICS))


def test_gradients_of_filters_of_one_pixel_are_written_as_images_lie() -> None:
    device, conditions = load_device("l4"), Conditions.of(1)
    found = layout_transform_s(pointwise(op=["input_grad"], dtype=["tf32"]), device, conditions, PHYSICS)
    moved = 2 * 4 * (32 * 64 * 28 * 28) / sustained_dram_bytes_per_s(device, PHYSICS)
    assert found == pytest.approx(moved + start_s(device, conditions, PHYSICS))


@pytest.mark.parametrize("alike", [{"image_layout": ["nhwc"]}, {"in_channels": [1], "out_channels": [1]}])
def test_what_lies_the_same_in_both_layouts_is_not_turned(alike: dict[str, Any]) -> None:
    assert layout_transform_s(convolutions(**alike), load_device("l4"), Conditions.of(1), PHYSICS) == 0.0


@pytest.mark.parametrize(("inputs", "outputs", "turned"), [(64, 64, False), (24, 24, True), (16, 32, True)])
@pytest.mark.parametrize("dtype", ["float16", "tf32"])
def test_groups_that_kernels_in_nhwc_are_not_made_for_are_turned(
    inputs: int, outputs: int, turned: bool, dtype: str
) -> None:
    device, conditions, groups = load_device("l4"), Conditions.of(1), 4
    columns = {"in_channels": [groups * inputs], "out_channels": [groups * outputs], "dtype": [dtype]}
    grouped = convolutions(image_layout=["nhwc"], groups=[groups], **columns)
    size = 2 if dtype == "float16" else 4
    moved = 2 * size * (32 * groups * (inputs + outputs) * 28 * 28) / sustained_dram_bytes_per_s(device, PHYSICS)
    expected_s = moved + 2 * start_s(device, conditions, PHYSICS) if turned else 0.0
    assert layout_transform_s(grouped, device, conditions, PHYSICS) == pytest.approx(expected_s)
    assert layout_transform_s(convolutions(image_layout=["nhwc"], **columns), device, conditions, PHYSICS) == 0.0


def pointwise(**changes: Any) -> KernelBatch:
    return convolutions(**{"kernel_height": [1], "kernel_width": [1], "padding": [0]} | changes)


@pytest.mark.parametrize("gpu", GPUS)
def test_filters_of_one_pixel_multiply_images_in_nchw_as_they_lie(gpu: str) -> None:
    device, conditions, batch = load_device(gpu), Conditions.of(1), pointwise()
    tiling = tiling_of(batch, device)
    # 64 filters by 784 pixels, for each of 32 images.
    assert tiling.implicit_nchw and tiling.batch == 32 and tiling.depth == 64
    assert tiling.down * tiling.tile_m >= 64 and tiling.across * tiling.tile_n >= 28 * 28
    times = matrix_times(batch, device, conditions, PHYSICS, tiling)
    assert times.fixed_overhead_s == pytest.approx(start_s(device, conditions, PHYSICS))


@pytest.mark.parametrize(
    "other",
    [{"height": [7], "width": [7]}, {"stride": [2]}, {"op": ["input_grad"]}, {"op": ["weight_grad"]}, {"groups": [2]}],
    ids=["odd pixels", "stride", "gradient of images", "gradient of filters", "groups"],
)
def test_what_no_product_in_nchw_computes_is_turned(other: dict[str, Any]) -> None:
    assert not tiling_of(pointwise(**other), load_device("l4")).implicit_nchw
    assert layout_transform_s(pointwise(**other), load_device("l4"), Conditions.of(1), PHYSICS) > 0


def test_images_are_turned_where_that_is_faster() -> None:
    """Few pixels an image fill no tile: a product over those of all images is worth turning them."""
    batch = pointwise(batch=[4096], height=[2], width=[2], in_channels=[2048], out_channels=[2048])
    assert not tiling_of(batch, load_device("l4")).implicit_nchw


@pytest.mark.parametrize("gpu", GPUS)
def test_windows_that_overlap_are_one_image_in_dram(gpu: str) -> None:
    device, batch = load_device(gpu), convolutions(batch=[256])
    tiling = tiling_of(batch, device)
    times = matrix_times(batch, device, Conditions.of(1), PHYSICS, tiling)
    image_s = work_of(batch).bytes / sustained_dram_bytes_per_s(device, PHYSICS)
    # Nine windows hold a pixel; re-reads of blocks come on top of the image itself, far below that.
    assert image_s <= times.dram_s < 3 * image_s


def test_depthwise_filters_are_told_by_their_groups() -> None:
    groups = convolutions(in_channels=[64, 64, 64, 1], groups=[1, 32, 64, 1], **_four())
    assert is_depthwise(groups).tolist() == [False, False, True, False]


def _four() -> dict[str, Any]:
    return {name: [value] * 4 for name, value in (("out_channels", 64), ("batch", 2), ("height", 8), ("width", 8))} | {
        "kernel_height": [3] * 4, "kernel_width": [3] * 4, "padding": [1] * 4, "dtype": ["float16"] * 4,
    }  # fmt: skip


@pytest.mark.parametrize("op", ["forward", "input_grad", "weight_grad"])
def test_a_depthwise_stream_has_the_work_of_its_convolution(op: str) -> None:
    batch = convolutions(groups=[64], op=[op])
    one, other = work_of(batch), work_of(as_streams(batch))
    assert (one.flops, one.read_bytes, one.write_bytes) == (other.flops, other.read_bytes, other.write_bytes)


def test_other_families_stay_as_they_are() -> None:
    gemm = KernelBatch.from_columns("gemm", m=[64], n=[64], k=[64])
    assert as_streams(gemm) is gemm


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("cols", [49, 196, 784])
def test_rows_of_a_reduction_share_blocks_and_wait_for_memory(gpu: str, cols: int) -> None:
    device, rows = load_device(gpu), 2**28 // cols
    size = {"read_bytes": [2 * rows * cols], "write_bytes": [2 * rows], "flops": [rows * cols]}
    columns = {"op": ["mean"], "rows": [rows], "cols": [cols], "dtype": ["float16"]}
    times = stream_times(
        KernelBatch.from_columns("row_reduction", **columns, **size), device, Conditions.of(1), PHYSICS
    )
    # Seven by seven pixels are two values a thread of a warp: those wait for each other, at most four times as long.
    assert times.unlimited_s < 4 * 2 * rows * cols / sustained_dram_bytes_per_s(device, PHYSICS)


@pytest.mark.parametrize("gpu", GPUS)
def test_short_rows_of_a_reduction_share_a_block(gpu: str) -> None:
    rows, cols = 2**26 // np.array([2, 64]), np.array([2, 64])
    size = {"read_bytes": [2**28] * 2, "write_bytes": 4 * rows, "flops": [2**26] * 2}
    batch = KernelBatch.from_columns("row_reduction", op=["sum", "sum"], rows=rows, cols=cols, **size)
    short, long = stream_times(batch, load_device(gpu), Conditions.of(2), PHYSICS).unlimited_s
    # The same elements; a row that took a warp each would take 32 times as long.
    assert short < 8 * long


@pytest.mark.parametrize(("op", "name"), [("forward", ""), ("input_grad", "input_"), ("weight_grad", "weight_")])
@pytest.mark.parametrize("gpu", GPUS)
def test_a_value_of_a_window_costs_instructions_and_half_of_them_where_channels_lie_side_by_side(
    gpu: str, op: str, name: str
) -> None:
    device, stream = load_device(gpu), PHYSICS.stream
    edges = {"kernel_height": [3, 7], "kernel_width": [3, 7], "padding": [1, 3], "groups": [64, 64], "op": [op, op]}
    twice = {name: value * 2 for name, value in _one().items()} | edges
    for layout, share in (("nchw", 1.0), ("nhwc", 0.5)):
        batch = as_streams(convolutions(**twice, image_layout=[layout] * 2))
        small, large = stream_times(batch, device, Conditions.of(2), PHYSICS).compute_s
        taps = (49 - 9) * 32 * 64 * 28 * 28
        each = 2 * stream.flop_instructions + share * getattr(stream, f"{name}tap_instructions")
        clocked = device.cuda_cores_per_sm * device.sm_count * device.boost_clock_hz
        assert large - small == pytest.approx(taps * each / clocked)


def _one() -> dict[str, Any]:
    names = ("batch", "in_channels", "out_channels", "height", "width", "dtype")
    return dict(zip(names, ([32], [64], [64], [28], [28], ["float16"]), strict=True))


@pytest.mark.parametrize("dtype", ["float32", "float16", "tf32"])
def test_depthwise_filters_are_streams_in_any_dtype(dtype: str) -> None:
    assert law_names(convolutions(groups=[64], dtype=[dtype]), load_device("l4")) == "stream"


@pytest.mark.parametrize(
    ("changes", "law"),
    [
        ({}, "matrix"),
        ({"kernel_width": [3]}, "stream"),
        ({"image_layout": ["nchw"]}, "stream"),
        ({"dtype": ["float16"]}, "stream"),
    ],
)
def test_depthwise_filters_that_are_not_square_are_grouped_products_in_nhwc_and_tf32(
    changes: dict[str, Any], law: str
) -> None:
    filters = {"groups": [64], "kernel_height": [3], "kernel_width": [7], "image_layout": ["nhwc"], "dtype": ["tf32"]}
    assert law_names(convolutions(**filters | changes), load_device("l4")) == law


@pytest.mark.parametrize(
    ("changes", "law"),
    [
        ({}, "stream"),
        ({"image_layout": ["nchw"]}, "matrix"),
        ({"op": ["forward"]}, "matrix"),
        ({"op": ["input_grad"]}, "matrix"),
        ({"groups": [1]}, "matrix"),
        ({"groups": [8]}, "matrix"),
        ({"dtype": ["float32"]}, ""),
    ],
    ids=["NHWC", "NCHW", "forward", "gradient of images", "one group", "groups of eight channels", "float32"],
)
def test_gradients_of_grouped_filters_in_nhwc_run_without_matrix_units(changes: dict[str, Any], law: str) -> None:
    grouped = {"op": ["weight_grad"], "image_layout": ["nhwc"], "groups": [2]}
    assert law_names(convolutions(**grouped | changes), load_device("l4")) == law


def test_only_gradients_of_filters_are_cut_into_more_than_sixteen_parts() -> None:
    device = load_device("a100-sxm-80gb")
    # One tile of 64 x 64 filters, over half a million pixels: no SM but one would work.
    for op, least, most in (("weight_grad", 32, 128), ("forward", 1, 16)):
        batch = convolutions(op=[op], batch=[640], kernel_height=[1], kernel_width=[1], padding=[0])
        assert least <= tiling_of(batch, device).parts <= most


def test_channels_that_are_turned_are_padded_on_the_way() -> None:
    device, batch = load_device("l4"), convolutions(in_channels=[3], out_channels=[67])
    free = replace(PHYSICS, matrix=replace(PHYSICS.matrix, copy_cycles=0.0))
    tiling = tiling_of(batch, device)
    dear, cheap = (matrix_times(batch, device, Conditions.of(1), p, tiling).compute_s for p in (PHYSICS, free))
    assert dear == cheap


@pytest.mark.parametrize(("op", "indexed"), [("forward", True), ("input_grad", True), ("weight_grad", False)])
@pytest.mark.parametrize("dtype", ["float32", "tf32", "float16"])
def test_depthwise_values_have_their_place_computed_in_float32(op: str, indexed: bool, dtype: str) -> None:
    device, batch = load_device("l4"), as_streams(convolutions(groups=[64], op=[op], dtype=[dtype]))
    free = replace(PHYSICS, stream=replace(PHYSICS.stream, window_instructions=0.0))
    dear, cheap = (stream_times(batch, device, Conditions.of(1), p).compute_s for p in (PHYSICS, free))
    lanes_per_s = device.cuda_cores_per_sm * device.sm_count * device.boost_clock_hz
    expected = PHYSICS.stream.window_instructions * (32 * 64 * 28 * 28) / lanes_per_s
    assert dear - cheap == pytest.approx(expected if indexed and dtype != "float16" else 0.0)
