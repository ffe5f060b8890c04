"""``neusight tile-models``: what predicts the kernels of GPUs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from neusight.cli import options as opt
from neusight.cli.asked import described
from neusight.cli.commands import Commands
from neusight.cli.output import Output, line, table
from neusight.quick_dataclasses import dataclass
from neusight.units import decimal

if TYPE_CHECKING:
    from neusight.executors.gpu.tile_models.artifact import Manifest

app = Commands(help="Trained tile models: what they learned from, and how good they are.")


@dataclass(frozen=True, kw_only=True)
class TileModelOptions(opt.WithTileModels, opt.Formatted):
    """Which tile models, and how they are shown."""


@app.command("list")
def list_models(options: TileModelOptions) -> None:
    """List tile models, one a kernel family."""
    from neusight.executors.gpu.tile_models.artifact import artifact_folders, load_manifest

    rows = [_summary(load_manifest(folder), folder) for folder in artifact_folders(options.tile_models)]

    def human() -> None:
        columns = ("name", "backend", ">size", "~training GPUs")
        table(columns, ((r["name"], r["backend"], _kb(r["bytes"]), ", ".join(r["training_gpus"])) for r in rows))
        line()
        line("Mean errors in percent of kernels that were left out: of unseen GPUs, of GPUs with the")
        line("die of one in training, and of GPUs in training.")
        headings = ("name", *(f">{name}" for name in _LEFT_OUT.values()))
        judged = [row for row in rows if row["left_out"]]
        table(headings, ((r["name"], *(_percent(r["left_out"].get(key)) for key in _LEFT_OUT)) for r in judged))
        line()
        _show_rivals(judged)
        line("90 % intervals, validated on held-out GPUs: share of rows inside, in percent;")
        line("width over the span of 90 % of the errors; CRPS of log time.")
        headings = ("name", "kernels", "known as", ">GPUs", ">rows", ">inside", ">width", ">CRPS")
        table(headings, (_covered(row["name"], each) for row in rows for each in row["coverage"]))

    Output(options.form).data(rows, rows, human)


@app.command("show")
def show_model(
    model: Annotated[
        opt.Named, described(name="A name of `neusight tile-models list`, or physics: constants of all laws.")
    ],
    options: TileModelOptions,
) -> None:
    """Show the card of a tile model: training and held-out GPUs, data, errors. JSON is the manifest. Of `physics` the
    fitted constants, and which of them no data move.
    """
    from neusight.errors import ArtifactError, nearest
    from neusight.executors.gpu.tile_models.artifact import artifact_folders, load_manifest

    name = model.name
    if name == "physics":
        _show_constants(options.tile_models, options.form)
        return
    folders = {folder.name: folder for folder in artifact_folders(options.tile_models)}
    if name not in folders:
        known = (*folders, "physics")
        raise ArtifactError(f"no tile model '{name}'{nearest(name, known)}: one of {', '.join(known)}")
    manifest = load_manifest(folders[name])
    card = (folders[name] / "card.md").read_text(encoding="utf-8").rstrip()
    Output(options.form).data(asdict(manifest), [_summary(manifest, folders[name])], lambda: line(card))


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
    "physics": "unseen\nphysics",
    "learned": "unseen\nlearned",
    "as_shipped": "unseen\nships",
    "sibling_physics": "same die\nphysics",
    "sibling": "same die\nships",
    "own_physics": "measured\nphysics",
    "own": "measured\nships",
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
