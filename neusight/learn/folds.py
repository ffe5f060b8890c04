"""Folds that leave out a kind of SM: each trained without it and measured on its GPUs; they choose the shrinkage and
the intervals, factors on predicted execution time that enclose most rows, of held-out GPUs and of training GPUs.

Folds are kept on disk as they finish so that an interrupted training can resume.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from neusight.devices.kinship import Silicon
from neusight.executors.costs import NORMAL_90
from neusight.executors.gpu.features import FeatureContract
from neusight.executors.gpu.tile_models.artifact import implementations, kernel_kinds, sm_kind
from neusight.executors.gpu.tile_models.protocol import (
    TileModel,
    TrainingSet,
    device_biases,
    new_model,
    utilisation,
)
from neusight.kernels.work import by_distinct
from neusight.laws.physics import Physics
from neusight.learn import Report
from neusight.learn.tile_choice import Choices
from neusight.learn.training_data import Corpus, DeviceRows, thinned
from neusight.learn.training_sets import Knowledge, group_names, launch_floors, training_set
from neusight.paths import read_json

COVERAGE = 0.90
UNKNOWN_FACTOR = 2.0
"""How far off, either way, a kernel may be of which nothing is known (assumption)."""
LEAST_ROWS = 20
"""Rows of which a tail of 5 % is one."""
UNSEEN_POWER = 2.0
"""What one GPU's own rows miss by, to this power, is taken for what another one's would (assumption)."""


def log_ratios(model: TileModel, data: TrainingSet, device_bias: np.ndarray | float = 0.0) -> np.ndarray:
    """log(measured / predicted) execution time of each row."""
    execution_s = data.bound_s / utilisation(model.logits(data.features, data.prior), device_bias)
    return np.log(np.maximum(data.latency_s - data.floor_s, data.bound_s) / execution_s)


def quantiles(values: np.ndarray, weight: np.ndarray) -> list[float]:
    """Weighted quantiles at 0, 1, … 100 %: a device's residuals in little space."""
    order = np.argsort(values)
    cumulated = np.cumsum(weight[order])
    grid = np.linspace(0, 1, 101) * cumulated[-1]
    return [float(v) for v in np.interp(grid, cumulated, values[order])]


def seen_ratios(
    model: TileModel, data: TrainingSet, names: Sequence[str], device_bias: Mapping[str, float]
) -> list[list[float]]:
    """Quantiles of ``log_ratios`` of each group of the training devices, with their biases; a name without has none."""
    own = np.array([device_bias.get(name, 0.0) for name in names])[data.group]
    ratios = log_ratios(model, data, own)
    groups = (np.flatnonzero(data.group == number) for number in range(len(names)))
    return [quantiles(ratios[rows], data.weight[rows]) for rows in groups]


def interval(ratios: Sequence[list[float]]) -> list[float]:
    """Factors on execution time that enclose the middle 90 % of rows, each entry of ``ratios`` counting once."""
    pooled = np.concatenate(ratios)
    tail = (1 - COVERAGE) / 2
    low, high = np.exp(np.quantile(pooled, [tail, 1 - tail]))
    return [round(float(min(low, 1.0)), 4), round(float(max(high, 1.0)), 4)]


def op_intervals(folds: Sequence[Mapping[str, list[float]]]) -> dict[str, list[float]]:
    """Factors for each op, from the quantiles of every device that was left out."""
    return {op: interval([f[op] for f in folds if op in f]) for op in sorted({op for f in folds for op in f})}


def op_spreads(folds: Sequence[Mapping[str, list[float]]]) -> dict[str, float]:
    """Standard deviation, in log time, of what all rows of an op have in common on a device that was left out.

    The devices' mean errors around none; few of them tell little, so that it is widened until 1.645 of it reach where
    Student's t has 90 % (prediction of one more value, DeGroot and Schervish 2012, section 8.6).
    """
    from scipy.stats import t as student

    spreads = {}
    for op in sorted({op for f in folds for op in f}):
        means = np.array([np.mean(f[op]) for f in folds if op in f])
        n = len(means)
        widened = np.sqrt(1 + 1 / n) * student.ppf(1 - (1 - COVERAGE) / 2, n) / NORMAL_90
        spreads[op] = round(float(np.sqrt((means**2).mean()) * widened), 4)
    return spreads


def seen_interval(ratios: Sequence[list[float]], rows: int) -> list[float]:
    """Factors for the training GPUs; of too few rows to have tails, a factor of two either way at least."""
    low, high = interval(ratios)
    return [low, high] if rows >= LEAST_ROWS else _at_least_unknown(low, high)


