"""Run an experiment: train without the held-out GPUs of every fold, predict, compare, summarise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

from neusight.experiments.declare import Experiment, PairsDeclaration
from neusight.experiments.folds import code_sha256
from neusight.experiments.results import rounded, versions
from neusight.lab.targets import verdicts

if TYPE_CHECKING:
    from neusight.learn import Report

QUICK_REMARKS = {
    "serving": "A quick run: forty cells. Its figures are no results.",
    "training": "A quick run: nothing is left out. Its figures are no results.",
    "programs": "A quick run: forty timings of each GPU that is left out. Its figures are no results.",
    "accelerators": "A quick run: forty rows of each table. Its figures are no results.",
    "pairs": "A quick run: sixty pairs. Its figures are no results.",
}
"""The remark beside figures of a quick run, wherever they stand, by kind of experiment."""


@dataclass
class Clock:
    """Seconds that each part of a run takes."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timing(self, part: str) -> Iterator[None]:
        """Count what happens inside for a part."""
        began = monotonic()
        yield
        self.seconds[part] = self.seconds.get(part, 0.0) + monotonic() - began


def run(
    experiment: Experiment, quick: bool = False, jobs: int = 1, report: Report | None = None, ray: str = ""
) -> dict[str, Any]:
    """Do what an experiment declares.

    Args:
        experiment: what to do.
        quick: on a small sample and with little training, to see that all works; the results say so.
        jobs: trainings at a time.
        report: called with progress.
        ray: address of a cluster whose cores train, at most ``jobs`` of them, 0 for all; "" for this host.

    Returns:
        What ``results.json`` holds: the declaration, versions, ``seconds``, the parts that were asked for, and
        ``verdicts``; of what is measured also hashes of data and code, and provenance of what was ``trained``.

    Raises:
        DataError: data are missing or foreign, tile models that ship learned from a held-out GPU.
    """
    declared, clock = experiment.declared, Clock()
    with clock.timing("predicting"):
        parts = _predicted(experiment, quick, report)
    code = {"code_sha256": code_sha256()}
    head = {
        "experiment": experiment.id,
        "declared": declared.model_dump(mode="json"),
        "quick": QUICK_REMARKS[declared.kind] if quick else None,
    }
    judged = {"verdicts": verdicts(parts, declared.targets)}
    return rounded({**head, "versions": versions(), "seconds": clock.seconds, **code, **parts, **judged})


def _predicted(experiment: Experiment, quick: bool, report: Report | None) -> dict[str, Any]:
    """Parts of an experiment in which no tile model is trained."""
    declared = experiment.declared
    if isinstance(declared, PairsDeclaration):
        from neusight.experiments.pairs import run_pairs

        return run_pairs(declared, experiment.folder, quick, report)
    from neusight.experiments.accelerators import run_accelerators
    from neusight.experiments.programs import run_programs
    from neusight.experiments.runs import run_serving, run_training

    runners: dict[str, Callable[..., dict[str, Any]]] = {
        "serving": run_serving, "training": run_training, "programs": run_programs,
        "accelerators": run_accelerators,
    }  # fmt: skip
    return runners[declared.kind](declared, quick, report)
