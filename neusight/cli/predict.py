"""``neusight predict``: how long one step of a model takes."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from neusight.cli.options import (
    Attention,
    Batch,
    Calibrations,
    Dtype,
    Format,
    Gpus,
    Mode,
    Optimizer,
    Overrides,
    SeqLen,
    Sparsity,
    TileModels,
    listed,
)

By = Annotated[Literal["operator", "phase", "kernel"], typer.Option(help="Rows of the table, and of CSV.")]


def predict(
    model: Annotated[
        str, typer.Argument(help="A name of `neusight workloads list`, a config.json, or package.module:function.")
    ],
    gpu: Gpus,
    mode: Mode = "inference",
    batch: Batch = 1,
    seq_len: SeqLen = None,
    dtype: Dtype = "float32",
    optimizer: Optimizer = "none",
    attention: Attention = "eager",
    overrides: Overrides = [],  # noqa: B006
    tile_models: TileModels = None,
    calibration: Calibrations = "",
    allow_fallback: Annotated[
        bool, typer.Option("--allow-fallback", help="Estimate operators without a rule as data movement, visibly.")
    ] = False,
    sparsity: Sparsity = "",
    simulate: Annotated[
        bool, typer.Option("--simulate", help="On such a device, run its scheduler instead of its tile model.")
    ] = False,
    compression: Annotated[
        bool, typer.Option("--compression", help="On such a device, zeros do not travel to and from DRAM.")
    ] = False,
    by: By = "operator",
    form: Format = "human",
) -> None:
    """Predict the latency of one step of a model on GPUs.

    Examples:

    - `neusight predict gpt2-large --gpu l4 --mode training --batch 1`

    - `neusight predict llama-2-7b --gpu a100-sxm-80gb,h100-sxm-80gb --seq-len 1024`

    - `neusight predict vgg16 --gpu a100-sxm-40gb,tensordash --mode training --sparsity activations=0.6,gradients=0.5`

    - `neusight predict ./config.json --gpu h100-sxm-80gb --set dram_bandwidth=4.8TB/s --format json`
    """
    from neusight.cli.loading import loaded
    from neusight.cli.output import busy, note
    from neusight.cli.show_estimate import show_estimates

    gpus = listed(gpu, "--gpu")
    if optimizer != "none" and mode == "inference":
        raise typer.BadParameter("an optimizer steps in training only: add --mode training", param_hint="--optimizer")
    predictor = loaded(tile_models, calibration)
    with busy(f"reading {model}"):
        estimates = [
            predictor.estimate(
                model, name, mode, batch, seq_len, dtype, optimizer, attention,
                overrides=overrides, allow_fallback=allow_fallback,
                sparsity=sparsity or None, simulate=simulate, compression=compression,
            )
            for name in gpus
        ]  # fmt: skip
    for warning in dict.fromkeys(text for estimate in estimates for text in estimate.warnings):
        note(f"warning: {warning}")
    show_estimates(estimates, by, form)
