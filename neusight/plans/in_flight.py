"""How many forward passes a rank keeps activations of at a time."""

from __future__ import annotations

from functools import lru_cache

from neusight.plans.order import order_of


@lru_cache(maxsize=4096)
def in_flight(schedule: str, p: int, v: int, m: int, rank: int) -> int:
    """Most passes of a micro-batch through one of a rank's ``v`` chunks whose activations are alive at once.

    Activations are alive from a forward pass to the end of the pass that gives its weights' gradients. Each pass is of
    one chunk, ``1 / v`` of the rank's layers. Arguments and errors as for ``order_of``.
    """
    return max(sum(live) for live in _lives(schedule, p, v, m, rank))


@lru_cache(maxsize=4096)
def in_flight_by_chunk(schedule: str, p: int, v: int, m: int, rank: int) -> tuple[int, ...]:
    """``in_flight`` chunk by chunk, first to last, at the first moment at which most are alive: for chunks of unequal
    size.
    """
    return max(_lives(schedule, p, v, m, rank), key=sum)


def _lives(schedule: str, p: int, v: int, m: int, rank: int) -> list[tuple[int, ...]]:
    """Passes alive in each chunk after each forward pass."""
    ends = "weights" if schedule == "zero-bubble" else "backward"
    live, seen = [0] * v, []
    for op in order_of(schedule, p, v, m, rank):
        live[op.chunk] += (op.of == "forward") - (op.of == ends)
        if op.of == "forward":
            seen.append(tuple(live))
    return seen
