"""What a unit of a decoder keeps of a micro-batch for its backward pass on one rank, activation by activation.

With all of it kept, unfused attention and dropout, a layer of GPT keeps s b h (34 + 5 a s / h) bytes of ``s`` tokens in
``b`` sequences, ``h`` wide with ``a`` heads (Korthikanti et al. 2022, equation 1); with ``t`` tensor-parallel ranks
s b h (10 + 24 / t + 5 a s / (h t)), and under sequence parallelism a ``t``-th of everything (equations 2 and 4).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from neusight.engines import Engine
from neusight.kernels.precision import stored_bytes
from neusight.workloads.decoders.decoder import Decoder
from neusight.workloads.decoders.layers import (
    CompressedAttention,
    Experts,
    FeedForward,
    LatentAttention,
    Layer,
    LinearAttention,
    Mixer,
    Projection,
    SelfAttention,
    StateSpace,
)
from neusight.workloads.decoders.shares import Local

ROW_BYTES = 4
"""Of a figure of a row that norms, softmaxes and routers keep in float32."""
SCAN_CHUNK = 64
"""Tokens between two states that the scan of a recurrent layer keeps (flash-linear-attention's chunk; Mamba-2 has 256,
of which it keeps fewer)."""


@dataclass(frozen=True, kw_only=True)
class Saved:
    """One activation. ``core``: of the core of attention, which selective recomputation computes again."""

    what: str
    bytes: float
    core: bool = False


def total_bytes(saved: Iterable[Saved]) -> float:
    """Sum [B]."""
    return sum(s.bytes for s in saved)


def layer_saved(layer: Layer, hidden: int, local: Local, engine: Engine) -> tuple[Saved, ...]:
    """What one layer keeps of a micro-batch on a rank, in the order in which it comes to be.

    Args:
        layer: its mixer, feed-forward and norms.
        hidden: width of the residual stream.
        local: the rank's share of the micro-batch.
        engine: whose habits.

    Raises:
        ModelError: ranks that cannot share heads, columns or experts evenly.
    """
    stream = local.resident_tokens * hidden * stored_bytes(local.dtype)
    statistics = 2 if layer.norm.op == "layer_norm" else 1
    found = [Saved(what="norm input", bytes=layer.norms * stream)]
    found.append(Saved(what="norm statistics", bytes=layer.norms * statistics * ROW_BYTES * local.resident_tokens))
    shared_input = layer.placement == "parallel" and layer.norms == 1
    if layer.attention:
        found.append(_fed("attention input", local.resident_tokens * hidden, local))
        found += _mixer(layer.attention, hidden, local, engine)
    if layer.feed_forward:
        if not (shared_input and layer.attention):
            found.append(_fed("feed-forward input", local.resident_tokens * hidden, local))
        found += _feed_forward(layer.feed_forward, hidden, local, engine)
    if engine.hidden_dropout:
        masks = (layer.attention is not None) + (layer.feed_forward is not None)
        found.append(Saved(what="dropout mask", bytes=masks * local.resident_tokens * hidden))
    return tuple(found)


def selected_bytes(layer: Layer, hidden: int, local: Local, engine: Engine) -> float:
    """What selective recomputation keeps [B] of a layer: all but the core of attention (Korthikanti et al. 2022)."""
    return sum(s.bytes for s in layer_saved(layer, hidden, local, engine) if not s.core)


def operators_bytes(layer: Layer, hidden: int, local: Local) -> float:
    """What selection by operators keeps [B] of a layer: its input, what every second product gives, and the output of
    attention (torchtitan, ``_apply_ac_to_transformer_block``).
    """
    mixed = layer.attention.projections(hidden, local.tp) if layer.attention else ()
    part = layer.feed_forward
    if isinstance(part, Experts):
        fed, load = part.expert.projections(hidden, local.etp), part.top_k * local.etp / local.tp
    else:
        fed, load = part.projections(hidden, local.tp) if part else (), 1.0
    given = sum(p.n for p in mixed) + load * sum(p.n for p in fed)
    attended = mixed[-1].k if mixed else 0
    return checkpoint_bytes(hidden, local) + local.tokens * (given / 2 + attended) * stored_bytes(local.dtype)


def checkpoint_bytes(hidden: int, local: Local) -> float:
    """What is kept [B] of a layer that is computed again in full: its input (Chen et al. 2016)."""
    return local.resident_tokens * hidden * stored_bytes(local.dtype)


def before_saved(decoder: Decoder, local: Local, engine: Engine) -> tuple[Saved, ...]:
    """What the embedding keeps: ids (int64) of its tokens and of their positions, and dropout's mask."""
    found = [Saved(what="ids", bytes=16.0 * local.tokens)]
    if engine.hidden_dropout:
        found.append(Saved(what="dropout mask", bytes=local.resident_tokens * decoder.hidden))
    return tuple(found)


def after_saved(decoder: Decoder, local: Local) -> tuple[Saved, ...]:
    """What the last norm and the head keep, without logits: the stream before and after that norm."""
    stream = local.resident_tokens * decoder.hidden
    normed = (Saved(what="norm input", bytes=stream * stored_bytes(local.dtype)),) if decoder.norm else ()
    return (*normed, Saved(what="head input", bytes=stream * stored_bytes(local.dtype)))


