"""Kernels as people ask for them: by family or operator, with the shape; bytes and arithmetic follow from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from math import prod
from typing import Any

from neusight.errors import CoverageError, nearest
from neusight.kernels.arithmetic import FLOPS_PER_ELEMENT
from neusight.kernels.families import KERNEL_CLASSES, KernelBatch
from neusight.kernels.precision import DTYPE_BYTES

_FOLLOWING = frozenset({"tensors", "read_bytes", "write_bytes", "flops"})
_TWO_TENSORS = frozenset({"add", "sub", "mul", "div", "pow", "maximum", "minimum", "where", "masked_fill"})
_TO_ONE_A_ROW = frozenset({"sum", "mean", "max", "min", "amax", "argmax", "prod", "any", "all", "norm"})
_ROW_OPS = _TO_ONE_A_ROW | {
    f"{op}{direction}"
    for op in ("softmax", "log_softmax", "layer_norm", "rms_norm", "batch_norm", "group_norm")
    for direction in ("", "_backward")
}
_MEMORY_OPS = frozenset({"copy", "fill", "cat", "transpose", "embedding", "embedding_backward", "gather", "scatter"})
_OPTIMIZERS = {"sgd_fused": (2, 1, 2), "adamw_fused": (4, 3, 16)}
"""Tensors read, tensors written, FLOP an element."""


def requested(name: str, given: Mapping[str, Any]) -> KernelBatch:
    """The one kernel that a name and a shape stand for, as a batch of one.

    Args:
        name: a family (gemm, grouped_gemm, conv2d, attention, elementwise, row_reduction, memory, optimizer) or an
            operator of one: linear, bmm, softmax, layer_norm, gelu, add, copy, adamw_fused, …
        given: fields of the family, as values or as text. Elementwise and memory kernels take ``rows`` and ``cols`` for
            ``elements``; square convolutions take ``size`` and ``kernel``; ``seq_len`` stands for q_len and kv_len.
            Bytes and FLOP that are not given follow from the shape.

    Raises:
        CoverageError: an unknown name or field, a missing one, or a value that is none.
    """
    family, op = _family(name)
    values = {**({"op": op} if op else {}), **given}
    values = _spread(family, values)
    kinds = {f.name: f for f in fields(KERNEL_CLASSES[family])}
    if unknown := sorted(values.keys() - kinds.keys()):
        hint = nearest(unknown[0], kinds)
        raise CoverageError(f"{family} has no field '{unknown[0]}'{hint}: it has {', '.join(kinds)}")
    values = {key: _typed(key, value, str(kinds[key].type)) for key, value in values.items()}
    if (dtype := values.get("dtype", "float32")) not in DTYPE_BYTES:
        raise CoverageError(f"unknown dtype '{dtype}'{nearest(dtype, DTYPE_BYTES)}: one of {', '.join(DTYPE_BYTES)}")
    values = {**_DERIVED.get(family, lambda _: {})(values), **values}
    missing = [name for name, field in kinds.items() if field.default is MISSING and name not in values]
    # Bytes and FLOP follow once the shape is there: ask for the shape first.
    if missing := [name for name in missing if name not in _FOLLOWING] or missing:
        raise CoverageError(f"{family} needs {', '.join(missing)}: give them as {missing[0]}=…")
    return KernelBatch.from_columns(family, **values)


def _family(name: str) -> tuple[str, str]:
    """Family and operator; no operator when the family itself was named."""
    if name in KERNEL_CLASSES:
        return name, ""
    for family, ops in _OPS.items():
        if name in ops:
            return family, name
    raise CoverageError(f"unknown kernel '{name}'{nearest(name, _known())}: families are {', '.join(KERNEL_CLASSES)}")


def _known() -> list[str]:
    return [*KERNEL_CLASSES, *(op for ops in _OPS.values() for op in ops)]


def _spread(family: str, values: dict[str, Any]) -> dict[str, Any]:
    """Short forms in place of the fields that they stand for."""
    short = {key: values[key] for key in _SHORT.get(family, {}) if key in values}
    rest = {key: value for key, value in values.items() if key not in short}
    if family in ("elementwise", "memory") and short:
        return {"elements": prod(_typed(key, value, "int") for key, value in short.items()), **rest}
    return {**{full: value for key, value in short.items() for full in _SHORT[family][key]}, **rest}


def _typed(key: str, value: Any, kind: str) -> Any:
    """Text as the field's type; counts are positive, padding, window and largest may be 0."""
    if kind == "str":
        return str(value)
    if kind == "bool":
        if str(value).lower() not in ("true", "false", "1", "0", "yes", "no"):
            raise CoverageError(f"{key}={value}: not a truth value: write true or false")
        return str(value).lower() in ("true", "1", "yes")
    try:
        number = int(str(value))
    except ValueError:
        raise CoverageError(f"{key}={value}: not a whole number: write it like {key}=1024") from None
    least = 0 if key in ("padding", "window", "largest", "flops", "read_bytes", "write_bytes") else 1
    if number < least:
        raise CoverageError(f"{key}={value}: must be at least {least}")
    return number


