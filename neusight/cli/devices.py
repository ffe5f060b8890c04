"""``neusight devices``: the catalogue of accelerators."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from neusight.cli.options import Format, Overrides
from neusight.errors import DeviceError

if TYPE_CHECKING:
    from neusight.collect.drafting import Draft
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


@app.command()
def draft(
    device: Annotated[Literal["cuda", "cpu"], typer.Option(help="cuda stands for ROCm as well.")] = "cuda",
    index: Annotated[int, typer.Option(min=0, help="Which of several GPUs, as PyTorch counts them.")] = 0,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="A .toml file; default: stdout.")] = None,
) -> None:
    """Draft the device file of this machine's GPU or CPU from what its driver reports.

    Example: `neusight devices draft --out mine.toml`, then `neusight predict gpt2-large --gpu mine.toml`.
    """
    from neusight.cli.output import busy, line
    from neusight.collect.drafting import draft_device
    from neusight.devices import to_toml

    if out is not None and out.suffix.lower() != ".toml":
        raise typer.BadParameter(f"'{out}' does not end in .toml: name it {out}.toml", param_hint="--out")
    with busy("asking the driver" if device == "cuda" else "measuring clock and memory"):
        drafted = draft_device(device, index)
    text = to_toml(drafted.spec)
    if out is None:
        line(text.rstrip())
    else:
        _write(text, out)
    _explain(drafted, out)


def _write(text: str, out: Path) -> None:
    """Write the file; what someone may have corrected by hand stays."""
    if out.exists() and out.read_text(encoding="utf-8") != text:
        raise DeviceError(f"{out} is there and says something else: name another --out, or remove it first")
    out.write_text(text, encoding="utf-8")


def _explain(drafted: Draft, out: Path | None) -> None:
    from neusight.cli.output import note

    spec = drafted.spec
    if drafted.known:
        note(f"The catalogue knows this device as {spec.id}; the file is the catalogue's.")
    else:
        note(f"The catalogue does not know {spec.name}: check what [sources] calls an assumption.")
    for difference in drafted.differences:
        note(f"  {difference}")
    if out is None:
        note("Keep it with --out mine.toml, then: neusight predict gpt2-large --gpu mine.toml")
    else:
        note(f"Use it: neusight predict gpt2-large --gpu {out}")


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
