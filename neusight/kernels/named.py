"""Kernels as people and tables ask for them: by family or operator, with the shape; bytes and arithmetic follow.

``kernel_named`` reads one kernel from words, ``kernels_of`` many from columns, by the same rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

import numpy as np

from neusight.errors import CoverageError, nearest
from neusight.kernels.families import KERNEL_CLASSES, KernelBatch
from neusight.kernels.moe import check_distribution, check_experts
from neusight.kernels.operators import OPERATORS, operator, operator_bytes
from neusight.kernels.precision import CACHE_DTYPES, DTYPE_BYTES, EXL2_BITS, GGUF_BITS, PRODUCT_DTYPES, dtype_named
from neusight.kernels.work import by_distinct
from neusight.units import decimal

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "host_copy")
"""Operators of ``Collective``."""
PAIRS = ("send_recv", "host_copy")
"""Collectives between two alone."""
_FOLLOWING = frozenset(
    {"tensors", "read_bytes", "write_bytes", "flops", "batch", "kv_heads", "kv_len", "all_experts", "ranks"}
)
"""Fields that may follow from the others."""
_MAY_BE_ZERO = frozenset(
    {"padding", "window", "largest", "value_dim", "selected", "per_node", "max_ctas", "output_height", "output_width"}
    | {"flops", "read_bytes", "write_bytes"}
)
PUBLIC_NAMES = {"window": "sliding_window", "hidden": "hidden_size"}
"""Names under which people give fields whose name in a batch is shorter; tables have the short ones as well."""
_FIELD_NAMES = {public: name for name, public in PUBLIC_NAMES.items()}
_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no")
_LARGEST = 2**60
"""Sums of counts stay whole in 64 bits (numerics)."""

Columns = Mapping[str, np.ma.MaskedArray[Any, Any]]
"""Fields by name, each of shape (n,); empty cells are masked."""


class ColumnError(CoverageError):
    """Some rows are no kernel.

    Attributes:
        rows: mask of those rows, shape (n,).
    """

    def __init__(self, message: str, rows: np.ndarray) -> None:
        super().__init__(message)
        self.rows = rows

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (*self.args, self.rows)


def kernel_named(name: str, given: Mapping[str, Any]) -> KernelBatch:
    """Kernel that a name and a shape specify, as a batch of one.

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
    kinds = _kinds(family)
    _check_names(family, values)
    typed = {key: _parse_value(key, value, kinds[key]) for key, value in values.items()}
    return kernels_of(family, {key: np.ma.array([value]) for key, value in typed.items()})


def kernels_of(family: str, columns: Columns) -> KernelBatch:
    """Kernels of one family from columns, named as the words that ``kernel_named`` takes.

    Empty cells take the value that follows from the others of the row, else the field's default.

    Raises:
        CoverageError: a column that the family lacks. ColumnError: rows with a missing field or a wrong value.
    """
    _check_names(family, columns)
    cells = {name: _check_column(name, column, _kinds(family)[name]) for name, column in columns.items()}
    cells = _spread(family, cells)
    _check_complete(family, cells, _FOLLOWING)
    cells = _fill_empty(cells, _FOLLOWS.get(family, _operator_work)(family, cells))
    _check_complete(family, cells)
    chosen = {f.name: _fill(cells[f.name], f.default) for f in fields(KERNEL_CLASSES[family]) if f.name in cells}
    return KernelBatch.from_columns(family, **chosen)


def family_of(name: str) -> str:
    """Family of an operator or of itself.

    Raises:
        CoverageError: neither a family nor an operator.
    """
    return _family(name)[0]


def _family(name: str) -> tuple[str, str]:
    """Family and operator; no operator when the family itself was named."""
    if name in KERNEL_CLASSES:
        return name, ""
    for family, ops in _OPS.items():
        if name in ops:
            return family, name
    names = [*KERNEL_CLASSES, *(op for ops in _OPS.values() for op in ops)]
    hint = nearest(name[:40], names)
    raise CoverageError(f"unknown kernel '{name[:40]}'{hint}: families are {', '.join(KERNEL_CLASSES)}")


def _kinds(family: str) -> dict[str, str]:
    """Types of a family's fields, and of short forms for them."""
    return {
        **{f.name: str(f.type) for f in fields(KERNEL_CLASSES[family])},
        **dict.fromkeys(_SHORT.get(family, ()), "int"),
    }


def _check_names(family: str, names: Mapping[str, Any]) -> None:
    kinds = _kinds(family)
    if unknown := sorted(names.keys() - kinds.keys()):
        allowed = [PUBLIC_NAMES.get(name, name) for name in kinds if name not in _SHORT.get(family, ())]
        hint = nearest(unknown[0][:40], allowed)
        raise CoverageError(f"{family} has no field '{unknown[0][:40]}'{hint}: it has {', '.join(allowed)}")


