"""``neusight sparsity``: how many zeros a network's tensors hold, for accelerators that skip them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neusight.cli.options import Format, SeqLen

if TYPE_CHECKING:
    from neusight.transforms.sparsity import OperandSparsity, SparsityProfile

app = typer.Typer(no_args_is_help=True, help="Zeros of a network's tensors, for accelerators that skip them.")
_SHOWN = 0.005


@app.command()
def measure(
    model: Annotated[
        str, typer.Argument(help="A name of `neusight workloads list`, a config.json, or package.module:function.")
    ],
    batch: Annotated[int, typer.Option("--batch", "-b", help="Samples a step.")] = 2,
    seq_len: SeqLen = None,
    image_size: Annotated[
        int | None, typer.Option(metavar="PIXELS", help="Edge of an image; default: the model's own.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Training steps to read, after 3 updates.")] = 2,
    seed: Annotated[int, typer.Option(help="Of weights, inputs, targets and dropout.")] = 0,
    prune: Annotated[
        str, typer.Option(metavar="RATE|N:M", help="Weights to set to zero first: `0.8` by magnitude, or `2:4`.")
    ] = "",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the profile (.json).")] = None,
    form: Format = "human",
) -> None:
    """Measure the zeros of each layer's activations, gradients and weights in real training steps on this CPU.

    The network starts from random weights and trains on synthetic inputs: the profile says so. Text models take 128
    tokens a sample unless `--seq-len` is given.

    Examples:

    - `neusight sparsity measure alexnet --out alexnet.json`

    - `neusight sparsity measure resnet-50 --image-size 128 --steps 1 --prune 2:4`

    - `neusight sparsity measure opt-125m --batch 1 --seq-len 64 --format csv`
    """
    from neusight.cli.output import note, progress
    from neusight.collect.sparsity import measure as measured
    from neusight.collect.sparsity import pruning

    how = pruning(prune) if prune else None
    with progress(f"training {model}") as report:
        profile = measured(
            model, batch, seq_len=seq_len, image_size=image_size, steps=steps, seed=seed, pruning=how, progress=report
        )
    if out is not None:
        note(f"next: neusight sparsity show {profile.save(out)}")
    _show(profile, form)


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="What `neusight sparsity measure --out` wrote.")],
    form: Format = "human",
) -> None:
    """Show a profile: share of zeros and how much they keep together, by layer and tensor.

    Example: `neusight sparsity show alexnet.json`
    """
    from neusight.transforms.sparsity import SparsityProfile

    _show(SparsityProfile.load(file), form)


def _show(profile: SparsityProfile, form: str) -> None:
    from dataclasses import asdict

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
