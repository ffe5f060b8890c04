"""Training steps on a screen: one in full, many as a table, and the plans that a search prefers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

from neusight.cli.output import Column, Output, headline, line, note, paragraph, table
from neusight.cli.points import Point, differing, reasons
from neusight.defaults import words_of
from neusight.devices import DeviceSpec
from neusight.distributed.estimate import TrainingEstimate
from neusight.distributed.faults import HOUR_S, Faults, WholeRun
from neusight.distributed.search import Found
from neusight.plans.memory import PARTS, RankMemory
from neusight.requests import Plan
from neusight.units import decimal, gib, milliseconds, scaled

_WIDE = 76
_PARTS = 8
"""Parts of a step that are named, the largest."""
_SMALLEST_DIFFERENCE = 0.05
"""Share of the largest difference of two plans below which one is not named."""
_OF_PATH = {
    "forward": "forward", "backward": "backward", "weights": "weight gradients", "recompute": "recomputation",
    "send_forward": "sends", "send_backward": "sends", "gather_forward": "gathers", "gather_backward": "gathers",
    "reduce": "gradient sums", "optimizer": "optimizer", "to_host": "copies", "to_device": "copies",
}  # fmt: skip
_MOMENTS = {"loss": "the loss", "backward": "the backward pass", "step": "the optimizer's step"}
DAY_H = 24.0
J_PER_MWH = 3.6e9
CSV = (
    "model", "gpu", "cluster", "devices", "nodes", "engine", "dtype", "optimizer", "seq_len", "latency_s", "low_s",
    "high_s", "tokens_per_s", "mfu", "hfu", "exposed_s", "bubble", "needed_bytes", "peak_bytes",
    "fits", "board_energy_j",
)  # fmt: skip


def show_points(points: Sequence[Point[TrainingEstimate]], form: str, many: bool, whole: WholeRun) -> None:
    """One estimate in full, or a table. JSON is an object, or a list of them where ``many``."""
    data = [
        {**p.estimate.to_dict(), "run": run_of(p.estimate, whole)} if p.estimate else p.options | {"error": p.error}
        for p in points
    ]
    for text in dict.fromkeys(text for point in points if point.estimate for text in point.estimate.warnings):
        note(f"warning: {text}")
    single = points[0].estimate

    def human() -> None:
        if many or single is None:
            _table(points)
        else:
            _full(single, whole)

    Output(form).data(data if many else data[0], [_row(point) for point in points], human)


def run_of(e: TrainingEstimate, whole: WholeRun) -> dict[str, Any]:
    """A run over so many tokens: days, GPU-hours, cost and energy, and what faults make of them."""
    steps, devices = whole.tokens / e.run.tokens, e.cluster.devices
    tokens = whole.tokens * whole.stretch(devices)
    return {
        "tokens": whole.tokens,
        "days": e.hours(tokens) / DAY_H,
        "gpu_hours": e.gpu_hours(tokens),
        "cost_usd": e.cost_usd(tokens),
        "energy_mwh": None if e.board_energy_j is None else steps * e.board_energy_j / J_PER_MWH,
        **({} if whole.faults is None else {"faults": _faults(whole.faults, devices)}),
    }


def _faults(faults: Faults, devices: int) -> dict[str, float]:
    return {
        "mtbf_s": faults.mtbf_s(devices), "checkpoint_interval_s": faults.interval_s(devices),
        "useful": faults.useful(devices),
    }  # fmt: skip


def _row(point: Point[TrainingEstimate]) -> dict[str, Any]:
    """The same columns for all, whether there is an estimate or not."""
    values = point.estimate.to_dict() if point.estimate else {}
    plan = values.get("plan", {})
    return (
        {name: values.get(name, point.options.get(name)) for name in CSV}
        | {name: plan.get(name, point.options.get(name)) for name in Plan.__dataclass_fields__}
        | {"error": point.error}
    )


def _full(e: TrainingEstimate, whole: WholeRun) -> None:
    place = f"{e.cluster.nodes} x {e.cluster.per_node} x {e.cluster.device.id}"
    dtype = e.run.products or e.run.dtype
    batch = f"{e.run.work} a step"
    headline(f"{e.run.decoder.name} on {place} ({e.cluster.id}): {e.run.engine.name}, {dtype}, {batch}")
    headline(f"plan: {plan_words(e.plan)}")
    line()
    for title, text in _facts(e, whole):
        for at, part in enumerate(wrap(text, _WIDE - 13, break_on_hyphens=False)):
            line(f"{'' if at else title:13}{part}")
    line()
    show_ranks(e.memory, e.cluster.device)
    line()
    _parts(e)


def plan_words(plan: Plan) -> str:
    """What differs from one device, in a few words."""
    words = [f"{name} {getattr(plan, name)}" for name in _DEGREES if getattr(plan, name) > 1]
    words += [f"keys by {plan.cp_comm}"] if plan.cp_comm else []
    words += [f"micro-batch {plan.micro_batch_size}", f"{plan.micro_batches} of them"]
    words += [plan.schedule] if plan.pp > 1 else []
    words += [plan.shard] if plan.shard != "none" else []
    words += [f"{plan.recompute} recomputation"] if plan.recompute != "none" else []
    words += ["sequence parallel"] if plan.sequence_parallel and plan.tp > 1 else []
    words += ["optimizer on the host"] if plan.offload != "none" else []
    return ", ".join(words)


def _short_words(plan: Plan) -> str:
    """The same for a column of a table."""
    words = [f"mb{plan.micro_batch_size}"]
    words += [f"{name}{getattr(plan, name)}" for name in _DEGREES if getattr(plan, name) > 1]
    words += [plan.schedule] if plan.schedule != "1f1b" else []
    words += [plan.shard] if plan.shard != "none" else []
    words += [f"recompute-{plan.recompute}"] if plan.recompute != "none" else []
    return " ".join(words + (["sp"] if plan.sequence_parallel and plan.tp > 1 else []))


_DEGREES = ("dp", "tp", "pp", "cp", "ulysses", "ep", "vp")


def _facts(e: TrainingEstimate, whole: WholeRun) -> Iterator[tuple[str, str]]:
    yield "step", f"{seconds(e.latency_s)} (90 %: {seconds(e.low_s)} to {seconds(e.high_s)})"
    yield "throughput", f"{e.tokens_per_s:,.0f} {e.run.unit}/s, {e.tokens_per_s / e.cluster.devices:,.0f} a GPU"
    yield "utilisation", f"MFU {e.mfu:.1%}, HFU {e.hfu:.1%} of {scaled(e.peak_flops_per_s, 'FLOP/s')} a GPU"
    exposed = f"{seconds(e.exposed_s)} for communication that nothing hides ({e.exposed_s / e.latency_s:.1%})"
    yield "waits", f"{exposed}; pipeline bubble {e.bubble:.1%}"
    path = ", ".join(f"{what} {share:.1%}" for what, share in path_shares(e).items() if share >= 5e-4)
    yield "longest path", path
    errors = sorted(e.errors.items(), key=lambda item: -item[1])
    yield "error", f"{', '.join(f'{source} {share:.1%}' for source, share in errors if share >= 5e-4)} (std. dev.)"
    yield "memory", str(e.fit)
    if e.assumed:
        yield "assumed", words_of(e.assumed)
    run = run_of(e, whole)
    length = f"{run['days']:,.1f} days, {run['gpu_hours']:,.0f} GPU-hours"
    yield "whole run", f"{decimal(whole.tokens)} tokens: {length}, {_cost(e, run['cost_usd'])}"
    if faults := run.get("faults"):
        every = f"a fault every {faults['mtbf_s'] / HOUR_S:,.1f} h, a checkpoint every"
        yield "", f"{every} {faults['checkpoint_interval_s'] / 60:,.0f} min, {faults['useful']:.1%} of the time useful"
    if run["energy_mwh"] is not None:
        yield "", f"{run['energy_mwh']:,.1f} MWh for the GPU boards{_energy_interval(e)}, {_watts(e)} W each"


def _cost(e: TrainingEstimate, usd: float | None) -> str:
    if usd is None:
        return f"cost unknown: no price of {e.cluster.device.id} is known; --set device.price=2.5USD/h gives one"
    return f"{usd:,.0f} USD; price: {e.price_source}"


def _energy_interval(e: TrainingEstimate) -> str:
    energy = e.board_energy
    return (
        f" ({energy.low_j / energy.expected_j - 1:+.0%} to {energy.high_j / energy.expected_j - 1:+.0%})"
        if energy
        else ""
    )


def _watts(e: TrainingEstimate) -> str:
    return f"{(e.board_energy_j or 0.0) / e.latency_s / e.cluster.devices:,.0f}"


def path_s(e: TrainingEstimate) -> dict[str, float]:
    """Seconds of the critical path by kind."""
    sums: dict[str, float] = {}
    for name, value in e.schedule.path_s.items():
        sums[_OF_PATH[name]] = sums.get(_OF_PATH[name], 0.0) + value
    return sums


def path_shares(e: TrainingEstimate) -> dict[str, float]:
    """The same as shares, largest first."""
    shares = {what: value / e.latency_s for what, value in path_s(e).items()}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def seconds(value: float) -> str:
    """Such as ``7.15 s`` or ``812.0 ms``."""
    return f"{value:.2f} s" if value >= 1.0 else milliseconds(value)


def show_ranks(ranks: Sequence[RankMemory], device: DeviceSpec) -> None:
    """Parts in rows, kinds of ranks in columns: tensors up to their peak, then what the process takes beside them."""
    fits = [rank.fit(device) for rank in ranks]
    titles = [Column("memory"), *(Column(f"{rank.rank} rank", right=True) for rank in ranks)]
    parts = [part for part in PARTS if any(rank.parts[part] for rank in ranks)]
    rows = [(part, *(gib(rank.parts[part]) for rank in ranks)) for part in parts]
    rows.append(("peak", *(gib(rank.total) for rank in ranks)))
    rows += [(term, *(gib(fit.terms[term]) for fit in fits)) for term in ("context", "fragments")]
    rows.append(("needs", *(gib(fit.needed_bytes) for fit in fits)))
    rows += [(end, *(gib(fit.interval[at]) for fit in fits)) for at, end in enumerate(("5 %", "95 %"))]
    table(titles, [*rows, ("at its peak in", *(_MOMENTS[rank.moment] for rank in ranks))])


def _parts(e: TrainingEstimate) -> None:
    """What takes most of a step on an average rank, whatever runs at the same time."""
    titles = [Column("part"), Column("a step", right=True), Column("share", right=True), Column("limited by")]
    largest = list(e.parts_s.items())[:_PARTS]
    table(titles, ((what, seconds(s), f"{s / e.latency_s:.1%}", e.limiters[what]) for what, s in largest))


def _table(points: Sequence[Point[TrainingEstimate]]) -> None:
    """A row a point; what all share stands above."""
    names = differing(points, points[0].options)
    same = {name: value for name, value in points[0].options.items() if name not in names}
    answers = [(point, point.estimate) for point in points if point.estimate]
    if answers:
        e = answers[0][1]
        words = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in same.items())
        headline(f"{e.run.decoder.name} on {e.cluster.id}{f': {words}' if words else ''}")
        columns = [
            Column(name.replace("_", "\n"), right=not isinstance(points[0].options[name], str)) for name in names
        ]
        # Many axes leave no room for what a step waits for.
        titles = [title for title in _FIGURES if len(names) <= _FEW or title not in ("exposed", "bubble")]
        columns += [Column(title, right=True) for title in titles]
        table(
            columns, ([str(p.options[n]) for n in names] + [_FIGURES[title](e) for title in titles] for p, e in answers)
        )
    for reason in reasons(points):
        headline(reason)


_FEW = 3
_FIGURES: dict[str, Callable[[TrainingEstimate], str]] = {
    "step": lambda e: seconds(e.latency_s),
    "tokens/s": lambda e: f"{e.tokens_per_s:,.0f}",
    "MFU": lambda e: f"{e.mfu:.1%}",
    "exposed": lambda e: f"{e.exposed_s / e.latency_s:.1%}",
    "bubble": lambda e: f"{e.bubble:.1%}",
    "memory": lambda e: gib(e.needed_bytes),
    "fits": lambda e: "yes" if e.fits else "no",
}


def show_plans(matches: Found, form: str) -> None:
    """As tables; JSON has the estimates of ``best`` and ``frontier``, and how many plans there were."""
    data = {
        "plans": matches.plans,
        "simulated": matches.simulated,
        "too_large": matches.too_large,
        "best": [e.to_dict() for e in matches.best],
        "frontier": [e.to_dict() for e in matches.frontier],
        "first_less_second_s": difference_s(matches.best),
    }
    Output(form).data(data, [_plan_row(e) for e in matches.best], lambda: _show_plans(matches))


def difference_s(best: Sequence[TrainingEstimate]) -> dict[str, float]:
    """Critical path of the first plan less that of the second, by kind [s]; empty where there is one plan."""
    if len(best) < 2:
        return {}
    first, second = path_s(best[0]), path_s(best[1])
    return {what: first[what] - second[what] for what in first}


def _plan_row(e: TrainingEstimate) -> dict[str, Any]:
    values = e.to_dict()
    figures = (
        "latency_s",
        "low_s",
        "high_s",
        "tokens_per_s",
        "mfu",
        "exposed_s",
        "bubble",
        "needed_bytes",
        "peak_bytes",
    )
    return {name: values[name] for name in figures} | values["plan"]


def _show_plans(matches: Found) -> None:
    e = matches.best[0]
    line(f"{e.run.decoder.name} on {e.cluster.nodes} x {e.cluster.per_node} x {e.cluster.device.id}")
    line(f"{e.run.work} a step, {e.run.engine.name}")
    paragraph("assumed", words_of(e.assumed))
    line(f"{matches.plans:,} plans; {matches.simulated:,} simulated, {matches.too_large:,} too large for memory\n")
    _plans("fastest", matches.best)
    if text := why(matches.best):
        line()
        headline(f"The first beats the second by {text}.")
    if len(matches.frontier) > 1:
        line()
        _plans("fastest with less memory", matches.frontier)


def _plans(title: str, estimates: Sequence[TrainingEstimate]) -> None:
    columns = [Column(name, right=True) for name in ("step", "tokens/s", "MFU", "memory")]
    table([*columns, Column(title, wrap=True)], map(_cells, estimates))


def _cells(e: TrainingEstimate) -> tuple[str, ...]:
    return seconds(e.latency_s), f"{e.tokens_per_s:,.0f}", f"{e.mfu:.1%}", gib(e.needed_bytes), _short_words(e.plan)


def why(best: Sequence[TrainingEstimate]) -> str:
    """Where on the critical path it is shorter, and where longer."""
    differences = difference_s(best)
    if not differences:
        return ""
    total = seconds(best[1].latency_s - best[0].latency_s)
    return f"{total}: {', '.join(_differences(differences)) or 'nothing by itself'}"


def _differences(differences: Mapping[str, float]) -> Iterator[str]:
    largest = max(map(abs, differences.values()))
    for what, value in sorted(differences.items(), key=lambda item: item[1]):
        if abs(value) > _SMALLEST_DIFFERENCE * largest:
            yield f"{what} {'-' if value < 0 else '+'}{seconds(abs(value))}"
