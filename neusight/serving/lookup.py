"""Passes looked up between those that are priced once, some thousand at a time.

``TabulatedPasses``: times for a simulation, which needs them one by one. The time of a pass is the sum of what its
tokens take, whoever brings them, and what the attention of those that generate and of those that bring prompts
takes. Between the points of a table times are interpolated linearly, in each direction at a time: a floor and any
product of sequences, tokens and cached tokens are exact in it.

``PassInterpolator``: what passes take part by part, with errors and energies. These shares change slowly, so that a few
hundred passes hold them for every load that a deployment is asked about.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from neusight.errors import LoadError
from neusight.serving.batching import Chunks
from neusight.workloads.decoders.shares import Steps

Price = Callable[[Steps], np.ndarray]
"""Times [s] of passes, of shape (n,), or of a part of them."""


class PassSizes(NamedTuple):
    """The largest passes of tables: new tokens and sequences of a pass, and tokens in the cache behind a sequence."""

    tokens: int
    sequences: int
    length: int


SMALLEST = PassSizes(tokens=1, sequences=1, length=1)

_ODD = np.uint64(6364136223846793005)
"""Tells passes apart whose columns have the same values."""


class PricedPasses:
    """Columns of passes by name, each pass priced once: tables that end at other sizes share nearly all of theirs."""

    def __init__(self) -> None:
        self._codes = np.zeros(0, np.uint64)
        self._columns: dict[Hashable, np.ndarray] = {}

    def columns(self, steps: Steps, price: Callable[[Steps], Mapping[Any, np.ndarray]]) -> dict[Any, np.ndarray]:
        """Columns of passes of whole numbers, shape (n,); ``price`` is asked for those that are new."""
        codes = np.zeros(len(steps), np.uint64)
        for column in vars(steps).values():
            codes = codes * _ODD + column.astype(np.int64).view(np.uint64)
        if len(new := np.flatnonzero(~np.isin(codes, self._codes))):
            priced = price(Steps(**{name: column[new] for name, column in vars(steps).items()}))
            self._codes, order = np.unique(np.append(self._codes, codes[new]), return_index=True)
            self._columns = {
                name: np.append(self._columns.get(name, column[:0]), column)[order] for name, column in priced.items()
            }
        rows = np.searchsorted(self._codes, codes)
        return {name: column[rows] for name, column in self._columns.items()}


_TOKENS = ((256, 1), (8192, 64), (65536, 512), (2**40, 4096))
_SEQUENCES = ((256, 1), (2**40, 16))
_CHUNK = ((16, 16), (64, 32), (512, 64), (2048, 128), (4096, 256), (8192, 512), (65536, 4096), (2**40, 65536))
"""Up to how many tokens or sequences tables have a point at each of how many. Kernels work in tiles whose rows are
powers of two: a point stands on a tile's last row and one on the row behind it, so that steps are met, not smoothed."""


class TabulatedPasses:
    """``PassTimes`` from tables for passes of up to some sizes.

    Each price is asked once, for some hundred to some thousand passes, some of prompts with more tokens than a pass
    has.

    Args:
        sizes: of the largest pass.
        tokens: price of all but attention, the host included: a function of a pass's tokens plus one of its sequences
            (a head that sees the last token of each). Asked for single prompts and for passes that only generate.
        decodes: of the attention of sequences that generate, by ``decodes`` and ``decode_cached``.
        chunks: of the attention of prompts, by ``prompts``, ``prompt_tokens`` and ``prompt_cached``.
        queries: tokens that each sequence that generates brings to a pass.
    """

    def __init__(self, sizes: PassSizes, *, tokens: Price, decodes: Price, chunks: Price, queries: int = 1) -> None:
        tokens_s, sequences_s = _token_tables(_verified(tokens, queries), sizes, queries)
        self.tokens_s: list[float] = tokens_s.tolist()
        self.sequences_s: list[float] = sequences_s.tolist()
        self.decodes = _DecodeTable(_verified(decodes, queries), sizes, queries)
        self.chunks = _ChunkTables(chunks, sizes)

    def pass_s(self, new_tokens: int, chunks: Chunks, decodes: int, decode_cached_sum: float) -> float:
        """Time of one pass [s]. Each of several chunks takes its share of as many that are all like it: with a floor
        for all of them, and with work that adds up, that is exact.

        Raises:
            LoadError: a pass with more tokens, sequences or context than the tables have.
        """
        try:
            time_s = self.tokens_s[new_tokens] + self.sequences_s[len(chunks) + decodes]
        except IndexError:
            size = f"a pass of {new_tokens} tokens and {len(chunks) + decodes} sequences"
            most = f"{len(self.tokens_s) - 1} and {len(self.sequences_s) - 1}"
            raise LoadError(f"{size} is beyond the tables, which end at {most}: tabulate more") from None
        if decodes:
            time_s += self.decodes.at(decodes, decode_cached_sum / decodes)
        for new, cached in chunks:
            time_s += self.chunks.at(len(chunks), new, cached) / len(chunks)
        return time_s


