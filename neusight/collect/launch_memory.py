"""Launches of data movement: copies, casts, concatenation, and rows by index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from neusight.collect.launches import (
    TORCH_DTYPES,
    Launch,
    Operands,
    Source,
    factors,
    launcher,
    size_of,
    unmeasurable,
)
from neusight.kernels import Memory

aten = torch.ops.aten
_WIDTH = 64
"""Elements that lie together when a copy turns dimensions round: a head of attention."""
_TABLE_ROWS = 1024
"""Rows of a table that is read by index, at least."""
_SHARED = 32
"""Tokens to a row of the table whose gradient an embedding adds to: clearing so small a table costs nothing."""


@launcher("memory")
def memory(kernel: Memory) -> Launch:
    """Copies turn two dimensions round, as attention does with its heads; gathers take whole rows by index."""
    if kernel.op not in _MOVES:
        raise unmeasurable(kernel)
    return _MOVES[kernel.op](kernel)


def _copy(kernel: Memory) -> Launch:
    """Of equal widths: dense to dense with dimensions turned; of different widths: a cast."""
    if kernel.read_bytes != kernel.write_bytes:
        return _cast(kernel)
    heads, width = (1, kernel.elements) if kernel.elements % _WIDTH else (kernel.elements // _WIDTH, _WIDTH)
    rows, together = factors(heads, 16)

    def operands(source: Source) -> Operands:
        return (source.normal(rows, together, width, dtype=kernel.dtype).transpose(0, 1),)

    return Launch(kernel=kernel, operands=operands, run=lambda x: torch.clone(x, memory_format=torch.contiguous_format))


def _cast(kernel: Memory) -> Launch:
    wider = {2 * kernel.elements: "bfloat16", 4 * kernel.elements: "float32"}.get(kernel.read_bytes)
    if wider is None or wider == kernel.dtype or kernel.dtype not in ("float32", "float16", "bfloat16"):
        raise unmeasurable(kernel)
    target = TORCH_DTYPES[kernel.dtype]
    return Launch(
        kernel=kernel,
        operands=lambda source: (source.normal(kernel.elements, dtype=wider),),
        run=lambda x: x.to(target),
    )


def _fill(kernel: Memory) -> Launch:
    return Launch(
        kernel=kernel,
        operands=lambda source: (source.normal(kernel.elements, dtype=kernel.dtype),),
        run=lambda x: x.zero_(),
    )


def _cat(kernel: Memory) -> Launch:
    """Two halves along the last dimension."""
    rows, cols = factors(kernel.elements, 4096)
    if cols < 2 or kernel.read_bytes != kernel.write_bytes:
        raise unmeasurable(kernel)

    def operands(source: Source) -> Operands:
        left = source.normal(rows, cols // 2, dtype=kernel.dtype)
        return left, source.normal(rows, cols - cols // 2, dtype=kernel.dtype)

    return Launch(kernel=kernel, operands=operands, run=lambda a, b: torch.cat((a, b), -1))


def _indexed_rows(kernel: Memory, moved: int) -> tuple[int, int]:
    """(rows, elements a row) of what ``kernel`` moves by index: eight bytes read beyond ``moved`` are one index."""
    rows, odd = divmod(kernel.read_bytes - moved, 8)
    if odd or rows <= 0 or kernel.elements % rows:
        raise unmeasurable(kernel)
    return rows, kernel.elements // rows


def _gather(kernel: Memory) -> Launch:
    """Rows of a table by index: an embedding, or a gather along the first dimension; every row is another."""
    rows, width = _indexed_rows(kernel, kernel.elements * size_of(kernel))

    def operands(source: Source) -> Operands:
        table = source.normal(max(rows, _TABLE_ROWS), width, dtype=kernel.dtype)
        return table, source.indices(len(table), rows)

    run = torch.embedding if kernel.op == "embedding" else lambda table, index: table[index]
    return Launch(kernel=kernel, operands=operands, run=run)


def _scatter(kernel: Memory) -> Launch:
    """Rows to their places, without collisions."""
    rows, width = _indexed_rows(kernel, kernel.elements * size_of(kernel))

    def operands(source: Source) -> Operands:
        places = torch.randperm(rows, generator=source.generator, device=source.device)
        return (*(source.normal(rows, width, dtype=kernel.dtype) for _ in range(2)), places)

    return Launch(
        kernel=kernel, operands=operands, run=lambda target, rows, places: target.index_copy_(0, places, rows)
    )


def _embedding_backward(kernel: Memory) -> Launch:
    """The rows of the gradient added to a small table, which is cleared first."""
    rows, width = _indexed_rows(kernel, 2 * kernel.elements * size_of(kernel))
    table = max(1, min(_TABLE_ROWS, rows // _SHARED))

    def operands(source: Source) -> Operands:
        return source.normal(rows, width, dtype=kernel.dtype), source.indices(table, rows)

    def run(grad: torch.Tensor, indices: torch.Tensor) -> Any:
        return aten.embedding_dense_backward(grad, indices, table, -1, False)

    return Launch(kernel=kernel, operands=operands, run=run)


_MOVES: dict[str, Callable[[Memory], Launch]] = {
    "copy": _copy,
    "fill": _fill,
    "cat": _cat,
    "embedding": _gather,
    "gather": _gather,
    "scatter": _scatter,
    "embedding_backward": _embedding_backward,
}
