"""``neusight devices``, ``workloads`` and ``models``: what there is to predict on, to predict, and to predict with."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from neusight.cli import architectures
from neusight.cli.options import (
    Attention,
    Batch,
    Dtype,
    Format,
    Mode,
    Model,
    Optimizer,
    Overrides,
    SeqLen,
    TileModels,
    check_optimizer,
    model_dtype,
    named_gpu,
)
from neusight.errors import DeviceError

if TYPE_CHECKING:
    from neusight.collect.drafting import Draft
    from neusight.devices import DeviceSpec
    from neusight.executors.gpu.tile_models.artifact import Manifest
    from neusight.workloads import Workload
    from neusight.workloads.decoders.decoder import Decoder

devices = typer.Typer(no_args_is_help=True, help="The accelerators that the catalogue holds.")
workloads = typer.Typer(no_args_is_help=True, help="The models that are ready to predict.")
workloads.command("check")(architectures.check)
models = typer.Typer(no_args_is_help=True, help="Trained tile models: what they learned from, and how good they are.")


@devices.command("list")
def list_devices(form: Format = "human") -> None:
    """List all devices, oldest first."""
    from neusight.cli.output import Column, Output, line, table
    from neusight.devices import list_devices as known

    specs = known()
    rows = [_row(spec) for spec in specs]

    def human() -> None:
        line("Peaks in TFLOP/s, dense (half: bfloat16, else float16); DRAM; TDP in W.")
        titles = ("year", "SMs", "fp32", "half", "GB/s", "GB", "TDP")
        table([Column("id"), *(Column(title, right=True) for title in titles)], (_cells(spec) for spec in specs))

    Output(form).data(rows, rows, human)


@devices.command("show")
def show_device(
    device: Annotated[str, typer.Argument(help="An id, a driver's name, or a device file.")],
    overrides: Overrides = [],  # noqa: B006
    form: Format = "human",
) -> None:
    """Show one device with the source of every figure, as a file that `--gpu` reads.

    Example: `neusight devices show l4 > mine.toml`, change it, then `neusight predict gpt2 --gpu ./mine.toml`.
    """
    from neusight.cli.output import Output, line
    from neusight.devices import load_device, to_toml

    spec = load_device(named_gpu(device), overrides)
    data = spec.model_dump(mode="json")
    Output(form).data(data, [_row(spec)], lambda: line(to_toml(spec).rstrip()))


@devices.command()
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


@workloads.command("list")
def list_workloads(
    serving: Annotated[bool, typer.Option("--serving", help="Language models that `neusight serving` knows.")] = False,
    form: Format = "human",
) -> None:
    """List all models that have a name: those whose steps ship, then those that are traced when they are asked for.

    Example: `neusight workloads list --serving`
    """
    from neusight.cli.output import Column, Output, line, table
    from neusight.workloads import list_traced
    from neusight.workloads import list_workloads as ready

    if serving:
        _list_served(form)
        return

    found = [(info, True) for info in ready()] + [(info, False) for info in list_traced()]
    rows = [asdict(info) | {"ships": ships} for info, ships in found]

    def human() -> None:
        columns = (Column("name"), Column("parameters", right=True), Column("longest", right=True), Column("kind"))
        cells = ((i.name, _count(i.parameters), str(i.max_seq_len or "-"), i.kind) for i, _ in found)
        table(columns, cells)
        line("Others: timm:NAME, torchvision:NAME, diffusers:FOLDER/unet, the path of a")
        line("config.json, or package.module:function.")

    Output(form).data(rows, rows, human)


def _list_served(form: str) -> None:
    """Names of the hub, with what a planner needs to know of each."""
    from neusight.cli.output import Column, Output, line, table
    from neusight.workloads.decoders.known import known_decoder, known_decoders

    rows = [_served_row(known_decoder(name)) for name in known_decoders()]

    def human() -> None:
        titles = ("weights", "active", "context", "KiB a\ntoken")
        columns = [Column("name"), *(Column(t, right=True) for t in titles), Column("precision")]
        table(columns, (_served_cells(row) for row in rows))
        line("The cache of a token in 16 bits. Any other decoder: the path of its config.json.")

    Output(form).data(rows, rows, human)


def _served_row(decoder: Decoder) -> dict[str, Any]:
    return {
        "name": decoder.name,
        "parameters": decoder.parameters,
        "active_parameters": decoder.active_parameters,
        "context": decoder.max_len or None,
        "kv_bytes_per_token": decoder.kv_bytes_per_token("bfloat16"),
        "precision": decoder.quantisation.method or decoder.dtype,
    }


def _served_cells(row: dict[str, Any]) -> tuple[str, ...]:
    sizes = (_count(row["parameters"]), _count(row["active_parameters"]), str(row["context"] or "-"))
    return row["name"], *sizes, f"{row['kv_bytes_per_token'] / 1024:.0f}", row["precision"]


@workloads.command("show")
def show_workload(
    model: Model,
    mode: Mode = "inference",
    batch: Batch = 1,
    seq_len: SeqLen = None,
    dtype: Dtype = "",
    optimizer: Optimizer = "none",
    attention: Attention = "eager",
    form: Format = "human",
) -> None:
    """Show what one step runs: kernels with counts, and memory. No device is involved.

    Example: `neusight workloads show gpt2-large --mode training --batch 4`
    """
    from neusight.cli.output import Column, Output, line, table
    from neusight.kernels.describe import describe
    from neusight.units import gib
    from neusight.workloads import load_workload

    check_optimizer(optimizer, [mode])
    chosen = model_dtype(model, dtype)
    workload = load_workload(
        model, mode=mode, batch=batch, seq_len=seq_len, dtype=chosen, optimizer=optimizer, attention=attention
    )
    rows = [
        {"operator": each.operator, "phase": each.phase, "count": each.count, "family": each.kernel.family}
        | asdict(each.kernel)
        for each in workload.launches
    ]
    launches = zip(workload.launches, rows, strict=True)
    kernels = [{"kernel": describe(each.kernel), **_head(row)} for each, row in launches]

    def human() -> None:
        asked = workload.request
        length = f", sequence {asked.seq_len}" if asked.seq_len else ""
        parameters = _count(workload.parameters)
        line(f"{asked.model}: {asked.mode}, batch {asked.batch}{length}, {asked.dtype}; {parameters} parameters")
        line(f"peak memory {gib(workload.memory.peak)}; {workload.length} operators dispatched by the host")
        columns = (Column("kernel", wrap=True), Column("phase"), Column("count", right=True), Column("operator"))
        table(columns, ((k["kernel"], k["phase"], str(k["count"]), k["operator"]) for k in kernels))

    Output(form).data(_as_json(workload, rows), kernels, human)


def _as_json(workload: Workload, kernels: list[dict[str, Any]]) -> dict[str, Any]:
    """With the keys of ``predict``."""
    return {
        **workload.request.to_dict(),
        "parameters": workload.parameters,
        "host_operators": workload.length,
        "memory": {**asdict(workload.memory), "peak_bytes": workload.memory.peak},
        "warnings": list(workload.warnings),
        "kernels": kernels,
    }


def _head(row: dict[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in ("family", "operator", "phase", "count")}


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} B" if parameters >= 1e9 else f"{parameters / 1e6:.0f} M"


@models.command("list")
def list_models(tile_models: TileModels = None, form: Format = "human") -> None:
    """List tile models, one a kernel family."""
    from neusight.cli.output import Column, Output, table
    from neusight.executors.gpu.tile_models.artifact import artifact_folders, load_manifest

    rows = [_summary(load_manifest(folder), folder) for folder in artifact_folders(tile_models)]

    def human() -> None:
        columns = [Column("name"), Column("backend"), Column("size", right=True), Column("training GPUs", wrap=True)]
        table(columns, ((r["name"], r["backend"], _kb(r["bytes"]), ", ".join(r["training_gpus"])) for r in rows))

    Output(form).data(rows, rows, human)


@models.command("show")
def show_model(
    name: Annotated[str, typer.Argument(help="A name of `neusight models list`.")],
    tile_models: TileModels = None,
    form: Format = "human",
) -> None:
    """Show the card of a tile model: training and held-out GPUs, data, errors. JSON is the manifest."""
    from neusight.cli.output import Output, line
    from neusight.errors import ArtifactError, nearest
    from neusight.executors.gpu.tile_models.artifact import artifact_folders, load_manifest

    folders = {folder.name: folder for folder in artifact_folders(tile_models)}
    if name not in folders:
        raise ArtifactError(f"no tile model '{name}'{nearest(name, folders)}: one of {', '.join(folders)}")
    manifest = load_manifest(folders[name])
    card = (folders[name] / "card.md").read_text(encoding="utf-8").rstrip()
    Output(form).data(asdict(manifest), [_summary(manifest, folders[name])], lambda: line(card))


def _summary(manifest: Manifest, folder: Path) -> dict[str, Any]:
    return {
        "name": manifest.name,
        "backend": manifest.backend,
        "bytes": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
        "training_gpus": manifest.training_gpus,
        "protocol": manifest.protocol,
    }


def _kb(size: int) -> str:
    return f"{size / 1e3:,.0f} kB"
