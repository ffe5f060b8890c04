"""``neusight training`` and ``plan``: a step of training on many devices, and the best plans for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neusight.cli import options as opt
from neusight.cli.commands import Given, Point, combined
from neusight.cli.options import OUTPUT, PLAN, Spec
from neusight.cli.output import busy, note
from neusight.errors import ModelError
from neusight.quick_dataclasses import dataclass

if TYPE_CHECKING:
    from neusight.devices import Cluster as ClusterSpec
    from neusight.distributed.estimate import TrainingEstimate
    from neusight.distributed.faults import WholeRun

WORDS = ("engine", "dtype", "schedule", "shard", "recompute")
"""Options that take lists of words."""
AXES = (
    *("nodes", "engine", "dtype", "seq_len", "tp", "pp", "cp", "ep", "vp", "micro_batch_size", "global_batch_size"),
    *("schedule", "shard", "recompute"),
)
"""Options that take lists, in the order of a table's columns."""
TOKENS = 1e12


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a step runs: a cluster by name, or a device with how many share a node and a network."""

    cluster: opt.Cluster = ""
    gpu: opt.Gpu = ""
    per_node: opt.PerNode = None
    network: opt.Network = ""
    overrides: opt.Overrides = field(default_factory=list)
    prices: opt.Prices = None

    def __post_init__(self) -> None:
        if bool(self.cluster) == bool(self.gpu):
            raise typer.BadParameter(
                "give one of both: a name of `neusight clusters list`, or a GPU with --per-node",
                param_hint="--cluster, --gpu",
            )
        if self.cluster and (self.per_node or self.network):
            text = "has nodes and a network of its own: change them by --set per_node=4 or --set network.bandwidth=…"
            raise typer.BadParameter(text, param_hint="--cluster")

    @cached_property
    def _gpu(self) -> str:
        """The device, whose short name is explained once."""
        return opt.named_gpu(self.gpu)

    def of(self, nodes: int) -> ClusterSpec:
        """So many nodes of it; 0: as its file says, else one.

        Raises:
            DeviceError: an unknown device or cluster, or one that cannot be.
        """
        from neusight.devices import cluster_of, load_cluster, with_prices

        if self.cluster:
            cluster = load_cluster(self.cluster, nodes, self.overrides)
        else:
            cluster = cluster_of(self._gpu, self.per_node or 0, nodes or 1, self.network, self.overrides)
        return cluster.model_copy(update={"device": with_prices([cluster.device], self.prices or "")[0]})


@dataclass(frozen=True, kw_only=True)
class TrainedSteps:
    """What a step computes."""

    global_batch_size: opt.Batches = ""
    seq_len: opt.SeqLens = ""
    dtype: opt.Dtypes = ""
    engine: opt.EngineNames = ""
    optimizer: opt.StepOptimizer = "adam"
    source_len: opt.SourceLen = None
    mtp_layers: opt.MtpLayers = None
    lora_rank: opt.Lora = None
    adapter: opt.Adapter = "lora"
    adapted: opt.Adapted = "attention,feed_forward"


@dataclass(frozen=True, kw_only=True)
class Plans:
    """How devices share it; what is not typed comes from the file, or is as users of the engine have it."""

    plan: opt.PlanFile = ""
    dp: opt.DP = None
    tp: opt.TPs = "1"
    pp: opt.PPs = "1"
    cp: opt.CPs = "1"
    cp_comm: Annotated[
        str,
        Spec(
            "--cp-comm",
            PLAN,
            "How keys reach GPUs of --cp: p2p in a ring, or all_gather. Default: as the engine has it.",
            "NAME",
        ).text(),
    ] = ""
    ulysses: Annotated[
        int | None,
        Spec("--ulysses", PLAN, "GPUs of --cp that exchange heads for tokens (all-to-all) instead of keys.").number(
            most=2**20
        ),
    ] = None
    ep: opt.EPs = "1"
    etp: opt.ETP = None
    vp: opt.VPs = "1"
    micro_batch_size: opt.MicroBatches = "1"
    schedule: opt.Schedules = "1f1b"
    shard: opt.Shards = ""
    shard_group: Annotated[
        int | None, Spec("--shard-group", PLAN, "GPUs of a group of hsdp. Default: those of a node.").number(most=2**20)
    ] = None
    recompute: opt.Recomputes = "none"
    recompute_layers: opt.RecomputeLayers = None
    sequence_parallel: opt.SequenceParallel = None
    overlap_grad_reduce: opt.OverlapGradients = None
    overlap_param_gather: Annotated[
        bool | None,
        Spec(
            "--overlap-param-gather/--no-overlap-param-gather", PLAN, "Replicas gather parameters while passes run."
        ).text(),
    ] = None
    overlap_tp: Annotated[
        bool | None,
        Spec("--overlap-tp/--no-overlap-tp", PLAN, "What GPUs of --tp exchange overlaps with products.").text(),
    ] = None
    overlap_experts: Annotated[
        bool | None,
        Spec(
            "--overlap-experts/--no-overlap-experts", PLAN, "Tokens travel to experts beside another micro-batch."
        ).text(),
    ] = None
    gradient_dtype: opt.GradientDtype = "fp32"
    offload: opt.Offload = "none"


@dataclass(frozen=True, kw_only=True)
class Whole:
    """The run that a step is of."""

    tokens: Annotated[
        float, Spec("--tokens", OUTPUT, "Of a whole run: its days, cost and energy.").number(0, 1e18, "1e12")
    ] = TOKENS
    gpu_mtbf: Annotated[
        float | None,
        Spec(
            "--gpu-mtbf",
            OUTPUT,
            "Hours between faults of a GPU: checkpoints and restarts count. Default with --checkpoint or --restart: "
            "50,678, as 16,384 GPUs had.",
        ).number(1e-3, 1e12),
    ] = None
    checkpoint: Annotated[
        float, Spec("--checkpoint", OUTPUT, "Seconds that writing a checkpoint holds a run up.").number(1e-3, 1e6)
    ] = 60.0
    restart: Annotated[
        float, Spec("--restart", OUTPUT, "Seconds from a fault to the first step after it.").number(0, 1e6)
    ] = 600.0

    def run(self, typed: Given) -> WholeRun:
        """As it is given: with faults where anything of them is."""
        from neusight.distributed.faults import GPU_MTBF_H, Faults, WholeRun

        given = any(name in typed for name in ("gpu_mtbf", "checkpoint", "restart"))
        mtbf_h = GPU_MTBF_H if self.gpu_mtbf is None else self.gpu_mtbf
        faults = Faults(gpu_mtbf_h=mtbf_h, checkpoint_s=self.checkpoint, restart_s=self.restart) if given else None
        return WholeRun(tokens=self.tokens, faults=faults)


def training(
    model: opt.Decoder,
    steps: TrainedSteps,
    place: Place,
    plans: Plans,
    whole: Whole,
    models: opt.Models,
    typed: Given,
    nodes: opt.NodeCounts = "",
    trace: Annotated[
        Path | None, Spec("--trace", OUTPUT, "Write the step for ui.perfetto.dev.", "FILE.json").text()
    ] = None,
    form: opt.Format = "human",
) -> None:
    """Predict a training step of a language model on many GPUs: time, what it waits for, memory, cost.

    Lists are combined; JSON is an object for one combination, and a list where any option is one. What is left out
    is as users of the engine have it: sharding, overlap, sequence parallelism.

    Examples:

    - `neusight training gpt3-175b --cluster dgx-h100 --nodes 16 --tp 8 --pp 8 --global-batch-size 512 --seq-len 2048`

    - `neusight training llama-3.1-70b --cluster dgx-h100 --nodes 8 --tp 1,2,4,8 --pp 4 -b 256 -s 8192 --format csv`

    - `neusight training llama-3.1-8b --gpu a100-sxm-80gb --nodes 4 --network '8 x 200Gb/s' --engine fsdp -b 64`

    - `neusight training llama-3.1-70b --cluster aws-p5 --nodes 32 --plan train_llama.sh --trace step.json`
    """
    from neusight.kernels.precision import dtype_named

    opt.check_out(trace, "--trace", ".json")
    values = {"nodes": nodes, **asdict(steps), **asdict(plans)}
    given = {name: value for name, value in values.items() if name in typed and name != "plan"}
    axes = {name: _values(name, given[name]) for name in AXES if name in given}
    many = any(opt.is_list(given[name]) for name in axes)
    if trace is not None and many:
        raise typer.BadParameter("is of one step: leave out lists", param_hint="--trace")
    options = {name: value for name, value in given.items() if name not in axes}
    if "gradient_dtype" in options:
        options["gradient_dtype"] = dtype_named(plans.gradient_dtype)
    points = answer(
        model, place, axes, options, models, form=form, plan=plans.plan, many=many, whole=whole.run(typed)
    )  # fmt: skip
    if trace is not None and points[0].estimate:
        _write_trace(trace, points[0].estimate)


def _values(name: str, text: str) -> Sequence[Any]:
    option = f"--{name.replace('_', '-')}"
    return opt.listed(text, option) if name in WORDS else opt.numbers(text, option)


def answer(
    model: str,
    place: Place,
    axes: Mapping[str, Sequence[Any]],
    options: Mapping[str, Any],
    models: opt.Models,
    *,
    form: str,
    plan: str = "",
    many: bool = False,
    whole: WholeRun | None = None,
) -> list[Point[TrainingEstimate]]:
    """Estimate every combination, and show them; exit 1 where none has an estimate.

    Args:
        model: its name or file.
        place: where.
        axes: values to combine, by option.
        options: what all combinations share.
        models: what predicts.
        form: human, json or csv.
        plan: a file that says the rest.
        many: whether lists were given, be they of one.
        whole: the run that steps are of; default an undisturbed one of ``TOKENS``.

    Raises:
        NeusightError, BadParameter: what is wrong with the only combination, or with all.
    """
    from neusight.cli.show_training import show_points
    from neusight.distributed.faults import WholeRun

    shared = {**of_file(plan, model, "global_batch_size" in {*axes, *options}), **options}
    device = place.of(0).device.id
    predictor = models.load([device])

    def estimate(combination: dict[str, Any]) -> TrainingEstimate:
        fields = {**shared, **combination}
        cluster = place.of(fields.pop("nodes", 0))
        engine = fields.pop("engine", "")
        return predictor.training(predictor.training_run(model, cluster, fields, engine))

    with busy("predicting") as advance:
        points = list(combined(axes, estimate, many=many, advance=advance))
    estimates = [point.estimate for point in points if point.estimate]
    opt.note_corrections(predictor, [e.cluster.device.id for e in estimates])
    _note_unused(estimates, place)
    show_points(points, form, many, whole or WholeRun(tokens=TOKENS))
    if not estimates:
        note(f"error: none of {len(points)} combinations has an estimate: {points[0].error}")
        raise typer.Exit(1)
    return points


def of_file(plan: str, model: str, batch_given: bool) -> dict[str, Any]:
    """What ``--plan`` says; options that it cannot take in are named on stderr."""
    from neusight.plans.read import read_plan
    from neusight.workloads.decoders.known import known_decoder

    if not plan:
        return {}
    read = read_plan(plan, known_decoder(model).depth)
    if read.unread:
        note(f"warning: {plan} has options that matter and are not read: {', '.join(read.unread)}")
    return {name: value for name, value in read.fields.items() if not (batch_given and name == "micro_batches")}


_ONE_NODE = "network has no effect: there is one node"


def _note_unused(estimates: Sequence[TrainingEstimate], place: Place) -> None:
    """A line for each choice that changes nothing."""
    unused = [text for e in estimates for text in e.plan.without_effect(e.run.decoder.has_experts)]
    if place.network and estimates and all(e.cluster.nodes == 1 for e in estimates):
        unused.append(_ONE_NODE)
    if any(e.plan.overlap_tp and not e.run.engine.hidden_tp for e in estimates):
        unused.append("overlap_tp has no effect: products in pieces lose what they hide under this engine")
    if any(e.run.optimizer == "none" and e.plan.offload != "none" for e in estimates):
        unused.append("offload has no effect: optimizer is none")
    for text in dict.fromkeys(unused):
        note(f"warning: {text}")


def _write_trace(path: Path, estimate: TrainingEstimate) -> None:
    import json

    from neusight.schedule.trace import events_of, trace_of

    path.write_text(json.dumps(trace_of(events_of(estimate.schedule))))
    note(f"wrote {path}: open it at https://ui.perfetto.dev")


@dataclass(frozen=True, kw_only=True)
class OneStep(opt.TrainedStep):
    """What a step computes whose plan is looked for."""

    global_batch_size: opt.Batch


@dataclass(frozen=True, kw_only=True)
class Search:
    """Which plans are looked at."""

    count: Annotated[int, Spec("--count -n", OUTPUT, "Plans to show.").number(most=1000)] = 5
    reach: Annotated[
        float,
        Spec("--reach", PLAN, "Plans that save memory may take so many times as long as the fastest.").number(1.0, 1e6),
    ] = 1.25
    longest_micro_batch: Annotated[
        int, Spec("--longest-micro-batch", PLAN, "Sequences of one pass, at most.").number(most=4096)
    ] = 16
    schedules: Annotated[str, Spec("--schedules", PLAN, "Orders of passes to try.").words()] = "1f1b,zero-bubble,gpipe"


def plan(
    model: opt.Decoder,
    step: OneStep,
    place: Place,
    search: Search,
    models: opt.Models,
    workers: opt.Workers,
    nodes: opt.Nodes = None,
    out: Annotated[
        Path | None,
        Spec("--out", OUTPUT, "Write the best plan for `neusight training --plan`.", "FILE.toml").text(),
    ] = None,
    form: opt.Format = "human",
) -> None:
    """Find the fastest plans of a training step that fit, among all that divide model, batch and cluster.

    None is left out by a rule of thumb: each plan is bounded, and simulated where the bound does not decide.

    Examples:

    - `neusight plan gpt3-175b --cluster dgx-h100 --nodes 128 --global-batch-size 2048 --seq-len 2048`

    - `neusight plan llama-3.1-70b --cluster dgx-a100 --nodes 8 -b 256 -s 4096 --out best.toml`
    """
    from neusight.cli.output import busy
    from neusight.cli.show_training import show_plans
    from neusight.distributed.space import Space
    from neusight.plans.read import write_plan
    from neusight.steps.answers import unplanned_run

    opt.check_out(out, "--out", ".toml")
    schedules = tuple(opt.listed(search.schedules, "--schedules"))
    space = Space(schedules=schedules, longest_micro_batch=search.longest_micro_batch)
    if unknown := [word for word in space.schedules if word not in Space().schedules]:
        raise ModelError(f"unknown schedule '{unknown[0]}' of a search: one of {', '.join(Space().schedules)}")
    cluster = place.of(nodes or 0)
    options = {"seq_len": step.seq_len, "dtype": step.dtype, "optimizer": step.optimizer}
    predictor = models.load([cluster.device.id])
    run = unplanned_run(model, cluster, step.global_batch_size, options, step.engine)
    with busy("plans") as advance:
        shared = predictor.shared(**workers.keywords)
        matches = shared.plans(run, space, search.count, reach=search.reach, progress=advance)
    opt.note_corrections(predictor, [cluster.device.id])
    if place.network and cluster.nodes == 1:
        note(f"warning: {_ONE_NODE}")
    if out is not None:
        rest = {"seq_len": run.seq_len, "engine": run.engine.name, "optimizer": run.optimizer}
        write_plan(out, matches.best[0].plan, {**rest, "dtype": run.products or run.dtype})
    show_plans(matches, form)
