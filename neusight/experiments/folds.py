"""The folds of an experiment made ready: everything trained without the held-out GPUs, one entrant a training.

Tile models that experiments train lie in the user's cache, in a folder by everything that they depend on: trained once,
a report can be written again in a minute, and experiments share what they have in common.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from math import nan
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import TYPE_CHECKING, Any

from neusight.datasets.load import parquet_files
from neusight.devices import load_device
from neusight.errors import DataError
from neusight.executors.gpu.tile_models.artifact import file_sha256
from neusight.experiments.constants import Constants
from neusight.experiments.entrants import Entrant, TileModelEntrant, corpus_of, fitted_baseline
from neusight.laws.constants import with_values
from neusight.learn.training import TrainOptions, train
from neusight.paths import cache_dir, checkout_dir

if TYPE_CHECKING:
    from neusight.experiments.declare import Contestant, Declaration, Fold
    from neusight.laws.fitted import FittedPhysics
    from neusight.learn import Report

QUICK_ROWS = 60
"""Rows of each GPU, operator and split that a quick run keeps."""
QUICK_PASSES = {"mlp": ("epochs", 2), "gbm": ("rounds", 20)}
DONE = "training.json"
"""Written last: a folder without it was left by an interrupted training."""
LEARNERS = ("kernels", "devices", "laws", "datasets", "executors/gpu", "learn")
"""Rooms whose code decides what is learned."""


@dataclass(frozen=True)
class Round:
    """A fold with its entrants. ``groups``: held-out GPU to ``held_out``, or ``other_vendor`` where none of the
    training GPUs is of its vendor.
    """

    fold: Fold
    training: tuple[str, ...]
    groups: Mapping[str, str]
    entrants: tuple[Entrant, ...]


@contextmanager
def kernels_of(declared: Declaration, quick: bool) -> Iterator[Path]:
    """Folder with the kernels to train and test on; of a quick run, a sample that is the same every time."""
    source = declared.data.path("kernels")
    if not quick:
        yield source
        return
    import pandas as pd

    with TemporaryDirectory(prefix="neusight-") as scratch:
        for file in parquet_files(source):
            rows = pd.read_parquet(file).sample(frac=1.0, random_state=0)
            keys = [key for key in ("gpu", "op", "split") if key in rows]
            kept = rows.groupby(keys).head(QUICK_ROWS).sort_index()
            kept.to_parquet(Path(scratch) / file.name)
        yield Path(scratch)


@dataclass(frozen=True)
class Trainings:
    """What an experiment trains: ``source`` is the folder with the kernels; ``quick`` trains next to nothing."""

    declared: Declaration
    source: Path
    quick: bool = False

    def wanted(self, report: Report | None = None) -> dict[tuple[str, str], TrainOptions]:
        """Tile models by the names of fold and training; what they stand on is fitted first."""
        trained = any(contestant.kind == "ours" for contestant in self.declared.predictors)
        physics = self.constants(report) if trained else {}
        return {
            (fold.name, contestant.label(seed)): self.options(fold, contestant, seed, physics[fold.name])
            for fold in self.declared.folds
            for contestant in self.declared.predictors
            for seed in contestant.seeds
            if contestant.kind == "ours"
        }

    def constants(self, report: Report | None = None) -> dict[str, FittedPhysics]:
        """Constants of physics for each fold, fitted without what it holds out."""
        data, code = self.declared.data, code_sha256()
        if data.constants == "all":
            several = Constants(data.folder.parent, code, self.quick)
            return {fold.name: several.without(fold.held_out, report) for fold in self.declared.folds}
        own = Constants(self.source, code, self.quick, data.training_split)
        return {fold.name: own.of(self.declared.training(fold), report) for fold in self.declared.folds}

    def options(self, fold: Fold, contestant: Contestant, seed: int, physics: FittedPhysics) -> TrainOptions:
        """What to train for a fold; ``out`` is the folder in the cache."""
        further = self._short(contestant.options) if self.quick else dict(contestant.options)
        further["parameters"] = tuple(sorted(further.get("parameters", {}).items()))
        options = TrainOptions(
            source=self.source,
            out=Path(),
            models=self.declared.data.models,
            gpus=self.declared.training(fold),
            split=self.declared.data.training_split,
            seed=seed,
            resume=True,
            physics=physics,
            **further,
        )
        return replace(options, out=cache_dir() / "experiments" / _key(options))

    @staticmethod
    def _short(options: Mapping[str, Any]) -> dict[str, Any]:
        backend = options.get("backend", TrainOptions.backend)
        if backend not in QUICK_PASSES:
            return dict(options)
        name, passes = QUICK_PASSES[backend]
        return {**options, "parameters": {name: passes, **options.get("parameters", {})}}


def rounds_of(trainings: Trainings, jobs: int = 1, report: Report | None = None) -> tuple[list[Round], float]:
    """Train what has to be trained, ``jobs`` at a time, and take every fold's predictors.

    Returns:
        The rounds, and the seconds that their trainings took, when they were done.

    Raises:
        DataError: data are missing, or tile models that ship learned from a held-out GPU.
    """
    began = monotonic()
    wanted = trainings.wanted(report)
    fitting = monotonic() - began
    train_all(wanted.values(), jobs, report)
    began = monotonic()
    rounds = []
    for fold in trainings.declared.folds:
        folders = {label: options.out for (name, label), options in wanted.items() if name == fold.name}
        rounds.append(_round(trainings, fold, folders, report))
    return rounds, fitting + training_seconds({options.out for options in wanted.values()}) + monotonic() - began


def _round(trainings: Trainings, fold: Fold, folders: Mapping[str, Path], report: Report | None) -> Round:
    declared, training = trainings.declared, trainings.declared.training(fold)
    vendors = {load_device(gpu).vendor for gpu in training}
    groups = {gpu: "held_out" if load_device(gpu).vendor in vendors else "other_vendor" for gpu in fold.held_out}
    corpus, entrants = corpus_of(declared.data, trainings.source, training), []
    for contestant in declared.predictors:
        for seed in contestant.seeds:
            if contestant.kind in ("ours", "shipped"):
                entrants.append(_tile_models(fold, contestant, seed, folders.get(contestant.label(seed))))
                continue
            entrants.append(fitted_baseline(contestant, seed, corpus, training, declared.data.families))
            if report:
                report(f"{fold.name}: {contestant.label(seed)}", 1, 1, nan)
    return Round(fold, training, groups, tuple(entrants))


def _tile_models(fold: Fold, contestant: Contestant, seed: int, folder: Path | None) -> Entrant:
    """Those of a folder, or those that ship.

    Raises:
        DataError: they learned from a GPU that the fold holds out.
    """
    from neusight.api import Predictor

    predictor, label = Predictor.load(folder), contestant.label(seed)
    if contestant.physics:
        kernels = predictor.kernel_predictor
        predictor = Predictor(replace(kernels, physics=with_values(kernels.physics, contestant.physics)))
    entrant = TileModelEntrant(contestant.name, seed, label, predictor)
    if seen := set(entrant.provenance()["training_gpus"]) & set(fold.held_out):
        raise DataError(
            f"the tile models of '{label}' learned from {', '.join(sorted(seen))}, which fold '{fold.name}' holds out: "
            'declare kind = "ours", which trains in each fold'
        )
    return entrant


def train_all(wanted: Iterable[TrainOptions], jobs: int = 1, report: Report | None = None) -> None:
    """Train what the cache lacks, ``jobs`` at a time; an interrupted training goes on where it was."""
    missing = list({options.out: options for options in wanted if not (options.out / DONE).is_file()}.values())
    if jobs == 1 or len(missing) < 2:
        for options in missing:
            _train(options, report)
        return
    from multiprocessing import get_context

    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for done, future in enumerate(as_completed([pool.submit(_train, options) for options in missing]), start=1):
            future.result()
            if report:
                report("trainings", done, len(missing), nan)


def training_seconds(folders: Iterable[Path]) -> float:
    """How long the trainings of these folders took, when they were done."""
    return sum(json.loads((folder / DONE).read_text(encoding="utf-8"))["seconds"] for folder in folders)


def _train(options: TrainOptions, report: Report | None = None) -> None:
    began = monotonic()
    train(options, _named(options, report))
    (options.out / DONE).write_text(json.dumps({"seconds": monotonic() - began}) + "\n", encoding="utf-8")


def _named(options: TrainOptions, report: Report | None) -> Report | None:
    """Progress that tells one fold's training from another's."""
    if report is None:
        return None
    gpus = f"{options.backend} on {len(options.gpus)} GPUs, {options.out.name[:6]}"
    return lambda task, done, of, error: report(f"{gpus}: {task}", done, of, error)


def _key(options: TrainOptions) -> str:
    """A hash of the options, the data and the code."""
    request = {name: value for name, value in asdict(options).items() if name not in ("source", "out", "resume")}
    data = [[file.name, file_sha256(file)] for file in parquet_files(options.source)]
    return sha256(json.dumps([request, data, code_sha256()], sort_keys=True).encode()).hexdigest()[:24]


def code_sha256() -> str:
    """A hash of the code and the contracts that decide what tile models learn."""
    package = Path(__file__).resolve().parent.parent
    rooms = [*(package / room for room in LEARNERS), checkout_dir("features")]
    files = [file for room in rooms for kind in ("*.py", "*.toml") for file in sorted(room.rglob(kind))]
    return sha256("".join(f"{file.name} {file_sha256(file)}\n" for file in files).encode()).hexdigest()
