"""The core of attention, forward and backward: queries, keys and values in, outputs out.

In one kernel scores never reach memory (Dao 2023); written out they do, and drop out there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from neusight.kernels.families import KernelBatch
from neusight.workloads.decoders.context_parallel import shared_attention
from neusight.workloads.decoders.flash import Heads, flash
from neusight.workloads.decoders.operations import Operation, Shape, move, pointwise, product_gradients
from neusight.workloads.decoders.products import selected_values
from neusight.workloads.decoders.rank import FLOAT_BYTES, Rank
from neusight.workloads.program import Part, SavedActivation

CORE_MODULE = ("core_attn",)
"""Module of all operations that selective recomputation runs again."""


def core(rank: Rank, heads: Heads) -> Iterator[Operation]:
    """Attention of the rank's queries.

    Raises:
        ModelError: chunks of shared sequences that are no whole tokens.
    """
    if rank.engine.repeats_keys and heads.kv_heads != heads.heads:
        repeated = rank.tokens * (heads.heads - heads.kv_heads) * (heads.head_dim + heads.value_dim) * rank.size
        saved = (SavedActivation(name="repeated key and value", bytes=repeated),)
        yield replace(move(_repeat_keys(rank, heads)), saved=saved)
        heads = replace(heads, kv_heads=heads.heads)
    for done in shared_attention(rank, heads, _several_kernels if rank.engine.writes_scores else _one_kernel):
        yield replace(done, forward=tuple(replace(part, modules=CORE_MODULE) for part in done.forward))
    output = rank.tokens * heads.heads * heads.value_dim
    yield Operation(saved=(*_saved_values(rank, heads, output), selected_values(rank, "attention output", output)))


def _saved_values(rank: Rank, heads: Heads, output: int) -> Iterator[SavedActivation]:
    """Activations saved for the gradient of Softmax(Q Kᵀ) V: for attention that writes scores out, probabilities,
    dropout's mask and its result, otherwise a normaliser a row. Scores are written in whole rows, for every window.
    """
    engine = rank.engine
    if not engine.writes_scores:
        rows = FLOAT_BYTES * heads.heads * rank.tokens
        yield SavedActivation(name="normaliser", bytes=rows, modules=CORE_MODULE)
        if engine.attention == "flash" and engine.sequence_first:
            yield SavedActivation(name="attention output by sequence", bytes=output * rank.size, modules=CORE_MODULE)
        return
    scores = float(heads.heads * rank.tokens * (heads.keys or rank.share.seq_len))
    yield SavedActivation(name="probabilities", bytes=engine.probability_bytes * scores, modules=CORE_MODULE)
    if engine.attention_dropout:
        yield SavedActivation(name="attention dropout mask", bytes=scores, modules=CORE_MODULE)
        yield SavedActivation(name="probabilities let through", bytes=rank.size * scores, modules=CORE_MODULE)


def _one_kernel(rank: Rank, heads: Heads) -> Iterator[Operation]:
    """Attention in one kernel."""
    length = rank.share.length
    yield flash(rank, heads, (length, heads.keys or length), causal=heads.causal)


def _several_kernels(rank: Rank, heads: Heads) -> Iterator[Operation]:
    """Two batches of products with a masked softmax between them (Megatron-LM, ``DotProductAttention``).

    The kernel of the softmax reads what lies below the diagonal alone and writes zeros above it
    (``scaled_upper_triang_masked_softmax``); products compute all scores.
    """
    share, d, v = rank.share, heads.head_dim, heads.value_dim
    length, keys, queries = share.length, heads.keys or share.length, share.batch * heads.heads
    scores_bytes = float(heads.heads * rank.tokens * (heads.keys or share.seq_len) * rank.size)
    if heads.heads != heads.kv_heads:
        yield move(_repeat_keys(rank, heads))
    yield _head_product(rank, "scores", queries, (length, keys, d), "tn")
    yield _softmax(rank, queries * length, keys, causal=heads.causal)
    if rank.engine.attention_dropout:
        yield pointwise(rank, "probabilities dropout", "dropout", queries * length, keys)
    yield _head_product(rank, "values", queries, (length, v, keys), "nn")
    yield move(rank.copy("outputs copy", queries * length, v))
    yield Operation(
        widest_bytes=2.0 * scores_bytes,
        workspace_bytes=scores_bytes if rank.engine.score_buffer else 0.0,
    )


def _head_product(rank: Rank, name: str, batch: int, shape: Shape, layout: str) -> Operation:
    """Batched product, one for every head, with both of its gradients."""

    def part(shape: Shape, layout: str) -> Part:
        m, n, k = shape
        columns = {"batch": batch, "m": m, "n": n, "k": k, "layout": layout, "dtype": rank.dtype}
        return rank.part(name, KernelBatch.from_columns("gemm", op="bmm", **columns))

    gradients = product_gradients(shape, layout)
    return Operation(forward=(part(shape, layout),), backward=tuple(part(*gradient) for gradient in gradients))


def _softmax(rank: Rank, rows: int, length: int, *, causal: bool) -> Operation:
    """Softmax of rows that see from one to ``length`` keys, or all of them."""
    written = rank.size * rows * length
    read = rank.size * (rows * (length + 1) // 2) if causal else written
    return Operation(
        forward=(rank.reduce("softmax", "softmax", (rows, length), read, written),),
        backward=(rank.reduce("softmax", "softmax_backward", (rows, length), 2 * read, written),),
    )


def _repeat_keys(rank: Rank, heads: Heads) -> Part:
    """Repeat keys and values for every head of queries, where several heads share them."""
    stored, made = heads.kv_width, heads.heads * (heads.head_dim + heads.value_dim)
    tokens = rank.share.batch * heads.keys if heads.keys else rank.share.tokens
    return rank.move("keys repeat", "copy", tokens * made, tokens * stored * rank.size, tokens * made * rank.size)
