"""Kernels as people ask for them: by family or operator, with the shape; bytes and arithmetic follow from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from itertools import chain
from math import prod
from typing import Any

from neusight.errors import CoverageError, nearest
from neusight.kernels.families import KERNEL_CLASSES, KernelBatch
from neusight.kernels.moe import check_distribution, check_experts
from neusight.kernels.operators import OPERATORS, operator, operator_bytes
from neusight.kernels.precision import DTYPE_BYTES, GGUF_BITS, dtype_named
from neusight.units import decimal

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "host_copy")
PAIRS = ("send_recv", "host_copy")
"""Between two alone."""
"""Operators of ``Collective``."""
_FOLLOWING = frozenset({"tensors", "read_bytes", "write_bytes", "flops", "kv_heads", "kv_len", "all_experts"})
_MAY_BE_ZERO = frozenset(
    {"padding", "window", "largest", "value_dim", "selected", "per_node"} | {"flops", "read_bytes", "write_bytes"}
)
PUBLIC_NAMES = {"window": "sliding_window", "hidden": "hidden_size"}
"""Names under which people give fields whose name in a batch is shorter; tables have the short ones as well."""
_FIELD_NAMES = {public: name for name, public in PUBLIC_NAMES.items()}
_LARGEST = 2**60
"""Sums of counts stay whole in 64 bits."""


def requested(name: str, given: Mapping[str, Any]) -> KernelBatch:
    """The one kernel that a name and a shape stand for, as a batch of one.

    Args:
        name: a family (gemm, grouped_gemm, moe, conv2d, attention, elementwise, row_reduction, memory, optimizer,
            collective) or an operator of one: linear, bmm, softmax, gelu, add, copy, adamw_fused, all_reduce, …
        given: fields of the family, as values or as text. Elementwise and memory kernels take ``rows`` and ``cols`` for
            ``elements``; square convolutions take ``size`` and ``kernel``; ``seq_len`` stands for q_len and kv_len.
            ``sliding_window`` and ``hidden_size`` stand for window and hidden. A moe has all experts on one device
            unless told ``all_experts``; attention and convolutions are of one sample unless given ``batch``, and
            attention has ``kv_heads`` as ``heads`` and ``kv_len`` as ``q_len``. Bytes and FLOP that are not given
            follow from the shape.

    Raises:
        CoverageError: an unknown name or field, a missing one, or a value that is none.
    """
    family, op = _family(name)
    values = {**({"op": op} if op else {}), **{_FIELD_NAMES.get(key, key): value for key, value in given.items()}}
    if len(values) < len(given):
        raise CoverageError(f"{', '.join(given)}: a field is given under two names: leave out one of them")
    rows = _typed("rows", values.get("rows", 1), "int")
    values = _fields_of(family, _spread(family, values))
    derived = _stated(family, values, rows) if family in OPERATORS else _CHECKED[family](values)
    values = {**derived, **values}
    if large := next((key for key, value in values.items() if isinstance(value, int) and value > _LARGEST), None):
        raise CoverageError(f"{family} would have {large} of {decimal(values[large])}: give a smaller shape")
    _complete(family, values)
    return KernelBatch.from_columns(family, **values)


def _family(name: str) -> tuple[str, str]:
    """Family and operator; no operator when the family itself was named."""
    if name in KERNEL_CLASSES:
        return name, ""
    for family, ops in _OPS.items():
        if name in ops:
            return family, name
    hint = nearest(name[:40], [*KERNEL_CLASSES, *chain(*_OPS.values())])
    raise CoverageError(f"unknown kernel '{name[:40]}'{hint}: families are {', '.join(KERNEL_CLASSES)}")


def _spread(family: str, values: dict[str, Any]) -> dict[str, Any]:
    """Short forms in place of the fields that they stand for."""
    short = {key: values[key] for key in _SHORT.get(family, {}) if key in values}
    rest = {key: value for key, value in values.items() if key not in short}
    if family in ("elementwise", "memory") and short:
        return {"elements": prod(_typed(key, value, "int") for key, value in short.items()), **rest}
    return {**{full: value for key, value in short.items() for full in _SHORT[family][key]}, **rest}


def _fields_of(family: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Every value as the type of the family's field, dtypes by their usual names."""
    kinds = {f.name: str(f.type) for f in fields(KERNEL_CLASSES[family])}
    if unknown := sorted(values.keys() - kinds.keys()):
        names = [PUBLIC_NAMES.get(name, name) for name in kinds]
        hint = nearest(unknown[0][:40], names)
        raise CoverageError(f"{family} has no field '{unknown[0][:40]}'{hint}: it has {', '.join(names)}")
    typed = {key: _typed(key, value, kinds[key]) for key, value in values.items()}
    return typed | {key: dtype_named(typed[key]) for key in ("dtype", "kv_dtype") if typed.get(key)}


