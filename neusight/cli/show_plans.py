"""What a search over plans found, on a screen: the fastest, what less memory costs, and why the first is first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from neusight.cli.output import Column, Output, line, table
from neusight.cli.show_training import paragraph, path_s, seconds, short_words
from neusight.distributed.answer import TrainingEstimate
from neusight.distributed.search import Found
from neusight.units import gib

_LEAST = 0.05
"""Share of the largest difference below which one is not named."""


def show_found(found: Found, form: str) -> None:
    """As tables; JSON has the estimates of ``best`` and ``frontier``, and how many plans there were."""
    data = {
        "plans": found.plans,
        "simulated": found.simulated,
        "too_large": found.too_large,
        "best": [e.to_dict() for e in found.best],
        "frontier": [e.to_dict() for e in found.frontier],
        "first_less_second_s": difference_s(found.best),
    }
    Output(form).data(data, [_row(e) for e in found.best], lambda: _human(found))


def difference_s(best: Sequence[TrainingEstimate]) -> dict[str, float]:
    """Critical path of the first plan less that of the second, by kind [s]; empty where there is one plan."""
    if len(best) < 2:
        return {}
    first, second = path_s(best[0]), path_s(best[1])
    return {what: first[what] - second[what] for what in first}


def _row(e: TrainingEstimate) -> dict[str, Any]:
    found = e.to_dict()
    figures = ("latency_s", "low_s", "high_s", "tokens_per_s", "mfu", "exposed_s", "bubble", "peak_bytes")
    return {name: found[name] for name in figures} | found["plan"]


def _human(found: Found) -> None:
    e = found.best[0]
    line(f"{e.run.decoder.name} on {e.cluster.nodes} x {e.cluster.per_node} x {e.cluster.device.id}")
    line(f"{e.plan.global_batch:,} x {e.run.seq_len:,} tokens a step, {e.run.engine.name}")
    line(f"{found.plans:,} plans, {found.simulated:,} simulated; too large of those looked at: {found.too_large:,}\n")
    _plans("fastest", found.best)
    if text := why(found.best):
        line()
        paragraph(f"The first beats the second by {text}.")
    if len(found.frontier) > 1:
        line()
        _plans("less memory", found.frontier)


def _plans(title: str, estimates: Sequence[TrainingEstimate]) -> None:
    columns = [Column(name, right=True) for name in ("step", "tokens/s", "MFU", "memory")]
    table([*columns, Column(title, wrap=True)], map(_cells, estimates))


def _cells(e: TrainingEstimate) -> tuple[str, ...]:
    return seconds(e.latency_s), f"{e.tokens_per_s:,.0f}", f"{e.mfu:.1%}", gib(e.peak_bytes), short_words(e.plan)


def why(best: Sequence[TrainingEstimate]) -> str:
    """Where on the critical path it is shorter, and where longer."""
    differences = difference_s(best)
    if not differences:
        return ""
    total = seconds(best[1].latency_s - best[0].latency_s)
    return f"{total}: {', '.join(_differences(differences)) or 'nothing by itself'}"


def _differences(differences: dict[str, float]) -> Iterator[str]:
    largest = max(map(abs, differences.values()))
    for what, value in sorted(differences.items(), key=lambda item: item[1]):
        if abs(value) > _LEAST * largest:
            yield f"{what} {'-' if value < 0 else '+'}{seconds(abs(value))}"
