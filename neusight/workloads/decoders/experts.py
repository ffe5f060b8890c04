"""Mixtures of experts: router, experts and shared feed-forwards (Megatron Core's MoE layer; of serving engines, all
experts in one kernel).

In training tokens fall on experts evenly, which the losses that balance them aim at. Each tensor-parallel rank routes
its own part of the tokens under sequence parallelism. Biases of experts are parameters without kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from neusight.errors import ModelError
from neusight.kernels.families import KernelBatch
from neusight.kernels.precision import STORED_BYTES
from neusight.workloads.decoders.adapters import adapt
from neusight.workloads.decoders.feed_forwards import activate, dense, inner
from neusight.workloads.decoders.layers import Experts, Projection, shared_evenly
from neusight.workloads.decoders.operations import (
    Operation,
    exchange,
    move,
    over_rows,
    product_gradients,
    within,
)
from neusight.workloads.decoders.products import leaving, product, product_input, quantise, selected_values
from neusight.workloads.decoders.rank import FLOAT_BYTES, INDEX_BYTES, Rank
from neusight.workloads.program import HeldWeights, Part, SavedActivation

ROUTED = "uniform"
"""Default distribution of tokens over experts: each at random, which routers that were trained to balance come near."""
SHARED_OUT = "power_law_1.01"
"""Default distribution where ranks of a serving engine have whole experts and all wait for the fullest (aiconfigurator,
``workload_distribution``, its usual power law)."""


def routing_of(part: Experts, ep: int) -> str:
    """Distribution of tokens over the experts of ``ep`` ranks: as specified, else the default. Where the fullest
    experts are copied, ranks have about as many tokens each: copies are made and placed for that (DeepSeek-AI 2024,
    section 3.4.1).
    """
    return ROUTED if part.redundant else part.routing or (ROUTED if ep == 1 else SHARED_OUT)


def mixture(part: Experts, rank: Rank) -> Iterator[Operation]:
    """Operations from the normalised residual stream to the rank's tokens' results.

    Raises:
        ModelError: experts or widths that ranks cannot share evenly, or tokens that several ranks hold and route.
    """
    rows = rank.resident_tokens
    yield from product(rank, part.router(rank.hidden), rows)
    yield from [_serve(part, rank)] if rank.serves else _train(part, rank)
    if part.shared:
        tokens = rank.tokens * ~_joins(part, rank)
        lone = replace(rank, tokens=tokens, resident_tokens=tokens) if rank.serves else rank
        yield from dense(part.shared, lone, of="shared ", reduced=not rank.serves)
        gradients = rank.pointwise("shared add gradients", "add", rows, rank.hidden)
        added = lone.pointwise("shared add", "add", lone.resident_tokens, rank.hidden)
        yield Operation(forward=(added,), backward=(gradients,))
    if part.shared_gate:
        yield from product(rank, Projection(name="shared gate", k=rank.hidden, parts=(1,), kind="router"), rows)
    if rank.serves:
        yield leaving(rank, rank.hidden, "experts")


def _joins(part: Experts, rank: Rank) -> Any:
    """Tell for each pass whether shared experts run with the routed ones: up to a number of tokens, in the same
    arithmetic.
    """
    alike = rank.arithmetic("experts") == rank.arithmetic("feed_forward")
    return np.less_equal(rank.tokens, rank.engine.shared_tokens if part.shared and alike else 0)


def _serve(part: Experts, rank: Rank) -> Operation:
    """Serve a mixture: choose experts, send tokens of all groups to them, run all of them in one kernel, return
    results.

    A rank has whole experts with ``ep``, else a slice of each.

    Raises:
        ModelError: experts or their width that ranks cannot share evenly.
    """
    tokens, dp, ep = np.maximum(rank.tokens, 1), rank.ranks["dp"], rank.ranks["ep"]
    slices = shared_evenly(rank.tp * dp, ep, "tp x dp")
    ffn = shared_evenly(part.expert.ffn, slices, "moe_intermediate_size")
    everyone = part.experts + part.redundant
    experts = shared_evenly(everyone, ep, "experts with redundant_experts" if part.redundant else "number of experts")
    up, down = part.expert.projections(rank.hidden, slices, "experts")
    scores = rank.size * tokens * part.experts
    # Of shared ones each rank computes as much as of whole experts that its share of all tokens goes to.
    more = _joins(part, rank) * max(1, round(part.shared.ffn / part.expert.ffn)) if part.shared else 0
    batch = KernelBatch.from_columns(
        "moe", tokens=np.maximum(rank.tokens * dp, 1), hidden=rank.hidden, ffn=ffn, experts=experts + more,
        all_experts=everyone + more * ep, top_k=part.top_k + more, gated=part.expert.gated,
        distribution=routing_of(part, ep), **rank.arithmetic("experts"),
    )  # fmt: skip
    chosen = rank.reduce("routing", "softmax", (tokens, part.experts), scores, 8 * tokens * part.top_k)
    return Operation(
        forward=(
            *(() if rank.engine.routes_in_experts else (chosen,)),
            *_exchange_tokens(part, rank),
            rank.part("experts", batch),
            *_exchange_tokens(part, rank, back=True),
        ),
        held=(*_held(up, experts), *_held(down, experts)),
        widest_bytes=rank.row_bytes(rank.tokens) / rank.hidden * part.top_k * (up.n + down.k + rank.hidden),
    )


def _held(projection: Projection, experts: int) -> tuple[HeldWeights, ...]:
    """A projection of each of a rank's experts."""
    return tuple(weights._replace(number=experts * weights.number, routed=True) for weights in projection.held)


