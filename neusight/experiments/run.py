"""Run an experiment: train without the held-out GPUs of every fold, predict, compare, summarise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from neusight.experiments.declare import Declaration, Experiment, SparseExperiment
from neusight.experiments.kernel_rows import predicted_rows, tested_rows
from neusight.experiments.kernel_summary import averaged, calibration, kernel_cells, main_group, sample
from neusight.experiments.model_rows import model_rows, summarise_models
from neusight.experiments.oracle import oracle_errors, summarise_oracle, with_oracle
from neusight.experiments.results import data_sha256, rounded, versions
from neusight.experiments.rounds import QUICK_ROWS, Round, kernels_of, rounds_of
from neusight.experiments.trained import code_sha256
from neusight.experiments.verdicts import verdicts

if TYPE_CHECKING:
    import pandas as pd

    from neusight.learn.training import Report

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


def run(
    experiment: Experiment | SparseExperiment, quick: bool = False, jobs: int = 1, report: Report | None = None
) -> dict[str, Any]:
    """Do what an experiment declares: with ``jobs`` trainings at a time where it trains; see ``run_measured`` and
    ``sparse_run.run``.
    """
    if isinstance(experiment, SparseExperiment):
        from neusight.experiments import sparse_run

        return sparse_run.run(experiment, quick, report)
    return run_measured(experiment, quick, jobs, report)


def run_measured(
    experiment: Experiment, quick: bool = False, jobs: int = 1, report: Report | None = None
) -> dict[str, Any]:
    """Train, predict and compare with what was measured.

    Args:
        experiment: what to do.
        quick: on a small sample and with little training, to see that all works; the results say so.
        jobs: trainings at a time.
        report: called with training progress.

    Returns:
        What ``results.json`` holds: the declaration, hashes and versions, ``seconds``, provenance of what was
        ``trained``, the parts that were asked for, and ``targets``.

    Raises:
        DataError: data are missing or foreign, or tile models that ship learned from a held-out GPU.
    """
    declared, clock = experiment.declared, Clock()
    with kernels_of(declared, quick) as source:
        rounds, training_s = rounds_of(declared, source, quick, jobs, report)
        clock.seconds["training"] = training_s
        found = evaluated(declared, rounds, source, clock)
    head: dict[str, Any] = {"experiment": experiment.id, **declared.model_dump(mode="json")}
    head["quick"] = quick_said() if quick else None
    head |= {"sha256": data_sha256(declared), "code_sha256": code_sha256(), "versions": versions()}
    head["trained"] = {r.fold.name: {e.label: e.provenance() for e in r.entrants} for r in rounds}
    predictors = {contestant.name: contestant.kind for contestant in declared.predictors}
    targets = verdicts(found, declared.targets, predictors)
    return rounded({**head, "seconds": clock.seconds, **found, "verdicts": targets})


def quick_said() -> str:
    """What is to be said of a quick run, wherever its figures stand."""
    return (
        f"A quick run: at most {QUICK_ROWS} rows of each GPU, operator and split, and little training. "
        "It shows that everything works. Its figures are no results."
    )


def evaluated(declared: Declaration, rounds: Rounds, source: Path, clock: Clock) -> dict[str, Any]:
    """The parts of the report that were asked for."""
    from neusight.datasets import load_kernels

    found: dict[str, Any] = {}
    if "models" in declared.report:
        with clock.timing("models"):
            found["models"] = _models(declared, rounds)
    frame = load_kernels(source, declared.data.families or None)
    if "kernels" in declared.report:
        with clock.timing("kernels"):
            found["kernels"] = _kernels(declared, rounds, frame)
    if declared.few_shot is not None:
        from neusight.experiments.few_shot import few_shot_of

        with clock.timing("few-shot"):
            found["few_shot_curve"] = few_shot_of(declared, rounds, frame)
    return found


def _kernels(declared: Declaration, rounds: Rounds, frame: pd.DataFrame) -> dict[str, Any]:
    import pandas as pd

    parts = []
    for r in rounds:
        for gpu in r.fold.held_out:
            tested = tested_rows(frame, gpu, declared.data.tested_split, declared.data.families)
            parts += [predicted_rows(tested, entrant).assign(fold=r.fold.name) for entrant in r.entrants]
    rows = pd.concat(parts, ignore_index=True)
    cells = kernel_cells(rows, {(r.fold.name, gpu): group for r in rounds for gpu, group in r.groups.items()})
    first = declared.predictors[0]
    judged = rows[(rows["predictor"] == first.name) & (rows["seed"] == first.seeds[0])]
    main = judged[judged["gpu"].isin([cell["gpu"] for cell in cells if cell["group"] == main_group(cells)])]
    found = {"cells": cells, "by_kind": averaged(cells), "sample": sample(judged)}
    return found | ({"calibration": calibration(main)} if main["low"].notna().all() else {})


def _models(declared: Declaration, rounds: Rounds) -> dict[str, Any]:
    data = declared.data
    rows = [{"fold": r.fold.name, **row} for r in rounds for row in model_rows(data, _groups(declared, r), r.entrants)]
    found: dict[str, Any] = {}
    if "operators" in declared.report:
        label = rounds[0].entrants[0].label
        rows = with_oracle(rows, oracle_errors(data), label)
        found["oracle"] = summarise_oracle(rows, label)
    return {"rows": rows, **summarise_models(rows), **found}


def _groups(declared: Declaration, r: Round) -> dict[str, str]:
    training = dict.fromkeys(r.training if declared.models_on == "all" else (), "training")
    return training | dict(r.groups)
