"""``neusight memory``: what each rank of a training step allocates, and what is the largest that fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from neusight.cli import options as opt
from neusight.cli.commands import Given
from neusight.cli.options import ENGINE, STEP, Spec
from neusight.cli.output import Output, line, note, paragraph, table
from neusight.errors import ModelError
from neusight.units import gib

if TYPE_CHECKING:
    from neusight.plans.memory import RankMemory
    from neusight.plans.states import TrainingStep
    from neusight.requests import Plan

_PER_STAGE = 4
"""Micro-batches of a step for each stage where no batch is given: a pipeline that is full."""
_MOMENTS = {"loss": "the loss", "backward": "the backward pass", "step": "the optimizer's step"}


@dataclass(frozen=True, kw_only=True)
class MemoryStep(opt.TrainedStep):
    """What a step computes."""

    global_batch: opt.OptionalBatch = None
    attention_kernel: Annotated[
        Literal["eager", "flash", "cudnn"] | None,
        Spec("--attention-kernel", ENGINE, "Whose results wait for the backward pass. Default: the engine's.").text(),
    ] = None
    source_len: opt.SourceLen = None
    mtp_layers: opt.MtpLayers = None
    dropout: Annotated[bool, Spec("--dropout", STEP, "Of attention and of the residual stream.").text()] = False

    def training(self, longest: int) -> TrainingStep:
        """The step as memory is computed of it; large products in float8 have activations and weights in bfloat16.

        Raises:
            ModelError: no length.
        """
        from neusight.distributed.training_run import step_precision
        from neusight.engines import engine_named
        from neusight.plans.states import TrainingStep

        length = longest if self.seq_len is None else self.seq_len
        if length < 1:
            raise ModelError("the model states no longest sequence: give --seq-len")
        dtype, products = step_precision(self.dtype or "bfloat16")
        usual = engine_named(self.engine)
        engine = replace(
            usual,
            attention=self.attention_kernel or usual.attention,
            attention_dropout=self.dropout or usual.attention_dropout,
            hidden_dropout=self.dropout or usual.hidden_dropout,
        )
        return TrainingStep(
            seq_len=length, source_len=self.source_len or 0, dtype=dtype, products=products,
            optimizer=self.optimizer, engine=engine,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class MemorySharing(opt.SharedStep):
    """How devices share it, in all ways that decoders can be."""

    cp: opt.CP = 1
    ep: opt.EP = 1
    etp: opt.ETP = None
    gradient_dtype: opt.GradientDtype = "fp32"
    offload: opt.Offload = "none"

    def plan(self, step: MemoryStep, typed: Given) -> Plan:
        """The plan, which ``neusight training`` has with the same options.

        Raises:
            ModelError: as ``Plan``.
        """
        from neusight.distributed.training_run import usual_plan
        from neusight.kernels.precision import dtype_named

        given = {name: value for name, value in asdict(self).items() if name in typed}
        dp, micro_batch = self.dp or 1, self.micro_batch or 1
        batch = step.global_batch or dp * micro_batch * _PER_STAGE * self.pp
        given |= {"dp": dp, "micro_batch": micro_batch, "global_batch": batch}
        given |= {"gradient_dtype": dtype_named(self.gradient_dtype)}
        return usual_plan(given, dp * self.tp * self.pp * self.cp, step.engine)


def memory(
    model: opt.Decoder,
    gpu: opt.Gpu,
    step: MemoryStep,
    sharing: MemorySharing,
    typed: Given,
    overrides: opt.Overrides = [],  # noqa: B006
    form: opt.Format = "human",
) -> None:
    """Memory of every kind of rank in training, part by part: the allocator's peak, and what fits.

    Without a batch, a step has four micro-batches for each stage.

    Examples:

    - `neusight memory llama-3-8b --gpu h100 --seq-len 8192 --dp 64 --shard zero3 --engine fsdp`

    - `neusight memory llama-3-70b --gpu h100-sxm-80gb --tp 8 --pp 4 --dp 4 --shard zero1`
    """
    from neusight.devices import load_device
    from neusight.devices.slices import core_of
    from neusight.distributed.training_run import with_options
    from neusight.engines import engine_named, usual_trainer
    from neusight.plans.fits import largest_micro_batch, longest_sequence, verdict
    from neusight.plans.memory import memory_of
    from neusight.workloads.decoders.known import known_decoder

    decoder, device = with_options(known_decoder(model), asdict(step)), load_device(opt.named_gpu(gpu), overrides)
    step = replace(step, engine=step.engine or usual_trainer(device))
    device = core_of(device) if engine_named(step.engine).ranks == "core" else device
    plan, training = sharing.plan(step, typed), step.training(decoder.max_len)
    ranks = memory_of(decoder, plan, training, device)
    for text in plan.without_effect(decoder.has_experts):
        note(f"warning: {text}")
    fits = verdict(ranks, device)
    batch = largest_micro_batch(decoder, plan, training, device)
    longest = longest_sequence(decoder, plan, training, device)
    rows = [_row(rank) for rank in ranks]

    def human() -> None:
        _show_ranks(ranks)
        line()
        paragraph("verdict", f"{fits} on {device.id}")
        line(f"largest micro-batch that fits: {batch}; longest sequence: {longest:,} tokens")

    data: dict[str, Any] = {"model": decoder.name, "gpu": device.id, "seq_len": training.seq_len, "plan": asdict(plan)}
    data |= {"fits": fits.fits, **fits.to_dict()}
    data |= {"largest_micro_batch": batch, "longest_sequence": longest, "ranks": rows}
    Output(form).data(data, rows, human)


def _row(rank: RankMemory) -> dict[str, Any]:
    low, high = rank.interval
    ends = {"total": rank.total, "low_bytes": low, "high_bytes": high}
    return {"rank": rank.rank, "stage": rank.stage, "moment": rank.moment, **ends, **rank.parts}


def _show_ranks(ranks: Sequence[RankMemory]) -> None:
    """Parts in rows, kinds of ranks in columns."""
    from neusight.plans.memory import PARTS

    titles = ["part", *(f">{rank.rank} rank" for rank in ranks)]
    rows = [(part, *(gib(rank.parts[part]) for rank in ranks)) for part in PARTS]
    rows.append(("total", *(gib(rank.total) for rank in ranks)))
    rows += [(end, *(gib(rank.interval[at]) for rank in ranks)) for at, end in enumerate(("5 %", "95 %"))]
    rows.append(("at its peak in", *(_MOMENTS[rank.moment] for rank in ranks)))
    table(titles, rows)