def _parse_value(key: str, value: Any, kind: str) -> Any:
    """Parse text as the type of the field."""
    setting = f"{PUBLIC_NAMES.get(key, key)}={str(value)[:40]}"
    if kind in ("str", "bool"):
        return str(value)
    try:
        number = int(str(value))
    except ValueError:
        raise CoverageError(f"{setting}: not a whole number: write it like {key}=1024") from None
    if abs(number) > _LARGEST:
        raise CoverageError(f"{setting}: must be {f'at most {_LARGEST}' if number > 0 else 'at least 0'}")
    return number


def _check_column(name: str, column: np.ma.MaskedArray[Any, Any], kind: str) -> np.ma.MaskedArray[Any, Any]:
    """Convert a column to the type of its field and check it: words of the field's choices, whole numbers within
    bounds.
    """
    empty, data = np.ma.getmaskarray(column), np.ma.getdata(column)
    if kind == "bool":
        return np.ma.array(_switches(name, np.where(empty, "false", data.astype(str))), mask=empty)
    if kind == "str":
        return np.ma.array(_words(name, np.where(empty, "", data).astype(str)), mask=empty)
    data = data if data.dtype.kind in "iufb" else _numbers(name, np.where(empty, "1", data.astype(str)))
    least = 0 if name in _MAY_BE_ZERO else 1
    data = np.where(empty, least, data)
    name = PUBLIC_NAMES.get(name, name)
    _refuse(~(data >= least), "{name}={data:.0f}: must be at least {least}", name=name, data=data, least=least)
    _refuse(data > _LARGEST, "{name}={data:.0f}: must be at most {most}", name=name, data=data, most=_LARGEST)
    whole = data.astype(np.int64)
    _refuse(whole != data, "{name}={data}: not a whole number: write it like {name}=1024", name=name, data=data)
    return np.ma.array(whole, mask=empty)


def _numbers(name: str, column: np.ndarray) -> np.ndarray:
    """Numbers of texts."""
    codes, words = encode_words(column)
    valid = np.array([word.removeprefix("-").replace(".", "", 1).isdecimal() for word in words])
    _refuse(~valid[codes], "{name}={word}: not a whole number: write it like {name}=1024", name=name, word=column)
    return np.array(words, dtype=float)[codes]


def _switches(name: str, column: np.ndarray) -> np.ndarray:
    """Truth values of texts."""
    codes, words = encode_words(column)
    valid = np.isin([word.lower() for word in words], (*_TRUE, *_FALSE))
    _refuse(~valid[codes], "{name}={word}: not a truth value: write true or false", name=name, word=column)
    return np.isin([word.lower() for word in words], _TRUE)[codes]


def _words(name: str, column: np.ndarray) -> np.ndarray:
    """Texts by their usual names; "" is an empty cell."""
    codes, words = encode_words(column)
    if allowed := _CHOICES.get(name):
        unknown = ~np.isin(words, ("", *allowed))[codes]
        _refuse(unknown, "{name}={word}: must be one of {known}", name=name, word=column, known=", ".join(allowed))
    if name in ("dtype", "kv_dtype"):
        dtypes = PRODUCT_DTYPES if name == "dtype" else CACHE_DTYPES
        words = [word and dtype_named(word, dtypes) for word in words]
    return np.array(words)[codes]


