"""Kernels of the mixers of tokens, as a rank of a serving engine runs them in one layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from neusight.kernels.families import KernelBatch
from neusight.kernels.operators import operator
from neusight.workloads.decoders.columns import Made, Rank
from neusight.workloads.decoders.layers import (
    CompressedAttention,
    Indexer,
    LatentAttention,
    LinearAttention,
    Mixer,
    Projection,
    SelfAttention,
    StateSpace,
)

FUSED_CACHE_WRITE = ("trtllm",)
"""Engines that rotate and write to the cache in one kernel (TensorRT-LLM's ``applyBiasRopeUpdateKVCache``)."""


def mixed(mixer: Mixer, rank: Rank) -> Iterator[Made]:
    """Kernels from the normalised input to the output's product; the all-reduce after it is the layer's."""
    makers: dict[type, Callable[[Any, Rank], Iterator[Made]]] = {
        SelfAttention: _self_attention,
        LatentAttention: _latent,
        CompressedAttention: _compressed,
        LinearAttention: _linear,
        StateSpace: _state_space,
    }
    return makers[type(mixer)](mixer, rank)


def _both(rank: Rank, of_prompts: dict[str, Any], of_decodes: dict[str, Any]) -> Iterator[Made]:
    """Attention of prompts and of decodes, which differ in these fields; causal, over the cache."""
    told = {"causal": True, "dtype": rank.dtype, "kv_dtype": rank.kv_dtype}
    prompts = {"batch": rank.prompts, "q_len": rank.prompt_tokens, "kv_len": rank.prompt_context}
    decodes = {"batch": rank.decodes, "q_len": np.ones_like(rank.decodes), "kv_len": rank.decode_context}
    yield "attention of prompts", _attention({**told, **prompts, **of_prompts}), rank.prompt_runs
    yield "attention of decodes", _attention({**told, **decodes, **of_decodes}), rank.decode_runs


def _attention(fields: dict[str, Any]) -> KernelBatch:
    filled = {name: np.maximum(fields[name], 1) for name in ("batch", "q_len", "kv_len")}
    return KernelBatch.from_columns("attention", **{**fields, **filled})


def _rotated(rank: Rank, rotary: int, width: int) -> Iterator[Made]:
    """Rope on ``rotary`` values a token, and the write of ``width`` values to the cache."""
    if rotary:
        yield "rope", rank.pointwise("rope", rank.tokens, rotary), rank.runs
    if rank.engine not in FUSED_CACHE_WRITE or not rotary:
        yield "cache write", rank.stored(width), rank.runs


def _self_attention(mixer: SelfAttention, rank: Rank) -> Iterator[Made]:
    heads, kv_heads = mixer.local_heads(rank.sharding.tp)
    qkv, output = mixer.projections(rank.hidden, rank.sharding.tp)
    yield rank.projected(qkv)
    yield from _normed(mixer, rank, heads, kv_heads)
    yield from _rotated(rank, (heads + kv_heads) * mixer.rotary, 2 * kv_heads * mixer.head_dim)
    shape = {"heads": heads, "kv_heads": kv_heads, "head_dim": mixer.head_dim, "window": mixer.window}
    yield from _both(rank, shape, shape)
    if mixer.gated:
        yield "output gate", rank.pointwise("mul", rank.tokens, heads * mixer.head_dim), rank.runs
    yield rank.projected(output)


def _normed(mixer: SelfAttention, rank: Rank, heads: int, kv_heads: int) -> Iterator[Made]:
    """Norms of queries and of keys: each head as a row, or all as one."""
    if not mixer.qk_norm:
        return
    for what, count in (("query norm", heads), ("key norm", kv_heads)):
        rows, cols = (count, mixer.head_dim) if mixer.qk_norm == "head" else (1, count * mixer.head_dim)
        yield what, rank.rows(mixer.qk_norm_op, rank.tokens * rows, cols), rank.runs


def _latent(mixer: LatentAttention, rank: Rank) -> Iterator[Made]:
    """Down, norms, queries up, rope, cache; then prompts expanded and decodes absorbed (DeepSeek-V2, section 2.1)."""
    heads = mixer.local_heads(rank.sharding.tp)
    parts = {p.what: p for p in mixer.projections(rank.hidden, rank.sharding.tp)}
    for what in ("latent", "query", "query up"):
        if what in parts:
            yield rank.projected(parts[what])
    if mixer.q_rank:
        yield "query norm", rank.rows("rms_norm", rank.tokens, mixer.q_rank), rank.runs
    yield "key norm", rank.rows("rms_norm", rank.tokens, mixer.kv_rank), rank.runs
    yield from _rotated(rank, (heads + 1) * mixer.rope_dim, mixer.latent_dim)
    if mixer.indexer:
        yield from _indexed(mixer.indexer, rank, parts)
    yield from _latent_attention(mixer, rank, heads, parts["key value up"])
    yield rank.projected(parts["output"])


def _latent_attention(mixer: LatentAttention, rank: Rank, heads: int, up: Projection) -> Iterator[Made]:
    absorbed = {
        "heads": heads, "kv_heads": 1, "head_dim": mixer.latent_dim, "value_dim": mixer.kv_rank, "shared_kv": True,
        "selected": mixer.indexer.selected if mixer.indexer else 0,
    }  # fmt: skip
    expanded = {"heads": heads, "kv_heads": heads, "value_dim": mixer.value_dim, "kv_dtype": ""}
    expanded["head_dim"] = mixer.nope_dim + mixer.rope_dim
    sparse = mixer.indexer is not None
    rows = rank.tokens if sparse else rank.decodes
    runs = rank.runs if sparse else rank.decode_runs
    yield "query into latent", _per_head(rank, heads, rows, (mixer.kv_rank, mixer.nope_dim)), runs
    if not sparse:
        yield up.what, rank.product(up, rank.prompts * rank.prompt_context), rank.prompt_runs
    yield from _both(rank, absorbed if sparse else expanded, absorbed)
    yield "value out of latent", _per_head(rank, heads, rows, (mixer.value_dim, mixer.kv_rank)), runs


def _per_head(rank: Rank, batch: int, rows: np.ndarray, shape: tuple[int, int]) -> KernelBatch:
    """A product (n, k) of every head, with weights in the model's own dtype."""
    n, k = shape
    return KernelBatch.from_columns(
        "gemm", op="bmm", layout="nn", batch=batch, m=np.maximum(rows, 1), n=n, k=k, dtype=rank.dtype
    )


def _indexed(indexer: Indexer, rank: Rank, parts: dict[str, Projection], ratio: int = 1) -> Iterator[Made]:
    """Scores of an indexer in float8 over its own cache, and the choice of the best; keys of ``ratio`` tokens each."""
    for what in ("indexer query", "indexer key", "indexer weight"):
        yield rank.projected(parts[what])
    yield "indexer cache write", rank.stored(indexer.head_dim), rank.runs
    shape = {"op": "indexer", "heads": indexer.heads, "kv_heads": 1, "head_dim": indexer.head_dim}
    shape |= {"dtype": "float8", "kv_dtype": ""}
    keys = [-(-context // ratio) for context in (rank.prompt_context, rank.decode_context)]
    # A compressed key belongs to no query of its own: of all that there are in the end, queries see half the new ones.
    seen = -(-(rank.prompt_context - rank.prompt_tokens // 2) // ratio)
    of_prompts = shape if ratio == 1 else {**shape, "causal": False, "kv_len": seen}
    scores = _both(rank, of_prompts, {**shape, "kv_len": keys[1]})
    for (what, batch, runs), cols in zip(scores, keys, strict=True):
        yield what.replace("attention", "indexer scores"), batch, runs
        rows = batch["batch"] * batch["q_len"]
        yield what.replace("attention", "selection"), _chosen(rows, np.maximum(cols, 1), indexer.selected), runs


def _chosen(rows: np.ndarray, cols: np.ndarray, selected: int) -> KernelBatch:
    """The largest of float32 scores; their positions are written."""
    return KernelBatch.from_columns(
        "row_reduction",
        op="topk",
        rows=rows,
        cols=cols,
        read_bytes=4 * rows * cols,
        write_bytes=4 * rows * np.minimum(cols, selected),
        flops=operator("row_reduction", "topk").flops * rows * cols,
        dtype="float32",
    )


def _compressed(mixer: CompressedAttention, rank: Rank) -> Iterator[Made]:
    """DeepSeek-V4's: compressed keys count as selected ones behind the window, on average over the queries."""
    tp = rank.sharding.tp
    heads, groups = mixer.local_heads(tp), mixer.groups // tp
    parts = {p.what: p for p in mixer.projections(rank.hidden, tp)}
    yield rank.projected(parts["latent"])
    yield rank.projected(parts["query up"])
    for what, width in (("query norm", mixer.q_rank), ("key norm", mixer.head_dim)):
        yield what, rank.rows("rms_norm", rank.tokens, width), rank.runs
    yield from _rotated(rank, (heads + 1) * mixer.rope_dim, mixer.head_dim)
    if mixer.ratio:
        yield rank.projected(parts["compressor"])
    if mixer.indexer:
        yield from _indexed(mixer.indexer, rank, parts, mixer.ratio)
    shape = {"heads": heads, "kv_heads": 1, "head_dim": mixer.head_dim, "value_dim": mixer.head_dim, "shared_kv": True}
    middle = rank.prompt_context - rank.prompt_tokens // 2
    yield from _both(rank, {**shape, **_seen(mixer, middle)}, {**shape, **_seen(mixer, rank.decode_context)})
    down = parts["output down"]
    yield down.what, _per_head(rank, groups, rank.tokens, (down.n // groups, down.k)), rank.runs
    yield rank.projected(parts["output"])


def _seen(mixer: CompressedAttention, context: np.ndarray) -> dict[str, Any]:
    """Keys that a query sees of so many tokens: those of the window, and of the compressed ones the chosen or all."""
    if not mixer.ratio:
        return {"window": mixer.window}
    far = -(-context // mixer.ratio)
    return {"selected": mixer.window + (np.minimum(far, mixer.indexer.selected) if mixer.indexer else far)}


CHUNK = 64
"""Tokens of a chunk of gated DeltaNet (flash-linear-attention, ``chunk_gated_delta_rule``)."""
SCAN_CHUNK = 256
"""Tokens of a chunk of Mamba-2 (mamba_ssm's default; Nemotron-H states 128)."""


def _linear(mixer: LinearAttention, rank: Rank) -> Iterator[Made]:
    """Convolution, then prompts in chunks (Yang et al. 2025, section 3.3) and decodes one step of the state each.

    A chunk of C tokens multiplies C² (3 d_k + 2 d_v) + 3 C d_k d_v times a head: two products of keys, two through the
    triangular inverse, one with the scores, and three with the state.
    """
    keys, values, heads = mixer.widths(rank.sharding.tp)
    qkvz, decay, output = mixer.projections(rank.hidden, rank.sharding.tp)
    yield rank.projected(qkvz)
    yield rank.projected(decay)
    yield "convolution", _convolution(rank, 2 * keys + values, mixer.conv), rank.runs
    d_k, d_v = mixer.key_dim, mixer.value_dim
    depth = round((CHUNK * (3 * d_k + 2 * d_v) + 3 * d_k * d_v) / d_v)
    chunks = rank.prompts * -(-rank.prompt_tokens // CHUNK)
    yield "chunks of prompts", _chunked(rank, chunks * heads, (CHUNK, d_v, depth)), rank.prompt_runs
    yield "state of decodes", _stepped(rank, mixer), rank.decode_runs
    yield "gated norm", rank.rows("rms_norm", rank.tokens * heads, d_v, more_read=1), rank.runs
    yield rank.projected(output)


def _state_space(mixer: StateSpace, rank: Rank) -> Iterator[Made]:
    """Convolution, then prompts in chunks (Dao and Gu 2024, section 6) and decodes one step of the state each.

    A chunk of C tokens multiplies C² p + 2 C p s times a head of p values with a state of s, and C² s times a group.
    """
    inner, grouped, heads = mixer.widths(rank.sharding.tp)
    into, output = mixer.projections(rank.hidden, rank.sharding.tp)
    yield rank.projected(into)
    yield "convolution", _convolution(rank, inner + 2 * grouped, mixer.conv), rank.runs
    scores = SCAN_CHUNK * grouped / (heads * mixer.head_dim)
    depth = round(SCAN_CHUNK + 2 * mixer.state + scores)
    chunks = rank.prompts * -(-rank.prompt_tokens // SCAN_CHUNK)
    shape = (SCAN_CHUNK, mixer.head_dim, depth)
    yield "chunks of prompts", _chunked(rank, chunks * heads, shape), rank.prompt_runs
    yield "state of decodes", _stepped(rank, mixer), rank.decode_runs
    yield "gated norm", rank.rows("rms_norm", rank.tokens, inner, more_read=1), rank.runs
    yield rank.projected(output)


def _chunked(rank: Rank, batch: np.ndarray, shape: tuple[int, int, int]) -> KernelBatch:
    """All products of chunks as one of the same FLOP: (m, n, k)."""
    m, n, k = shape
    return KernelBatch.from_columns(
        "gemm", op="bmm", layout="nn", batch=np.maximum(batch, 1), m=m, n=n, k=k, dtype=rank.dtype
    )


def _convolution(rank: Rank, channels: int, taps: int) -> KernelBatch:
    """A causal convolution of each channel by itself, and silu: streams its input once."""
    batch = rank.pointwise("silu", rank.tokens, channels)
    return KernelBatch("elementwise", {**batch.columns, "flops": batch["flops"] + 2 * taps * batch["elements"]})


def _stepped(rank: Rank, mixer: LinearAttention | StateSpace) -> KernelBatch:
    """One step of the states of sequences that generate: read, decayed, added to, read out, written."""
    rows, state = np.maximum(rank.decodes, 1), mixer.state_elements(rank.sharding.tp)
    kept = rows * int(mixer.state_bytes(rank.sharding.tp))
    return KernelBatch.from_columns(
        "elementwise", op="mul", elements=rows * state, read_bytes=kept, write_bytes=kept, flops=6 * rows * state,
        dtype=mixer.state_dtype,
    )  # fmt: skip
