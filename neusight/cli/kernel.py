"""``neusight kernel``: how long one kernel takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from neusight.cli.options import Calibrations, Format, Gpus, Overrides, TileModels, listed

if TYPE_CHECKING:
    from neusight.estimates import KernelEstimate


def kernel(
    name: Annotated[str, typer.Argument(help="A family (gemm, conv2d, attention, …) or operator (softmax, gelu, …).")],
    gpu: Gpus,
    shape: Annotated[list[str] | None, typer.Argument(metavar="[FIELD=VALUE]…", help="Its shape.")] = None,
    overrides: Overrides = [],  # noqa: B006
    tile_models: TileModels = None,
    calibration: Calibrations = "",
    form: Format = "human",
) -> None:
    """Predict the latency of a single kernel, launched alone.

    Examples:

    - `neusight kernel gemm m=4096 n=4096 k=4096 --gpu l4`

    - `neusight kernel bmm batch=16 m=512 n=512 k=64 --gpu t4,l4`

    - `neusight kernel grouped_gemm groups=8 tokens=4096 n=14336 k=4096 dtype=bfloat16 --gpu h100-sxm-80gb`

    - `neusight kernel softmax rows=8192 cols=1024 --gpu l4`

    - `neusight kernel conv2d batch=8 in_channels=64 out_channels=64 size=56 kernel=3 padding=1 --gpu l4`
    """
    from neusight.api import as_device
    from neusight.cli.loading import loaded, note_corrections
    from neusight.cli.output import Output
    from neusight.estimates.report import kernel_row

    gpus = listed(gpu, "--gpu")
    fields = dict(_pair(text) for text in shape or [])
    predictor = loaded(tile_models, calibration)
    found = {gpu_name: predictor.kernel(name, gpu_name, overrides, **fields) for gpu_name in gpus}
    note_corrections(predictor, [] if overrides else [as_device(gpu_name).id for gpu_name in gpus])
    rows = [{"gpu": gpu_name, **_alone(kernel_row(row))} for gpu_name, row in found.items()]
    Output(form).data(rows[0] if len(rows) == 1 else rows, rows, lambda: _show(found))


def _show(found: dict[str, KernelEstimate]) -> None:
    from neusight.cli.output import Column, line, table
    from neusight.units import milliseconds

    line(next(iter(found.values())).kernel)
    words = ("gpu", "tile", "limiter")
    titles = ("gpu", "latency", "90 % interval", "bound", "util", "tile", "limiter")
    rows = (
        (
            gpu,
            milliseconds(row.latency_s),
            f"{milliseconds(row.low_s)} - {milliseconds(row.high_s)}",
            milliseconds(row.bound_s),
            f"{row.utilisation:.0%}",
            row.tile,
            row.limiter,
        )
        for gpu, row in found.items()
    )
    table([Column(title, right=title not in words) for title in titles], rows)


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals and value):
        raise typer.BadParameter(f"'{text}' is not FIELD=VALUE: write it like m=4096", param_hint="'FIELD=VALUE'")
    return key, value


def _alone(row: dict[str, object]) -> dict[str, object]:
    """A kernel alone has no operator, phase or count."""
    return {key: value for key, value in row.items() if key not in ("operator", "phase", "count", "total_ms")}
