"""``Book``: what passes take part by part, with errors and energies, looked up between passes that are priced once.

Times of passes come from ``tables``, point by point of a tile; shares of parts, spreads and energies change slowly, so
that a few hundred passes hold them for every load that a deployment is asked about.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from neusight.workloads.decoders.steps import Steps

Key = tuple[str, str]
"""A kind of sum (``part``, ``group``, ``error``, ``energy``), and whose it is."""
PART, GROUP = "part", "group"
SHARED, OWN, ENERGY = ("error", "shared"), ("error", "own"), ("energy", "")
_SQRT2 = 2**0.5


@dataclass(frozen=True, kw_only=True)
class PassSums:
    """What adds up over the kernels of passes, columns of shape (n,).

    ``columns`` are times [s] by part and group, of errors that kernels share the sum [s], of their own the sum of
    squares [s²], and energies [J]; ``limiters`` name the resource of each part.
    """

    columns: Mapping[Key, np.ndarray]
    limiters: Mapping[str, np.ndarray]


Price = Callable[[Steps, Collection[str]], PassSums]
"""Sums over the kernels of some groups."""


class Book:
    """Sums of passes between those that were priced: linear in each direction, limiters of the nearest.

    As in ``TabulatedSteps`` a sum is taken as a function of a pass's tokens plus one of its sequences, and those of the
    attention of sequences that generate and of prompts, here of whole prompts without context.
    """

    def __init__(self, price: Price, beside: Collection[str], *, max_tokens: int, max_num_seqs: int, max_len: int):
        tokens = _powers(max(max_tokens, max_num_seqs), _SQRT2)
        sequences, cached = _powers(max_num_seqs, 2.0), np.append(0, _powers(max(16, max_len), 2.0)[4:])
        new, prompts = _powers(max(16, max_tokens), _SQRT2)[2:], _powers(max(2, max_num_seqs), 4.0)
        self.alone = _Grid([tokens], lambda t: price(Steps.of(prompts=1, prompt_tokens=t), beside))
        self.apart = _Grid([sequences], lambda n: price(Steps.of(decodes=n), beside))
        self.decodes = _Grid([sequences, cached], lambda n, c: price(Steps.of(decodes=n, decode_cached=c), ("decode",)))
        self.prompts = _Grid([prompts, new], lambda p, t: price(Steps.of(prompts=p, prompt_tokens=t), ("context",)))

    def sums(self, steps: Steps) -> PassSums:
        """Of passes within the limits that the book was made for, whose prompts have no context."""
        alone, apart = self.alone.at(steps.tokens), self.apart.at(steps.sequences)
        less = self.alone.at(steps.sequences)
        beside = {key: np.maximum(alone[key] + apart[key] - less[key], 0.0) for key in alone}
        decodes = self.decodes.at(steps.decodes, steps.decode_cached)
        prompts = self.prompts.at(steps.prompts, steps.prompt_tokens)
        found = [beside, _where(steps.decodes > 0, decodes), _where(steps.prompts > 0, prompts)]
        columns = {key: sum((c[key] for c in found if key in c), np.zeros(len(steps))) for c in found for key in c}
        return PassSums(columns=columns, limiters=self._limiters(steps))

    def _limiters(self, steps: Steps) -> dict[str, np.ndarray]:
        alone, apart = self.alone.limiters(steps.tokens), self.apart.limiters(steps.sequences)
        beside = {part: np.where(steps.prompts > 0, alone[part], apart[part]) for part in alone}
        decodes = self.decodes.limiters(steps.decodes, steps.decode_cached)
        return {**beside, **decodes, **self.prompts.limiters(steps.prompts, steps.prompt_tokens)}


class _Grid:
    """Sums at the points of a grid, and between them; what lies beyond an end counts as the end."""

    def __init__(self, axes: Sequence[np.ndarray], price: Callable[..., PassSums]) -> None:
        self.axes = axes
        shape = tuple(len(axis) for axis in axes)
        found = price(*(axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")))
        self.keys = tuple(found.columns)
        self.values = np.stack([found.columns[key] for key in self.keys], axis=-1).reshape(*shape, -1)
        self.names = {part: column.reshape(shape) for part, column in found.limiters.items()}

    def at(self, *places: np.ndarray) -> dict[Key, np.ndarray]:
        """Columns at places, a column of shape (n,) for each axis."""
        begins, shares = zip(*(_between(axis, at) for axis, at in zip(self.axes, places, strict=True)), strict=True)
        total = np.zeros((len(places[0]), len(self.keys)))
        for corner in product((0, 1), repeat=len(self.axes)):
            weights = [share if end else 1.0 - share for share, end in zip(shares, corner, strict=True)]
            rows = tuple(begin + end for begin, end in zip(begins, corner, strict=True))
            total += np.prod(weights, axis=0)[:, None] * self.values[rows]
        return dict(zip(self.keys, total.T, strict=True))

    def limiters(self, *places: np.ndarray) -> dict[str, np.ndarray]:
        """Those of the nearest point."""
        found = [_between(axis, at) for axis, at in zip(self.axes, places, strict=True)]
        rows = tuple(begin + (share > 0.5) for begin, share in found)
        return {part: names[rows] for part, names in self.names.items()}


def _between(axis: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The point before each place that has one behind it, and how far between both the place lies."""
    at = np.clip(at, axis[0], axis[-1])
    begin = np.clip(np.searchsorted(axis, at, side="right") - 1, 0, len(axis) - 2)
    return begin, (at - axis[begin]) / (axis[begin + 1] - axis[begin])


def _powers(end: int, base: float) -> np.ndarray:
    """Powers of ``base`` from 1, rounded, below ``end``, and that; two points at least."""
    exponents = np.arange(np.ceil(np.log(max(end, 2)) / np.log(base)))
    return np.unique(np.append(np.rint(base**exponents), max(end, 2)).astype(np.int64))


def _where(mask: np.ndarray, columns: Mapping[Key, np.ndarray]) -> dict[Key, np.ndarray]:
    return {key: np.where(mask, column, 0.0) for key, column in columns.items()}
