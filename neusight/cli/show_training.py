"""Training steps on a screen: one in full, many as a table, and the best plans of a search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from neusight.cli.output import Output, figures, headline, line, paragraph, table
from neusight.cli.points import Point, differing, show
from neusight.defaults import words_of
from neusight.devices import DeviceSpec
from neusight.distributed.estimate import TrainingEstimate
from neusight.distributed.faults import HOUR_S, WholeRun
from neusight.distributed.search import Found
from neusight.plans.memory import PARTS, RankMemory
from neusight.questions import Training
from neusight.requests import Plan
from neusight.units import chance, decimal, gib, milliseconds, scaled

_PARTS = 8
"""Parts of a step that are named, the largest."""
_FEW = 3
"""Number of options up to which a table has room for the waits of a step."""
_SMALLEST_SHARE = 5e-4
"""Shares below this are not shown."""
_SMALLEST_DIFFERENCE = 0.05
"""Share of the largest difference of two plans below which a difference is not shown."""
_OF_PATH = {
    "forward": "forward", "backward": "backward", "weights": "weight gradients", "recompute": "recomputation",
    "send_forward": "sends", "send_backward": "sends", "gather_forward": "gathers", "gather_backward": "gathers",
    "reduce": "gradient sums", "optimizer": "optimizer", "to_host": "copies", "to_device": "copies",
}  # fmt: skip
_MOMENTS = {"loss": "the loss", "backward": "the backward pass", "step": "the optimizer's step"}
_DEGREES = ("dp", "tp", "pp", "cp", "ulysses", "ep", "vp")
DAY_H = 24.0
J_PER_MWH = 3.6e9
CSV = (
    "model", "gpu", "cluster", "devices", "nodes", "engine", "dtype", "optimizer", "seq_len", "latency_s", "low_s",
    "high_s", "tokens_per_s", "mfu", "hfu", "exposed_s", "bubble", "needed_bytes", "peak_bytes",
    "fits", "board_energy_j",
)  # fmt: skip
_CSV_OF_PLANS = (
    "latency_s", "low_s", "high_s", "tokens_per_s", "mfu", "exposed_s", "bubble", "needed_bytes", "peak_bytes",
)  # fmt: skip
_SPEED = ">step = latency_s | >tokens/s = tokens_per_s:,.0f | >MFU = mfu:.1%"
_WAITS = " | >exposed = exposed:.1% | >bubble = bubble:.1%"
_ON_HOST = {"optimizer": "optimizer on the host", "parameters": "optimizer and weights on the host"}


def show_points(
    points: Sequence[Point[TrainingEstimate]], form: str, many: bool, whole: WholeRun, beside: Mapping[str, Any]
) -> None:
    """Show one estimate in full, or a table. JSON is an object, or a list of objects if ``many``; questions in it have
    the options ``beside``.
    """
    show(
        points, form, many, data=lambda e: {**e.to_dict(), "run": run_of(e, whole)},
        rows=[_row(point, whole) for point in points], full=lambda e: _full(e, whole), table=_table,
        counts=lambda e: e.fits, beside=beside,
    )  # fmt: skip


def run_of(e: TrainingEstimate, whole: WholeRun) -> dict[str, Any]:
    """A run over ``whole.tokens``: days, GPU-hours, cost and energy, how probably it ends in time, effect of faults."""
    faults, devices = whole.faults, e.cluster.devices
    tokens = whole.tokens * whole.stretch(devices)
    energy_j = None if e.board_energy_j is None else whole.tokens / e.run.tokens * e.board_energy_j
    run: dict[str, Any] = {
        "tokens": whole.tokens, "days": e.hours(tokens) / DAY_H, "gpu_hours": e.gpu_hours(tokens),
        "cost_usd": e.cost_usd(tokens), "energy_mwh": None if energy_j is None else energy_j / J_PER_MWH,
    }  # fmt: skip
    if whole.within_days is not None:
        run["within_days"] = whole.within_days
        run["within_probability"] = e.within_probability(tokens, DAY_H * whole.within_days)
    if faults is not None:
        run["faults"] = {
            "mtbf_s": faults.mtbf_s(devices), "checkpoint_interval_s": faults.interval_s(devices),
            "useful": faults.useful(devices),
        }  # fmt: skip
    return run


def _row(point: Point[TrainingEstimate], whole: WholeRun) -> dict[str, Any]:
    """A row with the same columns with and without an estimate."""
    values, e = dict(point.options), point.estimate
    if e is not None:
        values |= e.to_dict() | run_of(e, whole) | vars(e.plan)
    ends = ("within_probability",) if whole.within_days is not None else ()
    return {name: values.get(name) for name in (*CSV, *Plan.__dataclass_fields__, *ends)} | {"error": point.error}


def _full(e: TrainingEstimate, whole: WholeRun) -> None:
    place = f"{e.cluster.nodes} x {e.cluster.per_node} x {e.gpu} ({e.cluster.id})"
    headline(f"{e.model} on {place}: {e.run.engine.name}, {e.run.precision}, {e.run.work} a step")
    headline(f"plan: {plan_words(e.plan)}")
    line()
    for title, *texts in _facts(e, whole):
        paragraph(title, *texts, indent=13)
    line()
    show_ranks(e.memory, e.cluster.device)
    line()
    largest = list(e.parts_s.items())[:_PARTS]
    cells = ((what, milliseconds(s), f"{s / e.latency_s:.1%}", e.limiters[what]) for what, s in largest)
    table(("part", ">a step", ">share", "limited by"), cells)


def plan_words(plan: Plan) -> str:
    """The plan's differences from one device, in a few words."""
    words = [f"{name} {getattr(plan, name)}" for name in _DEGREES if getattr(plan, name) > 1]
    words += [f"keys by {plan.cp_comm}"] if plan.cp_comm else []
    words += [f"micro-batch {plan.micro_batch_size}", f"{plan.micro_batches} of them"]
    words += [plan.schedule] if plan.pp > 1 else []
    words += [plan.shard] if plan.shard != "none" else []
    words += [f"{plan.recompute} recomputation"] if plan.recompute != "none" else []
    words += ["sequence parallel"] if plan.sequence_parallel and plan.tp > 1 else []
    words += [_ON_HOST[plan.offload]] if plan.offload != "none" else []
    return ", ".join(words)


