"""``neusight workloads`` and ``models``: what there is to predict, and to predict with."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neusight.cli import architectures
from neusight.cli import options as opt
from neusight.cli.commands import Commands
from neusight.cli.output import Output, line, paragraph, table
from neusight.defaults import words_of
from neusight.units import decimal

if TYPE_CHECKING:
    from neusight.executors.gpu.tile_models.artifact import Manifest
    from neusight.workloads import Workload
    from neusight.workloads.decoders.decoder import Decoder

workloads = Commands(help="The models that are ready to predict.")
workloads.command("check")(architectures.check)
models = Commands(help="Trained tile models: what they learned from, and how good they are.")


@workloads.command("list")
def list_workloads(
    serving: Annotated[bool, typer.Option("--serving", help="Language models that `neusight serving` knows.")] = False,
    form: opt.Format = "human",
) -> None:
    """List all models that have a name: those whose steps ship, then those that are traced on first use.

    Example: `neusight workloads list --serving`
    """
    from neusight.workloads import list_traced
    from neusight.workloads import list_workloads as ready

    if serving:
        _list_served(form)
        return

    infos = [(info, True) for info in ready()] + [(info, False) for info in list_traced()]
    rows = [asdict(info) | {"ships": ships} for info, ships in infos]

    def human() -> None:
        columns = ("name", ">parameters", ">longest", "kind")
        cells = ((i.name, _count(i.parameters), str(i.max_seq_len or "-"), i.kind) for i, _ in infos)
        table(columns, cells)
        line("Others: timm:NAME, torchvision:NAME, diffusers:FOLDER/unet, the path of a")
        line("config.json, or package.module:function.")

    Output(form).data(rows, rows, human)


def _list_served(form: str) -> None:
    """Names of the hub, with what a planner needs to know of each."""
    from neusight.workloads.decoders.known import known_decoder, known_decoders

    rows = [_served_row(known_decoder(name)) for name in known_decoders()]

    def human() -> None:
        columns = ("name", ">weights", ">active", ">context", ">KiB a\ntoken", "precision")
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
        "precision": decoder.quantisation.method or decoder.served_dtype,
    }


def _served_cells(row: dict[str, Any]) -> tuple[str, ...]:
    sizes = (_count(row["parameters"]), _count(row["active_parameters"]), str(row["context"] or "-"))
    return row["name"], *sizes, f"{row['kv_bytes_per_token'] / 1024:.0f}", row["precision"]


@workloads.command("show")
def show_workload(
    model: opt.Model,
    mode: opt.Mode = "inference",
    batch: opt.Batch = 1,
    seq_len: opt.SeqLen = None,
    dtype: opt.Dtype = "",
    optimizer: opt.Optimizer = "none",
    attention: opt.Attention = None,
    form: opt.Format = "human",
) -> None:
    """Show what one step runs: kernels with counts, and memory. No device is involved.

    Example: `neusight workloads show gpt2-large --mode training --batch 4`
    """
    from neusight.kernels.describe import describe
    from neusight.steps import StepQuestion
    from neusight.units import gib
    from neusight.workloads import load_workload

    opt.check_optimizer(optimizer, [mode])
    words = {"mode": mode, "batch": batch, "seq_len": seq_len, "optimizer": optimizer, "attention": attention}
    question = StepQuestion.of(model, "", dtype=dtype or None, **words)
    workload = load_workload(model, question.request)
    rows = [
        {"operator": each.operator, "phase": each.phase, "count": each.count, "family": each.kernel.family}
        | asdict(each.kernel)
        for each in workload.launches
    ]
    launches = zip(workload.launches, rows, strict=True)
    kernels = [{"kernel": describe(each.kernel), **_head(row)} for each, row in launches]

    def human() -> None:
        request = workload.request
        length = f", sequence {request.seq_len}" if request.seq_len else ""
        parameters = _count(workload.parameters)
        line(
            f"{request.model}: {request.mode}, batch {request.batch}{length}, {request.dtype}; {parameters} parameters"
        )
        paragraph("assumed", words_of(question.assumed(request.seq_len)))
        line(f"peak memory {gib(workload.memory.peak)}; {workload.length} operators dispatched by the host")
        columns = ("~kernel", "phase", ">count", "operator")
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
def list_models(tile_models: opt.TileModels = None, form: opt.Format = "human") -> None:
    """List tile models, one a kernel family."""
    from neusight.executors.gpu.tile_models.artifact import artifact_folders, load_manifest

    rows = [_summary(load_manifest(folder), folder) for folder in artifact_folders(tile_models)]

    def human() -> None:
        columns = ("name", "backend", ">size", "~training GPUs")
        table(columns, ((r["name"], r["backend"], _kb(r["bytes"]), ", ".join(r["training_gpus"])) for r in rows))
        line()
        line("Mean errors of kernels that were left out, in percent: of strangers, of GPUs with a")
        line("sibling left in, and of known GPUs.")
        headings = ("name", *(f">{name}" for name in _LEFT_OUT.values()))
        judged = [row for row in rows if row["left_out"]]
        table(headings, ((r["name"], *(_percent(r["left_out"].get(key)) for key in _LEFT_OUT)) for r in judged))
        line()
        _show_rivals(judged)
        line("90 % intervals, put to devices that they were learned without: rows inside, in")
        line("percent; width, over what 90 % of the errors span; CRPS of log time.")
        headings = ("name", "kernels", "known as", ">GPUs", ">rows", ">inside", ">width", ">CRPS")
        table(headings, (_covered(row["name"], each) for row in rows for each in row["coverage"]))

    Output(form).data(rows, rows, human)


@models.command("show")
def show_model(
    name: Annotated[str, typer.Argument(help="A name of `neusight models list`, or physics: constants of all laws.")],
    tile_models: opt.TileModels = None,
    form: opt.Format = "human",
) -> None:
    """Show the card of a tile model: training and held-out GPUs, data, errors. JSON is the manifest. Of `physics` the
    fitted constants, and which of them no data move.
    """
    from neusight.errors import ArtifactError, nearest
    from neusight.executors.gpu.tile_models.artifact import artifact_folders, load_manifest

    if name == "physics":
        _show_constants(tile_models, form)
        return
    folders = {folder.name: folder for folder in artifact_folders(tile_models)}
    if name not in folders:
        known = (*folders, "physics")
        raise ArtifactError(f"no tile model '{name}'{nearest(name, known)}: one of {', '.join(known)}")
    manifest = load_manifest(folders[name])
    card = (folders[name] / "card.md").read_text(encoding="utf-8").rstrip()
    Output(form).data(asdict(manifest), [_summary(manifest, folders[name])], lambda: line(card))


def _show_constants(tile_models: Path | None, form: str) -> None:
    """Constants of all laws, those that no data move first."""
    from neusight.laws.fitted import UNMOVED, shipped_physics

    fitted = shipped_physics(tile_models)
    rows = sorted(fitted.constants(), key=lambda row: -row["kept"])
    unmoved = [row for row in rows if row["kept"] >= UNMOVED]

    def human() -> None:
        line(f"{len(rows)} constants from {fitted.rows:,} rows of {len(fitted.gpus)} devices.")
        line(f"No data move {len(unmoved)}: they keep {UNMOVED:.0%} of their prior's width and more. JSON has all.")
        columns = ("constant", ">value", ">prior", ">kept")
        table(columns, ((r["name"], decimal(r["value"]), decimal(r["prior"]), f"{r['kept']:.0%}") for r in unmoved))

    Output(form).data(rows, rows, human)


def _summary(manifest: Manifest, folder: Path) -> dict[str, Any]:
    return {
        "name": manifest.name,
        "backend": manifest.backend,
        "bytes": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
        "training_gpus": manifest.training_gpus,
        "left_out": {} if manifest.simulator else manifest.left_out(),
        "coverage": manifest.coverage,
        "protocol": manifest.protocol,
    }


_LEFT_OUT = {
    "physics": "stranger\nphysics",
    "learned": "stranger\nlearned",
    "as_shipped": "stranger\nships",
    "sibling_physics": "sibling\nphysics",
    "sibling": "sibling\nships",
    "own_physics": "known\nphysics",
    "own": "known\nships",
}
"""Titles of the errors of ``Manifest.left_out``."""


def _show_rivals(rows: list[dict[str, Any]]) -> None:
    """What other backends make of the same folds, where they were tried."""
    tried = sorted({key for row in rows for key in row["left_out"] if ": " in key})
    if not tried:
        return
    line("The same with other backends:")
    headings = ("name", *(f">{key.replace(': ', chr(10))}" for key in tried))
    table(headings, ((row["name"], *(_percent(row["left_out"].get(key)) for key in tried)) for row in rows))
    line()


def _covered(name: str, row: dict[str, Any]) -> tuple[str, ...]:
    figures = (f"{row['rows']:,}", f"{row['inside']:.1f}", f"{row['width']:.2f}", f"{row['crps']:.3f}")
    return name, row["family"], row["kinship"], str(row["gpus"]), *figures


def _percent(error: float | None) -> str:
    return "" if error is None else f"{error:.1f}"


def _kb(size: int) -> str:
    return f"{size / 1e3:,.0f} kB"
