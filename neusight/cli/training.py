"""``neusight training`` and ``plan``: a step of training on many devices, and the best plans for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from neusight.cli.options import Calibrations, Format, TileModels, is_list, loaded, note_corrections
from neusight.cli.points import Point
from neusight.cli.training_points import Asked, Place, axes_of, file_told
from neusight.errors import ModelError

if TYPE_CHECKING:
    from neusight.distributed.answer import TrainingEstimate

Decoder = Annotated[
    str, typer.Argument(help="A name of `neusight workloads list --serving`, a config.json, or its folder.")
]
ClusterName = Annotated[
    str, typer.Option("--cluster", metavar="NAME", help="Of `neusight clusters list`, or a cluster file (.toml).")
]
Gpu = Annotated[str, typer.Option("--gpu", "-g", metavar="ID", help="Instead: the GPU, with the next two.")]
PerNode = Annotated[int, typer.Option(min=0, max=1024, help="GPUs of a node. [default: 8]")]
Network = Annotated[str, typer.Option(metavar="WORDS", help="Between nodes: '8 x 400Gb/s', '4 x 100Gb/s efa'.")]
Changes = Annotated[
    list[str],
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change a figure: of a cluster `network.bandwidth=800Gb/s`. Repeatable."
    ),
]
Optimizer = Annotated[Literal["", "none", "sgd", "adam", "adamw"], typer.Option(help="Default: adam.")]
Tokens = Annotated[float, typer.Option(min=0, max=1e18, help="Of a whole run: its days, cost and energy.")]

TOKENS = 1e12


def training(
    model: Decoder,
    cluster: ClusterName = "",
    nodes: Annotated[str, typer.Option(metavar="N[,N…]", help="How many; default: as a cluster file says, or 1.")] = "",
    gpu: Gpu = "",
    per_node: PerNode = 0,
    network: Network = "",
    plan: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="Plan as .toml or .json, torchtitan's TOML, DeepSpeed's JSON, or arguments of Megatron-LM in any "
            "other file. Options come before it.",
        ),
    ] = "",
    dp: Annotated[int, typer.Option(min=0, max=2**20, help="Replicas; default: what the rest leaves.")] = 0,
    tp: Annotated[str, typer.Option(metavar="N[,N…]", help="GPUs that share every layer. [default: 1]")] = "",
    pp: Annotated[str, typer.Option(metavar="N[,N…]", help="Stages that each hold a part of the layers.")] = "",
    cp: Annotated[str, typer.Option(metavar="N[,N…]", help="GPUs that share every sequence.")] = "",
    ep: Annotated[str, typer.Option(metavar="N[,N…]", help="GPUs that share out experts whole.")] = "",
    etp: Annotated[int, typer.Option(min=0, max=1024, help="GPUs that share each expert; default: as --tp.")] = 0,
    vp: Annotated[str, typer.Option(metavar="N[,N…]", help="Chunks of a stage, interleaved where several.")] = "",
    micro_batch: Annotated[str, typer.Option(metavar="N[,N…]", help="Sequences of a pass. [default: 1]")] = "",
    global_batch: Annotated[str, typer.Option("--global-batch", "-b", metavar="N[,N…]", help="Of a step.")] = "",
    seq_len: Annotated[
        str, typer.Option("--seq-len", "-s", metavar="N[,N…]", help="Tokens; default: the model's longest.")
    ] = "",
    dtype: Annotated[str, typer.Option(metavar="NAME[,NAME…]", help="bf16, fp16, fp32, fp8. [default: bf16]")] = "",
    framework: Annotated[
        str,
        typer.Option(
            metavar="NAME[,NAME…]",
            help="megatron-te, megatron-local, torchtitan, torchtitan-compiled, fsdp: whose kernels, and whose habits "
            "fill in what is not told. [default: megatron-te]",
        ),
    ] = "",
    schedule: Annotated[str, typer.Option(metavar="NAME[,NAME…]", help="1f1b, gpipe or zero-bubble.")] = "",
    shard: Annotated[str, typer.Option(metavar="NAME[,NAME…]", help="none, zero1, zero2, zero3 or hsdp.")] = "",
    shard_group: Annotated[int, typer.Option(min=0, max=2**20, help="GPUs of hsdp; default: those of a node.")] = 0,
    recompute: Annotated[
        str, typer.Option(metavar="NAME[,NAME…]", help="none, selective, operators or full. [default: none]")
    ] = "",
    recompute_layers: Annotated[int, typer.Option(min=0, max=10**6, help="Of a stage; default: all.")] = 0,
    sequence_parallel: Annotated[
        bool | None, typer.Option(help="GPUs of --tp share the residual stream; default: where --tp is above 1.")
    ] = None,
    overlap_gradients: Annotated[bool | None, typer.Option(help="Replicas sum them beside backward passes.")] = None,
    overlap_parameters: Annotated[bool | None, typer.Option(help="Replicas gather them beside passes.")] = None,
    overlap_tp: Annotated[bool | None, typer.Option(help="What --tp exchanges runs beside products.")] = None,
    gradient_dtype: Annotated[str, typer.Option(help="In which replicas sum gradients. [default: fp32]")] = "",
    offload: Annotated[Literal["", "none", "optimizer"], typer.Option(help="What the host holds and steps.")] = "",
    optimizer: Optimizer = "",
    tokens: Tokens = TOKENS,
    trace: Annotated[Path | None, typer.Option(metavar="FILE.json", help="Write the step for ui.perfetto.dev.")] = None,
    overrides: Changes = [],  # noqa: B006
    tile_models: TileModels = None,
    calibration: Calibrations = "",
    form: Format = "human",
) -> None:
    """Predict a training step of a language model on many GPUs: time, what it waits for, memory, cost.

    Lists are combined; JSON is an object for one point, and a list where any option is one.

    Examples:

    - `neusight training gpt3-175b --cluster dgx-h100 --nodes 16 --tp 8 --pp 8 --global-batch 512 --seq-len 2048`

    - `neusight training llama-3.1-70b --cluster dgx-h100 --nodes 8 --tp 1,2,4,8 --pp 4 -b 256 -s 8192 --format csv`

    - `neusight training llama-3.1-8b --gpu a100-sxm-80gb --nodes 4 --network '8 x 200Gb/s' --framework fsdp -b 64`

    - `neusight training llama-3.1-70b --cluster aws-p5 --nodes 32 --plan train_llama.sh --trace step.json`
    """
    from neusight.kernels.precision import dtype_named

    typed = {
        "nodes": nodes, "framework": framework, "dtype": dtype, "seq_len": seq_len, "tp": tp, "pp": pp, "cp": cp,
        "ep": ep, "vp": vp, "micro_batch": micro_batch, "global_batch": global_batch, "schedule": schedule,
        "shard": shard, "recompute": recompute,
    }  # fmt: skip
    told = {
        "dp": dp or None, "etp": etp or None, "shard_group": shard_group or None, "optimizer": optimizer or None,
        "recompute_layers": recompute_layers or None, "sequence_parallel": sequence_parallel,
        "overlap_gradients": overlap_gradients, "overlap_parameters": overlap_parameters, "overlap_tp": overlap_tp,
        "gradient_dtype": dtype_named(gradient_dtype) if gradient_dtype else None, "offload": offload or None,
    }  # fmt: skip
    place = Place(cluster=cluster, gpu=gpu, per_node=per_node, network=network, overrides=overrides)
    points = trained(
        model, place, typed, {name: value for name, value in told.items() if value is not None}, plan,
        models=(tile_models, calibration),
    )  # fmt: skip
    many = any(is_list(text) for text in typed.values())
    if trace is not None:
        _write_trace(trace, [point.estimate for point in points if point.estimate])
    show(points, form, many, tokens)


def trained(
    model: str,
    place: Place,
    typed: dict[str, str],
    told: dict[str, Any],
    plan: str = "",
    *,
    models: tuple[Path | None, str] = (None, ""),
) -> list[Point[TrainingEstimate]]:
    """Points of what was typed.

    Args:
        model: its name or file.
        place: where.
        typed: lists by name, see ``axes_of``.
        told: what all points have in common.
        plan: a file that says the rest.
        models: tile models and calibration.

    Raises:
        NeusightError, BadParameter: what is wrong with one point, or with all.
    """
    from neusight.cli.output import busy
    from neusight.workloads.decoders.known import known_decoder

    axes = axes_of(typed)
    decoder = known_decoder(model)
    from_file = dict(file_told(plan, decoder.depth).fields) if plan else {}
    if "global_batch" in axes:
        from_file.pop("micro_batches", None)
    predictor = loaded(*models)
    asked = Asked(predictor=predictor, decoder=decoder, place=place, axes=axes, told={**from_file, **told})
    with busy("predicting"):
        points = list(asked.points())
    note_corrections(predictor, [p.estimate.cluster.device.id for p in points if p.estimate])
    return points


def show(points: list[Point[TrainingEstimate]], form: str, many: bool = False, tokens: float = TOKENS) -> None:
    """All points; exit 1 where none has an answer."""
    from neusight.cli.output import note
    from neusight.cli.show_training import show_points

    show_points(points, form, many, tokens)
    if not any(point.estimate for point in points):
        note(f"error: none of {len(points)} points has an answer: {points[0].error}")
        raise typer.Exit(1)


def _write_trace(path: Path, estimates: list[TrainingEstimate]) -> None:
    import json

    from neusight.cli.output import note
    from neusight.schedule.events import events_of
    from neusight.schedule.trace import trace_of

    if len(estimates) != 1:
        raise typer.BadParameter("is of one step: leave out lists", param_hint="--trace")
    path.write_text(json.dumps(trace_of(events_of(estimates[0].schedule))))
    note(f"wrote {path}: open it at https://ui.perfetto.dev")


def plan(
    model: Decoder,
    global_batch: Annotated[int, typer.Option("--global-batch", "-b", min=1, max=10**9, help="Sequences a step.")],
    cluster: ClusterName = "",
    nodes: Annotated[int, typer.Option(min=0, max=10**6, help="How many; default: as the file says, or 1.")] = 0,
    gpu: Gpu = "",
    per_node: PerNode = 0,
    network: Network = "",
    seq_len: Annotated[int, typer.Option("--seq-len", "-s", min=0, max=10**9, help="Default: the longest.")] = 0,
    dtype: Annotated[str, typer.Option(help="bf16, fp16, fp32 or fp8.")] = "bf16",
    framework: Annotated[str, typer.Option(help="Whose kernels, as for `neusight training`.")] = "megatron-te",
    optimizer: Optimizer = "",
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=1000, help="Plans to show.")] = 5,
    reach: Annotated[float, typer.Option(min=1.0, max=1e6, help="Steps so many times as long may save memory.")] = 1.25,
    longest_micro_batch: Annotated[int, typer.Option(min=1, max=4096, help="Sequences of a pass, at most.")] = 16,
    schedules: Annotated[str, typer.Option(metavar="NAME[,NAME…]")] = "1f1b,zero-bubble,gpipe",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.toml", help="Write the best plan for `neusight training --plan`.")
    ] = None,
    overrides: Changes = [],  # noqa: B006
    tile_models: TileModels = None,
    calibration: Calibrations = "",
    form: Format = "human",
) -> None:
    """Find the fastest plans of a training step that fit, among all that divide model, batch and cluster.

    None is left out by a rule of thumb: each plan is bounded, and simulated where the bound does not decide.

    Examples:

    - `neusight plan gpt3-175b --cluster dgx-h100 --nodes 128 --global-batch 2048 --seq-len 2048`

    - `neusight plan llama-3.1-70b --cluster dgx-a100 --nodes 8 -b 256 -s 4096 --out best.toml`
    """
    from neusight.cli.options import listed
    from neusight.cli.output import progress
    from neusight.cli.show_plans import show_found
    from neusight.distributed.space import Space
    from neusight.distributed.usual import usual_run
    from neusight.plans.plan import SCHEDULES
    from neusight.plans.read import write_plan
    from neusight.workloads.decoders.known import known_decoder

    space = Space(schedules=tuple(listed(schedules, "--schedules")), longest_micro_batch=longest_micro_batch)
    if unknown := [word for word in space.schedules if word not in SCHEDULES]:
        raise ModelError(f"unknown schedule '{unknown[0]}': one of {', '.join(SCHEDULES)}")
    place = Place(cluster=cluster, gpu=gpu, per_node=per_node, network=network, overrides=overrides)
    found_place = place.of(nodes)
    told: dict[str, Any] = {"seq_len": seq_len, "dtype": dtype, "optimizer": optimizer}
    one_each = {"dp": found_place.devices, "global_batch": found_place.devices}
    run = usual_run(known_decoder(model), found_place, told | one_each, framework)
    asked = _with_batch(run, global_batch)
    predictor = loaded(tile_models, calibration)
    with progress("plans") as advance:
        found = predictor.plans(asked, space, count, reach=reach, progress=advance)
    note_corrections(predictor, [found_place.device.id])
    if out is not None:
        beside = {"seq_len": asked.seq_len, "dtype": dtype, "framework": framework, "optimizer": asked.optimizer}
        write_plan(out, found.best[0].plan, beside)
    show_found(found, form)


def _with_batch(run: Any, global_batch: int) -> Any:
    from dataclasses import replace

    from neusight.plans.plan import Plan

    return replace(run, plan=Plan(global_batch=global_batch))
