"""Train the tile models: leave-one-GPU-out folds choose when to stop and how wide the interval is, then all GPUs.

With a single GPU there is nothing to leave out: the model is trained to the end, no error is measured, and the
interval is an assumption that the card states.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from neusight.datasets.beside import root_of
from neusight.errors import DataError
from neusight.executors.gpu.features import FeatureContract, load_contract
from neusight.executors.gpu.tile_models.artifact import (
    PROTOCOL,
    Artifact,
    Manifest,
    file_sha256,
    load_artifact,
    save_artifact,
    sizes,
)
from neusight.executors.gpu.tile_models.protocol import TileModel, TrainingSet, device_levels, new_model, utilisation
from neusight.executors.gpu.tiling import TileChoice
from neusight.kernels.work import work_of
from neusight.learn.card import render_card
from neusight.learn.choices import Choices
from neusight.learn.floors import launch_floors
from neusight.learn.folds import Fold, FoldStore
from neusight.learn.intervals import (
    interval,
    log_ratios,
    op_intervals,
    op_spreads,
    quantiles,
    seen_interval,
    seen_ratios,
    unseen_interval,
)
from neusight.learn.training_data import FAMILIES, Corpus, DeviceRows, group_names, load_corpus, training_set

STATE = ".training"
LEAST_REAL = 40
"""Rows of an op that say more of a device than all of its rows, if they have the shapes of real models (assumption)."""

Report = Callable[[str, int, int, float], None]
"""Called with (task, done, of, held-out error)."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to train: kernels in ``source``, models into ``out``.

    No ``families`` means all that have rows, no ``gpus`` all that have; ``hold_out`` are left out in either case.
    With ``split`` nothing is learned from other rows; folds are measured on the shapes of real models all the same.
    """

    source: Path
    out: Path
    families: tuple[str, ...] = ()
    backend: str = "mlp"
    gpus: tuple[str, ...] = ()
    hold_out: tuple[str, ...] = ()
    split: str = ""
    seed: int = 0
    parameters: tuple[tuple[str, Any], ...] = ()
    resume: bool = False

    def model_parameters(self) -> dict[str, Any]:
        """Arguments of the backend's constructor."""
        seeded = {"seed": self.seed} if self.backend in ("mlp", "gbm") else {}
        return dict(self.parameters) | seeded


def train(options: Options, report: Report | None = None) -> dict[str, Artifact]:
    """Train one tile model a family and write it to ``options.out / family``.

    Finished folds are kept in ``out/.training`` and taken up by ``resume``; a folder of ``out`` is replaced only by a
    complete artifact, so that an interruption loses at most the fold in progress.

    Returns:
        The artifacts by family.

    Raises:
        DataError: no rows, or an unusable file. ArtifactError: an unknown backend or contract.
    """
    for family in options.families:
        load_contract(family)
    whole = load_corpus(options.source, options.gpus, _wanted(options), options.hold_out)
    corpus = whole.of_split(options.split)
    contracts = {family: load_contract(family) for family in _families(options, corpus)}
    options.out.mkdir(parents=True, exist_ok=True)
    state = FoldStore(options.out / STATE, _key(options, corpus, contracts), options.resume)
    choices = Choices(corpus.rows["gemm"], options.seed)
    trained = {}
    for family, contract in contracts.items():
        run = _Folds(family, contract, corpus, whole, choices, options, state, report)
        trained[family] = _train_family(run)
    choices.without("").save(options.out / "tile_choice.json")
    state.clear()
    return trained


def _wanted(options: Options) -> tuple[str, ...]:
    """Families to read: matrix products also teach the tile choice."""
    return tuple(dict.fromkeys((*options.families, "gemm"))) if options.families else FAMILIES


def _families(options: Options, corpus: Corpus) -> tuple[str, ...]:
    """The families asked for, or those with rows.

    Raises:
        DataError: one that was asked for has none, or none has any.
    """
    families = options.families or tuple(family for family in FAMILIES if corpus.rows[family])
    if empty := [family for family in families if not corpus.rows[family]]:
        gpus = ", ".join(options.gpus) or "any GPU"
        raise DataError(f"{options.source} has no {empty[0]} rows on {gpus}: leave the family out")
    if not families:
        raise DataError(f"{options.source}: cleaning left no rows: neusight datasets verify says which rules took them")
    return families


