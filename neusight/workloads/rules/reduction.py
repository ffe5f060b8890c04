"""Reductions: softmax, norms, sums, losses and their gradients."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from neusight.kernels import Kernel, RowReduction
from neusight.kernels.operators import operator
from neusight.workloads.rules.conv import channel_sum
from neusight.workloads.rules.elementwise import LOSSES, pointwise
from neusight.workloads.rules.memory import move
from neusight.workloads.rules.registry import rule
from neusight.workloads.tensors import Call, TensorSpec


def reduce(op: str, rows: int, cols: int, *, read_bytes: int, write_bytes: int, dtype: str) -> tuple[RowReduction, ...]:
    """One reduction of ``rows`` rows of ``cols`` columns; none when it is empty."""
    if not rows * cols:
        return ()
    flops = operator("row_reduction", op).flops * rows * cols
    return (
        RowReduction(
            op=op, rows=rows, cols=cols, read_bytes=read_bytes, write_bytes=write_bytes, flops=flops, dtype=dtype
        ),
    )


def of_call(op: str, rows: int, cols: int, call: Call) -> tuple[RowReduction, ...]:
    """A reduction that reads all arguments and writes all results of a call."""
    return reduce(op, rows, cols, read_bytes=call.read_bytes, write_bytes=call.write_bytes, dtype=call.dtype)


def along(call: Call, op: str, dim: int) -> tuple[RowReduction, ...]:
    """Reduction of the first argument along one dimension, for results of every shape."""
    x = call.args[0]
    cols = x.shape[dim] if x.shape else 1
    return of_call(op, x.elements // max(1, cols), cols, call)


@rule("_softmax", "_log_softmax", "_safe_softmax", "softmax", "log_softmax")
def softmax(call: Call) -> tuple[Kernel, ...]:
    """Rows over the given dimension."""
    return along(call, "log_softmax" if "log" in call.name else "softmax", call.arg(1, "dim", -1))


@rule("_softmax_backward_data")
def softmax_backward(call: Call) -> tuple[Kernel, ...]:
    """The product of gradient and result as a kernel of its own, then that of the rows, which reads product and result
    (PyTorch, ``SoftMax.cu``, ``softmax_backward_cuda_out``).
    """
    return (*pointwise(call, "mul"), *along(call, "softmax_backward", call.args[2]))


@rule("_log_softmax_backward_data")
def log_softmax_backward(call: Call) -> tuple[Kernel, ...]:
    """Reads the gradient and the result, writes the input's gradient."""
    return along(call, "log_softmax_backward", call.args[2])


