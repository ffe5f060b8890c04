"""Answers on a screen: an estimate with headline, phases, what costs most, memory, provenance; kernels; sweeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from neusight.cli.output import Column, Output, bar, line, table
from neusight.errors import shown
from neusight.estimates import Estimate, KernelEstimate
from neusight.estimates.report import (
    KERNEL_COLUMNS,
    LONE_KERNEL_COLUMNS,
    OPERATOR_COLUMNS,
    columns,
    costliest,
    report,
)
from neusight.units import gib, milliseconds

_TOP = 12


def show_estimates(estimates: Sequence[Estimate], by: str, form: str, many: bool) -> None:
    """One estimate in full; several side by side. JSON holds everything, CSV the rows that ``by`` chooses.

    ``many`` says that a list was asked for, be it of one.
    """
    single = estimates[0] if len(estimates) == 1 else None
    data = [report(e) for e in estimates] if many else report(estimates[0])
    rows = [{"model": e.model, "gpu": e.gpu, **row} for e in estimates for row in _rows(e, by)]
    Output(form).data(data, rows, lambda: _full(single, by) if single else _compared(estimates))


def _rows(estimate: Estimate, by: str) -> list[dict[str, Any]]:
    if by == "kernel":
        return [columns(row, KERNEL_COLUMNS) for row in costliest(estimate)]
    if by == "operator":
        return [columns(row, OPERATOR_COLUMNS) for row in estimate.by_operator]
    return [{"phase": phase, "latency_s": seconds} for phase, seconds in estimate.by_phase.items()]


def _full(estimate: Estimate, by: str) -> None:
    _headline(estimate)
    line()
    _phases(estimate)
    if by != "phase":
        line()
        (_operators if by == "operator" else _kernels)(estimate)
    line()
    _memory(estimate)
    _origin(estimate)


_SMALL_DOUBT = 0.005
"""Errors below this share of the latency are not worth a word."""


def _headline(e: Estimate) -> None:
    length = f", sequence {e.seq_len}" if e.seq_len else ""
    optimizer = f", {e.optimizer}" if e.optimizer != "none" else ""
    gpu = e.gpu if e.devices == 1 else f"{e.devices} {e.gpu}"
    line(f"{e.model} on {gpu}: {e.mode}, batch {e.batch}{length}, {e.dtype}{optimizer}")
    for text in _wrapped("  fed         ", e.inputs):
        line(text)
    low_s, high_s = e.interval
    line(f"  latency     {milliseconds(e.latency_s)}  (90 %: {milliseconds(low_s)} to {milliseconds(high_s)})")
    doubts = sorted(((size, source) for source, size in e.errors.items() if size >= _SMALL_DOUBT), reverse=True)
    line(f"  doubt       {', '.join(f'{source} {size:.0%}' for size, source in doubts)}, standard deviations")
    tokens = f", {e.tokens_per_s:,.0f} tokens/s" if e.tokens_per_s else ""
    line(f"  throughput  {e.samples_per_s:.3g} samples/s{tokens}")
    share = e.bound_s / e.latency_s if e.latency_s else 0.0
    line(f"  bound       {milliseconds(e.bound_s)} by physics ({share:.0%} of the latency), limited by {e.limiter}")
    if e.energy_j:
        parts = ", ".join(f"{name} {joules:.3g}" for name, joules in e.energy_j.items())
        line(f"  energy      {sum(e.energy_j.values()):.3g} J ({parts})")


def _wrapped(title: str, words: Sequence[str]) -> list[str]:
    from textwrap import wrap

    return wrap(" ".join(words), 80, initial_indent=title, subsequent_indent=" " * len(title)) if words else []


def _phases(e: Estimate) -> None:
    titles = (Column("phase"), Column("latency", right=True), Column("share", right=True), Column(""))
    table(titles, ((p, milliseconds(s), *_share(s / e.latency_s)) for p, s in e.by_phase.items()))


def _operators(e: Estimate) -> None:
    titles = (
        Column("operator"),
        Column("phase"),
        Column("count", right=True),
        Column("latency", right=True),
        Column("share", right=True),
        Column(""),
        Column("limiter"),
    )
    rows = e.by_operator
    table(
        titles,
        (
            (_plain(r.operator), r.phase, f"{r.count:g}", milliseconds(r.latency_s), *_share(r.share), r.limiter)
            for r in rows[:_TOP]
        ),
    )
    _more(len(rows), "operators", sum(r.share for r in rows[_TOP:]))


def _plain(operator: str) -> str:
    """``aten.addmm.default`` as ``addmm``."""
    return operator.removeprefix("aten.").removesuffix(".default")


def _kernels(e: Estimate) -> None:
    titles = (
        Column("kernel", wrap=True),
        Column("count", right=True),
        Column("each", right=True),
        Column("share", right=True),
        Column("util", right=True),
        Column("tile"),
        Column("limiter"),
    )
    rows = costliest(e)
    shown = (
        (
            r.kernel,
            f"{r.count:g}",
            milliseconds(r.latency_s),
            f"{r.total_s / e.latency_s:.1%}",
            f"{r.utilisation:.0%}",
            r.tile,
            r.limiter,
        )
        for r in rows[:_TOP]
    )
    table(titles, shown)
    _more(len(rows), "kernels", sum(r.total_s for r in rows[_TOP:]) / e.latency_s)


def _more(count: int, what: str, share: float) -> None:
    if count > _TOP:
        line(f"… and {count - _TOP} more {what} ({share:.1%}); --format csv lists all")


def _share(share: float) -> tuple[str, str]:
    return f"{share:.1%}", bar(share)


def _memory(e: Estimate) -> None:
    verdict = "fits" if e.fits else "DOES NOT FIT"
    parts = ", ".join(f"{name} {gib(size)}" for name, size in e.memory.parts.items() if size)
    reserve = f"{gib(e.memory.reserve)} kept for context and allocator"
    needs = f"{gib(e.memory.peak_bytes)} of the {gib(e.memory.capacity_bytes)} that a process may allocate"
    _paragraph("memory", f"{needs}: {verdict}", f"{parts}; {reserve}")


def _origin(e: Estimate) -> None:
    covered = ", ".join(f"{name} {share:.1%}" for name, share in e.coverage.items() if share)
    known = "among the GPUs of training" if e.gpu in e.provenance.training_gpus else "in no tile model's training"
    measured = (f"corrected by {e.provenance.calibration}",) if e.provenance.calibration else ()
    zeros = (f"zeros: {e.provenance.sparsity}",) if e.provenance.sparsity else ()
    version = f"{e.gpu} {known}; neusight {e.provenance.neusight}"
    _paragraph("source", f"tile models {covered} of the latency", *measured, *zeros, version)


def _paragraph(title: str, *texts: str) -> None:
    """Each text from a new line, wrapped at 80 columns, beside the title."""
    from textwrap import wrap

    lines = [part for text in texts for part in wrap(text, 68)]
    for place, part in enumerate(lines):
        line(f"{'' if place else title:12}{part}")


def _compared(estimates: Sequence[Estimate]) -> None:
    first = estimates[0]
    line(f"{first.model}: {first.mode}, batch {first.batch}, sequence {first.seq_len or '-'}, {first.dtype}")
    slowest = max(e.latency_s for e in estimates)
    titles = (
        Column("gpu"),
        Column("latency", right=True),
        Column("90 % interval", right=True),
        Column(""),
        Column("samples/s", right=True),
        Column("limiter"),
        Column("fits"),
    )
    table(titles, (_compared_row(e, slowest) for e in estimates))


def _compared_row(e: Estimate, slowest: float) -> tuple[str, ...]:
    low, high = (milliseconds(value) for value in e.interval)
    return (
        e.gpu,
        milliseconds(e.latency_s),
        f"{low} - {high}",
        bar(e.latency_s / slowest, 6),
        f"{e.samples_per_s:.3g}",
        e.limiter,
        "yes" if e.fits else "NO",
    )


def show_kernels(found: Sequence[tuple[str, KernelEstimate]], form: str, many: bool) -> None:
    """One kernel on each device, by id."""
    rows = [{"gpu": gpu, **columns(row, LONE_KERNEL_COLUMNS)} for gpu, row in found]
    Output(form).data(rows if many else rows[0], rows, lambda: _kernels_alone(found))


def _kernels_alone(found: Sequence[tuple[str, KernelEstimate]]) -> None:
    line(found[0][1].kernel)
    words = ("gpu", "tile", "limiter")
    titles = ("gpu", "latency", "90 % interval", "bound", "util", "tile", "limiter")
    table([Column(title, right=title not in words) for title in titles], (_kernel_cells(*each) for each in found))


def _kernel_cells(gpu: str, row: KernelEstimate) -> tuple[str, ...]:
    return (
        gpu,
        milliseconds(row.latency_s),
        f"{milliseconds(row.low_s)} - {milliseconds(row.high_s)}",
        milliseconds(row.bound_s),
        f"{row.utilisation:.0%}",
        row.tile,
        row.limiter,
    )


def show_sweep(rows: list[dict[str, Any]], form: str) -> None:
    """The steps of a sweep; what all of them share is left out of the table."""
    Output(form).data(rows, rows, lambda: _sweep_table(rows))


def _sweep_table(rows: list[dict[str, Any]]) -> None:
    found = [row for row in rows if not row["error"]]
    best = max((row["samples_per_s"] for row in found), default=0.0) or 1.0
    same = {key for key in ("mode", "seq_len", "dtype") if len({row[key] for row in found}) == 1}
    keys = [key for key in ("model", "gpu", "mode", "batch", "seq_len", "dtype") if key not in same]
    titles = [Column(key, right=key in ("batch", "seq_len")) for key in keys]
    titles += [Column("latency", right=True), Column("samples/s", right=True), Column(""), Column("GiB", right=True)]
    if found:
        table(titles, ((*(_said(row[key]) for key in keys), *_sweep_cells(row, best)) for row in found))
    reasons = Counter((row["model"], row["error"]) for row in rows if row["error"])
    for (model, reason), count in reasons.items():
        _paragraph("none for", f"{shown(model)}, {count} step{'s' if count > 1 else ''}: {reason}")


def _said(value: Any) -> str:
    return "-" if value is None else shown(value)


def _sweep_cells(row: dict[str, Any], best: float) -> tuple[str, ...]:
    memory = f"{row['peak_bytes'] / 2**30:.1f}" + ("" if row["fits"] else " no fit")
    share = row["samples_per_s"] / best if row["fits"] else 0.0
    return milliseconds(row["latency_s"]), f"{row['samples_per_s']:.3g}", bar(share, 4), memory
