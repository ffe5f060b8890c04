"""``neusight kernel``: how long one kernel takes."""

from __future__ import annotations

from typing import Annotated

import typer

from neusight.cli.options import Format, Gpus, Overrides, TileModels, listed


def kernel(
    name: Annotated[str, typer.Argument(help="A family (gemm, conv2d, attention, …) or operator (softmax, gelu, …).")],
    gpu: Gpus,
    shape: Annotated[list[str] | None, typer.Argument(metavar="[FIELD=VALUE]…", help="Its shape.")] = None,
    overrides: Overrides = [],  # noqa: B006
    tile_models: TileModels = None,
    form: Format = "human",
) -> None:
    """Predict the latency of a single kernel, launched alone.

    Examples:

    - `neusight kernel gemm m=4096 n=4096 k=4096 --gpu l4`

    - `neusight kernel bmm batch=16 m=512 n=512 k=64 --gpu t4,l4`

    - `neusight kernel softmax rows=8192 cols=1024 --gpu l4`

    - `neusight kernel conv2d batch=8 in_channels=64 out_channels=64 size=56 kernel=3 padding=1 --gpu l4`
    """
    from neusight.aggregate.report import kernel_row
    from neusight.api import Predictor
    from neusight.cli.output import Column, Output, line, table
    from neusight.units import milliseconds

    predictor = Predictor.load(tile_models)
    fields = dict(_pair(text) for text in shape or [])
    found = {gpu_name: predictor.kernel(name, gpu_name, overrides, **fields) for gpu_name in listed(gpu, "--gpu")}
    rows = [{"gpu": gpu_name, **_alone(kernel_row(row))} for gpu_name, row in found.items()]

    def human() -> None:
        line(next(iter(found.values())).kernel)
        columns = ("gpu", "latency", "90 % interval", "bound", "util", "tile", "waves", "limiter")
        table(
            [Column(title, right=title in ("latency", "90 % interval", "bound", "util", "waves")) for title in columns],
            (
                (
                    gpu_name,
                    milliseconds(r.latency_s),
                    f"{milliseconds(r.low_s)} - {milliseconds(r.high_s)}",
                    milliseconds(r.bound_s),
                    f"{r.utilisation:.0%}",
                    r.tile,
                    f"{r.waves:.2f}",
                    r.limiter,
                )
                for gpu_name, r in found.items()
            ),
        )

    Output(form).data(rows[0] if len(rows) == 1 else rows, rows, human)


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals and value):
        raise typer.BadParameter(f"'{text}' is not FIELD=VALUE: write it like m=4096", param_hint="'FIELD=VALUE'")
    return key, value


def _alone(row: dict[str, object]) -> dict[str, object]:
    """A kernel alone has no operator, phase or count."""
    return {key: value for key, value in row.items() if key not in ("operator", "phase", "count", "total_ms")}
