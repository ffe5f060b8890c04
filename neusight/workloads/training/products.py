"""Products with weights, forward and backward, and what tensor-parallel ranks exchange around them.

A column-parallel product has all inputs and a share of the outputs, a row-parallel one a share of the inputs and
partial sums of all outputs (Shoeybi et al. 2019, section 3). With sequence parallelism, what enters is gathered and
what leaves is scattered (Korthikanti et al. 2022, section 4.2.2).
"""

from __future__ import annotations

from dataclasses import replace

from neusight.kernels.families import KernelBatch
from neusight.workloads.decoders.layers import Projection
from neusight.workloads.program import Part
from neusight.workloads.training.operations import Operation
from neusight.workloads.training.rank import FLOAT_BYTES, Rank


def product(rank: Rank, projection: Projection, rows: int, *, quantised: bool = False) -> Operation:
    """Rows times a projection: products forward, for the input's gradient and for the weights'.

    Args:
        rank: on which; its engine says whether joined matrices are one product.
        projection: the rank's share of the weights.
        rows: tokens.
        quantised: the input arrives in 8 bits already, from the norm before it.
    """
    done = [_single(rank, each, rows, quantised=quantised) for each in separate(rank, projection)]
    if len(done) == 1:
        return done[0]
    return Operation(
        forward=tuple(part for each in done for part in each.forward),
        backward=(
            *(part for each in done for part in each.backward),
            *_added(rank, f"{projection.what} add gradients", (rows, projection.k), len(done)),
        ),
        weights=tuple(part for each in done for part in each.weights),
        parameters=projection.parameters,
    )


def separate(rank: Rank, projection: Projection) -> tuple[Projection, ...]:
    """The products that a projection is: one, or one a part where neither the engine nor the module joins them."""
    if rank.engine.joined_projections or projection.stored != "apart":
        return (projection,)
    return tuple(replace(projection, parts=(n,)) for n in projection.parts)


def _added(rank: Rank, what: str, shape: tuple[int, int], count: int) -> tuple[Part, ...]:
    """The sum of ``count`` gradients: pass by pass, in one, or where it is read."""
    if not rank.engine.generated:
        return (rank.pointwise(what, "add", *shape, runs=count - 1),)
    if rank.local.tp == 1:
        return ()
    size = shape[0] * shape[1] * rank.size
    return (rank.passed(what, "add", shape[0] * shape[1], count * size, size),)


def _single(rank: Rank, projection: Projection, rows: int, *, quantised: bool) -> Operation:
    what, n, k = projection.what, projection.n, projection.k
    narrow, deferred = rank.narrow(projection.kind), _deferred(rank, projection)
    summed = rank.engine.accumulation == "product"
    fused = rank.engine.generated and (what == "up" or len(projection.parts) > 1)
    transposed = projection.stored == "transposed" and not rank.engine.joined_projections
    layouts, grid = (("nn", "tn"), (k, n)) if transposed else (("tn", "nn"), (n, k))
    forward = _gemm(rank, what, (rows, n, k), layouts[0], narrow=narrow, bias=projection.bias and not deferred)
    weights = _gemm(rank, what, (*grid, rows), "nt", narrow=narrow, accumulates=summed)
    return Operation(
        forward=(*_to_float8(rank, what, (rows, k), wanted=narrow and not quantised), forward),
        backward=(
            *_to_float8(rank, f"{what} gradient", (rows, n), wanted=narrow),
            _gemm(rank, what, (rows, k, n), layouts[1], narrow=narrow),
        ),
        weights=(
            *_turned(rank, what, (rows, k), wanted=narrow and quantised),
            weights,
            *_accumulated(rank, projection),
            *(bias_gradient(rank, what, rows, n) if projection.bias and not deferred and not fused else ()),
        ),
        parameters=projection.parameters,
    )


def _deferred(rank: Rank, projection: Projection) -> bool:
    """Whether a later kernel adds the bias: that of the residual, or of the activation."""
    later = ("output", "down", "shared down", "up")
    return rank.engine.deferred_bias and projection.what in later and projection.kind != "experts"


