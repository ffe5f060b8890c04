"""Dense feed-forwards in training: up, activation, down, with what tensor-parallel ranks exchange around them."""

from __future__ import annotations

from collections.abc import Iterator

from neusight.workloads.decoders.layers import FeedForward
from neusight.workloads.program import Part
from neusight.workloads.training.operations import Operation
from neusight.workloads.training.products import bias_gradient, entering, leaving, product
from neusight.workloads.training.rank import Rank


def fed(part: FeedForward, rank: Rank, *, quantised: bool, of: str = "") -> Iterator[Operation]:
    """From the normalised residual stream to partial sums of the output; ``quantised``: it arrives in 8 bits.

    Raises:
        ModelError: an inner width that ranks cannot share evenly.
    """
    up, down = part.projections(rank.hidden, rank.local.tp)
    tokens = rank.local.tokens
    yield entering(rank, rank.hidden, "feed_forward", f"{of}input")
    yield product(rank, up, tokens, quantised=quantised)
    yield activated(part, rank, (tokens, down.k), deferred=rank.engine.deferred_bias and up.what == "up")
    yield product(rank, down, tokens)
    yield leaving(rank, rank.hidden, "feed_forward", f"{of}output")


def activated(part: FeedForward, rank: Rank, shape: tuple[int, int], *, deferred: bool) -> Operation:
    """The activation of ``shape`` (rows, inner width).

    ``deferred``: the product before it has left its bias to be added here. A squared ReLU in one kernel moves what a
    ReLU moves.
    """
    if not part.gated:
        return _plain(part, rank, shape, added=deferred and part.bias)
    if rank.engine.activation == "eager":
        return _written_out(part, rank, shape)
    op = "geglu" if part.activation == "gelu" else "swiglu"
    return Operation(
        forward=(rank.pointwise("activation", op, *shape),),
        backward=(rank.pointwise("activation gradient", f"{op}_backward", *shape),),
    )


def _written_out(part: FeedForward, rank: Rank, shape: tuple[int, int]) -> Operation:
    """The gate's function, then the product with the other half; two products and the function's gradient back."""
    times = rank.pointwise("activation product gradient", "mul", *shape, runs=2)
    return Operation(
        forward=(
            rank.pointwise("activation", part.activation, *shape),
            rank.pointwise("activation product", "mul", *shape),
        ),
        backward=(times, rank.pointwise("activation gradient", f"{part.activation}_backward", *shape)),
    )


def _plain(part: FeedForward, rank: Rank, shape: tuple[int, int], *, added: bool) -> Operation:
    """Without a gate: with the bias in the same kernel where the activation is GELU, else after one that adds it."""
    if part.bias and rank.engine.generated:
        size = shape[0] * shape[1] * rank.size
        summed = rank.reduced("activation gradient", "sum", shape[::-1], 2 * size, size + shape[1] * rank.size)
        return Operation(forward=(rank.pointwise("activation", part.activation, *shape),), backward=(summed,))
    joined = added and part.activation == "gelu" and rank.engine.activation == "fused"
    op = "bias_gelu" if joined else part.activation
    apart: tuple[Part, ...] = (rank.pointwise("up bias", "add", *shape),) if added and not joined else ()
    return Operation(
        forward=(*apart, rank.pointwise("activation", op, *shape)),
        backward=(rank.pointwise("activation gradient", f"{op}_backward", *shape),),
        weights=bias_gradient(rank, "up", *shape) if added else (),
    )
