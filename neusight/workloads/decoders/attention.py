"""Attention from the normalised residual stream to its output: self-attention and latent attention, in training and
over a cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from neusight.kernels.families import KernelBatch
from neusight.workloads.decoders.cores import CORE_MODULE, Heads, core
from neusight.workloads.decoders.layers import CrossAttention, Indexer, LatentAttention, Projection, SelfAttention
from neusight.workloads.decoders.operations import Operation, exchange, move, pointwise, within
from neusight.workloads.decoders.products import entering, leaving, product, product_input, separate
from neusight.workloads.decoders.rank import FLOAT_BYTES, Count, Rank
from neusight.workloads.decoders.stream import normalise
from neusight.workloads.program import HeldWeights, Part, SavedActivation


def self_attention(mixer: SelfAttention, rank: Rank, *, quantised: bool) -> Iterator[Operation]:
    """Operations of self-attention; ``quantised``: the norm before it writes 8 bits.

    Raises:
        ModelError: heads that ranks cannot share evenly.
    """
    heads, kv_heads = mixer.local_heads(rank.tp)
    qkv, output = mixer.projections(rank.hidden, rank.tp)
    tokens, d = rank.tokens, mixer.head_dim
    yield entering(rank, rank.hidden, "attention")
    yield from product(rank, qkv, tokens, quantised=quantised)
    yield Operation(held=(HeldWeights(heads),) if mixer.sinks else ())
    if not rank.serves:
        joins = (_join_gradients(rank, qkv.n, bias=mixer.qkv_bias),) if len(separate(rank, qkv)) == 1 else ()
        yield Operation(backward=joins, saved=tuple(_saved_heads(mixer, rank, qkv)))
    if mixer.qk_norm:
        yield from _head_norms(mixer, rank, heads, kv_heads)
    if not (mixer.qk_norm and rank.engine.generated):
        cached = 2 * kv_heads * d
        turned = (heads + kv_heads) * mixer.rotary
        yield from rotate(rank, (heads * d, kv_heads * d), turned, cached, done=rank.engine.attention_does)
    if rank.serves:
        shape = {"heads": heads, "kv_heads": kv_heads, "head_dim": d, "window": mixer.window}
        yield cached_attention(rank, shape, shape if rank.engine.grouped_queries else shape | {"kv_heads": heads})
    else:
        shared = {"heads": heads, "kv_heads": kv_heads, "head_dim": d, "value_dim": d}
        yield from core(rank, Heads(**shared, window=mixer.window, causal=mixer.causal))
    if mixer.gated:
        yield from _gate(rank, heads * d)
    yield Operation(saved=(product_input(rank, "attention output", tokens * output.k),))
    yield from product(rank, output, tokens)
    yield leaving(rank, rank.hidden, "attention")


def cross_attention(mixer: CrossAttention, rank: Rank) -> Iterator[Operation]:
    """Operations of attention over an encoder's results, which all layers keep once; keys and values are products of
    the source's tokens.

    Raises:
        ModelError: heads that ranks cannot share evenly; no source.
    """
    heads, kv_heads = mixer.local_heads(rank.tp)
    query, keys, output = mixer.projections(rank.hidden, rank.tp)
    source, d = rank.source, mixer.head_dim
    yield entering(rank, rank.hidden, "attention")
    yield from product(rank, query, rank.tokens)
    yield from product(source, keys, source.tokens)
    size = (rank.tokens * query.n + source.tokens * keys.n) * rank.size
    yield Operation(saved=(SavedActivation(name="query, key, value", bytes=size),))
    shared = {"heads": heads, "kv_heads": kv_heads, "head_dim": d, "value_dim": d}
    yield from core(rank, Heads(**shared, causal=False, keys=source.share.length))
    yield Operation(saved=(product_input(rank, "attention output", rank.tokens * output.k),))
    yield from product(rank, output, rank.tokens)
    yield leaving(rank, rank.hidden, "attention")


def _join_gradients(rank: Rank, width: int, *, bias: bool) -> Part:
    """Join the gradients of queries, keys and values, with that of their bias where kernels are generated."""
    size = rank.tokens * width * rank.size
    if bias and rank.engine.generated:
        return rank.reduce("qkv join gradients", "sum", (width, rank.tokens), size, size + width * rank.size)
    return rank.copy("qkv join gradients", rank.tokens, width, op="cat")


def _saved_heads(mixer: SelfAttention, rank: Rank, qkv: Projection) -> Iterator[SavedActivation]:
    if mixer.qk_norm:
        elements = rank.tokens * sum(qkv.parts[:2])
        yield SavedActivation(name="query and key before their norm", bytes=elements * rank.size)
    yield SavedActivation(name="query, key, value", bytes=rank.tokens * qkv.n * rank.size)
    if mixer.rotary and mixer.stored != "apart" and not rank.engine.joined_projections:
        # Values are a part of the product's result, which is kept whole for them.
        yield SavedActivation(name="rotated query and key", bytes=rank.tokens * sum(qkv.parts[:2]) * rank.size)


def _head_norms(mixer: SelfAttention, rank: Rank, heads: int, kv_heads: int) -> Iterator[Operation]:
    """Norms of queries and of keys: each head as a row, or all as one, for which ranks that serve first add up sums of
    squares of both (vLLM, ``MiniMaxText01RMSNormTP.forward_qk``).
    """
    if mixer.qk_norm == "all" and rank.serves:
        yield exchange(rank, "reduce squares", "all_reduce", "tp", 2 * FLOAT_BYTES * rank.tokens)
    for name, count in (("query norm", heads), ("key norm", kv_heads)):
        rows, cols = (count, mixer.head_dim) if mixer.qk_norm == "head" else (1, count * mixer.head_dim)
        yield normalise(rank, name, mixer.qk_norm_op, (rank.tokens * rows, cols), weights=mixer.qk_norm_weights)


def rotate(rank: Rank, widths: tuple[int, ...], rotary: int, cached: int, *, done: str = "") -> Iterator[Operation]:
    """Rotate queries and keys by their positions; in serving, write keys and values into the cache.

    Args:
        rank: on which.
        widths: values of queries and of keys of a token, for engines that turn each in a pass of its own.
        rotary: values that turn, for those that turn all at once; 0 turns nothing.
        cached: values of a token that the cache keeps.
        done: what attention does of it, as ``Engine.attention_does``.
    """
    op = "rotary" if rank.engine.rotary == "fused" else "rotary_complex"
    if rank.serves:
        if rotary and done != "rotate":
            yield pointwise(rank, "rope", "rope", rank.tokens, rotary)
        if rank.engine.grown_cache:
            yield Operation(forward=tuple(rank.grown(f"{values} cache", cached // 2) for values in ("key", "value")))
        elif not (done or (rank.engine.fused_cache_write and rotary)):
            yield Operation(forward=(rank.write_cache("cache write", cached),))
    elif rotary and rank.engine.generated and len(set(widths)) == 1:
        # Loops of the same length over the same angles are one.
        elements = rank.tokens * widths[0]
        yield move(rank.sweep("rope", op, elements, 2 * elements * rank.size, 2 * elements * rank.size))
    elif rotary:
        for width in widths:
            yield pointwise(rank, "rope", op, rank.tokens, width)


def _gate(rank: Rank, width: int) -> Iterator[Operation]:
    """Output times the sigmoid of its gate."""
    yield pointwise(rank, "output gate", "mul" if rank.serves else "glu", rank.tokens, width)
    size = rank.tokens * width * rank.size
    yield Operation(saved=(SavedActivation(name="attention before its gate", bytes=size),))


def cached_attention(
    rank: Rank, of_prompts: dict[str, Any], of_decodes: dict[str, Any], name: str = "attention"
) -> Operation:
    """Attention of prompts and of decodes, which differ in these fields; causal, over the cache.

    Tokens of a decode share its keys as heads of a group do, and share their blocks (FlashAttention's ``pack_gqa``, the
    XQA kernels of TensorRT-LLM): heads are multiplied by their number.
    """
    passes = rank.passes
    assert passes is not None
    kv_dtype = "" if passes.kv_dtype == rank.dtype else passes.kv_dtype
    common: dict[str, Any] = {"causal": True, "dtype": rank.dtype, "kv_dtype": kv_dtype}
    prompts: dict[str, Any] = {"batch": passes.prompts, "q_len": passes.prompt_tokens, "kv_len": passes.prompt_context}
    decodes: dict[str, Any] = {
        "batch": passes.decodes,
        "q_len": np.ones_like(passes.decodes),
        "kv_len": passes.decode_context,
    }
    verified = {"heads": of_decodes["heads"] * passes.decode_tokens}
    made = []
    for which, fields, runs in (
        ("prompts", common | prompts | of_prompts, passes.prompt_runs),
        ("decodes", common | decodes | of_decodes | verified, passes.decode_runs),
    ):
        fields |= {field: np.maximum(fields[field], 1) for field in ("batch", "q_len", "kv_len")}
        if which == "prompts" and rank.engine.writes_scores:
            made += [replace(part, runs=runs, modules=CORE_MODULE) for part in _written_out(rank, name, fields)]
        else:
            made.append(rank.part(f"{name} of {which}", KernelBatch.from_columns("attention", **fields), runs))
    return Operation(forward=tuple(made))


def _written_out(rank: Rank, name: str, fields: dict[str, Any]) -> Iterator[Part]:
    """Attention of prompts as products of all scores, masked or not, with a softmax between them."""
    heads = fields["batch"] * fields["heads"]
    queries, keys, d = fields["q_len"], fields["kv_len"], fields["head_dim"]
    size = rank.size * heads * queries * keys

    def product_of(n: Count, k: Count, layout: str) -> Part:
        columns = {"batch": heads, "m": queries, "n": n, "k": k, "layout": layout, "dtype": rank.dtype}
        return rank.part(f"{name} of prompts", KernelBatch.from_columns("gemm", op="bmm", **columns))

    yield product_of(keys, d, "tn")
    yield rank.reduce(f"{name} softmax", "softmax", (heads * queries, keys), size, size)
    yield product_of(fields.get("value_dim", 0) or d, keys, "nn")


def latent_attention(mixer: LatentAttention, rank: Rank) -> Iterator[Operation]:
    """Down to latents, norms, queries up, rotation, then attention: expanded keys and values of each head in training
    and for prompts, absorbed ones for decodes (DeepSeek-V2, section 2.1).

    Every rank has the matrices down to latent widths and works with them on its own part of the residual stream: what
    tensor-parallel ranks gather and scatter is the latent (Megatron Core, ``MLASelfAttention``).
    """
    heads = mixer.local_heads(rank.tp)
    parts = {p.name: p for p in mixer.projections(rank.hidden, rank.tp)}
    rows = rank.resident_tokens
    for name in ("query", "latent"):
        if name in parts:
            yield from _down(rank, parts[name])
    latents = {"query norm": mixer.q_rank, "key norm": mixer.kv_rank}
    if rank.engine.joined_latent_norms:
        latents = {"latent norms": mixer.q_rank + mixer.kv_rank}
    for name, width in latents.items():
        if mixer.normed and width:
            yield normalise(rank, name, "rms_norm", (rows, width), weights=1)
    yield entering(rank, mixer.q_rank + mixer.latent_dim, "attention", "latent")
    if mixer.q_rank:
        yield from within("mla_up_proj", product(rank, parts["query up"], rank.tokens))
    if not rank.serves:
        yield from within("mla_up_proj", product(rank, parts["key value up"], rank.tokens))
    # What no product of its own holds: absorbed into others, or of an indexer that is not run.
    apart = [p for name, p in parts.items() if (name == "key value up" if rank.serves else name.startswith("indexer"))]
    matrices = [weights for p in apart for weights in p.held] if mixer.indexer else []
    yield Operation(held=(*matrices, HeldWeights(mixer.vectors - mixer.normed * mixer.latents)))
    widths = heads * mixer.rope_dim, mixer.rope_dim
    yield from within("mla_up_proj", rotate(rank, widths, sum(widths), mixer.latent_dim))
    yield from _cached_latent(mixer, rank, heads, parts) if rank.serves else _expand(mixer, rank, heads, parts)
    yield Operation(saved=(product_input(rank, "attention output", rank.tokens * parts["output"].k),))
    yield from product(rank, parts["output"], rank.tokens)
    yield leaving(rank, rank.hidden, "attention")


def _down(rank: Rank, projection: Projection) -> Iterator[Operation]:
    """Down to latent widths on the rank's own rows; queries without a latent are column-parallel."""
    if projection.name == "latent":
        yield from product(rank, projection, rank.resident_tokens)
        return
    yield entering(rank, rank.hidden, "attention")
    yield from product(rank, projection, rank.tokens)


