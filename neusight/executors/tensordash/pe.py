"""The compiled part of the scheduler. It imports numba, so that nothing may import it before cycles are asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Machine code of a function, kept on disk wherever some folder for it can be written."""
    try:
        return njit(cache=True)(function)
    except RuntimeError:
        # Neither the package nor the user's cache folder can be written: compiled anew by every process.
        return njit(function)


@compiled
def _take(
    values: np.ndarray,
    left: np.ndarray,
    here: int,
    end: int,
    order: np.ndarray,
    ahead: np.ndarray,
    source: np.ndarray,
) -> None:
    """One cycle of one PE row whose buffer begins at step ``here``: every lane takes at most one value."""
    for lane in order:
        if values[here, lane]:
            values[here, lane] = False
            continue
        for move in range(len(ahead)):
            step, other = here + ahead[move], source[move, lane]
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
def count_cycles(
    values: np.ndarray,
    begins: np.ndarray,
    streams: np.ndarray,
    lengths: np.ndarray,
    order: np.ndarray,
    ahead: np.ndarray,
    source: np.ndarray,
    depth: int,
) -> np.ndarray:
    """Cycles of each of n schedules, shape (n,). ``values`` (steps, lanes) are consumed.

    Schedule i has ``streams[i]`` streams, one a PE row, of ``lengths[i]`` steps each, that follow one another in
    ``values`` from step ``begins[i]`` on. Its PE rows advance together, by the least of what each could.
    """
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
                _take(values, left, begin + at, begin + lengths[i], order, ahead, source)
                rows = _empty_rows(left, begin + at, begin + lengths[i], rows)
            at += rows
            cycles[i] += 1
    return cycles
