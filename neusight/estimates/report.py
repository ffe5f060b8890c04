"""An estimate as scripts and notebooks read it, by the names of its attributes; ``to_dict`` is the lossless form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from typing import TYPE_CHECKING, Any

from neusight.estimates.core import columns as columns
from neusight.estimates.core import core
from neusight.estimates.records import KernelEstimate
from neusight.units import milliseconds

if TYPE_CHECKING:
    from neusight.estimates.estimate import Estimate

_SUMMARY = (
    *("mode", "batch", "seq_len", "inputs", "dtype", "optimizer", "attention"),
    *("unit", "samples_per_s", "tokens_per_s", "bound_s", "by_phase", "by_part"),
)
"""Beside the core of every estimate."""
_REST = ("coverage", "in_domain", "outside", "energy_j")
OPERATOR_COLUMNS = ("operator", "phase", "count", "latency_s", "share", "limiter")
LONE_KERNEL_COLUMNS = (
    *("kernel", "family", "latency_s", "low_s", "high_s", "bound_s", "utilisation", "limiter"),
    *("tile", "tile_count", "waves", "in_domain", "outside", "source"),
)
"""Of a kernel by itself, which has no operator, phase or count."""
KERNEL_COLUMNS = ("operator", "phase", "count", "total_s", *LONE_KERNEL_COLUMNS)
_ROWS = 10
"""Operators of a notebook's view."""


def report(estimate: Estimate) -> dict[str, Any]:
    """Plain data for JSON: times in seconds, memory in bytes, shares from 0 to 1."""
    return {
        **core(estimate),
        **columns(estimate, _SUMMARY),
        "by_operator": [columns(row, OPERATOR_COLUMNS) for row in estimate.by_operator],
        "by_kernel": [columns(row, KERNEL_COLUMNS) for row in costliest(estimate)],
        "memory": {**asdict(estimate.memory), "peak_bytes": estimate.memory.peak_bytes},
        **columns(estimate, _REST),
        "provenance": {
            **asdict(estimate.provenance),
            "gpu_in_training": estimate.gpu in estimate.provenance.training_gpus,
        },
    }


def costliest(estimate: Estimate) -> list[KernelEstimate]:
    """Kernels by their share of the latency, largest first."""
    return sorted(estimate.by_kernel, key=lambda row: -row.total_s)


def headline(e: Estimate) -> str:
    """The answer in a line."""
    low_s, high_s = e.interval
    where = e.gpu if e.devices == 1 else f"{e.devices} x {e.gpu}"
    times = f"{milliseconds(e.latency_s)} (90 %: {milliseconds(low_s)} to {milliseconds(high_s)})"
    return f"{e.model} on {where}, {e.mode}, batch {e.batch}, {e.dtype}: {times}"


def html(e: Estimate) -> str:
    """What a notebook shows: the answer, phases and the costliest operators with bars, memory."""
    phases = [(name, milliseconds(seconds), seconds / e.latency_s) for name, seconds in e.by_phase.items()]
    operators = [
        (f"{row.operator} ({row.phase}), limited by {row.limiter}", milliseconds(row.latency_s), row.share)
        for row in e.by_operator[:_ROWS]
    ]
    memory = f"memory: {e.fit}"
    notes = "".join(f"<li>{escape(text)}</li>" for text in e.warnings)
    return (
        f"<p><b>{escape(headline(e))}</b><br>limited by {escape(e.limiter)}; {escape(memory)}</p>"
        f"{_table('phase', phases)}{_table('operator', operators)}{f'<ul>{notes}</ul>' if notes else ''}"
    )


def _table(title: str, rows: Sequence[tuple[str, str, float]]) -> str:
    cells = "".join(
        f"<tr><td style='text-align:left'>{escape(name)}</td><td>{time}</td><td>{share:.1%}</td>"
        f"<td style='text-align:left'><div style='background:#4c78a8;height:0.8em;width:{120 * share:.0f}px'></div>"
        "</td></tr>"
        for name, time, share in rows
    )
    head = f"<tr><th style='text-align:left'>{title}</th><th>latency</th><th>share</th><th></th></tr>"
    return f"<table>{head}{cells}</table>"
