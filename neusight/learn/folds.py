"""Folds that leave out a kind of SM, a board beside its siblings, or rows of all boards: each trained without them and
measured on them. They choose the shrinkage and, by ``doubts``, the intervals.

Folds are kept on disk as they finish so that an interrupted training can resume.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from neusight.devices import list_gpus
from neusight.devices.kinship import Silicon
from neusight.executors.gpu.features import FeatureContract, situate
from neusight.executors.gpu.tile_models.artifact import implementations, kernel_kinds, sm_kind
from neusight.executors.gpu.tile_models.doubts import doubt_names
from neusight.executors.gpu.tile_models.protocol import (
    Progress,
    TileModel,
    TrainingSet,
    device_biases,
    new_model,
    utilisation,
)
from neusight.executors.gpu.tiling import TileChoice
from neusight.kernels.work import by_distinct
from neusight.laws.physics import Physics
from neusight.learn import Report
from neusight.learn.doubts import Residuals
from neusight.learn.training_data import Corpus, DeviceRows, thinned
from neusight.learn.training_sets import Knowledge, group_names, launch_floors, training_set
from neusight.paths import read_json


def quantiles(values: np.ndarray, weight: np.ndarray) -> list[float]:
    """Weighted quantiles at 0, 1, … 100 %: a device's residuals in little space."""
    order = np.argsort(values)
    cumulated = np.cumsum(weight[order])
    grid = np.linspace(0, 1, 101) * cumulated[-1]
    return [float(v) for v in np.interp(grid, cumulated, values[order])]


LEAST_REAL = 40
"""Rows of an op that say more of a device than all of its rows, if they have the shapes of real models (assumption)."""

