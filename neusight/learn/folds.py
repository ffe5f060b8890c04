"""Leave-one-GPU-out folds: each trained without one GPU and measured on it; they choose when to stop.

Folds are kept on disk as they finish so that an interrupted training can resume.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from neusight.executors.gpu.features import FeatureContract
from neusight.executors.gpu.tile_models.protocol import TileModel, TrainingSet, new_model, utilisation
from neusight.learn.intervals import log_ratios, quantiles
from neusight.learn.tile_choice import Choices
from neusight.learn.training_data import Corpus, DeviceRows
from neusight.learn.training_sets import launch_floors, training_set
from neusight.paths import read_json

LEAST_REAL = 40
"""Rows of an op that say more of a device than all of its rows, if they have the shapes of real models (assumption)."""

Report = Callable[[str, int, int, float], None]
"""Called with (task, done, of, held-out error)."""


@dataclass(frozen=True)
class Fold:
    """One held-out GPU: its error after each epoch, and by op quantiles of the log ratio measured / predicted."""

    gpu: str
    history: list[float]
    ratios: dict[str, list[float]]
    mape: dict[str, float]


class FoldStore:
    """Finished folds on disk, usable only by a run with the same key.

    Args:
        folder: where they are kept.
        key: everything that a fold depends on.
        resume: keep what an earlier run left.
    """

    def __init__(self, folder: Path, key: str, resume: bool) -> None:
        self.folder = folder
        self.key = key
        if not resume:
            self.clear()

    def load(self, family: str, gpu: str) -> Fold | None:
        """A finished fold, or None."""
        path = self._path(family, gpu)
        if not path.is_file():
            return None
        content = read_json(path)
        return Fold(**content["fold"]) if content["key"] == self.key else None

    def save(self, family: str, fold: Fold) -> None:
        """Keep a finished fold; written beside and renamed, so that it is whole or absent."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(family, fold.gpu)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps({"key": self.key, "fold": vars(fold)}))
        partial.replace(path)

    def clear(self) -> None:
        """Forget all folds."""
        for path in self.folder.glob("*"):
            path.unlink()
        if self.folder.is_dir():
            self.folder.rmdir()

    def _path(self, family: str, gpu: str) -> Path:
        return self.folder / f"{family}--{gpu}.json"


@dataclass(frozen=True)
class FoldRun:
    """Leave-one-GPU-out folds of one family, learning from ``corpus``, measured on all rows of what is left out."""

    family: str
    contract: FeatureContract
    corpus: Corpus
    whole: Corpus
    choices: Choices
    backend: str
    state: FoldStore
    report: Report | None

    def all(self, parameters: dict[str, Any], stage: str) -> list[Fold]:
        """One fold a GPU, or none when there is only one GPU; ``stage`` names them in the store."""
        known = self.corpus.gpus(self.family)
        rows = [r for r in self.whole.rows[self.family] if r.device.id in known]
        return [self._stored(held, parameters, stage) for held in rows] if len(rows) > 1 else []

    def _stored(self, held: DeviceRows, parameters: dict[str, Any], stage: str) -> Fold:
        name = f"{self.family}-{stage}"
        if (done := self.state.load(name, held.device.id)) is not None:
            return done
        fold = self._fitted(held, parameters, stage)
        self.state.save(name, fold)
        return fold

    def _fitted(self, held: DeviceRows, parameters: dict[str, Any], stage: str) -> Fold:
        """Train without one GPU and measure on it; tile choice and launch floors are learned without it as well."""
        gpu = held.device.id
        others = [r for r in self.corpus.rows[self.family] if r.device.id != gpu]
        choice, floors = self.choices.without(gpu), launch_floors(others)
        target = training_set([held], self.contract, choice, floors)
        task = f"{self.family}: without {gpu}" + (", stopped" if stage == "stopped" else "")
        model = new_model(self.backend, **parameters)
        data = training_set(others, self.contract, choice, floors)
        model.fit(data, _validation(target, held), progress(self.report, task))
        return _measured(model, target, held)


def real_shapes(held: DeviceRows) -> np.ndarray:
    """Rows with the shapes of real models where the data mark enough of their op (as the test split), else all; a
    mask.
    """
    test, ops = held.split == "test", held.batch["op"].astype(str)
    marked, counts = np.unique(ops[test], return_counts=True)
    return np.where(np.isin(ops, marked[counts >= LEAST_REAL]), test, True)


def _validation(target: TrainingSet, held: DeviceRows) -> TrainingSet:
    """The rows that choose when to stop."""
    return _by_bound(target.take(real_shapes(held)))


def _by_bound(rows: TrainingSet) -> TrainingSet:
    """Rows weighing by the root of their bound as well: long kernels carry the time of models."""
    return replace(rows, weight=rows.weight * np.sqrt(rows.bound_s))


def _measured(model: TileModel, target: TrainingSet, held: DeviceRows) -> Fold:
    execution_s = target.bound_s / utilisation(model.logits(target.features, target.prior))
    error = np.abs((target.floor_s + execution_s) / target.latency_s - 1.0)
    ops = held.batch["op"].astype(str)
    ratios = log_ratios(model, target)
    real = real_shapes(held)
    return Fold(
        gpu=held.device.id,
        history=[float(e) for e in getattr(model, "history_", [])],
        ratios={str(op): _quantiles_of(ratios, target.weight, real & (ops == op)) for op in np.unique(ops[real])},
        mape={str(op): round(100 * float(error[ops == op].mean()), 2) for op in np.unique(ops)},
    )


def _quantiles_of(ratios: np.ndarray, weight: np.ndarray, mask: np.ndarray) -> list[float]:
    return quantiles(ratios[mask], weight[mask])


def with_kin(folds: Sequence[Fold], rows: Sequence[DeviceRows]) -> Sequence[Fold]:
    """The folds that left out a device while another one of its vendor stayed; all where there is no such fold.

    The others tell how wrong a model is across vendors; devices of vendors with fewer than two in training count as
    outside of it.
    """
    vendor = {r.device.id: r.device.vendor for r in rows}
    several = {name for name, count in Counter(vendor.values()).items() if count > 1}
    return [f for f in folds if vendor[f.gpu] in several] or folds


def best_stop(backend: str, folds: Sequence[Fold]) -> dict[str, int]:
    """The first epoch (or ten rounds) whose error on the held-out devices is not clearly above the best one's; epoch 0
    is the prior alone.

    Clearly: by more than one standard error of the differences, fold by fold (Hastie et al. 2009, section 7.10). A few
    devices cannot tell neighbouring epochs apart, and the less was learned, the more the physical prior holds.
    """
    lengths = {len(f.history) for f in folds}
    if backend not in ("mlp", "gbm") or len(lengths) != 1 or len(folds) < 2:
        return {}
    errors = np.array([f.history for f in folds])
    above = errors - errors[:, [int(np.argmin(errors.mean(axis=0)))]]
    doubt = above.std(axis=0, ddof=1) / np.sqrt(len(folds))
    stop = int(np.argmax(above.mean(axis=0) <= doubt))
    return {"stop": stop} if backend == "mlp" else {"rounds": 10 * (stop + 1)}


def progress(report: Report | None, task: str) -> Callable[[int, int, float], None]:
    """What a backend calls, for ``report``."""

    def update(done: int, of: int, error: float) -> None:
        if report:
            report(task, done, of, error)

    return update