def _verified(price: Price, queries: int) -> Price:
    """Prices of passes whose sequences bring several tokens: no less than with one each, which what was learned of
    kernels with few rows does not ensure by itself.
    """
    if queries == 1:
        return price
    return lambda steps: np.maximum(price(steps), price(replace(steps, decode_tokens=np.ones_like(steps.decodes))))


def _token_tables(price: Price, sizes: PassSizes, queries: int) -> tuple[np.ndarray, np.ndarray]:
    """Times by tokens in one sequence, and what more sequences that generate add; of 0, 1, 2, … of them."""
    tokens = _edges(max(sizes.tokens, queries * sizes.sequences), _TOKENS)
    sequences = _edges(sizes.sequences, _SEQUENCES)
    apart = np.concatenate([np.zeros_like(tokens), sequences])
    alone = np.concatenate([tokens, np.zeros_like(sequences)])
    both_s = price(Steps.of(prompts=np.sign(alone), prompt_tokens=alone, decodes=apart, decode_tokens=queries))
    alone_s, apart_s = both_s[: len(tokens)], both_s[len(tokens) :]
    table_s = np.interp(np.arange(tokens[-1] + 1), tokens, alone_s)
    return table_s, np.interp(np.arange(sizes.sequences + 1), sequences, apart_s - table_s[queries * sequences])


def _edges(top: int, tiles: Sequence[tuple[int, int]]) -> np.ndarray:
    """Last rows of tiles, and those behind them, from 1 to ``top``."""
    points, begin = [np.array([1, top])], 0
    for end, tile in tiles:
        last = np.arange(begin, min(end, top), tile)
        points += [last, last + 1]
        begin = end
    edges = np.unique(np.concatenate(points))
    return edges[(edges >= 1) & (edges <= top)]


def _powers(begin: int, end: int, base: int) -> np.ndarray:
    """``begin`` times powers of ``base`` below ``end``, and that."""
    exponents = np.arange(max(0, int(np.ceil(np.log(end / begin) / np.log(base)))))
    return np.append(begin * base**exponents, end)


class _DecodeTable:
    """Times by sequences and mean context. What they are for each number of sequences is kept: there are few."""

    def __init__(self, price: Price, sizes: PassSizes, queries: int) -> None:
        self.sequences = _edges(sizes.sequences, _SEQUENCES)
        self.cached = np.append(0, _powers(16, max(16, sizes.length), 2))
        n, cached = np.broadcast_arrays(self.sequences[:, None], self.cached)
        passes = Steps.of(decodes=n.ravel(), decode_cached=cached.ravel(), decode_tokens=queries)
        self.times_s = price(passes).reshape(n.shape)
        self.points: list[float] = self.cached.tolist()
        self.lines: dict[int, tuple[list[float], list[float]]] = {}

    def at(self, sequences: int, cached: float) -> float:
        line = self.lines.get(sequences)
        if line is None:
            line = self.lines[sequences] = self._line(sequences)
        points = self.points
        if cached > points[-1]:
            raise _beyond(cached, points[-1])
        i = bisect_right(points, cached, 0, len(points) - 1) - 1
        return line[0][i] + (cached - points[i]) * line[1][i]

    def _line(self, sequences: int) -> tuple[list[float], list[float]]:
        """Times at the points of context, and slopes behind each."""
        times_s = _along(self.sequences, self.times_s, sequences)
        return times_s.tolist(), (np.diff(times_s) / np.diff(self.cached)).tolist()


