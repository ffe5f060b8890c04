"""Contestants that learn in each fold, without the boards that it leaves out.

Trainings lie in the user's cache, in a folder by everything that they depend on: trained once, a report can be written
again in a minute, and experiments share what they have in common.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import nan
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from neusight.api import Predictor
from neusight.errors import DataError
from neusight.lab.baselines import BASELINES, BaselinePredictor
from neusight.lab.cache import code_sha256, key_of
from neusight.lab.contestants import Entrant, Lab, Round, changed, of_predictor
from neusight.lab.lessons import Lessons
from neusight.learn.training import TrainOptions, train
from neusight.measured.folder import hashes
from neusight.paths import cache_dir
from neusight.workers import hired, shared

if TYPE_CHECKING:
    from neusight.lab.declare import Contestant
    from neusight.learn import Report

QUICK_PASSES = {"mlp": ("epochs", 2), "gbm": ("rounds", 20)}
DONE = "training.json"
"""Written last: a folder without it was left by an interrupted training."""
KNOWN = "known"
"""Kind of contestants that learn from what a fold holds out, too, which none that does not will beat by much."""


def make_baseline(contestant: Contestant, seed: int, turn: Round, lab: Lab) -> Entrant | None:
    """A baseline that learned from all but the boards of a fold."""
    if not _takes_part(turn, lab):
        return None
    rows = lessons_of(lab).rows(lab.data, turn.held_out)
    return of_predictor(BaselinePredictor(BASELINES[contestant.kind](seed).fit(rows)))


def make_trained(contestant: Contestant, seed: int, turn: Round, lab: Lab) -> Entrant | None:
    """Tile models that learned from all but the boards of a fold, or of kind ``KNOWN`` from these, too."""
    if not _takes_part(turn, lab):
        return None
    options = training_of(contestant, seed, turn, lab)
    train_all([options], report=lab.report)
    return of_predictor(changed(Predictor.load(options.out), contestant))


def _takes_part(turn: Round, lab: Lab) -> bool:
    """Where boards are left out, or where the experiment leaves none out but those that it does not learn from."""
    return bool(turn.held_out) or not lab.declared.left_out


def lessons_of(lab: Lab) -> Lessons:
    """What is learned from.

    Raises:
        DataError: nothing is declared.
    """
    if lab.declared.lessons is None:
        raise DataError("a contestant learns in each fold, from nothing: declare [lessons] with files")
    return lab.declared.lessons


def training_of(contestant: Contestant, seed: int, turn: Round, lab: Lab) -> TrainOptions:
    """What to train for a fold, into a folder of the cache; the constants that it stands on are fitted first."""
    lessons, left_out = lessons_of(lab), () if contestant.kind == KNOWN else turn.held_out
    gpus = (*lessons.kept(left_out), *(turn.held_out if lessons.gpus and not left_out else ()))
    backend = contestant.options.get("backend", TrainOptions.backend)
    parameters = dict(contestant.options.get("parameters", {}))
    if lab.quick and backend in QUICK_PASSES:
        parameters |= [QUICK_PASSES[backend]]
    options = TrainOptions(
        files=lessons.tables(lab.data),
        out=Path(),
        models=lessons.models,
        gpus=tuple(dict.fromkeys(gpus)),
        hold_out=() if gpus else left_out,
        split=lessons.split,
        seed=seed,
        resume=True,
        physics=lessons.physics(lab.data, left_out, lab.quick, lab.report),
        refit_to=lab.data if lessons.refits else None,
        **{**contestant.options, "parameters": tuple(sorted(parameters.items()))},
    )
    key = key_of([options.request(), lessons.refits, hashes(options.files), code_sha256("neusight.learn.training")])
    return replace(options, out=cache_dir() / "experiments" / key)


def train_ahead(lab: Lab, rounds: Iterable[Round], jobs: int, ray: str) -> None:
    """Train the tile models of all rounds, shared among processes."""
    contestants = [contestant for contestant in lab.declared.contestants if contestant.kind in ("trained", KNOWN)]
    wanted = [
        training_of(contestant, seed, turn, lab)
        for turn in rounds
        if _takes_part(turn, lab)
        for contestant in contestants
        for seed in contestant.seeds
    ]
    train_all(wanted, jobs, lab.report, ray)


def train_all(wanted: Iterable[TrainOptions], jobs: int = 1, report: Report | None = None, ray: str = "") -> None:
    """Train what the cache lacks, ``jobs`` at a time, here or on a Ray cluster; an interrupted training goes on where
    it was.
    """
    missing = list({options.out: options for options in wanted if not (options.out / DONE).is_file()}.values())
    if (jobs == 1 and not ray) or len(missing) < 2:
        for options in missing:
            _train(options, report)
        return
    with hired(min(jobs, len(missing)), ray) as workers:
        trained = shared(workers, _trained, missing, report and (lambda done, of: report("trainings", done, of, nan)))
    for options, files in zip(missing, trained, strict=True):
        # Another host has a folder of its own.
        if not (options.out / DONE).is_file():
            _keep(options.out, files)


def _trained(options: TrainOptions) -> dict[str, bytes]:
    """The files that a training left, by their path in its folder, that of its end last."""
    _train(options)
    files = sorted((path for path in options.out.rglob("*") if path.is_file()), key=lambda path: path.name == DONE)
    return {path.relative_to(options.out).as_posix(): path.read_bytes() for path in files}


def _keep(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _train(options: TrainOptions, report: Report | None = None) -> None:
    began, name = monotonic(), options.out.name[:6]

    def named(task: str, done: int, of: int, error: float) -> None:
        """Progress that tells one fold's training from another's."""
        if report:
            report(f"{name}: {task}", done, of, error)

    train(options, named if report else None)
    (options.out / DONE).write_text(json.dumps({"seconds": monotonic() - began}) + "\n", encoding="utf-8")


MAKERS: dict[str, Any] = {
    "trained": make_trained,
    KNOWN: make_trained,
    **dict.fromkeys(BASELINES, make_baseline),
}
"""By the kind of a contestant."""
