"""``neusight serving``: a served language model: times to tokens, throughput, memory and cost under a load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from neusight.cli import options as opt
from neusight.cli.asked import Asked, from_line
from neusight.cli.output import Advance, busy, note
from neusight.cli.points import Point, QuestionOnDevice, answers
from neusight.questions import FieldError, Serving
from neusight.questions.field import switch, text
from neusight.questions.parts import LOAD, OUTPUT, Assurance
from neusight.questions.question import plain_number
from neusight.quick_dataclasses import dataclass

if TYPE_CHECKING:
    from neusight.api import Predictor
    from neusight.devices import DeviceSpec
    from neusight.serving import Choice, ServingEstimate

_COLUMNS = ("model", "gpu", "dtype", "tp", "replicas", "isl", "osl")
"""Options of every combination in tables."""
_GIVEN = ("replicas", "num_prompts", "batch", "stages", "trace", "prefill", "arrivals", "burstiness")
"""Fields of a deployment or load that is given: ``--slo`` then searches for no other."""
_CHOSEN = ("dtype", "tp", "pp", "ep", "dp")
"""Fields that ``--recommend`` chooses where they are open; without it only ``tp``."""


@dataclass(frozen=True, kw_only=True)
class ServingOptions(Assurance, opt.Learned, opt.Drawn, opt.Benched):
    """Searches in place of one load, a service level, and the form of the result."""

    HELP: ClassVar[Mapping[str, str]] = {
        "slo": "Find the cheapest deployment within limits such as ttft=500ms,tpot_p99=40ms; with a deployment or load "
        "that is no clients or rate, or --frontier, say how probable it is that they hold."
    }

    frontier: bool = switch("1, 2, 4, … clients until throughput stops growing.", LOAD)
    recommend: bool = switch("For --slo: choose what is not given (dtype, tp, pp, ep, dp, tokens of a pass).", LOAD)
    prefer: str = text("For --slo: the least cost, or the fewest GPUs.", LOAD, "cost", choices=("cost", "gpus"))
    launch_command: bool = switch("Print the command that starts the engine, with all limits that it has.", OUTPUT)

    def check_search(self, searched: bool) -> None:
        """Check that options are of a search for a service level, or of given loads.

        Raises:
            FieldError: one is of the other.
        """
        if searched:
            self.refuse(("bench_command", "explain", "measurements"), "is of a load that is given: leave out --slo")
        else:
            given = ", ".join(Serving.fields()[name].option for name in _GIVEN)
            why = f"belongs to a search: give --slo, such as --slo ttft=1s, without --frontier, {given}"
            self.refuse(("recommend", "prefer", "slo_confidence", "must_fit"), why)


FROM_LINE = from_line(
    "`vllm serve …`, `python -m sglang.launch_server …` or `trtllm-serve …`, or the script that runs it; options "
    "that are given count first."
)


def serving(asked: Annotated[Asked[Serving], FROM_LINE], options: ServingOptions) -> None:
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
    many = options.frontier or asked.many
    searched = bool(options.slo) and not (options.frontier or {*_GIVEN} & asked.texts.keys())
    options.check_search(searched)
    if options.launch_command and many and not searched:
        raise typer.BadParameter("prints one command: give one combination, or --slo", param_hint="--launch-command")
    if options.figure is not None and (searched or not many):
        raise typer.BadParameter("needs several combinations: add --frontier, or a list", param_hint="--figure")
    question = asked.questions[0]
    if not searched:
        question.check_load(options.frontier)
        question.check_device()
    named = opt.on_devices(asked) if question.gpu else []
    if not named:
        question.refuse(("overrides",), "changes a device: name it with --gpu")
    devices = [call.device for call in named] or opt.listed_devices(Path(question.prices) if question.prices else None)
    distinct = {device.id: device for device in devices if device}
    command = ServingCommand(options.load(distinct.values()), asked, options, named, list(distinct.values()))
    (command.show_choices if searched else command.show_points)()


@dataclass(frozen=True)
class ServingCommand:
    """Deployments and loads to combine, or to search."""

    predictor: Predictor
    asked: Asked[Serving]
    options: ServingOptions
    named: Sequence[QuestionOnDevice]
    devices: Sequence[DeviceSpec]

    @property
    def many(self) -> bool:
        """True if there may be several points."""
        return self.options.frontier or self.asked.many

    def show_points(self) -> None:
        """Show every combination, and a picture of them.

        Raises:
            Exit: with 1, where no combination has an estimate.
        """
        from neusight.cli import show_serving

        with busy("serving") as advance:
            points = list(self._points(advance))
        if self.many:
            opt.note_prices(self.devices)
        changed = bool(self.asked.questions[0].overrides)
        estimates = [] if changed else [point.estimate for point in points if point.estimate]
        opt.note_corrections(self.predictor, [estimate.gpu for estimate in estimates])
        # Beside clients or a rate alone, a level would be a search.
        stated = self.options.slo and {*_GIVEN} & self.asked.questions[0].words().keys()
        beside = {"slo": self.options.slo} if stated and not self.options.frontier else {}
        show_serving.show_points(points, self.options.form, self.many, self.options.launch_command, beside)
        self.options.show_below(points)
        if self.options.figure is not None:
            show_serving.draw(points, self.options.figure)

    def _points(self, advance: Advance) -> Iterator[Point[ServingEstimate]]:
        """Every combination, on a frontier with each number of clients; the error of a single one is raised."""
        for point in answers(self.named, self._estimates, many=self.many, advance=advance):
            call = point.call
            options = self._values(call.question) | {"gpu": call.id}
            if point.error:
                yield Point(call=call, options=options, error=point.error)
            for estimate in point.estimate or ():
                clients = {"concurrency": estimate.load["concurrency"]} if self.options.frontier else {}
                loaded = replace(call, question=replace(call.question, **clients))
                yield Point(call=loaded, options=options | clients, estimate=estimate)

    def _estimates(self, one: QuestionOnDevice) -> list[ServingEstimate]:
        from neusight.serving import Slo

        question: Serving = one.question
        if self.options.frontier:
            self._check(question)
            estimates = self.predictor.frontier(question, one.device or "")
        else:
            estimates = [self.predictor.ask(question, one.device)]
        level = Slo.named(self.options.slo) if self.options.slo else None
        return [replace(e, slo_probability=level.probability(e)) for e in estimates] if level else estimates

    def _check(self, question: Serving) -> None:
        """Check the options of a search, and warn of those without effect."""
        question.check_relations()
        for line in question.without_effect(searched=not self.options.frontier):
            note(f"warning: {line}")

    def _values(self, question: Serving) -> dict[str, Any]:
        """Values of a combination by option: those of every table, and those that were written as lists."""
        load = () if self.options.frontier or question.load == "trace" else (question.load,)
        names = dict.fromkeys((*_COLUMNS[:-2], *self.asked.axes, *_COLUMNS[-2:], *load))
        return {name: plain_number(getattr(question, name)) for name in names}

    def show_choices(self) -> None:
        """Show deployments that meet ``--slo``, the best first.

        Raises:
            Exit: with 1, where none does.
        """
        from neusight.cli import show_serving

        with busy("looking for deployments") as advance:
            choices = self._choices(advance)
        opt.note_prices(self.devices)
        with_launch = self.options.launch_command or self.options.recommend
        show_serving.show_choices(choices, self.options.slo, self.options.form, with_launch)
        if not choices[0].holds:
            raise typer.Exit(1)

    def _choices(self, advance: Advance) -> list[Choice]:
        from neusight.serving import Demand, Setup, Slo
        from neusight.serving.setup import ReplicaSetup

        question = self.asked.questions[0]
        self._check(question)
        known = question.fields()
        names, searched = ([f.name for f in fields(noun) if f.name in known] for noun in (Setup, ReplicaSetup))
        for axis in self.asked.axes:
            if axis not in (*searched, "gpu"):
                raise FieldError(axis, "takes one value with --slo")
        isl, osl = question.lengths()
        demand = Demand(
            slo=Slo.named(self.options.slo), isl=isl, osl=osl, request_rate=question.request_rate,
            concurrency=question.concurrency, seed=question.seed, must_fit=self.options.must_fit,
            slo_confidence=self.options.slo_confidence or 0.0,
        )  # fmt: skip
        chosen = _CHOSEN if self.options.recommend else ("tp",)
        fixed = [name for name in names if name in self.asked.texts or name not in chosen]
        values = {name: list(dict.fromkeys(getattr(q, name) for q in self.asked.questions)) for name in fixed}
        searched_values = {name: v for name, v in values.items() if None not in v}
        choices = self.predictor.cheapest(
            question.model_or_name(), self.devices, demand, usual=self.options.recommend, prefer=self.options.prefer,
            progress=advance, **searched_values,
        )  # fmt: skip
        questions = {call.id: call.question for call in self.named}
        return [_with_question(choice, questions.get(choice.gpu, question)) for choice in choices]


def _with_question(choice: Choice, question: Serving) -> Choice:
    """The choice, whose answer names the question that repeats it."""
    from neusight.api.predictor import found_by_search

    if choice.estimate is None:
        return choice
    setup = replace(choice.setup, versions=())
    chosen = {f.name: getattr(setup, f.name) for f in fields(setup) if getattr(setup, f.name) != f.default}
    deployed = question.changed(**{**chosen, "gpu": choice.gpu, "replicas": choice.estimate.replicas})
    return replace(choice, estimate=found_by_search(choice.estimate, deployed))