OWN_FOLD = 5
"""One in so many rows is left out to see how well the GPUs are known that were learned from."""
FOLD_ROWS = 4000
"""Of each GPU and family that a fold learns from and is measured on: there are many folds."""
SHRINKAGES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of what was learned that are tried on devices of kinds that were left out."""


@dataclass(frozen=True)
class FoldErrors:
    """One GPU that was left out: by share of what was learned (as text) the mean error of log times, by name of
    ``doubt_names`` quantiles of the log ratio measured / predicted, of ``rows`` of a family, and by kind of kernel mean
    errors in percent. ``die`` is its kind of SM.
    """

    gpu: str
    die: str
    error: dict[str, float]
    ratios: dict[str, dict[str, list[float]]]
    rows: dict[str, tuple[str, int]]
    mape: dict[str, dict[str, float]]

    def residuals(self, shrinkage: float) -> list[Residuals]:
        """What predictions missed by with a share of what was learned."""
        ratios = self.ratios[str(shrinkage)]
        return [
            Residuals(gpu=self.gpu, die=self.die, family=family, name=name, rows=rows, quantiles=ratios[name])
            for name, (family, rows) in self.rows.items()
        ]


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

    def kept(self, name: str, make: Callable[[], Sequence[FoldErrors]]) -> Sequence[FoldErrors]:
        """Finished folds of a name, or those that are made now; written beside and renamed, so that a file is whole or
        absent.
        """
        path = self.folder / f"{name.replace('/', '_')}.json"
        if path.is_file() and (content := read_json(path))["key"] == self.key:
            return [FoldErrors(**fold) for fold in content["folds"]]
        folds = make()
        self.folder.mkdir(parents=True, exist_ok=True)
        building = path.with_suffix(".partial")
        building.write_text(json.dumps({"key": self.key, "folds": [vars(fold) for fold in folds]}))
        building.replace(path)
        return folds

    def clear(self) -> None:
        """Forget all folds."""
        for path in self.folder.glob("*"):
            path.unlink()
        if self.folder.is_dir():
            self.folder.rmdir()


@dataclass(frozen=True)
class FoldRun:
    """Folds of one tile model, each without one kind of SM, learning from ``corpus``, measured on all rows of the GPUs
    that are left out: of each GPU and family ``most`` rows. ``backend`` see ``learner``.
    """

    model: str
    contract: FeatureContract
    corpus: Corpus
    whole: Corpus
    knowledge: FoldKnowledge
    backend: str
    state: FoldStore
    report: Report | None
    most: int

    def all(self, parameters: dict[str, Any]) -> list[FoldErrors]:
        """One fold a GPU, or none when there is only one kind."""
        held: dict[str, list[DeviceRows]] = {}
        for rows in self._known():
            held.setdefault(sm_kind(rows.device), []).append(rows)
        return self._folds("", held, {}, parameters) if len(held) > 1 else []

    def kin(self, parameters: dict[str, Any]) -> list[FoldErrors]:
        """One fold a GPU of which siblings are learned from: that one alone is left out, of the constants too."""
        rows = self._known()
        silicon = {r.device.id: Silicon.of(r.device) for r in rows}
        siblings = {
            gpu: {other for other in silicon if other != gpu and own.is_sibling_of(silicon[other])}
            for gpu, own in sorted(silicon.items())
        }
        held = {gpu: self._told([r for r in rows if r.device.id == gpu], kin) for gpu, kin in siblings.items()}
        told = {gpu: parts for gpu, own in held.items() if (parts := [r for r in own if len(r)])}
        return self._folds("-sibling", told, siblings, parameters)

    def _known(self) -> list[DeviceRows]:
        """All rows of GPUs that are learned from."""
        known = set(self.corpus.gpus(self.model))
        return [rows for rows in self.whole.rows[self.model] if rows.device.id in known]

    def own(self, parameters: dict[str, Any]) -> list[FoldErrors]:
        """One fold a GPU: rows that were left out of what was learned of all of them, its own bias among that."""
        rows = thinned(self.corpus.rows[self.model], self.most)
        known = self.knowledge.without((), self.corpus.rows[self.model])
        # Launches are those of all of a GPU's rows: a fifth of them tells less of how they drift.
        data = training_set(rows, self.contract, known)
        parts = [np.random.default_rng(1).permutation(len(r)) < len(r) // OWN_FOLD for r in rows]
        gpus, apart = np.concatenate([np.full(len(r), r.device.id) for r in rows]), np.concatenate(parts)
        learning, model = data.take(~apart), learner(self.backend, parameters)
        biases = device_biases(model.fit(learning), learning, group_names(rows))
        held: dict[str, list[DeviceRows]] = {}
        for r, part in zip(rows, parts, strict=True):
            if part.any():
                held.setdefault(r.device.id, []).append(r.take(part))
        return [
            _measured(gpu, model, own, data.take(apart & (gpus == gpu)), known, bias=_mean_biases(biases, {gpu}))
            for gpu, own in held.items()
        ]

    def _told(self, held: Sequence[DeviceRows], siblings: Collection[str]) -> list[DeviceRows]:
        """Rows of a device whose implementations its siblings ran too."""
        ran = ran_by([r for r in self.corpus.rows[self.model] if r.device.id in siblings])
        names = sorted({name for own in ran.values() for name in own})
        return [r.take(np.isin(implementations(r.batch, r.conditions), names)) for r in held]

    def _folds(
        self,
        how: str,
        held: Mapping[str, Sequence[DeviceRows]],
        siblings: Mapping[str, Collection[str]],
        parameters: dict[str, Any],
    ) -> list[FoldErrors]:
        """Folds that leave out the rows of each name, or those that an earlier run finished."""
        label = f"{self.model}-{self.backend}-{self.most}{how}"
        folds: list[FoldErrors] = []
        for name, rows in held.items():
            make = partial(self._fitted, name, rows, parameters, siblings.get(name, ()))
            folds += self.state.kept(f"{label}--{name}", make)
        return folds

    def _fitted(
        self, name: str, held: Sequence[DeviceRows], parameters: dict[str, Any], siblings: Collection[str] = ()
    ) -> list[FoldErrors]:
        """Train without the devices that are held and measure on them; constants, tile choice and launches are learned
        without them too. What is learned of ``siblings`` counts with their biases; without any, constants are learned
        without all boards of that kind, whichever table has them.
        """
        gpus = {r.device.id for r in held}
        kind = () if siblings else (device.id for device in list_gpus() if sm_kind(device) == name)
        others = [r for r in self.corpus.rows[self.model] if r.device.id not in gpus]
        known = self.knowledge.without(gpus.union(kind), others)
        model, learning = learner(self.backend, parameters), thinned(others, self.most)
        data = training_set(learning, self.contract, known)
        model.fit(data, None, progress(self.report, f"{self.model}: without {name}"))
        biases = device_biases(model, data, group_names(learning)) if siblings else {}
        bias = _mean_biases(biases, siblings)
        by_gpu: dict[str, list[DeviceRows]] = {}
        for rows in held:
            by_gpu.setdefault(rows.device.id, []).extend(thinned([rows], self.most))
        return [
            _measured(gpu, model, rows, training_set(rows, self.contract, known), known, bias=bias)
            for gpu, rows in by_gpu.items()
        ]


class Together:
    """The mean of models that are each fitted on their own."""

    def __init__(self, models: Sequence[TileModel]) -> None:
        self.models = models

    def fit(self, data: TrainingSet, held_out: TrainingSet | None = None, progress: Progress | None = None) -> Self:
        """Fit each."""
        for model in self.models:
            model.fit(data, held_out, progress)
        return self

    def logits(self, features: np.ndarray, prior: np.ndarray) -> np.ndarray:
        """logit(u) of each, shape (models, n)."""
        return np.stack([model.logits(features, prior).mean(axis=0) for model in self.models])


def learner(backend: str, parameters: Mapping[str, Any]) -> Any:
    """An unfitted model of a backend, or of several (``mlp+gbm``) that answer together."""
    if "+" not in backend:
        return new_model(backend, **parameters)
    return Together([new_model(name, **parameters) for name in backend.split("+")])


@dataclass(frozen=True)
class FoldKnowledge:
    """What a tile model stands on, learned without some GPUs: tiles of float32 libraries, and constants of physics."""

    choice: Callable[[frozenset[str]], TileChoice]
    physics: Callable[[frozenset[str]], Physics]

    def without(self, gpus: Collection[str], others: Sequence[DeviceRows]) -> Knowledge:
        """Without some GPUs; ``others`` tell what launches take."""
        left_out = frozenset(gpus)
        return Knowledge(self.physics(left_out), self.choice(left_out), launch_floors(others))


def real_shapes(held: DeviceRows) -> np.ndarray:
    """Rows with the shapes of real models where the data mark enough of their op (as the test split), else all; a
    mask.
    """
    test, ops = held.split == "test", held.batch["op"].astype(str)
    marked, counts = np.unique(ops[test], return_counts=True)
    return np.where(np.isin(ops, marked[counts >= LEAST_REAL]), test, True)


def _measured(
    gpu: str,
    model: TileModel,
    rows: Sequence[DeviceRows],
    data: TrainingSet,
    known: Knowledge,
    *,
    bias: Mapping[str, float],
) -> FoldErrors:
    """Errors on one GPU for every share of what was learned, ``bias`` of kinds of kernels included; ``data`` are the
    same rows.
    """
    kinds = np.concatenate([kernel_kinds(r.batch) for r in rows])
    names = np.concatenate([_doubt_names(r, known) for r in rows])
    families = np.concatenate([np.full(len(r), r.batch.family) for r in rows])
    real = np.concatenate([real_shapes(r) for r in rows])
    learned = model.logits(data.features, data.prior).mean(axis=0) - data.prior
    learned = learned + by_distinct(kinds, lambda kind: bias.get(kind, 0.0))
    error, ratios, mape = {}, {}, {}
    for shrinkage in SHRINKAGES:
        added = shrinkage * learned if shrinkage else 0.0
        execution_s = data.bound_s / utilisation((data.prior + added)[None])
        off = np.log((data.floor_s + execution_s) / data.latency_s)
        ratio = np.log(np.maximum(data.latency_s - data.floor_s, data.bound_s) / execution_s)
        name, weight = str(shrinkage), data.weight * real
        error[name] = float((np.abs(off) * weight).sum() / weight.sum())
        ratios[name] = {
            str(kind): _quantiles_of(ratio, data.weight, real & (names == kind)) for kind in np.unique(names[real])
        }
        mape[name] = {
            str(kind): round(100 * float(np.abs(np.expm1(off[kinds == kind])).mean()), 2) for kind in np.unique(kinds)
        }
    distinct, first, counts = np.unique(names[real], return_index=True, return_counts=True)
    rows_of = {str(n): (str(families[real][at]), int(c)) for n, at, c in zip(distinct, first, counts, strict=True)}
    return FoldErrors(gpu, sm_kind(rows[0].device), error, ratios, rows_of, mape)


def _doubt_names(r: DeviceRows, known: Knowledge) -> np.ndarray:
    situation = situate(r.batch, r.device, known.choice, physics=known.physics, conditions=r.conditions)
    return doubt_names(kernel_kinds(r.batch), situation)


def ran_by(rows: Sequence[DeviceRows]) -> dict[str, list[str]]:
    """The ``implementations`` that each GPU ran."""
    names: dict[str, set[str]] = {}
    for r in rows:
        names.setdefault(r.device.id, set()).update(np.unique(implementations(r.batch, r.conditions)).tolist())
    return {gpu: sorted(own) for gpu, own in sorted(names.items())}


def _mean_biases(biases: Mapping[str, float], gpus: Collection[str]) -> dict[str, float]:
    """The mean bias of some GPUs, by kind of kernel."""
    by_kind: dict[str, list[float]] = {}
    for name, value in biases.items():
        gpu, _, kind = name.partition("/")
        if gpu in gpus:
            by_kind.setdefault(kind, []).append(value)
    return {kind: sum(values) / len(values) for kind, values in by_kind.items()}


def _quantiles_of(ratios: np.ndarray, weight: np.ndarray, mask: np.ndarray) -> list[float]:
    return quantiles(ratios[mask], weight[mask])


def with_kin(folds: Sequence[FoldErrors], rows: Sequence[DeviceRows]) -> Sequence[FoldErrors]:
    """The folds that left out a kind while another one of its vendor stayed; all where there is no such fold.

    The others tell how wrong a model is across vendors; devices of vendors with fewer than two in training count as
    outside of it.
    """
    kin = kin_of(rows)
    return [f for f in folds if f.gpu in kin] or folds


def kin_of(rows: Sequence[DeviceRows]) -> set[str]:
    """Devices whose vendor has several kinds."""
    kinds = {(r.device.vendor, sm_kind(r.device)) for r in rows}
    several = {vendor for vendor, n in Counter(vendor for vendor, _ in kinds).items() if n > 1}
    return {r.device.id for r in rows if r.device.vendor in several}


def best_shrinkage(folds: Sequence[FoldErrors]) -> float:
    """The least share of what was learned whose error on devices left out is not clearly above the best one's.

    Clearly: by more than one standard error of the differences, fold by fold (Hastie et al. 2009, section 7.10). A few
    devices cannot tell neighbouring shares apart, and the less of it counts, the more physics holds.
    """
    if len(folds) < 2:
        return 1.0
    errors = np.array([[fold.error[str(shrinkage)] for shrinkage in SHRINKAGES] for fold in folds])
    above = errors - errors[:, [int(np.argmin(errors.mean(axis=0)))]]
    doubt = above.std(axis=0, ddof=1) / np.sqrt(len(folds))
    return SHRINKAGES[int(np.argmax(above.mean(axis=0) <= doubt))]


def progress(report: Report | None, task: str) -> Callable[[int, int, float], None]:
    """What a backend calls, for ``report``."""

    def update(done: int, of: int, error: float) -> None:
        if report:
            report(task, done, of, error)

    return update
