"""Products with weights, forward and backward, and what tensor-parallel ranks exchange around them.

A column-parallel product has all inputs and a share of the outputs, a row-parallel one a share of the inputs and
partial sums of all outputs (Shoeybi et al. 2019, section 3). With sequence parallelism, what enters is gathered and
what leaves is scattered (Korthikanti et al. 2022, section 4.2.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np

from neusight.kernels.families import KernelBatch
from neusight.kernels.precision import stored_bytes
from neusight.kernels.schemes import NONE
from neusight.workloads.decoders.adapters import adapt, served_adapters
from neusight.workloads.decoders.layers import Projection
from neusight.workloads.decoders.operations import Operation, Shape, exchange, product_gradients
from neusight.workloads.decoders.rank import FLOAT_BYTES, INDEX_BYTES, Rank
from neusight.workloads.program import Part, SavedActivation

OUTLIERS = 8
"""Columns of activations with large values: six or seven in models of 6.7 billion parameters and more (Dettmers et al.
2022, section 4), in whole multiples of what matrix units take."""


def product(
    rank: Rank, projection: Projection, rows: Any, *, name: str = "", quantised: bool = False, runs: Any = None
) -> Iterator[Operation]:
    """Rows times a projection; backward for the input's gradient and for the weights'.

    Args:
        rank: on which; its engine says whether joined matrices are one product.
        projection: the rank's share of the weights.
        rows: tokens.
        name: what it is called, where that is not the projection's own name.
        quantised: the input arrives in 8 bits already, from the norm before it.
        runs: how often, where that is not once in each pass.
    """
    name = name or projection.name
    apart = separate(rank, projection)
    if len(apart) > 1 and not rank.serves:
        yield _add_gradients(rank, f"{name} add gradients", (rows, projection.k), len(apart))
    for part in apart:
        layout = "nn" if part.stored == "transposed" and not rank.engine.joined_projections else "tn"
        bias = part.bias and not _defers_bias(rank, part)
        shape = rows, part.n, part.k
        if rank.serves:
            yield Operation(forward=served_product(rank, name, part.kind, shape, bias=bias, runs=runs), held=part.held)
            yield from served_adapters(rank, part, rows, runs)
        else:
            forward = _gemm(rank, name, part.kind, shape, layout, bias=bias, runs=runs)
            yield _with_gradients(rank, part, forward, (shape, layout), bias=bias, quantised=quantised)
            yield from adapt(rank, part, rows)


def served_product(
    rank: Rank, name: str, kind: str, shape: Shape, *, bias: bool = False, runs: Any = None
) -> tuple[Part, ...]:
    """Product of served tokens with the other kernels of its weights' scheme, see ``Quantisation``."""
    scheme, runs = rank.quantisation.of(kind), rank.runs if runs is None else runs
    (rows, n, k), calls = shape, scheme.python_calls
    if scheme.activations:
        product = _gemm(rank, name, kind, shape, "tn", bias=bias, runs=runs)
        apart = not product.batch["quantised"].any() and not rank.engine.calibrated_scales
        casts = _narrowed_apart(rank, name, shape, calls) if apart else ((), ())
        narrow = (*casts[0], replace(product, python_calls=calls), *casts[1])
        return narrow if scheme.least_rows == 1 else _widely(rank, name, shape, narrow, bias=bias)
    if scheme.scale_group:
        scales = np.full_like(runs, n * k // 64)
        widened = rank.move(f"{name} scales", "copy", scales, scales, FLOAT_BYTES * scales)
        before: tuple[Part, ...] = (replace(widened, runs=runs, python_calls=calls),)
    else:
        before = ()
    few = np.less_equal(rows, scheme.fused_rows)
    product = replace(_gemm(rank, name, kind, shape, "tn", bias=bias, runs=runs * few), python_calls=calls)
    if scheme.fused_rows == inf:
        return (*before, product)
    wide = rank.widen(name, n * k, scheme.weight_bytes(rank.dtype))
    plain = _gemm(replace(rank, quantisation=NONE), name, kind, shape, "tn", bias=bias, runs=runs * ~few)
    return (*before, product, replace(wide, runs=runs * ~few, python_calls=2 * calls), plain)


def _widely(rank: Rank, name: str, shape: Shape, narrow: tuple[Part, ...], *, bias: bool) -> tuple[Part, ...]:
    """A product in 8 bits, or of too few rows for one the same in 32 bits, as which its weights are written first."""
    rows, n, k = shape
    few = np.less(rows, rank.quantisation.least_rows)
    batch = KernelBatch.from_columns("gemm", m=np.maximum(rows, 1), n=n, k=k, bias=bias, layout="tn", dtype="float32")
    widened = rank.widen(name, n * k, 1.0, FLOAT_BYTES)
    return (
        *(replace(part, runs=part.runs * ~few) for part in narrow),
        replace(widened, runs=rank.runs * few),
        rank.part(name, batch, rank.runs * few),
    )


def _narrowed_apart(rank: Rank, name: str, shape: Shape, calls: int) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """Separate kernels that narrow activations before a product and scale its int32 result after it; large columns of
    activations first.
    """
    (rows, n, k), size = shape, rank.size
    rows = np.maximum(rows, 1)
    if rank.quantisation.scaling == "group":
        return (rank.sweep(f"{name} quantise", "quantise", rows * k, rows * k * size, rows * k * 9 // 8),), ()
    narrow = rank.reduce(f"{name} quantise", "amax", (rows, k), rows * k * size, rows * k)
    scaled = rank.sweep(f"{name} scale", "mul", rows * n, rows * n * FLOAT_BYTES, rows * n * size)
    outliers = _outliers(rank, name, shape) if rank.quantisation.outliers else ()
    return (*outliers, replace(narrow, python_calls=calls)), (replace(scaled, python_calls=calls),)


def _outliers(rank: Rank, name: str, shape: Shape) -> tuple[Part, ...]:
    """Columns that hold a large value, theirs of activations and of weights in 16 bits, and their product, which is
    added (bitsandbytes, ``int8_vectorwise_quant``, ``int8_mixed_scaled_mm``).
    """
    (rows, n, k), few = shape, OUTLIERS
    rows = np.maximum(rows, 1)
    wide, chosen = replace(rank, quantisation=NONE), np.full_like(rows, n * few)
    return (
        *(rank.pointwise(f"{name} outliers", op, rows, k) for op in ("abs", "ge")),
        *(rank.reduce(f"{name} outliers", "any", extent, rows * k, extent[0]) for extent in ((1, rows * k), (k, rows))),
        rank.reduce(f"{name} outliers", "nonzero", (1, np.full_like(rows, k)), k, INDEX_BYTES * few),
        *(rank.move(f"{name} outliers", op, rows * few, rows * few * 2, rows * few * 2) for op in ("gather", "fill")),
        rank.move(f"{name} outliers", "gather", chosen, chosen, chosen),
        rank.sweep(f"{name} outliers", "mul", chosen, chosen, chosen * rank.size),
        _gemm(wide, f"{name} outliers", "", (rows, n, few), "tn", runs=rank.runs),
    )


def separate(rank: Rank, projection: Projection) -> tuple[Projection, ...]:
    """The products that a projection is: one, or one a part where neither the engine nor the module joins them."""
    if rank.engine.joined_projections or projection.stored != "apart":
        return (projection,)
    return tuple(replace(projection, parts=(n,), place=at) for at, n in enumerate(projection.parts))


def _add_gradients(rank: Rank, name: str, shape: tuple[int, int], count: int) -> Operation:
    """Sum of ``count`` gradients: pass by pass, in one pass, or in the kernel that reads it."""
    if not rank.engine.generated:
        return Operation(backward=(rank.pointwise(name, "add", *shape, runs=count - 1),))
    if rank.tp == 1:
        return Operation()
    size = shape[0] * shape[1] * rank.size
    return Operation(backward=(rank.sweep(name, "add", shape[0] * shape[1], count * size, size),))


def _with_gradients(
    rank: Rank, projection: Projection, forward: Part, how: tuple[Shape, str], *, bias: bool, quantised: bool
) -> Operation:
    """Product with its two gradients, casts to few bits before each, and the sum over rows for its bias.

    What ranks gather in few bits they cast before that, and transpose after it.
    """
    name, kind, summing = forward.name, projection.kind, rank.engine.accumulation
    (rows, n, k), _ = how
    of_input, of_weights = product_gradients(*how)
    narrow = rank.narrow(kind)
    shared = narrow and rank.sequence_parallel and rank.recipe.gathered and rows == rank.tokens
    row_parallel = projection.name.endswith(("output", "down"))
    gathers, gathers_back = shared and not row_parallel, shared and row_parallel
    local, turned = rank.resident_tokens, rank.share.transposes and not rank.recipe.rescaled
    fused = rank.engine.generated and (projection.name == "up" or len(projection.parts) > 1)
    return Operation(
        forward=(
            *quantise(rank, name, (local if gathers else rows, k), wanted=narrow and not quantised, once=gathers),
            forward,
        ),
        backward=(
            *quantise(rank, f"{name} gradient", (local if gathers_back else rows, n), wanted=narrow, once=gathers_back),
            _gemm(rank, name, kind, *of_input),
        ),
        weights=(
            *_transpose(rank, name, rows * k, wanted=narrow and turned and (quantised or gathers)),
            *_transpose(rank, f"{name} gradient", rows * n, wanted=turned and gathers_back),
            _gemm(rank, name, kind, *of_weights, accumulates=summing == "product"),
            *(rank.accumulate(name, projection.weights) if summing != "product" else ()),
            *(bias_gradient(rank, name, rows, n) if bias and not fused else ()),
        ),
        held=projection.held,
        saved=(selected_values(rank, f"{name} output", rows * n, product=True),),
    )


def _beside_pieces(rank: Rank, parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Split collectives that products in pieces hide in part, where a plan has them so; copies around them stay
    exposed.
    """
    if rank.local is None or not rank.local.overlap_tp or not rank.engine.hidden_tp:
        return parts
    hidden = rank.engine.hidden_tp
    exposed = [replace(part, runs=(1.0 - hidden) * part.runs) for part in parts]
    hidden_parts = [replace(part, runs=hidden * part.runs, overlapped=True) for part in parts if part.group]
    return (*exposed, *hidden_parts)


def selected_values(rank: Rank, name: str, elements: float, *, product: bool = False) -> SavedActivation:
    """Values that only a selection by operators keeps; of a ``product``, every second."""
    return SavedActivation(name=name, bytes=0.0, selected_bytes=elements * stored_bytes(rank.dtype), product=product)


def product_input(rank: Rank, name: str, elements: float) -> SavedActivation:
    """The input of a product, kept for the gradient of its weights in the precision of that product."""
    size = rank.recipe.value_bytes if rank.recipe else stored_bytes(rank.dtype)
    return SavedActivation(name=name, bytes=elements * size)


def _defers_bias(rank: Rank, projection: Projection) -> bool:
    """Tell whether a later kernel adds the bias: that of the residual, or of the activation."""
    later = ("output", "down", "shared down", "up")
    return rank.engine.deferred_bias and projection.name in later and projection.kind != "experts"


def _gemm(
    rank: Rank, name: str, kind: str, shape: Shape, layout: str, *, bias: bool = False, accumulates: bool = False,
    runs: Any = None,
) -> Part:  # fmt: skip
    """A product of (m, n, k). In 8 bits all operands lie along their depth: matrix units of Hopper know no other."""
    m, n, k = shape
    scheme, engine = rank.quantisation.of(kind), rank.engine
    scaled = scheme.dynamic and not (engine.calibrated_scales and scheme.scaling == "tensor")
    batch = KernelBatch.from_columns(
        "gemm", m=np.maximum(m, 1), n=n, k=k, bias=bias, accumulates=accumulates,
        layout="tn" if scheme.activations else layout, **rank.arithmetic(kind),
        quantised=bool(scheme.activations) and scaled and engine.quantises_in_products,
    )  # fmt: skip
    return rank.part(name, batch, runs)


def bias_gradient(rank: Rank, name: str, rows: int, cols: int) -> tuple[Part, ...]:
    """The sum over rows."""
    size = rank.size * cols
    return (
        rank.reduce(f"{name} bias gradient", "sum", (cols, rows), rows * size, size),
        *rank.accumulate(f"{name} bias", cols),
    )


def quantise(
    rank: Rank, name: str, shape: tuple[int, int], *, wanted: bool = True, once: bool = False
) -> tuple[Part, ...]:
    """Cast an operand to few bits for both products that read it, after passes that search for its largest value;
    ``once``: it is transposed later.
    """
    if not wanted:
        return ()
    recipe, elements = rank.recipe, shape[0] * shape[1]
    size = elements * rank.size
    written = round(elements * recipe.value_bytes * recipe.copies(rank.share.transposes and not once) / recipe.passes)
    cast = rank.sweep(f"{name} quantise", "quantise", elements, size, written)
    search = rank.reduce(f"{name} largest", "amax", shape, size, FLOAT_BYTES * shape[0])
    searches = (replace(search, runs=recipe.searches),) if recipe.searches else ()
    return (*searches, replace(cast, runs=recipe.passes))


def _transpose(rank: Rank, name: str, elements: int, *, wanted: bool) -> tuple[Part, ...]:
    """Transposed copy of values in 8 bits that a norm wrote, or ranks gathered."""
    return (rank.move(f"{name} transpose", "transpose", elements, elements, elements),) if wanted else ()


def entering(rank: Rank, width: int, kind: str, name: str = "input") -> Operation:
    """Operations before column-parallel products: each rank gets all rows, and returns its part of their gradient."""
    size, overlaps = rank.tokens * width * rank.size, rank.engine.overlaps_weights
    if not rank.sequence_parallel:
        summed = rank.exchange(f"reduce gradient of {name}", "all_reduce", "tp", size, overlapped=overlaps)
        return Operation(backward=summed)
    sent = rank.gathered_bytes(rank.tokens * width, kind)
    gather = exchange(rank, f"gather {name}", "all_gather", "tp", sent, back=size, overlapped=overlaps)
    gather = _in_order(rank, gather, sent, size)
    back = gather.backward if overlaps else _beside_pieces(rank, gather.backward)
    again = rank.exchange(f"gather {name} again", "all_gather", "tp", sent, overlapped=True)
    regathered = again if rank.engine.regathers else ()
    return Operation(forward=_beside_pieces(rank, gather.forward), backward=(*regathered, *back))


def _in_order(rank: Rank, exchange: Operation, forward: Any, backward: Any) -> Operation:
    """An exchange with a copy of ``forward`` or ``backward`` bytes that puts rows of sequences that lie one after the
    other in the order of ranks before they are scattered, or in their order when they were gathered rank by rank
    (torch/distributed/_functional_collectives.py, ``all_gather_tensor``, ``reduce_scatter_tensor``).
    """
    if not (rank.engine.copies_gathered and exchange.forward):
        return exchange

    def reorder(parts: tuple[Part, ...], size: Any) -> tuple[Part, ...]:
        copy = rank.move(f"order {parts[0].name}", "cat", size // rank.size, size, size)
        return (copy, *parts) if parts[0].batch["op"][0] == "reduce_scatter" else (*parts, copy)

    return replace(exchange, forward=reorder(exchange.forward, forward), backward=reorder(exchange.backward, backward))


def leaving(rank: Rank, width: int, kind: str, name: str = "output") -> Operation:
    """After row-parallel products: partial sums are added up."""
    if not rank.reduces:
        return Operation()
    size = rank.tokens * width * rank.size
    if not rank.sequence_parallel:
        return exchange(rank, f"reduce {name}", "all_reduce", "tp", size)
    sent = rank.gathered_bytes(rank.tokens * width, kind)
    scatter = _in_order(rank, exchange(rank, f"scatter {name}", "reduce_scatter", "tp", size, back=sent), size, sent)
    return Operation(forward=_beside_pieces(rank, scatter.forward), backward=_beside_pieces(rank, scatter.backward))