def logits(decoder: Decoder, local: Local) -> float:
    """Logits of a micro-batch on a rank, whose vocabulary ``tp`` ranks share padded to a multiple."""
    return local.tokens * float(-(-decoder.vocab // local.tp))


def _fed(what: str, elements: float, local: Local) -> Saved:
    """The input of a product, kept for the gradient of its weights in the precision of that product."""
    return Saved(what=what, bytes=elements * stored_bytes(local.products or local.dtype))


def _mixer(mixer: Mixer, hidden: int, local: Local, engine: Engine) -> Iterator[Saved]:
    """Up to the input of the output projection, which stands last."""
    if isinstance(mixer, SelfAttention):
        yield from _self_attention(mixer, hidden, local, engine)
    elif isinstance(mixer, LatentAttention):
        yield from _latent_attention(mixer, hidden, local, engine)
    else:
        yield from _other_mixer(mixer, hidden, local)


def _self_attention(mixer: SelfAttention, hidden: int, local: Local, engine: Engine) -> Iterator[Saved]:
    size = stored_bytes(local.dtype)
    qkv, output = mixer.projections(hidden, local.tp)
    heads = mixer.local_heads(local.tp)[0]
    if mixer.qk_norm:
        yield Saved(what="query and key before their norm", bytes=local.tokens * sum(qkv.parts[:2]) * size)
    yield Saved(what="query, key, value", bytes=local.tokens * qkv.n * size)
    yield from _core(heads, heads * mixer.head_dim, local, engine, seen=mixer.window)
    if mixer.gated:
        yield Saved(what="attention before its gate", bytes=local.tokens * output.k * size)
    yield _fed("attention output", local.tokens * output.k, local)


def _latent_attention(mixer: LatentAttention, hidden: int, local: Local, engine: Engine) -> Iterator[Saved]:
    """Inputs and outputs of every product, and keys with the rotated part, which all heads share, written for each."""
    size = stored_bytes(local.dtype)
    *inner, output = mixer.projections(hidden, local.tp)
    yield Saved(what="latent and expanded", bytes=local.tokens * sum(p.n for p in inner) * size)
    heads = mixer.local_heads(local.tp)
    normed = mixer.q_rank + mixer.kv_rank
    yield _fed("normed latent", local.tokens * normed, local)
    wide = heads * (2 * (mixer.nope_dim + mixer.rope_dim) + mixer.value_dim)
    yield Saved(what="query, key, value", bytes=local.tokens * wide * size)
    yield from _core(heads, heads * mixer.value_dim, local, engine)
    yield _fed("attention output", local.tokens * output.k, local)


def _core(heads: int, width: int, local: Local, engine: Engine, *, seen: int = 0) -> Iterator[Saved]:
    """Softmax(Q Kᵀ) V: of unfused attention probabilities, dropout's mask and what it lets through, of others a
    normaliser a row. Unfused attention writes whole rows, whatever a window lets it see.
    """
    if not engine.writes_scores:
        yield Saved(what="normaliser", bytes=ROW_BYTES * heads * local.tokens, core=True)
        if engine.attention == "flash" and engine.sequence_first:
            copied = local.tokens * width * stored_bytes(local.dtype)
            yield Saved(what="attention output by sequence", bytes=copied, core=True)
        return
    scores = float(heads * local.tokens * local.seq_len)
    yield Saved(what="probabilities", bytes=engine.probability_bytes * scores, core=True)
    if engine.attention_dropout:
        yield Saved(what="attention dropout mask", bytes=scores, core=True)
        yield Saved(what="probabilities let through", bytes=stored_bytes(local.dtype) * scores, core=True)


def _other_mixer(
    mixer: CompressedAttention | LinearAttention | StateSpace, hidden: int, local: Local
) -> Iterator[Saved]:
    """What products give, once more what a convolution or norm makes of it, the states of a scan, and the output."""
    size = stored_bytes(local.dtype)
    *inner, output = mixer.projections(hidden, local.tp)
    wide = sum(p.n for p in inner)
    yield Saved(what="products", bytes=local.tokens * wide * size)
    yield Saved(what="mixed", bytes=local.tokens * wide * size)
    if not isinstance(mixer, CompressedAttention):
        states = local.batch * -(-local.length // SCAN_CHUNK)
        yield Saved(what="states", bytes=states * mixer.state_elements(local.tp) * size, core=True)
    yield _fed("mixer output", local.tokens * output.k, local)


def _feed_forward(part: FeedForward | Experts, hidden: int, local: Local, engine: Engine) -> Iterator[Saved]:
    if isinstance(part, Experts):
        yield from _experts(part, hidden, local, engine)
    else:
        yield from _inner(part.projections(hidden, local.tp), part.gated, local.tokens, local, engine)


def _inner(
    projections: tuple[Projection, ...], gated: bool, tokens: float, local: Local, engine: Engine
) -> Iterator[Saved]:
    """Between the products of a feed-forward: what the activation takes, what a gate let through, what it gives."""
    up, down = projections
    yield Saved(what="up" if not gated else "gate and up", bytes=tokens * up.n * stored_bytes(local.dtype))
    if gated and engine.keeps_activated_gate:
        yield Saved(what="activated gate", bytes=tokens * down.k * stored_bytes(local.dtype))
    yield _fed("activated", tokens * down.k, local)


def _experts(part: Experts, hidden: int, local: Local, engine: Engine) -> Iterator[Saved]:
    """Rows that came to the rank's experts, as they go in and between the products, once weighted by the router.

    A rank's experts, or its slices of them, serve the tokens of ``ep * etp`` ranks; of these the fullest rank counts.
    """
    size, rows = stored_bytes(local.dtype), engine.expert_load * local.tokens / local.tp * local.etp * part.top_k
    yield Saved(what="router scores", bytes=2 * ROW_BYTES * local.resident_tokens * part.experts)
    yield _fed("expert input", rows * hidden, local)
    yield from _inner(part.expert.projections(hidden, local.etp), part.expert.gated, rows, local, engine)
    yield Saved(what="activated before its weight", bytes=rows * part.expert.ffn / local.etp * size)
    if part.shared:
        yield from _inner(part.shared.projections(hidden, local.tp), part.shared.gated, local.tokens, local, engine)
