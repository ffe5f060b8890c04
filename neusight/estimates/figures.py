"""Charts of estimates, the same in a notebook, a file and the page: memory, time, operators, roofline, modules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, floor, log10
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.devices import DeviceSpec, load_device
from neusight.estimates.core import largest, summed
from neusight.estimates.records import KernelEstimate
from neusight.figures import Bar, Chart, Dot, Line, Scale, stacked
from neusight.figures.palette import GAIN, LIMITER, MEMORY, PHASE
from neusight.kernels.describe import describe
from neusight.units import decimal, gib, milliseconds, scaled
from neusight.workloads.workload import MEMORY_PARTS, PHASES, Workload

if TYPE_CHECKING:
    from neusight.estimates.estimate import Estimate

LIMITERS = tuple(LIMITER)
CAPACITY = "capacity"
GIB = 2.0**30
TIME, ROOM = Scale(name="time", unit="s"), Scale(name="memory in GiB")
"""Memory is drawn in the unit that drivers report, which has no prefixes."""
_LAYER = re.compile(r"^(.*?\.\d+)\..*")
"""A module below a layer of a list, by the path of the layer."""
_MOMENTS = 240
"""Of a step, at which its memory is shown, beside its peak."""
_OPERATORS, _PARTS = 12, 8
"""Lanes of the costliest operators, and of the largest differences."""
_APART = 1.2
"""Between rates that have roofs of their own."""
_LEAST_SHARE = 0.003
"""Of a step, below which a module is too thin to see."""


def memory(estimates: Sequence[Any]) -> Chart:
    """What each needs of its device's memory, term by term, against what there is.

    Args:
        estimates: of any kind.
    """
    bars = [bar for lane, e in enumerate(estimates) for bar in _terms(lane, e)]
    ends = [_capacity(lane, e) for lane, e in enumerate(estimates)]
    rows = [{"gpu": e.gpu, **e.fit.terms, "usable_bytes": e.fit.usable_bytes, "fits": e.fits} for e in estimates]
    return Chart(
        name="memory", title="Memory by term", x=ROOM, lanes=device_names(estimates), bars=(*bars, *ends),
        rows=tuple(rows), palette=MEMORY,
    )  # fmt: skip


def _terms(lane: int, e: Any) -> tuple[Bar, ...]:
    low, high = e.fit.interval
    return stacked(lane, ((name, size / GIB) for name, size in e.fit.terms.items()), (low / GIB, high / GIB))


def _capacity(lane: int, e: Any) -> Bar:
    has = e.fit.usable_bytes / GIB
    return Bar(lane=lane, start=has, end=has, series=CAPACITY, note=f"{e.gpu} has {gib(e.fit.usable_bytes)}")


def time(estimates: Sequence[Estimate]) -> Chart:
    """What each step waits for, with the interval of the whole; grey where it lies outside of what was measured."""
    bars: list[Bar] = []
    for lane, e in enumerate(estimates):
        seconds = summed((row.limiter, row.total_s) for row in e.by_kernel)
        parts = stacked(lane, sorted(seconds.items(), key=lambda part: _place(part[0])), e.interval)
        bars += [Bar(**{**vars(bar), "outside": e.in_domain < 0.5}) for bar in parts]
    rows = [
        {"gpu": e.gpu, "latency_s": e.latency_s, "low_s": e.low_s, "high_s": e.high_s, "limiter": e.limiter,
         **{f"{name}_s": s for name, s in summed((r.limiter, r.total_s) for r in e.by_kernel).items()}}
        for e in estimates
    ]  # fmt: skip
    title = "Time by what limits it"
    return Chart(
        name="time",
        title=title,
        x=TIME,
        lanes=device_names(estimates),
        bars=tuple(bars),
        rows=tuple(rows),
        palette=LIMITER,
    )


def operators(estimate: Estimate) -> Chart:
    """The costliest operators by phase."""
    shown = estimate.by_operator[:_OPERATORS]
    rows = estimate.by_kernel
    parts = [tuple(k for k in rows if (k.operator, k.phase) == (row.operator, row.phase)) for row in shown]
    bars = (
        Bar(lane=lane, start=0.0, end=row.latency_s, series=row.limiter, label=f"{row.share:.1%}",
            interval=replace(estimate, by_kernel=part).interval)
        for lane, (row, part) in enumerate(zip(shown, parts, strict=True))
    )  # fmt: skip
    lanes = (f"{short(row.operator)}, {row.phase}" for row in shown)
    return Chart(
        name="operators", title="Costliest operators, by what limits them", x=TIME, lanes=tuple(lanes),
        bars=tuple(bars), rows=tuple(vars(row) for row in estimate.by_operator), palette=LIMITER,
    )  # fmt: skip


def short(operator: str) -> str:
    """``aten.addmm.default`` as ``addmm``."""
    return operator.removeprefix("aten.").removesuffix(".default")


def roofline(estimate: Estimate, device: DeviceSpec | None = None) -> Chart:
    """Each kernel by its arithmetic intensity and the rate it reaches, below what memory and arithmetic allow.

    Williams, Waterman and Patterson 2009, "Roofline". The area of a mark is the kernel's share of the step.

    Args:
        estimate: the step.
        device: of the estimate; default that of the catalogue.

    Raises:
        DeviceError: the catalogue lacks the device, and none is given.
    """
    device = device or load_device(estimate.gpu, estimate.provenance.hypothetical)
    kernels = [row for row in estimate.by_kernel if row.flop and row.moved_bytes and row.total_s]
    most = max((row.total_s for row in kernels), default=1.0)
    intensities = [row.flop / row.moved_bytes for row in kernels] or [1.0]
    rates = {**device.vector_flops_per_s, **device.matrix_flops_per_s}
    return Chart(
        name="roofline",
        title=f"Roofline of {device.name}: area is time",
        x=Scale(name="arithmetic intensity in FLOP/B", log=True),
        y=Scale(name="rate", unit="FLOP/s", log=True),
        dots=tuple(_kernel_point(row, most, estimate.latency_s) for row in kernels),
        lines=tuple(_roofs(device, rates, min(intensities), max(intensities))),
        rows=tuple(_kernel_figures(row) for row in estimate.by_kernel),
        palette=LIMITER,
    )


def _kernel_point(row: KernelEstimate, most_s: float, step_s: float) -> Dot:
    note = f"{row.kernel}\n{short(row.operator)}, {row.phase}: {decimal(row.count, 6)} of {milliseconds(row.latency_s)}"
    return Dot(
        x=row.flop / row.moved_bytes, y=row.flop / row.latency_s, series=row.limiter, size=row.total_s / most_s,
        y_interval=(row.flop / row.high_s, row.flop / row.low_s), outside=not row.in_domain,
        note=f"{note}, {row.total_s / step_s:.1%} of the step\n{row.utilisation:.0%} of the peak, by {row.limiter}",
    )  # fmt: skip


def _kernel_figures(row: KernelEstimate) -> dict[str, Any]:
    names = ("kernel", "operator", "phase", "count", "latency_s", "low_s", "high_s", "flop", "moved_bytes", "limiter")
    return {name: getattr(row, name) for name in names}


def _roofs(device: DeviceSpec, rates: Mapping[str, float], least: float, most: float) -> Iterator[Line]:
    """Of each rate from memory's slope on; rates that are hardly apart have one roof, and one name."""
    last = 10.0 ** ceil(log10(10 * max(most, max(rates.values()) / device.dram_bandwidth_bytes_per_s)))
    names: dict[float, str] = {}
    for dtype, rate in sorted(rates.items(), key=lambda item: item[1]):
        names[next((below for below in names if rate < _APART * below), rate)] = dtype
    for rate, dtype in names.items():
        ridge = rate / device.dram_bandwidth_bytes_per_s
        xs = (10.0 ** floor(log10(min(least, ridge))), ridge, last)
        ys = tuple(min(rate, x * device.dram_bandwidth_bytes_per_s) for x in xs)
        yield Line(label=f"{dtype} {scaled(rate, 'FLOP/s')}", labelled=1, xs=xs, ys=ys, dashed=True)


