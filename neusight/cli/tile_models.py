"""``neusight tile-models``: the regressors that predict the kernels of GPUs."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from neusight.cli import options as opt
from neusight.cli.asked import described
from neusight.cli.commands import Commands
from neusight.cli.output import Output, figures, line
from neusight.errors import ArtifactError, nearest

if TYPE_CHECKING:
    from neusight.executors.gpu.tile_models.artifact import Manifest

app = Commands(help="Trained tile models: what they learned from, and how good they are.")


@app.command("list")
def list_models(models: opt.WithTileModels, output: opt.Formatted) -> None:
    """List tile models, one a kernel family."""
    from neusight.executors.gpu.tile_models.artifact import artifact_folders, load_manifest

    rows = [_summary(load_manifest(folder), folder) for folder in artifact_folders(models.tile_models)]

    def human() -> None:
        shown = [row | _figures(row) for row in rows]
        figures("name | backend | >size = {size_kb:,.0f} kB | ~training GPUs = gpus", shown)
        line()
        line("Mean errors in percent of kernels that were left out: of unseen GPUs, of GPUs with the")
        line("die of one in training, and of GPUs in training.")
        judged = [row for row in shown if row["left_out"]]
        figures(_LEFT_OUT, judged)
        line()
        _show_rivals(judged)
        line("90 % intervals, validated on held-out GPUs: share of rows inside, in percent;")
        line("width over the span of 90 % of the errors; CRPS of log time.")
        figures(_COVERAGE, ({"name": row["name"], **coverage} for row in rows for coverage in row["coverage"]))

    Output(output.form).data(rows, rows, human)


@app.command("show")
def show_model(
    model: Annotated[
        opt.Named, described(name="A name of `neusight tile-models list`, or physics: numbers of all laws.")
    ],
    models: opt.WithTileModels,
    output: opt.Formatted,
) -> None:
    """Show the card of a tile model: training and held-out GPUs, data, errors. JSON is the manifest. Of `physics` all
    numbers of the laws by origin, and which rows would move those that no data move.
    """
    from neusight.executors.gpu.tile_models.artifact import artifact_folders, load_manifest

    name, folders = model.name, {folder.name: folder for folder in artifact_folders(models.tile_models)}
    if name == "physics":
        return _show_constants(models.tile_models, output.form)
    if name not in folders:
        names = (*folders, "physics")
        raise ArtifactError(f"no tile model '{name}'{nearest(name, names)}: one of {', '.join(names)}")
    manifest = load_manifest(folders[name])
    card = (folders[name] / "card.md").read_text(encoding="utf-8").rstrip()
    Output(output.form).data(asdict(manifest), [_summary(manifest, folders[name])], lambda: line(card))


def _show_constants(tile_models: Path | None, form: str) -> None:
    """Show numbers of all laws by origin, and those at their prior with the rows that would move them."""
    from neusight.distributed.factors import shipped_factors
    from neusight.laws.fitted import STORES, UNMOVED, shipped
    from neusight.laws.origins import numbers_in_code

    if tile_models and not any((tile_models / kind.file).is_file() for kind in STORES):
        raise ArtifactError(f"{tile_models} has no fitted constants, such as physics.json: give another folder")
    stores = (*(shipped(kind, tile_models) for kind in STORES), shipped_factors(tile_models))
    rows = [row for numbers in (*(store.constants() for store in stores), numbers_in_code()) for row in numbers]

    def human() -> None:
        line(f"{len(rows)} numbers of the laws by file or room of code, and origin:")
        origins: dict[str, Counter[str]] = {}
        for row in rows:
            origins.setdefault(row["file"].partition("/")[0], Counter())[row["origin"]] += 1
        figures(_ORIGINS, [{"file": file, **counts} for file, counts in origins.items()])
        line()
        line(f"No data move these: they keep {UNMOVED:.0%} of their prior's width and more. JSON has all.")
        unmoved = [row for row in rows if row["origin"] == "prior"]
        for rows_needed in dict.fromkeys(row["moved_by"] for row in unmoved):
            line(f"- {rows_needed} would move")
            for row in (row for row in unmoved if row["moved_by"] == rows_needed):
                line(f"  {row['name']} {row['value']:.4g} {row['unit']}".rstrip() + f", keeps {row['kept']:.0%}")
        line("\nWhat constants leave unexplained, as standard deviations of log times (of the die, vendor and")
        line("source for all kinds together):")
        for store in stores:
            _show_variances(getattr(store, "variances", []))

    Output(form).data(rows, rows, human)


def _show_variances(variances: list[dict[str, Any]]) -> None:
    """Show components by kind of kernel, a column each."""
    rows: dict[str, dict[str, Any]] = {}
    for row in variances:
        rows.setdefault(row["kind"] or "all", {})[row["factor"]] = row["spread"]
    figures(_VARIANCES, [{"kind": kind, **spreads} for kind, spreads in rows.items()])


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


_LEFT_OUT = (
    "name | >unseen\nphysics = physics:.1f | >unseen\nlearned = learned:.1f | >unseen\nships = as_shipped:.1f | "
    ">same die\nphysics = sibling_physics:.1f | >same die\nships = sibling:.1f | "
    ">measured\nphysics = own_physics:.1f | >measured\nships = own:.1f"
)
"""Columns of the errors of ``Manifest.left_out``."""
_ORIGINS = "file | >fitted | >datasheet | >cited | >prior | >assumption | >definition | >numerics"
_VARIANCES = "kind | " + " | ".join(f">{name} = {name}:.3f" for name in ("gpu", "die", "vendor", "source", "rest"))
_COVERAGE = (
    "name | kernels = family | known as = kinship | >GPUs = gpus | >rows = rows:, | >inside = inside:.1f | "
    ">width = width:.2f | >CRPS = crps:.3f"
)


def _figures(row: dict[str, Any]) -> dict[str, Any]:
    """Figures of a tile model in tables, those of other backends with a line break in their names."""
    left_out = {name.replace(": ", "\n"): error for name, error in row["left_out"].items()}
    return left_out | {"size_kb": row["bytes"] / 1e3, "gpus": ", ".join(row["training_gpus"])}


def _show_rivals(rows: list[dict[str, Any]]) -> None:
    """Show the errors of other backends in the same folds, where they were tried."""
    if tried := sorted({name for row in rows for name in row if "\n" in name}):
        columns = " | ".join(["name", *(f">{name} = {name}:.1f" for name in tried)])
        figures(columns, rows, "The same with other backends:")
        line()
