"""Options that several commands share, spelled once, and what their texts stand for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from neusight.api import Predictor
    from neusight.devices import DeviceSpec

Format = Annotated[Literal["human", "json", "csv"], typer.Option("--format", "-f", help="How data appears on stdout.")]
Gpus = Annotated[
    str,
    typer.Option(
        "--gpu",
        "-g",
        metavar="ID[,ID…]",
        help="Ids of `neusight devices list`, driver or short names (h100, 4090), or device files (.toml).",
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
Model = Annotated[
    str,
    typer.Argument(
        help="A name of `neusight workloads list`, timm:NAME, torchvision:NAME, diffusers:FOLDER, a config.json, a "
        ".onnx or .pt2 file, or package.module:function."
    ),
]
Mode = Annotated[Literal["inference", "training"], typer.Option(help="What a step runs.")]
_MOST = 10**9
"""Of samples and of tokens: what is larger is a slip of the keyboard."""
Batch = Annotated[int, typer.Option("--batch", "-b", max=_MOST, help="Samples a step.")]
SeqLen = Annotated[
    int | None, typer.Option("--seq-len", "-s", max=_MOST, help="Tokens a sample; default: the model's own.")
]
ImageSize = Annotated[
    int | None, typer.Option("--image-size", max=_MOST, help="Edge of an image in pixels; default: the model's own.")
]
Frames = Annotated[int | None, typer.Option(max=_MOST, help="Images of a clip; default: the model's own.")]
Seconds = Annotated[float | None, typer.Option(help="Length of a sound; default: the model's own, else 10.")]
GivenInputs = Annotated[
    list[str],
    typer.Option(
        "--input", metavar="NAME=SHAPE:DTYPE", help="One input written out: `pixel_values=1x3x448x448`. Repeatable."
    ),
]
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Of everything that is drawn at random.")]
Dtype = Annotated[
    str, typer.Option(help="Of weights and activations; bf16, fp16, … too. Default: a config.json's, else float32.")
]
Optimizer = Annotated[
    Literal["none", "sgd", "adam", "adamw", "bert_adam"], typer.Option(help="Whose step is part of training.")
]
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
        BadParameter: nothing, something else, or a number below 1 or beyond all reason.
    """
    try:
        found = [int(part) for part in listed(text, option)]
    except ValueError:
        message = f"'{text}' is no list of whole numbers: write it like 1,2,4"
        raise typer.BadParameter(message, param_hint=option) from None
    if wrong := [number for number in found if not 1 <= number <= _MOST]:
        raise typer.BadParameter(f"{wrong[0]} cannot be: give numbers from 1 to {_MOST}", param_hint=option)
    return found


def named_modes(text: str, option: str) -> list[str]:
    """``inference,training`` as a list.

    Raises:
        BadParameter: nothing, or something else.
    """
    from neusight.errors import nearest
    from neusight.requests import MODES

    modes = listed(text, option)
    if unknown := [mode for mode in modes if mode not in MODES]:
        message = f"unknown mode '{unknown[0]}'{nearest(unknown[0], MODES)}: one of {', '.join(MODES)}"
        raise typer.BadParameter(message, param_hint=option)
    return modes


def named_dtypes(text: str, option: str) -> list[str]:
    """``bf16,half`` as ``[bfloat16, float16]``.

    Raises:
        BadParameter: nothing. CoverageError: no dtype has such a name.
    """
    from neusight.kernels.precision import dtype_named

    return [dtype_named(name) for name in listed(text, option)]


def named_gpu(name: str, brought: Mapping[str, DeviceSpec] | None = None) -> str:
    """Id or path of the device that a name stands for; what a short name was taken for is said on stderr.

    Args:
        name: as the user gave it.
        brought: devices of a data set, whose ids come before the catalogue's names.

    Raises:
        DeviceError: no device has this name, or several have.
    """
    from neusight.cli.output import note
    from neusight.devices.load import find_device

    if brought and name in brought:
        return name
    found = find_device(name)
    if found.asked:
        note(f"note: {found.assumption}")
    return found.name


def named_gpus(text: str, option: str = "--gpu") -> list[str]:
    """As ``named_gpu``, of a list."""
    return [named_gpu(name) for name in listed(text, option)]


def is_list(text: str) -> bool:
    """Whether an option was written as a list, and its JSON is one: ``l4,t4`` and ``l4,`` are, ``l4`` is not."""
    return "," in text


def model_dtype(model: str, asked: str) -> str:
    """The dtype that a model's step runs in: asked for, stated by its file, or float32; said where it is not asked.

    Raises:
        ModelError: unknown model, or quantized and no dtype asked for. CoverageError: no dtype has that name.
    """
    from neusight.cli.output import note
    from neusight.workloads.resolve import resolve, stated_dtype

    dtype, said = stated_dtype(resolve(model), asked or None)
    if said:
        note(f"note: {said}")
    return dtype


def check_optimizer(optimizer: str, modes: Sequence[str]) -> None:
    """An optimizer has no part in inference.

    Raises:
        BadParameter: one was chosen, and nothing is trained.
    """
    if optimizer != "none" and "training" not in modes:
        raise typer.BadParameter("an optimizer steps in training only: add --mode training", param_hint="--optimizer")


def loaded(tile_models: Path | None, calibration: str) -> Predictor:
    """Tile models, and calibrations: those of a file or folder, none with ``none``, with '' those of the user."""
    from neusight.api import Predictor
    from neusight.paths import calibrations_dir

    chosen = None if calibration == "none" else Path(calibration or calibrations_dir())
    return Predictor.load(tile_models, chosen)


def note_corrections(predictor: Predictor, gpus: Iterable[str]) -> None:
    """A line on stderr for each GPU (by id) whose estimates are corrected by measurements of its own."""
    from neusight.cli.output import note

    for gpu in dict.fromkeys(gpus):
        if (correction := predictor.kernel_predictor.corrections.get(gpu)) is not None:
            note(f"note: corrected by {correction.described()}; --calibration none leaves that out")
