"""Attention of sequences that ranks share: keys go round in a ring, are gathered, or heads are exchanged for tokens.

Under causal attention ranks have a chunk from the front of a sequence and one from the back each, so that all see
equally many keys (Liu et al. 2023; Transformer Engine, ``AttnFuncWithCPAndKVP2P``; Llama 3, section 3.3.2; PyTorch,
``context_parallel``, its round-robin load balance).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from neusight.errors import ModelError
from neusight.workloads.decoders.flash import Heads, flash
from neusight.workloads.decoders.layers import shared_evenly
from neusight.workloads.decoders.operations import Operation, exchange, move
from neusight.workloads.decoders.rank import FLOAT_BYTES, Rank
from neusight.workloads.program import Part

Attention = Callable[[Rank, Heads], Iterator[Operation]]


class _Pass(NamedTuple):
    """Kernel with ``steps`` runs in each later step and ``once`` more; values ``read`` and ``written`` per element, in
    the dtype of activations and in float32.
    """

    name: str
    op: str
    steps: int
    once: int
    read: tuple[float, float]
    written: tuple[float, float]


_NARROW, _WIDE = (1, 0), (0, 1)
_JOINED_KEYS = _Pass("keys join", "cat", 1, 0, _NARROW, _NARROW)
_ZEROS = _Pass("zero", "fill", 0, 1, (0, 0), _WIDE)
_NARROWED = _Pass("narrow", "copy", 0, 1, _WIDE, _NARROW)
_ADDED = _Pass("add", "add", 0, 1, (1, 1), _WIDE)
_WRITTEN_OUT: dict[str, dict[str, tuple[_Pass, ...]]] = {
    "outputs": {
        "forward": (
            _Pass("widen", "copy", 1, 1, _NARROW, _WIDE),
            _Pass("difference", "sub", 1, 0, (0, 2), _WIDE),
            _Pass("weigh", "mul", 1, 0, _WIDE, _WIDE),
            _Pass("merge", "sub", 1, 0, (0, 2), _WIDE),
            _NARROWED,
        )
    },
    "queries": {"backward": (_ZEROS, _ADDED._replace(steps=1), _NARROWED)},
    "keys": {
        "forward": (_Pass("contiguous", "copy", 0, 1, _NARROW, _NARROW), _JOINED_KEYS),
        "backward": (
            _Pass("contiguous", "copy", 0, 1, _NARROW, _NARROW),
            _JOINED_KEYS,
            _ZEROS,
            _ADDED,
            _Pass("add to half", "add", 1, 0, (0.5, 0.5), (0, 0.5)),
            _Pass("halves join", "cat", 1, 0, _WIDE, _WIDE),
            _Pass("gradients join", "cat", 1, 1, _WIDE, _WIDE),
            _NARROWED,
        ),
    },
}
"""Operators of PyTorch's ring, one kernel each: ``_SDPAMerger``, ``_templated_ring_attention``,
``_templated_ring_attention_backward`` and ``_partial_update`` (torch/distributed/tensor/experimental/_attention.py), on
the last rank, whose every later step has all queries on half of the keys."""
_GENERATED: dict[str, dict[str, tuple[_Pass, ...]]] = {
    "outputs": {"forward": (_Pass("merge", "lerp", 1, 0, (1, 1), _WIDE),)},
    "queries": {"backward": (_ADDED._replace(steps=1, once=0),)},
    "keys": {
        "forward": (_JOINED_KEYS._replace(steps=0, once=1),),
        "backward": (_JOINED_KEYS._replace(steps=0, once=1), _ADDED._replace(steps=1)),
    },
}
"""The same where what lies between two attentions is one generated kernel for each result."""


def shared_attention(rank: Rank, heads: Heads, attention: Attention) -> Iterator[Operation]:
    """Attention of ranks that share sequences.

    Args:
        rank: one of them.
        heads: of all tokens that it has.
        attention: of a rank that has whole sequences.

    Raises:
        ModelError: heads or chunks of a sequence that ranks cannot share, or a window that goes round no ring.
    """
    share = rank.share
    if share.ulysses > 1:
        yield from _heads_for_tokens(rank, heads, attention)
    elif share.cp == 1:
        yield from attention(rank, heads)
    elif not heads.causal:
        yield Operation(unbuilt=f"attention that sees all is not shared by cp = {share.cp} ranks: cp = 1 is")
    elif rank.engine.writes_scores:
        why = f"{rank.engine.name} writes scores out, which cp = {share.cp} ranks cannot share: choose cp = 1"
        yield Operation(unbuilt=why)
    else:
        _check_chunks(share.seq_len, 2 * share.cp)
        yield from _by_keys(rank, heads)


def _by_keys(rank: Rank, heads: Heads) -> Iterator[Operation]:
    if heads.window and rank.share.cp_comm == "p2p":
        raise ModelError(f"a window of {heads.window} keys goes round no ring: set cp_comm to all_gather, or ulysses")
    passes_on = (rank.share.cp_comm or rank.engine.cp_comm) == "p2p"
    if heads.window or not (passes_on or rank.engine.ring == "float32"):
        return _gather_keys(rank, heads)
    return _float32_ring(rank, heads, passes_on=passes_on) if rank.engine.ring == "float32" else _ring(rank, heads)


def _check_chunks(seq_len: int, chunks: int) -> None:
    """Raises:
    ModelError: a sequence that cannot be cut into ``chunks``.
    """
    if seq_len % chunks:
        raise ModelError(
            f"seq_len = {seq_len} cannot be cut into {chunks} chunks, two for each of cp = {chunks // 2} ranks: choose "
            f"{-(-seq_len // chunks) * chunks}"
        )


def _heads_for_tokens(rank: Rank, heads: Heads, attention: Attention) -> Iterator[Operation]:
    """Each rank gives away heads and gets tokens of those that it keeps, and the other way round behind attention
    (Jacobs et al. 2023, DeepSpeed-Ulysses, section 3.1); what remains shared goes by keys (Fang and Zhao 2024).

    Values are put in order of their ranks before they leave, and of their tokens when they have come (Transformer
    Engine, ``flash_attn_a2a_communicate``).
    """
    share, by = rank.share, rank.share.ulysses
    local_heads = replace(
        heads,
        heads=shared_evenly(heads.heads, by, "heads that ulysses shares: heads"),
        kv_heads=shared_evenly(heads.kv_heads, by, "heads that ulysses shares: kv_heads"),
    )
    inner = replace(
        rank,
        tokens=rank.tokens * by,
        ranks={**rank.ranks, "cp": share.cp // by},
        local=replace(share, cp=share.cp // by, ulysses=1),
    )
    yield from _exchange_heads(rank, "queries, keys and values", heads.heads * heads.head_dim + heads.kv_width)
    yield from shared_attention(inner, local_heads, attention)
    yield from _exchange_heads(rank, "attention outputs", heads.heads * heads.value_dim)


def _exchange_heads(rank: Rank, name: str, width: int) -> Iterator[Operation]:
    yield move(rank.copy(f"{name} by rank", rank.tokens, width))
    yield exchange(rank, f"exchange {name}", "all_to_all", "ulysses", rank.tokens * width * rank.size)
    yield move(rank.copy(f"{name} by token", rank.tokens, width))


def _ring(rank: Rank, heads: Heads) -> Iterator[Operation]:
    """The rank's own keys first, causal; then those of others as they come, of which half the pairs are seen.

    A rank of the front has half its queries on all keys of a later step, one of the back all queries on half of them:
    the second stands for both. Keys come beside the attention of those before; their gradients go along.
    """
    rows, steps = rank.share.tokens, rank.share.cp - 1
    size = rows * heads.kv_width * rank.size
    keys = _passed_on(rank, "keys", size, steps)
    yield Operation(forward=keys, backward=(*keys, *_passed_on(rank, "gradients of keys", size, steps + 1)))
    yield from _steps(rank, heads)
    yield Operation(
        forward=(rank.pointwise("attention merge", "lerp", rows, heads.heads * heads.value_dim, runs=steps),),
        backward=(
            rank.pointwise("add gradients of queries", "add", rows, heads.heads * heads.head_dim, runs=steps),
            rank.pointwise("add gradients of keys", "add", rows, heads.kv_width, runs=steps),
        ),
    )


def _passed_on(rank: Rank, what: str, size: int, runs: int, *, beside: bool = True) -> tuple[Part, ...]:
    return rank.exchange(f"pass {what} on", "send_recv", "cp", size, overlapped=beside, runs=runs)


def _steps(rank: Rank, heads: Heads) -> Iterator[Operation]:
    length = rank.share.length
    yield flash(rank, heads, (length, length))
    yield flash(rank, heads, (length, length // 2), causal=False, runs=rank.share.cp - 1)


def _float32_ring(rank: Rank, heads: Heads, *, passes_on: bool) -> Iterator[Operation]:
    """The same on sums in float32, in which gradients of keys travel as well; keys that do not come step by step are
    gathered during the first.

    Compiled, what waits for a collective stands right behind it (torch/distributed/_functional_collectives.py,
    ``_maybe_wrap_tensor``), so that nothing runs beside.
    """
    rows, steps = rank.share.tokens, rank.share.cp - 1
    values, overlaps = rows * heads.kv_width, rank.engine.launch == "eager"
    keys = _passed_on(rank, "keys", values * rank.size, steps, beside=overlaps)
    if not passes_on:
        whole = values * rank.share.cp * rank.size
        keys = rank.exchange("gather keys", "all_gather", "cp", whole, overlapped=overlaps)
    gradients = _passed_on(rank, "gradients of keys", values * FLOAT_BYTES, steps + 1, beside=overlaps)
    yield Operation(forward=keys, backward=(*keys, *gradients))
    yield from _steps(rank, heads)
    table = _WRITTEN_OUT if rank.engine.launch == "eager" else _GENERATED
    elements = {"outputs": rows * heads.heads * heads.value_dim, "queries": rows * heads.heads * heads.head_dim}
    for what, passes in table.items():
        made = {
            phase: tuple(_swept(rank, f"{what} {run.name}", run, elements.get(what, values)) for run in kernels)
            for phase, kernels in passes.items()
        }
        yield Operation(forward=made.get("forward", ()), backward=made.get("backward", ()))


def _swept(rank: Rank, name: str, one: _Pass, elements: int) -> Part:
    read, written = (
        round(elements * (narrow * rank.size + wide * FLOAT_BYTES)) for narrow, wide in (one.read, one.written)
    )
    make = rank.move if one.op in ("copy", "cat", "fill") else rank.sweep
    return replace(make(name, one.op, elements, read, written), runs=one.steps * (rank.share.cp - 1) + one.once)


def _gather_keys(rank: Rank, heads: Heads) -> Iterator[Operation]:
    """Gather all keys at every rank, then attend with its two chunks of queries: those of the first rank, which has the
    ends of the sequence.
    """
    share, chunk = rank.share, rank.share.length // 2
    size = share.batch * share.seq_len * heads.kv_width * rank.size
    yield exchange(rank, "gather keys", "all_gather", "cp", size)
    yield flash(rank, heads, (chunk, chunk))
    yield flash(rank, heads, (chunk, share.seq_len))
