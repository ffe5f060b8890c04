"""torch.compile: norms whose statistics and results share no loop, and losses that are one."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from neusight.transforms.compiled import compiled
from neusight.workloads import load_workload

IMAGES = (4, 16, 32, 32)
SIZE = 4 * 4 * 16 * 32 * 32


class Huber(nn.Module):
    """A loss of each element, and their mean."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.smooth_l1_loss(x, x + 1.0)


class ChannelNorm(nn.Module):
    """Divides by a mean over channels, which lie across images."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / (x * x).mean(dim=1, keepdim=True)


def kernels(module: nn.Module, shape: tuple[int, ...], launch: str = "compiled") -> list[Any]:
    """Those that read or write as much as the input has."""
    step = compiled(load_workload(module, inputs=(torch.zeros(shape),), launch=launch, dtype="float32"))
    found: list[Any] = [kernel for node in step.nodes for kernel in node.kernels]
    return [kernel for kernel in found if kernel.read_bytes >= 4 * torch.Size(shape).numel()]


@pytest.mark.parametrize(
    "module",
    [nn.BatchNorm2d(16, track_running_stats=False), ChannelNorm(), nn.GroupNorm(2, 16)],
    ids=["batch norm", "mean of channels", "few long rows"],
)
def test_statistics_that_share_no_loop_read_the_images_once_more(module):
    shape = IMAGES if not isinstance(module, nn.GroupNorm) else (1, 16, 64, 64)
    size = 4 * torch.Size(shape).numel()
    statistics, scaled = kernels(nn.Sequential(module, nn.ReLU()), shape)
    assert statistics.write_bytes < size / 4
    assert statistics.read_bytes < 1.1 * size
    assert scaled.write_bytes == size
    assert scaled.read_bytes < 1.2 * size


def test_a_norm_of_many_short_rows_is_one_kernel_with_what_follows():
    (norm,) = kernels(nn.Sequential(nn.LayerNorm(32), nn.ReLU()), IMAGES)
    assert (norm.op, norm.write_bytes) == ("layer_norm", SIZE)


def test_a_loss_writes_each_element_out_unless_it_is_compiled():
    each = [(kernel.op, kernel.write_bytes) for kernel in kernels(Huber(), IMAGES, "eager")]
    assert each == [("add_scalar", SIZE), ("smooth_l1_loss", SIZE), ("mean", 4)]
    (loss,) = kernels(Huber(), IMAGES)
    assert (loss.rows, loss.cols, loss.write_bytes, loss.read_bytes) == (1, SIZE // 4, 4, SIZE)


class RowNorm(nn.Module):
    """Divides by a mean over rows, which lie in one piece."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / (x * x).mean(dim=-1, keepdim=True)


@pytest.mark.parametrize(("cols", "op"), [(512, "mean"), (4096, "group_norm")])
def test_rows_too_long_to_be_kept_are_read_again_for_what_comes_of_their_sum(cols, op):
    (fused,) = kernels(RowNorm(), (1024, cols))
    assert (fused.op, fused.rows, fused.cols) == (op, 1024, cols)
    assert fused.read_bytes == fused.write_bytes == 4 * 1024 * cols


def test_a_sum_whose_rows_blocks_share_is_over_before_what_comes_of_it():
    total, scaled = kernels(RowNorm(), (8, 65536))
    assert (total.op, total.write_bytes, scaled.write_bytes) == ("mean", 4 * 8, 4 * 8 * 65536)
