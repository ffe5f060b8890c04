"""Sorting, counting and searching: what orders values, and what counts them.

Rows that a block holds are sorted in one kernel; longer ones digit by digit, each of which reads and writes all.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, log2

from neusight.kernels import Kernel, RowReduction
from neusight.kernels.operators import operator
from neusight.workloads.rules.memory import move
from neusight.workloads.rules.reduction import along, reduce
from neusight.workloads.rules.registry import one_pass, rule
from neusight.workloads.tensors import Call, TensorSpec

_ROW_OF_BLOCK = 4096
"""Values that PyTorch sorts within a block (``should_use_small_sort`` in Sorting.cpp)."""
_DIGIT_BITS = 8
"""Of a pass of CUB's radix sort (Merrill and Grimshaw 2011; Adinets and Merrill 2022)."""


def _digits(tensor: TensorSpec) -> int:
    return max(1, 8 * tensor.element_bytes // _DIGIT_BITS)


@rule("sort", "argsort", "median", "mode")
def sorted_rows(call: Call) -> tuple[Kernel, ...]:
    """Sort along one dimension, by default the last; places move with the values."""
    argument = call.arg(1, "dim", -1)
    dim = argument if isinstance(argument, int) and not isinstance(argument, bool) else -1
    return tuple(_in_digits(kernel, call.args[0]) for kernel in along(call, "sort", dim))


@rule("topk", "kthvalue")
def largest(call: Call) -> tuple[Kernel, ...]:
    """A row by a block where it is short; a longer one is read digit by digit, and once more for what is chosen."""
    x = call.args[0]
    passes = _digits(x) + 1
    return tuple(
        kernel if kernel.cols <= _ROW_OF_BLOCK else replace(kernel, passes=passes, read_bytes=passes * x.nbytes)
        for kernel in along(call, "topk", call.arg(2, "dim", -1))
    )


def _in_digits(kernel: RowReduction, keys: TensorSpec) -> RowReduction:
    """The sort itself where its rows are short, else a pass a digit."""
    if kernel.cols <= _ROW_OF_BLOCK:
        return kernel
    passes = _digits(keys)
    moved = passes * (keys.element_bytes + 8) * keys.elements
    return replace(kernel, passes=passes, read_bytes=moved, write_bytes=moved)


@rule("_unique2", "unique_consecutive", "unique_dim")
def unique(call: Call) -> tuple[Kernel, ...]:
    """A sort of all values, a comparison of neighbours, and a copy of those that differ."""
    x = call.args[0]
    flat = TensorSpec((x.elements,), x.dtype)
    compared = reduce(
        "unique_dim", 1, max(1, x.elements), read_bytes=x.nbytes, write_bytes=call.write_bytes, dtype=call.dtype
    )
    if call.name == "unique_consecutive":
        return compared
    return (*sorted_rows(Call("sort", "default", (flat, 0), {}, (flat, TensorSpec(flat.shape, "int64")))), *compared)


@rule("bincount", "histc", "histogram")
def count_values(call: Call) -> tuple[Kernel, ...]:
    """Zeroes the counts, then reads every value and adds to one of them."""
    x = call.args[0]
    count = reduce("bincount", 1, x.elements, read_bytes=x.nbytes, write_bytes=call.write_bytes, dtype=call.dtype)
    return (*move("fill", call.output, 0), *count)


@rule("nonzero", "masked_select")
def select(call: Call) -> tuple[Kernel, ...]:
    """Counts what is chosen, which the host waits for, then reads again and writes it."""
    x = call.args[0]
    count = reduce("count_nonzero", 1, x.elements, read_bytes=x.nbytes, write_bytes=8, dtype=call.dtype)
    flops = operator("row_reduction", "nonzero").flops * x.elements
    return (*count, *one_pass(call, call.name, max(1, x.elements), flops))


@rule("bucketize", "searchsorted")
def search(call: Call) -> tuple[Kernel, ...]:
    """A bisection of the sorted values for each one that is looked for."""
    tensors = call.inputs
    ordered = tensors[0] if call.name == "searchsorted" else tensors[-1]
    last = ordered.shape[-1] if ordered.shape else 1
    elements = call.output.elements
    flops = 2 * max(1, ceil(log2(max(2, last)))) * elements
    return one_pass(call, call.name, max(1, elements), flops)


@rule("multinomial")
def multinomial(call: Call) -> tuple[Kernel, ...]:
    """Rows of weights, summed and scanned; each sample is a random number and a bisection of its row.

    Without replacement, weights are divided by random numbers and the largest taken (Efraimidis and Spirakis 2006).
    """
    x, out = call.args[0], call.output
    cols = x.shape[-1]
    rows = x.elements // max(1, cols)
    scan = reduce("cumsum", rows, cols, read_bytes=x.nbytes, write_bytes=x.nbytes, dtype=call.dtype)
    total = reduce("sum", rows, cols, read_bytes=x.nbytes, write_bytes=rows * x.element_bytes, dtype=call.dtype)
    flops = (operator("elementwise", "random").flops + 2 * ceil(log2(max(2, cols)))) * out.elements
    draw = one_pass(call, "multinomial", max(1, out.elements), flops, read_bytes=x.nbytes, write_bytes=out.nbytes)
    return (*total, *scan, *draw)