def _train_family(run: _Folds) -> Artifact:
    family, contract, corpus, choices, options = run.family, run.contract, run.corpus, run.choices, run.options
    rows = corpus.rows[family]
    folds = run.all(options.model_parameters(), "whole")
    parameters = options.model_parameters() | _best_stop(options.backend, _with_kin(folds, rows))
    # Errors and intervals are those of the model as it ships: stopped, not trained to the end.
    folds = run.all(parameters, "stopped") if parameters != options.model_parameters() else folds
    floors, names = launch_floors(rows), group_names(rows)
    data = training_set(rows, contract, choices.without(""), floors)
    model = new_model(options.backend, **parameters).fit(data, None, _progress(run.report, f"{family}: all GPUs"))
    levels = _levels(model, corpus, family, contract, choices.without(""), floors)
    left_out = [f.ratios for f in _with_kin(folds, rows)]
    everything = [quantiles_of for by_op in left_out for quantiles_of in by_op.values()]
    unseen = interval(everything) if folds else unseen_interval(seen_ratios(model, data, names, {}))
    manifest = Manifest(
        name=family,
        backend=options.backend,
        parameters=parameters,
        contract=contract,
        data=_data_record(corpus, family, len(data)),
        training_gpus=corpus.gpus(family),
        seed=options.seed,
        interval=unseen,
        intervals=op_intervals(left_out),
        spread=op_spreads(left_out),
        interval_seen=seen_interval(seen_ratios(model, data, names, levels), len(data)),
        levels=levels,
        domain=_domain(data, rows),
        launch_floors_s={op: round(s, 9) for op, s in floors.items()},
        metrics={"leave_one_gpu_out_mape": {f.gpu: f.mape for f in folds}},
        versions=_versions(options.backend),
        cleaning=_cleaning(corpus, family),
        vendors=dict(sorted(Counter(r.device.vendor for r in rows).items())),
        protocol=PROTOCOL,
    )
    folder = save_artifact(Artifact(manifest, model), options.out / family, render_card(manifest))
    return load_artifact(folder)


@dataclass(frozen=True)
class _Folds:
    """Leave-one-GPU-out folds of one family, learning from ``corpus``, measured on all rows of what is left out."""

    family: str
    contract: FeatureContract
    corpus: Corpus
    whole: Corpus
    choices: Choices
    options: Options
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
        model = new_model(self.options.backend, **parameters)
        data = training_set(others, self.contract, choice, floors)
        model.fit(data, _validation(target, held), _progress(self.report, task))
        return _measured(model, target, held)


def _real(held: DeviceRows) -> np.ndarray:
    """Rows with the shapes of real models where the data mark enough of their op (as the test split), else all; a
    mask.
    """
    test, ops = held.split == "test", held.batch["op"].astype(str)
    marked, counts = np.unique(ops[test], return_counts=True)
    return np.where(np.isin(ops, marked[counts >= LEAST_REAL]), test, True)


def _validation(target: TrainingSet, held: DeviceRows) -> TrainingSet:
    """The rows that choose when to stop."""
    return _by_bound(target.take(_real(held)))


def _by_bound(rows: TrainingSet) -> TrainingSet:
    """Rows weighing by the root of their bound as well: long kernels carry the time of models."""
    return replace(rows, weight=rows.weight * np.sqrt(rows.bound_s))


def _measured(model: TileModel, target: TrainingSet, held: DeviceRows) -> Fold:
    execution_s = target.bound_s / utilisation(model.logits(target.features, target.prior))
    error = np.abs((target.floor_s + execution_s) / target.latency_s - 1.0)
    ops = held.batch["op"].astype(str)
    ratios = log_ratios(model, target)
    real = _real(held)
    return Fold(
        gpu=held.device.id,
        history=[float(e) for e in getattr(model, "history_", [])],
        ratios={str(op): _quantiles_of(ratios, target.weight, real & (ops == op)) for op in np.unique(ops[real])},
        mape={str(op): round(100 * float(error[ops == op].mean()), 2) for op in np.unique(ops)},
    )


