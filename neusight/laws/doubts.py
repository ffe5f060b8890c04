"""Doubts: what may be wrong with a figure, by named cause, and what measurements of other figures say of it.

The log error of a figure is a sum of signed sizes, each times a standard normal value that all figures with a doubt of
the same key share: ``log(true / predicted) = sum over keys of size[key] * value[key]``. So doubts of a sum of figures
add up key by key, those of a ratio subtract key by key, and whoever measures one figure learns of each that shares a
key with it, by normal conditioning (Rasmussen and Williams 2006, equation A.6).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from math import sqrt

import numpy as np

from neusight.quick_dataclasses import dataclass

Doubts = Mapping[str, float]
"""Signed standard deviations of a log error by key."""


def spread(doubts: Doubts) -> float:
    """Standard deviation of a log error."""
    return sqrt(sum(size * size for size in doubts.values()))


def weighed(parts: Iterable[tuple[float, Doubts]]) -> dict[str, float]:
    """Doubts of a sum of figures, each with its share of the sum; with shares 1 and -1 those of a ratio."""
    sums: dict[str, float] = {}
    for share, doubts in parts:
        for key, size in doubts.items():
            sums[key] = sums.get(key, 0.0) + share * size
    return sums


@dataclass(frozen=True)
class Anchors:
    """Measured figures: the doubts of each prediction, log(measured / predicted), shape (n,), and the standard
    deviation of each of these that is measurement's own, shape (n,).
    """

    doubts: Sequence[Doubts]
    log_ratio: np.ndarray
    noise: np.ndarray

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Of all doubts of the measured figures."""
        return tuple(dict.fromkeys(key for doubts in self.doubts for key in doubts))

    @cached_property
    def _sizes(self) -> np.ndarray:
        return np.array([self._of(doubts) for doubts in self.doubts]).reshape(len(self.doubts), len(self.keys))

    def _of(self, doubts: Doubts) -> list[float]:
        return [doubts.get(key, 0.0) for key in self.keys]

    @cached_property
    def _gain(self) -> np.ndarray:
        covariance = self._sizes @ self._sizes.T + np.diag(np.asarray(self.noise, dtype=float) ** 2)
        return np.asarray(np.linalg.solve(covariance, self._sizes).T)

    @cached_property
    def values(self) -> dict[str, float]:
        """What each key's standard normal value is expected to be."""
        return dict(zip(self.keys, (self._gain @ self.log_ratio).tolist(), strict=True))

    def shift(self, doubts: Doubts) -> float:
        """Expected log(true / predicted) of another figure."""
        return sum(size * self.values.get(key, 0.0) for key, size in doubts.items())

    def spread(self, doubts: Doubts) -> float:
        """Standard deviation of the log error that remains of it."""
        shared = np.array(self._of(doubts))
        learned = float(shared @ self._gain @ self._sizes @ shared)
        return sqrt(max(spread(doubts) ** 2 - learned, 0.0))