def _expand(mixer: LatentAttention, rank: Rank, heads: int, parts: dict[str, Projection]) -> Iterator[Operation]:
    """Join queries and keys of parts with and without positions, and split their gradients again.

    Kept are latents as they go into the products that expand them, and before their norms, each rank's own rows, and
    queries, keys and values as attention takes them: put together anew, so that what products gave is dropped
    (Megatron Core, ``MultiLatentAttention.forward``, ``contiguous``).
    """
    d, tokens = mixer.nope_dim + mixer.rope_dim, rank.tokens
    latents = rank.resident_tokens * mixer.latents
    for name in ("queries join", "keys join"):
        yield from within("mla_up_proj", (move(rank.copy(name, tokens, heads * d, op="cat")),))
    yield Operation(
        unbuilt="training of sparse attention is not built: self-attention and latent attention are"
        if mixer.indexer
        else "",
        saved=(
            SavedActivation(name="latent before its norm", bytes=mixer.normed * latents * rank.size),
            product_input(rank, "latent", latents),
        ),
    )
    joined = SavedActivation(name="query, key, value", bytes=tokens * heads * (2 * d + mixer.value_dim) * rank.size)
    yield from within("mla_up_proj", (Operation(saved=(joined,)),))
    yield from core(rank, Heads(heads=heads, kv_heads=heads, head_dim=d, value_dim=mixer.value_dim))


