"""Mixtures of experts: router, experts and shared feed-forwards, in training (``dispatch``) and in serving."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from neusight.kernels.families import KernelBatch
from neusight.workloads.decoders.dispatch import held_experts, routed_experts
from neusight.workloads.decoders.feed_forwards import dense
from neusight.workloads.decoders.layers import Experts, Projection, shared_evenly
from neusight.workloads.decoders.operations import Operation
from neusight.workloads.decoders.products import leaving, product
from neusight.workloads.decoders.rank import Rank
from neusight.workloads.program import Part

ROUTED = "uniform"
"""How tokens fall on experts, unless stated: each at random, which routers that were trained to balance come near."""


def mixture(part: Experts, rank: Rank) -> Iterator[Operation]:
    """Operations from the normalised residual stream to the rank's tokens' results.

    Raises:
        ModelError: experts or widths that ranks cannot share evenly, or tokens that several ranks hold and route.
    """
    rows = rank.resident_tokens
    yield product(rank, part.router(rank.hidden), rows)
    yield from routed_experts(part, rank) if not rank.serves else [_served(part, rank)]
    if part.shared:
        yield from dense(part.shared, rank, of="shared ", reduced=not rank.serves)
        gradients = rank.pointwise("shared add gradients", "add", rows, rank.hidden)
        yield Operation(forward=(rank.pointwise("shared add", "add", rows, rank.hidden),), backward=(gradients,))
    if part.shared_gate:
        yield product(rank, Projection(name="shared gate", k=rank.hidden, parts=(1,), kind="router"), rows)
    if rank.serves:
        yield leaving(rank, rank.hidden, "experts")


def _served(part: Experts, rank: Rank) -> Operation:
    """Choice of experts, tokens to them, all of them in one kernel, results back."""
    tokens = np.maximum(rank.tokens, 1)
    routing = rank.reduced(
        "routing", "softmax", (tokens, part.experts), rank.size * tokens * part.experts, 8 * tokens * part.top_k
    )
    return Operation(
        forward=(
            routing,
            *_handed_out(part, rank),
            rank.part("experts", _experts(part, rank)),
            *_handed_back(part, rank),
        ),
        **_own_experts(part, rank),
    )


def _own_experts(part: Experts, rank: Rank) -> dict[str, Any]:
    """What a rank has of experts, whole ones with ``ep``, else a slice of each, and the rows in and between them.

    Raises:
        ModelError: experts or their width that ranks cannot share evenly.
    """
    slices = shared_evenly(rank.tp * rank.ranks["dp"], rank.ranks["ep"], "tp x dp")
    own = shared_evenly(part.experts, rank.ranks["ep"], "number of experts")
    up, down = part.expert.projections(rank.hidden, slices, "experts")
    return {
        "held": (*held_experts(up, own), *held_experts(down, own)),
        "widest_bytes": rank.row_bytes(rank.tokens) / rank.hidden * part.top_k * (up.n + down.k + rank.hidden),
    }


def _experts(part: Experts, rank: Rank) -> KernelBatch:
    """The rank's experts on the tokens of all groups: whole ones with ``ep``, else a slice of each.

    Raises:
        ModelError: experts or their width that ranks cannot share evenly.
    """
    dp, ep = rank.ranks["dp"], rank.ranks["ep"]
    slices = shared_evenly(rank.tp * dp, ep, "tp x dp")
    return KernelBatch.from_columns(
        "moe",
        tokens=np.maximum(rank.tokens * dp, 1),
        hidden=rank.hidden,
        ffn=shared_evenly(part.expert.ffn, slices, "moe_intermediate_size"),
        experts=shared_evenly(part.experts, ep, "number of experts"),
        all_experts=part.experts,
        top_k=part.top_k,
        gated=part.expert.gated,
        distribution=ROUTED,
        **rank.arithmetic("experts"),
    )


def _handed_out(part: Experts, rank: Rank) -> tuple[Part, ...]:
    """Tokens to their experts. Ranks of one group hold the same tokens, so that groups alone exchange any."""
    dp = rank.ranks["dp"]
    if dp == 1:
        return ()
    if rank.ranks["ep"] == 1:
        return rank.exchanged("gather tokens", "all_gather", "dp", rank.row_bytes(rank.tokens * dp))
    narrow = rank.of(rank.tokens, rank.quantisation.of("experts").activations)
    return rank.exchanged("dispatch", "all_to_all", "ep", _sent_bytes(part, rank) * (narrow.size / rank.size))


def _handed_back(part: Experts, rank: Rank) -> tuple[Part, ...]:
    """Results to the ranks of their tokens."""
    dp = rank.ranks["dp"]
    if dp == 1:
        return ()
    if rank.ranks["ep"] == 1:
        return rank.exchanged("scatter results", "reduce_scatter", "dp", rank.row_bytes(rank.tokens * dp))
    return rank.exchanged("combine", "all_to_all", "ep", _sent_bytes(part, rank))


def _sent_bytes(part: Experts, rank: Rank) -> np.ndarray:
    r"""A rank's share of its group's tokens, each to the ranks that hold any of its experts.

    .. math:: E[\text{ranks}] = e (1 - (1 - 1 / e)^k)

    e ranks and k experts a token, each at random.
    """
    ep = rank.ranks["ep"]
    ranks = ep * (1.0 - (1.0 - 1.0 / ep) ** part.top_k)
    return np.asarray(rank.row_bytes(np.ceil(rank.tokens / rank.tp) * ranks))
