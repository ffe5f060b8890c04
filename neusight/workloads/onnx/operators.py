"""ONNX's operators as functions of PyTorch: element by element, reductions, shapes; layers are in their own module.

Semantics are those of https://onnx.ai/onnx/operators; attributes that became inputs in later versions are read from
wherever they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch.nn import functional

from neusight.workloads.onnx.layers import LAYERS
from neusight.workloads.onnx.node import GraphNode, dtype_of

Form = Callable[[GraphNode], Any]
_UNARY: dict[str, Callable[[Any], Any]] = {
    "Abs": torch.abs, "Acos": torch.acos, "Acosh": torch.acosh, "Asin": torch.asin, "Asinh": torch.asinh,
    "Atan": torch.atan, "Atanh": torch.atanh, "BitwiseNot": torch.bitwise_not, "Ceil": torch.ceil, "Cos": torch.cos,
    "Cosh": torch.cosh, "Det": torch.linalg.det, "Erf": torch.erf, "Exp": torch.exp, "Floor": torch.floor,
    "HardSwish": functional.hardswish, "Identity": lambda x: x, "IsInf": torch.isinf, "IsNaN": torch.isnan,
    "Log": torch.log, "Mish": functional.mish, "Neg": torch.neg, "Not": torch.logical_not,
    "Reciprocal": torch.reciprocal, "Relu": torch.relu, "Round": torch.round, "Sigmoid": torch.sigmoid,
    "Sign": torch.sign, "Sin": torch.sin, "Sinh": torch.sinh, "Softplus": functional.softplus,
    "Softsign": functional.softsign, "Sqrt": torch.sqrt, "Tan": torch.tan, "Tanh": torch.tanh,
}  # fmt: skip
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": torch.add, "And": torch.logical_and, "BitwiseAnd": torch.bitwise_and, "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor, "Equal": torch.eq, "Greater": torch.gt, "GreaterOrEqual": torch.ge,
    "Less": torch.lt, "LessOrEqual": torch.le, "MatMul": torch.matmul, "Mul": torch.mul, "Or": torch.logical_or,
    "Pow": torch.pow, "Sub": torch.sub, "Xor": torch.logical_xor,
}  # fmt: skip
_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "ReduceMax": torch.amax,
    "ReduceMean": torch.mean,
    "ReduceMin": torch.amin,
    "ReduceSum": torch.sum,
    "ReduceL1": lambda x, dim, keepdim: torch.sum(torch.abs(x), dim, keepdim),
    "ReduceL2": lambda x, dim, keepdim: torch.linalg.vector_norm(x, 2, dim, keepdim),
    "ReduceLogSum": lambda x, dim, keepdim: torch.log(torch.sum(x, dim, keepdim)),
    "ReduceLogSumExp": torch.logsumexp,
    "ReduceSumSquare": lambda x, dim, keepdim: torch.sum(torch.square(x), dim, keepdim),
}


def _unary(function: Callable[[Any], Any]) -> Form:
    return lambda node: function(node.tensor(0))


def _binary(function: Callable[[Any, Any], Any]) -> Form:
    """A number on the left becomes a tensor, as PyTorch wants one there."""

    def form(node: GraphNode) -> Any:
        left, right = node.tensor(0), node.tensor(1)
        return function(left if isinstance(left, torch.Tensor) else torch.as_tensor(left), right)

    return form


def _reduction(function: Callable[..., Any]) -> Form:
    def form(node: GraphNode) -> Any:
        x, axes = node.tensor(0), node.numbers(1, "axes")
        if not axes and node.get("noop_with_empty_axes", 0):
            return x
        return function(x, axes or list(range(x.dim())), bool(node.get("keepdims", 1)))

    return form


def _many(function: Callable[[Any, Any], Any]) -> Form:
    return lambda node: reduce(function, [node.tensor(place) for place in range(len(node.given))])


def _largest(node: GraphNode, function: Callable[..., Any]) -> Any:
    return function(node.tensor(0), node.get("axis", 0), bool(node.get("keepdims", 1)))


def _div(node: GraphNode) -> Any:
    x, y = node.tensor(0), node.tensor(1)
    left = x if isinstance(x, torch.Tensor) else torch.as_tensor(x)
    return torch.div(left, y, rounding_mode=None if left.is_floating_point() else "trunc")


def _clip(node: GraphNode) -> Any:
    low, high = node.number(1, "min"), node.number(2, "max")
    return node.tensor(0) if low is None and high is None else torch.clamp(node.tensor(0), low, high)


def _reshape(node: GraphNode) -> Any:
    x, shape = node.tensor(0), node.numbers(1, "shape") or []
    keeps = not node.get("allowzero", 0)
    return x.reshape([x.shape[place] if size == 0 and keeps else size for place, size in enumerate(shape)])


def _flatten(node: GraphNode) -> Any:
    x, axis = node.tensor(0), node.get("axis", 1)
    axis = axis + x.dim() if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), -1)


def _squeeze(node: GraphNode) -> Any:
    axes = node.numbers(1, "axes")
    return node.tensor(0).squeeze() if axes is None else node.tensor(0).squeeze(tuple(axes))


def _unsqueeze(node: GraphNode) -> Any:
    x, axes = node.tensor(0), node.numbers(1, "axes") or []
    dims = x.dim() + len(axes)
    for axis in sorted(axis % dims for axis in axes):
        x = x.unsqueeze(axis)
    return x


def _split(node: GraphNode) -> Any:
    x, axis = node.tensor(0), node.get("axis", 0)
    sizes = node.numbers(1, "split")
    if sizes is None:
        size = -(-x.shape[axis] // node.get("num_outputs", len(node.outputs)))
        return torch.split(x, size, axis)
    return torch.split(x, sizes, axis)


def _slice(node: GraphNode) -> Any:
    x = node.tensor(0)
    starts, ends = node.numbers(1, "starts") or [], node.numbers(2, "ends") or []
    axes = node.numbers(3, "axes") or list(range(len(starts)))
    steps = node.numbers(4) or [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step < 0:
            places = range(*slice(start, end, step).indices(x.shape[axis]))
            x = torch.index_select(x, axis, torch.tensor(list(places), dtype=torch.long))
        else:
            x = x[(slice(None),) * (axis % x.dim()) + (slice(start, end, step),)]
    return x


def _gather(node: GraphNode) -> Any:
    """A single known place is a view, several are rows of a table where they lie along the first dimension."""
    x, places, axis = node.tensor(0), node.tensor(1), node.get("axis", 0)
    if isinstance(places, int):
        return x.select(axis, places)
    if axis == 0 and x.dim() == 2:
        return functional.embedding(places, x)
    rows = torch.index_select(x, axis, places.reshape(-1))
    axis %= x.dim()
    return rows.reshape(*x.shape[:axis], *places.shape, *x.shape[axis + 1 :])


def _gather_nd(node: GraphNode) -> Any:
    """Without dimensions of a batch: the last extent of the places indexes the first ones of the tensor."""
    return node.tensor(0)[tuple(node.tensor(1).unbind(-1))]


def _scatter_nd(node: GraphNode) -> Any:
    return node.tensor(0).index_put(tuple(node.tensor(1).unbind(-1)), node.tensor(2))


def _expand(node: GraphNode) -> Any:
    x, shape = node.tensor(0), node.numbers(1) or []
    return x.expand(torch.broadcast_shapes(x.shape, tuple(shape)))


def _where(node: GraphNode) -> Any:
    condition = node.tensor(0)
    mask = condition if isinstance(condition, torch.Tensor) else torch.as_tensor(bool(condition))
    return torch.where(mask, node.tensor(1), node.tensor(2))


def _top(node: GraphNode) -> Any:
    count = int(node.number(1, "k"))
    return torch.topk(node.tensor(0), count, node.get("axis", -1), bool(node.get("largest", 1)))


def _one_hot(node: GraphNode) -> Any:
    places = node.tensor(0)
    hot = functional.one_hot(places.long(), int(node.number(1)))
    return hot.movedim(-1, node.get("axis", -1)).to(torch.get_default_dtype())


def _trilu(node: GraphNode) -> Any:
    function = torch.triu if node.get("upper", 1) else torch.tril
    return function(node.tensor(0), int(node.number(1, default=0)))


def _scatter_elements(node: GraphNode) -> Any:
    x, places, updates = (node.tensor(place) for place in range(3))
    how = node.get("reduction", "none")
    if how == "none":
        return x.scatter(node.get("axis", 0), places, updates)
    names = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
    return x.scatter_reduce(node.get("axis", 0), places, updates, names[how])


OPERATORS: dict[str, Form] = {
    **{name: _unary(function) for name, function in _UNARY.items()},
    **{name: _binary(function) for name, function in _BINARY.items()},
    **{name: _reduction(function) for name, function in _REDUCTIONS.items()},
    **LAYERS,
    "ArgMax": lambda node: _largest(node, torch.argmax),
    "ArgMin": lambda node: _largest(node, torch.argmin),
    "Cast": lambda node: node.tensor(0).to(dtype_of(node.get("to"))),
    "CastLike": lambda node: node.tensor(0).to(node.tensor(1).dtype),
    "Clip": _clip,
    "Concat": lambda node: torch.cat([node.tensor(place) for place in range(len(node.given))], node.get("axis", 0)),
    "CumSum": lambda node: torch.cumsum(node.tensor(0), int(node.number(1))),
    "Div": _div,
    "Einsum": lambda node: torch.einsum(node.get("equation"), *(node.tensor(i) for i in range(len(node.given)))),
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": lambda node: torch.gather(node.tensor(0), node.get("axis", 0), node.tensor(1)),
    "GatherND": _gather_nd,
    "Max": _many(torch.maximum),
    "Mean": lambda node: _many(torch.add)(node) / len(node.given),
    "Min": _many(torch.minimum),
    "Mod": lambda node: (torch.fmod if node.get("fmod", 0) else torch.remainder)(node.tensor(0), node.tensor(1)),
    "NonZero": lambda node: torch.nonzero(node.tensor(0)).transpose(0, 1),
    "OneHot": _one_hot,
    "Reshape": _reshape,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Sum": _many(torch.add),
    "Tile": lambda node: node.tensor(0).repeat(node.numbers(1)),
    "TopK": _top,
    "Transpose": lambda node: node.tensor(0).permute(node.get("perm") or tuple(reversed(range(node.tensor(0).dim())))),
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
    "Where": _where,
}
"""Forms by the operator's name."""