def encode_words(column: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Index of each row's word among the distinct words, shape (n,), and these words."""
    words: dict[str, int] = {}
    codes = by_distinct(column, lambda word: words.setdefault(word, len(words)))
    return codes.astype(np.int64), list(words)


def _refuse(rows: np.ndarray, message: str, **columns: Any) -> None:
    """Refuse marked rows, with a message in which names stand for the first one's cells of ``columns``.

    Raises:
        ColumnError: a row is marked.
    """
    if rows.any():
        row = int(rows.argmax())
        cells = {name: column[row] if np.ndim(column) else column for name, column in columns.items()}
        raise ColumnError(message.format(**cells), rows)


def _spread(family: str, cells: Columns) -> dict[str, Any]:
    """Fields in place of short forms of them."""
    cells = dict(cells)
    if family in ("elementwise", "memory"):
        short = [cells[name] for name in ("rows", "cols") if name in cells]
        longer = {"elements": _product(family, "elements", short)} if short else {}
    else:
        longer = {
            field: cells[name] for name in _SHORT.get(family, {}) if name in cells for field in _SHORT[family][name]
        }
    return cells | _fill_empty({name: cells[name] for name in longer if name in cells}, longer)


def _product(family: str, name: str, factors: Sequence[Any]) -> np.ma.MaskedArray[Any, Any]:
    """The product of whole numbers, which must stay one of 64 bits."""
    # Extended precision has 64 bits and does not overflow.
    product = np.ma.prod(np.ma.vstack([np.ma.asarray(factor).astype(np.longdouble) for factor in factors]), axis=0)
    return np.ma.array(_whole(family, name, np.ma.filled(product, 0)), mask=np.ma.getmaskarray(product))


def _whole(family: str, name: str, amounts: np.ndarray) -> np.ndarray:
    """Amounts in extended precision as whole numbers."""
    if (large := amounts > _LARGEST).any():
        amount = decimal(int(amounts[large][0]))
        raise ColumnError(f"{family} would have {name} of {amount}: give a smaller shape", large)
    return amounts.astype(np.int64)


def _fill_empty(cells: Columns, values: Mapping[str, Any]) -> dict[str, Any]:
    """Fill empty cells of columns with the values derived for them."""
    filled = {}
    for name, value in values.items():
        value = np.ma.asarray(value) if np.ndim(value) else np.ma.array(np.full(_length(cells), value))
        column = cells.get(name)
        filled[name] = value if column is None else np.ma.where(np.ma.getmaskarray(column), value, column)
    return {**cells, **filled}


def _fill(column: np.ma.MaskedArray[Any, Any], default: Any) -> np.ndarray:
    empty = np.ma.getmaskarray(column)
    return np.where(empty, default, np.ma.getdata(column)) if empty.any() else np.ma.getdata(column)


def _check_complete(family: str, cells: Columns, later: frozenset[str] = frozenset()) -> None:
    """Refuse kernels that lack a field; those of ``later`` follow once the shape is there."""
    needed = [f.name for f in fields(KERNEL_CLASSES[family]) if f.default is MISSING and f.name not in later]
    nowhere = np.ma.masked_all(_length(cells))
    empty = {name: np.ma.getmaskarray(cells.get(name, nowhere)) for name in needed}
    rows = np.any([np.zeros(_length(cells), bool), *empty.values()], axis=0)
    missing = [PUBLIC_NAMES.get(name, name) for name, mask in empty.items() if mask[rows.argmax()]]
    _refuse(
        rows,
        "{family} needs {names}: give them as {first}=…",
        family=family,
        names=", ".join(missing),
        first="".join(missing[:1]),
    )


def _cell(cells: Columns, name: str, default: Any) -> np.ndarray:
    """A column whose empty cells have a default; also one that is not there."""
    return _fill(cells[name], default) if name in cells else np.full(_length(cells), default)


def _length(cells: Columns) -> int:
    return len(next(iter(cells.values()))) if cells else 1


def _operator_work(family: str, cells: Columns) -> dict[str, Any]:
    """Bytes and FLOP of families whose kernels state them, from the table of operators.

    Where only a number of elements is given, they are a single row.
    """
    shape = ("rows", "cols") if family == "row_reduction" else ("elements",)
    n = _length(cells)
    rows, dtypes = _cell(cells, "rows", 1), _cell(cells, "dtype", "float32")
    elements = np.prod([_cell(cells, name, 1).astype(np.longdouble) for name in shape], axis=0)
    has_flops = ~np.ma.getmaskarray(cells.get("flops", np.ma.masked_all(n)))
    names = ("flops", "read_bytes", "write_bytes", "passes", "tensors")
    derived = {name: np.ma.masked_all(n, np.int64) for name in names}
    for op, dtype, here in _pairs(_cell(cells, "op", ""), dtypes):
        if op not in OPERATORS[family] and has_flops[here].all():
            continue
        rule = operator(family, op)
        extents = (elements[here], rows[here], elements[here] // rows[here])
        amounts = {"flops": rule.flops * elements[here], "passes": rule.passes}
        if rule.read is not None:
            if dtype not in DTYPE_BYTES:
                message = f"{family} kernels do not run in {dtype}, which products alone do: give another dtype"
                raise ColumnError(message, np.isin(np.arange(n), here))
            read, written = operator_bytes(rule, extents, DTYPE_BYTES[dtype])
            amounts |= {"read_bytes": read, "write_bytes": written, "tensors": 1}
        for name, amount in amounts.items():
            derived[name][here] = _whole(family, name, np.broadcast_to(amount, here.shape))
    return {name: column for name, column in derived.items() if name in _kinds(family)}


def _pairs(first: np.ndarray, second: np.ndarray) -> Iterator[tuple[str, str, np.ndarray]]:
    """Each distinct pair of words, with the places of its rows."""
    (codes, words), (others, names) = encode_words(first), encode_words(second)
    both = codes * len(names) + others
    for pair in np.unique(both).tolist():
        yield words[pair // len(names)], names[pair % len(names)], np.flatnonzero(both == pair)


def _gemm(_: str, cells: Columns) -> dict[str, Any]:
    """A bmm multiplies tensors as they lie; a linear layer multiplies by its transposed weight."""
    return {"layout": np.where(_cell(cells, "op", "linear") == "bmm", "nn", "tn")}


def _grouped_gemm(_: str, cells: Columns) -> dict[str, Any]:
    """Nothing follows, but a fullest group must be one that tokens and groups can make."""
    tokens, groups, largest = (_cell(cells, name, 0) for name in ("tokens", "groups", "largest"))
    least = -(-tokens // groups)
    _refuse(
        (largest > 0) & ((largest < least) | (largest > tokens)),
        "largest={largest}: {tokens} tokens in {groups} groups need at least {least} and at most all in one of them",
        largest=largest, tokens=tokens, groups=groups, least=least,
    )  # fmt: skip
    return {}


def _conv2d(_: str, cells: Columns) -> dict[str, Any]:
    """One image unless given; the filter must fit its input, and groups divide the channels."""
    for side in ("height", "width"):
        reach = _cell(cells, "dilation", 1) * (_cell(cells, f"kernel_{side}", 1) - 1) + 1
        padded = _cell(cells, side, 1) + 2 * _cell(cells, "padding", 0)
        message = "a filter of {side} {reach} is larger than its padded input of {padded}: pad it"
        _refuse(reach > padded, message, side=side, reach=reach, padded=padded)
    _check_divides(cells, "groups", "in_channels", "out_channels")
    return {"batch": 1}


def _attention(_: str, cells: Columns) -> dict[str, Any]:
    """One sequence that attends to itself, with as many heads of keys as of queries, unless given; heads must share
    keys evenly, and shared values be a part of the keys.
    """
    _check_divides(cells, "kv_heads", "heads")
    value, head = _cell(cells, "value_dim", 0), _cell(cells, "head_dim", 0)
    message = "value_dim={value}, head_dim={head}: values that are a part of the keys are no wider"
    _refuse(_cell(cells, "shared_kv", False) & (value > head), message, value=value, head=head)
    return {"batch": 1, "kv_heads": cells["heads"], "kv_len": cells["q_len"]}


def _collective(_: str, cells: Columns) -> dict[str, Any]:
    """All ranks share a node unless said; nodes share them evenly."""
    op, ranks, within = (_cell(cells, *named) for named in (("op", "all_reduce"), ("ranks", 2), ("per_node", 0)))
    _refuse(~np.isin(op, COLLECTIVES), "op={op}: must be one of {known}", op=op, known=", ".join(COLLECTIVES))
    _check_divides({"per_node": np.ma.masked_equal(within, 0), "ranks": np.ma.array(ranks)}, "per_node", "ranks")
    pairs = np.isin(op, PAIRS)
    _refuse(pairs & (ranks > 2), "ranks={ranks}: {op} is between two: give ranks=2", ranks=ranks, op=op)
    return {"ranks": np.ma.masked_where(~pairs, np.full(len(op), 2))}


def _moe(_: str, cells: Columns) -> dict[str, Any]:
    """Default of ``all_experts``: one device has all experts; devices share them evenly."""
    for name in encode_words(_cell(cells, "distribution", "balanced"))[1]:
        check_distribution(name)
    experts, top_k = _cell(cells, "experts", 1), _cell(cells, "top_k", 1)
    everyone = _cell(_fill_empty(cells, {"all_experts": experts}), "all_experts", 1)
    for sizes in np.unique(np.stack([experts, everyone, top_k]), axis=1).T.tolist():
        check_experts(*sizes)
    return {"all_experts": experts}


def _check_divides(cells: Columns, divisor: str, *names: str) -> None:
    for name in names:
        parts, whole = _cell(cells, divisor, 1), _cell(cells, name, 0)
        message = "{divisor}={parts} does not divide {name}={whole}"
        _refuse(whole % parts != 0, message, divisor=divisor, parts=parts, name=name, whole=whole)


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
    "weight_dtype": (
        "",
        "float8",
        "int8",
        "int4",
        "mxfp4",
        "nvfp4",
        "nf4",
        "nf4_double",
        "fp6",
        *GGUF_BITS,
        *EXL2_BITS,
    ),
    "scaling": ("", "tensor", "row", "block", "micro", "group"),
}
_FOLLOWS: dict[str, Callable[[str, Columns], dict[str, Any]]] = {
    "gemm": _gemm,
    "grouped_gemm": _grouped_gemm,
    "conv2d": _conv2d,
    "attention": _attention,
    "moe": _moe,
    "collective": _collective,
}
"""What follows from the shape, by family; of others from the table of operators."""
SHAPE_NAMES = frozenset(field.name for family in KERNEL_CLASSES.values() for field in fields(family)).union(
    *_SHORT.values(), _FIELD_NAMES
)
"""Names of all fields that can specify the shape of a kernel."""
