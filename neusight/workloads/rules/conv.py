"""Convolutions: forward, gradient of the input, gradient of the weight, and the bias as a kernel of its own."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from neusight.errors import CoverageError
from neusight.kernels import Conv2d, Elementwise, Kernel, RowReduction
from neusight.kernels.operators import ELEMENTWISE, ROW_REDUCTION
from neusight.workloads.rules.registry import rule
from neusight.workloads.tensors import Call, TensorSpec


def _two(shape: Sequence[int]) -> tuple[int, int]:
    """Height and width of a 2-D convolution; a 1-D convolution is one of height 1."""
    if len(shape) > 2:
        raise CoverageError("operator 'aten.convolution' has no kernel rule in 3-D: only 1-D and 2-D are covered")
    return (1, shape[0]) if len(shape) == 1 else (shape[0], shape[1])


def _conv(
    op: str,
    x: TensorSpec,
    weight: TensorSpec,
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Conv2d:
    height, width = _two(x.shape[2:])
    kernel_height, kernel_width = _two(weight.shape[2:])
    return Conv2d(
        op=op, batch=x.shape[0], in_channels=x.shape[1], out_channels=weight.shape[0], height=height, width=width,
        kernel_height=kernel_height, kernel_width=kernel_width, stride=stride[-1], padding=padding[-1],
        dilation=dilation[-1], groups=groups, dtype=x.dtype,
    )  # fmt: skip


@rule("convolution", "_convolution")
def convolution(call: Call) -> tuple[Kernel, ...]:
    """cuDNN's forward, then the bias added in place. A transposed convolution is the input gradient of its mirror."""
    x, weight, bias, stride, padding, dilation, transposed, _, groups = call.args[:9]
    op, image = ("input_grad", call.output) if transposed else ("forward", x)
    kernel = _conv(op, image, weight, stride=stride, padding=padding, dilation=dilation, groups=groups)
    return (kernel,) if bias is None else (kernel, _add_bias(call.output, bias))


def _add_bias(out: TensorSpec, bias: TensorSpec) -> Elementwise:
    return Elementwise(
        op="add", elements=out.elements, read_bytes=out.nbytes + bias.nbytes, write_bytes=out.nbytes,
        flops=ELEMENTWISE["add"].flops * out.elements, dtype=out.dtype,
    )  # fmt: skip


@rule("convolution_backward")
def convolution_backward(call: Call) -> tuple[Kernel, ...]:
    """One kernel for each gradient asked for; that of the bias sums the output gradient over all but channels."""
    grad, x, weight, _, stride, padding, dilation, transposed, _, groups, wanted = call.args[:11]
    image = grad if transposed else x
    ops = ("forward" if transposed else "input_grad", "weight_grad")
    kernels: list[Kernel] = [
        _conv(op, image, weight, stride=stride, padding=padding, dilation=dilation, groups=groups)
        for op, want in zip(ops, wanted, strict=False)
        if want
    ]
    if wanted[2]:
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