def _short_words(plan: Plan) -> str:
    """The plan in short words, for a column of a table."""
    words = [f"mb{plan.micro_batch_size}"]
    words += [f"{name}{getattr(plan, name)}" for name in _DEGREES if getattr(plan, name) > 1]
    words += [plan.schedule] if plan.schedule != "1f1b" else []
    words += [plan.shard] if plan.shard != "none" else []
    words += [f"recompute-{plan.recompute}"] if plan.recompute != "none" else []
    return " ".join(words + (["sp"] if plan.sequence_parallel and plan.tp > 1 else []))


def _facts(e: TrainingEstimate, whole: WholeRun) -> Iterator[tuple[str, ...]]:
    yield "step", f"{milliseconds(e.latency_s)} (90 %: {milliseconds(e.low_s)} to {milliseconds(e.high_s)})"
    yield "throughput", f"{e.tokens_per_s:,.0f} {e.run.unit}/s, {e.tokens_per_s / e.devices:,.0f} a GPU"
    yield "utilisation", f"MFU {e.mfu:.1%}, HFU {e.hfu:.1%} of {scaled(e.peak_flops_per_s, 'FLOP/s')} a GPU"
    exposed = f"{milliseconds(e.exposed_s)} for communication that nothing hides ({e.exposed_s / e.latency_s:.1%})"
    host = f"; launches of the host decide {e.host_share:.1%} of the passes" if e.host_share >= 0.05 else ""
    yield "waits", f"{exposed}; pipeline bubble {e.bubble:.1%}{host}"
    yield "longest path", _shares({what: value / e.latency_s for what, value in path_s(e).items()})
    yield "error", f"{_shares(e.errors)} (std. dev.)"
    yield "memory", str(e.fit)
    yield "assumed", words_of(e.assumed)
    yield "given", e.given.get("words", "")
    run = run_of(e, whole)
    length = f"{run['days']:,.1f} days, {run['gpu_hours']:,.0f} GPU-hours"
    yield "whole run", f"{decimal(whole.tokens)} tokens: {length}, {_cost(e, run['cost_usd'])}"
    if "within_days" in run:
        yield "", f"ends within {run['within_days']:,g} days with a probability of {chance(run['within_probability'])}"
    if faults := run.get("faults"):
        every = f"a fault every {faults['mtbf_s'] / HOUR_S:,.1f} h, a checkpoint every"
        yield "", f"{every} {faults['checkpoint_interval_s'] / 60:,.0f} min, {faults['useful']:.1%} of the time useful"
    if (energy := e.board_energy) is not None:
        low, high = (end_j / energy.expected_j - 1 for end_j in (energy.low_j, energy.high_j))
        watts = energy.expected_j / e.latency_s / e.devices
        yield "", f"{run['energy_mwh']:,.1f} MWh for the GPU boards ({low:+.0%} to {high:+.0%}), {watts:,.0f} W each"


def _shares(shares: Mapping[str, float]) -> str:
    """Shares by name, the largest first."""
    largest = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {share:.1%}" for name, share in largest if share >= _SMALLEST_SHARE)


def _cost(e: TrainingEstimate, usd: float | None) -> str:
    if usd is None:
        return f"cost unknown: no price of {e.gpu} is known; --set device.price=2.5USD/h gives one"
    return f"{usd:,.0f} USD; price: {e.price_source}"


def path_s(e: TrainingEstimate) -> dict[str, float]:
    """Seconds of the critical path by kind."""
    sums: dict[str, float] = {}
    for name, value in e.schedule.path_s.items():
        sums[_OF_PATH[name]] = sums.get(_OF_PATH[name], 0.0) + value
    return sums


