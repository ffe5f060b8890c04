"""What a decoder trains before and after its layers: embedding, last norm, head and loss."""

from __future__ import annotations

from collections.abc import Iterator

from neusight.workloads.decoders.decoder import Decoder
from neusight.workloads.decoders.layers import Norm, Projection
from neusight.workloads.program import Part
from neusight.workloads.training.losses import loss
from neusight.workloads.training.norms import stream_norm
from neusight.workloads.training.operations import Operation
from neusight.workloads.training.products import entering, product
from neusight.workloads.training.rank import Rank

INDEX_BYTES = 8
"""Of a token's number."""
_EMBEDDING_NORM = Norm(op="layer_norm", weights=2)


def own_vocabulary(decoder: Decoder, rank: Rank) -> int:
    """Rows of the embedding on a rank, padded as the engine pads them."""
    multiple = rank.engine.vocabulary_multiple * rank.local.tp
    return -(-decoder.vocab // multiple) * rank.engine.vocabulary_multiple


def before(decoder: Decoder, rank: Rank) -> Iterator[Operation]:
    """From numbers of tokens to the residual stream."""
    wide, local = decoder.embedding or decoder.hidden, rank.local
    yield _looked_up(rank, "embedding", own_vocabulary(decoder, rank), wide)
    if decoder.tied and not rank.engine.master_weights:
        size = own_vocabulary(decoder, rank) * wide
        yield Operation(weights=(rank.pointwise("embedding add gradients", "add", 1, size),))
    yield _brought_together(decoder, rank, wide)
    if wide != decoder.hidden:
        up = Projection(what="embedding up", k=wide, parts=(decoder.hidden,), kind="head")
        yield product(rank, up, local.resident_tokens)
    if decoder.positions:
        yield _looked_up(rank, "positions", decoder.positions, decoder.hidden)
        yield Operation(forward=(rank.pointwise("positions add", "add", local.tokens, decoder.hidden),))
    if decoder.embedding_norm:
        yield stream_norm(rank, _EMBEDDING_NORM, what="embedding norm", branches=False)
    if rank.engine.hidden_dropout and not rank.engine.generated:
        shape = local.resident_tokens, decoder.hidden
        yield Operation(
            forward=(rank.pointwise("embedding dropout", "dropout", *shape),),
            backward=(rank.pointwise("embedding dropout gradient", "dropout_backward", *shape),),
        )


def _looked_up(rank: Rank, what: str, table: int, width: int) -> Operation:
    """A row of a table for each token; back, a table of zeros to which each token's gradient is added."""
    tokens = rank.local.tokens
    elements, numbers = tokens * width, INDEX_BYTES * tokens
    size = elements * rank.size
    return Operation(
        forward=(rank.moved(what, "embedding", elements, size + numbers, size),),
        weights=(
            rank.moved(f"{what} zero gradient", "fill", table * width, 0, table * width * rank.size),
            rank.moved(f"{what} gradient", "embedding_backward", elements, 2 * size + numbers, size),
            *rank.accumulated(what, table * width),
        ),
        parameters=table * width,
    )


def _brought_together(decoder: Decoder, rank: Rank, width: int) -> Operation:
    """Rows that a rank has none of are blanked, then added up over ranks (Shoeybi et al. 2019, section 3).

    Learned positions are added to all of them before ranks take their part of the tokens.
    """
    local = rank.local
    if local.tp == 1:
        return Operation()
    size = local.tokens * width * rank.size
    blanked = rank.pointwise("embedding blank", "masked_fill", local.tokens, width)
    scattered = local.sequence_parallel and not decoder.positions
    op = "reduce_scatter" if scattered else "all_reduce"
    return Operation(
        forward=(blanked, *rank.exchanged("reduce embedding", op, "tp", size)),
        backward=(*_gathered(rank, size), blanked),
    )


def _gathered(rank: Rank, size: int) -> tuple[Part, ...]:
    if not rank.local.sequence_parallel:
        return ()
    return rank.exchanged("gather gradient of embedding", "all_gather", "tp", size)


def after(decoder: Decoder, rank: Rank) -> Iterator[Operation]:
    """The last norm, logits of all tokens, and their loss. A tied head's weights count as the embedding's."""
    wide, local = decoder.embedding or decoder.hidden, rank.local
    if decoder.norm:
        yield stream_norm(rank, decoder.norm, what="last norm", branches=False)
    if wide != decoder.hidden:
        down = Projection(what="embedding down", k=decoder.hidden, parts=(wide,), kind="head")
        yield product(rank, down, local.resident_tokens)
    yield entering(rank, wide, "head")
    own = own_vocabulary(decoder, rank)
    head = Projection(what="head", k=wide, parts=(own,), bias=decoder.head_bias, kind="head")
    done = product(rank, head, local.tokens)
    held = head.parameters - (head.weights if decoder.tied else 0)
    yield Operation(forward=done.forward, backward=done.backward, weights=done.weights, parameters=held)
    yield loss(rank, local.tokens, own)
