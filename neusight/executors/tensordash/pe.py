"""The compiled part of the scheduler. It imports numba, so that nothing may import it before cycles are asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from neusight.executors.tensordash.schedule import Moves


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Machine code of a function, kept on disk wherever some folder for it can be written."""
    try:
        return njit(cache=True)(function)
    except RuntimeError:
        # Neither the package nor the user's cache folder can be written: compiled anew by every process.
        return njit(function)


@compiled
def _take(values: np.ndarray, left: np.ndarray, here: int, end: int, moves: Moves) -> None:
    """One cycle of one PE row whose buffer begins at step ``here``: every lane takes at most one value."""
    for lane in moves.order:
        if values[here, lane]:
            values[here, lane] = False
            continue
        for move in range(len(moves.ahead)):
            step, other = here + moves.ahead[move], moves.source[move, lane]
            if step < end and values[step, other]:
                values[step, other] = False
                left[step] -= 1
                break
    left[here] = 0


@compiled
def _empty_rows(left: np.ndarray, here: int, end: int, most: int) -> int:
    """Leading rows of a buffer, at most ``most``, that hold nothing any more; those beyond the stream's end count."""
    rows = 1
    while rows < most and (here + rows >= end or left[here + rows] == 0):
        rows += 1
    return rows


@compiled
def count_cycles(values: np.ndarray, schedules: tuple[np.ndarray, ...], moves: Moves, depth: int) -> np.ndarray:
    """Cycles of each of n schedules, shape (n,). ``values`` (steps, lanes) are consumed.

    ``schedules`` say where they lie among the steps, each of shape (n,): begins, streams (one a PE row) and lengths;
    the streams of a schedule follow one another.

    The PE rows of a schedule advance together, by the least of what each could.
    """
    begins, streams, lengths = schedules
    left = np.empty(len(values), dtype=np.int32)
    for step in range(len(values)):
        left[step] = np.sum(values[step])
    cycles = np.zeros(len(begins), dtype=np.int64)
    for i in range(len(begins)):
        at = 0
        while at < lengths[i]:
            rows = depth
            for stream in range(streams[i]):
                begin = begins[i] + stream * lengths[i]
                _take(values, left, begin + at, begin + lengths[i], moves)
                rows = _empty_rows(left, begin + at, begin + lengths[i], rows)
            at += rows
            cycles[i] += 1
    return cycles