def show_ranks(ranks: Sequence[RankMemory], device: DeviceSpec) -> None:
    """Show memory with parts in rows and kinds of ranks in columns: tensors at their peak, then the process's own."""
    parts = [part for part in PARTS if any(rank.parts[part] for rank in ranks)]
    columns = [_sizes(rank, parts, device) for rank in ranks]
    rows = [(name, *(gib(sizes[name]) for sizes in columns)) for name in columns[0]]
    moments = ("at its peak in", *(_MOMENTS[rank.moment] for rank in ranks))
    table(("memory", *(f">{rank.rank} rank" for rank in ranks)), [*rows, moments])


def _sizes(rank: RankMemory, parts: Sequence[str], device: DeviceSpec) -> dict[str, float]:
    fit = rank.fit(device)
    other = {term: fit.terms[term] for term in ("context", "fragments")}
    ends = dict(zip(("5 %", "95 %"), fit.interval, strict=True))
    return {part: rank.parts[part] for part in parts} | {"peak": rank.total, **other, "needs": fit.needed_bytes} | ends


def _table(points: Sequence[Point[TrainingEstimate]]) -> None:
    """Show a row a point below the options that all share."""
    options = points[0].options
    names = differing(points, options)
    answers = [(point, point.estimate) for point in points if point.estimate]
    if answers:
        e = answers[0][1]
        same = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in options.items() if name not in names)
        headline(f"{e.model} on {e.cluster.id}{f': {same}' if same else ''}")
    columns = ""
    for name in names:
        side = "" if isinstance(options[name], str) else ">"
        columns += side + name.replace("_", "\n") + f" = {name} | "
    columns += _SPEED + _WAITS * (len(names) <= _FEW)
    figures(f"{columns} | >memory = needed_bytes | >fits = fits_words", [_figures(e) | p.options for p, e in answers])


def _figures(e: TrainingEstimate) -> dict[str, Any]:
    """Figures of tables by name."""
    words = {"plan_words": _short_words(e.plan), "fits_words": "yes" if e.fits else "no"}
    return e.to_dict() | {"exposed": e.exposed_s / e.latency_s} | words


def show_plans(matches: Found, form: str, asked: Training, search: Mapping[str, Any]) -> None:
    """Show plans as tables; JSON has the estimates of ``best`` and ``frontier``, and the numbers of plans."""

    def repeatable(e: TrainingEstimate) -> dict[str, Any]:
        idle = {line.partition(" ")[0] for line in e.run.without_effect()}
        words = {name: value for name, value in vars(e.plan).items() if (value or value is False) and name not in idle}
        return {**e.to_dict(), "question": asked.changed(**words).record()}

    best = list(map(repeatable, matches.best))
    words = {"question": {**search, **asked.record(), "kind": "plan"}, "assumed": matches.best[0].assumed}
    counts = {name: getattr(matches, name) for name in ("plans", "simulated", "too_large")}
    estimates = {"best": best, "frontier": list(map(repeatable, matches.frontier))}
    rows = [{name: values[name] for name in _CSV_OF_PLANS} | values["plan"] for values in best]
    data = words | counts | estimates | {"first_less_second_s": difference_s(matches.best)}
    Output(form).data(data, rows, lambda: _show_plans(matches))


def difference_s(best: Sequence[TrainingEstimate]) -> dict[str, float]:
    """Critical path of the first plan less that of the second, by kind [s]; empty where there is one plan."""
    if len(best) < 2:
        return {}
    first, second = path_s(best[0]), path_s(best[1])
    return {what: first[what] - second[what] for what in first}


def _show_plans(matches: Found) -> None:
    e = matches.best[0]
    line(f"{e.model} on {e.cluster.nodes} x {e.cluster.per_node} x {e.gpu}")
    line(f"{e.run.work} a step, {e.run.engine.name}")
    paragraph("assumed", words_of(e.assumed))
    line(f"{matches.plans:,} plans; {matches.simulated:,} simulated, {matches.too_large:,} too large for memory\n")
    columns = f"{_SPEED} | >memory = needed_bytes"
    figures(f"{columns} | ~fastest = plan_words", map(_figures, matches.best))
    if text := why(matches.best):
        line()
        headline(f"The first beats the second by {text}.")
    if len(matches.frontier) > 1:
        figures(f"{columns} | ~fastest with less memory = plan_words", map(_figures, matches.frontier), "")


def why(best: Sequence[TrainingEstimate]) -> str:
    """Parts of the critical path in which the first plan is shorter or longer than the second."""
    differences = difference_s(best)
    if not differences:
        return ""
    smallest = _SMALLEST_DIFFERENCE * max(map(abs, differences.values()))
    named = [item for item in sorted(differences.items(), key=lambda item: item[1]) if abs(item[1]) > smallest]
    words = ", ".join(f"{what} {'-' if value < 0 else '+'}{milliseconds(abs(value))}" for what, value in named)
    return f"{milliseconds(best[1].latency_s - best[0].latency_s)}: {words or 'nothing by itself'}"
