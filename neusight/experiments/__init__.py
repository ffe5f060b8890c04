"""Experiments: declared in ``experiments/<id>/experiment.toml``, rerun with one command, reported without typing.

Know
    ``list_experiments(root=None) -> [Experiment]``, ``find_experiment(id, root=None)``: id, folder, declaration.
Run
    ``run(experiment, train=False, report=None) -> results``; ``write_results(experiment, results) -> [Path]``:
    results.json, report.md and figures; ``load_results(experiment)``: what the last run left.
Show
    ``update_readme(path, results) -> bool``, ``accuracy_block(results) -> str``: README's accuracy table.
"""

from neusight.experiments.declare import Declaration, Experiment, find_experiment, list_experiments
from neusight.experiments.readme import accuracy_block, update_readme
from neusight.experiments.run import evaluated, load_results, run, write_results

__all__ = [
    "Declaration",
    "Experiment",
    "accuracy_block",
    "evaluated",
    "find_experiment",
    "list_experiments",
    "load_results",
    "run",
    "update_readme",
    "write_results",
]