@dataclass(kw_only=True)
class _Module:
    """A module with its seconds by limiter, those of its children among them."""

    seconds: dict[str, float] = field(default_factory=dict)
    children: dict[str, _Module] = field(default_factory=dict)

    def add(self, path: Sequence[str], limiter: str, time_s: float) -> None:
        """Time of a module below this one."""
        self.seconds[limiter] = self.seconds.get(limiter, 0.0) + time_s
        if path:
            self.children.setdefault(path[0], _Module()).add(path[1:], limiter, time_s)

    def bars(self, name: tuple[str, ...], start: float, lane: int, least_s: float) -> Iterator[Bar]:
        """Of the module, and of those below it, the costliest first."""
        total = sum(self.seconds.values())
        if total < least_s:
            return
        yield Bar(
            lane=lane, start=start, end=start + total, series=largest(self.seconds), label=name[-1],
            note=f"{'.'.join(name[1:]) or name[0]}\n{milliseconds(total)}",
        )  # fmt: skip
        for part, child in sorted(self.children.items(), key=lambda item: -sum(item[1].seconds.values())):
            yield from child.bars((*name, part), start, lane + 1, least_s)
            start += sum(child.seconds.values())


def modules(estimate: Estimate, sources: Mapping[str, str] | None = None) -> Chart:
    """A flame graph: time by module, equal layers as one, a module below the one that holds it.

    Args:
        estimate: the step.
        sources: where a module's class stands, by the pattern of its path.
    """
    root = _Module()
    for (module, limiter), time_s in estimate.by_module.items():
        path = _joined_numbers(module) if module else ["outside of modules"]
        root.add(path, limiter, time_s)
    bars = tuple(root.bars(("step",), 0.0, 0, _LEAST_SHARE * estimate.latency_s))
    if sources:
        bars = tuple(replace(bar, note=_with_source(bar.note, sources)) for bar in bars)
    depth = 1 + max((bar.lane for bar in bars), default=0)
    rows = ({"module": module, "limiter": limiter, "time_s": s} for (module, limiter), s in estimate.by_module.items())
    return Chart(
        name="modules", title="Time by module, by what limits it", x=TIME, lanes=("",) * depth, bars=bars,
        rows=tuple(rows), palette=LIMITER,
    )  # fmt: skip


