"""``neusight experiments``: declared comparisons, each rerun with one command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from neusight.cli import options as opt
from neusight.cli.asked import CommandOptions, described
from neusight.cli.commands import Commands
from neusight.cli.output import Output, figures, line, note, tasks
from neusight.errors import DataError
from neusight.paths import checkout_dir
from neusight.questions.field import number, required, switch, texts, whole
from neusight.quick_dataclasses import dataclass

if TYPE_CHECKING:
    from neusight.lab import Comparison, Experiment

app = Commands(help="Declared comparisons with measurements: list, run, compare.")


@dataclass(frozen=True, kw_only=True)
class RunOptions(opt.Written, opt.Workers, opt.Formatted):
    """Options of a run of experiments."""

    FOLDER: ClassVar[bool] = True

    ids: tuple[str, ...] = texts("Ids of `neusight experiments list`.", "", argument=True, metavar="ID")
    all: bool = switch("Run all that are declared, one after the other.", opt.CHOICE)
    quick: bool = switch("A small sample and little training, to see that all works; needs --out.", opt.CHOICE)


@dataclass(frozen=True, kw_only=True)
class ReportOptions(CommandOptions):
    """Results of a run."""

    path: Path = required("results.json, summary.json, or their folder.", "", kind="path", metavar="RESULTS")


@dataclass(frozen=True, kw_only=True)
class CompareOptions(opt.Formatted):
    """Two runs, and limits of their differences."""

    old: Path = required("Folder or results of the earlier run.", "", kind="path")
    new: Path = required("Folder or results of the later run.", "", kind="path")
    tolerance: float = number("Percent by which a prediction that is right may miss.", opt.CHOICE, 10.0, low=0.0)
    allow: int = whole("Cases that may turn from right to wrong.", opt.CHOICE, 0, low=0)


@dataclass(frozen=True, kw_only=True)
class GateOptions(CommandOptions):
    """The committed summary."""

    write: bool = switch("Write the summary again, for a diff to look at.", opt.OUTPUT)


@app.command("list")
def list_(output: opt.Formatted) -> None:
    """List the experiments that are declared: `run` does each again, with NEUSIGHT_DATA set."""
    from neusight.lab import list_experiments

    rows = [{"id": e.id, "title": e.declared.title, "data": e.declared.subject} for e in list_experiments()]
    if not rows:
        note(f"{checkout_dir('experiments')} declares no experiment: add ID/experiment.toml, or take a checkout")
    Output(output.form).data(rows, rows, lambda: figures("id | ~data | ~title", rows))


@app.command()
def run(
    options: Annotated[RunOptions, described(out="Output folder. Default, in a checkout: that of the experiment.")],
) -> None:
    """Run experiments and write results.json, summary.json, report.md and figures, and docs/accuracy.md. Row by row,
    results stay out of the repository; their summary is committed.

    Trainings are shared among processes or the cores of a cluster, whose hosts need NEUSIGHT_DATA as well.

    What was trained is kept in the user's cache: a second run only predicts, as long as data and code are the same.

    Examples:

    - `neusight experiments run leave-one-gpu-out --jobs 2`

    - `neusight experiments run --all`

    - `neusight experiments run ablation --quick --out /tmp/ablation`
    """
    from neusight.lab import find_experiment, list_experiments

    quick, out = options.quick, options.out
    if quick and out is None:
        raise typer.BadParameter("a quick run gives no results of the experiment: say where to", param_hint="--out")
    if out is None and not checkout_dir("README.md").is_file():
        raise typer.BadParameter("an installed package keeps no results: say where to", param_hint="--out")
    if options.all == bool(options.ids):
        raise typer.BadParameter("give ids of `neusight experiments list`, or --all", param_hint="ID")
    listed = list_experiments() if options.all else [find_experiment(name) for name in options.ids]
    results = {experiment.id: _run(experiment, options) for experiment in listed}
    if out is None:
        accuracy()
    rows = [
        {"experiment": name, **row, "short": ", ".join(row["short"])}
        for name, result in results.items()
        for row in result["verdicts"]
    ]
    Output(options.form).data(results if len(results) > 1 else next(iter(results.values())), rows, lambda: _show(rows))


def _run(experiment: Experiment, options: RunOptions) -> dict[str, Any]:
    """Run an experiment and write its results to its folder, or below the given one for several."""
    from neusight.lab import run as carry_out
    from neusight.lab import write_results

    folder = options.out or experiment.folder
    folder = folder / experiment.id if options.out and (options.all or len(options.ids) > 1) else folder
    folder.mkdir(parents=True, exist_ok=True)
    with tasks() as report:
        results = carry_out(experiment, options.quick, report=report, **options.keywords)
    for path in write_results(folder, results):
        note(f"wrote {path}")
    return results


@app.command()
def report(options: ReportOptions) -> None:
    """Write summary, report.md and figures again; of a summary alone all but the figures of single rows."""
    from neusight.lab import read_results, write_results

    results = read_results(options.path)
    for written in write_results(options.path if options.path.is_dir() else options.path.parent, results):
        note(f"wrote {written}")


@app.command()
def accuracy() -> None:
    """Write the accuracy tables of docs/accuracy.md and README.md from the summaries of the last runs."""
    from neusight.lab import list_experiments
    from neusight.lab.accuracy import accuracy_part, headline_block, update_accuracy
    from neusight.lab.results import SUMMARY, is_current, read_results

    ran = {e.id: e for e in list_experiments() if (e.folder / SUMMARY).is_file()}
    summaries = {name: read_results(experiment.folder / SUMMARY) for name, experiment in ran.items()}
    shown = [summary for summary in summaries.values() if is_current(summary)]
    blocks = {
        "docs/accuracy.md": "\n\n".join(filter(None, map(accuracy_part, shown))),
        "README.md": headline_block(summaries),
    }
    for name, block in blocks.items():
        if update_accuracy(checkout_dir(name), block):
            note(f"wrote {checkout_dir(name)}")


@app.command()
def compare(options: CompareOptions) -> None:
    """Compare two runs prediction by prediction. Exit 1 when more cases than allowed turned from right to wrong.

    Where one of them is a summary alone, as committed, means are compared, by GPU and kind of kernel.

    A case turned when it was off by no more than the tolerance, is off by more now, and by more than one percentage
    point more than before. Cases are the kernels that results keep, and every whole model.

    Example: `neusight experiments compare ./before experiments/leave-one-gpu-out --tolerance 10`
    """
    from neusight.lab import compare as join
    from neusight.lab import read_results

    comparison = join(read_results(options.old), read_results(options.new), options.tolerance)
    groups, worse = comparison.groups(), [vars(case) for case in comparison.worse]
    data = {"by": comparison.by, "groups": groups, "worse": worse, "lost": comparison.lost, "new": comparison.new}
    Output(options.form).data(data, groups, lambda: _show_comparison(comparison))
    if len(worse) > options.allow:
        remedy = f"{options.allow} may: see which and why, or --allow them"
        note(f"error: {len(worse)} cases turned from right to wrong, {remedy}")
        raise typer.Exit(1)


@app.command()
def gate(options: GateOptions) -> None:
    """Hold the predictor that ships against the committed summary of its errors and predictions.

    Needs `NEUSIGHT_DATA`. Names every row that is new or gone, and every figure that differs by more than rounding:
    what it was, what it is, and whether it got worse. Exit 1 where anything differs.
    """
    from neusight.lab import gate as committed

    summary, path = committed.summarise(opt.load_predictor(None, "none")), committed.summary_path()
    if options.write:
        committed.write_summary(summary, path)
        line(f"wrote {path}")
    elif changes := committed.differences(committed.read_summary(path), summary):
        line("\n".join(changes))
        remedy = f"write it anew with `{committed.REWRITE}` and say why in the commit"
        raise DataError(f"{len(changes)} figures differ from {path}: mend what got worse, or {remedy}")


BY_MEANS = ", since one of the two is a summary: results.json of both compares prediction by prediction"


def _show(rows: list[dict[str, Any]]) -> None:
    shown = [{**row, "verdict": "met" if row["met"] else "missed"} for row in rows]
    figures("~target, percent = target | >aim | >found = value:.1f | = verdict", shown)
    for row in rows:
        if row["short"]:
            line(f"{row['target']}, short: {row['short']}")


def _show_comparison(comparison: Comparison) -> None:
    line(f"Compared {comparison.by} by {comparison.by}{BY_MEANS if comparison.by == 'mean' else ''}.")
    line(f"Mean error in percent; right is within {comparison.tolerance:g} %.")
    columns = "group | >cases = cases:, | >before = before:.1f | >after = after:.1f | >worse | >better"
    figures(columns, comparison.groups())
    if comparison.lost or comparison.new:
        line(f"Not compared: {comparison.lost:,} cases of the earlier run alone, {comparison.new:,} of the later one.")
    for case in comparison.worse:
        line(f"right to wrong: {case.name}: {case.before:+.1f} % to {case.after:+.1f} %")
