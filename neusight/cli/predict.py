"""``neusight predict``: how long a step of a model takes, and how that looks on a screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from neusight.cli import options as opt
from neusight.cli.commands import Given, Point, check_answers, combined
from neusight.cli.options import DEVICE, ENGINE, OUTPUT, PLAN, STEP, Spec
from neusight.cli.output import Output, bar, busy, headline, line, note, paragraph, table
from neusight.defaults import words_of
from neusight.quick_dataclasses import dataclass
from neusight.units import decimal, gib, milliseconds

if TYPE_CHECKING:
    from neusight.estimates import Estimate
    from neusight.requests import Plan

_TOP = 12
"""Rows of operators and kernels that are shown."""
_SMALL_ERROR = 0.005
"""Errors below this share of the latency are not worth a word."""
_NOTHING = 1e-6
"""Share of the latency below which a phase is rounding."""
_ON_CLUSTERS = (
    *("model", "mode", "batch", "seq_len", "optimizer", "dtype", "cluster", "nodes", "dp", "tp", "pp", "vp"),
    *(
        "micro_batch_size",
        "schedule",
        "shard",
        "recompute",
        "recompute_layers",
        "sequence_parallel",
        "overlap_grad_reduce",
    ),
    *("overrides", "prices", "tile_models", "calibration", "form"),
)
"""Options that count with ``--cluster``; ``neusight training`` has more."""


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """What runs."""

    mode: opt.Mode = "inference"
    batch: opt.Batch = 1
    seq_len: opt.SeqLen = None
    image_size: opt.ImageSize = None
    frames: opt.Frames = None
    seconds: opt.Seconds = None
    steps: opt.Steps = None
    given: opt.GivenInputs = field(default_factory=list)
    share: opt.Shares = field(default_factory=list)
    optimizer: opt.Optimizer = "none"
    fused_optimizer: Annotated[
        bool, Spec("--fused-optimizer", STEP, "The optimizer updates all parameters in one pass.").text()
    ] = False
    grad_scaler: Annotated[
        bool, Spec("--grad-scaler", STEP, "Gradients are scaled back before the update, as float16 needs.").text()
    ] = False

    @property
    def options(self) -> dict[str, Any]:
        """As ``Predictor.estimate`` takes them."""
        return vars(self) | {"share": opt.shares(self.share)}


@dataclass(frozen=True, kw_only=True)
class Execution:
    """In which precision, and by which software."""

    dtype: opt.Dtype = ""
    attention: opt.Attention = None
    compiled: Annotated[bool, Spec("--compile", ENGINE, "As torch.compile runs it, with fused kernels.").text()] = False
    cuda_graph: Annotated[bool, Spec("--cuda-graph", ENGINE, "Compiled, and launched as one CUDA graph.").text()] = (
        False
    )
    layout: Annotated[
        Literal["nchw", "nhwc"],
        Spec("--layout", ENGINE, "Of images in memory; nhwc is PyTorch's channels_last.").text(),
    ] = "nchw"
    allow_fallback: Annotated[
        bool, Spec("--allow-fallback", ENGINE, "Estimate operators without a rule as data movement, visibly.").text()
    ] = False

    @property
    def options(self) -> dict[str, Any]:
        """As ``Predictor.estimate`` takes them."""
        launch = "graph" if self.cuda_graph else "compiled" if self.compiled else "eager"
        same = {"attention": self.attention, "layout": self.layout, "allow_fallback": self.allow_fallback}
        return {"dtype": self.dtype or None, "launch": launch, **same}


@dataclass(frozen=True, kw_only=True)
class Target:
    """On what it runs."""

    gpu: opt.Gpus = ""
    overrides: opt.Overrides = field(default_factory=list)
    prices: opt.Prices = None
    sparsity: opt.Sparsity = ""
    simulate: Annotated[
        bool, Spec("--simulate", DEVICE, "On such a device, run its scheduler instead of its tile model.").text()
    ] = False
    compression: Annotated[
        bool, Spec("--compression", DEVICE, "On such a device, zeros do not travel to and from DRAM.").text()
    ] = False

    @property
    def options(self) -> dict[str, Any]:
        """As ``Predictor.estimate`` takes them."""
        names = ("simulate", "compression")
        return {name: getattr(self, name) for name in names} | {"sparsity": self.sparsity or None}


@dataclass(frozen=True, kw_only=True)
class StepSharing(opt.SharedStep):
    """How several GPUs share it."""

    overlap_grad_reduce: opt.OverlapGradients = None
    tp_plan: Annotated[
        list[str],
        Spec(
            "--tp-plan",
            PLAN,
            "How --tp splits products, where not as the model's structure tells: `*.c_fc=colwise`. May be repeated.",
            "MODULE=STYLE",
        ).text(),
    ] = field(default_factory=list)
    cluster: opt.Cluster = ""
    nodes: opt.Nodes = None

    def plan(self, batch: int, *, training: bool) -> Plan | None:
        """The plan for ``batch`` samples a step, see ``Plan.of_step``."""
        from neusight.requests import Plan

        degrees = ("dp", "tp", "pp", "vp", "micro_batch_size", "schedule", "shard", "recompute", "recompute_layers")
        names = (*degrees, "sequence_parallel", "overlap_grad_reduce")
        return Plan.of_step(batch, training=training, **{name: getattr(self, name) for name in names})


def predict(
    model: opt.Model,
    step: StepOptions,
    execution: Execution,
    target: Target,
    sharing: StepSharing,
    models: opt.Models,
    typed: Given,
    by: Annotated[
        Literal["operator", "phase", "kernel"], Spec("--by", OUTPUT, "Rows of the table, and of CSV.").text()
    ] = "operator",
    form: opt.Format = "human",
) -> None:
    """Predict the latency of one step of a model on GPUs.

    JSON is an object for one GPU, and a list where `--gpu` is one: `l4,t4`, or `l4,` for a list of one.

    Examples:

    - `neusight predict gpt2-large --gpu l4 --mode training --batch 1`

    - `neusight predict llama-2-7b --gpu a100,h100 --dtype bf16 --seq-len 1024`

    - `neusight predict vgg16 --gpu a100-sxm-40gb,tensordash --mode training --sparsity activations=0.6,gradients=0.5`

    - `neusight predict ./whisper/config.json --gpu l4 --seconds 30 --input decoder_input_ids=1x64:int64`

    - `neusight predict gpt2-large --gpu a100 --compile`

    - `neusight predict timm:convnext_tiny@288 --gpu a100 --dtype amp --layout nhwc --batch 64`

    - `neusight predict gpt2-large --gpu a100 --mode training --optimizer adam --tp 4 --batch 8`

    - `neusight predict ./config.json --gpu h100-sxm-80gb --set dram_bandwidth=4.8TB/s --format json`

    - `neusight predict gpt3-175b --mode training --cluster dgx-a100 --nodes 8 --tp 8 --pp 8 --batch 512`
    """
    question = StepCommand(
        model=model, step=step, execution=execution, target=target, sharing=sharing, models=models, typed=typed
    )
    if sharing.cluster:
        question.answer_on_cluster(form)
        return
    if sharing.tp == 1:
        typed.refuse(["tp_plan"], "says how --tp splits products: give --tp of 2 or more")
    typed.refuse(["nodes"], "counts the nodes of a cluster: name it with --cluster")
    if not target.gpu:
        raise typer.BadParameter("names no GPU: give ids of `neusight devices list`", param_hint="--gpu")
    show_estimates(question.points(), by, form, opt.is_list(target.gpu))


@dataclass(frozen=True, kw_only=True)
class StepCommand:
    """All that a command line says of a step."""

    model: str
    step: StepOptions
    execution: Execution
    target: Target
    sharing: StepSharing
    models: opt.Models
    typed: Given

    def points(self) -> list[Point[Estimate]]:
        """An estimate for each GPU, or why there is none."""
        step, target = self.step, self.target
        gpus = opt.devices(target.gpu, target.overrides, target.prices)
        opt.check_optimizer(step.optimizer, [step.mode])
        plan = self.sharing.plan(step.batch, training=step.mode == "training")
        options = step.options | self.execution.options | target.options
        options |= {"plan": plan, "tp_plan": opt.pairs(self.sharing.tp_plan, "--tp-plan") or None}
        if plan:
            options["batch"] = 1
        predictor = self.models.load(gpus)

        def estimate(combination: dict[str, Any]) -> Estimate:
            return predictor.estimate(self.model, combination["gpu"], **options)

        with busy(f"predicting {self.model}") as advance:
            return list(combined({"gpu": gpus}, estimate, many=len(gpus) > 1, advance=advance))

    def answer_on_cluster(self, form: str) -> None:
        """As ``neusight training`` answers these options."""
        from neusight.cli.commands import Asked
        from neusight.cli.training import answer
        from neusight.questions import Training

        step, sharing, typed = self.step, self.sharing, self.typed
        if step.mode != "training":
            raise typer.BadParameter("is for training: add --mode training", param_hint="--cluster")
        typed.refuse(["gpu"], "is named by --cluster, which has its own GPUs: leave it out")
        typed.refuse(sorted(typed - set(_ON_CLUSTERS)), "has no meaning with --cluster: leave it out")
        values = {**vars(step), "dtype": self.execution.dtype, **vars(sharing), **vars(self.target)}
        words = {name: value for name, value in values.items() if name in typed and name != "mode"}
        answer(Asked(Training, {"model": self.model, "batch": step.batch, **words}), self.models, form)


def show_estimates(points: Sequence[Point[Estimate]], by: str, form: str, many: bool) -> None:
    """One estimate in full; several side by side. JSON holds everything, CSV the rows that ``by`` chooses.

    ``many`` says that a list was given, be it of one. Devices without an estimate are named on stderr.
    """
    from neusight.estimates.report import report

    check_answers(points, "gpu")
    estimates = [point.estimate for point in points if point.estimate]
    for warning in dict.fromkeys(text for estimate in estimates for text in estimate.warnings):
        note(f"warning: {warning}")
    single = estimates[0] if len(points) == 1 else None
    failed = [{"gpu": point.options["gpu"].id, "error": point.error} for point in points if point.error]
    data = [report(e) for e in estimates] + failed if many else report(estimates[0])
    rows = [{"model": e.model, "gpu": e.gpu, **row} for e in estimates for row in _rows(e, by)]
    Output(form).data(data, rows, lambda: _full(single, by) if single else _side_by_side(estimates))


def _rows(estimate: Estimate, by: str) -> list[dict[str, Any]]:
    from neusight.estimates.report import KERNEL_COLUMNS, OPERATOR_COLUMNS, columns, costliest

    if by == "kernel":
        return [columns(row, KERNEL_COLUMNS) for row in costliest(estimate)]
    if by == "operator":
        return [columns(row, OPERATOR_COLUMNS) for row in estimate.by_operator]
    return [{"phase": phase, "latency_s": seconds} for phase, seconds in estimate.by_phase.items()]


def _full(estimate: Estimate, by: str) -> None:
    _headline(estimate)
    _phases(estimate)
    if by != "phase":
        line()
        (_operators if by == "operator" else _kernels)(estimate)
    line()
    _memory(estimate)
    _origin(estimate)


def _headline(e: Estimate) -> None:
    length = f", sequence {e.seq_len}" if e.seq_len else ""
    optimizer = f", {e.optimizer}" if e.optimizer != "none" else ""
    attention = f", {e.attention} attention" if e.attention != "eager" else ""
    gpu = e.gpu if e.devices == 1 else f"{e.devices} x {e.gpu}"
    headline(f"{e.model} on {gpu}: {e.mode}, batch {e.batch}{length}, {e.dtype}{attention}{optimizer}")
    paragraph("step", e.unit)
    paragraph("inputs", " ".join(e.inputs))
    paragraph("assumed", words_of(e.assumed))
    paragraph("latency", f"{milliseconds(e.latency_s)}  (90 %: {milliseconds(e.low_s)} to {milliseconds(e.high_s)})")
    errors = sorted(((size, source) for source, size in e.errors.items() if size >= _SMALL_ERROR), reverse=True)
    paragraph("error", f"{', '.join(f'{source} {size:.0%}' for size, source in errors)} (standard deviations)")
    tokens = f", {e.tokens_per_s:,.0f} tokens/s" if e.tokens_per_s else ""
    paragraph("throughput", f"{decimal(e.samples_per_s)} samples/s{tokens}")
    share = e.bound_s / e.latency_s if e.latency_s else 0.0
    paragraph("bound", f"no faster than {milliseconds(e.bound_s)} ({share:.0%} of the latency)")
    paragraph("limited by", e.limiter)
    if (energy := e.board_energy) is not None:
        parts = {"idle": energy.idle_j, **e.energy_j}
        listed = ", ".join(f"{name} {decimal(joules)}" for name, joules in parts.items() if joules)
        paragraph(
            "energy",
            f"{decimal(energy.expected_j)} J (90 %: {decimal(energy.low_j)} to {decimal(energy.high_j)}): {listed}",
        )


def _phases(e: Estimate) -> None:
    for title, times in (("phase", e.by_phase), ("part", e.by_part)):
        shown = [(name, s) for name, s in times.items() if s > _NOTHING * e.latency_s]
        if shown:
            cells = ((name, milliseconds(s), *_share(s / e.latency_s)) for name, s in shown)
            line()
            table((title, ">latency", ">share", ""), cells)


def _operators(e: Estimate) -> None:
    rows = e.by_operator
    cells = (
        (_short(r.operator), r.phase, decimal(r.count, 6), milliseconds(r.latency_s), *_share(r.share), r.limiter)
        for r in rows[:_TOP]
    )
    table(("operator", "phase", ">count", ">latency", ">share", "", "limited by"), cells)
    _more(len(rows), "operators", sum(r.share for r in rows[_TOP:]))


def _short(operator: str) -> str:
    """``aten.addmm.default`` as ``addmm``."""
    return operator.removeprefix("aten.").removesuffix(".default")


def _kernels(e: Estimate) -> None:
    from neusight.estimates.report import costliest

    rows = costliest(e)
    cells = (
        (
            *(r.kernel, decimal(r.count, 6), milliseconds(r.latency_s), f"{r.total_s / e.latency_s:.1%}"),
            *(f"{r.utilisation:.0%}", r.tile, r.limiter),
        )
        for r in rows[:_TOP]
    )
    table(("~kernel", ">count", ">each", ">share", ">of peak", "tile", "limited by"), cells)
    _more(len(rows), "kernels", sum(r.total_s for r in rows[_TOP:]) / e.latency_s)


def _more(count: int, what: str, share: float) -> None:
    if count > _TOP:
        line(f"… and {count - _TOP} more {what} ({share:.1%}); --format csv lists all")


def _share(share: float) -> tuple[str, str]:
    return f"{share:.1%}", bar(share)


def _memory(e: Estimate) -> None:
    parts = ", ".join(f"{name} {gib(size)}" for name, size in e.memory.parts.items() if size)
    reserve = f"{gib(e.memory.reserve)} kept for context and allocator"
    paragraph("memory", str(e.fit), f"{parts}; {reserve}")


_ORIGINS = {
    "trained": "from kernels like these that were measured",
    "transferred": "from measured kernels of other kinds or dtypes",
    "fallback": "a lower bound alone",
}


def _origin(e: Estimate) -> None:
    covered = ", ".join(f"{share:.1%} {_ORIGINS[name]}" for name, share in e.coverage.items() if share)
    known = "were" if e.gpu in e.provenance.training_gpus else "were not"
    texts = [f"{covered} (share of the latency)", f"kernels of {e.gpu} {known} among them"]
    texts += [f"corrected by {e.provenance.calibration}"] if e.provenance.calibration else []
    texts += [f"zeros: {e.provenance.sparsity}"] if e.provenance.sparsity else []
    paragraph("based on", *texts, f"neusight {e.provenance.neusight}")


def _side_by_side(estimates: Sequence[Estimate]) -> None:
    first = estimates[0]
    line(f"{first.model}: {first.mode}, batch {first.batch}, sequence {first.seq_len or '-'}, {first.dtype}")
    paragraph("assumed", words_of(first.assumed))
    paragraph("step", first.unit)
    slowest = max(e.latency_s for e in estimates)
    titles = ("gpu", ">latency", ">90 % interval", "", ">samples/s", "limited by", "fits")
    table(titles, (_cells(e, slowest) for e in estimates))


def _cells(e: Estimate, slowest: float) -> tuple[str, ...]:
    latency, low, high = (milliseconds(value) for value in (e.latency_s, e.low_s, e.high_s))
    share = bar(e.latency_s / slowest, 6)
    return e.gpu, latency, f"{low} - {high}", share, decimal(e.samples_per_s), e.limiter, "yes" if e.fits else "NO"
