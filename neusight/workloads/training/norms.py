"""Norms and the residual stream in training, where sequence-parallel ranks have a share of the tokens each."""

from __future__ import annotations

from neusight.workloads.decoders.layers import Norm
from neusight.workloads.program import Part
from neusight.workloads.training.operations import Operation
from neusight.workloads.training.products import bias_gradient
from neusight.workloads.training.rank import Rank


def normalised(rank: Rank, what: str, op: str, shape: tuple[int, int], *, weights: int) -> Operation:
    """A norm of ``shape`` (rows, columns) with ``weights`` values a column."""
    return Operation(
        forward=(rank.rows(what, op, *shape),),
        backward=(rank.rows(f"{what} gradient", f"{op}_backward", *shape),),
        weights=_weight_gradients(rank, what, op, shape, weights),
        parameters=weights * shape[1],
    )


def stream_norm(
    rank: Rank,
    norm: Norm,
    *,
    what: str = "norm",
    branches: bool = True,
    quantised: bool = False,
    readers: int = 1,
) -> Operation:
    """A norm of the rank's part of the residual stream.

    Args:
        rank: on which.
        norm: which.
        what: its name.
        branches: the stream goes on beside it, so that two gradients meet; else it ends here.
        quantised: it writes 8 bits, for the products after it.
        readers: products whose gradients its own reads one by one.
    """
    shape = rank.local.resident_tokens, rank.hidden
    stream = shape[0] * shape[1] * rank.size
    masks = shape[0] * shape[1] if rank.engine.hidden_dropout and rank.engine.generated else 0
    more = (readers - 1) * stream
    fused = rank.engine.residual == "norm"
    added = stream if fused and branches else 0
    saved = shape[0] * shape[1] if quantised else 0
    meet = (rank.pointwise("add gradients", "add", *shape),) if branches and not fused else ()
    return Operation(
        forward=(
            rank.rows(what, norm.op, *shape, more_read=added, more_written=added + masks - saved * (rank.size - 1)),
        ),
        backward=(
            rank.rows(
                f"{what} gradient",
                f"{norm.op}_backward",
                *shape,
                more_read=added + masks + more,
                more_written=masks * rank.size,
            ),
            *meet,
        ),
        weights=_weight_gradients(rank, what, norm.op, shape, norm.weights, more_read=more),
        parameters=norm.weights * rank.hidden,
    )


def _weight_gradients(
    rank: Rank, what: str, op: str, shape: tuple[int, int], weights: int, *, more_read: int = 0
) -> tuple[Part, ...]:
    """Sums over rows: a pass over gradient and input, or what is left of it where one kernel makes both gradients."""
    if not weights:
        return ()
    sums = rank.accumulated(what, weights * shape[1])
    if rank.engine.joined_norm_gradients:
        return sums
    passed = rank.rows(f"{what} weight gradient", f"{op}_weight_backward", *shape[::-1], more_read=more_read)
    return (passed, *sums)


def residual(rank: Rank, *, bias: bool) -> Operation:
    """A branch's result to the stream, after dropout where the engine drops any: part of the norm that follows where
    pointwise work is generated.

    ``bias``: the result's product has left a bias to be added here.
    """
    shape = rank.local.resident_tokens, rank.hidden
    drops = rank.engine.hidden_dropout and not rank.engine.generated
    added = rank.engine.deferred_bias and bias
    back = (rank.pointwise("dropout gradient", "dropout_backward", *shape),) if drops else ()
    return Operation(
        forward=tuple(rank.pointwise("residual", op, *shape) for op in _residual_ops(rank, added=added)),
        backward=back,
        weights=bias_gradient(rank, "residual", *shape) if added else (),
    )


def _residual_ops(rank: Rank, *, added: bool) -> tuple[str, ...]:
    drops, how = rank.engine.hidden_dropout and not rank.engine.generated, rank.engine.residual
    if how == "fused":
        return {
            (True, True): ("bias_dropout_add",),
            (True, False): ("bias_add",),
            (False, True): ("dropout_add",),
            (False, False): ("add",),
        }[added, drops]
    return (*(("dropout",) if drops else ()), *(() if how == "norm" else ("add",)))
