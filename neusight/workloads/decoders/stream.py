"""Norms and the residual stream, of which sequence-parallel ranks have a share of the tokens each."""

from __future__ import annotations

from neusight.workloads.decoders.layers import Norm
from neusight.workloads.decoders.operations import Operation
from neusight.workloads.decoders.products import bias_gradient
from neusight.workloads.decoders.rank import FLOAT_BYTES, Count, Rank
from neusight.workloads.program import HeldWeights, Part, SavedActivation


def normalised(rank: Rank, name: str, op: str, shape: tuple[Count, int], *, weights: int) -> Operation:
    """A norm of ``shape`` (rows, columns) with ``weights`` values a column."""
    forward, held = (rank.rows(name, op, *shape),), (HeldWeights(weights * shape[1]),)
    if rank.serves:
        return Operation(forward=forward, held=held)
    return Operation(
        forward=forward,
        backward=(rank.rows(f"{name} gradient", f"{op}_backward", *shape),),
        weights=_weight_gradients(rank, name, op, shape, weights),
        held=held,
    )


def stream_norm(
    rank: Rank,
    norm: Norm,
    *,
    name: str = "norm",
    branches: bool = True,
    adds: bool = True,
    quantised: bool = False,
    readers: int = 1,
) -> Operation:
    """A norm of the rank's part of the residual stream.

    Args:
        rank: on which.
        norm: which.
        name: what it is called.
        branches: the stream goes on as well, so that two gradients meet; else it ends here.
        adds: what the branch before gave waits to be added to the stream, where the engine leaves that to norms.
        quantised: it writes 8 bits, for the products after it.
        readers: products whose gradients its own reads one by one.
    """
    shape = rank.resident_tokens, rank.hidden
    forward = _forward(rank, norm, name, adds=adds and branches, quantised=quantised)
    held = (HeldWeights(norm.weights * rank.hidden),)
    if rank.serves:
        return Operation(forward=forward, held=held)
    more = (readers - 1) * rank.row_bytes(rank.resident_tokens)
    return Operation(
        forward=forward,
        backward=_backward(rank, norm, name, branches=branches, more_read=more),
        weights=_weight_gradients(rank, name, norm.op, shape, norm.weights, more_read=more),
        held=held,
        saved=_saved(rank, norm),
    )


def _forward(rank: Rank, norm: Norm, name: str, *, adds: bool, quantised: bool) -> tuple[Part, ...]:
    """With the residual in the same kernel, in one made for that, of RMS norms, or in one of its own before."""
    shape, stream = (rank.resident_tokens, rank.hidden), rank.row_bytes(rank.resident_tokens)
    how = rank.engine.residual
    if how == "add_norm" and adds:
        if norm.op == "rms_norm":
            return (rank.rows(f"add and {name}", "add_rms_norm", *shape),)
        return rank.pointwise("residual", "add", *shape), rank.rows(name, norm.op, *shape)
    added = stream if how == "norm" and adds else 0
    narrowed = stream // rank.size * (rank.size - 1) if quantised else 0
    written = added + _masks(rank) - narrowed
    return (rank.rows(name, norm.op, *shape, more_read=added, more_written=written),)


def _masks(rank: Rank) -> int:
    """Bytes of dropout's mask, where the norm's kernel has that too."""
    drops = rank.engine.hidden_dropout and rank.engine.generated
    return int(rank.resident_tokens * rank.hidden) if drops else 0


def _backward(rank: Rank, norm: Norm, name: str, *, branches: bool, more_read: int) -> tuple[Part, ...]:
    shape, fused = (rank.resident_tokens, rank.hidden), rank.engine.residual in ("norm", "add_norm")
    meet = (rank.pointwise("add gradients", "add", *shape),) if branches and not fused else ()
    added = rank.row_bytes(rank.resident_tokens) if branches and fused else 0
    masks = _masks(rank)
    read, written = added + masks + more_read, masks * rank.size
    return (rank.rows(f"{name} gradient", f"{norm.op}_backward", *shape, more_read=read, more_written=written), *meet)


def _saved(rank: Rank, norm: Norm) -> tuple[SavedActivation, ...]:
    """Its input, and a figure or two of each row."""
    statistics = 2 if norm.op == "layer_norm" else 1
    return (
        SavedActivation(name="norm input", bytes=rank.row_bytes(rank.resident_tokens)),
        SavedActivation(name="norm statistics", bytes=statistics * FLOAT_BYTES * rank.resident_tokens),
    )


def _weight_gradients(
    rank: Rank, name: str, op: str, shape: tuple[Count, int], weights: int, *, more_read: int = 0
) -> tuple[Part, ...]:
    """Sums over rows: a pass over gradient and input, or what is left of it where one kernel makes both gradients."""
    if not weights:
        return ()
    rows, cols = shape
    sums = rank.accumulated(name, weights * cols)
    if rank.engine.joined_norm_gradients:
        return sums
    passed = rank.rows(f"{name} weight gradient", f"{op}_weight_backward", cols, int(rows), more_read=more_read)
    return (passed, *sums)


def residual(rank: Rank, *, bias: bool, ends: bool) -> Operation:
    """A branch's result to the stream, after dropout where the engine drops any: part of the norm that follows where
    pointwise work is generated.

    Args:
        rank: on which.
        bias: the result's product has left a bias to be added here.
        ends: no norm follows that could add it.
    """
    shape = rank.resident_tokens, rank.hidden
    drops = rank.engine.hidden_dropout
    apart = drops and not rank.engine.generated
    added = rank.engine.deferred_bias and bias
    mask = SavedActivation(name="dropout mask", bytes=rank.resident_tokens * rank.hidden)
    return Operation(
        forward=tuple(rank.pointwise("residual", op, *shape) for op in _residual_ops(rank, added=added, ends=ends)),
        backward=(rank.pointwise("dropout gradient", "dropout_backward", *shape),) if apart else (),
        weights=bias_gradient(rank, "residual", *shape) if added else (),
        saved=(mask,) if drops else (),
    )


def _residual_ops(rank: Rank, *, added: bool, ends: bool) -> tuple[str, ...]:
    drops, how = rank.engine.hidden_dropout and not rank.engine.generated, rank.engine.residual
    if how == "fused":
        return {
            (True, True): ("bias_dropout_add",),
            (True, False): ("bias_add",),
            (False, True): ("dropout_add",),
            (False, False): ("add",),
        }[added, drops]
    alone = how == "eager" or (how == "add_norm" and ends)
    return (*(("dropout",) if drops else ()), *(("add",) if alone else ()))