def _exchange_tokens(part: Experts, rank: Rank, *, back: bool = False) -> tuple[Part, ...]:
    """Send tokens to their experts in the dtype of the arithmetic, or results ``back``. Ranks of one group hold the
    same tokens, so that groups alone exchange any.
    """
    dp = rank.ranks["dp"]
    if dp == 1:
        return ()
    narrow = STORED_BYTES[rank.of(rank.tokens, rank.quantisation.of("experts").activations).dtype] / rank.size
    if rank.ranks["ep"] == 1 or rank.engine.dispatcher == "allgather":
        every = rank.row_bytes(rank.tokens * dp)
        if back:
            return rank.exchange("scatter results", "reduce_scatter", "dp", every)
        return rank.exchange("gather tokens", "all_gather", "dp", every * narrow)
    # A rank's share of its group's tokens, each to the ranks that hold any of its experts.
    sent = rank.row_bytes(np.ceil(rank.tokens / rank.tp) * distinct(rank.ranks["ep"], part.top_k))
    name, size = ("combine", sent) if back else ("dispatch", sent * narrow)
    return rank.exchange(name, "all_to_all", "ep", size)


def distinct(places: int, experts: int) -> float:
    r"""Places that hold any of a token's experts, each of which is at any of them.

    .. math:: E[\text{places}] = p (1 - (1 - 1 / p)^k)

    Args:
        places: p.
        experts: k of a token.
    """
    return places * (1.0 - (1.0 - 1.0 / places) ** experts)