def unseen_interval(ratios: Sequence[list[float]]) -> list[float]:
    """Factors for GPUs that were not seen, where only one was: those of its own rows widened, and no narrower than a
    factor of two either way, since nothing tells how GPUs differ.
    """
    low, high = interval(ratios)
    return _at_least_unknown(low**UNSEEN_POWER, high**UNSEEN_POWER)


def _at_least_unknown(low: float, high: float) -> list[float]:
    return [round(min(low, 1 / UNKNOWN_FACTOR), 4), round(max(high, UNKNOWN_FACTOR), 4)]


LEAST_REAL = 40
"""Rows of an op that say more of a device than all of its rows, if they have the shapes of real models (assumption)."""

FOLD_ROWS = 4000
"""Of each GPU and family that a fold learns from and is measured on: there are many folds."""
SHRINKAGES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of what was learned that are tried on devices of kinds that were left out."""


@dataclass(frozen=True)
class FoldErrors:
    """One GPU that was left out with all others of its kind: by share of what was learned (as text) the mean error of
    log times, and by kind of kernel quantiles of the log ratio measured / predicted and mean errors in percent.
    """

    gpu: str
    error: dict[str, float]
    ratios: dict[str, dict[str, list[float]]]
    mape: dict[str, dict[str, float]]


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

    def load(self, family: str, gpu: str) -> FoldErrors | None:
        """A finished fold, or None."""
        path = self._path(family, gpu)
        if not path.is_file():
            return None
        content = read_json(path)
        return FoldErrors(**content["fold"]) if content["key"] == self.key else None

    def save(self, family: str, fold: FoldErrors) -> None:
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
    """Folds of one tile model, each without one kind of SM, learning from ``corpus``, measured on all rows of the GPUs
    that are left out.
    """

    model: str
    contract: FeatureContract
    corpus: Corpus
    whole: Corpus
    without: Without
    backend: str
    state: FoldStore
    report: Report | None

    def all(self, parameters: dict[str, Any]) -> list[FoldErrors]:
        """One fold a GPU, or none when there is only one kind."""
        known = set(self.corpus.gpus(self.model))
        held: dict[str, list[DeviceRows]] = {}
        for rows in self.whole.rows[self.model]:
            if rows.device.id in known:
                held.setdefault(sm_kind(rows.device), []).append(rows)
        if len(held) < 2:
            return []
        return [fold for kind, rows in held.items() for fold in self._stored(kind, rows, parameters)]

    def kin(self, parameters: dict[str, Any]) -> list[FoldErrors]:
        """One fold a GPU of which siblings are learned from: that one alone is left out, of the constants too."""
        rows = [r for r in self.whole.rows[self.model] if r.device.id in set(self.corpus.gpus(self.model))]
        silicon = {r.device.id: Silicon.of(r.device) for r in rows}
        related = {
            gpu: {other for other in silicon if other != gpu and own.is_sibling_of(silicon[other])}
            for gpu, own in sorted(silicon.items())
        }
        held = {gpu: self._told([r for r in rows if r.device.id == gpu], kin) for gpu, kin in related.items()}
        told = {gpu: [r for r in parts if len(r)] for gpu, parts in held.items()}
        return [self._beside_siblings(gpu, parts, related[gpu], parameters) for gpu, parts in told.items() if parts]

    def _beside_siblings(
        self, gpu: str, held: Sequence[DeviceRows], siblings: set[str], parameters: dict[str, Any]
    ) -> FoldErrors:
        done = self.state.load(f"{self.model}-sibling", gpu)
        if done is None:
            done = self._fitted(gpu, held, parameters, siblings)[0]
            self.state.save(f"{self.model}-sibling", done)
        return done

    def _told(self, held: Sequence[DeviceRows], siblings: Collection[str]) -> list[DeviceRows]:
        """Rows of a device whose implementations its siblings ran too."""
        ran = ran_by([r for r in self.corpus.rows[self.model] if r.device.id in siblings])
        names = sorted({name for own in ran.values() for name in own})
        return [r.take(np.isin(implementations(r.batch, r.conditions), names)) for r in held]

    def _stored(self, kind: str, held: Sequence[DeviceRows], parameters: dict[str, Any]) -> list[FoldErrors]:
        gpus = sorted({r.device.id for r in held})
        done = [self.state.load(self.model, gpu) for gpu in gpus]
        if all(done):
            return [fold for fold in done if fold is not None]
        folds = self._fitted(kind, held, parameters)
        for fold in folds:
            self.state.save(self.model, fold)
        return folds

    def _fitted(
        self, name: str, held: Sequence[DeviceRows], parameters: dict[str, Any], siblings: Collection[str] = ()
    ) -> list[FoldErrors]:
        """Train without the devices that are held and measure on them; constants, tile choice and launches are learned
        without them too. What is learned of ``siblings`` counts with their biases.
        """
        gpus = {r.device.id for r in held}
        others = [r for r in self.corpus.rows[self.model] if r.device.id not in gpus]
        known = self.without.devices(name, gpus, others)
        model, learning = new_model(self.backend, **parameters), thinned(others, FOLD_ROWS)
        data = training_set(learning, self.contract, known)
        model.fit(data, None, progress(self.report, f"{self.model}: without {name}"))
        biases = device_biases(model, data, group_names(learning)) if siblings else {}
        bias = _sibling_biases(biases, siblings)
        by_gpu: dict[str, list[DeviceRows]] = {}
        for rows in held:
            by_gpu.setdefault(rows.device.id, []).extend(thinned([rows], FOLD_ROWS))
        return [_measured(gpu, model, rows, self.contract, known, bias=bias) for gpu, rows in by_gpu.items()]


class Without:
    """What a tile model stands on, learned without one kind of SM; constants and tile choices are found once each.

    Args:
        choices: tiles of float32 libraries.
        physics: called with the GPUs to leave out.
    """

    def __init__(self, choices: Choices, physics: Callable[[Collection[str]], Physics]) -> None:
        self.choices = choices
        self.physics = physics
        self.constants: dict[str, Physics] = {}

    def devices(self, name: str, gpus: Collection[str], others: Sequence[DeviceRows]) -> Knowledge:
        """Without some GPUs, which a name stands for; ``others`` tell what launches take."""
        if name not in self.constants:
            self.constants[name] = self.physics(gpus)
        return Knowledge(self.constants[name], self.choices.without(name, gpus), launch_floors(others))

    def none(self, rows: Sequence[DeviceRows]) -> Knowledge:
        """With all GPUs."""
        return self.devices("", (), rows)


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
    contract: FeatureContract,
    known: Knowledge,
    *,
    bias: Mapping[str, float],
) -> FoldErrors:
    """Errors on one GPU for every share of what was learned, ``bias`` of kinds of kernels included."""
    data = training_set(rows, contract, known)
    kinds = np.concatenate([kernel_kinds(r.batch) for r in rows])
    real = np.concatenate([real_shapes(r) for r in rows])
    learned = model.logits(data.features, data.prior).mean(axis=0) - data.prior
    learned = learned + by_distinct(kinds, lambda kind: bias.get(kind, 0.0))
    error, ratios, mape = {}, {}, {}
    for shrinkage in SHRINKAGES:
        execution_s = data.bound_s / utilisation((data.prior + shrinkage * learned)[None])
        off = np.log((data.floor_s + execution_s) / data.latency_s)
        ratio = np.log(np.maximum(data.latency_s - data.floor_s, data.bound_s) / execution_s)
        name, weight = str(shrinkage), data.weight * real
        error[name] = float((np.abs(off) * weight).sum() / weight.sum())
        ratios[name] = {
            str(kind): _quantiles_of(ratio, data.weight, real & (kinds == kind)) for kind in np.unique(kinds[real])
        }
        mape[name] = {
            str(kind): round(100 * float(np.abs(np.expm1(off[kinds == kind])).mean()), 2) for kind in np.unique(kinds)
        }
    return FoldErrors(gpu=gpu, error=error, ratios=ratios, mape=mape)


def ran_by(rows: Sequence[DeviceRows]) -> dict[str, list[str]]:
    """The ``implementations`` that each GPU ran."""
    names: dict[str, set[str]] = {}
    for r in rows:
        names.setdefault(r.device.id, set()).update(np.unique(implementations(r.batch, r.conditions)).tolist())
    return {gpu: sorted(own) for gpu, own in sorted(names.items())}


def _sibling_biases(biases: Mapping[str, float], siblings: Collection[str]) -> dict[str, float]:
    """The mean bias of siblings, by kind of kernel."""
    by_kind: dict[str, list[float]] = {}
    for name, value in biases.items():
        gpu, _, kind = name.partition("/")
        if gpu in siblings:
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
