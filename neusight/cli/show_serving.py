"""Serving estimates on a screen: one in full, many as a table or a figure, and deployments that meet a service
level."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from neusight.cli.output import Output, headline, line, paragraph, table
from neusight.cli.points import Point, differing, name_of, show
from neusight.errors import DataError
from neusight.measured.feedback import fillable_rows
from neusight.questions.question import plain_number
from neusight.serving.estimate import DEGREES, Limiter, Metric, ServingEstimate
from neusight.serving.planning import CHOICE, Choice, pareto_front
from neusight.units import chance, decimal, milliseconds

_NAMES = {"ttft_s": "to first token", "tpot_s": "per output token", "itl_s": "between tokens", "e2e_s": "whole answer"}
_PARTS = 5
"""Parts of passes that are named, the largest."""
_CHOICES, _REASONS = 12, 4
"""Numbers of deployments shown that meet a service level, and of reasons why others of a GPU do not."""


def show_points(
    points: Sequence[Point[ServingEstimate]], form: str, many: bool, with_launch: bool, beside: Mapping[str, Any]
) -> None:
    """Show one estimate in full, with the command that starts it on request, or a table. JSON is an object, or a list
    of objects if ``many``; its questions have the options ``beside``.
    """
    show(
        points, form, many, data=ServingEstimate.to_dict, rows=_rows(points),
        full=lambda e: _full(e, with_launch), table=_table, beside=beside,
    )  # fmt: skip


def _rows(points: Sequence[Point[ServingEstimate]]) -> list[dict[str, Any]]:
    figures = [(point.estimate.row() if point.estimate else {}) | {"error": point.error} for point in points]
    return fillable_rows([point.call.question for point in points], figures)


def _full(e: ServingEstimate, with_launch: bool) -> None:
    headline(f"{e.model} on {e.where}: {e.engine}, {e.precision}, cache in {e.kv_dtype}{_degrees(e)}")
    line(f"load: {_load(e)}\n")
    titles = ("", ">mean", ">90 % interval", ">p50", ">p90", ">p99")
    table(titles, (_time_cells(name, getattr(e, figure)) for figure, name in _NAMES.items()))
    line()
    for title, *texts in _facts(e):
        paragraph(title, *texts, indent=13)
    if with_launch:
        line(f"\n{e.launch}")


def _degrees(e: ServingEstimate) -> str:
    words = [f"{name} {degree}" for name, degree in e.plan.items() if degree > 1]
    words += [f"{e.replicas} replicas"] if e.replicas > 1 else []
    return f", {', '.join(words)}" if words else ""


def _load(e: ServingEstimate) -> str:
    load = e.load
    lengths = f", {plain_number(load['isl'])} tokens in, {plain_number(load['osl'])} out" if "isl" in load else ""
    words = {
        "static": lambda: f"one batch of {_many(load['batch'], 'request')}",
        "closed": lambda: f"{_many(load['concurrency'], 'client')}, {_many(load['num_prompts'], 'request')}",
        "open": lambda: f"{decimal(load['request_rate'], 6)} requests/s, {load['num_prompts']} in all",
        "offline": lambda: f"{_many(load['num_prompts'], 'request')} at once",
        "trace": lambda: f"a trace of {_many(load['requests'], 'request')}",
    }
    return words[load["kind"]]() + lengths


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _time_cells(name: str, figure: Metric) -> tuple[str, ...]:
    interval = f"{_time(figure.low)} - {_time(figure.high)}" if figure.mean == figure.mean else "-"
    return name, _time(figure.mean), interval, *(_time(s) for s in (figure.p50, figure.p90, figure.p99))


def _time(seconds: float | None) -> str:
    return "-" if seconds is None or seconds != seconds else milliseconds(seconds)


def _facts(e: ServingEstimate) -> Iterator[tuple[str, ...]]:
    rate, user = e.output_tokens_per_s, e.output_tokens_per_s_per_user
    speed = f", {user:,.1f} for each user" if user else ""
    yield (
        "throughput",
        f"{rate.mean:,.0f} output tokens/s (90 %: {rate.low:,.0f} to {rate.high:,.0f})",
        f"{e.output_tokens_per_s_per_device:,.0f} for each GPU{speed}",
        f"{e.steady_output_tokens_per_s.mean:,.0f} without the start and the end of the run",
        f"{e.total_tokens_per_s:,.0f} tokens/s with those of prompts, {decimal(e.requests_per_s)} requests/s",
    )
    yield "memory", *e.memory_lines
    if e.mean_batch == e.mean_batch:
        yield "batch", f"{e.mean_batch:.1f} sequences generate at a time"
    named = {"prompt": "passes with prompts", "decode": "passes that only generate", "idle": "idle"}
    yield "time", ", ".join(f"{named[name]} {share:.0%}" for name, share in e.time_shares.items() if share >= 0.005)
    if e.prefill_pool and e.transfer_s is not None:
        degrees = ", ".join(f"{name} {e.prefill_pool[name]}" for name in DEGREES if e.prefill_pool[name] > 1)
        where = f"on {_many(e.prefill_pool['replicas'], 'replica')}{f' of {degrees}' if degrees else ''}"
        yield "prompts", where, f"their cache is on its way for {milliseconds(e.transfer_s)}"
    yield "prefill", _limiter(e.prefill) or "no pass has prompts"
    yield "decode", _limiter(e.decode) or "no pass only generates"
    yield "cost", _cost(e)
    energy = e.token_energy
    interval = f"(90 %: {decimal(energy.low_j)} to {decimal(energy.high_j)})"
    yield "power", f"{e.power_w / e.devices:,.0f} W for each GPU on average"
    yield "energy", f"{decimal(energy.expected_j)} J per output token {interval}, {decimal(energy.idle_j)} of it idle"
    if e.prefix_hit:
        yield "cached", f"{e.prefix_hit:.0%} of the tokens of prompts"
    if e.preempted:
        yield "preempted", f"{e.preempted} times the cache was full, and a request was computed again"
    if e.slo_probability is not None:
        yield "level", f"holds with a probability of {chance(e.slo_probability)}"
    yield "assumed", ", ".join(f"{name} {text.partition(',')[0]}" for name, text in e.assumed.items())
    yield "given", e.given.get("words", "")
    yield "OVERLOAD", e.diverges


def _limiter(limiter: Limiter | None) -> str:
    if limiter is None:
        return ""
    shares = [f"{part} {share:.0%}" for part, share in list(limiter.parts.items())[:_PARTS] if share >= 0.005]
    return f"{', '.join(shares)}; {limiter.part} is limited by {limiter.resource}"


def _cost(e: ServingEstimate) -> str:
    if e.usd_per_million_output_tokens is None:
        remedy = "--prices FILE or --set device.price=2.5USD/h gives one"
        return f"unknown: no price of {' or '.join(e.unpriced)} is known; {remedy}"
    return f"{decimal(e.usd_per_million_output_tokens)} USD per million output tokens; price: {e.price_source}"


_LOADS = {"concurrency": "clients", "request_rate": "req/s", "batch": "batch", "num_prompts": "requests"}
_SIZES = {"concurrency": "clients", "request_rate": "requests/s", "batch": "requests in the batch"}


def _table(points: Sequence[Point[ServingEstimate]]) -> None:
    """Show a row a point below the options that all share, with a star at those on the Pareto front."""
    answers = [(point, point.estimate) for point in points if point.estimate]
    estimates = [estimate for _, estimate in answers]
    first = points[0].options
    columns = {name: ("" if isinstance(first[name], str) else ">") for name in differing(points, first)}
    same = {name: value for name, value in first.items() if name not in columns and value}
    model = same.pop("model", "models")
    line(f"{model}: {', '.join(f'{_LOADS.get(n, n)} {v}' for n, v in same.items())}")
    rows = [
        {side + _LOADS.get(name, name): str(p.options.get(name) or "-") for name, side in columns.items()}
        | _figures(e, best)
        for (p, e), best in zip(answers, pareto_front(estimates), strict=True)
    ]
    if rows:
        _rows_table(rows)
        line("times: mean; *: no other has both more throughput and more speed for each user")
    _prices(estimates)


def _prices(estimates: Sequence[ServingEstimate]) -> None:
    """Show the lists that the prices of a table come from."""
    if sources := dict.fromkeys(e.price_source.partition(": ")[0] for e in estimates if e.price_source):
        headline(f"prices: {'; '.join(sources)}")


def _figures(e: ServingEstimate, best: bool) -> dict[str, str]:
    """Figures of a row by the heads of their columns."""
    user = e.output_tokens_per_s_per_user
    level = {} if e.slo_probability is None else {">holds": chance(e.slo_probability)}
    return {
        ">TTFT": _time(e.ttft_s.mean),
        ">TPOT": _time(e.tpot_s.mean),
        ">tok/s\nuser": f"{user:.1f}" if user else "-",
        ">tok/s\nGPU": f"{e.output_tokens_per_s_per_device:,.0f}",
        ">tok/s": f"{e.output_tokens_per_s.mean:,.0f}",
        ">USD/\nMtok": _usd(e.usd_per_million_output_tokens),
        **level,
        ">": "overload" if e.diverges else "*" if best else "",
    }


def _rows_table(rows: Sequence[Mapping[str, str]]) -> None:
    """Print a table of rows whose keys are the heads of its columns."""
    table(list(rows[0]), (list(row.values()) for row in rows))


def _usd(amount: float | None) -> str:
    return "-" if amount is None else decimal(amount)


def show_choices(choices: Sequence[Choice], slo: str, form: str, with_launch: bool) -> None:
    """Show the best choice, runners-up, the command that starts the best on request, and reasons why others fail."""
    rows = [choice.row() for choice in choices]
    data = [
        {key: row[key] for key in CHOICE} | {"estimate": c.estimate.to_dict() if c.estimate else None}
        for c, row in zip(choices, rows, strict=True)
    ]
    Output(form).data(data, rows, lambda: _choices(choices, slo, with_launch))


def _choices(choices: Sequence[Choice], slo: str, with_launch: bool) -> None:
    meeting = [(c, c.estimate) for c in choices if c.estimate]
    if meeting:
        _show_meeting(meeting, slo)
        if with_launch:
            line(f"\n{meeting[0][1].launch}")
    else:
        line(f"nothing holds {slo}")
    line()
    _why_not([c for c in choices if not c.estimate])


def _show_meeting(held: Sequence[tuple[Choice, ServingEstimate]], slo: str) -> None:
    """Show the best choice in words, and the first ones in a table: with the load that each sustains, or its extra cost
    over the best under one load.
    """
    best, e = held[0]
    line(f"{e.model} within {slo}:")
    replicas = f", {e.replicas} replicas" if e.replicas > 1 else ""
    headline(f"{e.devices} x {best.gpu}, {_plan(best)}{replicas}, for {_load(e)}")
    hourly = "" if best.usd_per_hour is None else f"{decimal(best.usd_per_hour)} USD/h, "
    headline(f"cost {hourly}{_cost(e)}; holds with a probability of {chance(best.probability)}")
    line()
    one_load = len({(e.load.get("request_rate"), e.load.get("concurrency")) for _, e in held}) == 1
    rows = [_choice_figures(choice, e, one_load) for choice, e in held[:_CHOICES]]
    _rows_table(rows)
    _prices([e for _, e in held[:_CHOICES]])
    if len(held) > _CHOICES:
        line(f"… and {len(held) - _CHOICES} more; --format csv lists all")
    if any(c.setup.max_num_batched_tokens for c, _ in held[:_CHOICES]):
        line("t: new tokens of a pass, where they are not the engine's default")


def _plan(choice: Choice) -> str:
    """The plan as ``fp8 tp2 ep2 2048``: dtype, degrees above 1, tokens of a pass where they are not the engine's."""
    setup, tokens = choice.setup, choice.setup.max_num_batched_tokens
    degrees = [f"{name}{degree}" for name in DEGREES if (degree := getattr(setup, name)) > 1 or name == "tp"]
    words = [setup.dtype, *degrees, f"{tokens}t" if tokens else ""]
    return " ".join(filter(None, words))


