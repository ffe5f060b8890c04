"""Adapters: small products beside frozen ones (LoRA, Hu et al. 2021), trained in place of all weights, or served
several at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from neusight.kernels.families import KernelBatch
from neusight.kernels.schemes import EVERYWHERE, scheme_named
from neusight.workloads.decoders.layers import Projection
from neusight.workloads.decoders.operations import Operation, Shape, product_gradients
from neusight.workloads.decoders.rank import Rank
from neusight.workloads.decoders.recipes import QLORA, Adapters
from neusight.workloads.program import HeldWeights, Part, SavedActivation


def freeze(operations: Iterable[Operation]) -> Iterator[Operation]:
    """Operations whose weights get no gradients, but for those of adapters."""
    for done in operations:
        matrices = tuple(weights._replace(frozen=True) for weights in done.held)
        yield done if done.adapts else replace(done, weights=(), held=matrices)


def adapt(rank: Rank, projection: Projection, rows: int) -> Iterator[Operation]:
    """Operations that train next to a frozen product: widening of its weights, its adapters and its scales.

    Of a column-parallel projection ranks share the narrow side of the first product, of a row-parallel one that of the
    second (Megatron Core, ``ParallelLinearAdapter``).
    """
    adapters = rank.share.adapters
    if not adapters or projection.kind not in EVERYWHERE:
        return
    if adapters.method == "qlora":
        yield _widen_weights(rank, projection)
    parts = dict(enumerate(projection.parts, start=projection.place))
    if columns := adapters.columns(projection.name, projection.kind, parts):
        yield from _beside(rank, replace(projection, parts=(columns,)), rows, adapters)


def _widen_weights(rank: Rank, projection: Projection) -> Operation:
    """Widen NF4 weights to 16 bits before the products of both passes."""
    part = rank.widen(projection.name, projection.weights, scheme_named(QLORA).weight_bytes(rank.dtype))
    return Operation(forward=(part,), backward=(part,), adapts=True)


def _beside(rank: Rank, projection: Projection, rows: int, adapters: Adapters) -> Iterator[Operation]:
    if adapters.method == "ia3":
        yield _in_columns(rank, f"{projection.name} adapter", rows, projection.n)
    elif adapters.method == "loha":
        yield from _compose(rank, projection, rows, adapters.rank)
    elif adapters.method != "prompt":
        yield from _low_rank(rank, projection, rows, adapters)


def _in_columns(rank: Rank, name: str, rows: int, columns: int) -> Operation:
    """Results times a trained value a column."""
    scale, size = rank.pointwise(f"{name} scale", "mul", rows, columns), rows * columns * rank.size
    return Operation(
        forward=(scale,),
        backward=(scale,),
        weights=(rank.reduce(f"{name} gradient", "sum", (columns, rows), 2 * size, columns * rank.size),),
        held=(HeldWeights(columns, "adapter"),),
        saved=(SavedActivation(name=name, bytes=size),),
        adapts=True,
    )


def _compose(rank: Rank, projection: Projection, rows: int, narrow: int) -> Iterator[Operation]:
    """Compose a whole matrix of two products of factors, and multiply it with the rows."""
    name, n, k = f"{projection.name} adapter", projection.n, projection.k
    for which in ("first", "second"):
        yield _train(rank, f"{name} {which} factors", (n, k, narrow), held=n * narrow + k * narrow)
    times = rank.pointwise(f"{name} elements", "mul", n, k)
    yield Operation(
        forward=(times,), backward=(times, times), saved=(SavedActivation(name=name, bytes=3.0 * n * k * rank.size),),
        adapts=True,
    )  # fmt: skip
    yield _train(rank, name, (rows, n, k), held=0)
    yield Operation(forward=(rank.pointwise(f"{name} add", "add", rows, n),), adapts=True)


def _low_rank(rank: Rank, projection: Projection, rows: int, adapters: Adapters) -> Iterator[Operation]:
    name, shared = f"{projection.name} adapter", projection.name.endswith(("output", "down"))
    narrow, wide = adapters.rank if shared else -(-adapters.rank // rank.tp), projection.n
    wide = -(-wide // rank.tp) if shared else wide
    yield _train(rank, f"{name} in", (rows, narrow, projection.k))
    yield _train(rank, f"{name} out", (rows, wide, adapters.rank))
    add, back = ("add", rows, projection.n), ("add", rows, projection.k)
    saved_values = rows * adapters.rank + (rows * projection.k if rank.recipe else 0)
    yield Operation(
        forward=(rank.pointwise(f"{name} add", *add),),
        backward=(rank.pointwise(f"{name} add gradients", *back),),
        saved=(SavedActivation(name=name, bytes=saved_values * rank.size),),
        adapts=True,
    )
    if adapters.method == "dora":
        yield _rescale(rank, name, (rows, projection.n, projection.k), adapters.rank)


def _train(rank: Rank, name: str, shape: Shape, held: int | None = None) -> Operation:
    """Product in 16 bits with its gradients, for a trained matrix, or for ``held`` values in two."""
    of_input, of_weights = product_gradients(shape, "tn")
    _, n, k = shape

    def part(how: Shape, layout: str) -> Part:
        columns = dict(zip("mnk", how, strict=True))
        return rank.part(name, KernelBatch.from_columns("gemm", **columns, layout=layout, dtype=rank.dtype))

    return Operation(
        forward=(part(shape, "tn"),),
        backward=(part(*of_input),),
        weights=(part(*of_weights), *rank.accumulate(name, n * k)),
        held=(HeldWeights(n * k, "adapter", shape=(n, k)) if held is None else HeldWeights(held, "adapter"),),
        adapts=True,
    )


def _rescale(rank: Rank, name: str, shape: Shape, narrow: int) -> Operation:
    """Norms of the rows of frozen and adapted weights together, and the product of the result with its magnitude over
    them.
    """
    rows, n, k = shape
    together = KernelBatch.from_columns("gemm", m=n, n=k, k=narrow, layout="nn", dtype=rank.dtype)
    scale = rank.pointwise(f"{name} scale", "mul", rows, n)
    return Operation(
        forward=(
            rank.part(f"{name} weights", together),
            rank.pointwise(f"{name} weights add", "add", n, k),
            rank.reduce(f"{name} norms", "sum", (n, k), n * k * rank.size, n * rank.size),
            scale,
        ),
        backward=(scale,),
        weights=(rank.reduce(f"{name} magnitude gradient", "sum", (n, rows), 2 * rows * n * rank.size, n * rank.size),),
        held=(HeldWeights(n, "adapter"),),
        adapts=True,
    )


SERVED = ("attention", "feed_forward")
"""Kinds of projections that have adapters in serving; experts, routers and heads do not (assumption: usual targets of
PEFT)."""


def served_adapters(rank: Rank, projection: Projection, rows: Any, runs: Any = None) -> Iterator[Operation]:
    """Kernels that adapters add to a product of a served model: rows grouped by adapter, multiplied with its narrow
    matrices in one kernel and added to the product's result in another (Punica, Chen et al. 2023, SGMV; S-LoRA, Sheng
    et al. 2023). Engines reserve memory for as many as may run together (vLLM ``--max-loras`` of ``--max-lora-rank``).

    Matrices that engines join have a narrow one each. Of ranks that share the wide side each has all of the narrow one;
    of those that share the depth, partial sums go the way of the product's own.
    """
    slots = rank.slots
    if slots is None or projection.kind not in SERVED:
        return
    assert rank.passes is not None
    groups = np.minimum(slots.number, np.maximum(rank.passes.prompts + rank.passes.decodes, 1))
    narrow = slots.rank * len(projection.parts)
    for name, n, k in (("in", narrow, projection.k), ("out", projection.n, slots.rank)):
        batch = KernelBatch.from_columns(
            "grouped_gemm", groups=groups, tokens=np.maximum(rows, groups), n=n, k=k, dtype=rank.dtype
        )
        matrices = HeldWeights(slots.number * n * k)
        yield Operation(forward=(rank.part(f"adapter {name}", batch, runs),), held=(matrices,))