def _with_source(note: str, sources: Mapping[str, str]) -> str:
    """The source line below what a bar says of its module."""
    source = sources.get(note.partition("\n")[0], "")
    return f"{note}\n{source}" if source else note


def memory_over_time(workload: Workload, usable_bytes: float) -> Chart:
    """What a step holds from operator to operator, term upon term, against what there is [B]."""
    alive = workload.alive
    shown = np.unique([*np.linspace(0, len(alive) - 1, _MOMENTS).astype(int), int(alive.sum(axis=1).argmax())])
    sizes_gib = alive[shown] / GIB
    tops = sizes_gib.cumsum(axis=1)
    xs = tuple(shown.astype(float).tolist())
    lines = [
        Line(series=term, xs=xs, ys=tuple(top), band=(tuple(bottom), tuple(top)))
        for term, bottom, top in zip(MEMORY_PARTS, (tops - sizes_gib).T.tolist(), tops.T.tolist(), strict=True)
        if max(top) > max(bottom)
    ]
    capacity = Line(xs=(xs[0], xs[-1]), ys=(usable_bytes / GIB,) * 2, dashed=True, label=CAPACITY)
    rows = (
        {"operator": at, **dict(zip(MEMORY_PARTS, sizes, strict=True))}
        for at, sizes in zip(shown.tolist(), alive[shown].tolist(), strict=True)
    )
    return Chart(
        name="memory-over-time", title="Memory over the operators of the step", x=Scale(name="operator"), y=ROOM,
        lines=(*lines, capacity), rows=tuple(rows), palette=MEMORY,
    )  # fmt: skip


