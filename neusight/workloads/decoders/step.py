"""What one rank of a serving engine runs in passes through a model: a ``Program`` whose parts have a kernel a pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from neusight.errors import ModelError, nearest
from neusight.kernels.families import KernelBatch
from neusight.kernels.precision import DTYPE_BYTES, Precision
from neusight.workloads.decoders.columns import Made, Rank
from neusight.workloads.decoders.decoder import Decoder
from neusight.workloads.decoders.layers import Layer, Norm, Projection
from neusight.workloads.decoders.mixers import mixed
from neusight.workloads.decoders.mixtures import check_shared, fed
from neusight.workloads.decoders.quantisation import ServingPrecision
from neusight.workloads.decoders.sharding import Sharding
from neusight.workloads.decoders.steps import Steps
from neusight.workloads.decoders.weights import Parameters, layer_parameters, outside_parameters
from neusight.workloads.program import Part, Program, Segment

ENGINES = ("vllm", "sglang", "trtllm")
VOCABULARY_PADDING = 64
"""Rows to a multiple of which engines pad the vocabulary (vLLM, ``DEFAULT_VOCAB_PADDING_SIZE``)."""


def step_program(
    decoder: Decoder,
    steps: Steps,
    precision: ServingPrecision | Precision,
    sharding: Sharding,
    engine: str = "vllm",
) -> Program:
    """Kernels and collectives that one rank runs in passes through all layers.

    Every part is a column over the steps. A pipeline is cut elsewhere, by the share of each kind of layers that a
    stage has; ``sharding.pp`` means nothing here.

    Args:
        decoder: the model.
        steps: passes of one attention group: with ``sharding.dp`` the other groups bring as many tokens again.
        precision: of weights, arithmetic and cache.
        sharding: ``tp`` shards attention and feed-forwards, ``tp * dp`` or ``ep`` the experts.
        engine: vllm, sglang or trtllm.

    Raises:
        ModelError: an unknown engine, or sizes that ranks cannot share evenly.
    """
    if engine not in ENGINES:
        raise ModelError(f"unknown engine '{engine}'{nearest(engine, ENGINES)}: one of {', '.join(ENGINES)}")
    check_shared(sharding.ep, sharding.dp, sharding.tp)
    rank = Rank.of(decoder.hidden, steps, ServingPrecision.of(precision), sharding, engine)
    held = [layer_parameters(layer, decoder.hidden, sharding) for layer, _ in decoder.layers]
    layers = [
        _segment("layer", place, _layer(layer, rank), own)
        for place, ((layer, _), own) in enumerate(zip(decoder.layers, held, strict=True))
    ]
    return Program(
        before=_segment("embedding", -1, _before(decoder, rank), [Parameters(outside_parameters(decoder, sharding))]),
        layers=layers,
        after=_segment("head", -1, _after(decoder, rank), []),
        order=decoder.order,
    )


def _segment(what: str, layer: int, made: Iterator[Made], parameters: Iterable[Parameters]) -> Segment:
    """Embedding and head are counted with the first: they may be one matrix."""
    held = list(parameters)
    return Segment(
        what=what,
        layer=layer,
        parts=tuple(Part(what=name, phase="forward", batch=batch, runs=runs) for name, batch, runs in made),
        parameters=round(sum(each.number for each in held if not each.routed)),
        expert_parameters=round(sum(each.number for each in held if each.routed)),
    )


def _layer(layer: Layer, rank: Rank) -> Iterator[Made]:
    """Both branches with norms where the layer has them.

    The first layer's first norm adds nothing, which is one addition too many in a whole model.
    """
    before = layer.placement != "after"
    after = layer.placement in ("around", "after")
    branches = [mixed(layer.attention, rank)] if layer.attention else []
    branches += [fed(layer.feed_forward, rank)] if layer.feed_forward else []
    for number, branch in enumerate(branches):
        if before and (number == 0 or layer.placement != "parallel" or layer.norms > 1):
            yield from _added_norm(layer.norm, rank, second=number > 0 and layer.placement == "parallel")
        yield from branch
        yield from rank.reduced("all-reduce")
        if after:
            yield "norm", rank.rows(layer.norm.op, rank.tokens, rank.hidden), rank.runs
        if layer.placement == "after" or (layer.placement == "parallel" and number > 0):
            yield "add", rank.pointwise("add", rank.tokens, rank.hidden), rank.runs


def _added_norm(norm: Norm, rank: Rank, *, second: bool) -> Iterator[Made]:
    """The residual is added in the kernel of an RMS norm, before that of a layer norm; ``second`` of the same input."""
    if second:
        yield "norm", rank.rows(norm.op, rank.tokens, rank.hidden), rank.runs
    elif norm.op == "rms_norm":
        yield "add and norm", rank.rows("add_rms_norm", rank.tokens, rank.hidden), rank.runs
    else:
        yield "add", rank.pointwise("add", rank.tokens, rank.hidden), rank.runs
        yield "norm", rank.rows(norm.op, rank.tokens, rank.hidden), rank.runs


def _before(decoder: Decoder, rank: Rank) -> Iterator[Made]:
    """From numbers of tokens to the residual stream."""
    wide = decoder.embedding or decoder.hidden
    yield "embedding", _embedded(rank, wide), rank.runs
    yield from rank.reduced("all-reduce of embeddings")
    if wide != decoder.hidden:
        yield rank.projected(Projection(what="embedding up", k=wide, parts=(decoder.hidden,), kind="head"))
    if decoder.positions:
        yield "positions", _embedded(rank, decoder.hidden), rank.runs
        yield "add", rank.pointwise("add", rank.tokens, decoder.hidden), rank.runs
    if decoder.embedding_norm:
        yield "norm", rank.rows("layer_norm", rank.tokens, decoder.hidden), rank.runs


def _embedded(rank: Rank, width: int) -> KernelBatch:
    """A row of the table for each token, read and written, and its number."""
    rows = np.maximum(rank.tokens, 1)
    size = rows * width * DTYPE_BYTES[rank.dtype]
    return KernelBatch.from_columns(
        "memory", op="embedding", elements=rows * width, read_bytes=size + 8 * rows, write_bytes=size, dtype=rank.dtype
    )


def _after(decoder: Decoder, rank: Rank) -> Iterator[Made]:
    """The last norm of all tokens, then logits and a sample of one row a sequence."""
    if decoder.norm:
        yield from _added_norm(decoder.norm, rank, second=False)
    sampled = replace(rank, tokens=rank.prompts + rank.decodes)
    wide = decoder.embedding or decoder.hidden
    if wide != decoder.hidden:
        yield sampled.projected(Projection(what="embedding down", k=decoder.hidden, parts=(wide,), kind="head"))
    padded = -(-decoder.vocab // VOCABULARY_PADDING) * VOCABULARY_PADDING
    own = -(-padded // rank.sharding.tp)
    yield sampled.projected(Projection(what="head", k=wide, parts=(own,), bias=decoder.head_bias, kind="head"))
    logits = sampled.tokens * own * rank.sharding.tp * DTYPE_BYTES[rank.dtype]
    yield from sampled.exchanged("all_gather", rank.sharding.tp, logits, "gather logits")
    yield from _sampled(sampled, decoder.vocab)


def _sampled(rank: Rank, vocab: int) -> Iterator[Made]:
    """Logits in float32, their probabilities, and the largest of each row, random or not."""
    rows = np.maximum(rank.tokens, 1)
    narrow = DTYPE_BYTES[rank.dtype]
    widened = KernelBatch.from_columns(
        "memory", op="copy", elements=rows * vocab, read_bytes=narrow * rows * vocab, write_bytes=4 * rows * vocab,
        dtype=rank.dtype,
    )  # fmt: skip
    yield "logits to float32", widened, rank.runs
    wide = replace(rank, precision=replace(rank.precision, dtype="float32"))
    yield "probabilities", wide.rows("softmax", rank.tokens, vocab), rank.runs
    yield "sample", wide.rows("argmax", rank.tokens, vocab), rank.runs
