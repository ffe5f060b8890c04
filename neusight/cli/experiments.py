"""``neusight experiments``: what was tried, each rerun with one command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from neusight.cli.options import Format

if TYPE_CHECKING:
    from neusight.experiments import Experiment

app = typer.Typer(no_args_is_help=True, help="Declared comparisons with measurements: list, run, README's table.")
Id = Annotated[str, typer.Argument(metavar="ID", help="An id of `neusight experiments list`.")]


@app.command("list")
def list_(form: Format = "human") -> None:
    """List the experiments of this checkout."""
    from neusight.cli.output import Column, Output, table
    from neusight.experiments import list_experiments

    rows = [
        {"id": e.id, "title": e.declared.title, "steps": list(e.declared.steps), "data": e.declared.data.name}
        for e in list_experiments()
    ]

    def human() -> None:
        columns = [Column("id"), Column("data"), Column("title", wrap=True)]
        table(columns, ([str(row[column.title]) for column in columns] for row in rows))

    Output(form).data(rows, rows, human)


@app.command()
def run(
    name: Id,
    train: Annotated[bool, typer.Option("--train", help="Train its tile models afresh, in a scratch folder.")] = False,
    form: Format = "human",
) -> None:
    """Run an experiment and write results.json, report.md and figures into its folder, and README's table if it is its.

    Example: `neusight experiments run held-out-fp32`
    """
    from neusight.cli.output import Output, busy, note, tasks
    from neusight.experiments import find_experiment, write_results
    from neusight.experiments import run as carry_out

    experiment = find_experiment(name)
    if train or experiment.declared.tile_models.train:
        with tasks() as report:
            results = carry_out(experiment, train, report)
    else:
        with busy("predicting"):
            results = carry_out(experiment)
    for path in write_results(experiment, results):
        note(f"wrote {path}")
    _readme(experiment, results)
    rows = [{"tile_models": r["tile_models"], **target} for r in results["runs"] for target in r["targets"]]
    Output(form).data(results, rows, lambda: _show(rows))


@app.command()
def readme(name: Id) -> None:
    """Write README's accuracy table from what the last run of an experiment left."""
    from neusight.errors import DataError
    from neusight.experiments import find_experiment, load_results

    experiment = find_experiment(name)
    if not experiment.declared.readme:
        raise DataError(
            f"{experiment.id} is not the experiment that README shows: set readme = true in its declaration"
        )
    _readme(experiment, load_results(experiment))


def _readme(experiment: Experiment, results: dict[str, Any]) -> None:
    from neusight.cli.output import note
    from neusight.experiments import update_readme
    from neusight.paths import checkout_dir

    path = checkout_dir("README.md")
    if experiment.declared.readme and update_readme(path, results):
        note(f"wrote {path}")


def _show(rows: list[dict[str, Any]]) -> None:
    from neusight.cli.output import Column, line, table

    table(
        [Column("target", wrap=True), Column("at most", right=True), Column("found", right=True), Column("")],
        ((r["target"], f"{r['limit']:g}", f"{r['value']:.2f}", "met" if r["met"] else "missed") for r in rows),
    )
    for row in rows:
        for text in row["short"]:
            line(f"short: {text}")