def _typed(key: str, value: Any, kind: str) -> Any:
    """Text as the field's type; counts are positive, but for those that ``_MAY_BE_ZERO``."""
    given = f"{PUBLIC_NAMES.get(key, key)}={str(value)[:40]}"
    if kind == "str":
        allowed = _CHOICES.get(key)
        if allowed and str(value) not in allowed:
            raise CoverageError(f"{given}: must be one of {', '.join(allowed)}")
        return str(value)
    if kind == "bool":
        if str(value).lower() not in ("true", "false", "1", "0", "yes", "no"):
            raise CoverageError(f"{given}: not a truth value: write true or false")
        return str(value).lower() in ("true", "1", "yes")
    try:
        number = int(str(value))
    except ValueError:
        raise CoverageError(f"{given}: not a whole number: write it like {key}=1024") from None
    least = 0 if key in _MAY_BE_ZERO else 1
    if not least <= number <= _LARGEST:
        raise CoverageError(f"{given}: must be {f'at least {least}' if number < least else f'at most {_LARGEST}'}")
    return number


def _complete(family: str, values: Mapping[str, Any]) -> None:
    """Refuse a kernel that lacks a field."""
    missing = [f.name for f in fields(KERNEL_CLASSES[family]) if f.default is MISSING and f.name not in values]
    # These follow once the shape is there: ask for the shape first.
    if missing := [name for name in missing if name not in _FOLLOWING] or missing:
        names = [PUBLIC_NAMES.get(name, name) for name in missing]
        raise CoverageError(f"{family} needs {', '.join(names)}: give them as {names[0]}=…")


