"""``neusight models``: trained tile models, those that ship and the user's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from neusight.cli.options import Format

app = typer.Typer(no_args_is_help=True, help="Trained tile models: what they learned from, and how good they are.")


@app.command("list")
def list_(form: Format = "human") -> None:
    """List the tile models that ship."""
    from neusight.cli.output import Column, Output, table
    from neusight.paths import tile_models_dir

    folders = sorted(path.parent for path in tile_models_dir().glob("*/manifest.json"))
    rows = [_summary(folder) for folder in folders]

    def human() -> None:
        columns = [
            Column("name"),
            Column("protocol", right=True),
            Column("size", right=True),
            Column("training GPUs", wrap=True),
        ]
        table(
            columns,
            (
                (r["name"], str(r["protocol"]), f"{r['bytes'] / 1e3:,.0f} kB", ", ".join(r["training_gpus"]))
                for r in rows
            ),
        )

    Output(form).data(rows, rows, human)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A name of `neusight models list`, or a folder.")], form: Format = "human"
) -> None:
    """Show the card of tile models: training and held-out GPUs, data, errors. JSON is the manifest."""
    from neusight.cli.output import Output, line

    folder = _folder(name)
    manifest = _manifest(folder)
    Output(form).data(manifest, [_summary(folder)], lambda: line(_card(folder)))


def _folder(name: str) -> Path:
    from neusight.errors import ArtifactError, nearest
    from neusight.paths import tile_models_dir

    known = [path.parent.name for path in tile_models_dir().glob("*/manifest.json")]
    for folder in (tile_models_dir() / name, Path(name)):
        if (folder / "manifest.json").is_file():
            return folder
    raise ArtifactError(f"no tile models '{name}'{nearest(name, known)}: give {', '.join(known) or 'a folder'}")


def _manifest(folder: Path) -> dict[str, Any]:
    from neusight.errors import ArtifactError

    try:
        return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise ArtifactError(f"{folder / 'manifest.json'} is damaged ({error}): train or install it again") from None


def _card(folder: Path) -> str:
    card = folder / "card.md"
    return card.read_text(encoding="utf-8").rstrip() if card.is_file() else f"{folder.name} has no card.md"


def _summary(folder: Path) -> dict[str, Any]:
    manifest = _manifest(folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return {
        "name": folder.name,
        "protocol": manifest.get("protocol"),
        "bytes": size,
        "training_gpus": list(manifest.get("training_gpus", ())),
    }
