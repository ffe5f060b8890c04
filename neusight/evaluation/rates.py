"""What every GPU of the catalogue sustains, copies and large products, beside its datasheet and what is published."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.datasets.measured import unable
from neusight.datasets.rows import read_rows
from neusight.devices import GpuSpec, list_gpus
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.kernels.named import requested
from neusight.kernels.precision import PRODUCT_DTYPES
from neusight.kernels.work import work_of
from neusight.measured.score import Progress, Row, Scored, compared

if TYPE_CHECKING:
    from neusight.api import Predictor

COPY = "copy"
COPIED = {"elements": 2**28, "dtype": "float32"}
EXTENT = 8192
SIZES = range(1024, 10241, 1024)
"""Extents of square products of which submitters state the best."""
STREAMS = Path("microbenchmarks") / "dram_stream.csv"
SEARCH = "shape search"
"""How submissions say that the shape is the fastest of many."""
COPYING = "scale"
"""The kernel of the microbenchmark that writes as much as it reads."""
NEAR = 15.0
"""Percent beyond which a prediction of a published rate is an outlier: submitters differ by up to 18."""
UNPUBLISHED = dict.fromkeys(
    ("predicted", "low", "high", "measured", "ape", "bias", "inside", "published_share", "outlier")
)


@dataclass(frozen=True)
class PublishedRate:
    """The best rate of a device [B/s or FLOP/s], the kernels of which it is the best, and how they were timed:
    ``burst`` launches before a rest, ``search`` of the fastest among many shapes.
    """

    rate: float
    kernels: KernelBatch
    burst: float = np.inf
    search: bool = False


def evaluate_rates(data: Path, predictor: Predictor, progress: Progress | None = None) -> dict[str, Any]:
    """Predict a copy of 1 GiB and products of 8192 x 8192 x 8192 in every dtype on every GPU of the catalogue.

    Args:
        data: the folder of the data sets, of which ``matmul-rates`` and ``microbenchmarks`` hold published rates.
        predictor: whose predictions.
        progress: called with (done, of) a GPU.

    Returns:
        ``rows``: gpu, what (``copy``, or the dtype of a product), peak, the datasheet's, and rate, both in B/s or
        FLOP/s, share (of the peak, percent), limited_by, and of the best rate that is published, in bursts as such are
        timed: measured, predicted, low, high, ape, bias, inside, published_share, and outlier (why they differ, where
        they do by more than ``NEAR``), else None. ``means`` of the latter by what; ``total``; ``skipped``: none.

    Raises:
        DataError: one of the two files is not there, or foreign.
    """
    published = {**_copies(data), **_products(data)}
    gpus = list_gpus()
    rows: list[dict[str, Any]] = []
    for done, device in enumerate(gpus, start=1):
        for what, batch in _kernels(device):
            row, known = _sustained(device, what, batch, predictor), published.get((device.id, what))
            rows.append(row | (_compared(device, row, known, predictor) if known else UNPUBLISHED))
        if progress:
            progress(done, len(gpus))
    scored = Scored.of(rows)
    return {"rows": rows, "means": scored.summary("what"), "total": scored.figures(), "skipped": []}


def _kernels(device: GpuSpec) -> Iterator[tuple[str, KernelBatch]]:
    """The copy, and a product in every dtype that the device multiplies and that is estimated."""
    yield COPY, requested(COPY, COPIED)
    for dtype in PRODUCT_DTYPES:
        if device.multiplies(dtype) and not unable(device, "gemm", dtype):
            yield dtype, requested("gemm", {**dict.fromkeys("mnk", EXTENT), "dtype": dtype})


def _amounts(what: str, batch: KernelBatch) -> np.ndarray:
    """Bytes of copies, FLOP of products."""
    return work_of(batch).bytes if what == COPY else work_of(batch).flops


def _sustained(device: GpuSpec, what: str, batch: KernelBatch, predictor: Predictor) -> dict[str, Any]:
    costs = predictor.kernels(batch, device, conditions=Conditions.of(1, timing="profiler"))
    rate = float(_amounts(what, batch)[0] / costs.latency_s[0])
    peak = device.dram_bandwidth_bytes_per_s if what == COPY else device.gemm_flops_per_s(what)
    share = 100.0 * rate / peak
    return {"gpu": device.id, "what": what, "peak": peak, "rate": rate, "share": share, "limited_by": costs.limiter[0]}


def _copies(data: Path) -> dict[tuple[str, str], PublishedRate]:
    rates: dict[str, float] = {}
    for row in read_rows(data / STREAMS, ("gpu", "kernel", "gb_per_s"), "rates of copies"):
        if row["kernel"] == COPYING:
            rates[row["gpu"]] = max(1e9 * row["gb_per_s"], rates.get(row["gpu"], 0.0))
    return {(gpu, COPY): PublishedRate(rate, requested(COPY, COPIED)) for gpu, rate in rates.items()}


def _products(data: Path) -> dict[tuple[str, str], PublishedRate]:
    from neusight.learn.physics.observations import BURST, ObservationReader

    best: dict[tuple[str, str], PublishedRate] = {}
    for device, dtype, rows in ObservationReader(data, 0).published_rates():
        row = rows.loc[rows["tflop_per_s"].idxmax()]
        # Where no extent is told, the rate is the best of all sizes.
        extents = {name: list(SIZES) if np.isnan(row[name]) else [int(row[name])] for name in "mnk"}
        kernels = KernelBatch.from_columns("gemm", dtype=dtype, **extents)
        best[device.id, dtype] = PublishedRate(1e12 * row["tflop_per_s"], kernels, BURST, row["best_of"] == SEARCH)
    return best


def _compared(device: GpuSpec, row: Row, published: PublishedRate, predictor: Predictor) -> dict[str, Any]:
    """The best of the published kernels, predicted as they were timed; ``row`` is of ``_sustained``."""
    conditions = Conditions.of(len(published.kernels), timing="profiler", burst=published.burst)
    costs = predictor.kernels(published.kernels, device, conditions=conditions)
    amounts = _amounts(row["what"], published.kernels)
    place = int(np.argmax(amounts / costs.latency_s))
    predicted, low, high = (
        float(amounts[place] / times_s[place]) for times_s in (costs.latency_s, costs.high_s, costs.low_s)
    )
    figures = compared(predicted, (low, high), published.rate)
    outlier = _reason(device, row, published, figures["bias"]) if figures["ape"] > NEAR else None
    return {**figures, "published_share": 100.0 * published.rate / row["peak"], "outlier": outlier}


def _reason(device: GpuSpec, row: Row, published: PublishedRate, bias: float) -> str:
    """Why a published rate is far from the prediction, the surest first."""
    slow, copy = bias > 0, row["what"] == COPY
    reasons = {
        "board clocks above its datasheet": published.rate > row["peak"] and device.facts.clock_above_boost,
        "as without check bits in its memory": copy and not slow and device.inline_ecc,
        "too few bytes under way: 8 a thread": copy and slow,
        f"held to {device.tdp_w:.0f} W, not in bursts": slow and row["limited_by"] == "power",
        "lanes seldom take two operations": slow and row["what"] == "float32" and device.facts.issue == "paired",
        "best of many shapes": not slow and published.search,
    }
    return next((reason for reason, holds in reasons.items() if holds), "not known")
