"""Tasks that wait for each other, and when each ends: one pass over levels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

NOTHING = -1
"""Placeholder where a task waits for no other."""


@dataclass(frozen=True)
class Graph:
    """Tasks in an order in which none comes before what it waits for, level by level.

    Attributes:
        labels: columns by name, each of shape (tasks,).
        after: (3, tasks), what each waits for: what comes before it in its stream, a task of another rank, and a task
            of another stream of its own rank; ``len(self)`` for nothing.
        concurrent: (tasks,), the last communication that may still run when a task starts and then slows it down.
        levels: first and last task (exclusive) of each level; tasks of a level do not wait for each other.
    """

    labels: dict[str, np.ndarray]
    after: np.ndarray
    concurrent: np.ndarray
    levels: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        return len(self.concurrent)

    def ends_s(self, seconds: np.ndarray, contention: float = 0.0) -> np.ndarray:
        """When each task ends.

            start = max(ends of what it waits for)
            end   = start + took + min(took s / (1 - s), s max(0, end of concurrent communication - start))

        Args:
            seconds: that each task takes alone, shape (tasks,).
            contention: share ``s`` of the computing that concurrent communication takes away.

        Returns:
            Shape (tasks + 1,), the last of nothing, which ends at 0.
        """
        ends = np.zeros(len(self) + 1)
        for first, last in self.levels:
            start = ends[self.after[:, first:last]].max(axis=0)
            took = seconds[first:last]
            if contention > 0.0:
                took = took + lost_s(took, start, ends[self.concurrent[first:last]], contention)
            np.add(start, took, out=ends[first:last])
        return ends

    def slopes(self, seconds: np.ndarray, ends: np.ndarray, contention: float = 0.0) -> np.ndarray:
        """Derivative of the last task's end with each task's seconds: above 0 on the critical path.

        The end is a sum of seconds times slopes, since it is homogeneous in them.

        Args:
            seconds: shape (tasks,).
            ends: of ``ends_s``.
            contention: as there.
        """
        weight, slopes = np.zeros(len(self) + 1), np.zeros(len(self))
        weight[np.argmax(ends[:-1])] = 1.0
        for task in range(len(self) - 1, -1, -1):
            if weight[task] == 0.0:
                continue
            waited = self.after[np.argmax(ends[self.after[:, task]]), task]
            lengthening, concurrent = _shares(seconds[task], ends[self.concurrent[task]] - ends[waited], contention)
            slopes[task] = weight[task] * lengthening
            weight[waited] += weight[task] * (1.0 - concurrent)
            weight[self.concurrent[task]] += weight[task] * concurrent
        return slopes


def lost_s(took: np.ndarray, start: np.ndarray, concurrent: np.ndarray, contention: float) -> np.ndarray:
    """Seconds by which communication that ends at ``concurrent`` lengthens a task that starts at ``start``."""
    return np.minimum(took * contention / (1.0 - contention), contention * np.maximum(0.0, concurrent - start))


def _shares(took: float, remains: float, contention: float) -> tuple[float, float]:
    """Slopes of a task's end with its own seconds and with the end of the concurrent communication."""
    if contention <= 0.0 or remains <= 0.0:
        return 1.0, 0.0
    if took / (1.0 - contention) <= remains:
        return 1.0 / (1.0 - contention), 0.0
    return 1.0, contention


@dataclass
class Tasks:
    """A graph in the making: tasks are added after all that they wait for."""

    names: Sequence[str]
    _rows: list[tuple[int, ...]] = field(default_factory=list)
    _after: list[tuple[int, int, int]] = field(default_factory=list)
    _concurrent: list[int] = field(default_factory=list)
    _level: list[int] = field(default_factory=lambda: [NOTHING])

    def add(self, label: tuple[int, ...], before: int, other: int, own: int, concurrent: int = NOTHING) -> int:
        """The number of a new task, which waits for the one before it in its stream, one of another rank, and one of
        another stream of its own rank.
        """
        level, number = self._level, len(self._concurrent)
        self._rows.append(label)
        self._after.append((before, other, own))
        self._concurrent.append(concurrent)
        # The last entry is always that of nothing: NOTHING finds it from behind.
        level[-1] = 1 + max(level[before], level[other], level[own], level[concurrent])
        level.append(NOTHING)
        return number

    def graph(self) -> Graph:
        """Tasks sorted by level."""
        level = np.array(self._level[:-1])
        order = np.argsort(level, kind="stable")
        place = np.append(np.argsort(order, kind="stable"), len(order))
        columns = np.array(self._rows)[order].T
        bounds = np.searchsorted(level[order], np.arange(level.max() + 2)).tolist()
        return Graph(
            labels=dict(zip(self.names, columns, strict=True)),
            after=place[np.array(self._after)[order].T],
            concurrent=place[np.array(self._concurrent)[order]],
            levels=tuple(pairwise(bounds)),
        )
