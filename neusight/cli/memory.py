"""``neusight memory``: what each rank of a training step allocates, and what is the largest that fits."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated, Any, Literal

import typer

from neusight.cli.options import Format, Overrides, SeqLen, named_gpu
from neusight.engines import AttentionForm, Engine, engine_named
from neusight.errors import ModelError
from neusight.kernels.precision import dtype_named
from neusight.plans.memory import TrainingStep

_PER_STAGE = 4
"""Micro-batches of a step for each stage where none are told: a pipeline that is full."""


def memory(
    model: Annotated[
        str, typer.Argument(help="A name of `neusight workloads list --serving`, a config.json, or its folder.")
    ],
    gpu: Annotated[str, typer.Option("--gpu", "-g", metavar="ID", help="As for `neusight predict`.")],
    tp: Annotated[int, typer.Option(min=1, max=4096, help="GPUs that share every layer.")] = 1,
    pp: Annotated[int, typer.Option(min=1, max=4096, help="Stages that each hold a part of the layers.")] = 1,
    vp: Annotated[int, typer.Option(min=1, max=4096, help="Chunks of a stage, interleaved where several.")] = 1,
    dp: Annotated[int, typer.Option(min=1, max=2**20, help="Replicas.")] = 1,
    cp: Annotated[int, typer.Option(min=1, max=4096, help="GPUs that share every sequence.")] = 1,
    ep: Annotated[int, typer.Option(min=1, max=4096, help="GPUs that share out experts whole.")] = 1,
    etp: Annotated[int, typer.Option(min=0, max=4096, help="GPUs that share each expert; 0: as tp.")] = 0,
    micro_batch: Annotated[int, typer.Option(min=1, max=10**6, help="Sequences of a micro-batch.")] = 1,
    micro_batches: Annotated[int, typer.Option(min=0, max=10**6, help="Of a step; 0: four a stage.")] = 0,
    seq_len: SeqLen = None,
    sequence_parallel: Annotated[
        bool, typer.Option("--sequence-parallel", help="GPUs of --tp share norms and the residual stream by tokens.")
    ] = False,
    shard: Annotated[str, typer.Option(help="Of replicas: none, zero1, zero2, zero3 or hsdp.")] = "none",
    recompute: Annotated[str, typer.Option(help="none, selective or full.")] = "none",
    recompute_layers: Annotated[int, typer.Option(min=0, max=10**6, help="Of a stage, in full; 0: all.")] = 0,
    schedule: Annotated[str, typer.Option(help="1f1b, gpipe or zero-bubble.")] = "1f1b",
    offload: Annotated[str, typer.Option(help="What lies on the host: none or optimizer.")] = "none",
    framework: Annotated[str, typer.Option(help="Whose habits, as for `neusight training`.")] = "megatron-te",
    attention: Annotated[Literal["", "eager", "flash", "cudnn"], typer.Option(help="Default: the framework's.")] = "",
    dropout: Annotated[bool, typer.Option("--dropout", help="Of attention and of the residual stream.")] = False,
    dtype: Annotated[str, typer.Option(help="Of weights and activations; fp8: of large products.")] = "bf16",
    gradient_dtype: Annotated[str, typer.Option(help="Of gradients that are kept and summed.")] = "fp32",
    optimizer: Annotated[Literal["none", "sgd", "adam", "adamw"], typer.Option(help="Whose states are kept.")] = "adam",
    overrides: Overrides = [],  # noqa: B006
    form: Format = "human",
) -> None:
    """Memory of every kind of rank in training, part by part: the allocator's peak, and what fits.

    Examples:

    - `neusight memory llama-3-8b --gpu h100 --seq-len 8192 --dp 64 --shard zero3 --framework fsdp`

    - `neusight memory llama-3-70b --gpu h100-sxm-80gb --tp 8 --pp 4 --dp 4 --shard zero1 --sequence-parallel`
    """
    from neusight.cli.output import Output, line
    from neusight.cli.show_memory import show_ranks
    from neusight.devices import load_device
    from neusight.plans.fits import largest_micro_batch, longest_sequence, verdict
    from neusight.plans.memory import memory_of
    from neusight.plans.plan import Plan
    from neusight.workloads.decoders.known import known_decoder

    decoder, device = known_decoder(model), load_device(named_gpu(gpu), overrides)
    count = micro_batches or _PER_STAGE * pp
    plan = Plan(
        dp=dp, tp=tp, pp=pp, cp=cp, ep=ep, etp=etp, vp=vp, micro_batch=micro_batch, schedule=schedule,
        global_batch=dp * micro_batch * count, sequence_parallel=sequence_parallel, shard=shard, recompute=recompute,
        recompute_layers=recompute_layers, gradient_dtype=dtype_named(gradient_dtype), offload=offload,
    )  # fmt: skip
    length = decoder.max_len if seq_len is None else seq_len
    if length < 1:
        raise ModelError(f"sequences of {length} tokens: give --seq-len, of at least 1")
    training = _training(length, dtype_named(dtype), optimizer, _engine(framework, attention, dropout))
    ranks = memory_of(decoder, plan, training, device)
    found = verdict(ranks, device)
    batch = largest_micro_batch(decoder, plan, training, device)
    longest = longest_sequence(decoder, plan, training, device)
    rows = [{"rank": rank.rank, "stage": rank.stage, "moment": rank.moment, "total": rank.total} for rank in ranks]
    rows = [row | rank.parts for row, rank in zip(rows, ranks, strict=True)]

    def human() -> None:
        show_ranks(ranks)
        line(f"\n{found} on {device.id}")
        line(f"largest micro-batch that fits: {batch}; longest sequence: {longest:,} tokens")

    told: dict[str, Any] = {"model": decoder.name, "gpu": device.id, "seq_len": length, "plan": asdict(plan)}
    told |= {"fits": found.fits, "needed_bytes": found.needed_bytes, "usable_bytes": found.usable_bytes}
    told |= {"largest_micro_batch": batch, "longest_sequence": longest, "ranks": rows}
    Output(form).data(told, rows, human)


def _training(seq_len: int, dtype: str, optimizer: str, engine: Engine) -> TrainingStep:
    """Large products in float8 work on activations and weights in bfloat16."""
    narrow = dtype == "float8"
    return TrainingStep(
        seq_len=seq_len,
        dtype="bfloat16" if narrow else dtype,
        products=dtype if narrow else "",
        optimizer=optimizer,
        engine=engine,
    )


def _engine(framework: str, attention: AttentionForm | Literal[""], dropout: bool) -> Engine:
    named = engine_named(framework)
    return replace(named, attention=attention or named.attention, attention_dropout=dropout, hidden_dropout=dropout)
