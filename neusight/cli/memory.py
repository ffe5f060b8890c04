"""``neusight memory``: what each rank of a training step allocates, and what is the largest that fits."""

from __future__ import annotations

from dataclasses import asdict, replace
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, Literal

from neusight.cli import options as opt
from neusight.cli.commands import Given
from neusight.cli.options import ENGINE, STEP, Spec
from neusight.cli.output import Output, line, note, paragraph
from neusight.defaults import words_of
from neusight.errors import ModelError
from neusight.quick_dataclasses import dataclass

if TYPE_CHECKING:
    from neusight.devices import DeviceSpec
    from neusight.distributed.training_run import TrainingRun
    from neusight.plans.memory import RankMemory

_PER_STAGE = 4
"""Micro-batches of a step for each stage where no batch is given: a pipeline that is full."""


@dataclass(frozen=True, kw_only=True)
class MemoryStep(opt.TrainedStep):
    """What a step computes."""

    global_batch_size: opt.OptionalBatch = None
    attention_kernel: Annotated[
        Literal["eager", "flash", "cudnn"] | None,
        Spec("--attention-kernel", ENGINE, "Whose results wait for the backward pass. Default: the engine's.").text(),
    ] = None
    source_len: opt.SourceLen = None
    mtp_layers: opt.MtpLayers = None
    dropout: Annotated[bool, Spec("--dropout", STEP, "Of attention and of the residual stream.").text()] = False

    def run_by(self, run: TrainingRun, typed: Given) -> TrainingRun:
        """The run with other attention and dropout than its engine has.

        Raises:
            ModelError: the model is traced, so that its configuration decides these.
        """
        from neusight.workloads.decoders.decoder import Decoder

        given = [name for name in ("attention_kernel", "dropout") if name in typed]
        if given and not isinstance(run.decoder, Decoder):
            raise ModelError(
                f"--{given[0].replace('_', '-')} has no effect under {run.engine.name}, where the model decides it: "
                "leave it out, or name an engine that runs decoders"
            )
        engine = replace(
            run.engine,
            attention=self.attention_kernel or run.engine.attention,
            attention_dropout=self.dropout or run.engine.attention_dropout,
            hidden_dropout=self.dropout or run.engine.hidden_dropout,
        )
        return replace(run, engine=engine)


@dataclass(frozen=True, kw_only=True)
class MemorySharing(opt.SharedStep):
    """How devices share it, in all ways that decoders can be."""

    cp: opt.CP = 1
    ep: opt.EP = 1
    etp: opt.ETP = None
    gradient_dtype: opt.GradientDtype = "fp32"
    offload: opt.Offload = "none"


@dataclass(frozen=True, kw_only=True)
class MemoryQuestion:
    """A training step whose memory is asked for, as ``neusight training`` takes it."""

    model: str
    device: DeviceSpec
    step: MemoryStep
    sharing: MemorySharing
    typed: Given

    @property
    def engine(self) -> str:
        """By its name."""
        from neusight.engines import usual_trainer

        return self.step.engine or usual_trainer(self.device)

    @property
    def ranks_on(self) -> DeviceSpec:
        """What each rank of a plan is given: a device or one of its cores."""
        from neusight.devices.slices import core_of
        from neusight.engines import engine_named

        return core_of(self.device) if engine_named(self.engine).ranks == "core" else self.device

    def run(self, **changes: Any) -> TrainingRun:
        """The step with some fields changed.

        Raises:
            ModelError: as ``training_run``.
        """
        from neusight.defaults import Default
        from neusight.distributed.sources import node_of
        from neusight.kernels.precision import dtype_named
        from neusight.steps.answers import training_run

        values = {**asdict(self.step), **asdict(self.sharing)}
        options = {name: value for name, value in values.items() if name in self.typed and name not in _OF_ENGINES}
        if "gradient_dtype" in options:
            options["gradient_dtype"] = dtype_named(self.sharing.gradient_dtype)
        options["dp"] = self.sharing.dp or 1
        if not self.step.global_batch_size:
            options["micro_batches"] = _PER_STAGE * self.sharing.pp
        world = options["dp"] * self.sharing.tp * self.sharing.pp * self.sharing.cp
        place = node_of(self.ranks_on, world)
        run = self.step.run_by(training_run(self.model, place, {**options, **changes}, self.engine), self.typed)
        batch = Default(
            run.plan.global_batch_size, f"the default: {options.get('micro_batches')} micro-batches of each replica"
        )
        return (
            run if self.step.global_batch_size else replace(run, defaults={**run.defaults, "global_batch_size": batch})
        )

    def spare_bytes(self, **changes: Any) -> float:
        """What the step with some fields changed leaves of a device; below 0 where it does not fit, or is no step."""
        from neusight.distributed.sources import memory
        from neusight.plans.fits import verdict

        try:
            return verdict(memory(self.run(**changes)), self.ranks_on).spare_bytes
        except ModelError:
            return -inf