def _cached_latent(mixer: LatentAttention, rank: Rank, heads: int, parts: dict[str, Projection]) -> Iterator[Operation]:
    passes = rank.passes
    assert passes is not None
    if mixer.indexer:
        yield from select_keys(mixer.indexer, rank, parts)
    absorbed = {
        "heads": heads, "kv_heads": 1, "head_dim": mixer.latent_dim, "value_dim": mixer.kv_rank, "shared_kv": True,
        "selected": mixer.indexer.selected if mixer.indexer else 0,
    }  # fmt: skip
    expanded = {"heads": heads, "kv_heads": heads, "value_dim": mixer.value_dim, "kv_dtype": ""}
    expanded["head_dim"] = mixer.nope_dim + mixer.rope_dim
    sparse = mixer.indexer is not None
    rows, runs = (rank.tokens, rank.runs) if sparse else (passes.new_decodes, passes.decode_runs)
    yield per_head(rank, "query into latent", rows, (heads, mixer.kv_rank, mixer.nope_dim), runs)
    if not sparse:
        rows_up = passes.prompts * passes.prompt_context
        yield from product(rank, parts["key value up"], rows_up, runs=passes.prompt_runs)
    yield cached_attention(rank, absorbed if sparse else expanded, absorbed)
    yield per_head(rank, "value out of latent", rows, (heads, mixer.value_dim, mixer.kv_rank), runs)