def timeline(workload: Workload, estimate: Estimate) -> Chart:
    """What one device does when: layers of a step in their order, phase by phase."""
    each = {(row.kernel, row.operator, row.phase): row.latency_s for row in estimate.by_kernel}
    stretches: list[tuple[str, str, float]] = []
    for node, copy in workload.expanded():
        time_s = sum(each.get((describe(kernel), node.operator, node.phase), 0.0) for kernel in node.kernels)
        name = _LAYER.sub(r"\1", node.layer.name(copy))
        if stretches and stretches[-1][:2] == (name, node.phase):
            time_s += stretches.pop()[2]
        stretches.append((name, node.phase, time_s))
    phases: list[str] = [phase for phase in PHASES if any(phase == of for _, of, _ in stretches)]
    bars, at = [], 0.0
    for name, phase, time_s in stretches:
        if time_s:
            note = f"{name or 'outside of modules'}, {phase}\n{milliseconds(time_s)}"
            bars.append(Bar(lane=phases.index(phase), start=at, end=at + time_s, series=phase, label=name, note=note))
        at += time_s
    rows = ({"layer": bar.label, "phase": bar.series, "start_s": bar.start, "end_s": bar.end} for bar in bars)
    return Chart(
        name="timeline", title="What the device does when", x=TIME, lanes=tuple(phases), bars=tuple(bars),
        rows=tuple(rows), zoom=True, palette=PHASE,
    )  # fmt: skip


def _joined_numbers(module: str) -> list[str]:
    """``h.{}.mlp`` as ``h.{}`` and ``mlp``: a list and its layers are one lane."""
    return [part.replace("/", ".") for part in module.replace(".{}", "/{}").split(".")]


def difference(first: Estimate, second: Estimate) -> Chart:
    """From one estimate to another, operator by operator, the largest differences first."""
    before, after = (
        summed(((short(row.operator), row.phase), row.latency_s) for row in e.by_operator) for e in (first, second)
    )
    changes = {part: after.get(part, 0.0) - before.get(part, 0.0) for part in before | after}
    parts = sorted(changes, key=lambda part: -abs(changes[part]))[:_PARTS]
    steps = {f"{operator}, {phase}": changes[operator, phase] for operator, phase in parts}
    steps["all others"] = second.latency_s - first.latency_s - sum(steps.values())
    return waterfall("difference", (_called(first, second), first), (_called(second, first), second), steps)


def waterfall(
    name: str,
    first: tuple[str, Any],
    last: tuple[str, Any],
    steps: Mapping[str, float],
    intervals: Mapping[str, tuple[float, float]] | None = None,
    *,
    labels: Mapping[str, str] | None = None,
    title: str = "",
) -> Chart:
    """From one time to another by what adds to it or takes from it.

    Args:
        name: of the chart.
        first, last: name and answer.
        steps: what each adds [s].
        intervals: of the time after a step [s].
        labels: of steps; default what each adds.
        title: default the two names.
    """
    known, at = intervals or {}, first[1].latency_s
    bars = [Bar(lane=0, start=0.0, end=at, series="", interval=first[1].interval)]
    for lane, (step, seconds) in enumerate(steps.items(), start=1):
        series = "slower" if seconds > 0 else "faster"
        label = (labels or {}).get(step) or f"{'+' if seconds > 0 else '−'}{milliseconds(abs(seconds))}"
        bars.append(Bar(lane=lane, start=at, end=at + seconds, series=series, label=label, interval=known.get(step)))
        at += seconds
    bars.append(Bar(lane=len(bars), start=0.0, end=last[1].latency_s, series="", interval=last[1].interval))
    lanes = (first[0], *steps, last[0])
    rows = [{"part": lane, "from_s": bar.start, "to_s": bar.end} for lane, bar in zip(lanes, bars, strict=True)]
    return Chart(
        name=name, title=title or f"From {first[0]} to {last[0]}", x=TIME, lanes=lanes, bars=tuple(bars),
        rows=tuple(rows), palette=GAIN,
    )  # fmt: skip


def _called(own: Any, other: Any) -> str:
    return own.gpu if own.gpu != other.gpu else f"{own.gpu}, {own.dtype}, batch {own.batch}"


def device_names(estimates: Sequence[Any]) -> tuple[str, ...]:
    """Of lanes, a device or several each."""
    return tuple(e.gpu if e.devices == 1 else f"{e.devices} x {e.gpu}" for e in estimates)


def _place(limiter: str) -> int:
    return LIMITERS.index(limiter) if limiter in LIMITERS else len(LIMITERS)


CHARTS: dict[str, Callable[[Estimate], Chart]] = {
    "memory": lambda estimate: memory([estimate]),
    "time": lambda estimate: time([estimate]),
    "operators": operators,
    "roofline": roofline,
    "modules": modules,
}
"""What ``Estimate.figure`` draws."""
