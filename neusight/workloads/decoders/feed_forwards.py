"""Dense feed-forwards: up, activation, down, with what tensor-parallel ranks exchange around them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from neusight.workloads.decoders.layers import FeedForward
from neusight.workloads.decoders.operations import Operation, pointwise, within
from neusight.workloads.decoders.products import bias_gradient, entering, leaving, product, product_input
from neusight.workloads.decoders.rank import Rank
from neusight.workloads.program import SavedActivation


def dense(
    part: FeedForward, rank: Rank, *, quantised: bool = False, of: str = "", reduced: bool = True
) -> Iterator[Operation]:
    """Operations from the normalised residual stream to partial sums of the output.

    Args:
        part: the feed-forward.
        rank: on which.
        quantised: the input arrives in 8 bits.
        of: what names begin with.
        reduced: ranks add their sums up; else that is done with others'.

    Raises:
        ModelError: an inner width that ranks cannot share evenly.
    """
    up, down = part.projections(rank.hidden, rank.tp)
    yield entering(rank, rank.hidden, "feed_forward", f"{of}input")
    name = of if rank.serves else ""
    yield from within(
        "shared_experts" if of else "mlp",
        (
            *product(rank, up, rank.tokens, name=name + up.name, quantised=quantised),
            *activate(part, rank, rank.tokens, down.k, name=f"{name}activation", deferred=rank.engine.deferred_bias),
            inner(rank, part, rank.tokens, down.k),
            *product(rank, down, rank.tokens, name=name + down.name),
        ),
    )
    if reduced:
        yield leaving(rank, rank.hidden, "feed_forward", f"{of}output")


def activate(
    part: FeedForward, rank: Rank, rows: Any, width: int, *, name: str = "activation", deferred: bool = False
) -> Iterator[Operation]:
    """Activation of ``rows`` of ``width`` inner values.

    ``deferred``: the product before it has left its bias to be added here. A squared ReLU in one kernel moves what a
    ReLU moves.
    """
    shape = rows, width
    if rank.serves:
        # Gated ones stream the same bytes for every function: silu's kernel, which was measured, stands for all.
        yield pointwise(rank, name, "silu_and_mul" if part.gated else part.activation, *shape)
    elif not part.gated:
        yield from _activate_plain(part, rank, shape, added=deferred and part.bias)
    elif rank.engine.activation == "eager":
        yield pointwise(rank, name, part.activation, *shape)
        yield pointwise(rank, f"{name} product", "mul", *shape)
    else:
        yield pointwise(rank, name, "geglu" if part.activation == "gelu" else "swiglu", *shape)


def _activate_plain(part: FeedForward, rank: Rank, shape: tuple[int, int], *, added: bool) -> Iterator[Operation]:
    """Activation without a gate, with the bias in the same kernel where it is GELU, else after a kernel that adds it.
    Generated kernels have the gradient of the bias with that of the activation.
    """
    if part.bias and rank.engine.generated:
        size = shape[0] * shape[1] * rank.size
        summed = rank.reduce("activation gradient", "sum", shape[::-1], 2 * size, size + shape[1] * rank.size)
        yield Operation(forward=(rank.pointwise("activation", part.activation, *shape),), backward=(summed,))
        return
    joined = added and part.activation == "gelu" and rank.engine.activation == "fused"
    if added:
        yield Operation(weights=bias_gradient(rank, "up", *shape))
    if added and not joined:
        yield pointwise(rank, "up bias", "add", *shape)
    yield pointwise(rank, "activation", "bias_gelu" if joined else part.activation, *shape)


def inner(rank: Rank, part: FeedForward, rows: Any, width: int) -> Operation:
    """Activations saved between the products of a feed-forward: the activation's input, the activated gate, and the
    result.
    """
    size, up = rank.size, (2 if part.gated else 1) * width
    if rank.serves:
        return Operation(widest_bytes=rows * (up + width) * size)
    gate = part.gated and rank.engine.keeps_activated_gate
    # PyTorch's relu has its gradient from its result.
    by_module = rank.engine.generated or rank.engine.activation == "eager"
    saves_result = by_module and part.activation == "relu" and not part.squared
    activation_input = SavedActivation(name="gate and up" if part.gated else "up", bytes=rows * up * size)
    return Operation(
        saved=(
            *(() if saves_result else (activation_input,)),
            *((SavedActivation(name="activated gate", bytes=rows * width * size),) if gate else ()),
            product_input(rank, "activated", rows * width),
        ),
        widest_bytes=rows * (up + width) * size,
    )
