"""Cycles that TensorDash's processing elements take for streams of effectual and ineffectual values (section 3).

A mask has shape (R, T, lanes): R streams, one for each PE row of a tile, of T steps (rows of a dense schedule, one a
cycle); True is an effectual (non-zero) value of the scheduled operand. A dense machine takes T cycles.

In a cycle each lane takes its own value of the buffer's first row if that is effectual, else the first effectual one
that ``MOVES`` reach; then all buffers advance over the leading rows that are empty in every PE row.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from neusight.errors import DataError, DeviceError

LANES = 16
"""Multipliers of a processing element (cited: Mahmoud et al. 2020, TensorDash)."""
DEPTH = 3
"""Rows of a staging buffer: the current one and two ahead (cited: Mahmoud et al. 2020, TensorDash)."""
MOVES = ((1, -1), (1, 0), (1, 1), (1, 3), (2, -2), (2, 0), (2, 2))
"""What a lane may take in a cycle (rows ahead, lanes aside) by priority, after its own value: the order of the
simulator that the authors published, which empties the oldest row first (cited: its source)."""
_APART = 5
"""Lanes of a level lie this far apart: no move reaches so far that two of them could want the same value
(definition)."""


class Moves(NamedTuple):
    """The scheduler's tables: ``order`` (lanes,) of deciding, ``ahead`` (moves,) in rows, ``source`` (moves, lanes):
    the lane that a move takes from, for each lane.
    """

    order: np.ndarray
    ahead: np.ndarray
    source: np.ndarray


def lane_order(lanes: int) -> np.ndarray:
    """The order in which lanes decide: 0,5,10, 1,6,11, 2,7,12, 3,8,13, 4,9,14, 15 for 16 lanes, shape (lanes,).

    The paper has 16 lanes alone. For other counts the same rule is carried over: lanes five apart form a level, and
    what is left over at the end decides last, one by one, since it lies too close to the first lanes by wrap-around.
    """
    even = lanes - lanes % _APART
    levels = np.arange(even).reshape(-1, _APART).T.ravel()
    return np.concatenate([levels, np.arange(even, lanes)])


@lru_cache(maxsize=64)
def moves_of(lanes: int, depth: int) -> Moves:
    """The scheduler's tables; moves that look further ahead than the buffer is deep are left out.

    Raises:
        DeviceError: a buffer of less than one row.
    """
    if depth < 1:
        raise DeviceError(f"a staging buffer holds 1 row or more, not depth={depth}")
    ahead, aside = np.array([move for move in MOVES if move[0] < depth], dtype=np.int64).reshape(-1, 2).T
    return Moves(lane_order(lanes), ahead.copy(), (np.arange(lanes) + aside[:, None]) % lanes)


def schedule_cycles(mask: np.ndarray, depth: int = DEPTH) -> int:
    """Cycles of one tile for R streams that advance together, exact.

    Args:
        mask: booleans of shape (R, T, lanes), True where effectual; it is left as it is.
        depth: rows of the staging buffer; 1 is the dense machine.

    Raises:
        DataError: a mask that is no boolean array of three dimensions, or is empty.
        DeviceError: a depth below 1.
    """
    return int(schedule_passes(mask, max(len(mask), 1), depth)[0])


def schedule_passes(mask: np.ndarray, rows: int, depth: int = DEPTH) -> np.ndarray:
    """Cycles of each pass of a tile with ``rows`` PE rows over more streams than that, shape (⌈streams / rows⌉,).

    The last pass has the streams that are left; idle PE rows hold nobody up.

    Raises:
        DataError: a malformed mask.
        DeviceError: a depth or a number of PE rows below 1.
    """
    check_mask(mask)
    if rows < 1:
        raise DeviceError(f"a tile has 1 PE row or more, not {rows}")
    count, length, lanes = mask.shape
    moves = moves_of(lanes, depth)
    from neusight.executors.tensordash.pe import count_cycles

    first = np.arange(0, count, rows)
    # A copy, since scheduling consumes the values.
    values = mask.reshape(-1, lanes).copy()
    schedules = first * length, np.minimum(rows, count - first), np.full(len(first), length)
    return count_cycles(values, schedules, moves, depth)


def check_mask(mask: np.ndarray) -> None:
    """Hold that a mask is what the scheduler takes.

    Raises:
        DataError: it is no boolean array of three dimensions, or is empty.
    """
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
        kind = mask.dtype if isinstance(mask, np.ndarray) else type(mask).__name__
        raise DataError(f"a mask is a numpy array of booleans, True where effectual, not {kind}")
    if mask.ndim != 3 or 0 in mask.shape:
        raise DataError(f"a mask has shape (streams, steps, lanes), none of them 0, not {mask.shape}")
