"""``neusight serving``: a language model as it is served: times to tokens, throughput, memory and cost under a load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neusight.cli import options as opt
from neusight.cli.commands import Asked, CommandOptions, Launched, Point
from neusight.cli.options import LOAD, OUTPUT
from neusight.cli.output import Advance, busy, note
from neusight.errors import NeusightError
from neusight.questions import FieldError, Serving
from neusight.questions.field import number, switch, text
from neusight.quick_dataclasses import dataclass

if TYPE_CHECKING:
    from neusight.api import Predictor
    from neusight.devices import DeviceSpec
    from neusight.serving import Choice, ServingEstimate

_COLUMNS = ("model", "gpu", "dtype", "tp", "replicas", "isl", "osl")
"""Options of every combination in tables."""
_CHOSEN = ("dtype", "tp", "pp", "ep", "dp")
"""Fields that ``--recommend`` chooses where they are open; without it ``tp`` alone."""


@dataclass(frozen=True, kw_only=True)
class ServingSearch(CommandOptions):
    """Searches in place of one load."""

    frontier: bool = switch("1, 2, 4, … clients until throughput stops growing.", LOAD)
    slo: str = text(
        "Find the cheapest deployment within limits such as ttft=500ms,tpot_p99=40ms.", LOAD, metavar="TIME=LIMIT,…"
    )
    recommend: bool = switch("For --slo: choose what is not given (dtype, tp, pp, ep, dp, tokens of a pass).", LOAD)
    prefer: str = text("For --slo: the least cost, or the fewest GPUs.", LOAD, "cost", choices=("cost", "gpus"))
    confidence: float = number(
        "For --slo: probability with which its limits hold, given intervals.", LOAD, 0.5, low=0.01, high=0.99,
        metavar="P",
    )  # fmt: skip
    launch_command: bool = switch("Print the command that starts the engine, with all limits that it has.", OUTPUT)

    def check(self) -> None:
        """Relations between fields."""
        if not self.slo:
            self.refuse(("recommend", "prefer", "confidence"), "belongs to --slo: give one, such as --slo ttft=1s")
        if self.slo and self.frontier:
            raise FieldError("slo", "is another search than --frontier: give one of them")


FROM_LINE = Launched(
    help="`vllm serve …`, `python -m sglang.launch_server …` or `trtllm-serve …`, or the script that runs it; options "
    "that are given count first."
)


def serving(
    asked: Annotated[Asked[Serving], FROM_LINE],
    search: ServingSearch,
    models: opt.Models,
    figure: opt.Picture = None,
    form: opt.Format = "human",
) -> None:
    """Predict a served language model: times to tokens, throughput, memory, cost, and what limits it.

    One load: `--concurrency`, `--request-rate`, `--batch`, `--trace` or `--num-prompts`; or `--frontier`, or `--slo`.
    Lists are combined. JSON is an object for one combination, and a list where any option is one.

    `--slo` finds deployments that hold a service level, alone or under `--request-rate` or `--concurrency`, and says
    why others do not; with `--recommend` it chooses what is not given and prints the command that starts the engine so.

    Examples:

    - `neusight serving Qwen/Qwen3-32B --gpu h200 --tp 2 --dtype fp8 --isl 4096 --osl 512 --concurrency 64`

    - `neusight serving llama-3.1-70b --gpu h100,h200 --tp 4,8 --isl 1024 --osl 256 --request-rate 4 --format csv`

    - `neusight serving --from "vllm serve Qwen/Qwen3-32B -tp 2 --max-num-seqs 64" --gpu h200 --isl 999 --osl 99 -b 64`

    - `neusight serving Qwen/Qwen3-8B --gpu l4 --isl 1000 --osl 200 --frontier --figure frontier.png`

    - `neusight serving Qwen/Qwen3-32B --isl 4096 --osl 512 --dtype fp8 --slo ttft=500ms,tpot=30ms`

    - `neusight serving Qwen/Qwen3-32B --gpu h100,l4 --isl 4096 --osl 512 --slo ttft=2s,tpot=50ms --request-rate 9
      --recommend`
    """
    many = search.frontier or asked.many
    if search.launch_command and many and not search.slo:
        raise typer.BadParameter("prints one command: give one combination, or --slo", param_hint="--launch-command")
    if figure is not None and (search.slo or not many):
        raise typer.BadParameter("needs several combinations: add --frontier, or a list", param_hint="--figure")
    opt.check_out(figure, "--figure", *opt.PICTURES)
    question = asked.questions[0]
    try:
        if not search.slo:
            question.check_load(search.frontier)
            question.check_device()
            question.check_device()
        devices = _devices(asked)
        run = ServingCommand(models.load(devices.values()), asked, search, devices)
        answered = run.show_choices(form) if search.slo else run.show_points(form, figure)
    except FieldError as error:
        raise asked.wrong(error) from None
    if not answered:
        raise typer.Exit(1)


def _devices(asked: Asked[Serving]) -> Mapping[str, DeviceSpec]:
    """Devices by the name that was typed, with prices of one list; without names those of the first price list."""
    question = asked.questions[0]
    prices = Path(question.prices) if question.prices else None
    names = list(dict.fromkeys(each.gpu for each in asked.questions if each.gpu))
    if names:
        return dict(zip(names, opt.devices(",".join(names), question.overrides, prices), strict=True))
    question.refuse(("overrides",), "changes a device: name it with --gpu")
    return {device.id: device for device in opt.priced(prices)}


@dataclass(frozen=True)
class ServingCommand:
    """Deployments and loads that are combined, or looked for."""

    predictor: Predictor
    asked: Asked[Serving]
    search: ServingSearch
    devices: Mapping[str, DeviceSpec]

    def show_points(self, form: str, figure: Path | None) -> bool:
        """Show every combination, and a picture of them; whether any has an estimate."""
        from neusight.cli import show_serving

        many = self.search.frontier or self.asked.many
        with busy("serving") as advance:
            points = list(self._points(many, advance))
        if many:
            opt.note_prices(list(self.devices.values()))
        estimates = [point.estimate for point in points if point.estimate]
        changed = bool(self.asked.questions[0].overrides)
        opt.note_corrections(self.predictor, [] if changed else [estimate.gpu for estimate in estimates])
        show_serving.show_points(points, form, many, self.search.launch_command)
        if not estimates:
            note(f"error: none of {len(points)} combinations has an estimate: {points[0].error}")
        if figure is not None:
            show_serving.draw(points, figure)
        return bool(estimates)

    def _points(self, many: bool, advance: Advance) -> Iterator[Point[ServingEstimate]]:
        """Every combination; its error is raised where there is one alone."""
        for done, question in enumerate(self.asked.questions):
            if len(self.asked.questions) > 1:
                advance(done, len(self.asked.questions))
            options = self._options(question)
            try:
                for estimate in self._estimates(question):
                    clients = {"concurrency": estimate.load["concurrency"]} if self.search.frontier else {}
                    yield Point(options=options | clients, estimate=estimate)
            except NeusightError as error:
                if not many:
                    raise
                yield Point(options=options, error=str(error))

    def _estimates(self, question: Serving) -> list[ServingEstimate]:
        device = self.devices[question.gpu]
        if not self.search.frontier:
            return [self.predictor.ask(question, device)]
        setup = {one.name: getattr(question, one.name) for one in fields(question.setup())}
        options, seed = question.engine_options(), question.seed
        model, lengths = question.served_model(), question.lengths()
        return self.predictor.frontier(model, device, lengths, options, seed=seed, prices=question.prices, **setup)

    def _options(self, question: Serving) -> dict[str, Any]:
        """Values of a combination by option: those of every table, and those that were written as lists."""
        load = () if self.search.frontier or question.load == "trace" else (question.load,)
        names = dict.fromkeys((*_COLUMNS[:-2], *self.asked.axes, *_COLUMNS[-2:], *load))
        values = {name: _plain(getattr(question, name)) for name in names}
        return values | {"gpu": self.devices[question.gpu].id}

    def show_choices(self, form: str) -> bool:
        """Show what holds ``--slo``, the best first; whether anything does."""
        from neusight.cli import show_serving

        with busy("looking for deployments") as advance:
            choices = self._choices(advance)
        opt.note_prices(list(self.devices.values()))
        with_launch = self.search.launch_command or self.search.recommend
        show_serving.show_choices(choices, self.search.slo, form, with_launch)
        return choices[0].estimate is not None

    def _choices(self, advance: Advance) -> list[Choice]:
        from neusight.serving import Demand, Setup, Slo

        question = self.asked.questions[0]
        question.refuse(("replicas", "num_prompts", "batch", "trace"), "is looked for by --slo: leave it out")
        question.refuse(("prefill", "arrivals"), "is not searched: give a load instead of --slo")
        names = [one.name for one in fields(Setup)]
        for axis in self.asked.axes:
            if axis not in (*names, "gpu"):
                raise FieldError(axis, "takes one value with --slo")
        isl, osl = question.lengths()
        demand = Demand(
            slo=Slo.named(self.search.slo), isl=isl, osl=osl, request_rate=question.request_rate,
            concurrency=question.concurrency, confidence=self.search.confidence, seed=question.seed,
        )  # fmt: skip
        chosen = _CHOSEN if self.search.recommend else ("tp",)
        values = {name: [getattr(each, name) for each in self.asked.questions] for name in names}
        given = {
            name: list(dict.fromkeys(each))
            for name, each in values.items()
            if (name in self.asked.typed or name not in chosen) and None not in each
        }
        return self.predictor.cheapest(
            question.served_model(), list(self.devices.values()), demand, question.engine_options(),
            usual=self.search.recommend, prefer=self.search.prefer, progress=advance, **given,
        )  # fmt: skip


def _plain(value: Any) -> Any:
    """A number as people write it; None for an open word."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
