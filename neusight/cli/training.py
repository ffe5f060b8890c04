"""``neusight training`` and ``plan``: a step of training on many devices, and the best plans for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from neusight.cli import options as opt
from neusight.cli.asked import ONE_QUESTION, Asked, leave_out
from neusight.cli.output import busy, note
from neusight.cli.points import answers
from neusight.questions import Training
from neusight.questions.field import number, option, path, whole
from neusight.questions.parts import PLAN, RECORDED, Assurance
from neusight.questions.question import like
from neusight.quick_dataclasses import dataclass

if TYPE_CHECKING:
    from neusight.distributed.estimate import TrainingEstimate
    from neusight.distributed.faults import WholeRun

SCHEDULES = ("1f1b", "zero-bubble", "gpipe")
SEARCHED = leave_out(*(name for name, f in Training.fields().items() if f.field.panel in (PLAN, RECORDED)))
"""Fields that a search for plans decides."""
_OF_RUN = ("tokens", "gpu_mtbf", "checkpoint", "restart", "within_days")
"""Options of the run that a step belongs to."""


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(opt.Benched):
    """The run that a step belongs to, and output files."""

    tokens: float = number(
        "Tokens of a whole run: its days, cost and energy.", opt.OUTPUT, 1e12, low=1.0, high=1e18, placeholder="1e12"
    )
    gpu_mtbf: float | None = number(
        "Hours between faults of a GPU: checkpoints and restarts count. Default with --checkpoint or --restart: "
        "50,678, as 16,384 GPUs had.",
        opt.OUTPUT, low=1e-3, high=1e12,
    )  # fmt: skip
    checkpoint: float | None = number(
        "Seconds that a run waits for a checkpoint. Default with --gpu-mtbf or --restart: 60.",
        opt.OUTPUT, low=1e-3, high=1e6,
    )  # fmt: skip
    restart: float | None = number(
        "Seconds from a fault to the first step after it. Default with --gpu-mtbf or --checkpoint: 600.",
        opt.OUTPUT, low=0.0, high=1e6,
    )  # fmt: skip

    within_days: float | None = number(
        "Days in which the whole run is to end: how probable that is.", opt.OUTPUT, low=1e-6, high=1e6, metavar="DAYS"
    )
    timeline: Path | None = path(
        "Write the step for ui.perfetto.dev.", opt.OUTPUT, option="--timeline", metavar="FILE.json", former=("trace",)
    )

    def check(self) -> None:
        """Raises:
        BadParameter, DataError: a file that cannot be written.
        """
        super().check()
        opt.check_out(self.timeline, "--timeline", ".json")

    def run(self) -> WholeRun:
        """The run, with faults where any of their figures is given."""
        from neusight.distributed.faults import Faults, WholeRun

        figures = {"gpu_mtbf_h": self.gpu_mtbf, "checkpoint_s": self.checkpoint, "restart_s": self.restart}
        faults = {name: value for name, value in figures.items() if value is not None}
        known = Faults(**faults) if faults else None
        return WholeRun(tokens=self.tokens, faults=known, within_days=self.within_days)


def training(asked: Annotated[Asked[Training], opt.FROM_SCRIPT], models: opt.Learned, options: TrainingOptions) -> None:
    """Predict a training step of a language model on many GPUs: time, what it waits for, memory, cost.

    Lists are combined; JSON is an object for one combination, and a list where any option is one. What is left out
    is as users of the engine have it: sharding, overlap, sequence parallelism.

    Examples:

    - `neusight training gpt3-175b --cluster dgx-h100 --nodes 16 --tp 8 --pp 8 --global-batch-size 512 --seq-len 2048`

    - `neusight training llama-3.1-70b --cluster dgx-h100 --nodes 8 --tp 1,2,4,8 --pp 4 -b 256 -s 8192 --format csv`

    - `neusight training llama-3.1-8b --gpu a100-sxm-80gb --nodes 4 --network '8 x 200Gb/s' --engine fsdp -b 64`

    - `neusight training llama-3.1-70b --cluster aws-p5 --nodes 32 --from train_llama.sh --timeline step.json`
    """
    if options.timeline is not None and asked.many:
        raise typer.BadParameter("is of one step: leave out lists", param_hint="--timeline")
    answer(asked, models, options)


def answer(asked: Asked[Training], models: opt.Models, options: TrainingOptions) -> None:
    """Estimate the steps, and show them.

    Raises:
        NeusightError, BadParameter: the only step, or all of them, are invalid. Exit: no step has an estimate.
    """
    from neusight.cli.show_training import show_points

    calls = opt.on_devices(asked)
    predictor = models.load(call.device or call.question.place().device for call in calls)

    with busy("predicting") as advance:
        answered = list(answers(calls, opt.asker(predictor), many=asked.many, advance=advance))
    points = [replace(point, options=asked.options_of(point.call.question)) for point in answered]
    opt.note_corrections(predictor, [point.estimate.gpu for point in points if point.estimate])
    beside = {name: value for name, value in options.words().items() if name in _OF_RUN}
    show_points(points, options.form, asked.many, options.run(), beside)
    options.show_below(points)
    if options.timeline is not None and points[0].estimate:
        _write_trace(options.timeline, points[0].estimate)


def _write_trace(path: Path, estimate: TrainingEstimate) -> None:
    import json

    from neusight.schedule.trace import events_of, trace_of

    path.write_text(json.dumps(trace_of(events_of(estimate.schedule))))
    note(f"wrote {path}: open it at https://ui.perfetto.dev")


@dataclass(frozen=True, kw_only=True)
class Search(opt.Counted, opt.Written, opt.Workers, opt.Formatted):
    """Limits of the search for plans, and the output file."""

    HELP: ClassVar[Mapping[str, str]] = {"out": "Write the best plan for `neusight training --from` (.toml)."}

    reach: float = number(
        "Plans that save memory may take so many times as long as the fastest.", PLAN, 1.25, low=1.0, high=1e6
    )
    longest_micro_batch: int = whole("Sequences of one pass, at most.", PLAN, 16, high=4096)
    must_fit: float = like(Assurance, "must_fit")
    schedules: tuple[str, ...] = option(
        "text", "Orders of passes to try.", PLAN, SCHEDULES, choices=SCHEDULES, listable=True, metavar="NAME[,NAME…]"
    )


_DECIDING = ("count", "reach", "longest_micro_batch", "must_fit", "schedules")
"""Options of a search that decide its answer."""


def plan(asked: Annotated[Asked[Training], SEARCHED, ONE_QUESTION], search: Search, models: opt.Models) -> None:
    """Find the fastest plans of a training step that fit, among all that divide model, batch and cluster.

    None is left out by a rule of thumb: each plan is bounded, and simulated where the bound does not decide.

    Examples:

    - `neusight plan gpt3-175b --cluster dgx-h100 --nodes 128 --global-batch-size 2048 --seq-len 2048`

    - `neusight plan llama-3.1-70b --cluster dgx-a100 --nodes 8 -b 256 -s 4096 --out best.toml`
    """
    from neusight.cli.show_training import show_plans
    from neusight.distributed.space import Space

    opt.check_out(search.out, "--out", ".toml")
    space = Space(schedules=search.schedules, longest_micro_batch=search.longest_micro_batch)
    question, call = asked.one, opt.on_devices(asked)[0]
    run = question.unplanned(call.device)
    predictor = models.load([run.cluster.device])
    with busy("plans") as advance:
        shared = predictor.shared(**search.keywords)
        matches = shared.plans(run, space, search.count, reach=search.reach, must_fit=search.must_fit, progress=advance)
    opt.note_corrections(predictor, [run.cluster.device.id])
    for line in question.without_effect(run):
        note(f"warning: {line}")
    if search.out is not None:
        _write_best(search.out, matches.best[0], question)
    words = {name: value for name, value in search.words().items() if name in _DECIDING}
    show_plans(matches, search.form, call.question, words)


def _write_best(path: Path, best: TrainingEstimate, question: Training) -> None:
    """Write the plan, with all given and chosen fields of the step."""
    from neusight.plans.read import RUN, write_plan

    run = best.run
    recorded = {name: value for name, value in question.words().items() if name in RUN}
    chosen = {"seq_len": run.seq_len, "engine": run.engine.name, "optimizer": run.optimizer}
    write_plan(path, best.plan, {**recorded, **chosen, "dtype": run.precision})
