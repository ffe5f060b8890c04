"""Experts in training: choice, tokens to experts and back, grouped products (Megatron Core's MoE layer).

Tokens fall on experts evenly, which the losses that balance them aim at. Each tensor-parallel rank routes its own part
of the tokens under sequence parallelism. Biases of experts are parameters without kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from neusight.errors import ModelError
from neusight.kernels.families import KernelBatch
from neusight.workloads.decoders.feed_forwards import activated, inner
from neusight.workloads.decoders.layers import Experts, Projection, shared_evenly
from neusight.workloads.decoders.operations import Operation
from neusight.workloads.decoders.products import given, product_input
from neusight.workloads.decoders.rank import FLOAT_BYTES, INDEX_BYTES, Rank
from neusight.workloads.program import HeldWeights, Part, SavedActivation


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
    def gathers(self) -> bool:
        """Whether ranks that share experts have tokens of their own: else all have the same already."""
        local = self.rank.share
        return local.sequence_parallel or local.tp == 1

    @property
    def pairs(self) -> int:
        """As many as the rank's tokens make, from each of the ranks that share its experts."""
        return self.sent * (self.rank.share.etp if self.gathers else 1)

    @property
    def of_each(self) -> int:
        """Rows of one expert."""
        return max(1, -(-self.pairs // self.experts))


def routed_experts(part: Experts, rank: Rank) -> Iterator[Operation]:
    """Operations from the router's scores to the rank's tokens' results.

    Raises:
        ModelError: experts or widths that ranks cannot share evenly, or tokens that several ranks hold and route.
    """
    local = rank.share
    _check(rank)
    routed = Routed(
        part=part,
        rank=rank,
        tokens=local.resident_tokens,
        experts=shared_evenly(part.experts, local.ep, "number of experts"),
    )
    yield _chosen(routed)
    yield _kept(routed)
    if rank.engine.dispatcher == "alltoall":
        yield _dispatched(routed)
        yield from _expert_products(routed)
        yield _combined(routed)
    else:
        yield _collected(routed)
        yield from _expert_products(routed)
        yield _handed_back(routed)


def _kept(routed: Routed) -> Operation:
    """Rows that came to the rank's experts, as they go in and between the products, once weighted by the router.

    A rank's experts, or its slices of them, serve the tokens of ``ep * etp`` ranks; of these the fullest rank counts.
    """
    part, rank, local = routed.part, routed.rank, routed.rank.share
    up, down = part.expert.projections(rank.hidden, local.etp, "experts")
    even = local.tokens / local.tp * local.etp * part.top_k
    rows = rank.engine.expert_load * local.tokens / local.tp * local.etp * part.top_k
    return Operation(
        saved=(
            SavedActivation(name="router scores", bytes=2 * FLOAT_BYTES * local.resident_tokens * part.experts),
            product_input(rank, "expert input", rows * rank.hidden),
            *inner(rank, part.expert, rows, down.k).saved,
            SavedActivation(name="activated before its weight", bytes=rows * part.expert.ffn / local.etp * rank.size),
            given(rank, "expert products", even * (up.n + down.n) / 2),
        ),
        widest_bytes=even * (up.n + down.k) * rank.size,
    )


def _check(rank: Rank) -> None:
    local = rank.share
    if local.tp > 1 and not local.sequence_parallel and (local.ep > 1 or local.etp != local.tp):
        raise ModelError(
            f"experts on tp = {local.tp} without sequence parallelism are sharded as all else: choose ep = 1 and etp = "
            f"{local.tp}, or turn sequence parallelism on"
        )


def _chosen(routed: Routed) -> Operation:
    """Probabilities, the best of them, and the order in which their experts get the tokens."""
    rank, many, tokens = routed.rank, routed.part.experts, routed.tokens
    size = tokens * many * rank.size
    chosen_bytes = (FLOAT_BYTES + INDEX_BYTES) * routed.sent
    order = INDEX_BYTES * routed.sent
    return Operation(
        forward=(
            rank.rows("router probabilities", "softmax", tokens, many),
            rank.reduced("router choice", "topk", (tokens, many), size, chosen_bytes),
            rank.reduced("router order", "sort", (1, routed.sent), order, 2 * order),
        ),
        backward=(
            rank.moved("router choice gradient", "scatter", routed.sent, chosen_bytes, FLOAT_BYTES * routed.sent),
            rank.rows("router probabilities gradient", "softmax_backward", tokens, many),
        ),
    )


def _rearranged(routed: Routed, name: str, rows: int) -> Part:
    """Rows to other places."""
    rank = routed.rank
    size = rows * rank.hidden * rank.size
    return rank.moved(name, "gather", rows * rank.hidden, size + INDEX_BYTES * rows, size)


def _dispatched(routed: Routed) -> Operation:
    """A row for each pair in the order of experts, to the rank that has the expert, and sorted again there."""
    rank = routed.rank
    sent = routed.sent * rank.hidden * rank.size
    shared = sent * rank.share.etp if routed.gathers else 0
    permuted = _rearranged(routed, "permute", routed.sent)
    sorted_ = (_rearranged(routed, "sort by expert", routed.pairs),) if rank.share.ep > 1 and routed.experts > 1 else ()
    gathered = rank.exchanged("gather for expert", "all_gather", "etp", shared) if shared else ()
    scattered = rank.exchanged("scatter gradient of expert", "reduce_scatter", "etp", shared) if shared else ()
    add = rank.reduced(
        "permute gradient", "sum", (routed.tokens * rank.hidden, routed.part.top_k), sent, sent // routed.part.top_k
    )
    return Operation(
        forward=(permuted, *rank.exchanged("dispatch", "all_to_all", "ep", sent), *gathered, *sorted_),
        backward=(*sorted_, *scattered, *rank.exchanged("dispatch gradient", "all_to_all", "ep", sent), add),
    )


def _combined(routed: Routed) -> Operation:
    """The way back, and the sum of each token's results by their probabilities."""
    rank = routed.rank
    sent = routed.sent * rank.hidden * rank.size
    shared = sent * rank.share.etp if routed.gathers else 0
    sorted_ = (_rearranged(routed, "sort by rank", routed.pairs),) if rank.share.ep > 1 and routed.experts > 1 else ()
    scattered = rank.exchanged("scatter of expert", "reduce_scatter", "etp", shared) if shared else ()
    gathered = rank.exchanged("gather gradient for expert", "all_gather", "etp", shared) if shared else ()
    weighted, back = _weighted(routed, routed.tokens, routed.sent)
    return Operation(
        forward=(
            *sorted_,
            *scattered,
            *rank.exchanged("combine", "all_to_all", "ep", sent),
            weighted,
            *_reduced_results(routed),
        ),
        backward=(*back, *rank.exchanged("combine gradient", "all_to_all", "ep", sent), *gathered, *sorted_),
    )


def _reduced_results(routed: Routed) -> tuple[Part, ...]:
    """Of ranks that have the same tokens and slices of experts."""
    if routed.gathers:
        return ()
    rank = routed.rank
    return rank.exchanged("reduce of experts", "all_reduce", "tp", routed.tokens * rank.hidden * rank.size)


def _weighted(routed: Routed, tokens: int, pairs: int) -> tuple[Part, tuple[Part, ...]]:
    """Rows of pairs to sums of tokens; back, each pair's gradient and that of its probability."""
    rank = routed.rank
    rows, results = pairs * rank.hidden * rank.size, tokens * rank.hidden * rank.size
    forward = rank.passed("unpermute", "mul", pairs * rank.hidden, rows + FLOAT_BYTES * pairs, results)
    spread = rank.passed("unpermute gradient", "mul", pairs * rank.hidden, results + FLOAT_BYTES * pairs, rows)
    each = rank.reduced("probability gradient", "sum", (pairs, rank.hidden), rows + results, FLOAT_BYTES * pairs)
    return forward, (spread, each)


def _collected(routed: Routed) -> Operation:
    """All ranks' tokens at every rank, of which it takes those of its experts."""
    rank, local = routed.rank, routed.rank.share
    own = routed.tokens * rank.hidden * rank.size * (local.etp if routed.gathers else 1)
    shared = rank.exchanged("gather for expert", "all_gather", "etp", own) if routed.gathers else ()
    back = rank.exchanged("scatter gradient of expert", "reduce_scatter", "etp", own) if routed.gathers else ()
    permuted = _rearranged(routed, "permute", routed.pairs)
    return Operation(
        forward=(*shared, *rank.exchanged("gather tokens", "all_gather", "ep", own * local.ep), permuted),
        backward=(
            permuted,
            *rank.exchanged("scatter gradient of tokens", "reduce_scatter", "ep", own * local.ep),
            *back,
        ),
    )


def _handed_back(routed: Routed) -> Operation:
    """Partial sums of all tokens, added up at each token's rank."""
    rank, local = routed.rank, routed.rank.share
    everyone = routed.tokens * local.ep * (local.etp if routed.gathers else 1)
    whole = everyone * rank.hidden * rank.size
    own = whole // local.ep
    weighted, back = _weighted(routed, everyone, routed.pairs)
    shared = rank.exchanged("scatter of expert", "reduce_scatter", "etp", own) if routed.gathers else ()
    again = rank.exchanged("gather gradient for expert", "all_gather", "etp", own) if routed.gathers else ()
    return Operation(
        forward=(
            weighted,
            *rank.exchanged("scatter results", "reduce_scatter", "ep", whole),
            *shared,
            *_reduced_results(routed),
        ),
        backward=(*again, *rank.exchanged("gather gradient of results", "all_gather", "ep", whole), *back),
    )


def _expert_products(routed: Routed) -> Iterator[Operation]:
    """Up, activation and down of the rank's experts."""
    expert, rank = routed.part.expert, routed.rank
    up, down = expert.projections(rank.hidden, rank.share.etp, "experts")
    yield _grouped(routed, up)
    yield activated(expert, rank, routed.pairs, down.k)
    yield _grouped(routed, down)


def _grouped(routed: Routed, projection: Projection) -> Operation:
    """A product of every expert, forward and for both gradients.

    Gradients of weights are equal products of all experts at once, whose depth is an expert's rows.
    """
    n, k, rows = projection.n, projection.k, routed.pairs
    return Operation(
        forward=(*_quantised(routed, projection, rows, k), _of_groups(routed, projection, (n, k))),
        backward=(*_quantised(routed, projection, rows, n), _of_groups(routed, projection, (k, n))),
        weights=(_weight_products(routed, projection),),
        held=held_experts(projection, routed.experts),
    )


def held_experts(projection: Projection, experts: int) -> tuple[HeldWeights, ...]:
    """A projection of each of a rank's experts."""
    return tuple(each._replace(number=experts * each.number, routed=True) for each in projection.held)


def _quantised(routed: Routed, projection: Projection, rows: int, cols: int) -> tuple[Part, ...]:
    """What a product in 8 bits takes, cast and transposed."""
    if not routed.rank.narrow(projection.kind):
        return ()
    return (routed.rank.pointwise(f"{projection.name} quantise", "quantise", rows, cols),)


def _of_groups(routed: Routed, projection: Projection, shape: tuple[int, int]) -> Part:
    """Rows of all experts times their (n, k): one kernel, or one an expert."""
    (n, k), how = shape, routed.rank.arithmetic(projection.kind)
    name = f"expert {projection.name}"
    if routed.rank.engine.grouped_experts:
        batch = KernelBatch.from_columns("grouped_gemm", groups=routed.experts, tokens=routed.pairs, n=n, k=k, **how)
        return Part(name=name, phase="forward", batch=batch)
    batch = KernelBatch.from_columns("gemm", m=routed.of_each, n=n, k=k, **how)
    return Part(name=name, phase="forward", batch=batch, runs=routed.experts)


def _weight_products(routed: Routed, projection: Projection) -> Part:
    engine = routed.rank.engine
    groups, runs = (routed.experts, 1) if engine.grouped_experts else (1, routed.experts)
    batch = KernelBatch.from_columns(
        "gemm", op="bmm" if engine.grouped_experts else "linear", batch=groups, m=projection.n, n=projection.k,
        k=routed.of_each, layout="nt", accumulates=engine.accumulation == "product",
        **routed.rank.arithmetic(projection.kind),
    )  # fmt: skip
    return Part(name=f"expert {projection.name}", phase="weights", batch=batch, runs=runs)