_OF_ENGINES = ("engine", "attention_kernel", "dropout")


def memory(
    model: opt.Model,
    gpu: opt.Gpu,
    step: MemoryStep,
    sharing: MemorySharing,
    typed: Given,
    overrides: opt.Overrides = [],  # noqa: B006
    form: opt.Format = "human",
) -> None:
    """Memory of every kind of rank in training, part by part: the allocator's peak, what a device needs, and what fits.

    The step is the one that `neusight training` answers with the same options and as many devices: of one replica
    unless --dp gives more, where `neusight training` fills a node. Without a batch, it has four
    micro-batches for each stage.

    Examples:

    - `neusight memory llama-3-8b --gpu h100 --seq-len 8192 --dp 64 --shard zero3 --engine fsdp`

    - `neusight memory llama-3-70b --gpu h100-sxm-80gb --tp 8 --pp 4 --dp 4 --shard zero1`

    - `neusight memory gpt2-large --gpu a100 -b 4 --engine torch-eager`
    """
    from neusight.devices import load_device
    from neusight.distributed.sources import memory
    from neusight.plans.fits import largest_micro_batch, longest_sequence, verdict

    device = load_device(opt.named_gpu(gpu), overrides)
    question = MemoryQuestion(model=model, device=device, step=step, sharing=sharing, typed=typed)
    run = question.run()
    plan, ranks = run.plan, memory(run)
    for text in plan.without_effect(run.decoder.has_experts):
        note(f"warning: {text}")
    fits = verdict(ranks, question.ranks_on)
    batch = largest_micro_batch(
        plan,
        lambda of: question.spare_bytes(micro_batch_size=of.micro_batch_size, global_batch_size=of.global_batch_size),
    )
    longest = (
        longest_sequence(plan, lambda tokens: question.spare_bytes(seq_len=tokens)) if run.unit == "tokens" else None
    )
    rows = [_row(rank, question.ranks_on) for rank in ranks]

    def human() -> None:
        from neusight.cli.show_training import show_ranks

        show_ranks(ranks, question.ranks_on)
        line()
        paragraph("verdict", f"{fits} on {device.id}")
        paragraph("assumed", words_of(run.assumed))
        sequence = "" if longest is None else f"; longest sequence: {longest:,} tokens"
        line(f"largest micro-batch that fits: {batch}{sequence}")

    data: dict[str, Any] = {"model": run.decoder.name, "gpu": device.id, "seq_len": run.seq_len, "dtype": run.dtype}
    data |= {"engine": run.engine.name, "plan": asdict(plan), "assumed": run.assumed}
    data |= {"fits": fits.fits, **fits.to_dict()}
    data |= {"largest_micro_batch": batch, "longest_sequence": longest, "ranks": rows}
    Output(form).data(data, rows, human)


def _row(rank: RankMemory, device: DeviceSpec) -> dict[str, Any]:
    fit = rank.fit(device)
    low, high = fit.interval
    ends = {"needed_bytes": fit.needed_bytes, "needed_low_bytes": low, "needed_high_bytes": high}
    return {
        "rank": rank.rank, "stage": rank.stage, "moment": rank.moment, "peak_bytes": rank.total, **ends, **rank.parts,
    }  # fmt: skip
