"""Mixers of tokens other than attention over all keys, as ranks of a serving engine run them. They are not trained
here: of their backward pass only what it keeps is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from neusight.kernels.families import KernelBatch
from neusight.kernels.precision import stored_bytes
from neusight.workloads.chunks import SCAN_FLOPS, Product, delta_rule_product, scan_product
from neusight.workloads.decoders.attention import (
    cached_attention,
    cross_attention,
    latent_attention,
    per_head,
    rotate,
    select_keys,
    self_attention,
)
from neusight.workloads.decoders.cores import CORE_MODULE
from neusight.workloads.decoders.layers import (
    CompressedAttention,
    CrossAttention,
    LatentAttention,
    LinearAttention,
    Mixer,
    ParallelMixers,
    Recurrent,
    SelectiveScan,
    SelfAttention,
    StateSpace,
)
from neusight.workloads.decoders.operations import Operation
from neusight.workloads.decoders.products import leaving, product, product_input
from neusight.workloads.decoders.rank import Rank
from neusight.workloads.decoders.stream import normalise
from neusight.workloads.program import HeldWeights, Part, SavedActivation

SAVED_CHUNK = 64
"""Tokens between two states that the scan of a recurrent layer keeps (flash-linear-attention's chunk; Mamba-2 has 256,
of which it keeps fewer)."""


def mix(mixer: Mixer, rank: Rank, *, quantised: bool = False) -> Iterator[Operation]:
    """Operations from the normalised residual stream to partial sums of the output.

    ``quantised``: the norm before it writes 8 bits.

    Raises:
        ModelError: sizes that ranks cannot share evenly.
    """
    if isinstance(mixer, ParallelMixers):
        yield from _add_mixers(mixer, rank, quantised=quantised)
        return
    if rank.serves:
        output = mixer.projections(rank.hidden, rank.tp)[-1]
        yield Operation(widest_bytes=rank.tokens * (output.n + output.k) * rank.size)
    if isinstance(mixer, CrossAttention):
        yield from cross_attention(mixer, rank)
    elif isinstance(mixer, SelfAttention):
        yield from self_attention(mixer, rank, quantised=quantised)
    elif isinstance(mixer, LatentAttention):
        yield from latent_attention(mixer, rank)
    elif rank.serves:
        yield Operation(held=_vectors(mixer, rank))
        if isinstance(mixer, LinearAttention | StateSpace):
            yield from _recurrent(mixer, rank)
        elif isinstance(mixer, SelectiveScan):
            yield from _selective_scan(mixer, rank)
        elif isinstance(mixer, CompressedAttention):
            yield from _compressed_attention(mixer, rank)
        yield leaving(rank, rank.hidden, "attention")
    else:
        yield _kept_alone(mixer, rank)


def _add_mixers(mixer: ParallelMixers, rank: Rank, *, quantised: bool) -> Iterator[Operation]:
    """Run each mixer and add its output to that of those before."""
    for place, part in enumerate(mixer.parts):
        yield from mix(part, rank, quantised=quantised)
        if place:
            yield Operation(forward=(rank.pointwise("add mixers", "add", rank.tokens, rank.hidden),))


def _kept_alone(mixer: Mixer, rank: Rank) -> Operation:
    """Activations saved by a mixer whose kernels are not built: results of its products, of a convolution or norm after
    them, the states of a scan, and the output.

    Mamba-2 computes convolution and states again and keeps what its scan gives, and that in the order of its gated norm
    (mamba_ssm, ``MambaSplitConv1dScanCombinedFn``; Megatron Core, ``MambaMixer``).
    """
    *inner, output = mixer.projections(rank.hidden, rank.tp)
    wide = rank.tokens * sum(p.n for p in inner) * rank.size
    mixed = SavedActivation(name="mixed", bytes=wide)
    states: tuple[SavedActivation, ...] = ()
    if isinstance(mixer, StateSpace):
        mixed = SavedActivation(name="scanned, and before its norm", bytes=2 * rank.tokens * output.k * rank.size)
    elif isinstance(mixer, Recurrent):
        chunks = rank.share.batch * -(-rank.share.length // SAVED_CHUNK)
        state_bytes = chunks * mixer.state_elements(rank.tp) * rank.size
        states = (SavedActivation(name="states", bytes=state_bytes, modules=CORE_MODULE),)
    selected = rank.tokens * (sum(p.n for p in (*inner, output)) / 2 + output.k) * stored_bytes(rank.dtype)
    return Operation(
        saved=(
            SavedActivation(name="products", bytes=wide, selected_bytes=selected),
            mixed,
            *states,
            product_input(rank, "mixer output", rank.tokens * output.k),
        ),
        held=(*(weights for projection in (*inner, output) for weights in projection.held), *_vectors(mixer, rank)),
        unbuilt=f"training of {type(mixer).__name__} layers is not built, that of self-attention and latent attention "
        "is: estimate a step on one device by 'predict --mode training'",
    )


def _vectors(mixer: Mixer, rank: Rank) -> tuple[HeldWeights, ...]:
    """Filters, decays and what else of a mixer is in no matrix: shared as its heads are."""
    return (HeldWeights(-(-mixer.vectors // rank.tp)),)


def _compressed_attention(mixer: CompressedAttention, rank: Rank) -> Iterator[Operation]:
    """Compressed attention (DeepSeek-V4): compressed keys count as selected ones behind the window, on average over the
    queries.
    """
    heads, groups, passes = mixer.local_heads(rank.tp), mixer.groups // rank.tp, rank.passes
    assert passes is not None
    parts = {p.name: p for p in mixer.projections(rank.hidden, rank.tp)}
    yield from product(rank, parts["latent"], rank.tokens)
    yield from product(rank, parts["query up"], rank.tokens)
    for name, width in (("query norm", mixer.q_rank), ("key norm", mixer.head_dim)):
        yield replace(normalise(rank, name, "rms_norm", (rank.tokens, width), weights=1), held=())
    yield from rotate(rank, (), (heads + 1) * mixer.rope_dim, mixer.head_dim)
    if mixer.ratio:
        yield from product(rank, parts["compressor"], rank.tokens)
    if mixer.indexer:
        yield from select_keys(mixer.indexer, rank, parts, mixer.ratio)
    shape = {"heads": heads, "kv_heads": 1, "head_dim": mixer.head_dim, "value_dim": mixer.head_dim, "shared_kv": True}
    middle = passes.prompt_context - passes.prompt_tokens // 2
    of_prompts, of_decodes = shape | _visible_keys(mixer, middle), shape | _visible_keys(mixer, passes.decode_context)
    yield cached_attention(rank, of_prompts, of_decodes)
    down = parts["output down"]
    yield Operation(held=down.held)
    yield per_head(rank, down.name, rank.tokens, (groups, down.n // groups, down.k))
    yield from product(rank, parts["output"], rank.tokens)


def _visible_keys(mixer: CompressedAttention, context: np.ndarray) -> dict[str, Any]:
    """Keys that a query sees of ``context`` tokens: those of the window, and the chosen or all compressed ones."""
    if not mixer.ratio:
        return {"window": mixer.window}
    far = -(-context // mixer.ratio)
    return {"selected": mixer.window + (np.minimum(far, mixer.indexer.selected) if mixer.indexer else far)}


def _recurrent(mixer: LinearAttention | StateSpace, rank: Rank) -> Iterator[Operation]:
    """Convolution, then prompts in chunks and decodes one step of the state each, and a norm that reads a gate too."""
    *inner, output = mixer.projections(rank.hidden, rank.tp)
    chunk, (rows, cols) = _delta_rule(mixer, rank) if isinstance(mixer, LinearAttention) else _scan(mixer, rank)
    gate = rank.size * np.maximum(rows, 1) * cols
    for projection in inner:
        yield from product(rank, projection, rank.tokens)
    yield Operation(
        forward=(
            _convolution(rank, mixer),
            _chunk_products(rank, mixer.widths(rank.tp)[2], chunk),
            _step_states(rank, mixer),
            rank.rows("gated norm", "rms_norm", rows, cols, more_read=gate),
        )
    )
    yield from product(rank, output, rank.tokens)


Chunk = tuple[Product, tuple[np.ndarray, int]]
"""Products of a chunk of a head as one (m, n, k), and rows and columns of the norm behind."""


def _delta_rule(mixer: LinearAttention, rank: Rank) -> Chunk:
    rows = rank.tokens * mixer.widths(rank.tp)[2]
    return delta_rule_product(mixer.key_dim, mixer.value_dim), (rows, mixer.value_dim)


def _scan(mixer: StateSpace, rank: Rank) -> Chunk:
    inner, grouped, _ = mixer.widths(rank.tp)
    return scan_product(mixer.head_dim, mixer.state, grouped / inner), (rank.tokens, inner)


def _selective_scan(mixer: SelectiveScan, rank: Rank) -> Iterator[Operation]:
    """Mamba's: convolution, sizes of steps, then prompts in one scan of all tokens and decodes one step each; the gate
    is a part of both (mamba_ssm, ``selective_scan_fn`` and ``selective_state_update``).
    """
    enter, shared, steps, output = mixer.projections(rank.hidden, rank.tp)
    yield from product(rank, enter, rank.tokens)
    yield Operation(forward=(_convolution(rank, mixer),))
    yield from product(rank, shared, rank.tokens)
    yield leaving(rank, mixer.scan_inputs, "attention", "scan inputs")
    if mixer.normed:
        yield Operation(forward=(rank.rows("scan norms", "rms_norm", rank.tokens, mixer.scan_inputs),))
    yield from product(rank, steps, rank.tokens)
    yield Operation(forward=(_scan_prompts(rank, mixer), _step_states(rank, mixer)))
    yield from product(rank, output, rank.tokens)


def _scan_prompts(rank: Rank, mixer: SelectiveScan) -> Part:
    """Scan of prompts: reads inputs, steps and gates of all channels and their shared values, keeps states on chip."""
    passes = rank.passes
    assert passes is not None
    tokens, inner = np.maximum(passes.prompts * passes.prompt_tokens, 1), mixer.conv_channels(rank.tp)
    batch = KernelBatch.from_columns(
        "elementwise", op="mul", elements=tokens * inner, dtype=rank.dtype,
        read_bytes=tokens * (3 * inner + 2 * mixer.state) * rank.size, write_bytes=tokens * inner * rank.size,
        flops=SCAN_FLOPS * tokens * inner * mixer.state,
    )  # fmt: skip
    return rank.part("scan of prompts", batch, passes.prompt_runs)


def _chunk_products(rank: Rank, heads: int, shape: Product) -> Part:
    """All products of the chunks of prompts as one of the same FLOP: (m, n, k) of tokens in a chunk."""
    passes = rank.passes
    assert passes is not None
    m, n, k = shape
    chunks = passes.prompts * -(-passes.prompt_tokens // m)
    batch = KernelBatch.from_columns(
        "gemm", op="bmm", layout="nn", batch=np.maximum(chunks * heads, 1), m=m, n=n, k=k, dtype=rank.dtype
    )
    return rank.part("chunks of prompts", batch, passes.prompt_runs)


def _convolution(rank: Rank, mixer: Recurrent) -> Part:
    """A causal convolution of each channel by itself, and silu: streams its input once."""
    batch = rank.pointwise("convolution", "silu", rank.tokens, mixer.conv_channels(rank.tp)).batch
    flops = batch["flops"] + 2 * mixer.conv * batch["elements"]
    return rank.part("convolution", KernelBatch("elementwise", {**batch.columns, "flops": flops}))


def _step_states(rank: Rank, mixer: Recurrent) -> Part:
    """Steps of the states of sequences that generate, one per token: read, decayed, added to, read out, written."""
    passes = rank.passes
    assert passes is not None
    rows, state = np.maximum(passes.new_decodes, 1), mixer.state_elements(rank.tp)
    size = rows * int(mixer.state_bytes(rank.tp))
    batch = KernelBatch.from_columns(
        "elementwise", op="mul", elements=rows * state, read_bytes=size, write_bytes=size, flops=6 * rows * state,
        dtype=mixer.state_dtype,
    )  # fmt: skip
    return rank.part("state of decodes", batch, passes.decode_runs)
