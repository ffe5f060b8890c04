"""``neusight memory``: memory that each rank of a training step allocates, and the largest step that fits."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Annotated, Any

from neusight.cli import options as opt
from neusight.cli.asked import ONE_QUESTION, Asked, described, leave_out
from neusight.cli.output import Output, line, note, paragraph
from neusight.defaults import words_of
from neusight.errors import ModelError
from neusight.questions import Training

if TYPE_CHECKING:
    from neusight.devices import DeviceSpec
    from neusight.distributed.training_run import TrainingRun
    from neusight.plans.memory import RankMemory

_PER_STAGE = 4
"""Micro-batches of a step for each stage where no batch is given: they fill the pipeline."""
TIMED = leave_out("network", "prices", "overlap_grad_reduce", "overlap_param_gather", "overlap_experts")
"""Fields that decide the time of a step, but not its memory."""
PLACED = described(
    dp="Data parallel: replicas, each with its share of the sequences. Default: 1, or what --cluster or --nodes leave.",
    per_node="Devices of a node. Default: as many as the plan has, with --nodes 8.",
    nodes="Nodes of the cluster. Default: those of its file, else one that has all devices of the plan.",
    global_batch_size="Sequences of a step, over all replicas. Default: four micro-batches a stage for each replica.",
)


def memory(
    asked: Annotated[Asked[Training], TIMED, ONE_QUESTION, PLACED, opt.FROM_SCRIPT], output: opt.Formatted
) -> None:
    """Memory of every kind of rank in training, part by part: the allocator's peak, what a device needs, and what fits.

    The step is the one that `neusight training` answers with the same options. Without a cluster it is of as many
    devices as its plan has, of one replica unless --dp gives more; without a batch, it has four micro-batches for each
    stage.

    Examples:

    - `neusight memory llama-3-8b --gpu h100 --seq-len 8192 --dp 64 --shard zero3 --engine fsdp`

    - `neusight memory llama-3-70b --gpu h100-sxm-80gb --tp 8 --pp 4 --dp 4 --shard zero1`

    - `neusight memory gpt2-large --gpu a100 -b 4 --engine torch-eager`

    - `neusight memory --from train_llama.sh --gpu h100`
    """
    from neusight.distributed.sources import memory
    from neusight.plans.fits import largest_micro_batch, longest_sequence, verdict

    _, call = asked.one, opt.on_devices(asked)[0]
    question = _with_batch(_on_its_devices(call.question, call.device))
    run = _with_reason(asked.one, question.resolve())
    plan, ranks, device = run.plan, memory(run), run.cluster.device
    for text in question.without_effect(run):
        note(f"warning: {text}")
    fits = verdict(ranks, device)
    spare = partial(spare_bytes, question)
    sizes = ("micro_batch_size", "global_batch_size")
    batch = largest_micro_batch(plan, lambda of: spare(micro_batches=None, **{n: getattr(of, n) for n in sizes}))
    longest = longest_sequence(plan, lambda tokens: spare(seq_len=tokens)) if run.unit == "tokens" else None
    rows = [_row(rank, device) for rank in ranks]
    gpu = call.device.id if call.device else device.id

    def human() -> None:
        from neusight.cli.show_training import show_ranks

        show_ranks(ranks, device)
        line()
        paragraph("verdict", f"{fits} on {gpu}")
        paragraph("assumed", words_of(run.assumed))
        sequence = "" if longest is None else f"; longest sequence: {longest:,} tokens"
        line(f"largest micro-batch that fits: {batch}{sequence}")

    data: dict[str, Any] = {"model": run.decoder.name, "gpu": gpu, "seq_len": run.seq_len, "dtype": run.dtype}
    data |= {"engine": run.engine.name, "plan": asdict(plan), "assumed": run.assumed}
    data["question"] = {**asked.one.record(), "kind": "memory"}
    data |= {"fits": fits.fits, **fits.to_dict()}
    data |= {"largest_micro_batch": batch, "longest_sequence": longest, "ranks": rows}
    Output(output.form).data(data, rows, human)


def _on_its_devices(question: Training, device: DeviceSpec | None) -> Training:
    """The step on a node of as many devices as its plan has, unless the question names a cluster."""
    from neusight.devices.slices import core_of
    from neusight.distributed.sources import node_of
    from neusight.engines import engine_named, usual_trainer

    if device is None or question.cluster or question.nodes or question.per_node:
        return question
    engine = engine_named(question.engine or usual_trainer(device))
    rank_device = core_of(device) if engine.ranks == "core" else device
    dp = question.dp or 1
    node = node_of(rank_device, dp * question.tp * question.pp * question.cp)
    return question.changed(gpu="", overrides=(), cluster=node, dp=dp)


def _with_batch(question: Training) -> Training:
    if question.global_batch_size or question.micro_batches:
        return question
    return question.changed(micro_batches=_PER_STAGE * question.pp)


def _with_reason(question: Training, run: TrainingRun) -> TrainingRun:
    """The run, with the reason of its batch where the question leaves that open."""
    from neusight.defaults import Default

    if question.global_batch_size or question.micro_batches:
        return run
    reason = f"the default: {_PER_STAGE * question.pp} micro-batches of each replica"
    return replace(run, defaults={**run.defaults, "global_batch_size": Default(run.plan.global_batch_size, reason)})


def spare_bytes(question: Training, **changes: Any) -> float:
    """Memory that a changed step leaves free [B]; below 0 where it does not fit, -inf where it is invalid."""
    from neusight.distributed.sources import memory
    from neusight.plans.fits import verdict

    try:
        run = question.changed(**changes).resolve()
        return verdict(memory(run), run.cluster.device).spare_bytes
    except ModelError:
        return -inf


def _row(rank: RankMemory, device: DeviceSpec) -> dict[str, Any]:
    fit = rank.fit(device)
    low, high = fit.interval
    ends = {"needed_bytes": fit.needed_bytes, "needed_low_bytes": low, "needed_high_bytes": high}
    return {
        "rank": rank.rank, "stage": rank.stage, "moment": rank.moment, "peak_bytes": rank.total, **ends, **rank.parts,
    }  # fmt: skip
