"""Run an experiment: train without the held-out GPUs of every fold, predict, compare, summarise; or simulate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.evaluation.scored import joined
from neusight.experiments.declare import (
    Declaration,
    DiesDeclaration,
    Experiment,
    ServingDeclaration,
    SparseDeclaration,
    TrainingDeclaration,
)
from neusight.experiments.folds import QUICK_ROWS, Round, Trainings, code_sha256, kernels_of, rounds_of
from neusight.experiments.judge import verdicts
from neusight.experiments.kernels import (
    averaged,
    calibration,
    few_shot_of,
    kernel_cells,
    main_group,
    predicted_rows,
    sample,
    tested_rows,
)
from neusight.experiments.models import model_rows, oracle_errors, summarise_models, summarise_oracle, with_oracle
from neusight.experiments.results import data_sha256, rounded, versions

if TYPE_CHECKING:
    import pandas as pd

    from neusight.learn import Report

Rounds = Sequence[Round]


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


def run(experiment: Experiment, quick: bool = False, jobs: int = 1, report: Report | None = None) -> dict[str, Any]:
    """Do what an experiment declares.

    Args:
        experiment: what to do.
        quick: on a small sample and with little training, to see that all works; the results say so.
        jobs: trainings at a time.
        report: called with progress.

    Returns:
        What ``results.json`` holds: the declaration, versions, ``seconds``, the parts that were asked for, and
        ``verdicts``; of what is measured also hashes of data and code, and provenance of what was ``trained``.

    Raises:
        DataError: data are missing or foreign, tile models that ship learned from a held-out GPU, or a profile of
            zeros is missing, malformed, or of other layers than its network's.
    """
    declared, clock = experiment.declared, Clock()
    if isinstance(declared, SparseDeclaration):
        from neusight.experiments import sparse

        with clock.timing("simulation"):
            parts, remark = sparse.run(declared, experiment.folder, quick, report), sparse.QUICK_REMARK
    elif isinstance(declared, DiesDeclaration):
        from neusight.experiments import dies

        with clock.timing("folds"):
            parts, remark = dies.run(declared, quick, report), dies.QUICK_REMARK
        clock.seconds["earlier trainings"] = parts.pop("cached_s")
    elif isinstance(declared, ServingDeclaration):
        from neusight.experiments import runs

        with clock.timing("cells"):
            parts, remark = runs.run_serving(declared, quick, report), runs.QUICK_SERVING
    elif isinstance(declared, TrainingDeclaration):
        from neusight.experiments import runs

        with clock.timing("steps"):
            parts, remark = runs.run_training(declared, quick, report), runs.QUICK_TRAINING
    else:
        parts, remark = _measured(declared, quick, jobs, report, clock), QUICK_REMARK
    code = {} if isinstance(declared, SparseDeclaration) else {"code_sha256": code_sha256()}
    head = {
        "experiment": experiment.id,
        "declared": declared.model_dump(mode="json"),
        "quick": remark if quick else None,
    }
    return rounded({**head, "versions": versions(), "seconds": clock.seconds, **code, **parts})


QUICK_REMARK = (
    f"A quick run: at most {QUICK_ROWS} rows of each GPU, operator and split, and little training. "
    "It shows that everything works. Its figures are no results."
)
"""The remark beside figures of a quick run, wherever they stand."""


def _measured(declared: Declaration, quick: bool, jobs: int, report: Report | None, clock: Clock) -> dict[str, Any]:
    """Train, predict and compare with what was measured."""
    with kernels_of(declared, quick) as source:
        rounds, clock.seconds["training"] = rounds_of(Trainings(declared, source, quick), jobs, report)
        parts = _evaluated(declared, rounds, source, clock)
    head: dict[str, Any] = {"sha256": data_sha256(declared)}
    head["trained"] = {r.fold.name: {e.label: e.provenance() for e in r.entrants} for r in rounds}
    predictors = {contestant.name: contestant.kind for contestant in declared.predictors}
    return {**head, **parts, "verdicts": verdicts(parts, declared.targets, predictors)}


def _evaluated(declared: Declaration, rounds: Rounds, source: Path, clock: Clock) -> dict[str, Any]:
    """The parts of the report that were asked for."""
    from neusight.datasets import load_kernels

    parts: dict[str, Any] = {}
    if "models" in declared.report:
        with clock.timing("models"):
            parts["models"] = _models(declared, rounds)
    frame = load_kernels(source, declared.data.families or None)
    if "kernels" in declared.report:
        with clock.timing("kernels"):
            parts["kernels"] = _kernels(declared, rounds, frame)
    if declared.few_shot is not None:
        with clock.timing("few-shot"):
            parts["few_shot_curve"] = few_shot_of(declared, rounds, frame)
    return parts


def _kernels(declared: Declaration, rounds: Rounds, frame: pd.DataFrame) -> dict[str, Any]:
    rows = joined(
        predicted_rows(tested, entrant, r.fold.name)
        for r in rounds
        for gpu in r.fold.held_out
        for tested in [tested_rows(frame, gpu, declared.data.tested_split, declared.data.families)]
        for entrant in r.entrants
    )
    cells = kernel_cells(rows, {(r.fold.name, gpu): group for r in rounds for gpu, group in r.groups.items()})
    first = declared.predictors[0]
    judged = rows.where(predictor=first.name, seed=first.seeds[0])
    main = judged.where(gpu={cell["gpu"] for cell in cells if cell["group"] == main_group(cells)})
    kernels = {"cells": cells, "by_kind": averaged(cells), "sample": sample(judged)}
    return kernels | ({} if np.isnan(main.inside).any() else {"calibration": calibration(main)})


def _models(declared: Declaration, rounds: Rounds) -> dict[str, Any]:
    data = declared.data
    rows = [{"fold": r.fold.name, **row} for r in rounds for row in model_rows(data, _groups(declared, r), r.entrants)]
    oracle: dict[str, Any] = {}
    if "operators" in declared.report:
        label = rounds[0].entrants[0].label
        rows = with_oracle(rows, oracle_errors(data), label)
        oracle["oracle"] = summarise_oracle(rows, label)
    return {"rows": rows, **summarise_models(rows), **oracle}


def _groups(declared: Declaration, r: Round) -> dict[str, str]:
    training = dict.fromkeys(r.training if declared.models_on == "all" else (), "training")
    return training | dict(r.groups)
