"""Convolutions as a compiler runs them: biases fused, images in NHWC with the copies that this needs."""

import pytest
import torch
from torch import nn

from neusight.transforms.fusion import fuse
from neusight.workloads import load_workload

ROWS = 4, 32, 32


def fused(*layers, batch=2, mode="inference", launch="compiled"):
    module = nn.Sequential(*layers).train()
    channels = next(m for m in layers if hasattr(m, "in_channels")).in_channels
    return fuse(
        load_workload(
            module, inputs=(torch.zeros(batch, channels, *ROWS[1:]),), mode=mode, launch=launch, dtype="float32"
        )
    )


def operators(step):
    return [node.operator.removeprefix("aten.").partition(".default")[0] for node in step.nodes if node.kernels]


def layouts(step):
    return {k.image_layout for node in step.nodes for k in node.kernels if k.family == "conv2d"}


def moved(step):
    return [
        k.read_bytes + k.write_bytes
        for node in step.nodes
        for k in node.kernels
        if k.family == "memory" and k.op == "copy"
    ]


def test_a_bias_is_computed_with_what_follows():
    step = fused(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Hardtanh())
    assert sum("fused" in name and "relu" in name for name in operators(step)) == 1
    assert len([k for node in step.nodes for k in node.kernels if k.family == "elementwise"]) == 1


def test_images_filters_and_results_that_lie_otherwise_are_copied_once():
    image, filters = 4 * 2 * 8 * 32 * 32, 4 * 8 * 16 * 9
    result = 4 * 2 * 16 * 30 * 30
    assert sorted(moved(fused(nn.Conv2d(8, 16, 3, bias=False)))) == sorted(
        2 * size for size in (image, filters, result)
    )
    # What comes after the convolution writes the result as it is wanted; a filter of one pixel lies either way.
    assert moved(fused(nn.Conv2d(8, 16, 1), nn.ReLU())) == [2 * image]


@pytest.mark.parametrize(
    ("layer", "mode", "layout"),
    [
        (nn.Conv2d(8, 16, 3), "inference", "nhwc"),
        (nn.Conv2d(8, 16, 3, groups=4), "inference", "nchw"),
        (nn.Conv2d(8, 8, 3, groups=8), "inference", "nhwc"),
        (nn.Conv2d(8, 16, 3), "training", "nchw"),
        (nn.Conv2d(8, 128, 3), "training", "nhwc"),
        (nn.Conv2d(256, 128, 3), "training", "nchw"),
    ],
)
def test_the_layout_is_that_of_inductors_rule(layer, mode, layout):
    assert layouts(fused(layer, mode=mode)) == {layout}


def test_volumes_keep_their_layout():
    module = nn.Sequential(nn.Conv3d(4, 8, 3), nn.ReLU())
    step = fuse(load_workload(module, inputs=(torch.zeros(1, 4, 8, 8, 8),), launch="compiled", dtype="float32"))
    assert layouts(step) == {"nchw"}
    assert moved(step) == []


@pytest.mark.parametrize(("bias", "kernels"), [(True, 2), (False, 1)])
def test_what_is_made_of_several_operands_is_written_before_it_is_pooled(bias, kernels):
    step = fused(nn.Conv2d(8, 16, 3, bias=bias), nn.ReLU(), nn.AvgPool2d(2))
    generated = [k for node in step.nodes for k in node.kernels if k.family == "elementwise"]
    assert len(generated) == kernels
    assert generated[0].read_bytes >= 4 * 2 * 16 * 30 * 30


@pytest.mark.parametrize(
    ("pool", "op"),
    [(nn.MaxPool2d(2), "maximum"), (nn.AvgPool2d(5), "add"), (nn.AvgPool2d(6), "avg_pool2d")],
)
def test_small_windows_are_pooled_without_a_loop(pool, op):
    step = fuse(load_workload(pool, inputs=(torch.zeros(2, 8, 30, 30),), launch="compiled", dtype="float32"))
    assert [kernel.op for node in step.nodes for kernel in node.kernels] == [op]
