"""Mixers of tokens in training: from the normalised residual stream to partial sums of their output."""

from __future__ import annotations

from collections.abc import Iterator

from neusight.errors import ModelError
from neusight.workloads.decoders.layers import LatentAttention, Mixer, Projection, SelfAttention
from neusight.workloads.program import Part
from neusight.workloads.training.norms import normalised
from neusight.workloads.training.operations import Operation
from neusight.workloads.training.products import entering, leaving, product, separate
from neusight.workloads.training.rank import Rank
from neusight.workloads.training.scores import Heads, core


def attended(mixer: Mixer, rank: Rank, *, quantised: bool) -> Iterator[Operation]:
    """Operations of a mixer; ``quantised``: the norm before it writes 8 bits.

    Raises:
        ModelError: heads that ranks cannot share evenly, or a mixer whose backward pass is not built.
    """
    if isinstance(mixer, SelfAttention):
        return _self_attention(mixer, rank, quantised=quantised)
    if isinstance(mixer, LatentAttention) and mixer.indexer is None:
        return _latent_attention(mixer, rank)
    kind = "sparse attention" if isinstance(mixer, LatentAttention) else type(mixer).__name__
    raise ModelError(f"training of {kind} is not built: self-attention and latent attention are")


def _self_attention(mixer: SelfAttention, rank: Rank, *, quantised: bool) -> Iterator[Operation]:
    heads, kv_heads = mixer.local_heads(rank.local.tp)
    qkv, output = mixer.projections(rank.hidden, rank.local.tp)
    tokens, d = rank.local.tokens, mixer.head_dim
    yield entering(rank, rank.hidden, "attention")
    yield product(rank, qkv, tokens, quantised=quantised)
    if len(separate(rank, qkv)) == 1:
        yield Operation(backward=(_joined(rank, qkv.n, bias=mixer.qkv_bias),))
    if mixer.qk_norm:
        yield from _head_norms(mixer, rank, heads, kv_heads)
    if mixer.rotary:
        yield _rotated(rank, heads * d, kv_heads * d)
    yield core(rank, Heads(heads=heads, kv_heads=kv_heads, head_dim=d, value_dim=d, window=mixer.window))
    if mixer.gated:
        yield _gate(rank, heads * d)
    yield product(rank, output, tokens)
    yield leaving(rank, rank.hidden, "attention")


def _joined(rank: Rank, width: int, *, bias: bool) -> Part:
    """Gradients of queries, keys and values put together, with that of their bias where kernels are generated."""
    tokens, size = rank.local.tokens, rank.local.tokens * width * rank.size
    if bias and rank.engine.generated:
        return rank.reduced("qkv join gradients", "sum", (width, tokens), size, size + width * rank.size)
    return rank.copied("qkv join gradients", tokens, width, op="cat")


def _head_norms(mixer: SelfAttention, rank: Rank, heads: int, kv_heads: int) -> Iterator[Operation]:
    """Norms of queries and of keys: each head as a row, or all as one."""
    for what, count in (("query norm", heads), ("key norm", kv_heads)):
        rows, cols = (count, mixer.head_dim) if mixer.qk_norm == "head" else (1, count * mixer.head_dim)
        shape = rank.local.tokens * rows, cols
        yield normalised(rank, what, mixer.qk_norm_op, shape, weights=mixer.qk_norm_weights)


def _rotated(rank: Rank, *widths: int) -> Operation:
    """Queries and keys, each in a pass of its own; back by the opposite angle."""
    op = "rotary" if rank.engine.rotary == "fused" else "rotary_complex"
    turned = tuple(rank.pointwise("rope", op, rank.local.tokens, width) for width in widths)
    return Operation(forward=turned, backward=turned)


def _gate(rank: Rank, width: int) -> Operation:
    """Output times the sigmoid of its gate."""
    tokens = rank.local.tokens
    return Operation(
        forward=(rank.pointwise("output gate", "glu", tokens, width),),
        backward=(
            rank.pointwise("output gate gradient", "mul", tokens, width),
            rank.pointwise("output gate gradient", "mul", tokens, width),
            rank.pointwise("output gate gradient", "sigmoid_backward", tokens, width),
        ),
    )


def _latent_attention(mixer: LatentAttention, rank: Rank) -> Iterator[Operation]:
    """Expanded keys and values of each head (DeepSeek-V2, section 2.1), as prompts have them.

    Every rank has the matrices down to latent widths and works with them on its own part of the residual stream: what
    tensor-parallel ranks gather and scatter is the latent (Megatron Core, ``MLASelfAttention``).
    """
    heads = mixer.local_heads(rank.local.tp)
    parts = {p.what: p for p in mixer.projections(rank.hidden, rank.local.tp)}
    tokens, own, d = rank.local.tokens, rank.local.resident_tokens, mixer.nope_dim + mixer.rope_dim
    for what in ("query", "latent"):
        if what in parts:
            yield from _down(rank, parts[what])
    if mixer.q_rank:
        yield normalised(rank, "query norm", "rms_norm", (own, mixer.q_rank), weights=1)
    yield normalised(rank, "key norm", "rms_norm", (own, mixer.kv_rank), weights=1)
    yield entering(rank, mixer.q_rank + mixer.latent_dim, "attention", "latent")
    if mixer.q_rank:
        yield product(rank, parts["query up"], tokens)
    yield product(rank, parts["key value up"], tokens)
    yield _rotated(rank, heads * mixer.rope_dim, mixer.rope_dim)
    assembled = _assembled(rank, heads * d)
    yield Operation(forward=assembled, backward=assembled)
    yield core(rank, Heads(heads=heads, kv_heads=heads, head_dim=d, value_dim=mixer.value_dim))
    yield product(rank, parts["output"], tokens)
    yield leaving(rank, rank.hidden, "attention")


def _down(rank: Rank, projection: Projection) -> Iterator[Operation]:
    """Down to latent widths on the rank's own rows; queries without a latent are column-parallel."""
    if projection.what == "latent":
        yield product(rank, projection, rank.local.resident_tokens)
        return
    yield entering(rank, rank.hidden, "attention")
    yield product(rank, projection, rank.local.tokens)


def _assembled(rank: Rank, width: int) -> tuple[Part, ...]:
    """Queries and keys put together of parts with and without positions, and their gradients taken apart."""
    return (
        rank.copied("queries join", rank.local.tokens, width, op="cat"),
        rank.copied("keys join", rank.local.tokens, width, op="cat"),
    )
