"""Experiments: declared in ``experiments/<id>/experiment.toml``, rerun with one command, reported without typing.

``list_experiments(root=None)``, ``find_experiment(id, root=None)``: id, folder, declaration;
``run(experiment, quick=False, jobs=1, report=None) -> results``; ``write_results(folder, results) -> [Path]``:
results.json, summary.json, report.md and figures; ``read_results(path)``: what a run left;
``compare(old, new, tolerance=10) -> Comparison``: two runs, row by row.
"""

from neusight.lab.compare import Comparison, compare
from neusight.lab.declare import Experiment, find_experiment, list_experiments
from neusight.lab.report import write_results
from neusight.lab.results import read_results, summary_of
from neusight.lab.run import run

__all__ = [
    "Comparison",
    "Experiment",
    "compare",
    "find_experiment",
    "list_experiments",
    "read_results",
    "run",
    "summary_of",
    "write_results",
]
