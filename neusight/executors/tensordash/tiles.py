"""Simulated tiles to learn from: sampled shapes and zeros, the cycles that the scheduler takes, and the law's bound.

A tile has ``rows`` x ``columns`` processing elements and works through one product of streams: all streams of the
scheduled operand, ``rows`` at a time, each time against all streams of the other one, ``columns`` at a time. So it has
⌈row streams / rows⌉ passes of their own schedules, each ⌈column streams / columns⌉ times.

Tile i depends on the seed and on i alone: chunks of any size, computed whenever, join to the same table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from neusight.errors import DataError
from neusight.executors.tensordash.masks import CLUSTERS, filled_slots, random_mask
from neusight.executors.tensordash.options import DEPTH, LANES, is_count, moves_of
from neusight.executors.tensordash.schedule import schedule_passes
from neusight.executors.tensordash.streams import dense_cycles

Columns = dict[str, np.ndarray]

_BLOCK = 256
"""Points drawn from the sequence at a time: a power of two, as its balance wants."""

_ALIGNMENTS, _ALIGNED = np.array([1, 16, 64]), np.array([0.3, 0.6])
"""Multiples that numbers of channels come in, and the share of points up to each: most are multiples of 64."""

_WIDEST = 2048
"""Channels of a layer with more than one kernel position. What has one position is longer: the inner size of a matrix
product, or the pixels that a weight gradient runs over."""

_DENSE, _INDEPENDENT = 0.15, 0.25
"""Shares of points without any zeros (weights, gradients behind no ReLU), and with zeros that are independent."""


@dataclass(frozen=True, kw_only=True)
class TileRanges:
    """What is sampled; the defaults are the ranges of convolutional networks and transformers.

    ``taps``: kernel positions, each as often as it is listed: 1x1 and matrix products, phases of strided input
    gradients (1, 2, 4, 9, 16), 3x3, 5x5, 7x7. ``max_length``: steps of a stream; lengths are even on a logarithmic
    scale. ``max_streams``: streams of either operand, logarithmic as well: with more of them nothing new happens.
    ``rows``, ``columns``: processing elements of a tile. ``max_sparsity`` of either operand and ``max_clustering`` of
    the scheduled one's zeros: both even from 0, with a share of points exactly at 0.

    Raises:
        DataError: a count below 1, nothing to pick from, or a share outside [0, 1].
    """

    taps: tuple[int, ...] = (1, 1, 1, 1, 2, 4, 9, 9, 9, 16, 25, 49)
    max_length: int = 4096
    max_streams: int = 64
    rows: tuple[int, ...] = (1, 2, 4, 8, 16)
    columns: tuple[int, ...] = (1, 2, 4, 8, 16)
    max_sparsity: float = 0.99
    max_clustering: float = 0.9
    lanes: int = LANES

    def __post_init__(self) -> None:
        for name in ("taps", "max_length", "max_streams", "rows", "columns", "lanes"):
            value = getattr(self, name)
            counts = value if isinstance(value, tuple) else (value,)
            if not counts or not all(is_count(count) for count in counts):
                raise DataError(f"{name} of a tile are whole numbers, 1 or more, not {value!r}")
        for name in ("max_sparsity", "max_clustering"):
            if not 0 <= getattr(self, name) <= 1:
                raise DataError(f"{name} lies between 0 and 1, not at {getattr(self, name)}")


def sample_configs(count: int, seed: int = 0, start: int = 0, ranges: TileRanges | None = None) -> Columns:
    """Configurations ``start`` … ``start + count - 1`` of a scrambled Sobol sequence, as columns of shape (count,).

    Columns: ``index``, ``taps``, ``channels``, ``length`` (steps), ``first_streams``, ``second_streams``, ``rows``,
    ``columns``, ``first_sparsity``, ``second_sparsity``, ``clustering``, ``cluster`` (what keeps together, see
    ``CLUSTERS``), and what follows for the scheduled operand, the sparser one: ``sparsity``, ``row_streams``,
    ``column_streams``.

    Raises:
        DataError: a negative or fractional count, seed or start.
    """
    for name, number in (("count", count), ("seed", seed), ("start", start)):
        if not isinstance(number, int | np.integer) or number < 0:
            raise DataError(f"{name} is a whole number, 0 or more, not {number!r}")
    ranges = ranges or TileRanges()
    u = _points(11, seed, start, count).T
    taps = _pick(u[0], ranges.taps)
    channels = _channels(u[1], u[2], taps, ranges)
    first_streams, second_streams = (_logarithmic(v, ranges.max_streams) for v in u[3:5])
    first_sparsity, second_sparsity = (_from_zero(v, _DENSE, ranges.max_sparsity) for v in u[5:7])
    by_first = first_sparsity >= second_sparsity
    return {
        "index": np.arange(start, start + count),
        "taps": taps,
        "channels": channels,
        "length": taps * -(-channels // ranges.lanes),
        "first_streams": first_streams,
        "second_streams": second_streams,
        "rows": _pick(u[7], ranges.rows),
        "columns": _pick(u[8], ranges.columns),
        "first_sparsity": first_sparsity,
        "second_sparsity": second_sparsity,
        "clustering": _from_zero(u[9], _INDEPENDENT, ranges.max_clustering),
        "cluster": _pick(u[10], tuple(CLUSTERS)),
        "sparsity": np.maximum(first_sparsity, second_sparsity),
        "row_streams": np.where(by_first, first_streams, second_streams),
        "column_streams": np.where(by_first, second_streams, first_streams),
    }


def simulate_tiles(
    count: int,
    seed: int = 0,
    start: int = 0,
    *,
    ranges: TileRanges | None = None,
    options: str = "oldest-row",
    depth: int = DEPTH,
) -> Columns:
    """Tiles ``start`` … ``start + count - 1`` of a seed, simulated: one row a tile, columns of shape (count,).

    Besides the columns of ``sample_configs``: ``density``, the effectual share of the scheduled slots (lanes beyond
    the last channel count as empty), mean over passes; ``cycles``; ``dense_cycles``; ``speedup``, dense cycles over
    cycles; and ``bound_cycles``, which no schedule goes below: a pass of T steps and density d is at most
    ``min(depth, 1 / d)`` times as fast as the T cycles that it takes on the dense machine.

    ``pandas.DataFrame(simulate_tiles(1000))`` is the same as a table.

    Raises:
        DataError: a negative or fractional count, seed or start.
        DeviceError: an unknown option list, or a depth below 1.
    """
    ranges = ranges or TileRanges()
    moves_of(options, ranges.lanes, depth)
    configs = sample_configs(count, seed, start, ranges)
    tile = partial(_simulate, configs, seed=seed, lanes=ranges.lanes, options=options, depth=depth)
    measured = np.array([tile(i) for i in range(count)]).reshape(-1, 3)
    repeats = -(-configs["column_streams"] // configs["columns"])
    streams = configs["row_streams"], configs["column_streams"]
    dense = dense_cycles(*streams, configs["length"], configs["rows"], configs["columns"])
    cycles = repeats * measured[:, 0].astype(np.int64)
    return configs | {
        "density": measured[:, 2],
        "cycles": cycles,
        "dense_cycles": dense,
        "speedup": dense / cycles,
        "bound_cycles": repeats * measured[:, 1],
    }


def _simulate(
    configs: Columns, i: int, *, seed: int, lanes: int, options: str, depth: int
) -> tuple[float, float, float]:
    """(cycles, bound, density) of one tile, each schedule once."""
    config = {name: column[i].item() for name, column in configs.items()}
    rows, length = config["rows"], config["length"]
    rng = np.random.default_rng([seed, config["index"]])
    shape = config["row_streams"], length, lanes
    mask = random_mask(rng, shape, config["sparsity"], config["clustering"], config["cluster"])
    mask &= filled_slots(config["taps"], config["channels"], lanes)
    density = _pass_densities(mask, rows)
    bound = length * np.maximum(1 / depth, density).sum()
    return schedule_passes(mask, rows, options, depth).sum(), bound, density.mean()


def _pass_densities(mask: np.ndarray, rows: int) -> np.ndarray:
    first = np.arange(0, len(mask), rows)
    busy = np.minimum(rows, len(mask) - first)
    return np.add.reduceat(np.count_nonzero(mask, axis=(1, 2)), first) / (busy * mask[0].size)


def _points(axes: int, seed: int, start: int, count: int) -> np.ndarray:
    """Points ``start`` … of a scrambled Sobol sequence, shape (count, axes), however many are asked for at once."""
    from scipy.stats import qmc

    sequence = qmc.Sobol(axes, scramble=True, rng=np.random.default_rng(seed))
    if start:
        sequence.fast_forward(start)
    points = [sequence.random(_BLOCK) for _ in range(-(-count // _BLOCK))]
    return np.concatenate([np.empty((0, axes)), *points])[:count]


def _pick(u: np.ndarray, options: Sequence[int] | Sequence[str]) -> np.ndarray:
    """One of the options a point, each as often as another."""
    return np.array(options)[(u * len(options)).astype(int)]


def _logarithmic(u: np.ndarray, high: np.ndarray | int) -> np.ndarray:
    """Whole numbers from 1 to ``high``, even on a logarithmic scale."""
    return np.rint(np.asarray(high, dtype=float) ** u).astype(np.int64)


def _from_zero(u: np.ndarray, share: float, high: float) -> np.ndarray:
    """Exactly 0 for a share of the points, the others even up to ``high``."""
    return high * np.maximum(0.0, (u - share) / (1 - share))


def _channels(u: np.ndarray, aligned: np.ndarray, taps: np.ndarray, ranges: TileRanges) -> np.ndarray:
    """Channels of a reduction with that many taps, in multiples of the lanes or not, within the longest stream."""
    longest = ranges.lanes * np.maximum(ranges.max_length // taps, 1)
    high = np.where(taps == 1, longest, np.minimum(longest, _WIDEST))
    multiple = np.minimum(_ALIGNMENTS[np.searchsorted(_ALIGNED, aligned, side="right")], high)
    rounded = np.rint(_logarithmic(u, high) / multiple).astype(np.int64) * multiple
    return np.clip(rounded, multiple, high - high % multiple)
