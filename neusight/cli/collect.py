"""``neusight collect``: measure the device at hand, its kernels or whole models; ``neusight sparsity``: how many zeros
a network's tensors hold, for accelerators that skip them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from neusight.cli.commands import Commands
from neusight.cli.options import (
    Attention,
    Batch,
    Format,
    Model,
    Optimizer,
    Seed,
    SeqLen,
    listed,
    named_dtypes,
    named_modes,
    numbers,
)

if TYPE_CHECKING:
    from neusight.collect.session import Report
    from neusight.kernels.sparsity import OperandSparsity
from neusight.transforms.sparsity import SparsityProfile

app = Commands(no_args_is_help=False)
sparsity = Commands(help="Zeros of a network's tensors, for accelerators that skip them.")
_SHOWN = 0.005


@app.callback(invoke_without_command=True)
def kernels(
    context: typer.Context,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the data set; an interrupted one is gone on with.")
    ] = None,
    device: Annotated[
        Literal["cuda", "cpu"], typer.Option(help="GPUs (ROCm's too), or a core as a stand-in.")
    ] = "cuda",
    families: Annotated[
        str, typer.Option(metavar="NAME[,NAME…]", help="Kernel families, or collective; default: all.")
    ] = "",
    dtypes: Annotated[
        str, typer.Option(metavar="DTYPE[,DTYPE…]", help="bfloat16, float32, float16, tf32, float8; default: all.")
    ] = "",
    minutes: Annotated[float, typer.Option(help="Time for measuring; any is enough for a balanced set.")] = 20.0,
    plan: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Kernels that `neusight calibrate plan` chose, and no others.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, max=10**9, help="Rows, skipped ones too, at which to stop before.")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=0, max=1024, help="Devices side by side; default: all GPUs, one core.")
    ] = 0,
    ray: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Ray cluster: auto, host:port, or local.")] = None,
    seed: Seed = 0,
    form: Format = "human",
) -> None:
    """Measure the device at hand, into a data set to train on and to evaluate with.

    Kernels of every family and dtype, the most informative first; whole models with `collect models`. Ctrl-C keeps
    what has been measured, and the same command goes on.

    Examples:

    - `neusight collect --out ./measured`, then `neusight evaluate kernels ./measured`

    - `neusight collect --out ./measured --families gemm,attention --dtypes bfloat16 --minutes 5`

    - `neusight collect --out ./measured --plan plan.json`: what `neusight calibrate plan` chose

    - `neusight collect --out ./measured --ray auto`: every GPU of a Ray cluster
    """
    if context.invoked_subcommand is not None:
        return
    if out is None:
        raise typer.BadParameter("give the folder to write", param_hint="--out")
    if plan is not None and (families or dtypes):
        raise typer.BadParameter("the plan says which kernels: leave out --families and --dtypes", param_hint="--plan")
    from neusight.collect.kernels import collect_kernels
    from neusight.collect.session import CollectionRequest
    from neusight.paths import writable

    writable(out, folder=True)
    request = CollectionRequest(
        out=out, target=device, minutes=minutes, limit=limit, workers=workers, ray=ray, seed=seed, plan=plan
    )
    chosen_families = listed(families, "--families") if families else []
    chosen_dtypes = named_dtypes(dtypes, "--dtypes") if dtypes else []
    with measuring(out) as progress:
        report = collect_kernels(request, chosen_families, chosen_dtypes, progress)
    show(report, form)


@contextmanager
def measuring(out: Path) -> Iterator[Callable[[int, int | None, float], None]]:
    """A bar with the time left; an interruption says how to go on."""
    from neusight.cli.output import countdown

    try:
        with countdown("measuring") as advance:
            yield advance
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"what was measured is kept in {out}; the same command goes on") from None


def show(report: Report, form: str) -> None:
    """What came of a collection, and what to do with it."""
    from neusight.cli.output import Output, line, note

    def human() -> None:
        rate = 60.0 * report.new / report.seconds
        line(f"{report.folder}: {report.rows:,} rows of {', '.join(report.gpus)}, {report.skipped:,} skipped")
        line(f"{report.new:,} new in {report.seconds:.0f} s, {rate:.0f} a minute")
        if report.lost_workers:
            note(f"warning: {report.lost_workers} processes were lost and replaced")
        note(f"next: neusight datasets verify {report.folder}")

    row = {**asdict(report), "folder": str(report.folder), "gpus": list(report.gpus)}
    Output(form).data(row, [row], human)


@app.command()
def models(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of the data set; an interrupted one is gone on with.")
    ],
    device: Annotated[Literal["cuda", "cpu"], typer.Option(help="Where models run.")] = "cuda",
    names: Annotated[
        str,
        typer.Option(
            "--models",
            metavar="MODEL[,MODEL…]",
            help="Of `neusight models list`, or config.json files; default: seven usual ones.",
        ),
    ] = "",
    modes: Annotated[str, typer.Option(metavar="MODE[,MODE]", help="inference, training.")] = "inference,training",
    dtypes: Annotated[
        str, typer.Option(metavar="DTYPE[,DTYPE…]", help="float32, tf32, bfloat16, float16.")
    ] = "float32,bfloat16",
    batches: Annotated[str, typer.Option(metavar="N[,N…]", help="Samples a step.")] = "1,4",
    seq_lens: Annotated[str, typer.Option(metavar="N[,N…]", help="Tokens a sample; default: each model's own.")] = "",
    attention: Attention = "eager",
    optimizer: Optimizer = "none",
    compiled: Annotated[bool, typer.Option("--compiled", help="Run models through torch.compile.")] = False,
    minutes: Annotated[float, typer.Option(help="Time for measuring; the same command goes on.")] = 20.0,
    form: Format = "human",
) -> None:
    """Measure whole models with random weights, the cheapest first: forward, backward and optimizer, peak memory.

    Steps that do not fit or that the device cannot run are skipped, with the reason.

    Examples:

    - `neusight collect models --out ./measured --minutes 30`

    - `neusight collect models --out ./measured --models bert-large --attention sdpa --optimizer adamw`

    - `neusight evaluate models ./measured/models/latency.parquet --configs ./measured/models/configs`
    """
    from neusight.collect.models import ModelGrid, collect_models, model_plan, usual_plan
    from neusight.collect.session import CollectionRequest
    from neusight.paths import writable

    writable(out, folder=True)
    grid = ModelGrid(
        modes=named_modes(modes, "--modes"),
        dtypes=named_dtypes(dtypes, "--dtypes"),
        batches=numbers(batches, "--batches"),
        seq_lens=numbers(seq_lens, "--seq-lens") if seq_lens else [None],
        attention=attention or "eager",
        optimizer=optimizer,
        compiled=compiled,
    )
    tasks = model_plan(listed(names, "--models"), grid) if names else usual_plan(grid)
    request = CollectionRequest(out=out, target=device, minutes=minutes)
    with measuring(out) as advance:
        report = collect_models(request, tasks, advance)
    show(report, form)


@sparsity.command()
def measure(
    model: Model,
    batch: Batch = 2,
    seq_len: SeqLen = None,
    image_size: Annotated[
        int | None, typer.Option(metavar="PIXELS", max=100_000, help="Edge of an image; default: the model's own.")
    ] = None,
    steps: Annotated[int, typer.Option(max=1000, help="Training steps to read, after the updates.")] = 2,
    updates: Annotated[
        str,
        typer.Option(metavar="N[,N…]", help="Updates of the weights before; the profiles after fewer go beside FILE."),
    ] = "3",
    data: Annotated[
        Literal["noise", "digits"],
        typer.Option(help="Images to train on: synthetic ones, or handwritten digits with their classes."),
    ] = "noise",
    seed: Seed = 0,
    prune: Annotated[
        str, typer.Option(metavar="RATE|N:M", help="Weights to set to zero first: `0.8` by magnitude, or `2:4`.")
    ] = "",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the profile (.json).")] = None,
    form: Format = "human",
) -> None:
    """Measure the zeros of each layer's activations, gradients and weights in real training steps on this CPU.

    The network starts from random weights and trains on synthetic inputs, on the digits that scikit-learn ships, or
    on what its own method `samples` draws: the profile says so. Text models take 128 tokens a sample unless `--seq-len`
    is given.

    Examples:

    - `neusight sparsity measure alexnet --out alexnet.json`

    - `neusight sparsity measure resnet-50 --image-size 128 --steps 1 --prune 2:4`

    - `neusight sparsity measure opt-125m --batch 1 --seq-len 64 --format csv`

    - `neusight sparsity measure vgg16 --batch 16 --image-size 64 --data digits --updates 20,400 --out vgg16.json`
    """
    from neusight.cli.output import busy, note
    from neusight.collect.sparsity import measure_course as measured
    from neusight.collect.sparsity import pruning
    from neusight.paths import writable

    if out is not None:
        writable(out)
    how = pruning(prune) if prune else None
    counts = numbers(updates, "--updates", 100_000, least=0)
    with busy(f"training {model}") as report:
        profiles = measured(
            model, batch, inputs=None if data == "noise" else data, seq_len=seq_len, image_size=image_size,
            steps=steps, updates=counts, seed=seed, pruning=how, progress=report,
        )  # fmt: skip
    *earlier, last = profiles
    if out is not None:
        for count in earlier:
            profiles[count].save(out.with_stem(f"{out.stem}-after-{count}"))
        note(f"next: neusight sparsity show {profiles[last].save(out)}")
    _show_profile(profiles[last], form)


@sparsity.command("show")
def show_profile(
    file: Annotated[Path, typer.Argument(help="What `neusight sparsity measure --out` wrote.")],
    form: Format = "human",
) -> None:
    """Show a profile: share of zeros and how much they keep together, by layer and tensor.

    Example: `neusight sparsity show alexnet.json`
    """
    from neusight.transforms.sparsity import SparsityProfile

    _show_profile(SparsityProfile.load(file), form)


def _show_profile(profile: SparsityProfile, form: str) -> None:
    from neusight.cli.output import Column, Output, line, table
    from neusight.transforms.sparsity import OPERANDS

    layers = {**profile.layers, "(all others)" if profile.layers else "(all)": profile.default}
    operands = {name: [getattr(layer, operand) for operand in OPERANDS] for name, layer in layers.items()}

    def human() -> None:
        line(f"{profile.model or 'any model'}: {profile.source}")
        line("Share of zeros / clustering: 0 independent, 1 groups of zeros alone or of none.")
        columns = [Column("layer", wrap=True), *(Column(name, right=True) for name in OPERANDS)]
        table(columns, ((name, *map(_cell, each)) for name, each in operands.items()))

    rows = [{"layer": name, **_columns(dict(zip(OPERANDS, each, strict=True)))} for name, each in operands.items()]
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
