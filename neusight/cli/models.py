"""``neusight models``: the catalogue of models."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neusight.cli import architectures
from neusight.cli import options as opt
from neusight.cli.asked import Asked, only
from neusight.cli.commands import Commands
from neusight.cli.output import Output, figures, line, paragraph
from neusight.defaults import words_of
from neusight.questions import Step
from neusight.questions.field import switch
from neusight.quick_dataclasses import dataclass

if TYPE_CHECKING:
    from neusight.workloads import Workload
    from neusight.workloads.decoders.decoder import Decoder

models = Commands(help="The models that are ready to predict.")
models.command("check")(architectures.check)
_TILE_MODELS = "an option of `neusight tile-models`"
_SHOWN = only(Step, "model", "mode", "batch", "seq_len", "dtype", "optimizer", "attention")
_RENAMED = {"--serving": "--decoders", "--tile-models": _TILE_MODELS}
"""Options of former commands of these names."""
_HEAD = ("family", "operator", "phase", "count")


@dataclass(frozen=True, kw_only=True)
class ListOptions(opt.Formatted):
    """Choice of models."""

    decoders: bool = switch("Language models that `serving`, `training` and `plan` know by name.", opt.CHOICE)


@models.command("list", renamed=_RENAMED)
def list_models(options: ListOptions) -> None:
    """List all models that have a name: those whose steps ship, then those that are traced on first use.

    Example: `neusight models list --decoders`
    """
    from neusight.workloads import list_traced, list_workloads

    if options.decoders:
        _list_decoders(options.form)
        return

    rows = [asdict(info) | {"ships": True} for info in list_workloads()]
    rows += [asdict(info) | {"ships": False} for info in list_traced()]

    def human() -> None:
        sizes = ({"size": _count(row["parameters"]), "longest": row["max_seq_len"] or None} for row in rows)
        columns = "name | >parameters = size | >longest | kind"
        figures(columns, (row | size for row, size in zip(rows, sizes, strict=True)))
        line("Others: timm:NAME, torchvision:NAME, diffusers:FOLDER/unet, the path of a")
        line("config.json, or package.module:function.")

    Output(options.form).data(rows, rows, human)


def _list_decoders(form: str) -> None:
    """List decoders by their names on the hub, with the figures that a planner needs."""
    from neusight.workloads.decoders.known import known_decoder, known_decoders

    rows = [_served_row(known_decoder(name)) for name in known_decoders()]

    def human() -> None:
        columns = "name | >weights | >active | >context | >KiB a\ntoken = kib:.0f | precision"
        figures(columns, (row | _sizes(row) for row in rows))
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


def _sizes(row: dict[str, Any]) -> dict[str, Any]:
    weights, active = (_count(row[name]) for name in ("parameters", "active_parameters"))
    return {"weights": weights, "active": active, "kib": row["kv_bytes_per_token"] / 1024}


@models.command("show", renamed=_RENAMED)
def show_model(asked: Annotated[Asked[Step], _SHOWN], output: opt.Formatted) -> None:
    """Show what one step runs: kernels with counts, and memory. No device is involved.

    Example: `neusight models show gpt2-large --mode training --batch 4`
    """
    from neusight.kernels.describe import describe
    from neusight.units import gib
    from neusight.workloads import load_workload

    step = asked.one
    _refuse_tile_model(step.model)
    question = step.resolve()
    workload = load_workload(step.model, question.request)
    rows = [
        {"operator": launch.operator, "phase": launch.phase, "count": launch.count, "family": launch.kernel.family}
        | asdict(launch.kernel)
        for launch in workload.launches
    ]
    kernels = [
        {"kernel": describe(launch.kernel), **{name: row[name] for name in _HEAD}}
        for launch, row in zip(workload.launches, rows, strict=True)
    ]

    def human() -> None:
        request = workload.request
        length = f", sequence {request.seq_len}" if request.seq_len else ""
        size = f"{_count(workload.parameters)} parameters"
        line(f"{request.model}: {request.mode}, batch {request.batch}{length}, {request.dtype}; {size}")
        paragraph("assumed", words_of(question.assumed(request.seq_len)))
        line(f"peak memory {gib(workload.memory.peak)}; {workload.length} operators dispatched by the host")
        figures("~kernel | phase | >count | operator", kernels)

    Output(output.form).data(_as_json(workload, rows), kernels, human)


def _refuse_tile_model(name: str) -> None:
    """Raises:
    BadParameter: the name of a tile model, which this command showed once.
    """
    from neusight.paths import tile_models_dir

    if name == "physics" or (tile_models_dir() / name / "manifest.json").is_file():
        remedy = f"give `neusight tile-models show {name}`"
        raise typer.BadParameter(f"'{name}' is a tile model: {remedy}", param_hint="MODEL")


def _as_json(workload: Workload, kernels: list[dict[str, Any]]) -> dict[str, Any]:
    """The workload as JSON, with the keys of ``predict``."""
    return {
        **workload.request.to_dict(),
        "parameters": workload.parameters,
        "host_operators": workload.length,
        "memory": {**asdict(workload.memory), "peak_bytes": workload.memory.peak},
        "warnings": list(workload.warnings),
        "kernels": kernels,
    }


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} B" if parameters >= 1e9 else f"{parameters / 1e6:.0f} M"
