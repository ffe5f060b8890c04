"""Answers under a load on a screen: one in full, many as a table or a figure, and what holds a service level."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from neusight.cli.output import Column, Output, headline, line, note, table
from neusight.cli.points import Point, differing, reasons
from neusight.errors import DataError
from neusight.serving.estimate import DEGREES, Limiter, Metric, ServingEstimate
from neusight.serving.planning import CHOICE, Choice, pareto_front
from neusight.units import decimal, milliseconds

_NAMES = {"ttft_s": "to first token", "tpot_s": "per output token", "itl_s": "between tokens", "e2e_s": "whole answer"}
_PARTS = 5
"""Parts of passes that are named, the largest."""
_CHOICES, _REASONS = 12, 4
"""Deployments that hold a service level, and reasons why others of a GPU do not, that are shown."""


def show_points(points: Sequence[Point[ServingEstimate]], form: str, many: bool, with_launch: bool = False) -> None:
    """One estimate in full, with the command that starts it where that is wanted, or a table. JSON is an object, or a
    list of them where ``many``.
    """
    data: list[dict[str, Any]] = [
        point.estimate.to_dict() if point.estimate else point.options | {"error": point.error} for point in points
    ]
    for warning in dict.fromkeys(text for point in points if point.estimate for text in point.estimate.warnings):
        note(f"warning: {warning}")
    single = points[0].estimate
    human = _table if many or single is None else lambda _: _full(single, with_launch)
    Output(form).data(data if many else data[0], _rows(points), lambda: human(points))


def _rows(points: Sequence[Point[ServingEstimate]]) -> list[dict[str, Any]]:
    estimates = [point.estimate for point in points if point.estimate]
    keys = list(estimates[0].row()) if estimates else list(points[0].options)
    return [
        (point.estimate.row() if point.estimate else {key: point.options.get(key) for key in keys})
        | {"error": point.error}
        for point in points
    ]


def _full(e: ServingEstimate, with_launch: bool) -> None:
    headline(f"{e.model} on {e.where}: {e.engine}, {e.precision}, cache in {e.kv_dtype}{_degrees(e)}")
    line(f"load: {_load(e)}")
    line()
    titles = [Column(""), *(Column(t, right=True) for t in ("mean", "90 % interval", "p50", "p90", "p99"))]
    table(titles, (_time_cells(name, getattr(e, figure)) for figure, name in _NAMES.items()))
    line()
    for title, text in _facts(e):
        for place, part in enumerate(wrap(text, 67, break_on_hyphens=False)):
            line(f"{'' if place else title:13}{part}")
    if with_launch:
        _launch(e)


def _launch(e: ServingEstimate) -> None:
    line()
    line(e.launch)


def _degrees(e: ServingEstimate) -> str:
    words = [f"{name} {degree}" for name, degree in e.plan.items() if degree > 1]
    words += [f"{e.replicas} replicas"] if e.replicas > 1 else []
    return f", {', '.join(words)}" if words else ""


def _load(e: ServingEstimate) -> str:
    load = e.load
    lengths = f", {load['isl']} tokens in, {load['osl']} out" if "isl" in load and "osl" in load else ""
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
    return name, _time(figure.mean), interval, *(_time(each) for each in (figure.p50, figure.p90, figure.p99))


def _time(seconds: float | None) -> str:
    return "-" if seconds is None or seconds != seconds else milliseconds(seconds)


def _facts(e: ServingEstimate) -> Iterator[tuple[str, str]]:
    rate, user = e.output_tokens_per_s, e.output_tokens_per_s_per_user
    yield "throughput", f"{rate.mean:,.0f} output tokens/s (90 %: {rate.low:,.0f} to {rate.high:,.0f})"
    speed = f", {user:,.1f} for each user" if user else ""
    yield "", f"{e.output_tokens_per_s_per_device:,.0f} for each GPU{speed}"
    yield "", f"{e.steady_output_tokens_per_s.mean:,.0f} without the start and the end of the run"
    yield "", f"{e.total_tokens_per_s:,.0f} tokens/s with those of prompts, {decimal(e.requests_per_s)} requests/s"
    yield from zip(("memory", ""), e.memory_lines, strict=True)
    if e.mean_batch == e.mean_batch:
        yield "batch", f"{e.mean_batch:.1f} sequences generate at a time"
    named = {"prompt": "passes with prompts", "decode": "passes that only generate", "idle": "idle"}
    yield "time", ", ".join(f"{named[name]} {share:.0%}" for name, share in e.time_shares.items() if share >= 0.005)
    if e.prefill_pool and e.transfer_s is not None:
        degrees = ", ".join(f"{name} {e.prefill_pool[name]}" for name in DEGREES if e.prefill_pool[name] > 1)
        yield "prompts", f"on {_many(e.prefill_pool['replicas'], 'replica')}{f' of {degrees}' if degrees else ''}"
        yield "", f"their cache is on its way for {milliseconds(e.transfer_s)}"
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
    if e.assumed:
        yield "assumed", ", ".join(f"{name} {text.partition(',')[0]}" for name, text in e.assumed.items())
    if e.diverges:
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
    """A row a point; what all share stands above, a star at those that none beats in throughput and speed."""
    answers = [(point, point.estimate) for point in points if point.estimate]
    first = points[0].options
    columns = differing(points, first)
    same = {name: value for name, value in first.items() if name not in columns and value}
    model = same.pop("model", "models")
    line(f"{model}: {', '.join(f'{_LOADS.get(n, n)} {v}' for n, v in same.items())}")
    titles = [Column(_LOADS.get(name, name), right=not isinstance(first[name], str)) for name in columns]
    rates = ("TTFT", "TPOT", "tok/s\nuser", "tok/s\nGPU", "tok/s", "USD/\nMtok", "")
    titles += [Column(title, right=True) for title in rates]
    best = pareto_front([e for _, e in answers])
    if answers:
        rows = zip(answers, best, strict=True)
        table(titles, ((*(str(p.options.get(n) or "-") for n in columns), *_cells(e, b)) for (p, e), b in rows))
        line("times: mean; *: no other has both more throughput and more speed for each user")
    _prices([e for _, e in answers])
    for reason in reasons(points):
        headline(reason)


def _prices(estimates: Sequence[ServingEstimate]) -> None:
    """Which lists the prices of a table are of."""
    if sources := dict.fromkeys(e.price_source.partition(": ")[0] for e in estimates if e.price_source):
        headline(f"prices: {'; '.join(sources)}")


def _cells(e: ServingEstimate, best: bool) -> tuple[str, ...]:
    user, usd = e.output_tokens_per_s_per_user, e.usd_per_million_output_tokens
    return (
        _time(e.ttft_s.mean),
        _time(e.tpot_s.mean),
        f"{user:.1f}" if user else "-",
        f"{e.output_tokens_per_s_per_device:,.0f}",
        f"{e.output_tokens_per_s.mean:,.0f}",
        decimal(usd) if usd is not None else "-",
        "overload" if e.diverges else "*" if best else "",
    )


def show_choices(choices: Sequence[Choice], slo: str, form: str, with_launch: bool) -> None:
    """The best first, runners-up, what starts the best where that is wanted, and why others fail."""
    rows = [choice.row() for choice in choices]
    keys = {key: None for row in rows for key in row}
    data = [
        {key: row[key] for key in CHOICE} | {"estimate": c.estimate.to_dict() if c.estimate else None}
        for c, row in zip(choices, rows, strict=True)
    ]
    table_rows = [{key: row.get(key) for key in keys} for row in rows]
    Output(form).data(data, table_rows, lambda: _choices(choices, slo, with_launch))


def _choices(choices: Sequence[Choice], slo: str, with_launch: bool) -> None:
    held = [(c, c.estimate) for c in choices if c.estimate]
    if held:
        _held(held, slo)
        if with_launch:
            _launch(held[0][1])
    else:
        line(f"nothing holds {slo}")
    line()
    _why_not([c for c in choices if not c.estimate])


def _held(held: Sequence[tuple[Choice, ServingEstimate]], slo: str) -> None:
    """The best in words, and the first of them in a table: with the load that each holds, or what each costs over the
    best under one load.
    """
    best, e = held[0]
    line(f"{e.model} within {slo}:")
    headline(f"{e.devices} x {best.gpu}, {_plan(best)}{_replicas(e)}, for {_load(e)}")
    hourly = "" if best.usd_per_hour is None else f"{decimal(best.usd_per_hour)} USD/h, "
    headline(f"cost {hourly}{_cost(e)}; holds with a probability of {best.probability:.0%}")
    line()
    one_load = len({(e.load.get("request_rate"), e.load.get("concurrency")) for _, e in held}) == 1
    titles = ("GPUs", "TTFT", "TPOT", *(("USD/h", "more") if one_load else ("clients", "USD/\nMtok")), "holds")
    columns = [Column("gpu"), Column("deployed as"), *(Column(t, right=True) for t in titles)]
    table(columns, (_choice_cells(c, e, one_load) for c, e in held[:_CHOICES]))
    _prices([e for _, e in held[:_CHOICES]])
    if len(held) > _CHOICES:
        line(f"… and {len(held) - _CHOICES} more; --format csv lists all")
    if any(c.setup.max_num_batched_tokens for c, _ in held[:_CHOICES]):
        line("t: new tokens of a pass, where they are not the engine's default")


def _replicas(e: ServingEstimate) -> str:
    return f", {e.replicas} replicas" if e.replicas > 1 else ""


def _plan(choice: Choice) -> str:
    """``fp8 tp2 ep2 2048``: dtype, degrees above 1, tokens of a pass where they are not the engine's."""
    setup, tokens = choice.setup, choice.setup.max_num_batched_tokens
    degrees = [f"{name}{degree}" for name in DEGREES if (degree := getattr(setup, name)) > 1 or name == "tp"]
    words = [setup.dtype, *degrees, f"{tokens}t" if tokens else ""]
    return " ".join(filter(None, words))