def _gemm(
    rank: Rank,
    what: str,
    shape: tuple[int, int, int],
    layout: str,
    *,
    narrow: bool = False,
    bias: bool = False,
    accumulates: bool = False,
) -> Part:
    """A product of (m, n, k). In 8 bits all operands lie along their depth: matrix units of Hopper know no other."""
    m, n, k = shape
    how = (
        {"layout": "tn", "dtype": "float8", "scaling": "tensor"} if narrow else {"layout": layout, "dtype": rank.dtype}
    )
    batch = KernelBatch.from_columns("gemm", m=m, n=n, k=k, bias=bias, accumulates=accumulates, **how)
    return Part(what=what, phase="forward", batch=batch)


def _accumulated(rank: Rank, projection: Projection) -> tuple[Part, ...]:
    """The weights' gradient to its sum, where the product does not do so."""
    if rank.engine.accumulation != "kernel":
        return ()
    return rank.accumulated(projection.what, projection.weights)


def bias_gradient(rank: Rank, what: str, rows: int, cols: int) -> tuple[Part, ...]:
    """The sum over rows."""
    size = rank.size * cols
    return (
        rank.reduced(f"{what} bias gradient", "sum", (cols, rows), rows * size, size),
        *rank.accumulated(f"{what} bias", cols),
    )


def _to_float8(rank: Rank, what: str, shape: tuple[int, int], *, wanted: bool) -> tuple[Part, ...]:
    """A tensor in 8 bits as it is and transposed, for both products that take it (Transformer Engine).

    With delayed scaling the kernel notes the largest value for later steps; current scaling looks for it before.
    """
    if not wanted:
        return ()
    rows, cols = shape
    searched = (
        (rank.reduced(f"{what} maximum", "amax", (1, rows * cols), rank.size * rows * cols, FLOAT_BYTES),)
        if rank.engine.scaling == "current"
        else ()
    )
    return (*searched, rank.pointwise(f"{what} quantise", "quantise", rows, cols))


def _turned(rank: Rank, what: str, shape: tuple[int, int], *, wanted: bool) -> tuple[Part, ...]:
    """The transposed copy of what a norm wrote in 8 bits."""
    elements = shape[0] * shape[1]
    return (rank.moved(f"{what} transpose", "transpose", elements, elements, elements),) if wanted else ()


def entering(rank: Rank, width: int, kind: str, what: str = "input") -> Operation:
    """Before column-parallel products: each rank gets all rows, and gives back its part of their gradient."""
    rows, after = rank.local.tokens, rank.engine.overlaps_weights
    size = rows * width * rank.size
    if not rank.local.sequence_parallel:
        return Operation(
            backward=rank.exchanged(f"reduce gradient of {what}", "all_reduce", "tp", size, overlapped=after)
        )
    sent = rows * width if rank.narrow(kind) else size
    again = rank.exchanged(f"gather {what} again", "all_gather", "tp", sent, overlapped=True)
    scattered = rank.exchanged(f"scatter gradient of {what}", "reduce_scatter", "tp", size, overlapped=after)
    return Operation(
        forward=rank.exchanged(f"gather {what}", "all_gather", "tp", sent),
        backward=(*(again if rank.engine.regathers else ()), *scattered),
    )


def leaving(rank: Rank, width: int, kind: str, what: str = "output") -> Operation:
    """After row-parallel products: partial sums are added up."""
    rows = rank.local.tokens
    size = rows * width * rank.size
    if not rank.local.sequence_parallel:
        return Operation(forward=rank.exchanged(f"reduce {what}", "all_reduce", "tp", size))
    sent = rows * width if rank.narrow(kind) else size
    return Operation(
        forward=rank.exchanged(f"scatter {what}", "reduce_scatter", "tp", size),
        backward=rank.exchanged(f"gather gradient of {what}", "all_gather", "tp", sent),
    )
