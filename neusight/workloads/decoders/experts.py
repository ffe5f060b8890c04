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
from neusight.workloads.decoders.adapters import adapted
from neusight.workloads.decoders.feed_forwards import activated, dense, inner
from neusight.workloads.decoders.layers import Experts, Projection, shared_evenly
from neusight.workloads.decoders.operations import (
    Operation,
    exchanged,
    moved,
    over_rows,
    product_gradients,
    within,
)
from neusight.workloads.decoders.products import given, leaving, narrowed, product, product_input
from neusight.workloads.decoders.rank import FLOAT_BYTES, INDEX_BYTES, Rank
from neusight.workloads.program import HeldWeights, Part, SavedActivation

ROUTED = "uniform"
"""How tokens fall on experts, unless stated: each at random, which routers that were trained to balance come near."""
SHARED_OUT = "power_law_1.01"
"""The same where ranks of a serving engine have whole experts and all wait for the fullest (aiconfigurator,
``workload_distribution``, its usual power law)."""


def routing_of(part: Experts, ep: int) -> str:
    """How tokens fall on the experts of ``ep`` ranks: as stated, else as is usual. Where copies of the fullest are
    held, ranks have about as many tokens each: they are made and placed for that (DeepSeek-AI 2024, section 3.4.1).
    """
    return ROUTED if part.redundant else part.routing or (ROUTED if ep == 1 else SHARED_OUT)


def mixture(part: Experts, rank: Rank) -> Iterator[Operation]:
    """Operations from the normalised residual stream to the rank's tokens' results.

    Raises:
        ModelError: experts or widths that ranks cannot share evenly, or tokens that several ranks hold and route.
    """
    rows = rank.resident_tokens
    yield from product(rank, part.router(rank.hidden), rows)
    yield from [_served(part, rank)] if rank.serves else _routed(part, rank)
    if part.shared:
        alone = rank.tokens * ~_joins(part, rank)
        lone = replace(rank, tokens=alone, resident_tokens=alone) if rank.serves else rank
        yield from dense(part.shared, lone, of="shared ", reduced=not rank.serves)
        gradients = rank.pointwise("shared add gradients", "add", rows, rank.hidden)
        added = lone.pointwise("shared add", "add", lone.resident_tokens, rank.hidden)
        yield Operation(forward=(added,), backward=(gradients,))
    if part.shared_gate:
        yield from product(rank, Projection(name="shared gate", k=rank.hidden, parts=(1,), kind="router"), rows)
    if rank.serves:
        yield leaving(rank, rank.hidden, "experts")


def _joins(part: Experts, rank: Rank) -> Any:
    """Whether shared experts run with the routed ones, for each pass: up to some tokens, in the same arithmetic."""
    alike = rank.arithmetic("experts") == rank.arithmetic("feed_forward")
    return np.less_equal(rank.tokens, rank.engine.shared_tokens if part.shared and alike else 0)


def _served(part: Experts, rank: Rank) -> Operation:
    """Choice of experts, tokens of all groups to them, all of them in one kernel, results back.

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
    chosen = rank.reduced("routing", "softmax", (tokens, part.experts), scores, 8 * tokens * part.top_k)
    return Operation(
        forward=(
            *(() if rank.engine.routes_in_experts else (chosen,)),
            *_handed(part, rank),
            rank.part("experts", batch),
            *_handed(part, rank, back=True),
        ),
        held=(*_held(up, experts), *_held(down, experts)),
        widest_bytes=rank.row_bytes(rank.tokens) / rank.hidden * part.top_k * (up.n + down.k + rank.hidden),
    )


def _held(projection: Projection, experts: int) -> tuple[HeldWeights, ...]:
    """A projection of each of a rank's experts."""
    return tuple(each._replace(number=experts * each.number, routed=True) for each in projection.held)