@dataclass(frozen=True, kw_only=True)
class Routed:
    """A mixture on a rank: ``tokens`` are routed, each to ``top_k``; ``experts`` are the rank's, ``pairs`` of a token
    and an expert come to them.
    """

    part: Experts
    rank: Rank
    tokens: int
    experts: int

    @property
    def sent(self) -> int:
        """Pairs that the rank's tokens make."""
        return self.tokens * self.part.top_k

    @property
    def sent_once(self) -> int:
        """Rows that go once to each place, a rank of the node or another node, that has any of a token's experts."""
        local = self.rank.share
        within = local.ep_within or local.ep
        places = local.ep if within >= local.ep else -(-local.ep // within)
        return max(1, round(self.tokens * distinct(places, self.part.top_k)))

    @property
    def gathers(self) -> bool:
        """Tell whether ranks that share experts have different tokens; otherwise all have the same already."""
        return self.rank.share.sequence_parallel or self.rank.share.tp == 1

    @property
    def pairs(self) -> int:
        """Token-expert pairs that a rank computes: of its tokens, and of those of the ranks that share its experts."""
        return self.sent * (self.rank.share.etp if self.gathers else 1)

    @property
    def of_each(self) -> int:
        """Rows of one expert."""
        return max(1, -(-self.pairs // self.experts))


def _train(part: Experts, rank: Rank) -> Iterator[Operation]:
    """Operations in training, from the router's scores to the results of the rank's tokens."""
    local = rank.share
    if local.tp > 1 and not local.sequence_parallel and (local.ep > 1 or local.etp != local.tp):
        raise ModelError(
            f"experts on tp = {local.tp} without sequence parallelism are sharded as all else: choose ep = 1 and etp = "
            f"{local.tp}, or turn sequence parallelism on"
        )
    experts = shared_evenly(part.experts, local.ep, "number of experts")
    routed = Routed(part=part, rank=rank, tokens=local.resident_tokens, experts=experts)
    yield from _choose_experts(routed)
    yield from _kept(routed)
    sends = rank.engine.dispatcher != "allgather"
    yield from (_dispatch if sends else _collect)(routed)
    up, down = part.expert.projections(rank.hidden, local.etp, "experts")
    yield _group_product(routed, up)
    yield from adapt(rank, replace(up, parts=(up.n * experts,)), routed.pairs)
    yield from within("moe_act", activate(part.expert, rank, routed.pairs, down.k))
    yield _group_product(routed, down)
    yield from adapt(rank, replace(down, parts=(down.n * experts,)), routed.pairs)
    yield from (_combine if sends else _return)(routed)
    if not routed.gathers:
        # Ranks that have the same tokens and slices of experts.
        yield exchange(rank, "reduce of experts", "all_reduce", "tp", rank.row_bytes(routed.tokens))


def _kept(routed: Routed) -> Iterator[Operation]:
    """Rows that came to the rank's experts, as they go in and between the products, once weighted by the router.

    A rank's experts, or its slices of them, serve the tokens of ``ep * etp`` ranks; of these the fullest rank counts.
    """
    part, rank, local = routed.part, routed.rank, routed.rank.share
    up, down = part.expert.projections(rank.hidden, local.etp, "experts")
    even = local.tokens / local.tp * local.etp * part.top_k
    rows = rank.engine.expert_load * local.tokens / local.tp * local.etp * part.top_k
    *before, activated = inner(rank, part.expert, rows, down.k).saved
    unweighted = SavedActivation(name="activated before its weight", bytes=rows * down.k * rank.size)
    yield Operation(
        saved=(
            SavedActivation(name="router scores", bytes=2 * FLOAT_BYTES * local.resident_tokens * part.experts),
            product_input(rank, "expert input", rows * rank.hidden),
            *before,
            selected_values(rank, "expert products", even * (up.n + down.n) / 2),
        ),
        widest_bytes=even * (up.n + down.k) * rank.size,
    )
    yield from within("moe_act", (Operation(saved=(activated, unweighted)),))


def _choose_experts(routed: Routed) -> Iterator[Operation]:
    """Router probabilities, the best of them, and the order in which their experts receive the tokens."""
    rank, many, tokens, sent = routed.rank, routed.part.experts, routed.tokens, routed.sent
    chosen_bytes = (FLOAT_BYTES + INDEX_BYTES) * sent
    order = INDEX_BYTES * sent
    yield over_rows(rank, "router probabilities", "softmax", tokens, many)
    yield Operation(
        forward=(
            rank.reduce("router choice", "topk", (tokens, many), tokens * many * rank.size, chosen_bytes),
            rank.reduce("router order", "sort", (1, sent), order, 2 * order),
        ),
        backward=(rank.move("router choice gradient", "scatter", sent, chosen_bytes, FLOAT_BYTES * sent),),
    )


def _permute(routed: Routed, name: str, rows: int) -> Part:
    """Gather rows into another order."""
    rank, size = routed.rank, routed.rank.row_bytes(rows)
    return rank.move(name, "gather", rows * rank.hidden, size + INDEX_BYTES * rows, size)


def _sort_pairs(routed: Routed, name: str) -> Iterator[Operation]:
    """Sort pairs of several ranks and several experts into the other order."""
    if routed.rank.share.ep > 1 and routed.experts > 1:
        yield move(_permute(routed, name, routed.pairs))


def _slices(routed: Routed, name: str, op: str, size: int) -> Iterator[Operation]:
    """Exchange between ranks that have a slice of the same experts, where each has different tokens: these are
    gathered, or their results added up at each token's rank.
    """
    if routed.gathers:
        yield exchange(routed.rank, f"{name} expert", op, "etp", size)


def _dispatch(routed: Routed) -> Iterator[Operation]:
    """Send a row for each pair in the order of experts to the rank that has the expert, and sort it again there."""
    rank, top_k = routed.rank, routed.part.top_k
    if rank.engine.dispatcher == "once":
        yield from _dispatch_once(routed)
        return
    sent = rank.row_bytes(routed.sent)
    add = rank.reduce("permute gradient", "sum", (routed.tokens * rank.hidden, top_k), sent, sent // top_k)
    yield Operation(forward=(_permute(routed, "permute", routed.sent),), backward=(add,))
    yield exchange(rank, "dispatch", "all_to_all", "ep", sent)
    yield from _slices(routed, "gather for", "all_gather", sent * rank.share.etp)
    yield from _sort_pairs(routed, "sort by expert")


def _dispatch_once(routed: Routed) -> Iterator[Operation]:
    """A token's row once to each rank, or over a network once to each node, that has any of its experts; there a row
    for each pair (DeepEP; Megatron Core, ``MoEFlexTokenDispatcher``).
    """
    rank, sent = routed.rank, routed.rank.row_bytes(routed.sent_once)
    yield exchange(rank, "dispatch", "all_to_all", "ep", sent)
    yield from _slices(routed, "gather for", "all_gather", sent * rank.share.etp)
    rows, arrived = routed.sent_once * rank.share.etp, rank.row_bytes(routed.pairs)
    shape = (rows * rank.hidden, max(1, routed.pairs // rows))
    add = rank.reduce("permute gradient", "sum", shape, arrived, rank.row_bytes(rows))
    yield Operation(forward=(_permute(routed, "permute", routed.pairs),), backward=(add,))


def _combine(routed: Routed) -> Iterator[Operation]:
    """Return results, and sum those of each token by their probabilities."""
    rank = routed.rank
    if rank.engine.dispatcher == "once":
        # Each rank adds up what its own experts give of a token before that goes back.
        yield _weigh(routed, routed.sent_once * rank.share.etp, routed.pairs)
        yield from _slices(routed, "scatter of", "reduce_scatter", rank.row_bytes(routed.sent_once) * rank.share.etp)
        yield exchange(rank, "combine", "all_to_all", "ep", rank.row_bytes(routed.sent_once))
        return
    sent = rank.row_bytes(routed.sent)
    yield from _sort_pairs(routed, "sort by rank")
    yield from _slices(routed, "scatter of", "reduce_scatter", sent * rank.share.etp)
    yield exchange(rank, "combine", "all_to_all", "ep", sent)
    yield _weigh(routed, routed.tokens, routed.sent)


def _collect(routed: Routed) -> Iterator[Operation]:
    """Gather all ranks' tokens at every rank, which selects those of its experts."""
    rank, local = routed.rank, routed.rank.share
    local_bytes = rank.row_bytes(routed.tokens) * (local.etp if routed.gathers else 1)
    yield from _slices(routed, "gather for", "all_gather", local_bytes)
    yield exchange(rank, "gather tokens", "all_gather", "ep", local_bytes * local.ep)
    yield move(_permute(routed, "permute", routed.pairs))


def _return(routed: Routed) -> Iterator[Operation]:
    """Reduce partial sums of all tokens to each token's rank."""
    rank, local = routed.rank, routed.rank.share
    everyone = routed.tokens * local.ep * (local.etp if routed.gathers else 1)
    yield _weigh(routed, everyone, routed.pairs)
    yield exchange(rank, "scatter results", "reduce_scatter", "ep", rank.row_bytes(everyone))
    yield from _slices(routed, "scatter of", "reduce_scatter", rank.row_bytes(everyone) // local.ep)


def _weigh(routed: Routed, tokens: int, pairs: int) -> Operation:
    """Sum rows of pairs to tokens; backward, each pair's gradient and that of its probability."""
    rank = routed.rank
    rows, results, weights = rank.row_bytes(pairs), rank.row_bytes(tokens), FLOAT_BYTES * pairs
    return Operation(
        forward=(rank.sweep("unpermute", "mul", pairs * rank.hidden, rows + weights, results),),
        backward=(
            rank.sweep("unpermute gradient", "mul", pairs * rank.hidden, results + weights, rows),
            rank.reduce("probability gradient", "sum", (pairs, rank.hidden), rows + results, weights),
        ),
    )


def _group_product(routed: Routed, projection: Projection) -> Operation:
    """Product of every expert, forward and for both gradients, with its inputs in 8 bits, cast and transposed."""
    rank, name, shape = routed.rank, f"expert {projection.name}", (routed.pairs, projection.n, projection.k)
    (back, _), _ = product_gradients(shape, "tn")

    def cast(cols: int) -> tuple[Part, ...]:
        return quantise(rank, projection.name, (routed.pairs, cols), wanted=rank.narrow(projection.kind))

    return Operation(
        forward=(*cast(projection.k), _of_groups(routed, name, projection.kind, shape)),
        backward=(*cast(projection.n), _of_groups(routed, name, projection.kind, back)),
        weights=(_weight_products(routed, name, projection),),
        held=_held(projection, routed.experts),
    )


def _of_groups(routed: Routed, name: str, kind: str, shape: tuple[int, int, int]) -> Part:
    """Rows of all experts times their (n, k): one kernel, or one an expert."""
    (rows, n, k), how = shape, routed.rank.arithmetic(kind)
    if routed.rank.engine.grouped_experts:
        batch = KernelBatch.from_columns("grouped_gemm", groups=routed.experts, tokens=rows, n=n, k=k, **how)
        return routed.rank.part(name, batch)
    batch = KernelBatch.from_columns("gemm", m=routed.of_each, n=n, k=k, **how)
    return routed.rank.part(name, batch, routed.experts)


def _weight_products(routed: Routed, name: str, projection: Projection) -> Part:
    """Equal products of all experts at once, whose depth is an expert's rows."""
    engine, shape = routed.rank.engine, (routed.of_each, projection.n, projection.k)
    _, ((m, n, k), layout) = product_gradients(shape, "tn")
    groups, runs = (routed.experts, 1) if engine.grouped_experts else (1, routed.experts)
    batch = KernelBatch.from_columns(
        "gemm", op="bmm" if engine.grouped_experts else "linear", batch=groups, m=m, n=n, k=k, layout=layout,
        accumulates=engine.accumulation == "product", **routed.rank.arithmetic(projection.kind),
    )  # fmt: skip
    return routed.rank.part(name, batch, runs)