def _quantiles_of(ratios: np.ndarray, weight: np.ndarray, mask: np.ndarray) -> list[float]:
    return quantiles(ratios[mask], weight[mask])


def _levels(
    model: TileModel,
    corpus: Corpus,
    family: str,
    contract: FeatureContract,
    choice: TileChoice,
    floors: dict[str, float],
) -> dict[str, float]:
    """The level of each training GPU, op and dtype, on the shapes of real models. One that was measured in two states,
    throttled and not, will be met in either: its level is the middle of both.
    """
    real = [r.take(_real(r)) for r in corpus.rows[family]]
    data = training_set(real, contract, choice, floors)
    levels = device_levels(model, data, group_names(real))
    if slow := corpus.throttled[family]:
        throttled = device_levels(model, training_set(slow, contract, choice, floors), group_names(slow))
        levels |= {name: round((levels.get(name, v) + v) / 2, 4) for name, v in throttled.items()}
    return levels


def _with_kin(folds: Sequence[Fold], rows: Sequence[DeviceRows]) -> Sequence[Fold]:
    """The folds that left out a device while another one of its vendor stayed; all where there is no such fold.

    The others tell how wrong a model is across vendors; devices of vendors with fewer than two in training count as
    outside of it.
    """
    vendor = {r.device.id: r.device.vendor for r in rows}
    several = {name for name, count in Counter(vendor.values()).items() if count > 1}
    return [f for f in folds if vendor[f.gpu] in several] or folds


def _best_stop(backend: str, folds: Sequence[Fold]) -> dict[str, int]:
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


def _domain(data: TrainingSet, rows: Sequence[DeviceRows]) -> dict[str, Any]:
    size = np.concatenate([np.column_stack(sizes(work_of(r.batch))) for r in rows])
    return {
        "size_low": [round(float(v), 3) for v in size.min(axis=0)],
        "size_high": [round(float(v), 3) for v in size.max(axis=0)],
        "low": [round(float(v), 6) for v in data.features.min(axis=0)],
        "high": [round(float(v), 6) for v in data.features.max(axis=0)],
        "ops": sorted({str(op) for r in rows for op in np.unique(r.batch["op"])}),
        "dtypes": sorted({str(d) for r in rows for d in np.unique(r.batch["dtype"])}),
    }


def _data_record(corpus: Corpus, family: str, rows: int) -> dict[str, Any]:
    files = sorted(corpus.source.glob("**/*.parquet")) if corpus.source.is_dir() else [corpus.source]
    used = [f for f in files if f.stem.partition("-part-")[0] == family or len(files) == 1]
    described = [root_of(corpus.source) / "devices" / f"{gpu}.toml" for gpu in corpus.gpus(family)]
    return {"rows": rows, "sha256": {f.name: file_sha256(f) for f in (*used, *filter(Path.is_file, described))}}


def _cleaning(corpus: Corpus, family: str) -> dict[str, int]:
    report = corpus.report[corpus.report["family"] == family]
    return {str(rule): int(n) for rule, n in report.groupby("rule", sort=False)["removed"].sum().items() if n}


def _versions(backend: str) -> dict[str, str]:
    library = {"mlp": ("torch",), "gbm": ("lightgbm",), "linear": ("scikit-learn",)}.get(backend, ())
    found = {}
    for package in ("neusight", "numpy", *library):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found


def _progress(report: Report | None, task: str) -> Callable[[int, int, float], None]:
    def update(done: int, of: int, error: float) -> None:
        if report:
            report(task, done, of, error)

    return update


def _key(options: Options, corpus: Corpus, contracts: Mapping[str, FeatureContract]) -> str:
    """What a fold depends on: a run with another key starts afresh."""
    counts = {family: sum(len(r.latency_s) for r in parts) for family, parts in corpus.rows.items()}
    data = {family: _data_record(corpus, family, rows) for family, rows in counts.items()}
    features = [list(contract.features) for contract in contracts.values()]
    gpus = [corpus.gpus(family) for family in corpus.rows]
    settings = [options.backend, options.seed, options.split, gpus, options.model_parameters()]
    return json.dumps([*settings, data, features], sort_keys=True)
