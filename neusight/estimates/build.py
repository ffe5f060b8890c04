"""From a timeline to an ``Estimate``: columns to rows, with the memory verdict and what a reader must know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from neusight.devices.spec import DeviceSpec, GpuSpec
from neusight.estimates.energy import board_energy
from neusight.estimates.estimate import Estimate
from neusight.estimates.records import KernelEstimate, LoneKernel, MemoryEstimate, Provenance
from neusight.executors.costs import Costs
from neusight.executors.gpu.expected.convolutions import is_depthwise
from neusight.executors.gpu.expected.laws import law_names
from neusight.kernels.describe import describe
from neusight.kernels.families import KernelBatch
from neusight.kernels.work import work_of
from neusight.schedule.timeline import Errors, Timeline, Wait
from neusight.workloads.workload import Workload

_COLUMNS = (
    *("latency_s", "low_s", "high_s", "bound_s", "utilisation", "limiter"),
    *("tile", "tile_count", "waves", "outside", "source"),
)
_OF_REQUEST = ("model", "mode", "seq_len", "dtype", "optimizer", "attention")
WARN_SHARE = 0.1
"""Of a step, from which a part is worth a warning."""
_TIGHT = 0.9
"""Above this share of the capacity, fragmentation may decide."""


def estimate_of(
    timeline: Timeline, device: DeviceSpec, provenance: Provenance, reserve_bytes: int | None = None
) -> Estimate:
    """The estimate of a step on one device, with what lies in memory beside tensors [B], default as usual."""
    workload = timeline.program.workload
    estimate = step_estimate(
        workload,
        device,
        workload.request.batch,
        rows=(*_kernel_rows(timeline), *map(wait_row, timeline.waits)),
        memory=MemoryEstimate.of(timeline.program.memory, device, reserve_bytes),
        provenance=provenance,
    )
    batches = zip(timeline.program.batches, timeline.costs, strict=True)
    kernels_j = sum(float(timeline.program.counts[at] @ costs.drawn.total_j) for (_, at), costs in batches)
    times_s = estimate.low_s, estimate.latency_s, estimate.high_s
    estimate = replace(estimate, board_energy=board_energy(device, kernels_j, times_s))
    return warnings_of(estimate, (*workload.warnings, *_of_versions(timeline, device, estimate.latency_s)))


def step_estimate(
    workload: Workload,
    device: DeviceSpec,
    samples: int,
    *,
    rows: tuple[KernelEstimate, ...],
    memory: MemoryEstimate,
    provenance: Provenance,
) -> Estimate:
    """A step of so many samples by its rows, without energy and warnings."""
    of_request = {name: getattr(workload.request, name) for name in _OF_REQUEST}
    of_workload = {name: getattr(workload, name) for name in ("uncovered", "inputs", "unit", "parts")}
    return Estimate(
        gpu=device.id,
        batch=samples,
        samples=samples,
        by_kernel=rows,
        memory=memory,
        provenance=provenance,
        usd_per_hour=device.price_usd_per_hour,
        price_source=device.price_source,
        **of_request,
        **of_workload,
    )


def _of_versions(timeline: Timeline, device: DeviceSpec, latency_s: float) -> Iterator[str]:
    """What takes much of a step in some versions of a library alone."""
    if not isinstance(device, GpuSpec):
        return
    program, grouped_s = timeline.program, 0.0
    for (batch, at), costs in zip(program.batches, timeline.costs, strict=True):
        if batch.family == "conv2d":
            grouped = (law_names(batch, device) == "stream") & ~is_depthwise(batch)
            grouped_s += float((costs.latency_s * program.counts[at])[grouped].sum())
    if grouped_s > WARN_SHARE * latency_s:
        yield (
            f"{grouped_s / latency_s:.0%} of the latency is of gradients of grouped filters in NHWC, as slow as with "
            "PyTorch 1.10 to 1.12: later versions were not measured; compare --layout nchw"
        )


def lone_kernels(
    batch: KernelBatch, costs: Costs, question: Mapping[str, Any] = MappingProxyType({})
) -> list[LoneKernel]:
    """Single launches, launch overhead included, as one row a kernel of the batch; ``question`` are its words."""
    low_s, high_s = costs.interval_s()
    costs, errors = replace(costs, low_s=low_s, high_s=high_s), costs.lone_doubts_s()
    kernels = [describe(batch.kernel(at)) for at in range(len(batch))]
    rows = kernel_rows(batch, costs, errors, kernels=kernels, labels=[("", "", 1, ())] * len(kernels))
    return [LoneKernel(**vars(row), question=question) for row in rows]


Label = tuple[str, str, float, tuple[tuple[str, int], ...]]
"""Of a row: operator, phase, how often, and in which modules."""


def kernel_rows(
    batch: KernelBatch, costs: Costs, errors: Errors, *, kernels: Sequence[str], labels: Sequence[Label]
) -> Iterator[KernelEstimate]:
    """Kernels of one family as rows.

    Args:
        batch: the kernels.
        costs: of each.
        errors: of each by key [s].
        kernels: what each is, in words.
        labels: on whose behalf each runs, in which phase, how often, and in which modules.
    """
    work = work_of(batch)
    rows = zip(kernels, labels, work.flops.tolist(), work.bytes.tolist(), _rows(costs, errors), strict=True)
    for kernel, (operator, phase, count, modules), flop, moved_bytes, row in rows:
        yield KernelEstimate(
            kernel=kernel, family=batch.family, operator=operator, phase=phase, count=count, modules=modules,
            flop=flop, moved_bytes=moved_bytes, **row,
        )  # fmt: skip


def _kernel_rows(timeline: Timeline) -> Iterator[KernelEstimate]:
    program = timeline.program
    for (batch, places), costs, errors in zip(program.batches, timeline.costs, timeline.errors_s, strict=True):
        launches = [program.launches[at] for at in places]
        labels = [(launch.operator, launch.phase, launch.count, launch.modules) for launch in launches]
        kernels = [program.descriptions[at] for at in places]
        yield from kernel_rows(batch, costs, errors, kernels=kernels, labels=labels)


def _rows(costs: Costs, errors: Errors) -> list[dict[str, Any]]:
    """Columns to rows, as Python values."""
    columns = {name: getattr(costs, name).tolist() for name in _COLUMNS}
    columns |= {name: column.tolist() for name, column in vars(costs.drawn).items()}
    sizes_s = zip(*(column.tolist() for column in errors.values()), strict=True)
    columns["errors_s"] = [tuple((k, s) for k, s in zip(errors, row, strict=True) if s) for row in sizes_s]
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def wait_row(wait: Wait) -> KernelEstimate:
    """A wait as a row of its own, so that the rows always sum to the latency and to the bound."""
    return KernelEstimate(
        kernel=wait.what,
        family="memory" if wait.limiter == "dram" else wait.limiter,
        operator=wait.limiter,
        phase=wait.limiter,
        latency_s=wait.latency_s,
        low_s=wait.low_s,
        high_s=wait.high_s,
        bound_s=wait.bound_s,
        utilisation=1.0,
        limiter=wait.limiter,
        errors_s=tuple(wait.errors_s.items()),
    )


def warnings_of(estimate: Estimate, graph_warnings: tuple[str, ...] = ()) -> Estimate:
    """The estimate with the warnings that follow from its figures, after those of its graph."""
    texts = (text(estimate) for text in (memory_warning, _fallback, _transferred, _domain, _hypothetical))
    return replace(estimate, warnings=(*graph_warnings, *filter(None, texts)))


def memory_warning(e: Estimate) -> str:
    """The sentence that warns of too little memory, or of hardly enough; "" where there is room."""
    fit = e.memory.fit
    if not fit.fits:
        return f"{fit} on {e.gpu}; the latency is that of a card with enough memory"
    return f"tight fit: {fit} on {e.gpu}" if fit.needed_bytes > _TIGHT * fit.usable_bytes else ""


def _fallback(estimate: Estimate) -> str:
    share = estimate.coverage["fallback"]
    if estimate.uncovered:
        named = ", ".join(estimate.uncovered)
        return f"no rule for {named}: priced as data movement, a lower bound that makes {share:.1%} of the latency"
    return f"{share:.1%} of the latency is a bare roofline, a lower bound: no tile model covers it" if share else ""


def _transferred(estimate: Estimate) -> str:
    share = estimate.coverage["transferred"]
    return (
        f"{share:.0%} of the latency is of operators or dtypes that no tile model was trained on" if share > 0.5 else ""
    )


def _domain(estimate: Estimate) -> str:
    outside = 1 - estimate.in_domain
    if outside <= 0.1:
        return ""
    reason = next(iter(estimate.outside))
    return f"{outside:.0%} of the latency is of kernels unlike those of the tile models' training, mostly: {reason}"


def _hypothetical(estimate: Estimate) -> str:
    changed = estimate.provenance.hypothetical
    return f"hypothetical device: {estimate.gpu} with {', '.join(changed)}" if changed else ""