def _choice_cells(choice: Choice, e: ServingEstimate, one_load: bool) -> tuple[str, ...]:
    usd, hourly = e.usd_per_million_output_tokens, choice.usd_per_hour
    cost = ("-" if hourly is None else decimal(hourly), f"{choice.excess:+.0%}" if choice.excess else "")
    load = (str(e.load.get("concurrency", "-")), "-" if usd is None else decimal(usd))
    return (
        choice.gpu,
        _plan(choice),
        str(e.devices),
        _time(e.ttft_s.mean),
        _time(e.tpot_s.mean),
        *(cost if one_load else load),
        f"{choice.probability:.0%}",
    )


def _why_not(failed: Sequence[Choice]) -> None:
    """Reasons of each GPU, each once, the first few."""
    for gpu in dict.fromkeys(choice.gpu for choice in failed):
        plans: dict[str, Counter[str]] = {}
        for choice in failed:
            if choice.gpu == gpu:
                plans.setdefault(choice.reason, Counter())[_plan(choice)] += 1
        for reason, counts in list(plans.items())[:_REASONS]:
            each = (f"{plan} ({count} plans)" if count > 1 else plan for plan, count in counts.items())
            headline(f"not {gpu}, {'; '.join(each)}: {reason}")
        if len(plans) > _REASONS:
            line(f"… and {len(plans) - _REASONS} more of {gpu}; --format csv lists all")


def draw(points: Sequence[Point[ServingEstimate]], file: Path) -> None:
    """Throughput of each GPU against speed for each user, a line a deployment, the clients next to its points.

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
    words = [str(point.options[n]) if n in ("model", "gpu", "dtype") else f"{n} {point.options[n]}" for n in names]
    return ", ".join(words) or str(point.options["gpu"])