def _size(values: Mapping[str, Any]) -> int:
    return DTYPE_BYTES[values.get("dtype", "float32")]


def _flops(values: Mapping[str, Any], elements: int) -> int:
    op = values["op"]
    if op not in FLOPS_PER_ELEMENT and "flops" not in values:
        raise CoverageError(f"unknown operator '{op}'{nearest(op, FLOPS_PER_ELEMENT)}: or give its flops=…")
    return int(FLOPS_PER_ELEMENT.get(op, 0) * elements)


def _gemm(values: Mapping[str, Any]) -> dict[str, str]:
    """A bmm multiplies tensors as they lie; a linear layer multiplies by its transposed weight."""
    return {"layout": "nn"} if values.get("op") == "bmm" else {}


def _grouped_gemm(values: Mapping[str, Any]) -> dict[str, int]:
    """Nothing follows, but a fullest group must be one that tokens and groups can make."""
    if not {"tokens", "groups"} <= values.keys() or not values.get("largest"):
        return {}
    least = -(-values["tokens"] // values["groups"])
    if not least <= values["largest"] <= values["tokens"]:
        given = f"{values['tokens']} tokens in {values['groups']} groups"
        raise CoverageError(
            f"largest={values['largest']}: {given} need at least {least} and at most all in one of them"
        )
    return {}


def _elementwise(values: Mapping[str, Any]) -> dict[str, int]:
    if "op" not in values or "elements" not in values:
        return {}
    size = values["elements"] * _size(values)
    two = values["op"] in _TWO_TENSORS or values["op"].endswith("_backward")
    return {"read_bytes": (1 + two) * size, "write_bytes": size, "flops": _flops(values, values["elements"])}


def _row_reduction(values: Mapping[str, Any]) -> dict[str, int]:
    """layer_norm also reads scale and shift, a value a column, and writes both statistics of each row."""
    if not {"op", "rows", "cols"} <= values.keys():
        return {}
    op, rows, cols = values["op"], values["rows"], values["cols"]
    norm = op == "layer_norm"
    read = rows * cols * (1 + op.endswith("_backward")) + 2 * cols * norm
    write = rows if op in _TO_ONE_A_ROW else rows * cols + 2 * rows * norm
    size = _size(values)
    return {"read_bytes": read * size, "write_bytes": write * size, "flops": _flops(values, rows * cols)}


def _memory(values: Mapping[str, Any]) -> dict[str, int]:
    if "op" not in values or "elements" not in values:
        return {}
    size = values["elements"] * _size(values)
    return {"read_bytes": 0 if values["op"] == "fill" else size, "write_bytes": size}


def _optimizer(values: Mapping[str, Any]) -> dict[str, int]:
    if values.get("op") not in _OPTIMIZERS or "elements" not in values:
        return {}
    read, write, flops = _OPTIMIZERS[values["op"]]
    size = values["elements"] * _size(values)
    return {"tensors": 1, "read_bytes": read * size, "write_bytes": write * size, "flops": flops * values["elements"]}


_SHORT: dict[str, dict[str, tuple[str, ...]]] = {
    "elementwise": {"rows": (), "cols": ()},
    "memory": {"rows": (), "cols": ()},
    "conv2d": {"size": ("height", "width"), "kernel": ("kernel_height", "kernel_width")},
    "attention": {"seq_len": ("q_len", "kv_len")},
}
_OPS: dict[str, frozenset[str]] = {
    "gemm": frozenset({"linear", "bmm"}),
    "row_reduction": frozenset(_ROW_OPS),
    "memory": _MEMORY_OPS,
    "optimizer": frozenset(_OPTIMIZERS),
    "elementwise": frozenset(FLOPS_PER_ELEMENT) - _ROW_OPS,
}
_DERIVED: dict[str, Callable[[Mapping[str, Any]], Mapping[str, int | str]]] = {
    "gemm": _gemm,
    "grouped_gemm": _grouped_gemm,
    "elementwise": _elementwise,
    "row_reduction": _row_reduction,
    "memory": _memory,
    "optimizer": _optimizer,
}
