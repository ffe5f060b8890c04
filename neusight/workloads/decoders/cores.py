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
from neusight.workloads.decoders.operations import Operation
from neusight.workloads.decoders.products import given
from neusight.workloads.decoders.rank import FLOAT_BYTES, Rank
from neusight.workloads.program import Part, SavedActivation

CORE = ("attention", "delta", "scores", "softmax", "probabilities dropout", "values", "keys repeat", "outputs copy")
"""What parts of the core are called: those that selective recomputation runs again."""


@dataclass(frozen=True, kw_only=True)
class Heads:
    """A rank's heads: ``head_dim`` of queries and keys, ``value_dim`` of values; ``window`` 0 sees all before."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    window: int = 0

    @property
    def kv_width(self) -> int:
        """Keys and values of a token."""
        return self.kv_heads * (self.head_dim + self.value_dim)


def core(rank: Rank, heads: Heads) -> Operation:
    """Causal attention of the rank's queries.

    Raises:
        ModelError: chunks of shared sequences that are no whole tokens.
    """
    done = _unfused(rank, heads) if rank.engine.writes_scores else _fused(rank, heads)
    output = rank.tokens * heads.heads * heads.value_dim
    forward = tuple(replace(part, attention_core=part.name in CORE) for part in done.forward)
    return replace(done, forward=forward, saved=(*_saved(rank, heads, output), given(rank, "attention output", output)))


def _saved(rank: Rank, heads: Heads, output: int) -> Iterator[SavedActivation]:
    """Softmax(Q Kᵀ) V: of attention that writes scores out probabilities, dropout's mask and what it lets through, of
    others a normaliser a row. Scores are written in whole rows, whatever a window lets a query see.
    """
    engine = rank.engine
    if not engine.writes_scores:
        rows = FLOAT_BYTES * heads.heads * rank.tokens
        yield SavedActivation(name="normaliser", bytes=rows, attention_core=True)
        if engine.attention == "flash" and engine.sequence_first:
            yield SavedActivation(name="attention output by sequence", bytes=output * rank.size, attention_core=True)
        return
    scores = float(heads.heads * rank.tokens * rank.share.seq_len)
    yield SavedActivation(name="probabilities", bytes=engine.probability_bytes * scores, attention_core=True)
    if engine.attention_dropout:
        yield SavedActivation(name="attention dropout mask", bytes=scores, attention_core=True)
        yield SavedActivation(name="probabilities let through", bytes=rank.size * scores, attention_core=True)


def _fused(rank: Rank, heads: Heads) -> Operation:
    """One kernel of a rank that has whole sequences, else several with what ranks exchange."""
    if rank.share.cp == 1:
        length = rank.share.length
        return Operation(
            forward=(_flash(rank, heads, "forward", (length, length)),),
            backward=_flash_backward(rank, heads, (length, length)),
        )
    _check_chunks(rank.share.seq_len, 2 * rank.share.cp)
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


def _flash(rank: Rank, heads: Heads, op: str, lengths: tuple[int, int], *, causal: bool = True, runs: int = 1) -> Part:
    """One kernel over (queries, keys) of each sequence."""
    batch = KernelBatch.from_columns(
        "attention", op=op, batch=rank.share.batch, heads=heads.heads, kv_heads=heads.kv_heads, q_len=lengths[0],
        kv_len=lengths[1], head_dim=heads.head_dim, causal=causal, window=heads.window, dtype=rank.dtype,
        value_dim=heads.value_dim if heads.value_dim != heads.head_dim else 0,
    )  # fmt: skip
    return Part(name="attention", phase="forward", batch=batch, runs=runs)


def _flash_backward(
    rank: Rank, heads: Heads, lengths: tuple[int, int], *, causal: bool = True, runs: int = 1
) -> tuple[Part, ...]:
    """Row sums of gradient times output first (Dao 2023, algorithm 2)."""
    rows = rank.share.batch * heads.heads * lengths[0]
    elements = rows * heads.value_dim
    delta = KernelBatch.from_columns(
        "row_reduction", op="sum", rows=rows, cols=heads.value_dim, read_bytes=2 * rank.size * elements,
        write_bytes=FLOAT_BYTES * rows, flops=(ELEMENTWISE["mul"].flops + ROW_REDUCTION["sum"].flops) * elements,
        dtype=rank.dtype,
    )  # fmt: skip
    return (
        Part(name="delta", phase="backward", batch=delta, runs=runs),
        _flash(rank, heads, "backward", lengths, causal=causal, runs=runs),
    )


def _ring(rank: Rank, heads: Heads) -> Operation:
    """The rank's own keys first, causal; then those of others as they come, of which half the pairs are seen.

    A rank of the front has half its queries on all keys of a later step, one of the back all queries on half of them:
    the second stands for both. Keys come beside the attention of those before; their gradients go along.
    """
    local, steps = rank.share, rank.share.cp - 1
    length = local.length
    lengths = (length, length // 2)
    keys, rows = local.tokens * heads.kv_width, local.tokens
    size = keys * rank.size
    outputs = heads.heads * heads.value_dim
    return Operation(
        forward=(
            *rank.exchanged("pass keys on", "send_recv", "cp", size, overlapped=True, runs=steps),
            _flash(rank, heads, "forward", (length, length)),
            _flash(rank, heads, "forward", lengths, causal=False, runs=steps),
            rank.pointwise("attention merge", "lerp", rows, outputs, runs=steps),
        ),
        backward=(
            *rank.exchanged("pass keys on", "send_recv", "cp", size, overlapped=True, runs=steps),
            *rank.exchanged("pass gradients of keys on", "send_recv", "cp", size, overlapped=True, runs=steps + 1),
            *_flash_backward(rank, heads, (length, length)),
            *_flash_backward(rank, heads, lengths, causal=False, runs=steps),
            rank.pointwise("add gradients of queries", "add", rows, heads.heads * heads.head_dim, runs=steps),
            rank.pointwise("add gradients of keys", "add", rows, heads.kv_width, runs=steps),
        ),
    )


def _gathered(rank: Rank, heads: Heads) -> Operation:
    """All keys at every rank, then its two chunks of queries: of the first rank, which has the ends of the sequence."""
    local = rank.share
    chunk = local.length // 2
    size = local.batch * local.seq_len * heads.kv_width * rank.size
    front, back = (chunk, chunk), (chunk, local.seq_len)
    return Operation(
        forward=(
            *rank.exchanged("gather keys", "all_gather", "cp", size),
            _flash(rank, heads, "forward", front),
            _flash(rank, heads, "forward", back),
        ),
        backward=(
            *_flash_backward(rank, heads, front),
            *_flash_backward(rank, heads, back),
            *rank.exchanged("scatter gradients of keys", "reduce_scatter", "cp", size),
        ),
    )


def _unfused(rank: Rank, heads: Heads) -> Operation:
    """Two batches of products with a masked softmax between them (Megatron-LM, ``DotProductAttention``).

    The kernel of the softmax reads what lies below the diagonal alone and writes zeros above it
    (``scaled_upper_triang_masked_softmax``); products compute all scores.
    """
    shared = f"{rank.engine.name} writes scores out, which cp = {rank.share.cp} ranks cannot share: choose cp = 1"
    length, d, v = rank.share.length, heads.head_dim, heads.value_dim
    queries = rank.share.batch * heads.heads
    rows = queries * length
    repeated = _repeated(rank, heads)
    scores_bytes = float(heads.heads * rank.tokens * rank.share.seq_len * rank.size)
    return Operation(
        forward=(
            *repeated,
            _batched(rank, "scores", queries, (length, length, d), "tn"),
            _softmax(rank, "softmax", rows, length, operands=1),
            *_dropped(rank, "dropout", rows, length),
            _batched(rank, "values", queries, (length, v, length), "nn"),
            rank.copied("outputs copy", rows, v),
        ),
        backward=(
            rank.copied("outputs copy", rows, v),
            _batched(rank, "values", queries, (length, length, v), "tn"),
            _batched(rank, "values", queries, (length, v, length), "nt"),
            *_dropped(rank, "dropout_backward", rows, length),
            _softmax(rank, "softmax_backward", rows, length, operands=2),
            _batched(rank, "scores", queries, (length, d, length), "nn"),
            _batched(rank, "scores", queries, (length, d, length), "nt"),
            *repeated,
        ),
        widest_bytes=2.0 * scores_bytes,
        workspace_bytes=scores_bytes if rank.engine.score_buffer else 0.0,
        unbuilt=shared if rank.share.cp > 1 else "",
    )


def _batched(rank: Rank, name: str, batch: int, shape: tuple[int, int, int], layout: str) -> Part:
    m, n, k = shape
    kernel = KernelBatch.from_columns("gemm", op="bmm", batch=batch, m=m, n=n, k=k, layout=layout, dtype=rank.dtype)
    return Part(name=name, phase="forward", batch=kernel)


def _softmax(rank: Rank, op: str, rows: int, length: int, *, operands: int) -> Part:
    """Of rows that see from one to ``length`` keys."""
    seen = rows * (length + 1) // 2
    return rank.reduced("softmax", op, (rows, length), operands * rank.size * seen, rank.size * rows * length)


def _dropped(rank: Rank, op: str, rows: int, length: int) -> tuple[Part, ...]:
    return (rank.pointwise("probabilities dropout", op, rows, length),) if rank.engine.attention_dropout else ()


def _repeated(rank: Rank, heads: Heads) -> tuple[Part, ...]:
    """Keys and values once for every head of queries, where those share them."""
    if heads.heads == heads.kv_heads:
        return ()
    kept, made = heads.kv_width, heads.heads * (heads.head_dim + heads.value_dim)
    tokens = rank.share.tokens
    return (rank.moved("keys repeat", "copy", tokens * made, tokens * kept * rank.size, tokens * made * rank.size),)
