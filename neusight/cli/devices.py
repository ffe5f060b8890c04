"""``neusight devices``: the catalogue of accelerators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from neusight.cli.options import Format, Overrides

if TYPE_CHECKING:
    from neusight.devices import DeviceSpec

app = typer.Typer(no_args_is_help=True, help="The accelerators that the catalogue holds.")


@app.command("list")
def list_(form: Format = "human") -> None:
    """List all devices, oldest first."""
    from neusight.cli.output import Column, Output, line, table
    from neusight.devices import list_devices

    specs = list_devices()
    rows = [_row(spec) for spec in specs]

    def human() -> None:
        line("Peaks in TFLOP/s, dense (half: bfloat16, else float16); DRAM; TDP in W.")
        titles = ("year", "SMs", "fp32", "half", "GB/s", "GB", "TDP")
        table([Column("id"), *(Column(title, right=True) for title in titles)], (_cells(spec) for spec in specs))

    Output(form).data(rows, rows, human)


@app.command()
def show(
    device: Annotated[str, typer.Argument(help="An id, a driver's name, or a device file.")],
    overrides: Overrides = [],  # noqa: B006
    form: Format = "human",
) -> None:
    """Show one device with the source of every figure, as a file that `--gpu` reads.

    Example: `neusight devices show l4 > mine.toml`, change it, then `neusight predict gpt2 --gpu ./mine.toml`.
    """
    from neusight.cli.output import Output, line
    from neusight.devices import load_device, to_toml

    spec = load_device(device, overrides)
    data = spec.model_dump(mode="json")
    Output(form).data(data, [_row(spec)], lambda: line(to_toml(spec).rstrip()))


def _cells(spec: DeviceSpec) -> tuple[str, ...]:
    rates = {**spec.vector_flops_per_s, **spec.matrix_flops_per_s}
    half = rates.get("bfloat16") or rates.get("float16")
    return (
        spec.id,
        str(spec.release_date.year),
        str(spec.sm_count),
        f"{spec.vector_flops_per_s['float32'] / 1e12:.1f}",
        f"{half / 1e12:.1f}" if half else "-",
        f"{spec.dram_bandwidth_bytes_per_s / 1e9:.0f}",
        f"{spec.dram_capacity_bytes / 1e9:.0f}",
        f"{spec.tdp_w:.0f}",
    )


def _row(spec: DeviceSpec) -> dict[str, Any]:
    """The scalar figures; rates and links are in the JSON of ``show``."""
    data = spec.model_dump(mode="json")
    return {key: value for key, value in data.items() if not isinstance(value, dict | list)}
