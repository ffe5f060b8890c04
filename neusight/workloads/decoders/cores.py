"""The core of attention, forward and backward: queries, keys and values in, outputs out.

In one kernel scores never reach memory (Dao 2023); written out they do, and drop out there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from neusight.kernels.families import KernelBatch
from neusight.workloads.decoders.context_parallel import shared_attention
from neusight.workloads.decoders.flash import Heads, flash
from neusight.workloads.decoders.operations import Operation, Shape, moved, pointwise, product_gradients
from neusight.workloads.decoders.products import given
from neusight.workloads.decoders.rank import FLOAT_BYTES, Rank
from neusight.workloads.program import Part, SavedActivation

CORE_MODULE = ("core_attn",)
"""Of all that selective recomputation runs again."""


def core(rank: Rank, heads: Heads) -> Iterator[Operation]:
    """Attention of the rank's queries.

    Raises:
        ModelError: chunks of shared sequences that are no whole tokens.
    """
    if rank.engine.repeats_keys and heads.kv_heads != heads.heads:
        repeated = rank.tokens * (heads.heads - heads.kv_heads) * (heads.head_dim + heads.value_dim) * rank.size
        saved = (SavedActivation(name="repeated key and value", bytes=repeated),)
        yield replace(moved(_repeated(rank, heads)), saved=saved)
        heads = replace(heads, kv_heads=heads.heads)
    for done in shared_attention(rank, heads, _unfused if rank.engine.writes_scores else _fused):
        yield replace(done, forward=tuple(replace(part, modules=CORE_MODULE) for part in done.forward))
    output = rank.tokens * heads.heads * heads.value_dim
    yield Operation(saved=(*_saved(rank, heads, output), given(rank, "attention output", output)))


def _saved(rank: Rank, heads: Heads, output: int) -> Iterator[SavedActivation]:
    """Softmax(Q Kᵀ) V: of attention that writes scores out probabilities, dropout's mask and what it lets through, of
    others a normaliser a row. Scores are written in whole rows, whatever a window lets a query see.
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


def _fused(rank: Rank, heads: Heads) -> Iterator[Operation]:
    """One kernel."""
    length = rank.share.length
    yield flash(rank, heads, (length, heads.keys or length), causal=heads.causal)


def _unfused(rank: Rank, heads: Heads) -> Iterator[Operation]:
    """Two batches of products with a masked softmax between them (Megatron-LM, ``DotProductAttention``).

    The kernel of the softmax reads what lies below the diagonal alone and writes zeros above it
    (``scaled_upper_triang_masked_softmax``); products compute all scores.
    """
    share, d, v = rank.share, heads.head_dim, heads.value_dim
    length, keys, queries = share.length, heads.keys or share.length, share.batch * heads.heads
    scores_bytes = float(heads.heads * rank.tokens * (heads.keys or share.seq_len) * rank.size)
    if heads.heads != heads.kv_heads:
        yield moved(_repeated(rank, heads))
    yield _batched(rank, "scores", queries, (length, keys, d), "tn")
    yield _softmax(rank, queries * length, keys, causal=heads.causal)
    if rank.engine.attention_dropout:
        yield pointwise(rank, "probabilities dropout", "dropout", queries * length, keys)
    yield _batched(rank, "values", queries, (length, v, keys), "nn")
    yield moved(rank.copied("outputs copy", queries * length, v))
    yield Operation(
        widest_bytes=2.0 * scores_bytes,
        workspace_bytes=scores_bytes if rank.engine.score_buffer else 0.0,
    )


def _batched(rank: Rank, name: str, batch: int, shape: Shape, layout: str) -> Operation:
    """A product of every head, and both of its gradients."""

    def part(shape: Shape, layout: str) -> Part:
        m, n, k = shape
        columns = {"batch": batch, "m": m, "n": n, "k": k, "layout": layout, "dtype": rank.dtype}
        return rank.part(name, KernelBatch.from_columns("gemm", op="bmm", **columns))

    gradients = product_gradients(shape, layout)
    return Operation(forward=(part(shape, layout),), backward=tuple(part(*each) for each in gradients))


def _softmax(rank: Rank, rows: int, length: int, *, causal: bool) -> Operation:
    """Of rows that see from one to ``length`` keys, or all of them."""
    written = rank.size * rows * length
    read = rank.size * (rows * (length + 1) // 2) if causal else written
    return Operation(
        forward=(rank.reduced("softmax", "softmax", (rows, length), read, written),),
        backward=(rank.reduced("softmax", "softmax_backward", (rows, length), 2 * read, written),),
    )


def _repeated(rank: Rank, heads: Heads) -> Part:
    """Keys and values once for every head of queries, where those share them."""
    kept, made = heads.kv_width, heads.heads * (heads.head_dim + heads.value_dim)
    tokens = rank.share.batch * heads.keys if heads.keys else rank.share.tokens
    return rank.moved("keys repeat", "copy", tokens * made, tokens * kept * rank.size, tokens * made * rank.size)
