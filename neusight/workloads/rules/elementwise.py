"""Pointwise operators: one pass that reads every operand once, as stored, and writes the result."""

from __future__ import annotations

from neusight.kernels import Kernel, Optimizer
from neusight.kernels.operators import ELEMENTWISE, OPTIMIZER
from neusight.workloads.rules.registry import one_pass, rule
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
    "_amp_update_scale_": "mul",
}
LOSSES = ("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy")
"""Losses computed for each element, then summed up where that is requested."""
_BINARY = frozenset({"add", "sub", "mul", "div", "pow"})
_CELLS = {f"{cell}{direction}" for cell in ("rnn_cell", "gru_cell", "lstm_cell") for direction in ("", "_backward")}
_OTHERWISE = {"relu_backward", "dropout", "dropout_backward", "random", "log_sigmoid", "batch_norm", *LOSSES, *_CELLS}
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
    flops = ELEMENTWISE[op].flops if flops_each is None else flops_each
    if any(t.complex for t in (*call.inputs, *call.outputs)):
        flops = _COMPLEX_FLOPS.get(op, 2 * flops)
    return one_pass(call, op, elements, flops * elements)


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


_OVERWRITES = {"zero", "copy"}


def _lists(call: Call) -> list[tuple[TensorSpec, ...]]:
    values = (*call.args, *call.kwargs.values())
    return [v for v in values if isinstance(v, tuple) and v and isinstance(v[0], TensorSpec)]


def _size(tensors: tuple[TensorSpec, ...]) -> int:
    return sum(t.nbytes for t in tensors)


def _on_host(call: Call, tensors: tuple[TensorSpec, ...]) -> bool:
    """Step counters: the foreach form keeps them on the host and adds a tensor to them, the fused form a number."""
    return call.overload == "Tensor" and all(not t.shape for t in tensors)


def _foreach(call: Call) -> tuple[Kernel, ...]:
    in_place = call.name.endswith("_")
    op = call.name.removeprefix("_foreach_").removesuffix("_")
    lists = _lists(call)
    if not lists or _on_host(call, lists[0]):
        return ()
    read = call.read_bytes - (_size(lists[0]) if op in _OVERWRITES else 0)
    written = _size(lists[0]) if in_place else sum(t.nbytes for t in call.outputs)
    return _step(f"foreach_{op}", lists[0], read, written)


def _step(op: str, params: tuple[TensorSpec, ...], read: int, written: int) -> tuple[Kernel, ...]:
    """One kernel over all tensors of a list."""
    elements = sum(t.elements for t in params)
    return (
        Optimizer(
            op=op, elements=elements, tensors=len(params), read_bytes=read, write_bytes=written,
            flops=OPTIMIZER[op].flops * elements, dtype=params[0].dtype,
        ),
    )  # fmt: skip


rule(*(f"_{op}" for op in OPTIMIZER if op.startswith("foreach_")))(_foreach)


@rule("_amp_foreach_non_finite_check_and_unscale_")
def unscale(call: Call) -> tuple[Kernel, ...]:
    """Unscaling by ``torch.amp.GradScaler`` before a step: gradients are searched and multiplied by one number."""
    gradients = _lists(call)[0]
    return _step("foreach_mul", gradients, _size(gradients), _size(gradients))


def _fuse(call: Call, name: str, written: int) -> tuple[Kernel, ...]:
    """Every list is read; the first ``written`` of those that a step changes are written back."""
    params, grads, *others = _lists(call)
    states = [s for s in others if tuple(t.shape for t in s) == tuple(t.shape for t in params)]
    changed, tensors = [params, *states][:written], [params, grads, *states]
    return _step(name, params, sum(map(_size, tensors)), sum(map(_size, changed)))


@rule("_fused_adamw_", "_fused_adam_")
def fused_adam(call: Call) -> tuple[Kernel, ...]:
    """Reads parameter, gradient and both moments, writes all but the gradient: 28 B a parameter in float32."""
    name = "adamw_fused" if "adamw" in call.name else "adam_fused"
    return _fuse(call, name, 4 if call.kwargs.get("amsgrad") else 3)


@rule("_fused_sgd_")
def fused_sgd(call: Call) -> tuple[Kernel, ...]:
    """Reads parameter, gradient and momentum if there is one, writes all but the gradient: 12 or 20 B a parameter."""
    return _fuse(call, "sgd_fused", 2)
