"""Run an experiment: train without the held-out GPUs of every fold, predict, compare, summarise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.experiments.declare import Declaration, Experiment, PairsDeclaration
from neusight.experiments.folds import QUICK_ROWS, Learning, OneSet, Round, code_sha256, kernels_of, rounds_of
from neusight.experiments.kernels import (
    averaged,
    by_kinship,
    calibration,
    few_shot_of,
    kernel_cells,
    main_group,
    predicted_rows,
    sample,
)
from neusight.experiments.models import kept_steps, operator_sums, predicted_steps, summarise_models, summarise_oracle
from neusight.experiments.results import data_sha256, rounded, versions
from neusight.lab.targets import verdicts
from neusight.measured.score import joined

if TYPE_CHECKING:
    from neusight.learn import Report

Rounds = Sequence[Round]
Trainer = Callable[[Learning, Declaration], tuple[list[Round], float]]
"""``rounds_of`` with who shares the trainings."""
COUNTERPARTS = {
    "neusight-paper": "published:neusight",
    "habitat": "published:habitat",
    "li": "published:li",
    "roofline": "published:roofline",
}
"""Baselines that are trained here, by kind, and the same ones as published."""
QUICK_REMARKS = {
    "measured": f"A quick run: at most {QUICK_ROWS} rows of each GPU, operator and split, and little training. "
    "It shows that everything works. Its figures are no results.",
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
    if isinstance(declared, Declaration):
        parts = _measured(declared, quick, partial(rounds_of, jobs=jobs, report=report, ray=ray), report, clock)
    else:
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


def _measured(
    declared: Declaration, quick: bool, trained: Trainer, report: Report | None, clock: Clock
) -> dict[str, Any]:
    """Train, predict and compare with what was measured."""
    if declared.data.sets:
        from neusight.experiments.sets import SeveralSets

        several = SeveralSets(declared, quick)
        return _evaluated(declared, several, trained, report, clock) | several.parts(report)
    with kernels_of(declared, quick) as source:
        learning = OneSet(declared, source, quick)
        parts = _evaluated(declared, learning, trained, report, clock)
    return {"sha256": data_sha256(declared), **parts}


def _evaluated(
    declared: Declaration, learning: Learning, trained: Trainer, report: Report | None, clock: Clock
) -> dict[str, Any]:
    """What was trained, and the parts of the report that were asked for."""
    rounds, clock.seconds["training"] = trained(learning, declared)
    parts: dict[str, Any] = {"trained": {r.fold.name: {e.label: e.provenance() for e in r.entrants} for r in rounds}}
    if "models" in declared.report:
        with clock.timing("models"):
            parts["models"] = _models(declared, rounds)
    if "kernels" in declared.report:
        with clock.timing("kernels"):
            parts["kernels"] = _kernels(declared, learning, rounds)
    if declared.few_shot is not None and isinstance(learning, OneSet):
        with clock.timing("few-shot"):
            parts["few_shot_curve"] = few_shot_of(declared, rounds, learning.measured)
    return parts


def _kernels(declared: Declaration, learning: Learning, rounds: Rounds) -> dict[str, Any]:
    rows = joined(
        predicted_rows(tested, entrant, r)
        for r in rounds
        for tested in learning.tested(r.fold)
        for entrant in r.entrants
    )
    cells = [cell for cell in kernel_cells(rows) if cell["count"] >= learning.least_rows]
    first = declared.predictors[0]
    judged = rows.where(predictor=first.name, seed=first.seeds[0])
    by_kind = averaged(cells, "group", "predictor", "kind")
    main = judged.where(group=main_group(by_kind))
    kernels = {"cells": cells, "by_kind": by_kind, "by_kinship": by_kinship(rows), "sample": sample(judged)}
    if any(len(r.groups) > 1 for r in rounds) and len(rounds) > 1:
        kernels["by_fold"] = averaged(cells, "group", "fold", "predictor", "kind")
    return kernels | ({} if np.isnan(main.inside).any() else {"calibration": calibration(main)})


def _models(declared: Declaration, rounds: Rounds) -> dict[str, Any]:
    data, first = declared.data, declared.predictors[0]
    parts = []
    for r in rounds:
        training = dict.fromkeys(r.training if declared.models_on == "all" else (), "training")
        groups = training | dict(r.groups)
        parts += [predicted_steps(one, groups, r.entrants, r.fold.name) for one in data.together()]
    steps = joined(parts)
    models = {"rows": kept_steps(steps, first.name), **summarise_models(steps, first.name)}
    models["reproduced"] = _reproduced(models["groups"], {c.name: c.kind for c in declared.predictors})
    if "operators" in declared.report:
        own = steps.where(predictor=first.name, seed=first.seeds[0])
        sums = {step: ms for one in data.together() for step, ms in operator_sums(one).items()}
        models["oracle"] = summarise_oracle(own, sums)
    return models


def _reproduced(groups: Sequence[Mapping[str, Any]], kinds: Mapping[str, str]) -> list[dict[str, Any]]:
    """How many percentage points the mean of a baseline that is trained here is from its published one."""
    means = {row["predictor"]: row["mean"] for row in groups if row["group"] == "all"}
    pairs = {name: COUNTERPARTS.get(kind, "") for name, kind in kinds.items()}
    return [
        {"predictor": name, "points": abs(means[name] - means[published])}
        for name, published in pairs.items()
        if name in means and published in means
    ]
