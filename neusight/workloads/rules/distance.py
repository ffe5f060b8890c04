"""Distances, alignments and normalised weights: operators that combine rows of two tensors."""

from __future__ import annotations

from neusight.kernels import Elementwise, Kernel
from neusight.kernels.operators import ELEMENTWISE
from neusight.workloads.rules.elementwise import pointwise
from neusight.workloads.rules.gemm import product
from neusight.workloads.rules.memory import move
from neusight.workloads.rules.reduction import of_call, reduce
from neusight.workloads.rules.registry import one_pass, rule
from neusight.workloads.tensors import Call, TensorSpec

_DIFFERENCE = 3
"""Subtraction, absolute value or square, addition; other norms than 1, 2 and infinity take a power."""


@rule("_cdist_forward", "_pdist_forward", "_cdist_backward", "_pdist_backward")
def distances(call: Call) -> tuple[Kernel, ...]:
    """Distances of all pairs of rows: a difference for each element of a pair."""
    tensors = call.args[1:] if call.name.endswith("_backward") else call.args
    width = tensors[0].shape[-1]
    pairs = call.args[0] if call.name.endswith("_backward") else call.output
    norm = next((value for value in call.args if isinstance(value, float)), 2.0)
    flops = _DIFFERENCE + (0 if norm in (0.0, 1.0, 2.0, float("inf")) else ELEMENTWISE["pow"].flops)
    return one_pass(call, call.name.removeprefix("_"), call.output.elements, flops * width * pairs.elements)


@rule("_euclidean_dist")
def euclidean(call: Call) -> tuple[Kernel, ...]:
    """Euclidean distances by a product: squares of both operands, their sums as additional columns, one product of
    depth d + 2, clamp and root.
    """
    a, b = call.args[:2]
    wide = [TensorSpec((*t.shape[:-1], t.shape[-1] + 2), t.dtype) for t in (a, b)]
    pieces = [kernel for t, w in zip((a, b), wide, strict=True) for kernel in _beside(t, w)]
    left, right = (t if len(t.shape) in (2, 3) else _flat(t) for t in wide)
    shape, strides = right.shape, right.strides
    turned = TensorSpec((*shape[:-2], shape[-1], shape[-2]), right.dtype, (*strides[:-2], strides[-1], strides[-2]))
    op = "bmm" if len(left.shape) == 3 else "linear"
    root = Call("sqrt", "default", (call.output,), {}, (call.output,))
    last = (*pointwise(root, "clamp_min"), *pointwise(root, "sqrt"))
    return (*pieces, *product(left, turned, op=op), *last)


