"""Kernels that a rank runs once a step: clipping of gradients, the optimizer, and weights in the precision of
products.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from neusight.kernels.families import Gemm, KernelBatch
from neusight.kernels.operators import operator
from neusight.kernels.optimizers import NEWTON_SCHULZ, READS_ONLY, Algorithm, optimizer_named
from neusight.kernels.precision import stored_bytes
from neusight.quick_dataclasses import dataclass
from neusight.workloads.decoders.recipes import recipe_named
from neusight.workloads.program import HeldWeights, Part


@dataclass(frozen=True, kw_only=True)
class Update:
    """Settings of the update of weights.

    ``dtype`` is that of weights in products, ``master_dtype`` of those that are stepped (the same: there is one copy),
    ``gradient_dtype`` of the sums of gradients, ``state_dtype`` of moments. ``clips``: gradients are scaled by their
    norm. ``zeroes``: their sums are buffers that stay, and start from 0. ``scales_loss``: they are searched for
    overflows and scaled back first, as float16 needs. ``products``: weights are kept as that recipe has them too.
    ``foreach``: operation by operation over all parameters, else in one kernel.
    """

    algorithm: str = "adamw"
    dtype: str = "bfloat16"
    master_dtype: str = "float32"
    gradient_dtype: str = "float32"
    state_dtype: str = "float32"
    clips: bool = True
    zeroes: bool = True
    scales_loss: bool = False
    products: str = ""
    foreach: bool = False


def optimizer_parts(updated: int, held: int, update: Update, *, tensors: int = 1) -> tuple[Part, ...]:
    """Kernels of one step on a rank, in order; collectives between them are the plan's.

    Args:
        updated: parameters that the rank steps: its shard, or all that it holds.
        held: parameters whose gradients it sums up, and which it keeps in the precision of products.
        update: how.
        tensors: over which the kernels go.

    Raises:
        ModelError: an unknown algorithm.
    """
    algorithm = optimizer_named(update.algorithm)
    gradients = stored_bytes(update.gradient_dtype)
    return (
        *(_unscale(updated, gradients, tensors) if update.scales_loss else ()),
        *(_clip(updated, gradients, tensors) if update.clips else ()),
        *(
            _in_passes(updated, update, tensors)
            if in_passes(algorithm, foreach=update.foreach)
            else (_step(updated, update, tensors),)
        ),
        *_cast_weights(updated, held, update),
        *((_memory("zero gradients", "fill", held, (0, held * gradients), update.gradient_dtype),) * update.zeroes),
    )


def orthogonalise(held: Iterable[HeldWeights], share: float, dtype: str) -> tuple[Part, ...]:
    """Newton-Schulz iterations of Muon over a rank's share of its matrices: X Xᵀ, that squared, and its product with X.

    Args:
        held: weights of the rank.
        share: of its matrices, which it steps; whole ones (Megatron Core, ``LayerWiseDistributedOptimizer``).
        dtype: in which they are multiplied.
    """
    counts: Counter[tuple[int, int]] = Counter()
    for weights in held:
        if weights.is_matrix:
            short, long = sorted(weights.shape)
            counts[short, long] += weights.number // (short * long)
    whole = {sides: max(1, round(count * share)) for sides, count in counts.items()}
    return tuple(
        Part(name="orthogonalise", phase="step", batch=KernelBatch.of([product]), runs=NEWTON_SCHULZ)
        for product in orthogonalising_products(whole, dtype)
    )


def orthogonalising_products(matrices: Mapping[tuple[int, int], int], dtype: str) -> Iterator[Gemm]:
    """Products of one iteration for ``matrices``: their number by pair of sides, the shorter first."""
    for (short, long), count in matrices.items():
        for m, n, k in ((short, short, long), (short, short, short), (short, long, short)):
            yield Gemm(op="bmm", layout="nn", batch=count, m=m, n=n, k=k, dtype=dtype)


def in_passes(algorithm: Algorithm, *, foreach: bool) -> bool:
    """Tell whether each operation goes over all parameters separately, by the engine's choice or since no kernel does
    all.
    """
    return bool(algorithm.passes) and (foreach or not algorithm.fused)


def _unscale(updated: int, size: float, tensors: int) -> tuple[Part, ...]:
    return (_pass("unscale gradients", "foreach_mul", (updated, tensors), size * updated, size * updated),)


def _clip(updated: int, size: float, tensors: int) -> tuple[Part, ...]:
    """Clip gradients: a sum of squares, then a product with one number."""
    moved = size * updated
    return (
        _pass("norm of gradients", "foreach_norm", (updated, tensors), moved, 4 * tensors),
        _pass("clip gradients", "foreach_mul", (updated, tensors), moved, moved),
    )


def _step(updated: int, update: Update, tensors: int) -> Part:
    """Step of parameters, with gradients and states each in a separate precision."""
    algorithm = optimizer_named(update.algorithm)
    state = algorithm.moment_bytes or stored_bytes(update.state_dtype)
    moved = updated * (stored_bytes(update.master_dtype) + algorithm.moments * state)
    return _pass(
        "step", algorithm.fused, (updated, tensors), moved + updated * stored_bytes(update.gradient_dtype), moved
    )


def _in_passes(updated: int, update: Update, tensors: int) -> tuple[Part, ...]:
    """Lists of one precision."""
    size, passes = stored_bytes(update.master_dtype) * updated, optimizer_named(update.algorithm).passes
    return tuple(
        _pass("step", f"foreach_{op}", (updated, tensors), lists * size, 0 if op == READS_ONLY else size)
        for op, lists in passes
    )


def _cast_weights(updated: int, held: int, update: Update) -> tuple[Part, ...]:
    """Cast stepped weights to the precision of products: each rank its share, then all of its weights in 8 bits."""
    masters, narrow = stored_bytes(update.master_dtype), stored_bytes(update.dtype)
    copied = _memory("weights to products", "copy", updated, (masters * updated, narrow * updated), update.dtype)
    recipe = recipe_named(update.products)
    narrow_bytes = held * sum(stored_bytes(dtype) for dtype in recipe.held if dtype != update.dtype)
    cast = _memory("weights in few bits", "copy", held, (narrow * held, narrow_bytes), update.dtype)
    return (*((copied,) if masters != narrow else ()), *((cast,) if recipe else ()))


def _pass(name: str, op: str, shape: tuple[int, int], read: float, written: float) -> Part:
    elements, tensors = shape
    batch = KernelBatch.from_columns(
        "optimizer", op=op, elements=elements, tensors=tensors, read_bytes=round(read), write_bytes=round(written),
        flops=operator("optimizer", op).flops * elements,
    )  # fmt: skip
    return Part(name=name, phase="step", batch=batch)


def _memory(name: str, op: str, elements: int, moved: tuple[float, float], dtype: str) -> Part:
    read, written = moved
    batch = KernelBatch.from_columns(
        "memory", op=op, elements=elements, read_bytes=round(read), write_bytes=round(written), dtype=dtype
    )
    return Part(name=name, phase="step", batch=batch)
