"""Operations of a decoder before and after its layers: embedding, last norm, head, and the loss or a sample.

The loss is the cross-entropy of logits whose vocabulary tensor-parallel ranks share, forward and backward.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from neusight.workloads.decoders.decoder import Decoder
from neusight.workloads.decoders.layers import Norm, Projection, shared_evenly
from neusight.workloads.decoders.operations import Operation, move, pointwise
from neusight.workloads.decoders.products import entering, product, product_input
from neusight.workloads.decoders.rank import FLOAT_BYTES, INDEX_BYTES, Rank
from neusight.workloads.decoders.stream import stream_norm
from neusight.workloads.program import HeldWeights, Part, SavedActivation

STATISTICS = 3
"""Maximum, sum of exponentials and the target's logit of a row."""
_EMBEDDING_NORM = Norm(op="layer_norm", weights=2)


def own_vocabulary(decoder: Decoder, rank: Rank) -> int:
    """Rows of the embedding on a rank, padded as the engine pads them: each rank's, or all that ranks share."""
    multiple = rank.engine.vocabulary_multiple
    if rank.serves:
        return -(-(-(-decoder.vocab // multiple) * multiple) // rank.tp)
    return -(-decoder.vocab // (multiple * rank.tp)) * multiple


def before(decoder: Decoder, rank: Rank) -> Iterator[Operation]:
    """Operations from numbers of tokens to the residual stream; those of a source go through the same table, and the
    result of its encoder is normalised and saved for all layers that attend to it.
    """
    yield from _embed(decoder, rank)
    if decoder.encodes:
        source = rank.source
        yield from (replace(done, held=()) for done in _embed(decoder, source))
        if decoder.norm:
            yield from stream_norm(source, decoder.norm, name="encoder norm", branches=False, adds=0)
        yield Operation(saved=(product_input(source, "encoder output", source.kept_tokens * source.hidden),))


def _embed(decoder: Decoder, rank: Rank) -> Iterator[Operation]:
    """Embedding of the tokens of one side, source or target."""
    wide = decoder.embedding or decoder.hidden
    yield _looked_up(rank, "embedding", own_vocabulary(decoder, rank), wide)
    if decoder.tied and not rank.engine.master_weights and not rank.serves:
        size = own_vocabulary(decoder, rank) * wide
        yield Operation(weights=(rank.pointwise("embedding add gradients", "add", 1, size),))
    yield from _brought_together(decoder, rank, wide)
    if wide != decoder.hidden:
        up = Projection(name="embedding up", k=wide, parts=(decoder.hidden,), kind="head")
        yield from product(rank, up, rank.resident_tokens)
    if decoder.positions:
        yield _looked_up(rank, "positions", decoder.positions, decoder.hidden)
        if not rank.engine.generated:
            yield Operation(forward=(rank.pointwise("positions add", "add", rank.tokens, decoder.hidden),))
    if decoder.embedding_norm:
        yield from stream_norm(rank, _EMBEDDING_NORM, name="embedding norm", branches=False, adds=0)
    if rank.engine.hidden_dropout:
        shape = rank.resident_tokens, rank.hidden
        yield Operation(saved=(SavedActivation(name="dropout mask", bytes=shape[0] * shape[1]),))
        if not rank.engine.generated:
            yield pointwise(rank, "embedding dropout", "dropout", *shape)


def _looked_up(rank: Rank, name: str, table: int, width: int) -> Operation:
    """A row of a table for each token; back, a table of zeros to which each token's gradient is added.

    Numbers of tokens are kept once, with those of their positions.
    """
    tokens = np.maximum(rank.tokens, 1)
    elements, numbers = tokens * width, INDEX_BYTES * tokens
    size = elements * rank.size
    forward = rank.move(name, "embedding", elements, size + numbers, size)
    if rank.serves:
        return Operation(forward=(forward,), held=(HeldWeights(table * width, "table"),))
    ids = SavedActivation(name="ids", bytes=2.0 * INDEX_BYTES * rank.tokens)
    return Operation(
        forward=(forward,),
        weights=(
            rank.move(f"{name} zero gradient", "fill", table * width, 0, table * width * rank.size),
            rank.move(f"{name} gradient", "embedding_backward", elements, 2 * size + numbers, size),
            *rank.accumulate(name, table * width),
        ),
        held=(HeldWeights(table * width),),
        saved=(ids,) if name == "embedding" else (),
    )


def _brought_together(decoder: Decoder, rank: Rank, width: int) -> Iterator[Operation]:
    """Rows that a rank has none of are blanked, then added up over ranks (Shoeybi et al. 2019, section 3).

    Learned positions are added to all of them before ranks take their part of the tokens.
    """
    size = rank.tokens * width * rank.size
    if rank.tp > 1 and not rank.serves:
        yield pointwise(rank, "embedding blank", "masked_fill", rank.tokens, width)
    op = "reduce_scatter" if rank.sequence_parallel and not decoder.positions else "all_reduce"
    reduced = rank.exchange("reduce embedding", op, "tp", size)
    again = rank.exchange("gather gradient of embedding", "all_gather", "tp", size) if rank.sequence_parallel else ()
    yield Operation(forward=reduced, backward=again)


def after(decoder: Decoder, rank: Rank) -> Iterator[Operation]:
    """The last norm of all tokens, then logits: of all of them with their loss, or of one row a prompt and those of the
    decodes, each of which is sampled. A tied head's weights count as the embedding's.
    """
    wide = decoder.embedding or decoder.hidden
    if decoder.norm:
        yield from stream_norm(rank, decoder.norm, name="last norm", branches=rank.serves, adds=int(rank.serves))
    logits = rank if rank.passes is None else rank.of(rank.passes.prompts + rank.passes.new_decodes)
    if wide != decoder.hidden:
        down = Projection(name="embedding down", k=decoder.hidden, parts=(wide,), kind="head")
        yield from product(rank, down, logits.tokens if rank.serves else rank.resident_tokens)
    yield entering(rank, wide, "head")
    cols = own_vocabulary(decoder, rank)
    yield from _head(
        decoder, logits, Projection(name="head", k=wide, parts=(cols,), bias=decoder.head_bias, kind="head")
    )
    if rank.serves:
        yield Operation(forward=tuple(_sample(logits, cols, decoder.vocab)))
    else:
        yield loss(rank, rank.tokens, cols)


def predict_ahead(decoder: Decoder, rank: Rank, layers: Iterable[Operation]) -> Iterator[Operation]:
    """Operations of one depth of multi-token prediction around ``layers``: embeddings and the stream, normalised
    separately, joined through a product, the layers, a norm, the model's head and a loss, whose logits wait for their
    backward pass. The embedding counts where the rank has none yet.
    """
    assert decoder.norm is not None
    cols, shape = own_vocabulary(decoder, rank), (rank.resident_tokens, rank.hidden)
    table = 0 if decoder.tied else cols * rank.hidden
    yield replace(_looked_up(rank, "embedding", cols, rank.hidden), held=(), tied_parameters=table)
    for name in ("embedding norm", "stream norm"):
        yield from stream_norm(rank, decoder.norm, name=name, branches=False, adds=0)
    yield move(rank.copy("join", shape[0], 2 * shape[1], op="cat"))
    yield Operation(saved=(product_input(rank, "prediction input", 2 * rank.kept_tokens * rank.hidden),))
    share = shared_evenly(rank.hidden, rank.tp, "hidden_size")
    yield from product(rank, Projection(name="prediction", k=2 * rank.hidden, parts=(share,)), rank.tokens)
    yield from layers
    yield from stream_norm(rank, decoder.norm, name="last norm", branches=False, adds=0)
    yield entering(rank, rank.hidden, "head")
    head = Projection(name="head", k=rank.hidden, parts=(cols,), kind="head")
    for done in product(rank, head, rank.tokens):
        yield replace(done, held=(), saved=(_head_input(rank),))
    logits = SavedActivation(name="logits", bytes=rank.engine.held_logit_bytes * rank.tokens * cols)
    yield replace(loss(rank, rank.tokens, cols), saved=(logits,))


def _head_input(rank: Rank) -> SavedActivation:
    return SavedActivation(name="head input", bytes=rank.row_bytes(rank.kept_tokens))


def _head(decoder: Decoder, rank: Rank, head: Projection) -> Iterator[Operation]:
    tied = head.weights if decoder.tied else 0
    matrices = (*head.held[tied > 0 :], HeldWeights(decoder.extra))
    for done in product(rank, head, rank.tokens):
        yield replace(
            done, held=matrices, saved=(_head_input(rank),), logits=rank.tokens * float(head.n), tied_parameters=tied
        )


def _sample(rank: Rank, cols: int, vocab: int) -> Iterator[Part]:
    """Logits of all ranks in float32, their probabilities, and the largest of each row, random or not."""
    yield from rank.exchange("gather logits", "all_gather", "tp", rank.tokens * cols * rank.tp * rank.size)
    elements = np.maximum(rank.tokens, 1) * vocab
    yield rank.move("logits to float32", "copy", elements, rank.size * elements, FLOAT_BYTES * elements)
    wide = rank.of(rank.tokens, "float32")
    yield wide.rows("probabilities", "softmax", rank.tokens, vocab)
    yield wide.rows("sample", "argmax", rank.tokens, vocab)


def loss(rank: Rank, rows: int, cols: int) -> Operation:
    """Loss of ``rows`` tokens over the rank's ``cols`` of the vocabulary, as the engine computes it."""
    makers = {"written out": _written_out, "torch": _torch, "fused": _fused_loss, "generated": _generated_loss}
    return makers[rank.engine.loss](rank, rows, cols)


def _generated_loss(rank: Rank, rows: int, cols: int) -> Operation:
    """Maximum and sum of exponentials of each row; back, the gradient from these and the logits (``torch.compile`` of
    ``F.cross_entropy``, whose partitioner keeps logits in their own dtype alone).
    """
    size, statistics = rows * cols * rank.size, STATISTICS * FLOAT_BYTES * rows
    gradient = rank.reduce(
        "loss gradient", "log_softmax_backward", (rows, cols), size + INDEX_BYTES * rows + statistics, size
    )
    return Operation(
        forward=(
            rank.reduce("loss statistics", "logsumexp", (rows, cols), size + INDEX_BYTES * rows, statistics),
            *rank.exchange("gather loss", "all_gather", "tp", statistics * rank.tp),
        ),
        backward=(gradient,),
    )


def _wide(rank: Rank, name: str, op: str, elements: int, *, reads: int = 1, writes: int = 1) -> Part:
    """A pass over float32 logits."""
    return rank.sweep(name, op, elements, reads * FLOAT_BYTES * elements, writes * FLOAT_BYTES * elements)


def _cast(rank: Rank, name: str, elements: int, *, narrowed: bool = False) -> Part:
    narrow, wide = elements * rank.size, elements * FLOAT_BYTES
    read, written = (wide, narrow) if narrowed else (narrow, wide)
    return rank.move(name, "copy", elements, read, written)


def _of_rows(rank: Rank, name: str, op: str, shape: tuple[int, int], *, reads: int = 1, writes: int = 0) -> Part:
    """A reduction of float32 logits that writes ``writes`` of them, or a value a row."""
    rows, cols = shape
    size = FLOAT_BYTES * rows * cols
    return rank.reduce(name, op, shape, reads * size, writes * size or FLOAT_BYTES * rows)


def _target(rank: Rank, name: str, op: str, rows: int) -> Part:
    """One value of each row, by its number."""
    return rank.move(name, op, rows, (INDEX_BYTES + FLOAT_BYTES) * rows, FLOAT_BYTES * rows)


def _sum_of_ranks(rank: Rank, rows: int, values: int = 1) -> tuple[Part, ...]:
    return rank.exchange("reduce loss", "all_reduce", "tp", FLOAT_BYTES * rows * values)


def _written_out(rank: Rank, rows: int, cols: int) -> Operation:
    """Maximum, target's logit and sum of exponentials, each over ranks (Megatron-LM's ``cross_entropy.py``)."""
    shape, elements = (rows, cols), rows * cols
    return Operation(
        forward=(
            _cast(rank, "logits to float32", elements),
            _of_rows(rank, "loss maximum", "amax", shape),
            *_sum_of_ranks(rank, rows),
            _wide(rank, "loss shift", "sub", elements),
            _target(rank, "loss target", "gather", rows),
            *_sum_of_ranks(rank, rows),
            _wide(rank, "loss exponential", "exp", elements),
            _of_rows(rank, "loss sum", "sum", shape),
            *_sum_of_ranks(rank, rows),
            _wide(rank, "loss probabilities", "div", elements),
        ),
        backward=(
            _target(rank, "loss target gradient", "scatter", rows),
            _wide(rank, "loss gradient", "mul", elements),
            _cast(rank, "gradient of logits", elements, narrowed=True),
        ),
    )


def _torch(rank: Rank, rows: int, cols: int) -> Operation:
    """``F.cross_entropy`` of logits in float32: log-softmax, the targets' entries, and their gradients back."""
    shape, elements = (rows, cols), rows * cols
    return Operation(
        forward=(
            _cast(rank, "logits to float32", elements),
            _of_rows(rank, "loss probabilities", "log_softmax", shape, writes=1),
            *_sum_of_ranks(rank, rows, STATISTICS),
            rank.reduce("loss", "nll_loss", (1, rows), (INDEX_BYTES + FLOAT_BYTES) * rows, 2 * FLOAT_BYTES),
        ),
        backward=(
            rank.move("loss zero gradient", "fill", elements, 0, FLOAT_BYTES * elements),
            _target(rank, "loss target gradient", "scatter", rows),
            _of_rows(rank, "loss gradient", "log_softmax_backward", shape, reads=2, writes=1),
            _cast(rank, "gradient of logits", elements, narrowed=True),
        ),
    )


def _fused_loss(rank: Rank, rows: int, cols: int) -> Operation:
    """Statistics of each row in one pass, the gradient over the logits in a second, and a pass back that scales it
    (Transformer Engine, ``triton/cross_entropy.py``; Hsu et al. 2024, section 3.2).
    """
    elements = rows * cols
    size = elements * rank.size
    statistics = STATISTICS * FLOAT_BYTES * rows
    return Operation(
        forward=(
            rank.reduce("loss statistics", "logsumexp", (rows, cols), size + INDEX_BYTES * rows, statistics),
            *rank.exchange("gather loss", "all_gather", "tp", statistics * rank.tp),
            rank.reduce("loss gradient", "softmax", (rows, cols), size, size),
        ),
        backward=(rank.sweep("loss scale", "mul_scalar", elements, size, size),),
    )
