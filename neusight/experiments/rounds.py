"""The folds of an experiment made ready: everything trained without the held-out GPUs, one entrant a training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import TYPE_CHECKING

from neusight.devices import load_device
from neusight.errors import DataError
from neusight.experiments.baseline_entrant import corpus_of, fitted_baseline
from neusight.experiments.entrants import Entrant, TileModelEntrant
from neusight.experiments.trained import options_of, train_all, training_seconds
from neusight.laws.physics import DEFAULT

if TYPE_CHECKING:
    from neusight.experiments.declare import Contestant, Declaration, Fold
    from neusight.learn.training import Options, Report

QUICK_ROWS = 60
"""Rows of each GPU, operator and split that a quick run keeps."""
QUICK_PASSES = {"mlp": ("epochs", 2), "gbm": ("rounds", 20)}


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

    from neusight.datasets.load import parquet_files

    with TemporaryDirectory(prefix="neusight-") as scratch:
        for file in parquet_files(source):
            rows = pd.read_parquet(file).sample(frac=1.0, random_state=0)
            keys = [key for key in ("gpu", "op", "split") if key in rows]
            kept = rows.groupby(keys).head(QUICK_ROWS).sort_index()
            kept.to_parquet(Path(scratch) / file.name)
        yield Path(scratch)


def rounds_of(
    declared: Declaration, source: Path, quick: bool = False, jobs: int = 1, report: Report | None = None
) -> tuple[list[Round], float]:
    """Train what has to be trained, and take every fold's predictors.

    Returns:
        The rounds, and the seconds that their trainings took, when they were done.

    Raises:
        DataError: data are missing, or tile models that ship learned from a held-out GPU.
    """
    wanted = {
        (fold.name, contestant.label(seed)): _options(declared, fold, contestant, seed, source, quick)
        for fold in declared.folds
        for contestant in declared.predictors
        for seed in contestant.seeds
        if contestant.kind == "ours"
    }
    train_all(wanted.values(), jobs, report)
    began = monotonic()
    rounds = []
    for fold in declared.folds:
        folders = {label: options.out for (name, label), options in wanted.items() if name == fold.name}
        rounds.append(_round(declared, fold, folders, source, report))
    return rounds, training_seconds({options.out for options in wanted.values()}) + monotonic() - began


def _options(
    declared: Declaration, fold: Fold, contestant: Contestant, seed: int, source: Path, quick: bool
) -> Options:
    options = options_of(declared, fold, contestant, seed, source)
    if not quick or options.backend not in QUICK_PASSES:
        return options
    name, passes = QUICK_PASSES[options.backend]
    parameters = {name: passes} | contestant.options.get("parameters", {})
    short = contestant.model_copy(update={"options": contestant.options | {"parameters": parameters}})
    return options_of(declared, fold, short, seed, source)


def _round(
    declared: Declaration, fold: Fold, folders: Mapping[str, Path], source: Path, report: Report | None
) -> Round:
    training = declared.training(fold)
    vendors = {load_device(gpu).vendor for gpu in training}
    groups = {gpu: "held_out" if load_device(gpu).vendor in vendors else "other_vendor" for gpu in fold.held_out}
    corpus, entrants = corpus_of(declared.data, source, training), []
    for contestant in declared.predictors:
        for seed in contestant.seeds:
            if contestant.kind in ("ours", "shipped"):
                entrants.append(_tile_models(fold, contestant, seed, folders.get(contestant.label(seed))))
                continue
            entrants.append(fitted_baseline(contestant, seed, corpus, training))
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
    learned = set(predictor.kernel_predictor.provenance["training_gpus"])
    if seen := learned & set(fold.held_out):
        raise DataError(
            f"the tile models of '{label}' learned from {', '.join(sorted(seen))}, which fold '{fold.name}' holds out: "
            'declare kind = "ours", which trains in each fold'
        )
    if contestant.physics:
        kernels = replace(predictor.kernel_predictor, physics=replace(DEFAULT, **contestant.physics))
        predictor = Predictor(kernels)
    return TileModelEntrant(contestant.name, seed, label, predictor)
