"""Training steps on a screen: one in full, many as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

from neusight.cli.output import Column, Output, line, note, table
from neusight.cli.points import Point
from neusight.cli.training_points import NUMBERS
from neusight.distributed.answer import TrainingEstimate
from neusight.plans.memory import PARTS
from neusight.plans.plan import Plan
from neusight.units import gib, milliseconds, scaled

_WIDE = 76
_PARTS = 8
"""Parts of a step that are named, the largest."""
_OF_PATH = {
    "forward": "forward", "backward": "backward", "weights": "weight gradients", "recompute": "computed again",
    "send_forward": "sends", "send_backward": "sends", "gather_forward": "gathers", "gather_backward": "gathers",
    "reduce": "gradient sums", "optimizer": "optimizer", "to_host": "copies", "to_device": "copies",
}  # fmt: skip
DAY_H = 24.0
J_PER_MWH = 3.6e9
CSV = (
    "model", "gpu", "cluster", "devices", "nodes", "framework", "dtype", "optimizer", "seq_len", "latency_s", "low_s",
    "high_s", "tokens_per_s", "mfu", "hfu", "exposed_s", "bubble", "peak_bytes", "fits", "energy_j",
)  # fmt: skip


def show_points(points: Sequence[Point[TrainingEstimate]], form: str, many: bool, tokens: float) -> None:
    """One answer in full, or a table. JSON is an object, or a list of them where ``many`` were asked for."""
    data = [
        {**p.estimate.to_dict(), "run": run_of(p.estimate, tokens)} if p.estimate else p.asked | {"error": p.error}
        for p in points
    ]
    for text in dict.fromkeys(text for point in points if point.estimate for text in point.estimate.notes):
        note(f"note: {text}")
    single = points[0].estimate

    def human() -> None:
        if many or single is None:
            _table(points)
        else:
            _full(single, tokens)

    Output(form).data(data if many else data[0], [_row(point) for point in points], human)


def run_of(e: TrainingEstimate, tokens: float) -> dict[str, Any]:
    """A run over so many tokens: days, GPU-hours, cost and energy."""
    steps = tokens / e.run.tokens
    return {
        "tokens": tokens,
        "days": e.hours(tokens) / DAY_H,
        "gpu_hours": e.gpu_hours(tokens),
        "cost_usd": e.cost_usd(tokens),
        "energy_mwh": None if e.energy_j is None else steps * e.energy_j / J_PER_MWH,
    }


def _row(point: Point[TrainingEstimate]) -> dict[str, Any]:
    """The same columns for all, whether there is an answer or not."""
    found = point.estimate.to_dict() if point.estimate else {}
    plan = found.get("plan", {})
    named = {name: found.get(name, point.asked.get(name)) for name in CSV}
    return (
        named
        | {name: plan.get(name, point.asked.get(name)) for name in Plan.__dataclass_fields__}
        | {"error": point.error}
    )


def _full(e: TrainingEstimate, tokens: float) -> None:
    place = f"{e.cluster.nodes} x {e.cluster.per_node} x {e.cluster.device.id}"
    dtype = e.run.products or e.run.dtype
    batch = f"{e.plan.global_batch:,} x {e.run.seq_len:,} tokens a step"
    paragraph(f"{e.run.decoder.name} on {place} ({e.cluster.id}): {e.run.engine.name}, {dtype}, {batch}")
    paragraph(f"plan: {plan_words(e.plan)}")
    line()
    for title, text in _facts(e, tokens):
        for at, part in enumerate(wrap(text, _WIDE - 13, break_on_hyphens=False)):
            line(f"{'' if at else title:13}{part}")
    line()
    _memory(e)
    line()
    _parts(e)


def plan_words(plan: Plan) -> str:
    """What differs from one device, in a few words."""
    degrees = [
        f"{name} {getattr(plan, name)}" for name in ("dp", "tp", "pp", "cp", "ep", "vp") if getattr(plan, name) > 1
    ]
    words = [f"micro-batch {plan.micro_batch}", f"{plan.micro_batches} of them"]
    words += [plan.schedule] if plan.pp > 1 else []
    words += [plan.shard] if plan.shard != "none" else []
    words += [f"{plan.recompute} recomputation"] if plan.recompute != "none" else []
    words += ["sequence parallel"] if plan.sequence_parallel and plan.tp > 1 else []
    words += ["optimizer on the host"] if plan.offload != "none" else []
    return ", ".join((*degrees, *words))


def short_words(plan: Plan) -> str:
    """The same for a column of a table."""
    degrees = [
        f"{name}{getattr(plan, name)}" for name in ("dp", "tp", "pp", "cp", "ep", "vp") if getattr(plan, name) > 1
    ]
    words = [f"mb{plan.micro_batch}", *degrees]
    words += [plan.schedule] if plan.schedule != "1f1b" else []
    words += [plan.shard] if plan.shard != "none" else []
    words += [f"re-{plan.recompute}"] if plan.recompute != "none" else []
    return " ".join(words + (["sp"] if plan.sequence_parallel and plan.tp > 1 else []))


def _facts(e: TrainingEstimate, tokens: float) -> Iterator[tuple[str, str]]:
    yield "step", f"{seconds(e.latency_s)} (90 %: {seconds(e.low_s)} to {seconds(e.high_s)})"
    yield "throughput", f"{e.tokens_per_s:,.0f} tokens/s, {e.tokens_per_s / e.cluster.devices:,.0f} a GPU"
    yield "utilisation", f"MFU {e.mfu:.1%}, HFU {e.hfu:.1%} of {scaled(e.peak_flops_per_s, 'FLOP/s')}"
    exposed = f"{seconds(e.exposed_s)} exposed communication ({e.exposed_s / e.latency_s:.1%})"
    yield "waits", f"{exposed}, bubble {e.bubble:.1%}"
    yield "critical", ", ".join(f"{what} {share:.1%}" for what, share in path_shares(e).items() if share >= 5e-4)
    errors = sorted(e.errors.items(), key=lambda item: -item[1])
    yield "error from", ", ".join(f"{source} {share:.1%}" for source, share in errors if share >= 5e-4)
    verdict = "fits" if e.fits else "DOES NOT FIT"
    yield "memory", f"{verdict}: {gib(e.peak_bytes)} of {gib(e.cluster.device.usable_bytes)} on the fullest GPU"
    run = run_of(e, tokens)
    length = f"{run['days']:,.1f} days, {run['gpu_hours']:,.0f} GPU-hours"
    yield "run", f"{tokens:.3g} tokens: {length}, {_cost(e, run['cost_usd'])}"
    if run["energy_mwh"] is not None:
        yield "", f"{run['energy_mwh']:,.1f} MWh of the GPUs' boards, {_watts(e)} W each"


def _cost(e: TrainingEstimate, usd: float | None) -> str:
    return f"cost unknown: {e.cluster.device.id} has no price" if usd is None else f"{usd:,.0f} USD"


def _watts(e: TrainingEstimate) -> str:
    return f"{(e.energy_j or 0.0) / e.latency_s / e.cluster.devices:,.0f}"


def path_s(e: TrainingEstimate) -> dict[str, float]:
    """Seconds of the critical path by kind."""
    found: dict[str, float] = {}
    for name, value in e.schedule.path_s.items():
        found[_OF_PATH[name]] = found.get(_OF_PATH[name], 0.0) + value
    return found


def path_shares(e: TrainingEstimate) -> dict[str, float]:
    """The same as shares, largest first."""
    shares = {what: value / e.latency_s for what, value in path_s(e).items()}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def seconds(value: float) -> str:
    """Such as ``7.15 s`` or ``812.0 ms``."""
    return f"{value:.2f} s" if value >= 1.0 else milliseconds(value)


def _memory(e: TrainingEstimate) -> None:
    """Parts in rows, kinds of ranks in columns."""
    columns = [Column("memory"), *(Column(f"{rank.rank} rank", right=True) for rank in e.memory)]
    shown = [part for part in PARTS if any(rank.parts[part] for rank in e.memory)]
    rows = [(part, *(gib(rank.parts[part]) for rank in e.memory)) for part in shown]
    table(columns, [*rows, ("total", *(gib(rank.total) for rank in e.memory))])


def _parts(e: TrainingEstimate) -> None:
    """What takes most of a step on an average rank, whatever runs beside it."""
    columns = [Column("part"), Column("a step", right=True), Column("share", right=True), Column("limited by")]
    largest = list(e.parts_s.items())[:_PARTS]
    table(columns, ((w, seconds(s), f"{s / e.latency_s:.1%}", e.limiters[w]) for w, s in largest))


def _table(points: Sequence[Point[TrainingEstimate]]) -> None:
    """A row a point; what all share stands above."""
    names = list(points[0].asked)
    differ = [name for name in names if len({str(point.asked[name]) for point in points}) > 1]
    same = {name: points[0].asked[name] for name in names if name not in differ}
    found = [(point, point.estimate) for point in points if point.estimate]
    if found:
        e = found[0][1]
        paragraph(f"{e.run.decoder.name} on {e.cluster.id}: {_told(same)}")
    columns = [Column(name.replace("_", "\n"), right=name in NUMBERS) for name in differ]
    # Many axes leave no room for what a step waits for.
    titles = [title for title in _FIGURES if len(differ) <= _FEW or title not in ("exposed", "bubble")]
    columns += [Column(title, right=True) for title in titles]
    rows = ([str(p.asked[name]) for name in differ] + [_FIGURES[title](e) for title in titles] for p, e in found)
    table(columns, rows)
    errors = [point.error for point in points if point.error]
    for reason in dict.fromkeys(errors):
        count = errors.count(reason)
        paragraph(f"no answer for {count} point{'s' if count > 1 else ''}: {reason}")


def _told(same: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in same.items()) or "one axis"


_FEW = 3
_FIGURES: dict[str, Callable[[TrainingEstimate], str]] = {
    "step": lambda e: seconds(e.latency_s),
    "tokens/s": lambda e: f"{e.tokens_per_s:,.0f}",
    "MFU": lambda e: f"{e.mfu:.1%}",
    "exposed": lambda e: f"{e.exposed_s / e.latency_s:.1%}",
    "bubble": lambda e: f"{e.bubble:.1%}",
    "memory": lambda e: gib(e.peak_bytes),
    "fits": lambda e: "yes" if e.fits else "no",
}


def paragraph(text: str) -> None:
    """Lines of at most 76 characters, the later ones indented."""
    for at, part in enumerate(wrap(text, _WIDE, break_on_hyphens=False)):
        line(f"{'  ' if at else ''}{part}")
