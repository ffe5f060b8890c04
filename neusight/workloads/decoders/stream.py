"""Norms and the residual stream, of which sequence-parallel ranks have a share of the tokens each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from neusight.workloads.decoders.layers import Norm
from neusight.workloads.decoders.operations import Operation, over_rows, pointwise
from neusight.workloads.decoders.products import bias_gradient
from neusight.workloads.decoders.rank import FLOAT_BYTES, Count, Rank
from neusight.workloads.program import HeldWeights, Part, SavedActivation


def normalise(
    rank: Rank,
    name: str,
    op: str,
    shape: tuple[Count, int],
    *,
    weights: int,
    more: tuple[Any, Any] = (0, 0),
    more_back: tuple[Any, Any] = (0, 0),
    readers: tuple[int, ...] = (1,),
) -> Operation:
    """A norm of ``shape`` (rows, columns) with ``weights`` values a column, or several of the same rows in one kernel.

    ``more`` and ``more_back`` [B] are what it and its gradient read and write beside a norm's own operands; ``readers``
    are the products that take the result of each norm, whose gradients are as many.
    """
    size, matrices = shape[0] * shape[1] * rank.size, (HeldWeights(len(readers) * weights * shape[1]),)
    more = more[0], more[1] + (len(readers) - 1) * size
    if rank.serves:
        return replace(over_rows(rank, name, op, *shape, more=more), held=matrices)
    more_back = more_back[0] + (sum(readers) - 1) * size, more_back[1]
    done = over_rows(rank, name, op, *shape, more=more, more_back=more_back)
    sums = [_weight_gradients(rank, name, op, (*shape, weights), (count - 1) * size) for count in readers if weights]
    return replace(done, weights=tuple(part for parts in sums for part in parts), held=matrices)


def _weight_gradients(
    rank: Rank, name: str, op: str, shape: tuple[Count, int, int], more_read: Count
) -> tuple[Part, ...]:
    """Sums over rows: a pass over gradient and input, or what is left of it where one kernel makes both gradients."""
    rows, cols, weights = shape
    sums = rank.accumulate(name, weights * cols)
    if rank.engine.joined_norm_gradients:
        return sums
    back = f"{op.removeprefix('add_')}_weight_backward"
    passed = rank.rows(f"{name} weight gradient", back, cols, int(rows), more_read=more_read)
    # PyTorch's norms launch it with that of the input; what Inductor generates is a kernel by itself.
    return (replace(passed, further=back in passed.batch["op"]), *sums)


def stream_norm(
    rank: Rank,
    norm: Norm,
    *,
    name: str = "norm",
    branches: bool = True,
    adds: int = 1,
    quantised: int = 0,
    readers: tuple[int, ...] = (1,),
) -> Iterator[Operation]:
    """A norm of the rank's part of the residual stream, or those of parallel branches in one kernel.

    Args:
        rank: on which.
        norm: which.
        name: what it is called.
        branches: the stream goes on as well, so that two gradients meet; else the norm gives what becomes the stream.
        adds: results of branches that wait to be added to the stream, where the engine leaves that to norms.
        quantised: how many of its results are 8 bits wide, for the products after it.
        readers: of each norm, the products whose gradients its own reads one by one.
    """
    shape, stream = (rank.resident_tokens, rank.hidden), rank.row_bytes(rank.resident_tokens)
    how, op = rank.engine.residual, norm.op
    if how == "add_norm" and adds and branches:
        if op == "rms_norm":
            name, op = f"add and {name}", "add_rms_norm"
        else:
            yield pointwise(rank, "residual", "add", *shape)
    waiting = adds if how == "norm" else 0
    summed = stream if waiting and branches else 0
    met = stream if how in ("norm", "add_norm") and branches else 0
    narrowed = quantised * (stream // rank.size * (rank.size - 1))
    # Dropout's mask, where the norm's kernel has that too.
    masks = int(shape[0] * shape[1]) if rank.engine.hidden_dropout and rank.engine.generated else 0
    more, more_back = (waiting * stream, summed + masks - narrowed), (met + masks, masks * rank.size)
    done = normalise(rank, name, op, shape, weights=norm.weights, more=more, more_back=more_back, readers=readers)
    if rank.serves and rank.tp > 1 and adds:
        separate = stream > rank.engine.reduced_norm_bytes
        done = replace(done, forward=tuple(replace(part, runs=part.runs * separate) for part in done.forward))
    yield replace(done, saved=_saved_activations(rank, norm))


def _saved_activations(rank: Rank, norm: Norm) -> tuple[SavedActivation, ...]:
    """Activations saved by a norm: its input, and one or two statistics of each row."""
    statistics = 2 if norm.op == "layer_norm" else 1
    return (
        SavedActivation(name="norm input", bytes=rank.row_bytes(rank.resident_tokens)),
        SavedActivation(name="norm statistics", bytes=statistics * FLOAT_BYTES * rank.resident_tokens),
    )


def residual(rank: Rank, *, bias: bool, ends: bool) -> Iterator[Operation]:
    """A branch's result to the stream, after dropout where the engine drops any: part of the norm that follows where
    pointwise work is generated.

    Args:
        rank: on which.
        bias: the result's product has left a bias to be added here.
        ends: no norm follows that could add it.
    """
    shape = rank.resident_tokens, rank.hidden
    added, drops = rank.engine.deferred_bias and bias, rank.engine.hidden_dropout
    for op in _residual_ops(rank, added=added, ends=ends):
        yield pointwise(rank, "residual", op, *shape)
    mask = SavedActivation(name="dropout mask", bytes=shape[0] * shape[1])
    yield Operation(weights=bias_gradient(rank, "residual", *shape) if added else (), saved=(mask,) if drops else ())


def _residual_ops(rank: Rank, *, added: bool, ends: bool) -> tuple[str, ...]:
    drops, how = rank.engine.hidden_dropout and not rank.engine.generated, rank.engine.residual
    if how == "fused":
        return ("_".join(("bias",) * added + ("dropout",) * drops + ("add",)),)
    adds = how == "eager" or (how == "add_norm" and ends)
    return ("dropout",) * drops + ("add",) * adds