def _stated(family: str, values: Mapping[str, Any], rows: int) -> dict[str, int]:
    """Bytes and FLOP of a family that states them, from the table of operators, once the shape is there.

    Where only a number of elements is given, they are a single row.
    """
    shape = ("rows", "cols") if family == "row_reduction" else ("elements",)
    if not {"op", *shape} <= values.keys() or (values["op"] not in OPERATORS[family] and "flops" in values):
        return {}
    rule, elements = operator(family, values["op"]), prod(values[name] for name in shape)
    derived = {"flops": rule.flops * elements} if family != "memory" else {}
    derived |= {"passes": rule.passes} if rule.passes > 1 else {}
    if rule.read is None:
        return derived
    extents, dtype = (elements, rows, elements // rows), values.get("dtype", "float32")
    if dtype not in DTYPE_BYTES:
        raise CoverageError(f"{family} kernels do not run in {dtype}, which products alone do: give another dtype")
    read, written = operator_bytes(rule, extents, DTYPE_BYTES[dtype])
    derived |= {"read_bytes": read, "write_bytes": written}
    return derived | ({"tensors": 1} if family == "optimizer" else {})


def _gemm(values: Mapping[str, Any]) -> dict[str, str]:
    """A bmm multiplies tensors as they lie; a linear layer multiplies by its transposed weight."""
    return {"layout": "nn"} if values.get("op") == "bmm" else {}


def _grouped_gemm(values: Mapping[str, Any]) -> dict[str, str]:
    """Nothing follows, but a fullest group must be one that tokens and groups can make."""
    if not {"tokens", "groups"} <= values.keys() or not values.get("largest"):
        return {}
    least = -(-values["tokens"] // values["groups"])
    if not least <= values["largest"] <= values["tokens"]:
        given = f"largest={values['largest']}: {values['tokens']} tokens in {values['groups']} groups"
        raise CoverageError(f"{given} need at least {least} and at most all in one of them")
    return {}


def _conv2d(values: Mapping[str, Any]) -> dict[str, int]:
    """One image unless given; the filter must fit its input, and groups divide the channels."""
    for side in ("height", "width"):
        reach = values.get("dilation", 1) * (values.get(f"kernel_{side}", 1) - 1) + 1
        padded = values.get(side, reach) + 2 * values.get("padding", 0)
        if reach > padded:
            raise CoverageError(f"a filter of {side} {reach} is larger than its padded input of {padded}: pad it")
    _dividing(values, "groups", "in_channels", "out_channels")
    return {"batch": 1}


def _attention(values: Mapping[str, Any]) -> dict[str, int]:
    """One sequence that attends to itself, with as many heads of keys as of queries, unless given; heads must share
    keys evenly, and shared values be a part of the keys.
    """
    _dividing(values, "kv_heads", "heads")
    if values.get("shared_kv") and values.get("value_dim", 0) > values.get("head_dim", _LARGEST):
        given = f"value_dim={values['value_dim']}, head_dim={values['head_dim']}"
        raise CoverageError(f"{given}: values that are a part of the keys are no wider")
    same = {"kv_heads": "heads", "kv_len": "q_len"}
    return {"batch": 1} | {name: values[other] for name, other in same.items() if other in values}


def _collective(values: Mapping[str, Any]) -> dict[str, int]:
    """All ranks share a node unless said; nodes share them evenly."""
    if values.get("op", "all_reduce") not in COLLECTIVES:
        raise CoverageError(f"op={values['op']}: must be one of {', '.join(COLLECTIVES)}")
    if values.get("per_node"):
        _dividing(values, "per_node", "ranks")
    if values.get("op") in PAIRS and values.get("ranks", 2) > 2:
        raise CoverageError(f"ranks={values['ranks']}: {values['op']} is between two: give ranks=2")
    return {"ranks": 2} if values.get("op") in PAIRS else {}


def _moe(values: Mapping[str, Any]) -> dict[str, int]:
    """One device has all experts unless said; devices share them evenly."""
    check_distribution(values.get("distribution", "balanced"))
    if not {"experts", "top_k"} <= values.keys():
        return {}
    everyone = values.get("all_experts", values["experts"])
    check_experts(values["experts"], everyone, values["top_k"])
    return {"all_experts": everyone}


def _dividing(values: Mapping[str, Any], divisor: str, *names: str) -> None:
    for name in names:
        if name in values and divisor in values and values[name] % values[divisor]:
            raise CoverageError(f"{divisor}={values[divisor]} does not divide {name}={values[name]}")


_SHORT: dict[str, dict[str, tuple[str, ...]]] = {
    "elementwise": {"rows": (), "cols": ()},
    "memory": {"rows": (), "cols": ()},
    "conv2d": {"size": ("height", "width"), "kernel": ("kernel_height", "kernel_width")},
    "attention": {"seq_len": ("q_len", "kv_len")},
}
_OPS: dict[str, tuple[str, ...]] = {
    "gemm": ("linear", "bmm"),
    "collective": COLLECTIVES,
    **{family: tuple(OPERATORS[family]) for family in ("row_reduction", "memory", "optimizer", "elementwise")},
}
_CHOICES = {
    "layout": ("tn", "nn", "nt", "tt"),
    "image_layout": ("nchw", "nhwc"),
    "weight_dtype": ("", "float8", "int8", "int4", "mxfp4", "nvfp4", "nf4", "nf4_double", "fp6", *GGUF_BITS),
    "scaling": ("", "tensor", "row", "block", "micro"),
}
_CHECKED: dict[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {
    "gemm": _gemm,
    "grouped_gemm": _grouped_gemm,
    "conv2d": _conv2d,
    "attention": _attention,
    "moe": _moe,
    "collective": _collective,
}
SHAPE_NAMES = frozenset(one.name for family in KERNEL_CLASSES.values() for one in fields(family)).union(
    *_SHORT.values(), _FIELD_NAMES
)
"""Names of all that shapes of kernels are given by."""