class _ChunkTables:
    """Times by number of prompts, their tokens and their context. What they are for each number is kept."""

    def __init__(self, price: Price, sizes: PassSizes) -> None:
        self.prompts = np.unique(np.append([1, 2], _powers(1, sizes.sequences, 4)))
        new, cached = _edges(max(2, sizes.tokens), _CHUNK), np.append(0, _powers(256, max(256, sizes.length), 4))
        grid = np.broadcast_arrays(self.prompts[:, None, None], new[:, None], cached)
        count, tokens, behind = (axis.ravel() for axis in grid)
        times_s = price(Steps.of(prompts=count, prompt_tokens=tokens, prompt_cached=behind))
        self.times_s = times_s.reshape(grid[0].shape)
        self.new: list[float] = new.tolist()
        self.cached: list[float] = cached.tolist()
        self.planes: dict[int, list[list[float]]] = {}

    def at(self, prompts: int, new: int, cached: int) -> float:
        plane = self.planes.get(prompts)
        if plane is None:
            plane = self.planes[prompts] = _along(self.prompts, self.times_s, prompts).tolist()
        news, points = self.new, self.cached
        if new > news[-1] or cached > points[-1]:
            raise _beyond(max(new, cached), points[-1])
        i = bisect_right(news, new, 0, len(news) - 1) - 1
        j = bisect_right(points, cached, 0, len(points) - 1) - 1
        upper, lower = plane[i], plane[i + 1]
        right = (cached - points[j]) / (points[j + 1] - points[j])
        first = upper[j] + right * (upper[j + 1] - upper[j])
        last = lower[j] + right * (lower[j + 1] - lower[j])
        return first + (last - first) * (new - news[i]) / (news[i + 1] - news[i])


def _along(points: np.ndarray, times_s: np.ndarray, at: float) -> np.ndarray:
    """Times at one place of the first axis."""
    behind = int(np.searchsorted(points, at))
    if points[behind] == at:
        return np.asarray(times_s[behind])
    share = (at - points[behind - 1]) / (points[behind] - points[behind - 1])
    return np.asarray((1 - share) * times_s[behind - 1] + share * times_s[behind])


def _beyond(tokens: float, most: float) -> LoadError:
    return LoadError(f"{tokens:g} tokens of a sequence are beyond the tables, which end at {most:g}: tabulate more")


Key = tuple[str, str]
"""A kind of sum (``part``, ``group``, ``shared``, ``error``, ``energy``), and whose it is; a ``limiter`` is a name."""
PART, GROUP, LIMITER = "part", "group", "limiter"
SHARED, OWN, BOUND, ENERGY = "shared", ("error", "own"), ("time", "bound"), "energy"
_SQRT2 = 2**0.5


@dataclass(frozen=True, kw_only=True)
class PassSums:
    """What adds up over the kernels of passes, columns of shape (n,).

    ``columns`` are times [s] by part and group, of errors that kernels of a group share the sum [s], of their own the
    sum of squares [s²], bounds [s] and energies [J]; ``limiters`` name the resource of each part.
    """

    columns: Mapping[Key, np.ndarray]
    limiters: Mapping[str, np.ndarray]

    def by(self, kind: str) -> dict[str, np.ndarray]:
        """Columns of a kind, by whose they are."""
        return {what: column for (name, what), column in self.columns.items() if name == kind}


PriceSums = Callable[[Steps, Collection[str]], PassSums]
"""Sums over the kernels of some groups."""


