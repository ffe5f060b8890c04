"""``neusight what-if``: what optimisations would gain a step, a training run or a deployment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from neusight.cli import options as opt
from neusight.cli.commands import Given
from neusight.cli.options import Spec
from neusight.cli.output import busy
from neusight.cli.predict import Execution, StepOptions
from neusight.cli.training import of_file
from neusight.errors import ModelError

if TYPE_CHECKING:
    from neusight.what_if import Question

WANTED = "What if"
_OF_STEPS = (
    "image_size",
    "frames",
    "seconds",
    "given",
    "share",
    "fused_optimizer",
    "grad_scaler",
    "attention",
    "layout",
)
"""Options of a step of a module alone."""
_OF_RUNS = ("cluster", "nodes", "per_node", "network", "plan", "cp", "recompute", "shard")
"""Options of a training run alone."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which optimisations, and what for."""

    apply: Annotated[
        str, Spec("--apply -a", WANTED, "Optimisations, one upon the other, in this order.", "NAME[,NAME…]").text()
    ] = ""
    every: Annotated[
        bool, Spec("--all", WANTED, "Each that applies by itself, and the best of them one upon the other.").text()
    ] = False
    listing: Annotated[bool, Spec("--list", WANTED, "Show all optimisations, with their sources.").text()] = False
    goal: Annotated[Literal["time", "memory"], Spec("--goal", WANTED, "For --all: what is to become less.").text()] = (
        "time"
    )
    fit: Annotated[
        str, Spec("--fit", WANTED, "For --all: until the peak of memory is at most this.", "SIZE").text()
    ] = ""
    target: Annotated[str, Spec("--target", WANTED, "For --all: until the time is at most this.", "TIME").text()] = ""

    def __post_init__(self) -> None:
        if bool(self.apply) + self.every + self.listing != 1:
            raise typer.BadParameter("give one of --apply, --all and --list")
        if self.apply and (self.fit or self.target):
            raise typer.BadParameter("end a search: they go with --all", param_hint="--fit, --target")
        if self.fit and self.target:
            raise typer.BadParameter("are two goals: give one of them", param_hint="--fit, --target")

    @property
    def names(self) -> list[str]:
        """Those of ``--apply``."""
        return opt.listed(self.apply, "--apply")

    @property
    def search(self) -> tuple[Literal["time", "memory"], float]:
        """What is to become less, and until when [s or B]."""
        if self.fit:
            return "memory", opt.quantity(self.fit, "bytes", "--fit")
        return ("time", opt.quantity(self.target, "s", "--target")) if self.target else (self.goal, 0.0)


@dataclass(frozen=True, kw_only=True)
class WhatIfPlace:
    """Where it runs, and how devices share it."""

    gpu: opt.Gpu = ""
    overrides: opt.Overrides = field(default_factory=list)
    cluster: opt.Cluster = ""
    nodes: opt.Nodes = None
    per_node: opt.PerNode = None
    network: opt.Network = ""
    plan: opt.PlanFile = ""
    tp: opt.TP = 1
    pp: opt.PP = 1
    cp: opt.CP = 1
    micro_batch_size: opt.MicroBatch = None
    shard: opt.Shard = ""
    recompute: opt.Recompute = "none"


@dataclass(frozen=True, kw_only=True)
class ServedLoad:
    """The load of a deployment."""

    isl: opt.Isl = None
    osl: opt.Osl = None
    concurrency: opt.Concurrency = None


