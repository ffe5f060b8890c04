"""``neusight models``: trained tile models, those that ship and the user's own."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neusight.cli.options import Format, TileModels

if TYPE_CHECKING:
    from neusight.executors.gpu.tile_models.artifact import Manifest

app = typer.Typer(no_args_is_help=True, help="Trained tile models: what they learned from, and how good they are.")


@app.command("list")
def list_(tile_models: TileModels = None, form: Format = "human") -> None:
    """List tile models, one a kernel family."""
    from neusight.cli.output import Column, Output, table
    from neusight.executors.gpu.tile_models.artifact import artifact_folders, load_manifest

    rows = [_summary(load_manifest(folder), folder) for folder in artifact_folders(tile_models)]

    def human() -> None:
        columns = [Column("name"), Column("backend"), Column("size", right=True), Column("training GPUs", wrap=True)]
        table(columns, ((r["name"], r["backend"], _kb(r["bytes"]), ", ".join(r["training_gpus"])) for r in rows))

    Output(form).data(rows, rows, human)


@app.command()
def show(
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
