"""Pointwise operators: one pass that reads every operand once, as stored, and writes the result."""

from __future__ import annotations

from math import prod

from neusight.kernels import Elementwise, Kernel
from neusight.workloads.rules.registry import rule
from neusight.workloads.tensors import Call, TensorSpec

FLOPS_PER_ELEMENT: dict[str, int] = {
    # One instruction on a GPU's vector units: add, multiply, compare, select.
    "add": 1, "sub": 1, "rsub": 1, "mul": 1, "neg": 1, "abs": 1, "relu": 1, "relu_backward": 2, "maximum": 1,
    "minimum": 1, "clamp": 2, "clamp_min": 1, "clamp_max": 1, "where": 1, "masked_fill": 1, "sign": 1, "square": 1,
    "eq": 1, "ne": 1, "lt": 1, "le": 1, "gt": 1, "ge": 1, "isnan": 1, "isinf": 2, "isin": 1, "logical_not": 1,
    "logical_and": 1, "logical_or": 1, "logical_xor": 1, "bitwise_not": 1, "bitwise_and": 1, "bitwise_or": 1,
    "bitwise_xor": 1, "floor": 1, "ceil": 1, "round": 1, "trunc": 1, "tril": 1, "triu": 1, "hardtanh": 2,
    "hardtanh_backward": 3, "addcmul": 3, "lerp": 3, "leaky_relu": 2, "leaky_relu_backward": 2,
    # A reciprocal on the special-function unit with its correction steps.
    "div": 4, "reciprocal": 4, "sqrt": 4, "rsqrt": 4, "addcdiv": 6, "floor_divide": 6, "remainder": 6, "fmod": 6,
    # Range reduction and a polynomial: CUDA's single-precision maths functions take 8 to 30 instructions.
    "exp": 8, "exp2": 6, "log": 10, "log2": 8, "log1p": 12, "expm1": 10, "sin": 12, "cos": 12, "erf": 15, "pow": 20,
    "tanh": 12, "sigmoid": 12, "silu": 13, "gelu": 20, "softplus": 20, "elu": 10, "hardswish": 5, "hardsigmoid": 4,
    "mish": 30, "tanh_backward": 3, "sigmoid_backward": 3, "silu_backward": 18, "gelu_backward": 30,
    "softplus_backward": 14, "elu_backward": 12, "hardswish_backward": 6, "hardsigmoid_backward": 3,
    "log_sigmoid": 20, "logaddexp": 20, "glu": 13, "glu_backward": 18, "mish_backward": 34, "_prelu_kernel": 2,
    "_prelu_kernel_backward": 4, "xlogy": 12, "sgn": 1, "smooth_l1_loss": 4, "smooth_l1_loss_backward": 5,
    "huber_loss": 4, "huber_loss_backward": 5, "atan": 15, "sinh": 15, "cosh": 15, "heaviside": 1,
    # A Philox counter generator makes four numbers in about forty integer instructions.
    "dropout": 13, "dropout_backward": 2, "random": 10,
    "mse_loss": 2, "mse_loss_backward": 3, "binary_cross_entropy_with_logits": 30, "polar": 25, "complex": 0,
}  # fmt: skip
"""Arithmetic of one element, in FLOP; an estimate of the instructions issued, coarse on purpose: these kernels are
bound by memory on every device of the catalogue."""

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
_NOT_OPERATORS = {"relu_backward", "dropout", "dropout_backward", "random", "log_sigmoid"}
_PLAIN = [op for op in FLOPS_PER_ELEMENT if op not in _NOT_OPERATORS]


def _canonical(call: Call) -> str:
    """The plain name: in-place variants lose their underscore, arithmetic with a number gains ``_scalar``."""
    bare = call.name[:-1] if call.name.endswith("_") and not call.name.endswith("__") else call.name
    op = ALIASES.get(call.name) or ALIASES.get(bare, bare)
    return f"{op}_scalar" if op in _BINARY and not _two_tensors(call) else op


def _two_tensors(call: Call) -> bool:
    other = call.args[1] if len(call.args) > 1 else None
    return isinstance(other, TensorSpec) and bool(other.shape) and isinstance(call.args[0], TensorSpec)


def pointwise(call: Call, op: str, flops_each: int) -> tuple[Kernel, ...]:
    """One kernel over the elements of the first result."""
    elements = call.output.elements
    if not elements:
        return ()
    return (
        Elementwise(
            op=op,
            elements=elements,
            read_bytes=call.read_bytes,
            write_bytes=call.write_bytes,
            flops=flops_each * elements,
            dtype=call.dtype,
        ),
    )


@rule(*_PLAIN, *ALIASES)
def arithmetic(call: Call) -> tuple[Kernel, ...]:
    """Arithmetic, comparisons, activations and their gradients, dropout, random numbers."""
    op = _canonical(call)
    base = op.removesuffix("_scalar")
    if base == "random":
        # Random numbers overwrite: an in-place generator does not read what it fills.
        call = Call(call.name, call.overload, (), {}, call.outputs)
    if op == "pow_scalar" and call.arg(1, "exponent") in (2, 2.0, 3, 3.0):
        # PyTorch special-cases small integer exponents as products.
        return pointwise(call, op, 2)
    return pointwise(call, op, FLOPS_PER_ELEMENT[base])


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
