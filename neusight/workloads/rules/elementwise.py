"""Pointwise operators: one pass that reads every operand once, as stored, and writes the result."""

from __future__ import annotations

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
    "cauchy": "random",
    "log_normal": "random",
    "geometric": "random",
}
_BINARY = frozenset({"add", "sub", "mul", "div", "pow"})
_CELLS = {f"{cell}{direction}" for cell in ("rnn_cell", "gru_cell", "lstm_cell") for direction in ("", "_backward")}
_OTHERWISE = {"relu_backward", "dropout", "dropout_backward", "random", "log_sigmoid", "batch_norm", *_CELLS}
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


_COMPLEX_FLOPS = {"mul": 6, "div": 11, "reciprocal": 6}
"""Real operations of a complex one, written out; others take two, one a part."""


def pointwise(call: Call, op: str, flops_each: int | None = None) -> tuple[Kernel, ...]:
    """One kernel over the elements of the first result; its FLOP are the table's unless the call decides them."""
    elements = call.output.elements
    if not elements:
        return ()
    flops = ELEMENTWISE[op].flops if flops_each is None else flops_each
    if any(t.complex for t in (*call.inputs, *call.outputs)):
        flops = _COMPLEX_FLOPS.get(op, 2 * flops)
    return (
        Elementwise(
            op=op,
            elements=elements,
            read_bytes=call.read_bytes,
            write_bytes=call.write_bytes,
            flops=flops * elements,
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
