"""``neusight what-if``: gains of optimisations for a step, a training run or a deployment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from neusight.cli import options as opt
from neusight.cli.asked import Asked, CommandOptions, ParameterTraits, described, from_line
from neusight.cli.output import busy
from neusight.questions import Question, Serving, Step, Training
from neusight.questions.field import number, switch, text
from neusight.questions.question import like
from neusight.questions.serving import LOADS
from neusight.quick_dataclasses import dataclass

WHAT_IF = "What if"
_NO_MODEL = "-"
"""Placeholder for the model where a command needs none."""


@dataclass(frozen=True, kw_only=True)
class WhatIfOptions(CommandOptions):
    """Optimisations, and the goal of a search."""

    apply: tuple[str, ...] = text(
        "Optimisations, one upon the other, in this order.", WHAT_IF, (), short="-a", listable=True,
        metavar="NAME[,NAME…]",
    )  # fmt: skip
    every: bool = switch(
        "Each that applies by itself, and the best of them one upon the other.", WHAT_IF, option="--all"
    )
    listing: bool = like(opt.Listed, "listing", help="Show all optimisations, with their sources.", panel=WHAT_IF)
    goal: str = text("For --all: what is to become less.", WHAT_IF, "time", choices=("time", "memory"))
    fit: float | None = number(
        "For --all: until the peak of memory is at most this.", WHAT_IF, unit="bytes", low=1.0, high=1e18,
        metavar="SIZE",
    )  # fmt: skip
    target: float | None = number(
        "For --all: until the time is at most this.", WHAT_IF, unit="s", low=1e-12, high=1e12, metavar="TIME"
    )

    def check(self) -> None:
        """Raises:
        BadParameter: not one of the three, or a goal without a search.
        """
        if bool(self.apply) + self.every + self.listing != 1:
            raise typer.BadParameter("give one of --apply, --all and --list")
        if not self.every:
            self.refuse(("goal", "fit", "target"), "is of a search: give --all")
        if self.fit and self.target:
            raise typer.BadParameter("are two goals: give one of them", param_hint="--fit, --target")

    @property
    def search(self) -> tuple[Any, float]:
        """Quantity to lower, and the target at which the search ends [s or B]."""
        if self.fit:
            return "memory", self.fit
        return ("time", self.target) if self.target else (self.goal, 0.0)


def _question_of(texts: Mapping[str, Any], launched: type[Question] | None) -> Asked[Any]:
    """The question that ``--from`` describes; else a deployment if a load is given, a training run if an engine or a
    cluster is, else a step.
    """
    words = dict(texts)
    if not words.get("model") and not launched:
        return Asked(Step, {**words, "model": _NO_MODEL})
    of_serving = Serving.fields().keys() - Step.fields().keys() - Training.fields().keys()
    if launched is Serving or words.keys() & of_serving:
        loads = {} if words.keys() & set(LOADS) else {"concurrency": "1"}
        return Asked(Serving, words | loads)
    of_training = {"engine", "cluster", *(Training.fields().keys() - Step.fields().keys())}
    if not launched and not words.keys() & of_training:
        return Asked(Step, words)
    if words.pop("mode", "training" if launched else "") != "training":
        raise typer.BadParameter("is for training: add --mode training", param_hint="--engine, --cluster")
    batch = {} if words.keys() & {"batch", "global_batch_size", "micro_batches"} else {"batch": "1"}
    return _on_its_devices(Asked(Training, batch | words))


def _on_its_devices(asked: Asked[Training]) -> Asked[Training]:
    """The training run on as many devices as its plan has, unless the question names a cluster."""
    run = asked.one
    devices = run.tp * run.pp * run.cp * (run.dp or 1)
    return asked if run.cluster else asked.upon({"per_node": str(devices)})


_MEANINGS = described(
    engine="Software of a training run, such as torch-eager, or of a deployment, such as vllm.",
    cluster="Of a training run: a name of `neusight clusters list`, or a cluster file (.toml).",
    nodes="Of a training run: nodes of the cluster. Default: those of its file, else 1.",
    per_node="Devices of a node. Default: of a training run as many as its plan has.",
    batch="Samples of a step or of a training run, over all replicas; of a deployment one static batch.",
    dtype="Precision of weights and activations. Default: that of the model's configuration.",
    shard="Sharding across replicas: none, zero1, zero2, zero3 or hsdp. Default: of a training run the engine's.",
    concurrency="Of a deployment: clients, each of which sends its next request when the last is answered. Default: 1.",
    optimizer="Optimizer of a training step; a training run has adam where it is left out.",
)
"""Help of options that have a meaning in several kinds of questions."""
FROM_LINE = from_line(
    "A line or script that starts an engine, or a plan, as in `serving --from` and `training --from`; options that are "
    "given count first.",
    "--plan",
)
ONE_OF = ParameterTraits(nouns=(Step, Training, Serving), read=_question_of, lists=False)


def what_if(
    wanted: WhatIfOptions,
    asked: Annotated[Asked[Any], ONE_OF, _MEANINGS, FROM_LINE],
    models: opt.Learned,
    drawn: opt.Drawn,
    output: opt.Formatted,
) -> None:
    """Predict what optimisations gain: time, memory and limiter before and after, each gain with its 90 % interval.

    A step of any model on one GPU, unless --cluster or --engine ask of a training run, or --isl of a deployment.

    Examples:

    - `neusight what-if gpt2-large --gpu l4 --mode training --optimizer adam --apply amp,compile,fused-optimizer`

    - `neusight what-if resnet-50 --gpu a100 --mode training --batch 64 --all`

    - `neusight what-if llama-3.1-8b --gpu rtx-4090 --isl 1024 --osl 256 --concurrency 8 --all`

    - `neusight what-if llama-3.1-8b --gpu a100 --mode training --engine torch-eager --batch 4 --all --fit 40GB`

    - `neusight what-if --list`
    """
    from neusight.cli import show_what_if as show

    if wanted.listing:
        show.show_list(output.form)
        return
    if asked.one.model == _NO_MODEL:
        raise typer.BadParameter("names no model", param_hint="MODEL")
    call = opt.on_devices(asked)[0]
    predictor = models.load([call.device] if call.device else [])
    with busy(f"asking of {asked.one.model}"):
        question = call.question.resolve(call.device)
        answer = (
            predictor.what_ifs(question, *wanted.search) if wanted.every else predictor.what_if(question, wanted.apply)
        )
    mode = {"mode": "training"} if asked.noun is Training else {}
    show.show(answer, output.form, {**wanted.record(), **mode, **call.question.record(), "kind": "what-if"})
    if drawn.figure is not None:
        show.draw(answer, drawn.figure)