def what_if(
    wanted: Wanted,
    step: StepOptions,
    execution: Execution,
    place: WhatIfPlace,
    load: ServedLoad,
    models: opt.Models,
    typed: Given,
    model: Annotated[
        str, typer.Argument(help="As `neusight predict` takes it; of runs and deployments a decoder.")
    ] = "",
    engine: opt.EngineName = "",
    figure: opt.Picture = None,
    form: opt.Format = "human",
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

    opt.check_out(figure, "--figure", *opt.PICTURES)
    if wanted.listing:
        show.show_list(form)
        return
    if not model:
        raise typer.BadParameter("names no model", param_hint="MODEL")
    if not (place.gpu or place.cluster):
        raise typer.BadParameter("names no GPU: give an id of `neusight devices list`", param_hint="--gpu")
    asked = AskedWhatIf(model=model, step=step, execution=execution, place=place, load=load, engine=engine, typed=typed)
    predictor = models.load([place.gpu] if place.gpu else [])
    question = asked.question()
    with busy(f"asking of {model}"):
        answer = (
            predictor.what_ifs(question, *wanted.search) if wanted.every else predictor.what_if(question, wanted.names)
        )
    show.show(answer, form)
    if figure is not None:
        show.draw(answer, figure)


@dataclass(frozen=True, kw_only=True)
class AskedWhatIf:
    """What a command line asks of: a step, a training run or a deployment."""

    model: str
    step: StepOptions
    execution: Execution
    place: WhatIfPlace
    load: ServedLoad
    engine: str
    typed: Given

    def question(self) -> Question:
        """As a value.

        Raises:
            BadParameter: options of another kind of question.
        """
        if self.load.isl or self.load.osl or self.load.concurrency:
            self.typed.refuse([*_OF_STEPS, *_OF_RUNS, "mode", "batch", "seq_len"], "has no place in a deployment")
            return self._deployment()
        if self.engine or self.place.cluster:
            self.typed.refuse(_OF_STEPS, "is of a step of a module: leave out --engine and --cluster")
            return self._run()
        self.typed.refuse(_OF_RUNS, "is of a training run: name its --engine")
        return self._step()

    def _step(self) -> Question:
        from neusight.questions.step import step_question
        from neusight.requests import Plan

        opt.check_optimizer(self.step.optimizer, [self.step.mode])
        words: dict[str, Any] = self.step.options | self.execution.options | {"overrides": self.place.overrides}
        shared = self.place.tp > 1 or self.place.pp > 1 or self.place.micro_batch_size
        if shared:
            batch = self.step.batch
            words["plan"] = Plan(
                tp=self.place.tp,
                pp=self.place.pp,
                global_batch_size=batch,
                micro_batch_size=self.place.micro_batch_size or batch,
            )
            words["batch"] = 1
        return step_question(self.model, opt.named_gpu(self.place.gpu), **words)

    def _run(self) -> Question:
        from neusight.questions import Training

        place = self.place
        if self.step.mode != "training":
            raise typer.BadParameter("is for training: add --mode training", param_hint="--engine, --cluster")
        alone = None if place.cluster else place.tp * place.pp * place.cp
        where = {name: getattr(place, name) for name in ("cluster", "nodes", "network", "overrides")}
        where |= {"gpu": opt.named_gpu(place.gpu) if place.gpu else "", "per_node": place.per_node or alone}
        names = ("tp", "pp", "cp", "micro_batch_size", "shard", "recompute")
        options = {name: getattr(place, name) for name in names if name in self.typed}
        options |= {"seq_len": self.step.seq_len, "global_batch_size": self.step.batch, "dtype": self.execution.dtype}
        options |= {"optimizer": self.step.optimizer} if "optimizer" in self.typed else {}
        options |= {"engine": self.engine, "model": self.model} | where
        given = of_file(place.plan, self.model, ("global_batch_size",))
        given |= {name: value for name, value in options.items() if value}
        return Training.named(given).resolve()

    def _deployment(self) -> Question:
        from neusight.serving import Setup, closed
        from neusight.what_if import DeploymentQuestion

        if not (self.load.isl and self.load.osl):
            raise typer.BadParameter("are missing: give tokens, such as 1024 and 256", param_hint="--isl, --osl")
        setup = Setup(engine=self.engine or "vllm", dtype=self.execution.dtype, tp=self.place.tp, pp=self.place.pp)
        load = closed(self.load.concurrency or 1, self.load.isl, self.load.osl)
        if self.place.overrides:
            raise ModelError("--set has no place in a deployment: give a device file as --gpu")
        return DeploymentQuestion(model=self.model, gpu=opt.named_gpu(self.place.gpu), load=load, setup=setup)
