"""One device, one stream: a folded graph and its kernels' estimates become the estimate of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from neusight.devices.spec import DeviceSpec
from neusight.estimates.estimate import Estimate
from neusight.estimates.records import HOST, KernelEstimate, MemoryEstimate, Provenance
from neusight.estimates.verdicts import warnings_of
from neusight.executors.gpu.predictor import KernelEstimates
from neusight.kernels import KernelBatch, group_by_family
from neusight.kernels.describe import describe
from neusight.schedule.stream import host_gap_s, in_stream, share_power
from neusight.workloads.graph import FoldedGraph

Predict = Callable[[KernelBatch, DeviceSpec], KernelEstimates]


@dataclass(frozen=True)
class PreparedGraph:
    """A folded graph with its kernels as columns, ready for any device: what repeated estimates share.

    ``batches`` holds one batch a family with the positions that its rows have in ``graph.kernels``.
    """

    graph: FoldedGraph
    batches: tuple[tuple[KernelBatch, np.ndarray], ...]
    descriptions: tuple[str, ...]


def prepare(graph: FoldedGraph) -> PreparedGraph:
    """Turn a graph's kernels into batches, once."""
    kernels = [folded.kernel for folded in graph.kernels]
    return PreparedGraph(graph, tuple(group_by_family(kernels)), tuple(describe(k) for k in kernels))


def serial(
    prepared: PreparedGraph, device: DeviceSpec, predict: Predict, provenance: Provenance, model: str | None = None
) -> Estimate:
    """The step's kernels one after the other, as eager execution runs them, with the host as floor.

    Args:
        prepared: the step.
        device: where it runs.
        predict: the kernel predictor.
        provenance: of the predictor and the device.
        model: name to show instead of the graph's.

    Raises:
        DeviceError: the device has no rate for a kernel's dtype.
    """
    graph = prepared.graph
    rows = list(_stream_rows(prepared, device, predict))
    estimate = Estimate(
        model=model or graph.model,
        gpu=device.id,
        mode=graph.mode,
        batch=graph.batch,
        seq_len=graph.seq_len,
        dtype=graph.dtype,
        optimizer=graph.optimizer,
        attention=graph.attention,
        samples=graph.batch,
        by_kernel=(*rows, *_host(rows, graph.host_operators)),
        memory=MemoryEstimate.of(graph.memory, device.dram_capacity_bytes),
        provenance=provenance,
        uncovered=graph.uncovered,
        usd_per_hour=device.price_usd_per_hour,
    )
    return warnings_of(estimate, graph.warnings)


def kernel_rows(batch: KernelBatch, estimates: KernelEstimates) -> list[KernelEstimate]:
    """Single launches, launch overhead included, as one row a kernel of the batch."""
    return [
        KernelEstimate(kernel=describe(batch.kernel(i)), family=batch.family, **row)
        for i, row in enumerate(_rows(estimates))
    ]


def _stream_rows(prepared: PreparedGraph, device: DeviceSpec, predict: Predict) -> Iterator[KernelEstimate]:
    answers = [predict(batch, device) for batch, _ in prepared.batches]
    counts = [np.array([prepared.graph.kernels[i].count for i in where]) for _, where in prepared.batches]
    for answer, (batch, positions) in zip(share_power(answers, counts), prepared.batches, strict=True):
        rows = _rows(in_stream(answer, device.launch_overhead_s))
        for position, row in zip(positions.tolist(), rows, strict=True):
            folded = prepared.graph.kernels[position]
            yield KernelEstimate(
                kernel=prepared.descriptions[position],
                family=batch.family,
                operator=folded.operator,
                phase=folded.phase,
                count=folded.count,
                **row,
            )


def _rows(estimates: KernelEstimates) -> list[dict[str, Any]]:
    """Columns to rows, as Python values."""
    columns = {name: getattr(estimates, name).tolist() for name in _COLUMNS}
    if estimates.energy is not None:
        columns |= {name: column.tolist() for name, column in vars(estimates.energy).items()}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


_TIMES = ("latency_s", "low_s", "high_s")
_COLUMNS = (
    *_TIMES,
    "bound_s",
    "utilisation",
    "limiter",
    "tile",
    "tile_count",
    "waves",
    "outside",
    "source",
    "spread",
)


def _host(rows: list[KernelEstimate], operators: int) -> tuple[KernelEstimate, ...]:
    """The wait for the host as a row of its own, so that the rows always sum to the latency.

    The faster the device, the longer it waits: the low end of the interval has the longest wait.
    """
    sums = [sum(row.count * getattr(row, name) for row in rows) for name in _TIMES]
    latency_s, low_s, high_s = (host_gap_s(total, operators) for total in sums)
    if not low_s:
        return ()
    row = KernelEstimate(
        kernel=f"dispatch of {operators} operators",
        family=HOST,
        operator=HOST,
        phase=HOST,
        latency_s=latency_s,
        low_s=low_s,
        high_s=high_s,
        bound_s=0.0,
        utilisation=1.0,
        limiter=HOST,
    )
    return (row,)
