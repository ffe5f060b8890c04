"""The cross-entropy of logits whose vocabulary tensor-parallel ranks share, forward and backward."""

from __future__ import annotations

from neusight.workloads.decoders.operations import Operation
from neusight.workloads.decoders.rank import FLOAT_BYTES, INDEX_BYTES, Rank
from neusight.workloads.program import Part

STATISTICS = 3
"""Maximum, sum of exponentials and the target's logit of a row."""


def loss(rank: Rank, rows: int, cols: int) -> Operation:
    """Of ``rows`` tokens over the rank's ``cols`` of the vocabulary, as the engine computes it."""
    makers = {"written out": _written_out, "torch": _torch, "fused": _fused, "generated": _generated}
    return makers[rank.engine.loss](rank, rows, cols)


def _generated(rank: Rank, rows: int, cols: int) -> Operation:
    """Maximum and sum of exponentials of each row; back, the gradient from these and the logits (``torch.compile`` of
    ``F.cross_entropy``, whose partitioner keeps logits in their own dtype alone).
    """
    size, statistics = rows * cols * rank.size, STATISTICS * FLOAT_BYTES * rows
    gradient = rank.reduced(
        "loss gradient", "log_softmax_backward", (rows, cols), size + INDEX_BYTES * rows + statistics, size
    )
    return Operation(
        forward=(
            rank.reduced("loss statistics", "logsumexp", (rows, cols), size + INDEX_BYTES * rows, statistics),
            *rank.exchanged("gather loss", "all_gather", "tp", statistics * rank.tp),
        ),
        backward=(gradient,),
    )


def _wide(rank: Rank, name: str, op: str, elements: int, *, reads: int = 1, writes: int = 1) -> Part:
    """A pass over float32 logits."""
    return rank.passed(name, op, elements, reads * FLOAT_BYTES * elements, writes * FLOAT_BYTES * elements)


def _cast(rank: Rank, name: str, elements: int, *, narrowed: bool = False) -> Part:
    narrow, wide = elements * rank.size, elements * FLOAT_BYTES
    read, written = (wide, narrow) if narrowed else (narrow, wide)
    return rank.moved(name, "copy", elements, read, written)


def _of_rows(rank: Rank, name: str, op: str, shape: tuple[int, int], *, reads: int = 1, writes: int = 0) -> Part:
    """A reduction of float32 logits that writes ``writes`` of them, or a value a row."""
    rows, cols = shape
    size = FLOAT_BYTES * rows * cols
    return rank.reduced(name, op, shape, reads * size, writes * size or FLOAT_BYTES * rows)


def _shared(rank: Rank, rows: int, values: int = 1) -> tuple[Part, ...]:
    return rank.exchanged("reduce loss", "all_reduce", "tp", FLOAT_BYTES * rows * values)


def _written_out(rank: Rank, rows: int, cols: int) -> Operation:
    """Maximum, target's logit and sum of exponentials, each over ranks (Megatron-LM's ``cross_entropy.py``)."""
    shape, elements = (rows, cols), rows * cols
    picked = rank.moved("loss target", "gather", rows, (INDEX_BYTES + FLOAT_BYTES) * rows, FLOAT_BYTES * rows)
    placed = rank.moved("loss target gradient", "scatter", rows, (INDEX_BYTES + FLOAT_BYTES) * rows, FLOAT_BYTES * rows)
    return Operation(
        forward=(
            _cast(rank, "logits to float32", elements),
            _of_rows(rank, "loss maximum", "amax", shape),
            *_shared(rank, rows),
            _wide(rank, "loss shift", "sub", elements),
            picked,
            *_shared(rank, rows),
            _wide(rank, "loss exponential", "exp", elements),
            _of_rows(rank, "loss sum", "sum", shape),
            *_shared(rank, rows),
            _wide(rank, "loss probabilities", "div", elements),
        ),
        backward=(
            placed,
            _wide(rank, "loss gradient", "mul", elements),
            _cast(rank, "gradient of logits", elements, narrowed=True),
        ),
    )


def _torch(rank: Rank, rows: int, cols: int) -> Operation:
    """``F.cross_entropy`` of logits in float32: log-softmax, the targets' entries, and their gradients back."""
    shape, elements = (rows, cols), rows * cols
    placed = rank.moved("loss target gradient", "scatter", rows, (INDEX_BYTES + FLOAT_BYTES) * rows, FLOAT_BYTES * rows)
    return Operation(
        forward=(
            _cast(rank, "logits to float32", elements),
            _of_rows(rank, "loss probabilities", "log_softmax", shape, writes=1),
            *_shared(rank, rows, STATISTICS),
            rank.reduced("loss", "nll_loss", (1, rows), (INDEX_BYTES + FLOAT_BYTES) * rows, 2 * FLOAT_BYTES),
        ),
        backward=(
            rank.moved("loss zero gradient", "fill", elements, 0, FLOAT_BYTES * elements),
            placed,
            _of_rows(rank, "loss gradient", "log_softmax_backward", shape, reads=2, writes=1),
            _cast(rank, "gradient of logits", elements, narrowed=True),
        ),
    )


def _fused(rank: Rank, rows: int, cols: int) -> Operation:
    """Statistics of each row in one pass, the gradient over the logits in a second, and a pass back that scales it
    (Transformer Engine, ``triton/cross_entropy.py``; Hsu et al. 2024, section 3.2).
    """
    elements = rows * cols
    size = elements * rank.size
    statistics = STATISTICS * FLOAT_BYTES * rows
    return Operation(
        forward=(
            rank.reduced("loss statistics", "logsumexp", (rows, cols), size + INDEX_BYTES * rows, statistics),
            *rank.exchanged("gather loss", "all_gather", "tp", statistics * rank.tp),
            rank.reduced("loss gradient", "softmax", (rows, cols), size, size),
        ),
        backward=(rank.passed("loss scale", "mul_scalar", elements, size, size),),
    )
