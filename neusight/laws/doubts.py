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
from typing import Any

import numpy as np

from neusight.quick_dataclasses import dataclass

Doubts = Mapping[str, float]
"""Signed standard deviations of a log error by key."""
NORMAL_90 = 1.645
"""Standard deviations to either side that enclose 90 % of a normal distribution (definition)."""
OWN = "own:"
"""Begin of the keys of errors that a kernel shares with none but itself."""
COMMON = 0.2
"""Share of the variance of what kernels of a kind have in common on a die that all kinds have in common there (fitted:
correlation between tile models of the biases of devices that they learned from, 82 pairs)."""


def spread(doubts: Doubts) -> float:
    """Standard deviation of a log error."""
    return sqrt(sum(size * size for size in doubts.values()))


def weighed(parts: Iterable[tuple[Any, Mapping[str, Any]]]) -> dict[str, Any]:
    """Doubts of a sum of figures, each with its share of the sum, as numbers or columns; with shares 1 and -1 those of
    a ratio.
    """
    sums: dict[str, Any] = {}
    for share, doubts in parts:
        for key, size in doubts.items():
            sums[key] = sums.get(key, 0.0) + share * size
    return sums


def common(key: str, size: Any) -> dict[str, Any]:
    """Doubts of a kind of kernels on a die, ``device:gh100/gemm``: a part that all kinds share there, and the rest."""
    return {key.partition("/")[0]: COMMON**0.5 * size, key: (1.0 - COMMON) ** 0.5 * size}


def own_key(key: str, what: str) -> str:
    """Key of the error of a kernel by itself, in words, on the die of a ``key`` of kernels of a kind."""
    return f"{OWN}{key.partition(':')[2].partition('/')[0]}/{what}"


def by_cause(doubts: Doubts) -> dict[str, float]:
    """Standard deviations by the word before the colon of their keys, in quadrature, the largest first; errors of
    single kernels as ``kernel``.
    """
    squares = weighed((1.0, {key.partition(":")[0]: size * size}) for key, size in doubts.items())
    ordered = sorted(squares.items(), key=lambda item: -item[1])
    return {"kernel" if cause == "own" else cause: sqrt(square) for cause, square in ordered if square}


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
