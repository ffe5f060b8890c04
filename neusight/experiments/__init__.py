"""Experiments: declared in ``experiments/<id>/experiment.toml``, rerun with one command, reported without typing.

Know
    ``list_experiments(root=None) -> [Experiment]``, ``find_experiment(id, root=None)``: id, folder, declaration.
Run
    ``run(experiment, quick=False, jobs=1, report=None) -> results``; ``write_results(folder, results) -> [Path]``:
    results.json, summary.json, report.md and figures; ``load_results(experiment)``: what the last run left, at least
    its summary; ``read_results(path)``: from any file or folder.
Judge
    ``compare(old, new, tolerance=10) -> Comparison``: ``.groups()``, ``.worse``, ``.better``, case by case.
Show
    ``accuracy_part(results)``: its part of docs/accuracy.md.
"""

from neusight.experiments.compare import Case, Comparison, compare
from neusight.experiments.declare import Declaration, Experiment, find_experiment, list_experiments
from neusight.experiments.report import accuracy_part, write_results
from neusight.experiments.results import load_results, read_results, summary_of
from neusight.experiments.run import run

__all__ = [
    "Case",
    "Comparison",
    "Declaration",
    "Experiment",
    "accuracy_part",
    "compare",
    "find_experiment",
    "list_experiments",
    "load_results",
    "read_results",
    "run",
    "summary_of",
    "write_results",
]
