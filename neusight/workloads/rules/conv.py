"""Convolutions: forward, gradient of the input, gradient of the weight, and the bias as a kernel of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from neusight.kernels import Conv2d, Elementwise, Kernel, RowReduction
from neusight.kernels.operators import ELEMENTWISE, ROW_REDUCTION
from neusight.workloads.rules.registry import rule
from neusight.workloads.tensors import Call, TensorSpec


@dataclass(frozen=True)
class _Geometry:
    """Stride, padding and dilation of a convolution in each dimension, and its groups."""

    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    groups: int

    @property
    def is_uniform(self) -> bool:
        """Tell whether one number stands for all dimensions."""
        return all(len(set(extents)) == 1 for extents in (self.stride, self.padding, self.dilation))


def _plane(extents: Sequence[int]) -> tuple[int, int]:
    """Height and width; one dimension is a height of 1, and a depth counts into the height."""
    return prod(extents[:-1]), extents[-1]


def _conv(op: str, image: TensorSpec, weight: TensorSpec, output: TensorSpec, how: _Geometry) -> Conv2d:
    """Convolution kernel from the input of the forward convolution, its weight and its output."""
    (height, width), (kernel_height, kernel_width) = _plane(image.shape[2:]), _plane(weight.shape[2:])
    follows = len(image.shape) == 4 and how.is_uniform
    output_height, output_width = (0, 0) if follows else _plane(output.shape[2:])
    return Conv2d(
        op=op, batch=image.shape[0], in_channels=image.shape[1], out_channels=weight.shape[0], height=height,
        width=width, kernel_height=kernel_height, kernel_width=kernel_width, stride=how.stride[-1],
        padding=how.padding[-1], dilation=how.dilation[-1], groups=how.groups, dtype=image.dtype,
        output_height=output_height, output_width=output_width,
    )  # fmt: skip


@rule("convolution", "_convolution")
def convolution(call: Call) -> tuple[Kernel, ...]:
    """cuDNN's forward, then the bias added in place. A transposed convolution is the input gradient of its mirror."""
    x, weight, bias, stride, padding, dilation, transposed, _, groups = call.args[:9]
    how = _Geometry(stride, padding, dilation, groups)
    op, image, output = ("input_grad", call.output, x) if transposed else ("forward", x, call.output)
    kernel = _conv(op, image, weight, output, how)
    return (kernel,) if bias is None else (kernel, _add_bias(call.output, bias))


def _add_bias(out: TensorSpec, bias: TensorSpec) -> Elementwise:
    return Elementwise(
        op="add", elements=out.elements, read_bytes=out.nbytes + bias.nbytes, write_bytes=out.nbytes,
        flops=ELEMENTWISE["add"].flops * out.elements, dtype=out.dtype,
    )  # fmt: skip


@rule("convolution_backward")
def convolution_backward(call: Call) -> tuple[Kernel, ...]:
    """One kernel for each gradient asked for; that of the bias sums the output gradient over all but channels."""
    grad, x, weight, _, stride, padding, dilation, transposed, _, groups, needs = call.args[:11]
    how = _Geometry(stride, padding, dilation, groups)
    image, output = (grad, x) if transposed else (x, grad)
    ops = ("forward" if transposed else "input_grad", "weight_grad")
    kernels: list[Kernel] = [
        _conv(op, image, weight, output, how) for op, want in zip(ops, needs, strict=False) if want
    ]
    if needs[2]:
        kernels.append(channel_sum(grad))
    return tuple(kernels)


def channel_sum(grad: TensorSpec) -> RowReduction:
    """Sum over batch and space, one row a channel."""
    channels = grad.shape[1]
    return RowReduction(
        op="sum", rows=channels, cols=grad.shape[0] * prod(grad.shape[2:]), read_bytes=grad.nbytes,
        write_bytes=grad.nbytes // max(1, grad.elements) * channels,
        flops=ROW_REDUCTION["sum"].flops * grad.elements, dtype=grad.dtype,
    )  # fmt: skip