def _handed(part: Experts, rank: Rank, *, back: bool = False) -> tuple[Part, ...]:
    """Tokens to their experts in the dtype of the arithmetic, or results ``back``. Ranks of one group hold the same
    tokens, so that groups alone exchange any.
    """
    dp = rank.ranks["dp"]
    if dp == 1:
        return ()
    narrow = STORED_BYTES[rank.of(rank.tokens, rank.quantisation.of("experts").activations).dtype] / rank.size
    if rank.ranks["ep"] == 1 or rank.engine.dispatcher == "allgather":
        every = rank.row_bytes(rank.tokens * dp)
        if back:
            return rank.exchanged("scatter results", "reduce_scatter", "dp", every)
        return rank.exchanged("gather tokens", "all_gather", "dp", every * narrow)
    # A rank's share of its group's tokens, each to the ranks that hold any of its experts.
    sent = rank.row_bytes(np.ceil(rank.tokens / rank.tp) * distinct(rank.ranks["ep"], part.top_k))
    name, size = ("combine", sent) if back else ("dispatch", sent * narrow)
    return rank.exchanged(name, "all_to_all", "ep", size)


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
        """Whether ranks that share experts have tokens of their own: else all have the same already."""
        return self.rank.share.sequence_parallel or self.rank.share.tp == 1

    @property
    def pairs(self) -> int:
        """As many as the rank's tokens make, from each of the ranks that share its experts."""
        return self.sent * (self.rank.share.etp if self.gathers else 1)

    @property
    def of_each(self) -> int:
        """Rows of one expert."""
        return max(1, -(-self.pairs // self.experts))


def _routed(part: Experts, rank: Rank) -> Iterator[Operation]:
    """In training, from the router's scores to the rank's tokens' results."""
    local = rank.share
    if local.tp > 1 and not local.sequence_parallel and (local.ep > 1 or local.etp != local.tp):
        raise ModelError(
            f"experts on tp = {local.tp} without sequence parallelism are sharded as all else: choose ep = 1 and etp = "
            f"{local.tp}, or turn sequence parallelism on"
        )
    experts = shared_evenly(part.experts, local.ep, "number of experts")
    routed = Routed(part=part, rank=rank, tokens=local.resident_tokens, experts=experts)
    yield from _chosen(routed)
    yield from _kept(routed)
    sends = rank.engine.dispatcher != "allgather"
    yield from (_dispatched if sends else _collected)(routed)
    up, down = part.expert.projections(rank.hidden, local.etp, "experts")
    yield _grouped(routed, up)
    yield from adapted(rank, replace(up, parts=(up.n * experts,)), routed.pairs)
    yield from within("moe_act", activated(part.expert, rank, routed.pairs, down.k))
    yield _grouped(routed, down)
    yield from adapted(rank, replace(down, parts=(down.n * experts,)), routed.pairs)
    yield from (_combined if sends else _returned)(routed)
    if not routed.gathers:
        # Ranks that have the same tokens and slices of experts.
        yield exchanged(rank, "reduce of experts", "all_reduce", "tp", rank.row_bytes(routed.tokens))


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
            given(rank, "expert products", even * (up.n + down.n) / 2),
        ),
        widest_bytes=even * (up.n + down.k) * rank.size,
    )
    yield from within("moe_act", (Operation(saved=(activated, unweighted)),))


def _chosen(routed: Routed) -> Iterator[Operation]:
    """Probabilities, the best of them, and the order in which their experts get the tokens."""
    rank, many, tokens, sent = routed.rank, routed.part.experts, routed.tokens, routed.sent
    chosen_bytes = (FLOAT_BYTES + INDEX_BYTES) * sent
    order = INDEX_BYTES * sent
    yield over_rows(rank, "router probabilities", "softmax", tokens, many)
    yield Operation(
        forward=(
            rank.reduced("router choice", "topk", (tokens, many), tokens * many * rank.size, chosen_bytes),
            rank.reduced("router order", "sort", (1, sent), order, 2 * order),
        ),
        backward=(rank.moved("router choice gradient", "scatter", sent, chosen_bytes, FLOAT_BYTES * sent),),
    )


def _rearranged(routed: Routed, name: str, rows: int) -> Part:
    """Rows to other places."""
    rank, size = routed.rank, routed.rank.row_bytes(rows)
    return rank.moved(name, "gather", rows * rank.hidden, size + INDEX_BYTES * rows, size)


def _sorted(routed: Routed, name: str) -> Iterator[Operation]:
    """Pairs of several ranks and several experts to the other order."""
    if routed.rank.share.ep > 1 and routed.experts > 1:
        yield moved(_rearranged(routed, name, routed.pairs))


def _slices(routed: Routed, name: str, op: str, size: int) -> Iterator[Operation]:
    """What ranks exchange that have a slice of the same experts, where each has tokens of its own: these gathered, or
    their results added up at each token's rank.
    """
    if routed.gathers:
        yield exchanged(routed.rank, f"{name} expert", op, "etp", size)


