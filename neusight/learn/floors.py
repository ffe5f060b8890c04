"""Launch floors: how much of a measured latency is the launch, of a whole op and of every row.

A lone kernel takes time before and after its work: the launch, which replays of a graph do not show, and the start of
its blocks, which they do. Both count as launch, since neither goes with the work. Where executions were timed, the
first is measured row by row and the second is the shortest execution; else both are the shortest latency.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from neusight.learn.training_data import DeviceRows

FLOOR_ROWS = 20
FLOOR_LIMIT_S = 70e-6
"""A GPU whose fastest rows of an op take longer than this never measured an empty launch of it."""
START_LIMIT_S = 10e-6
"""The same for executions: blocks start within a few microseconds (assumption)."""
USUAL_FLOOR_S = 3e-5
SHORTEST_SHARE = 0.1
"""Rows whose launch stands for the op's: in longer ones the noise of the execution is as large as a launch."""


def launch_floors(rows: Sequence[DeviceRows]) -> dict[str, float]:
    """Seconds that a lone launch of each op takes beyond its work: the median over GPUs of their floors."""
    floors: dict[str, list[float]] = {}
    for r in rows:
        for op in np.unique(r.batch["op"]):
            floor = _floor(r, r.batch["op"] == op)
            if floor is not None:
                floors.setdefault(str(op), []).append(floor)
    return {op: float(np.median(values)) for op, values in sorted(floors.items())}


def row_floors(r: DeviceRows, floors: dict[str, float]) -> np.ndarray:
    """Seconds of each row of a GPU that are launch, at most 97 % of it.

    Of rows with an execution their own, of others the GPU's floor of the op, or where it has none that of ``floors``.
    """
    ops = r.batch["op"].astype(str)
    floor_s = np.empty(len(ops))
    for op in np.unique(ops):
        own, least = _floor(r, ops == op), r.latency_s[ops == op].min()
        floor_s[ops == op] = own if own is not None else min(floors.get(op, USUAL_FLOOR_S), 0.9 * least)
        timed = (ops == op) & (r.execution_s > 0)
        if timed.any():
            floor_s[timed] = _beside_work(r, timed)
    return np.minimum(floor_s, 0.97 * r.latency_s)


def _floor(r: DeviceRows, mask: np.ndarray) -> float | None:
    """Of an op's shortest rows, where executions were timed; else a GPU's fastest rows of an op are all launch, when
    there are enough of them and they are fast.
    """
    timed = mask & (r.execution_s > 0)
    if timed.any():
        shortest = np.argsort(r.latency_s[timed])[: int(np.ceil(SHORTEST_SHARE * timed.sum()))]
        return float(np.median(_beside_work(r, timed)[shortest]))
    return _fastest(r.latency_s[mask], FLOOR_LIMIT_S)


def _beside_work(r: DeviceRows, timed: np.ndarray) -> np.ndarray:
    """Latency less execution, plus the start of the blocks: the op's shortest execution, or that of the family."""
    start_s = _fastest(r.execution_s[timed], START_LIMIT_S)
    if start_s is None:
        start_s = _fastest(r.execution_s[r.execution_s > 0], START_LIMIT_S)
    # No launch at all would have no logarithm.
    return np.maximum(r.latency_s[timed] - r.execution_s[timed], 1e-9) + (start_s or 0.0)


def _fastest(times_s: np.ndarray, limit_s: float) -> float | None:
    """A little less than the shortest time, but for outliers; None where too few or too slow rows tell nothing."""
    fastest = float(np.quantile(times_s, 0.002))
    return 0.97 * fastest if len(times_s) >= FLOOR_ROWS and fastest < limit_s else None
