"""Options that several commands share, spelled once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Format = Annotated[Literal["human", "json", "csv"], typer.Option("--format", "-f", help="How data appears on stdout.")]
Gpus = Annotated[
    str,
    typer.Option(
        "--gpu", "-g", metavar="ID[,ID…]", help="Ids of `neusight devices list`, driver names, or device files (.toml)."
    ),
]
Overrides = Annotated[
    list[str],
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change a figure of the device: `--set dram_bandwidth=4.8TB/s`. Repeatable."
    ),
]
TileModels = Annotated[
    Path | None,
    typer.Option("--tile-models", metavar="DIR", help="Folder that `neusight train` wrote; default: those that ship."),
]
Calibrations = Annotated[
    str,
    typer.Option(
        "--calibration",
        metavar="FILE|none",
        help="What `neusight calibrate` wrote; default: those in your own folder, for their GPUs.",
    ),
]
Sparsity = Annotated[
    str,
    typer.Option(
        metavar="OPERAND=SHARE,…|FILE",
        help="Zeros that devices like tensordash skip: `activations=0.6,gradients=0.5`, or a profile of "
        "`neusight sparsity measure`.",
    ),
]
Mode = Annotated[Literal["inference", "training"], typer.Option(help="What a step runs.")]
Batch = Annotated[int, typer.Option("--batch", "-b", help="Samples a step.")]
SeqLen = Annotated[int | None, typer.Option("--seq-len", "-s", help="Tokens a sample; default: the model's own.")]
Dtype = Annotated[str, typer.Option(help="Type of weights and activations.")]
Optimizer = Annotated[Literal["none", "sgd", "adam", "adamw"], typer.Option(help="Whose step is part of training.")]
Attention = Annotated[Literal["eager", "sdpa", "flash"], typer.Option(help="How attention runs.")]


def listed(text: str, option: str) -> list[str]:
    """``a,b`` as ``[a, b]``; blanks and empty parts do not count.

    Raises:
        BadParameter: nothing is left.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise typer.BadParameter(f"'{text}' names nothing: write it like a,b", param_hint=option)
    return parts


def numbers(text: str, option: str) -> list[int]:
    """``1,2`` as ``[1, 2]``.

    Raises:
        BadParameter: nothing, or something else.
    """
    try:
        return [int(part) for part in listed(text, option)]
    except ValueError:
        message = f"'{text}' is no list of whole numbers: write it like 1,2,4"
        raise typer.BadParameter(message, param_hint=option) from None