def _choice_figures(choice: Choice, e: ServingEstimate, one_load: bool) -> dict[str, str]:
    """Figures of a row by the heads of their columns."""
    more = f"{choice.excess:+.0%}" if choice.excess else ""
    clients = str(e.load.get("concurrency", "-"))
    cost = {">USD/h": _usd(choice.usd_per_hour), ">more": more}
    load = {">clients": clients, ">USD/\nMtok": _usd(e.usd_per_million_output_tokens)}
    return {
        **{"gpu": choice.gpu, "deployed as": _plan(choice), ">GPUs": str(e.devices)},
        **{">TTFT": _time(e.ttft_s.mean), ">TPOT": _time(e.tpot_s.mean)},
        **(cost if one_load else load),
        ">holds": chance(choice.probability),
    }


def _why_not(failed: Sequence[Choice]) -> None:
    """Show the first few distinct reasons for each GPU."""
    for gpu in dict.fromkeys(choice.gpu for choice in failed):
        plans: dict[str, Counter[str]] = {}
        for choice in failed:
            if choice.gpu == gpu:
                plans.setdefault(choice.reason, Counter())[_plan(choice)] += 1
        for reason, counts in list(plans.items())[:_REASONS]:
            plan_counts = (f"{plan} ({count} plans)" if count > 1 else plan for plan, count in counts.items())
            headline(f"not {gpu}, {'; '.join(plan_counts)}: {reason}")
        if len(plans) > _REASONS:
            line(f"… and {len(plans) - _REASONS} more of {gpu}; --format csv lists all")


def draw(points: Sequence[Point[ServingEstimate]], file: Path) -> None:
    """Draw throughput of each GPU against speed for each user, a line a deployment, with clients next to its points.

    Raises:
        DataError: no point has an answer.
    """
    from neusight.serving.figures import frontier

    series: dict[str, list[ServingEstimate]] = {}
    for point in points:
        if point.estimate and point.estimate.output_tokens_per_s_per_user:
            series.setdefault(_series(point, points), []).append(point.estimate)
    if not series:
        raise DataError("nothing to draw: no combination has an estimate with more than one output token")
    sizes = next((words for name, words in _SIZES.items() if name in points[0].options), "clients")
    frontier(series, f"{points[0].options['model']}; numbers: {sizes}").save(file)


def _series(point: Point[ServingEstimate], points: Sequence[Point[ServingEstimate]]) -> str:
    names = differing(points, [name for name in point.options if name not in _LOADS])
    return name_of(point, names or ["gpu"])