def per_head(rank: Rank, name: str, rows: Count, shape: tuple[int, int, int], runs: Any = None) -> Operation:
    """A product of (heads, n, k) in serving, in the model's own dtype unless the engine has it in 8 bits."""
    (heads, n, k), rows, scaling = shape, np.maximum(rows, 1), rank.engine.absorbed_scaling
    how: dict[str, Any] = {"layout": "nn", "dtype": rank.dtype}
    if scaling and rank.quantisation.of("attention").activations == "float8":
        how = {"layout": "tn", "dtype": "float8", "scaling": scaling, "quantised": True}
    batch = KernelBatch.from_columns("gemm", op="bmm", batch=heads, m=rows, n=n, k=k, **how)
    return Operation(forward=(rank.part(name, batch, runs),))


def select_keys(indexer: Indexer, rank: Rank, parts: dict[str, Projection], ratio: int = 1) -> Iterator[Operation]:
    """Scores of an indexer in float8 over a separate cache, and the selection of the best; keys of ``ratio`` tokens
    each.
    """
    passes = rank.passes
    assert passes is not None
    for name in ("indexer query", "indexer key", "indexer weight"):
        yield from product(rank, parts[name], rank.tokens)
    yield Operation(forward=(rank.write_cache("indexer cache write", indexer.head_dim),))
    shape = {"op": "indexer", "heads": indexer.heads, "kv_heads": 1, "head_dim": indexer.head_dim}
    shape |= {"dtype": "float8", "kv_dtype": ""}
    keys = [-(-context // ratio) for context in (passes.prompt_context, passes.decode_context)]
    # A compressed key belongs to no query of its own: of all that there are in the end, queries see half the new ones.
    seen = -(-(passes.prompt_context - passes.prompt_tokens // 2) // ratio)
    of_prompts = shape if ratio == 1 else {**shape, "causal": False, "kv_len": seen}
    wide = rank.of(rank.tokens, "float32")
    scored = cached_attention(rank, of_prompts, {**shape, "kv_len": keys[1]}, "indexer scores")
    queries = passes.prompts * passes.prompt_tokens, passes.new_decodes
    for scores, rows, cols in zip(scored.forward, queries, keys, strict=True):
        rows, cols = np.maximum(rows, 1), np.maximum(cols, 1)
        written = 4 * rows * np.minimum(cols, indexer.selected)
        chosen = wide.reduce("selection", "topk", (rows, cols), 4 * rows * cols, written)
        name = scores.name.replace("indexer scores", "selection")
        yield Operation(forward=(scores, rank.part(name, chosen.batch, scores.runs)))
