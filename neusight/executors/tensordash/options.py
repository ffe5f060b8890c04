"""What a multiplier lane may take in a cycle, and in which order the lanes decide (TensorDash, section 3)."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from neusight.errors import DeviceError, nearest

LANES = 16
"""Multipliers of a processing element."""

DEPTH = 3
"""Rows of a staging buffer: the current one and two ahead."""

OPTION_LISTS: dict[str, tuple[tuple[int, int], ...]] = {
    "oldest-row": ((1, -1), (1, 0), (1, 1), (1, 3), (2, -2), (2, 0), (2, 2)),
    "lookahead-first": ((1, 0), (2, 0), (1, -1), (1, 1), (1, -3), (2, -2), (2, 2)),
}
"""Moves (rows ahead, lanes aside) by priority, after a lane's own value. ``oldest-row`` is the order of the simulator
that the authors published, ``lookahead-first`` that of the paper's text (recalled, an assumption)."""

_APART = 5
"""Lanes of a level lie this far apart: no move reaches so far that two of them could want the same value."""


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


def moves_of(options: str, lanes: int, depth: int) -> Moves:
    """Tables of an option list; moves that look further ahead than the buffer is deep are left out.

    Raises:
        DeviceError: an unknown option list, or a buffer of less than one row.
    """
    if not isinstance(options, str) or options not in OPTION_LISTS:
        hint = nearest(str(options), OPTION_LISTS)
        raise DeviceError(f"unknown option list {options!r}: one of {', '.join(OPTION_LISTS)}{hint}")
    if not is_count(depth):
        raise DeviceError(f"a staging buffer holds a whole number of rows, 1 or more, not depth={depth!r}")
    return _tables(options, lanes, int(depth))


def is_count(number: object) -> bool:
    """Whether it is a whole number of 1 or more."""
    return isinstance(number, int | np.integer) and not isinstance(number, bool) and int(number) >= 1


@lru_cache(maxsize=64)
def _tables(options: str, lanes: int, depth: int) -> Moves:
    within = [move for move in OPTION_LISTS[options] if move[0] < depth]
    ahead = np.array([rows for rows, _ in within], dtype=np.int64)
    aside = np.array([lanes_aside for _, lanes_aside in within], dtype=np.int64)
    return Moves(lane_order(lanes), ahead, (np.arange(lanes) + aside[:, None]) % lanes)
