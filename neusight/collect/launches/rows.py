"""Launches that work on rows: reductions along them, and data movement of whole rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from neusight.collect.launches.launch import (
    TORCH_DTYPES,
    Operands,
    OperandSource,
    Recipe,
    factors,
    unmeasurable,
    values_beside,
)  # fmt: skip
from neusight.kernels import Memory, RowReduction

aten = torch.ops.aten
Makers = tuple[Callable[[OperandSource, RowReduction], Operands], Callable[..., Any]]


def _matrix(source: OperandSource, kernel: RowReduction) -> Operands:
    return (source.normal(kernel.rows, kernel.cols, dtype=kernel.dtype),)


def _result_and_gradient(source: OperandSource, kernel: RowReduction) -> Operands:
    (x,) = _matrix(source, kernel)
    log = kernel.op.startswith("log")
    result = torch.log_softmax(x, -1) if log else torch.softmax(x, -1)
    return source.normal(kernel.rows, kernel.cols, dtype=kernel.dtype), result, x.dtype


def _scale_and_shift(source: OperandSource, kernel: RowReduction) -> Operands:
    weight, bias = (source.normal(kernel.cols, dtype=kernel.dtype) for _ in range(2))
    return (*_matrix(source, kernel), weight, bias)


def _layer_norm(source: OperandSource, kernel: RowReduction) -> Operands:
    """Gradient, input, statistics, scale and shift of a layer norm; rows of its scale's gradient are its columns."""
    turned = kernel.op == "layer_norm_weight_backward"
    rows, cols = (kernel.cols, kernel.rows) if turned else (kernel.rows, kernel.cols)
    x, weight, bias = (source.normal(*s, dtype=kernel.dtype) for s in ((rows, cols), (cols,), (cols,)))
    _, mean, deviation = torch.native_layer_norm(x, [cols], weight, bias, 1e-5)
    return source.normal(rows, cols, dtype=kernel.dtype), x, [cols], mean, deviation, weight, bias


def _images(source: OperandSource, kernel: RowReduction) -> torch.Tensor:
    """A batch of at most 64 images, channels as rows."""
    pixels, images = factors(kernel.cols, 64)
    return source.normal(images, kernel.rows, pixels, dtype=kernel.dtype)


def _batch_norm(source: OperandSource, kernel: RowReduction) -> Operands:
    weight, bias, mean = (source.normal(kernel.rows, dtype=kernel.dtype) for _ in range(3))
    return _images(source, kernel), weight, bias, mean, mean.abs() + 1.0


def _batch_norm_backward(source: OperandSource, kernel: RowReduction) -> Operands:
    x, weight, bias, mean, variance = _batch_norm(source, kernel)
    _, saved_mean, saved_deviation = torch.native_batch_norm(x, weight, bias, mean, variance, True, 0.1, 1e-5)
    return _images(source, kernel), x, weight, mean, variance, saved_mean, saved_deviation


_FORMS: dict[str, Makers] = {
    "softmax": (_matrix, lambda x: torch.softmax(x, -1)),
    "log_softmax": (_matrix, lambda x: torch.log_softmax(x, -1)),
    "softmax_backward": (_result_and_gradient, lambda g, y, t: aten._softmax_backward_data(g, y, -1, t)),
    "log_softmax_backward": (_result_and_gradient, lambda g, y, t: aten._log_softmax_backward_data(g, y, -1, t)),
    "layer_norm": (_scale_and_shift, lambda x, w, b: torch.native_layer_norm(x, w.shape, w, b, 1e-5)),
    "layer_norm_backward": (_layer_norm, lambda *given: aten.native_layer_norm_backward(*given, [True, False, False])),
    "layer_norm_weight_backward": (
        _layer_norm,
        lambda *given: aten.native_layer_norm_backward(*given, [False, True, True]),
    ),
    "batch_norm": (_batch_norm, lambda *operands: aten.native_batch_norm(*operands, True, 0.1, 1e-5)),
    "batch_norm_backward": (
        _batch_norm_backward,
        lambda *operands: aten.native_batch_norm_backward(*operands, True, 1e-5, [True, True, True]),
    ),
    # Sums in models are mostly those of bias gradients: over the rows of a row-major matrix.
    "sum": (
        lambda source, kernel: (source.normal(kernel.cols, kernel.rows, dtype=kernel.dtype),),
        lambda x: torch.sum(x, 0),
    ),
    "mean": (_matrix, lambda x: torch.mean(x, -1)),
    "max": (_matrix, lambda x: torch.max(x, -1)),
    "argmax": (_matrix, lambda x: torch.argmax(x, -1)),
    "cumsum": (_matrix, lambda x: torch.cumsum(x, -1)),
    "sort": (_matrix, lambda x: torch.sort(x, -1)),
}


