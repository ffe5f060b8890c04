"""The core of attention, forward and backward: queries, keys and values in, outputs out.

In one kernel scores never reach memory (Dao 2023); written out they do, and drop out there. Ranks that share sequences
each have a chunk from the front and one from the back, so that all see equally many keys (Liu et al. 2023; Transformer
Engine, ``AttnFuncWithCPAndKVP2P``; Llama 3, section 3.3.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from neusight.errors import ModelError
from neusight.kernels.families import KernelBatch
from neusight.kernels.operators import ELEMENTWISE, ROW_REDUCTION
from neusight.workloads.decoders.operations import Operation, Shape, exchanged, moved, pointwise, product_gradients
from neusight.workloads.decoders.products import given
from neusight.workloads.decoders.rank import FLOAT_BYTES, Rank
from neusight.workloads.program import Part, SavedActivation

CORE = ("attention", "delta", "scores", "softmax", "probabilities dropout", "values", "keys repeat", "outputs copy")
"""What parts of the core are called: those that selective recomputation runs again."""

CORE_MODULE = ("core_attn",)


@dataclass(frozen=True, kw_only=True)
class Heads:
    """A rank's heads: ``head_dim`` of queries and keys, ``value_dim`` of values; ``window`` 0 sees all before.

    ``keys`` of each sequence are another's, 0 for those of its own tokens; not ``causal``: all are seen.
    """

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    window: int = 0
    causal: bool = True
    keys: int = 0

    @property
    def kv_width(self) -> int:
        """Keys and values of a token."""
        return self.kv_heads * (self.head_dim + self.value_dim)


def core(rank: Rank, heads: Heads) -> Iterator[Operation]:
    """Attention of the rank's queries.

    Raises:
        ModelError: chunks of shared sequences that are no whole tokens.
    """
    for done in _unfused(rank, heads) if rank.engine.writes_scores else _fused(rank, heads):
        yield replace(
            done, forward=tuple(replace(part, modules=CORE_MODULE * (part.name in CORE)) for part in done.forward)
        )
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
    """One kernel of a rank that has whole sequences, else several with what ranks exchange."""
    share = rank.share
    if share.cp == 1:
        return iter((_flash(rank, heads, (share.length, heads.keys or share.length), causal=heads.causal),))
    if not heads.causal:
        return iter((Operation(unbuilt=f"attention that sees all is not shared by cp = {share.cp} ranks: cp = 1 is"),))
    _check_chunks(share.seq_len, 2 * share.cp)
    passes_on = rank.engine.context == "ring" and not heads.window
    return _ring(rank, heads) if passes_on else _gathered(rank, heads)


def _check_chunks(seq_len: int, chunks: int) -> None:
    """Raises:
    ModelError: a sequence that cannot be cut into so many.
    """
    if seq_len % chunks:
        raise ModelError(
            f"seq_len = {seq_len} cannot be cut into {chunks} chunks, two for each of cp = {chunks // 2} ranks: choose "
            f"{-(-seq_len // chunks) * chunks}"
        )


def _flash(rank: Rank, heads: Heads, lengths: tuple[int, int], *, causal: bool = True, runs: int = 1) -> Operation:
    """One kernel over (queries, keys) of each sequence; back, row sums of gradient times output come first (Dao 2023,
    algorithm 2).
    """
    shape = {
        "batch": rank.share.batch, "heads": heads.heads, "kv_heads": heads.kv_heads, "q_len": lengths[0],
        "kv_len": lengths[1], "head_dim": heads.head_dim, "causal": causal, "window": heads.window,
        "value_dim": heads.value_dim if heads.value_dim != heads.head_dim else 0, "dtype": rank.dtype,
    }  # fmt: skip
    rows = rank.share.batch * heads.heads * lengths[0]
    elements = rows * heads.value_dim
    delta = KernelBatch.from_columns(
        "row_reduction", op="sum", rows=rows, cols=heads.value_dim, read_bytes=2 * rank.size * elements,
        write_bytes=FLOAT_BYTES * rows, flops=(ELEMENTWISE["mul"].flops + ROW_REDUCTION["sum"].flops) * elements,
        dtype=rank.dtype,
    )  # fmt: skip
    forward, backward = (
        rank.part("attention", KernelBatch.from_columns("attention", op=op, **shape), runs)
        for op in ("forward", "backward")
    )
    sums = replace(rank.part("delta", delta, runs), further=True)
    return Operation(forward=(forward,), backward=(sums, backward))


def _ring(rank: Rank, heads: Heads) -> Iterator[Operation]:
    """The rank's own keys first, causal; then those of others as they come, of which half the pairs are seen.

    A rank of the front has half its queries on all keys of a later step, one of the back all queries on half of them:
    the second stands for both. Keys come beside the attention of those before; their gradients go along.
    """
    length, rows, steps = rank.share.length, rank.share.tokens, rank.share.cp - 1

    def passed_on(name: str, runs: int) -> tuple[Part, ...]:
        size = rows * heads.kv_width * rank.size
        return rank.exchanged(name, "send_recv", "cp", size, overlapped=True, runs=runs)

    keys = passed_on("pass keys on", steps)
    yield Operation(forward=keys, backward=(*keys, *passed_on("pass gradients of keys on", steps + 1)))
    yield _flash(rank, heads, (length, length))
    yield _flash(rank, heads, (length, length // 2), causal=False, runs=steps)
    yield Operation(
        forward=(rank.pointwise("attention merge", "lerp", rows, heads.heads * heads.value_dim, runs=steps),),
        backward=(
            rank.pointwise("add gradients of queries", "add", rows, heads.heads * heads.head_dim, runs=steps),
            rank.pointwise("add gradients of keys", "add", rows, heads.kv_width, runs=steps),
        ),
    )


def _gathered(rank: Rank, heads: Heads) -> Iterator[Operation]:
    """All keys at every rank, then its two chunks of queries: of the first rank, which has the ends of the sequence."""
    share, chunk = rank.share, rank.share.length // 2
    size = share.batch * share.seq_len * heads.kv_width * rank.size
    yield exchanged(rank, "gather keys", "all_gather", "cp", size)
    yield _flash(rank, heads, (chunk, chunk))
    yield _flash(rank, heads, (chunk, share.seq_len))


def _unfused(rank: Rank, heads: Heads) -> Iterator[Operation]:
    """Two batches of products with a masked softmax between them (Megatron-LM, ``DotProductAttention``).

    The kernel of the softmax reads what lies below the diagonal alone and writes zeros above it
    (``scaled_upper_triang_masked_softmax``); products compute all scores.
    """
    share, d, v = rank.share, heads.head_dim, heads.value_dim
    length, keys, queries = share.length, heads.keys or share.length, share.batch * heads.heads
    shared = f"{rank.engine.name} writes scores out, which cp = {share.cp} ranks cannot share: choose cp = 1"
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
        unbuilt=shared if share.cp > 1 else "",
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