def _dispatched(routed: Routed) -> Iterator[Operation]:
    """A row for each pair in the order of experts, to the rank that has the expert, and sorted again there."""
    rank, top_k = routed.rank, routed.part.top_k
    if rank.engine.dispatcher == "once":
        yield from _dispatched_once(routed)
        return
    sent = rank.row_bytes(routed.sent)
    add = rank.reduced("permute gradient", "sum", (routed.tokens * rank.hidden, top_k), sent, sent // top_k)
    yield Operation(forward=(_rearranged(routed, "permute", routed.sent),), backward=(add,))
    yield exchanged(rank, "dispatch", "all_to_all", "ep", sent)
    yield from _slices(routed, "gather for", "all_gather", sent * rank.share.etp)
    yield from _sorted(routed, "sort by expert")


def _dispatched_once(routed: Routed) -> Iterator[Operation]:
    """A token's row once to each rank, or over a network once to each node, that has any of its experts; there a row
    for each pair (DeepEP; Megatron Core, ``MoEFlexTokenDispatcher``).
    """
    rank, sent = routed.rank, routed.rank.row_bytes(routed.sent_once)
    yield exchanged(rank, "dispatch", "all_to_all", "ep", sent)
    yield from _slices(routed, "gather for", "all_gather", sent * rank.share.etp)
    rows, arrived = routed.sent_once * rank.share.etp, rank.row_bytes(routed.pairs)
    shape = (rows * rank.hidden, max(1, routed.pairs // rows))
    add = rank.reduced("permute gradient", "sum", shape, arrived, rank.row_bytes(rows))
    yield Operation(forward=(_rearranged(routed, "permute", routed.pairs),), backward=(add,))


def _combined(routed: Routed) -> Iterator[Operation]:
    """The way back, and the sum of each token's results by their probabilities."""
    rank = routed.rank
    if rank.engine.dispatcher == "once":
        # Each rank adds up what its own experts give of a token before that goes back.
        yield _weighted(routed, routed.sent_once * rank.share.etp, routed.pairs)
        yield from _slices(routed, "scatter of", "reduce_scatter", rank.row_bytes(routed.sent_once) * rank.share.etp)
        yield exchanged(rank, "combine", "all_to_all", "ep", rank.row_bytes(routed.sent_once))
        return
    sent = rank.row_bytes(routed.sent)
    yield from _sorted(routed, "sort by rank")
    yield from _slices(routed, "scatter of", "reduce_scatter", sent * rank.share.etp)
    yield exchanged(rank, "combine", "all_to_all", "ep", sent)
    yield _weighted(routed, routed.tokens, routed.sent)


def _collected(routed: Routed) -> Iterator[Operation]:
    """All ranks' tokens at every rank, of which it takes those of its experts."""
    rank, local = routed.rank, routed.rank.share
    own = rank.row_bytes(routed.tokens) * (local.etp if routed.gathers else 1)
    yield from _slices(routed, "gather for", "all_gather", own)
    yield exchanged(rank, "gather tokens", "all_gather", "ep", own * local.ep)
    yield moved(_rearranged(routed, "permute", routed.pairs))


def _returned(routed: Routed) -> Iterator[Operation]:
    """Partial sums of all tokens, added up at each token's rank."""
    rank, local = routed.rank, routed.rank.share
    everyone = routed.tokens * local.ep * (local.etp if routed.gathers else 1)
    yield _weighted(routed, everyone, routed.pairs)
    yield exchanged(rank, "scatter results", "reduce_scatter", "ep", rank.row_bytes(everyone))
    yield from _slices(routed, "scatter of", "reduce_scatter", rank.row_bytes(everyone) // local.ep)


def _weighted(routed: Routed, tokens: int, pairs: int) -> Operation:
    """Rows of pairs to sums of tokens; back, each pair's gradient and that of its probability."""
    rank = routed.rank
    rows, results, weights = rank.row_bytes(pairs), rank.row_bytes(tokens), FLOAT_BYTES * pairs
    return Operation(
        forward=(rank.passed("unpermute", "mul", pairs * rank.hidden, rows + weights, results),),
        backward=(
            rank.passed("unpermute gradient", "mul", pairs * rank.hidden, results + weights, rows),
            rank.reduced("probability gradient", "sum", (pairs, rank.hidden), rows + results, weights),
        ),
    )


def _grouped(routed: Routed, projection: Projection) -> Operation:
    """A product of every expert, forward and for both gradients, and what it takes in 8 bits, cast and transposed."""
    rank, name, shape = routed.rank, f"expert {projection.name}", (routed.pairs, projection.n, projection.k)
    (back, _), _ = product_gradients(shape, "tn")

    def quantised(cols: int) -> tuple[Part, ...]:
        return narrowed(rank, projection.name, (routed.pairs, cols), wanted=rank.narrow(projection.kind))

    return Operation(
        forward=(*quantised(projection.k), _of_groups(routed, name, projection.kind, shape)),
        backward=(*quantised(projection.n), _of_groups(routed, name, projection.kind, back)),
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