class PassInterpolator:
    """Sums of passes between those that were priced: linear in each direction, limiters of the nearest.

    As in ``TabulatedPasses`` a sum is taken as a function of a pass's tokens plus one of its sequences, and those of
    the attention of sequences that generate and of prompts, here of whole prompts without context.
    """

    def __init__(self, price: PriceSums, shared_groups: Collection[str], sizes: PassSizes, *, queries: int = 1) -> None:
        tokens = _rounded_powers(max(sizes.tokens, queries * sizes.sequences), _SQRT2)
        sequences, new = _rounded_powers(sizes.sequences, 2.0), _rounded_powers(max(16, sizes.tokens), _SQRT2)[2:]
        cached = np.append(0, _rounded_powers(max(16, sizes.length), 2.0)[4:])
        prompts = _rounded_powers(max(2, sizes.sequences), 4.0)
        self.tokens = _Grid([tokens], lambda t: price(Steps.of(prompts=1, prompt_tokens=t), shared_groups))
        generating = partial(Steps.of, decode_tokens=queries)
        self.sequences = _Grid([sequences], lambda n: price(generating(decodes=n), shared_groups))
        self.decodes = _Grid(
            [sequences, cached], lambda n, c: price(generating(decodes=n, decode_cached=c), ("decode",))
        )
        self.prompts = _Grid([prompts, new], lambda p, t: price(Steps.of(prompts=p, prompt_tokens=t), ("context",)))

    def sums(self, steps: Steps) -> PassSums:
        """Of passes within the limits that this was made for, whose prompts have no context."""
        tokens, sequences = self.tokens.at(steps.tokens), self.sequences.at(steps.sequences)
        as_tokens = self.tokens.at(steps.sequences * steps.decode_tokens)
        shared = {key: np.maximum(tokens[key] + sequences[key] - as_tokens[key], 0.0) for key in tokens}
        decodes = self.decodes.at(steps.decodes, steps.decode_cached)
        prompts = self.prompts.at(steps.prompts, steps.prompt_tokens)
        sums = [shared, _where(steps.decodes > 0, decodes), _where(steps.prompts > 0, prompts)]
        columns = {key: sum((c[key] for c in sums if key in c), np.zeros(len(steps))) for c in sums for key in c}
        return PassSums(columns=columns, limiters=self._limiters(steps))

    def _limiters(self, steps: Steps) -> dict[str, np.ndarray]:
        tokens, sequences = self.tokens.limiters(steps.tokens), self.sequences.limiters(steps.sequences)
        shared = {part: np.where(steps.prompts > 0, tokens[part], sequences[part]) for part in tokens}
        decodes = self.decodes.limiters(steps.decodes, steps.decode_cached)
        return {**shared, **decodes, **self.prompts.limiters(steps.prompts, steps.prompt_tokens)}


class _Grid:
    """Sums at the points of a grid, and between them; what lies beyond an end counts as the end."""

    def __init__(self, axes: Sequence[np.ndarray], price: Callable[..., PassSums]) -> None:
        self.axes = axes
        shape = tuple(len(axis) for axis in axes)
        sums = price(*(axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")))
        self.keys = tuple(sums.columns)
        self.values = np.stack([sums.columns[key] for key in self.keys], axis=-1).reshape(*shape, -1)
        self.names = {part: column.reshape(shape) for part, column in sums.limiters.items()}

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
        between = [_between(axis, at) for axis, at in zip(self.axes, places, strict=True)]
        rows = tuple(begin + (share > 0.5) for begin, share in between)
        return {part: names[rows] for part, names in self.names.items()}


def _between(axis: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The point before each place that has one behind it, and how far between both the place lies."""
    at = np.clip(at, axis[0], axis[-1])
    begin = np.clip(np.searchsorted(axis, at, side="right") - 1, 0, len(axis) - 2)
    return begin, (at - axis[begin]) / (axis[begin + 1] - axis[begin])


def _rounded_powers(end: int, base: float) -> np.ndarray:
    """Powers of ``base`` from 1, rounded, below ``end``, and that; two points at least."""
    exponents = np.arange(np.ceil(np.log(max(end, 2)) / np.log(base)))
    return np.unique(np.append(np.rint(base**exponents), max(end, 2)).astype(np.int64))


def _where(mask: np.ndarray, columns: Mapping[Key, np.ndarray]) -> dict[Key, np.ndarray]:
    return {key: np.where(mask, column, 0.0) for key, column in columns.items()}
