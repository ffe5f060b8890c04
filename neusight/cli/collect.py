"""``neusight collect``: measure the device at hand, its kernels or whole models; ``neusight sparsity``: shares of zeros
in a network's tensors, for accelerators that skip them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import typer

from neusight.cli import options as opt
from neusight.cli.commands import Commands
from neusight.cli.output import Output, busy, figures, line, note
from neusight.questions import Step
from neusight.questions.field import path, required, switch, text, whole
from neusight.questions.parts import Seeded
from neusight.questions.question import like
from neusight.quick_dataclasses import dataclass
from neusight.requests import MODES

if TYPE_CHECKING:
    from neusight.collect.session import Report
    from neusight.kernels.sparsity import OperandSparsity
from neusight.transforms.sparsity import SparsityProfile

app = Commands(no_args_is_help=False)
sparsity = Commands(help="Zeros of a network's tensors, for accelerators that skip them.")
_SHOWN = 0.005


@dataclass(frozen=True, kw_only=True)
class CollectOptions(opt.Written, opt.OnHost, opt.WithTime, opt.Formatted):
    """A data set that is measured."""

    FOLDER: ClassVar[bool] = True
    HELP: ClassVar[Mapping[str, str]] = {"out": "Folder of the data set; an interrupted collection continues."}

    @property
    def folder(self) -> Path:
        """The folder of the data set.

        Raises:
            BadParameter: it is missing.
        """
        if self.out is None:
            raise typer.BadParameter("give the folder to write", param_hint="--out")
        return self.out

    @property
    def limits(self) -> dict[str, Any]:
        """Keyword arguments of ``CollectionRequest``."""
        return {"out": self.folder, "target": self.device, "minutes": self.minutes}


@dataclass(frozen=True, kw_only=True)
class CollectKernels(opt.OfKernels, opt.Limited, Seeded, opt.OnRay, CollectOptions):
    """Kernels that are measured."""

    HELP: ClassVar[Mapping[str, str]] = {
        **CollectOptions.HELP, "families": "Kernel families, or collective. Default: all.",
        "limit": "Rows at which to stop, skipped ones too.",
    }  # fmt: skip

    plan: Path | None = path("Kernels that `neusight calibrate plan` chose, and no others.", opt.CHOICE)
    workers: int = whole("Devices side by side. Default: all GPUs, one core.", opt.WORKERS, 0, low=0, high=1024)


@dataclass(frozen=True, kw_only=True)
class CollectModels(opt.OfModels, CollectOptions):
    """Whole models that are measured."""

    HELP: ClassVar[Mapping[str, str]] = {
        **CollectOptions.HELP,
        "models": "Names of `neusight models list`, or config.json files. Default: seven usual ones.",
    }  # fmt: skip

    modes: tuple[str, ...] = text("Modes: inference, training.", opt.CHOICE, MODES, choices=MODES, listable=True)
    dtypes: tuple[str, ...] = like(
        opt.OfKernels, "dtypes", default=("float32", "bfloat16"), help="Precisions: float32, tf32, bfloat16, float16."
    )
    batches: tuple[int, ...] = whole("Batch sizes: samples of a step.", opt.CHOICE, (1, 4), listable=True)
    seq_lens: tuple[int, ...] = whole(
        "Sequence lengths: tokens of a sample. Default: each model's own.", opt.CHOICE, (), listable=True
    )
    attention: str = like(Step, "attention", default="eager")
    optimizer: str = like(Step, "optimizer")
    compiled: bool = switch("Run models through torch.compile.", opt.CHOICE)


@app.callback(invoke_without_command=True)
def kernels(context: typer.Context, options: CollectKernels) -> None:
    """Measure the device at hand, into a data set to train on and to evaluate with.

    Kernels of every family and dtype, the most informative first; whole models with `collect models`. Ctrl-C keeps
    what has been measured, and the same command goes on.

    Examples:

    - `neusight collect --out ./measured`, then `neusight evaluate ./measured/kernels/*.parquet`

    - `neusight collect --out ./measured --families gemm,attention --dtypes bfloat16 --minutes 5`

    - `neusight collect --out ./measured --plan plan.json`: what `neusight calibrate plan` chose

    - `neusight collect --out ./measured --ray auto`: every GPU of a Ray cluster
    """
    if context.invoked_subcommand is not None:
        return
    if options.plan is not None and (options.families or options.dtypes):
        raise typer.BadParameter("the plan says which kernels: leave out --families and --dtypes", param_hint="--plan")
    from neusight.collect.kernels import collect_kernels
    from neusight.collect.session import CollectionRequest

    request = CollectionRequest(
        **options.limits, limit=options.limit, workers=options.workers, ray=options.ray or None, seed=options.seed,
        plan=options.plan,
    )  # fmt: skip
    with measuring(options.folder) as progress:
        report = collect_kernels(request, list(options.families), opt.precisions(options.dtypes), progress)
    show(report, options.form)


@contextmanager
def measuring(out: Path) -> Iterator[Callable[[int, int | None, float], None]]:
    """Show a line with the time left; an interruption reports how to continue."""

    try:
        with busy("measuring", "at most") as advance:
            yield lambda done, of, left_s: advance(done, of or 0, f"{left_s // 60:.0f}:{left_s % 60:02.0f} left")
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"what was measured is kept in {out}; the same command goes on") from None


def show(report: Report, form: str) -> None:
    """Show the report of a collection, and the next command."""

    def human() -> None:
        rate = 60.0 * report.new / report.seconds
        line(f"{report.folder}: {report.rows:,} rows of {', '.join(report.gpus)}, {report.skipped:,} skipped")
        line(f"{report.suspect:,} suspect, {report.new:,} new in {report.seconds:.0f} s, {rate:.0f} a minute")
        if report.lost_workers:
            note(f"warning: {report.lost_workers} processes were lost and replaced")
        note(f"next: neusight datasets verify {report.folder}")

    row = {**asdict(report), "folder": str(report.folder), "gpus": list(report.gpus)}
    Output(form).data(row, [row], human)


@app.command()
def models(options: CollectModels) -> None:
    """Measure whole models with random weights, the cheapest first: forward, backward and optimizer, peak memory.

    Steps that do not fit or that the device cannot run are skipped, with the reason.

    Examples:

    - `neusight collect models --out ./measured --minutes 30`

    - `neusight collect models --out ./measured --models bert-large --attention sdpa --optimizer adamw`

    - `neusight evaluate ./measured/steps/steps.parquet`
    """
    from neusight.collect.models import ModelGrid, collect_models, model_plan, usual_plan
    from neusight.collect.session import CollectionRequest

    grid = ModelGrid(
        modes=list(options.modes), dtypes=opt.precisions(options.dtypes), batches=list(options.batches),
        seq_lens=list(options.seq_lens) or [None], attention=options.attention,
        optimizer=options.optimizer, compiled=options.compiled,
    )  # fmt: skip
    tasks = model_plan(list(options.models), grid) if options.models else usual_plan(grid)
    request = CollectionRequest(**options.limits)
    with measuring(options.folder) as advance:
        report = collect_models(request, tasks, advance)
    show(report, options.form)


@dataclass(frozen=True, kw_only=True)
class SparsityOptions(opt.Written, Seeded, opt.Formatted):
    """The training steps whose zeros are counted."""

    HELP: ClassVar[Mapping[str, str]] = {"out": "File of the profile (.json)."}

    model: str = like(Step, "model", listable=False)
    batch: int = like(Step, "batch", default=2, listable=False)
    seq_len: int | None = like(Step, "seq_len", listable=False)
    image_size: int | None = like(
        Step, "image_size", kind="whole", metavar="N", help="Edge of square images in pixels. Default: the model's own."
    )
    measured_steps: int = whole(
        "Training steps that are measured, after the updates.", opt.CHOICE, 2, high=1000, former=("steps",)
    )
    updates: tuple[int, ...] = whole(
        "Updates of the weights before; profiles after fewer are written next to --out.",
        opt.CHOICE, (3,), low=0, high=100_000, listable=True,
    )  # fmt: skip
    data: str = text(
        "Images of training: synthetic ones, or handwritten digits with their classes.",
        opt.CHOICE, "noise", choices=("noise", "digits"),
    )  # fmt: skip
    prune: str = text("Weights to set to zero first: `0.8` by magnitude, or `2:4`.", opt.CHOICE, metavar="RATE|N:M")


@sparsity.command()
def measure(options: SparsityOptions) -> None:
    """Measure the zeros of each layer's activations, gradients and weights in real training steps on this CPU.

    The network starts from random weights and trains on synthetic inputs, on the digits that scikit-learn ships, or
    on what its own method `samples` draws: the profile says so. Text models take 128 tokens a sample unless `--seq-len`
    is given.

    Examples:

    - `neusight sparsity measure alexnet --out alexnet.json`

    - `neusight sparsity measure resnet-50 --image-size 128 --measured-steps 1 --prune 2:4`

    - `neusight sparsity measure opt-125m --batch 1 --seq-len 64 --format csv`

    - `neusight sparsity measure vgg16 --batch 16 --image-size 64 --data digits --updates 20,400 --out vgg16.json`
    """
    from neusight.collect.sparsity import measure_course as measured
    from neusight.collect.sparsity import pruning

    out = options.out
    how = pruning(options.prune) if options.prune else None
    with busy(f"training {options.model}") as report:
        profiles = measured(
            options.model, options.batch, inputs=None if options.data == "noise" else options.data,
            seq_len=options.seq_len, image_size=options.image_size, steps=options.measured_steps,
            updates=list(options.updates), seed=options.seed, pruning=how, progress=report,
        )  # fmt: skip
    *earlier, last = profiles
    if out is not None:
        for count in earlier:
            profiles[count].save(out.with_stem(f"{out.stem}-after-{count}"))
        note(f"next: neusight sparsity show {profiles[last].save(out)}")
    _show_profile(profiles[last], options.form)


@dataclass(frozen=True, kw_only=True)
class ProfileOptions(opt.Formatted):
    """A profile of zeros."""

    file: Path = required("File that `neusight sparsity measure --out` wrote.", "", kind="path")


@sparsity.command("show")
def show_profile(profile: ProfileOptions) -> None:
    """Show a profile: share of zeros and how much they keep together, by layer and tensor.

    Example: `neusight sparsity show alexnet.json`
    """
    from neusight.transforms.sparsity import SparsityProfile

    _show_profile(SparsityProfile.load(profile.file), profile.form)


def _show_profile(profile: SparsityProfile, form: str) -> None:
    from neusight.transforms.sparsity import OPERANDS

    layers = {**profile.layers, "(all others)" if profile.layers else "(all)": profile.default}
    zeros = {name: {operand: getattr(layer, operand) for operand in OPERANDS} for name, layer in layers.items()}

    def human() -> None:
        line(f"{profile.model or 'any model'}: {profile.source}")
        line("Share of zeros / clustering: 0 independent, 1 groups of zeros alone or of none.")
        cells = [{"layer": name, **{key: _cell(z) for key, z in operands.items()}} for name, operands in zeros.items()]
        figures(" | ".join(["~layer", *(f">{name}" for name in OPERANDS)]), cells)

    rows = [{"layer": name, **_columns(operands)} for name, operands in zeros.items()]
    Output(form).data(asdict(profile), rows, human)


def _cell(zeros: OperandSparsity) -> str:
    if not zeros.sparsity:
        return "0"
    # What shows as 0.00 is no more than the noise of the streams drawn.
    together = f"{zeros.clustering:.2f} {zeros.cluster}" if zeros.clustering >= _SHOWN else "0"
    return f"{zeros.sparsity:.3f} / {together}"


def _columns(operands: dict[str, OperandSparsity]) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for name, zeros in operands.items():
        columns |= {name: zeros.sparsity, f"{name}_clustering": zeros.clustering, f"{name}_cluster": zeros.cluster}
    return columns
