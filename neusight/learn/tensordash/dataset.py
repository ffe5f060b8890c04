"""Passes to learn from: for sampled configurations the mean of cycles over many draws of their zeros, as tables.

All that is known of a tile before it is simulated is how many zeros it has and how they keep together; which values
are zero differs from draw to draw, and so do cycles. What can be learned is their mean. A tile's passes over its
streams are alike (all have as many streams as PE rows, but the last), and a mean of sums is the sum of means: so a
row of the data set is one *pass*, and a tile is as many of them as it takes.

Configurations are points of a scrambled Sobol sequence. Pass i depends on the seed and on i alone: chunks of any size,
computed whenever, join to the same table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.errors import DataError
from neusight.executors.tensordash.masks import CLUSTERS, filled_slots
from neusight.executors.tensordash.schedule import LANES, schedule_passes
from neusight.learn import Report

if TYPE_CHECKING:
    import pandas as pd

Columns = dict[str, np.ndarray]
NAME = "tensordash-tiles"


@dataclass(frozen=True, kw_only=True)
class TileRanges:
    """What is sampled; the defaults are the ranges of convolutional networks and transformers.

    ``count``: passes of a part of the data set. ``taps``: kernel positions, each as often as it is listed: 1x1 and
    matrix products, phases of strided input gradients (1, 2, 4, 9, 16), 3x3, 5x5, 7x7. ``max_length``: steps of a
    stream; lengths are even on a logarithmic scale. ``max_streams``: streams of either operand, logarithmic as well:
    with more of them nothing new happens.
    ``rows``, ``columns``: processing elements of a tile. ``max_sparsity`` of either operand and ``max_clustering`` of
    the scheduled one's zeros: both even from 0, with a share of points exactly at 0.
    """

    count: int = 0
    taps: tuple[int, ...] = (1, 1, 1, 1, 2, 4, 9, 9, 9, 16, 25, 49)
    max_length: int = 4096
    max_streams: int = 64
    rows: tuple[int, ...] = (1, 2, 4, 8, 16)
    columns: tuple[int, ...] = (1, 2, 4, 8, 16)
    max_sparsity: float = 0.99
    max_clustering: float = 0.9


_WHOLE = TileRanges(count=24_576, max_sparsity=1.0, max_clustering=1.0)
_HALF = replace(_WHOLE, count=12_288)

PARTS: Mapping[str, TileRanges] = {
    "whole": _WHOLE,
    "short": replace(_HALF, taps=(1, 1, 1, 2, 2, 2, 3, 4, 4, 5, 6, 7, 8, 9, 9, 16, 25), max_length=32),
    "narrow": replace(_HALF, taps=(1, 1, 2, 2, 3, 3, 3, 4, 4, 4, 5, 6, 7, 8, 9), max_length=9),
    "dense": TileRanges(count=4096, max_length=128, max_sparsity=0.0),
    "pixels": replace(_HALF, taps=(1,), max_length=14),
}
"""What is learned: the ranges of ``TileRanges`` with zeros and clustering up to their ends, and again what is rare
there and differs most from one configuration to the next, since every step and lane counts: short streams, those with
few channels as well, streams without zeros, that gain by empty lanes alone, and the few pixels that weight gradients of
deep layers run over."""

MOST_PARTS = 100
"""Parts that a seed tells apart."""

CHUNK = 2048
"""Passes a file."""

CONFIG = ("index", "taps", "channels", "length", "rows", "sparsity", "clustering", "cluster")
"""Columns of a pass that are known before it is simulated; ``rows`` are those that have a stream."""

_STEPS = 16_384
"""Steps of all streams of all draws together, at least: many draws of short passes, a few of long ones."""

_CLUSTERED_DRAWS = 48
"""Draws, at least, where streams or lanes have a zero fraction of their own: steps do not even that out."""

_MOST_DRAWS = 512
_STRATIFIED = 8192
"""Zero fractions of groups drawn evenly over their distribution; with more of them chance evens out as well."""


_BLOCK = 256
"""Points drawn from the sequence at a time: a power of two, as its balance wants."""

_ALIGNMENTS, _ALIGNED = np.array([1, 16, 64]), np.array([0.3, 0.6])
"""Multiples that numbers of channels come in, and the share of points up to each: most are multiples of 64."""

_WIDEST = 2048
"""Channels of a layer with more than one kernel position. What has one position is longer: the inner size of a matrix
product, or the pixels that a weight gradient runs over."""

_DENSE, _INDEPENDENT = 0.15, 0.25
"""Shares of points without any zeros (weights, gradients behind no ReLU), and with zeros that are independent."""


def sample_configs(count: int, seed: int = 0, start: int = 0, ranges: TileRanges | None = None) -> Columns:
    """Configurations ``start`` … ``start + count - 1`` of a scrambled Sobol sequence, as columns of shape (count,).

    Columns: ``index``, ``taps``, ``channels``, ``length`` (steps), ``rows``, ``columns``; of the scheduled operand, the
    sparser of two, ``sparsity``, ``clustering``, ``cluster`` (what keeps together, see ``CLUSTERS``) and
    ``row_streams``; ``column_streams`` of the other one.

    Raises:
        DataError: a negative count, seed or start.
    """
    if min(count, seed, start) < 0:
        raise DataError(f"count, seed and start are 0 or more, not {count}, {seed} and {start}")
    ranges = ranges or TileRanges()
    u = _points(11, seed, start, count).T
    taps = _pick(u[0], ranges.taps)
    channels = _channels(u[1], u[2], taps, ranges)
    streams = _logarithmic(u[3:5], ranges.max_streams)
    sparsity = _from_zero(u[5:7], _DENSE, ranges.max_sparsity)
    first = sparsity[0] >= sparsity[1]
    return {
        "index": np.arange(start, start + count),
        "taps": taps,
        "channels": channels,
        "length": taps * -(-channels // LANES),
        "rows": _pick(u[7], ranges.rows),
        "columns": _pick(u[8], ranges.columns),
        "sparsity": sparsity.max(axis=0),
        "clustering": _from_zero(u[9], _INDEPENDENT, ranges.max_clustering),
        "cluster": _pick(u[10], tuple(CLUSTERS)),
        "row_streams": np.where(first, *streams),
        "column_streams": np.where(first, *streams[::-1]),
    }


def simulate_passes(count: int, seed: int = 0, start: int = 0, ranges: TileRanges | None = None) -> Columns:
    """Passes ``start`` … ``start + count - 1`` of a seed, as columns of shape (count,).

    Columns: ``CONFIG``, of ``sample_configs`` (``rows`` are at most the scheduled operand's streams); ``draws`` of
    the zeros; ``cycles``, mean over draws; ``scatter``, standard deviation of the
    cycles of one draw over their mean.

    Raises:
        DataError: a negative count, seed or start.
    """
    configs = sample_configs(count, seed, start, ranges or _WHOLE)
    configs["rows"] = np.minimum(configs["rows"], configs["row_streams"])
    known = {name: configs[name] for name in CONFIG}
    draws = [_cycles({k: v[i].item() for k, v in known.items()}, seed) for i in range(count)]
    figures = np.array([(len(cycles), cycles.mean(), cycles.std() / cycles.mean()) for cycles in draws]).reshape(-1, 3)
    return known | {"draws": figures[:, 0].astype(np.int64), "cycles": figures[:, 1], "scatter": figures[:, 2]}


def make_dataset(
    folder: Path, seed: int = 0, parts: Mapping[str, TileRanges] = PARTS, report: Report | None = None
) -> pd.DataFrame:
    """Simulate passes into the parquet files ``passes/PART-NUMBER`` of a folder.

    Returns:
        Rows of all files in the order of their names; the column ``part`` names theirs.

    Raises:
        DataError: a negative seed.
    """
    import pandas as pd
    import pyarrow as pa
    from pyarrow import parquet

    (folder / "passes").mkdir(parents=True, exist_ok=True)
    tables: dict[Path, pd.DataFrame] = {}
    for number, (name, ranges) in enumerate(parts.items()):
        for start in range(0, ranges.count, CHUNK):
            path = folder / "passes" / f"{name}-{start // CHUNK:03d}.parquet"
            # Parts have seeds of their own: the same points of a sequence would be drawn with the same chance.
            count = min(CHUNK, ranges.count - start)
            table = pa.table(simulate_passes(count, seed * MOST_PARTS + number, start, ranges))
            parquet.write_table(table, path, compression="zstd")
            tables[path] = table.to_pandas().assign(part=name)
            if report:
                report(f"simulated passes of '{name}'", start + count, ranges.count, float("nan"))
    return pd.concat([tables[path] for path in sorted(tables)], ignore_index=True)


def draws_of(rows: int, length: int, clustering: float, cluster: str) -> int:
    """How often a pass is drawn."""
    lasting = clustering > 0 and cluster in ("stream", "lane")
    least = _CLUSTERED_DRAWS if lasting else 1
    return min(max(_STEPS // (rows * length), least), _MOST_DRAWS)


def _cycles(config: dict[str, Any], seed: int) -> np.ndarray:
    """Cycles of every draw of one pass, shape (draws,)."""
    rows, length = config["rows"], config["length"]
    rng = np.random.default_rng([seed, config["index"]])
    draws = draws_of(rows, length, config["clustering"], config["cluster"])
    filled = filled_slots(config["taps"], config["channels"])
    zeros = _zero_fractions(rng, draws, (rows, length, LANES), config)
    cycles = []
    # A few draws at a time: long passes of 16 streams would fill the memory.
    for some in np.array_split(zeros, range(step := max(1, 4 * _STEPS // (rows * length)), draws, step)):
        mask = (rng.random((len(some), rows, length, LANES), dtype=np.float32) >= some) & filled
        cycles.append(schedule_passes(mask.reshape(-1, length, LANES), rows))
    return np.concatenate(cycles)


def _zero_fractions(
    rng: np.random.Generator, draws: int, shape: tuple[int, int, int], config: dict[str, Any]
) -> np.ndarray:
    """q_g of the groups of every draw, see ``masks``, shape (draws, groups…): of each group evenly over all draws."""
    from scipy.special import betaincinv

    s, c = config["sparsity"], config["clustering"]
    groups = (draws, *CLUSTERS[config["cluster"]](*shape))
    if c == 0 or s in (0, 1):
        return np.full((draws, 1, 1, 1), s)
    if (many := np.prod(groups) > _STRATIFIED) and c < 1:
        return rng.beta(s * (1 - c) / c, (1 - s) * (1 - c) / c, groups)
    u = rng.random(groups)
    if not many:
        u = (np.argsort(rng.random(groups), axis=0) + u) / draws
    return (u < s).astype(float) if c == 1 else betaincinv(s * (1 - c) / c, (1 - s) * (1 - c) / c, u)


def _points(axes: int, seed: int, start: int, count: int) -> np.ndarray:
    """Points ``start`` … of a scrambled Sobol sequence, shape (count, axes), however many at once."""
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
    longest = LANES * np.maximum(ranges.max_length // taps, 1)
    high = np.where(taps == 1, longest, np.minimum(longest, _WIDEST))
    multiple = np.minimum(_ALIGNMENTS[np.searchsorted(_ALIGNED, aligned, side="right")], high)
    rounded = np.rint(_logarithmic(u, high) / multiple).astype(np.int64) * multiple
    return np.clip(rounded, multiple, high - high % multiple)