@rule("native_layer_norm", "layer_norm")
def layer_norm(call: Call) -> tuple[Kernel, ...]:
    """Reads x, scale and shift; writes y and both statistics of each row."""
    cols = prod(call.args[1])
    return of_call("layer_norm", call.output.elements // max(1, cols), cols, call)


@rule("native_layer_norm_backward")
def layer_norm_backward(call: Call) -> tuple[Kernel, ...]:
    """One kernel for the input's gradient, another that reduces over rows for those of scale and shift."""
    mean, rstd, weight = call.args[3:6]
    return _norm_backward("layer_norm", call, (mean, rstd), weight, call.args[7])


def _norm_backward(
    op: str, call: Call, statistics: tuple[TensorSpec, ...], weight: Any, wanted: list[bool]
) -> tuple[Kernel, ...]:
    """Gradient kernels of a norm whose arguments begin with gradient, input and normalised shape."""
    grad, x, cols = call.args[0], call.args[1], prod(call.args[2])
    rows = x.elements // max(1, cols)
    shared = grad.nbytes + x.nbytes + sum(t.nbytes for t in statistics)
    scale = weight.nbytes if weight is not None else 0
    element = x.nbytes // max(1, x.elements)
    kernels: tuple[Kernel, ...] = ()
    if wanted[0]:
        read, written = shared + scale, x.elements * element
        kernels += reduce(f"{op}_backward", rows, cols, read_bytes=read, write_bytes=written, dtype=call.dtype)
    if any(wanted[1:]):
        written = cols * element * sum(bool(w) for w in wanted[1:])
        name = f"{op}_weight_backward"
        kernels += reduce(name, cols, rows, read_bytes=shared, write_bytes=written, dtype=call.dtype)
    return kernels


@rule("_fused_rms_norm", "rms_norm")
def rms_norm(call: Call) -> tuple[Kernel, ...]:
    """Reads x and scale; writes y and one statistic of each row."""
    cols = prod(call.args[1])
    return of_call("rms_norm", call.output.elements // max(1, cols), cols, call)


@rule("_fused_rms_norm_backward")
def rms_norm_backward(call: Call) -> tuple[Kernel, ...]:
    """Gradients of an RMS norm: those of layer norm, without shift."""
    rstd, weight, needs = call.args[3:6]
    return _norm_backward("rms_norm", call, (rstd,), weight, needs)


@rule("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training",
      "_batch_norm_with_update", "_batch_norm_no_update", "cudnn_batch_norm", "batch_norm")  # fmt: skip
def batch_norm(call: Call) -> tuple[Kernel, ...]:
    """Batch norm: in training a reduction over batch and space, one row a channel; in evaluation a scale and shift,
    pointwise.
    """
    x = call.args[0]
    training = call.name == "_batch_norm_with_update" or ("no_" not in call.name and bool(call.args[5]))
    if not training:
        return pointwise(Call(call.name, call.overload, call.args, {}, call.outputs[:1]), "batch_norm")
    channels = x.shape[1]
    return of_call("batch_norm", channels, x.elements // channels, call)


@rule("native_batch_norm_backward", "batch_norm_backward", "cudnn_batch_norm_backward")
def batch_norm_backward(call: Call) -> tuple[Kernel, ...]:
    """Reads the gradient and x, writes the gradients of x, scale and shift, in one kernel."""
    x = call.args[1]
    channels = x.shape[1]
    read = call.args[0].nbytes + x.nbytes + 3 * channels * 4
    return reduce(
        "batch_norm_backward", channels, x.elements // channels, read_bytes=read, write_bytes=call.write_bytes,
        dtype=call.dtype,
    )  # fmt: skip


@rule("native_group_norm")
def group_norm(call: Call) -> tuple[Kernel, ...]:
    """Statistics of each group of each sample, then a scale and shift."""
    rows = call.args[3] * call.args[6]
    return of_call("group_norm", rows, call.args[0].elements // rows, call)


@rule("native_group_norm_backward")
def group_norm_backward(call: Call) -> tuple[Kernel, ...]:
    """The input's gradient, and a sum over batch and space for scale and shift."""
    grad, x = call.args[:2]
    rows = call.args[5] * call.args[8]
    inner = of_call("group_norm_backward", rows, x.elements // rows, call)
    return (*inner, channel_sum(grad)) if any(call.args[9][1:]) else inner


_EXTREMES = frozenset({"max", "min", "amax", "amin", "aminmax"})
"""Values alone, or with their places: ``max`` along a dimension."""
_REDUCED_AS = {
    "_segment_reduce_backward": "segment_reduce", "_is_all_true": "all", "_is_any_true": "any",
    "argmin": "argmax", "std": "var", "var_mean": "var", "std_mean": "var", "linalg_vector_norm": "norm",
}  # fmt: skip


@rule("sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "any", "all", "prod", "nansum", "std", "var",
      "var_mean", "std_mean", "norm", "linalg_vector_norm", "logsumexp", "count_nonzero", "aminmax", "trace",
      "segment_reduce", "_segment_reduce_backward", "_is_all_true", "_is_any_true")  # fmt: skip
def reduce_rows(call: Call) -> tuple[Kernel, ...]:
    """One row an element of the result; two operands make it pointwise (``max(a, b)``)."""
    if isinstance(call.arg(1, "other"), TensorSpec):
        return pointwise(call, "maximum")
    x, rows = call.args[0], max(1, call.output.elements)
    extreme = "max" if call.name in ("max", "min") and len(call.outputs) > 1 else "amax"
    op = _REDUCED_AS.get(call.name, extreme if call.name in _EXTREMES else call.name)
    return of_call(op, rows, x.elements // rows, call)


@rule("cumsum", "cumsum_", "cumprod", "logcumsumexp", "cummax", "cummin")
def scan(call: Call) -> tuple[Kernel, ...]:
    """Scan along one dimension, by default the last."""
    return along(call, call.name.rstrip("_"), call.arg(1, "dim", -1))


@rule("nll_loss_forward", "nll_loss2d_forward", "nll_loss", "nll_loss_nd")
def nll_loss(call: Call) -> tuple[Kernel, ...]:
    """Reads one log-probability for each target, not all."""
    target = call.args[1]
    element = call.args[0].nbytes // max(1, call.args[0].elements)
    read = target.nbytes + target.elements * element
    shape, dtype = (1, target.elements), call.args[0].dtype
    return reduce("nll_loss", *shape, read_bytes=read, write_bytes=call.write_bytes, dtype=dtype)


@rule(*LOSSES)
def loss(call: Call) -> tuple[Kernel, ...]:
    """Loss of each element, written out, and a mean or sum of them all in a separate kernel (``aten/src/ATen/native``,
    ``Loss.cpp``: ``at::mean_out`` after the stub).
    """
    values = max(call.args[:2], key=lambda tensor: tensor.elements)
    if call.output.elements == values.elements:
        return pointwise(call, call.name)
    rows = pointwise(replace(call, outputs=(values,)), call.name)
    written = call.output.nbytes
    return (*rows, *reduce("mean", 1, values.elements, read_bytes=values.nbytes, write_bytes=written, dtype=call.dtype))


@rule("nll_loss_backward", "nll_loss2d_backward")
def nll_loss_backward(call: Call) -> tuple[Kernel, ...]:
    """Zeroes the gradient of all log-probabilities and writes one for each target."""
    target = call.args[2]
    element = call.output.nbytes // max(1, call.output.elements)
    return (*move("fill", call.output, 0), *move("scatter", target, target.nbytes, target.elements * element))
