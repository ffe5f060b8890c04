"""Kernels of feed-forwards and of mixtures of experts, as a rank of a serving engine runs them in one layer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from neusight.errors import ModelError
from neusight.kernels.families import KernelBatch
from neusight.kernels.operators import operator
from neusight.kernels.precision import DTYPE_BYTES
from neusight.workloads.decoders.columns import Made, Rank, arithmetic
from neusight.workloads.decoders.layers import Experts, FeedForward, Projection, shared_evenly

ROUTED = "uniform"
"""How tokens fall on experts, unless told: each at random, which routers that were trained to balance come near."""


def fed(part: FeedForward | Experts, rank: Rank) -> Iterator[Made]:
    """Kernels from the normalised input to the results of the rank; the all-reduce after it is the layer's."""
    return _mixture(part, rank) if isinstance(part, Experts) else _dense(part, rank)


def _dense(part: FeedForward, rank: Rank, of: str = "") -> Iterator[Made]:
    up, down = part.projections(rank.hidden, rank.sharding.tp)
    for what, batch, runs in (rank.projected(up), _activated(part, rank, down.k), rank.projected(down)):
        yield of + what, batch, runs


def _activated(part: FeedForward, rank: Rank, width: int) -> Made:
    """Gated ones stream the same bytes whatever the function: silu's kernel, which was measured, stands for all."""
    return (
        "activation",
        rank.pointwise("silu_and_mul" if part.gated else part.activation, rank.tokens, width),
        rank.runs,
    )


def _mixture(part: Experts, rank: Rank) -> Iterator[Made]:
    yield rank.projected(part.router(rank.hidden))
    yield "routing", _routing(part, rank), rank.runs
    if part.shared:
        yield from _dense(part.shared, rank, "shared ")
    if part.shared_gate:
        yield rank.projected(Projection(what="shared gate", k=rank.hidden, parts=(1,), kind="router"))
    yield from _handed_out(part, rank)
    yield "experts", _experts(part, rank), rank.runs
    yield from _handed_back(part, rank)
    if part.shared:
        yield "shared add", rank.pointwise("add", rank.tokens, rank.hidden), rank.runs


def _routing(part: Experts, rank: Rank) -> KernelBatch:
    """Softmax and choice of the best in one kernel: scores read, weights and numbers of the chosen written."""
    rows = np.maximum(rank.tokens, 1)
    return KernelBatch.from_columns(
        "row_reduction", op="softmax", rows=rows, cols=part.experts,
        read_bytes=rows * part.experts * DTYPE_BYTES[rank.dtype], write_bytes=8 * rows * part.top_k,
        flops=operator("row_reduction", "softmax").flops * rows * part.experts, dtype=rank.dtype,
    )  # fmt: skip


def _experts(part: Experts, rank: Rank) -> KernelBatch:
    """The rank's experts on the tokens of all groups: whole ones with ``ep``, else a slice of each.

    Raises:
        ModelError: experts or their width that ranks cannot share evenly.
    """
    sharding, scheme = rank.sharding, rank.precision.quantisation.of("experts")
    slices = shared_evenly(sharding.tp * sharding.dp, sharding.ep, "tp x dp")
    return KernelBatch.from_columns(
        "moe",
        tokens=np.maximum(rank.tokens * sharding.dp, 1),
        hidden=rank.hidden,
        ffn=shared_evenly(part.expert.ffn, slices, "moe_intermediate_size"),
        experts=shared_evenly(part.experts, sharding.ep, "number of experts"),
        all_experts=part.experts,
        top_k=part.top_k,
        gated=part.expert.gated,
        distribution=ROUTED,
        **arithmetic(scheme, rank.dtype),
    )


def _handed_out(part: Experts, rank: Rank) -> list[Made]:
    """Tokens to their experts. Ranks of one group hold the same tokens, so that groups alone exchange any."""
    sharding = rank.sharding
    if sharding.dp == 1:
        return []
    if sharding.ep == 1:
        gathered = rank.row_bytes(rank.tokens * sharding.dp)
        return rank.exchanged("all_gather", sharding.dp, gathered, "gather tokens")
    narrow = rank.precision.quantisation.of("experts").activations
    size = DTYPE_BYTES[narrow or rank.dtype] / DTYPE_BYTES[rank.dtype]
    return rank.exchanged("all_to_all", sharding.ep, _sent_bytes(part, rank) * size, "dispatch")


def _handed_back(part: Experts, rank: Rank) -> list[Made]:
    """Results to the ranks of their tokens."""
    sharding = rank.sharding
    if sharding.dp == 1:
        return []
    if sharding.ep == 1:
        whole = rank.row_bytes(rank.tokens * sharding.dp)
        return rank.exchanged("reduce_scatter", sharding.dp, whole, "scatter results")
    return rank.exchanged("all_to_all", sharding.ep, _sent_bytes(part, rank), "combine")


def _sent_bytes(part: Experts, rank: Rank) -> np.ndarray:
    r"""A rank's share of its group's tokens, each to the ranks that hold any of its experts.

    .. math:: E[\text{ranks}] = e (1 - (1 - 1 / e)^k)

    e ranks and k experts a token, each at random.
    """
    ep = rank.sharding.ep
    ranks = ep * (1.0 - (1.0 - 1.0 / ep) ** part.top_k)
    return rank.row_bytes(np.ceil(rank.tokens / rank.sharding.tp) * ranks)


def check_shared(ep: int, dp: int, tp: int) -> None:
    """Refuse experts on ranks that a replica does not have.

    Raises:
        ModelError: ``ep`` does not divide the devices that hold a layer.
    """
    if (tp * dp) % ep:
        raise ModelError(f"ep = {ep} does not divide tp x dp = {tp * dp}: experts are shared by those ranks")