def _flat(tensor: TensorSpec) -> TensorSpec:
    """Tensor viewed as one batch of matrices."""
    return TensorSpec(
        (tensor.elements // max(1, tensor.shape[-1] * tensor.shape[-2]), *tensor.shape[-2:]), tensor.dtype
    )


def _beside(tensor: TensorSpec, wide: TensorSpec) -> tuple[Kernel, ...]:
    """Squares of the rows, their sums, and the rows with two more columns."""
    rows = tensor.elements // max(1, tensor.shape[-1])
    square = pointwise(Call("pow", "default", (tensor, 2), {}, (TensorSpec(tensor.shape, tensor.dtype),)), "pow_scalar")
    size = tensor.element_bytes
    sums = reduce(
        "sum", rows, tensor.shape[-1], read_bytes=rows * tensor.shape[-1] * size, write_bytes=rows * size,
        dtype=tensor.dtype,
    )  # fmt: skip
    return (*square, *sums, *move("cat", wide, wide.nbytes))


@rule("renorm")
def renorm(call: Call) -> tuple[Kernel, ...]:
    """Norms of the slices along a dimension, then a product with their factors."""
    x, rows = call.args[0], call.args[0].shape[call.args[2]]
    norm = reduce(
        "norm", rows, x.elements // max(1, rows), read_bytes=x.nbytes, write_bytes=rows * x.element_bytes,
        dtype=call.dtype,
    )  # fmt: skip
    return (*norm, *pointwise(call, "mul"))


@rule("_weight_norm_interface")
def weight_norm(call: Call) -> tuple[Kernel, ...]:
    """A norm of each row, by which the row is divided and multiplied by its magnitude: one kernel."""
    v, rows = call.args[0], max(1, call.args[1].elements)
    return of_call("rms_norm", rows, v.elements // rows, call)


@rule("_weight_norm_interface_backward")
def weight_norm_backward(call: Call) -> tuple[Kernel, ...]:
    """Reads the gradient, direction, magnitude and norm; writes gradients of direction and magnitude."""
    v, rows = call.args[1], max(1, call.args[2].elements)
    return of_call("rms_norm_backward", rows, v.elements // rows, call)


@rule("_trilinear")
def trilinear(call: Call) -> tuple[Kernel, ...]:
    """Product of ``nn.Bilinear``, x1[n, i] W[o, i, j] x2[n, j]: all pairs of x1 and x2 multiplied out, then one
    product.
    """
    x1, weight, x2 = (t for t in call.args[:3])
    rows, out = call.output.elements // max(1, call.output.shape[-1]), call.output.shape[-1]
    depth = weight.elements // max(1, out)
    pairs = TensorSpec((rows, depth), x1.dtype)
    outer = pointwise(Call("mul", "Tensor", (x1, x2), {}, (pairs,)), "mul")
    return (*outer, *product(pairs, TensorSpec((depth, out), x1.dtype, (1, depth)), op="linear"))


@rule("multi_margin_loss", "multilabel_margin_loss_forward")
def margin_loss(call: Call) -> tuple[Kernel, ...]:
    """A row against its target: a comparison of each class, of several targets with each of them."""
    return _margins(call, call.args[0])


@rule("multi_margin_loss_backward", "multilabel_margin_loss_backward")
def margin_loss_backward(call: Call) -> tuple[Kernel, ...]:
    """Gradient of a margin loss: as many comparisons as forward, and the gradient of every class."""
    return _margins(call, call.args[1])


def _margins(call: Call, x: TensorSpec) -> tuple[Kernel, ...]:
    targets = x.shape[-1] if "multilabel" in call.name else 1
    return one_pass(call, call.name, max(1, x.elements), 4 * targets * x.elements)


_LOG_SUM = 3 * ELEMENTWISE["exp"].flops + ELEMENTWISE["log"].flops + 6
"""FLOP of the logarithm of a sum over the three ways into a state."""


@rule("_ctc_loss", "_cudnn_ctc_loss")
def ctc(call: Call) -> tuple[Kernel, ...]:
    """Step by step, 2 S + 1 states of each sequence from three before them: O(T N S), one block a sequence.

    Source: Graves et al. 2006, equations 6 to 8. The steps are a loop within one kernel.
    """
    return (_alignment("ctc_loss", call.args[0], call.outputs[1], call.read_bytes, call.write_bytes),)


@rule("_ctc_loss_backward")
def ctc_backward(call: Call) -> tuple[Kernel, ...]:
    """The same back in time, then the gradients of all classes, from forward and backward variables of each state."""
    _, log_probs, *_ = call.args
    alpha = next(t for t in reversed(call.inputs) if len(t.shape) == 3 and t is not log_probs)
    beta = _alignment("ctc_loss", log_probs, alpha, call.read_bytes, alpha.nbytes)
    collect = _alignment("ctc_loss_backward", log_probs, alpha, call.read_bytes + alpha.nbytes, call.write_bytes)
    return (beta, collect)


def _alignment(op: str, log_probs: TensorSpec, alpha: TensorSpec, read: int, written: int) -> Elementwise:
    """Over alpha[N, T, 2 S + 1], one step of time a pass."""
    steps = max(1, log_probs.shape[0])
    return Elementwise(
        op=op, elements=max(1, alpha.elements // steps), passes=steps, read_bytes=read + 2 * alpha.nbytes,
        write_bytes=written, flops=_LOG_SUM * alpha.elements, dtype=log_probs.dtype,
    )  # fmt: skip