def row_reduction(kernel: RowReduction) -> Recipe:
    """Rows over the last dimension of a row-major matrix; batch norm over images, sums over the first dimension."""
    if kernel.op not in _FORMS:
        raise unmeasurable(kernel)
    make, run = _FORMS[kernel.op]
    return lambda source: make(source, kernel), run


_WIDTH = 64
"""Elements that lie together when a copy turns dimensions round: a head of attention."""
_TABLE_ROWS = 1024
"""Rows of a table that is read by index, at least."""
_SHARED = 32
"""Tokens to a row of the table whose gradient an embedding adds to: clearing so small a table costs nothing."""


def memory(kernel: Memory) -> Recipe:
    """Copies turn two dimensions round, as attention does with its heads; gathers take whole rows by index."""
    if kernel.op not in _MOVES:
        raise unmeasurable(kernel)
    return _MOVES[kernel.op](kernel)


def _copy(kernel: Memory) -> Recipe:
    """A copy of equal widths, dense to dense with dimensions turned; of different widths, a cast."""
    if kernel.read_bytes != kernel.write_bytes:
        return _cast(kernel)
    heads, width = (1, kernel.elements) if kernel.elements % _WIDTH else (kernel.elements // _WIDTH, _WIDTH)
    rows, together = factors(heads, 16)

    def operands(source: OperandSource) -> Operands:
        return (source.normal(rows, together, width, dtype=kernel.dtype).transpose(0, 1),)

    return operands, lambda x: torch.clone(x, memory_format=torch.contiguous_format)


def _cast(kernel: Memory) -> Recipe:
    wider = {2 * kernel.elements: "bfloat16", 4 * kernel.elements: "float32"}.get(kernel.read_bytes)
    if wider is None or wider == kernel.dtype or kernel.dtype not in ("float32", "float16", "bfloat16"):
        raise unmeasurable(kernel)
    target = TORCH_DTYPES[kernel.dtype]
    return lambda source: (source.normal(kernel.elements, dtype=wider),), lambda x: x.to(target)


def _fill(kernel: Memory) -> Recipe:
    return lambda source: (source.normal(kernel.elements, dtype=kernel.dtype),), lambda x: x.zero_()


def _cat(kernel: Memory) -> Recipe:
    """Two halves along the last dimension."""
    rows, cols = factors(kernel.elements, 4096)
    if cols < 2 or kernel.read_bytes != kernel.write_bytes:
        raise unmeasurable(kernel)

    def operands(source: OperandSource) -> Operands:
        left = source.normal(rows, cols // 2, dtype=kernel.dtype)
        return left, source.normal(rows, cols - cols // 2, dtype=kernel.dtype)

    return operands, lambda a, b: torch.cat((a, b), -1)


def _indexed_rows(kernel: Memory, moved: int) -> tuple[int, int]:
    """(rows, elements a row) of what ``kernel`` moves by index: eight bytes beyond ``moved`` values are an index."""
    rows = values_beside(kernel, 8, moved)
    return rows, kernel.elements // rows


def _gather(kernel: Memory) -> Recipe:
    """Rows of a table by index: an embedding, or a gather along the first dimension; every row is another."""
    rows, width = _indexed_rows(kernel, kernel.elements)

    def operands(source: OperandSource) -> Operands:
        table = source.normal(max(rows, _TABLE_ROWS), width, dtype=kernel.dtype)
        return table, source.indices(len(table), rows)

    return operands, torch.embedding if kernel.op == "embedding" else lambda table, index: table[index]


def _scatter(kernel: Memory) -> Recipe:
    """Rows to their places, without collisions."""
    rows, width = _indexed_rows(kernel, kernel.elements)

    def operands(source: OperandSource) -> Operands:
        places = torch.randperm(rows, generator=source.generator, device=source.device)
        return (*(source.normal(rows, width, dtype=kernel.dtype) for _ in range(2)), places)

    return operands, lambda target, rows, places: target.index_copy_(0, places, rows)


def _embedding_backward(kernel: Memory) -> Recipe:
    """The rows of the gradient added to a small table, which is cleared first."""
    rows, width = _indexed_rows(kernel, 2 * kernel.elements)
    table = max(1, min(_TABLE_ROWS, rows // _SHARED))

    def operands(source: OperandSource) -> Operands:
        return source.normal(rows, width, dtype=kernel.dtype), source.indices(table, rows)

    return operands, lambda grad, indices: aten.embedding_dense_backward(grad, indices, table, -1, False)


_MOVES: dict[str, Callable[[Memory], Recipe]] = {
    "copy": _copy,
    "fill": _fill,
    "cat": _cat,
    "embedding": _gather,
    "gather": _gather,
    "scatter": _scatter,
    "embedding_backward": _embedding_backward,
}
