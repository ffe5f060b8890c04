"""Cycles that TensorDash's processing elements take for streams of effectual and ineffectual values.

A mask has shape (R, T, lanes): R streams, one for each PE row of a tile, of T steps (rows of a dense schedule, one a
cycle); True is an effectual (non-zero) value of the scheduled operand. A dense machine takes T cycles.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from neusight.errors import DataError, DeviceError
from neusight.executors.tensordash.options import DEPTH, is_count, moves_of


def schedule_cycles(mask: np.ndarray, options: str = "oldest-row", depth: int = DEPTH) -> int:
    """Cycles of one tile for R streams that advance together, exact (TensorDash, section 3).

    In a cycle each lane takes its own value of the buffer's first row if that is effectual, else the first effectual
    one that its option list reaches; then all buffers advance over the leading rows that are empty in every PE row.

    Args:
        mask: booleans of shape (R, T, lanes), True where effectual; it is left as it is.
        options: ``oldest-row`` or ``lookahead-first``, see ``OPTION_LISTS``.
        depth: rows of the staging buffer; 1 is the dense machine.

    Raises:
        DataError: a mask that is no boolean array of three dimensions, or is empty.
        DeviceError: an unknown option list, or a depth below 1.
    """
    return int(schedule_many([mask], options, depth)[0])


def schedule_many(
    masks: Sequence[np.ndarray] | np.ndarray, options: str = "oldest-row", depth: int = DEPTH
) -> np.ndarray:
    """``schedule_cycles`` of many masks in one call, shape (n,): R and T may differ, lanes may not.

    Raises:
        DataError: a malformed mask, or masks of different lanes.
        DeviceError: an unknown option list, or a depth below 1.
    """
    if len(masks) == 0:
        return np.zeros(0, dtype=np.int64)
    for mask in masks:
        check_mask(mask)
    if len(lanes := {mask.shape[2] for mask in masks}) > 1:
        raise DataError(f"masks of one call have the same lanes, not {', '.join(map(str, sorted(lanes)))}")
    streams = np.array([mask.shape[0] for mask in masks])
    lengths = np.array([mask.shape[1] for mask in masks])
    # A copy, since scheduling consumes the values.
    values = np.concatenate([mask.reshape(-1, mask.shape[2]) for mask in masks])
    ends = np.cumsum(streams * lengths)
    return _count(values, (ends - streams * lengths, streams, lengths), options, depth)


def schedule_passes(mask: np.ndarray, rows: int, options: str = "oldest-row", depth: int = DEPTH) -> np.ndarray:
    """Cycles of each pass of a tile with ``rows`` PE rows over more streams than that, shape (⌈streams / rows⌉,).

    The last pass has the streams that are left; idle PE rows hold nobody up.

    Raises:
        DataError: a malformed mask.
        DeviceError: an unknown option list, or a depth or a number of PE rows below 1.
    """
    check_mask(mask)
    if not is_count(rows):
        raise DeviceError(f"a tile has a whole number of PE rows, 1 or more, not {rows!r}")
    count, length, lanes = mask.shape
    first = np.arange(0, count, rows)
    values = mask.reshape(-1, lanes).copy()
    lengths = np.full(len(first), length)
    return _count(values, (first * length, np.minimum(rows, count - first), lengths), options, depth)


def check_mask(mask: np.ndarray) -> None:
    """Hold that a mask is what the scheduler takes.

    Raises:
        DataError: it is no boolean array of three dimensions, or is empty.
    """
    if not isinstance(mask, np.ndarray):
        raise DataError(f"a mask is a numpy array of booleans, not {type(mask).__name__}")
    if mask.dtype != np.bool_:
        raise DataError(f"a mask holds booleans, True where effectual, not {mask.dtype}: compare the values with 0")
    if mask.ndim != 3 or 0 in mask.shape:
        raise DataError(f"a mask has shape (streams, steps, lanes), none of them 0, not {mask.shape}")


def _count(values: np.ndarray, schedules: tuple[np.ndarray, ...], options: str, depth: int) -> np.ndarray:
    """Cycles of schedules by their begins, streams and lengths."""
    moves = moves_of(options, values.shape[1], depth)
    from neusight.executors.tensordash.pe import Schedules, count_cycles

    return count_cycles(values, Schedules(*schedules), moves, depth)
