"""Pointwise operators: one pass that reads every operand once, as stored, and writes the result."""

from __future__ import annotations

from math import prod

from neusight.kernels import Elementwise, Kernel
from neusight.kernels.operators import ELEMENTWISE
from neusight.workloads.rules.registry import rule
from neusight.workloads.tensors import Call, TensorSpec

ALIASES = {
    "threshold_backward": "relu_backward",
    "native_dropout": "dropout",
    "native_dropout_backward": "dropout_backward",
    "log_sigmoid_forward": "log_sigmoid",
    "__or__": "bitwise_or",
    "__and__": "bitwise_and",
    "bernoulli": "random",
    "normal": "random",
    "normal_functional": "random",
    "uniform": "random",
    "exponential": "random",
    "random_": "random",
    "rand": "random",
    "randn": "random",
    "rand_like": "random",
    "randn_like": "random",
    "randint": "random",
    "randint_like": "random",
    "randperm": "random",
}
_BINARY = frozenset({"add", "sub", "mul", "div", "pow"})
_OTHERWISE = {"relu_backward", "dropout", "dropout_backward", "random", "log_sigmoid", "batch_norm"}
"""Names that are no ATen operator's, or are one's with a rule of its own."""
_PLAIN = [op for op in ELEMENTWISE if op not in _OTHERWISE and not op.endswith("_scalar")]


def _canonical(call: Call) -> str:
    """The plain name: in-place variants lose their underscore, arithmetic with a number gains ``_scalar``."""
    bare = call.name[:-1] if call.name.endswith("_") and not call.name.endswith("__") else call.name
    op = ALIASES.get(call.name) or ALIASES.get(bare, bare)
    return f"{op}_scalar" if op in _BINARY and not _two_tensors(call) else op


def _two_tensors(call: Call) -> bool:
    other = call.args[1] if len(call.args) > 1 else None
    return isinstance(other, TensorSpec) and bool(other.shape) and isinstance(call.args[0], TensorSpec)


def pointwise(call: Call, op: str, flops_each: int | None = None) -> tuple[Kernel, ...]:
    """One kernel over the elements of the first result; its FLOP are the table's unless the call decides them."""
    elements = call.output.elements
    if not elements:
        return ()
    return (
        Elementwise(
            op=op,
            elements=elements,
            read_bytes=call.read_bytes,
            write_bytes=call.write_bytes,
            flops=(ELEMENTWISE[op].flops if flops_each is None else flops_each) * elements,
            dtype=call.dtype,
        ),
    )


@rule(*_PLAIN, *ALIASES)
def arithmetic(call: Call) -> tuple[Kernel, ...]:
    """Arithmetic, comparisons, activations and their gradients, dropout, random numbers."""
    op = _canonical(call)
    if op == "random":
        # Random numbers overwrite: an in-place generator does not read what it fills.
        call = Call(call.name, call.overload, (), {}, call.outputs)
    if op == "pow_scalar" and call.arg(1, "exponent") not in (2, 2.0, 3, 3.0):
        # PyTorch multiplies out small integer exponents; others take the function.
        return pointwise(call, op, ELEMENTWISE["pow"].flops)
    return pointwise(call, op)


@rule("max_pool2d_with_indices", "max_pool2d", "avg_pool2d", "avg_pool3d")
def pooling(call: Call) -> tuple[Kernel, ...]:
    """One comparison or addition an element of the window."""
    return pointwise(call, call.name.removesuffix("_with_indices"), prod(_window(call)))


def _window(call: Call) -> tuple[int, ...]:
    """The kernel size along each dimension; one number stands for all."""
    size = call.arg(1, "kernel_size")
    return size if len(size) > 1 else size * (3 if "3d" in call.name else 2)


@rule("_adaptive_avg_pool2d", "adaptive_avg_pool2d")
def adaptive_pooling(call: Call) -> tuple[Kernel, ...]:
    """Every input element is added once or more; once when the output divides the input."""
    return pointwise(call, "adaptive_avg_pool2d", max(1, call.args[0].elements // max(1, call.output.elements)))


@rule("max_pool2d_with_indices_backward", "avg_pool2d_backward", "avg_pool3d_backward", "_adaptive_avg_pool2d_backward")
def pooling_backward(call: Call) -> tuple[Kernel, ...]:
    """Reads the output's gradient (and the indices), writes the input's; the input itself gives only its shape."""
    grads = [t for t in call.args if isinstance(t, TensorSpec) and t.shape == call.args[0].shape]
    reads = Call(call.name, call.overload, tuple(grads), {}, call.outputs)
    return pointwise(reads, call.name.replace("_with_indices", "").removeprefix("_"), 1)


@rule("upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_nearest2d_backward",
      "upsample_bilinear2d_backward", "upsample_bicubic2d_backward")  # fmt: skip
def upsampling(call: Call) -> tuple[Kernel, ...]:
    """An interpolation of 1, 4 or 16 neighbours, two operations each."""
    taps = {"nearest2d": 1, "bilinear2d": 4, "bicubic2d": 16}[call.name.split("_")[1]]
    return pointwise(call, call.name, 2 * taps)
