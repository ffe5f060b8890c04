"""Train the tile models: folds that leave out a kind of SM choose what to shrinkage and how wide the interval is.

With a single GPU there is nothing to leave out: the model is trained to the end, no error is measured, and the
interval is an assumption that the card states.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.devices.kinship import Silicon
from neusight.errors import DataError
from neusight.executors.gpu.features import FeatureContract, load_contract
from neusight.executors.gpu.tile_models.artifact import (
    PROTOCOL,
    Artifact,
    Manifest,
    load_artifact,
    save_artifact,
    sizes,
)
from neusight.executors.gpu.tile_models.doubts import THROTTLED, Kinship
from neusight.executors.gpu.tile_models.protocol import TileModel, TrainingSet, device_effects, new_model
from neusight.kernels.work import work_of
from neusight.laws.fitted import FittedPhysics, shipped_physics
from neusight.laws.physics import Physics
from neusight.learn import Report
from neusight.learn.card import render_card, versions_of
from neusight.learn.doubts import coverage, doubts_by_kinship
from neusight.learn.evidence import FitOptions
from neusight.learn.folds import (
    FOLD_ROWS,
    FoldRun,
    best_share,
    percent_by_kind,
    progress,
    ran_by,
    real_shapes,
    residuals_of,
    with_kin,
)
from neusight.learn.physics.fit import read_physics, solve_physics
from neusight.learn.tensordash.train import NAME as TENSORDASH
from neusight.learn.tensordash.train import train_tensordash
from neusight.learn.tile_choice import choices_without
from neusight.learn.training_data import MODELS, Corpus, DeviceRows, load_corpus, thinned
from neusight.learn.training_sets import Knowledge, group_names, launch_floors, training_set
from neusight.measured.folder import hashes

if TYPE_CHECKING:
    import pandas as pd

STATE = ".training"
MOSTLY = 0.95
"""Share of rows that are as good as all (assumption)."""
MOST_ROWS = 12000
"""Of each GPU and family that a model learns from."""
CONSTANT_ROWS, CONSTANT_STEPS = 60, 4
"""Rows of a group, and steps, with which constants are fitted again without a kind of GPU: fewer than for those that
ship, since there are many folds."""


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What to train: from tables of kernels, ``files``, models into ``out``.

    No ``models`` means all that have rows, no ``gpus`` all that have; ``hold_out`` are left out in either case. With
    ``physics`` they stand on those constants, else on those that ship; in folds on constants that are fitted again to
    the measured rows of a folder, ``refit_to``, where one is given.
    Folds learn from ``fold_rows`` of each GPU and family; with ``against`` they are also trained by other backends,
    whose errors stand beside those of what ships.
    With ``split`` nothing is learned from other rows; folds are measured on the shapes of real models all the same.
    """

    files: tuple[Path, ...]
    out: Path
    models: tuple[str, ...] = ()
    backend: str = "mlp"
    gpus: tuple[str, ...] = ()
    hold_out: tuple[str, ...] = ()
    split: str = ""
    seed: int = 0
    parameters: tuple[tuple[str, Any], ...] = ()
    resume: bool = False
    physics: FittedPhysics | None = None
    refit_to: Path | None = None
    against: tuple[str, ...] = ()
    fold_rows: int = FOLD_ROWS

    def request(self) -> dict[str, Any]:
        """All that decides what is trained, but for the content of files, as plain data."""
        skipped = ("files", "out", "resume", "refit_to")
        return {name: value for name, value in asdict(self).items() if name not in skipped}

    def model_parameters(self, backend: str) -> dict[str, Any]:
        """Arguments of a backend's constructor: those that are given for the backend that ships, and the seed."""
        given = dict(self.parameters) if backend == self.backend else {}
        return given | ({"seed": self.seed} if backend in ("mlp", "gbm") else {})


def train(options: TrainOptions, report: Report | None = None) -> dict[str, Artifact]:
    """Train one tile model a family and write it to ``options.out / family``; that of TensorDash on simulated passes.

    Finished folds are kept in ``out/.training`` and taken up by ``resume``; a folder of ``out`` is replaced only by a
    complete artifact, so that an interruption loses at most the fold in progress.

    Returns:
        The artifacts by family.

    Raises:
        DataError: no rows, or an unusable file. ArtifactError: an unknown backend or contract.
    """
    if TENSORDASH in options.models:
        simulated = {TENSORDASH: train_tensordash(options.out, options.seed, report=report)}
        others = tuple(model for model in options.models if model != TENSORDASH)
        return simulated | (train(replace(options, models=others), report) if others else {})
    for model in options.models:
        load_contract(model)
    whole = load_corpus(options.files, options.gpus, options.hold_out)
    corpus = whole.of_split(options.split)
    contracts = {model: load_contract(model) for model in _models(options, corpus)}
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.resume:
        shutil.rmtree(options.out / STATE, ignore_errors=True)
    fitted = options.physics or shipped_physics()
    choice, physics = choices_without(corpus.rows["gemm"], options.seed), _refits(options, fitted, report)

    def knowledge(left_out: frozenset[str], others: Sequence[DeviceRows]) -> Knowledge:
        """What a tile model stands on, learned without some GPUs; ``others`` tell what launches take."""
        return Knowledge(physics(left_out), choice(left_out), launch_floors(others))

    trained = {}
    for model, contract in contracts.items():
        run = FoldRun(
            model=model, contract=contract, corpus=corpus, whole=whole, knowledge=knowledge, backend=options.backend,
            parameters=options.model_parameters(options.backend), report=report, most=options.fold_rows,
            kept=options.out / STATE / _key(options, corpus, contracts),
        )  # fmt: skip
        trained[model] = train_model(run, options)
    choice(frozenset()).save(options.out / "tile_choice.json")
    fitted.save(options.out / FittedPhysics.file)
    shutil.rmtree(options.out / STATE, ignore_errors=True)
    return trained


def _refits(options: TrainOptions, fitted: FittedPhysics, report: Report | None) -> Callable[[frozenset[str]], Physics]:
    """Constants without some GPUs: fitted again to the folder that is given for it, else as they are."""
    if options.refit_to is None:
        return lambda gpus: fitted.physics
    whole = FitOptions(data=options.refit_to, hold_out=options.hold_out, each=CONSTANT_ROWS, steps=CONSTANT_STEPS)
    evidence = cache(lambda: read_physics(whole, report))

    @cache
    def refit(gpus: frozenset[str]) -> Physics:
        found = solve_physics(evidence().without(gpus), whole, report, fitted.physics) if gpus else fitted
        return found.physics

    return refit


def _models(options: TrainOptions, corpus: Corpus) -> tuple[str, ...]:
    """The models asked for, or those with rows.

    Raises:
        DataError: one that was asked for has none, or none has any.
    """
    models = options.models or tuple(model for model in MODELS if corpus.rows[model])
    if empty := [model for model in models if not corpus.rows[model]]:
        gpus = ", ".join(options.gpus) or "any GPU"
        raise DataError(f"the tables have no kernels of '{empty[0]}' on {gpus}: leave the model out")
    if not models:
        raise DataError(f"the tables have no sound rows of {options.split or 'any split'}: give others")
    return models


def train_model(run: FoldRun, options: TrainOptions) -> Artifact:
    """Train one tile model on what a run describes and write it to ``options.out``."""
    rows = thinned(run.corpus.rows[run.model], MOST_ROWS)
    folds = run.measured()
    near, shares = folds | {"stranger": with_kin(folds["stranger"], rows)}, _shares(folds, rows)
    residuals = {kinship: residuals_of(near[kinship], share) for kinship, share in shares.items()}
    known = run.knowledge(frozenset(), rows)
    data = training_set(rows, run.contract, known)
    model = new_model(options.backend, **run.parameters)
    model = model.fit(data, None, progress(run.report, f"{run.model}: all GPUs"))
    manifest = Manifest(
        name=run.model,
        backend=options.backend,
        parameters=dict(run.parameters),
        contract=run.contract,
        data={"rows": len(data), "sha256": hashes(run.corpus.files)},
        training_gpus=run.corpus.gpus(run.model),
        seed=options.seed,
        doubts=doubts_by_kinship(*residuals.values()),
        coverage=coverage(residuals),
        effects=_effects(model, run, known),
        domain=_domain(data, rows),
        launch_floors_s={op: round(s, 9) for op, s in known.floors.items()},
        metrics=_metrics(folds, shares) | _rivals(run, options, rows),
        versions=_versions(options.backend),
        cleaning=_cleaning(run.corpus, run.model),
        vendors=dict(sorted(Counter({r.device.id: r.device.vendor for r in rows}.values()).items())),
        limited=limited_kinds(run.corpus.rows[run.model], known),
        shares=shares,
        silicon={r.device.id: list(vars(Silicon.of(r.device)).values()) for r in rows},
        measured=ran_by(rows),
        protocol=PROTOCOL,
    )
    folder = save_artifact(Artifact(manifest, model), options.out / run.model, render_card(manifest))
    return load_artifact(folder)


def _shares(folds: Mapping[Kinship, pd.DataFrame], rows: Sequence[DeviceRows]) -> dict[Kinship, float]:
    """How much of what was learned counts on devices of each kinship."""
    stranger = best_share(with_kin(folds["stranger"], rows))
    return {"own": 1.0, "sibling": best_share(folds["sibling"]), "stranger": stranger}


def _metrics(folds: Mapping[Kinship, pd.DataFrame], shares: Mapping[Kinship, float]) -> dict[str, Any]:
    """Errors in percent by GPU and kind on GPUs whose kind was left out (as it ships, by physics alone, by all that was
    learned), of which siblings were left in, and on those of training in rows that were left out.
    """
    figures: dict[str, tuple[Kinship, float]] = {
        "as_shipped": ("stranger", shares["stranger"]),
        "physics": ("stranger", 0.0),
        "learned": ("stranger", 1.0),
        "sibling": ("sibling", shares["sibling"]),
        "sibling_physics": ("sibling", 0.0),
        "own": ("own", shares["own"]),
        "own_physics": ("own", 0.0),
    }
    return {name: percent_by_kind(folds[kinship], share) for name, (kinship, share) in figures.items()}


def _rivals(run: FoldRun, options: TrainOptions, rows: Sequence[DeviceRows]) -> dict[str, Any]:
    """Errors in percent of other backends in the same folds: of strangers and siblings with the share that holds there,
    and of known GPUs.
    """
    metrics: dict[str, Any] = {}
    for rival in options.against:
        folds = replace(run, backend=rival, parameters=options.model_parameters(rival)).measured()
        found = _metrics(folds, _shares(folds, rows))
        named = {"stranger": "as_shipped", "sibling": "sibling", "own": "own"}
        metrics |= {f"{rival}: {kinship}": found[name] for kinship, name in named.items()}
    return metrics


def _effects(model: TileModel, run: FoldRun, known: Knowledge) -> dict[str, dict[str, float]]:
    """The effect of each training GPU by kind of kernel, on the shapes of real models. One that was measured in two
    states, throttled and not, will be met in either: its effect is the middle of both.
    """
    real = [r.take(real_shapes(r)) for r in run.corpus.rows[run.model]]
    data = training_set(real, run.contract, known)
    effects = device_effects(model, data, group_names(real))
    if slow := run.corpus.throttled[run.model]:
        throttled = device_effects(model, training_set(slow, run.contract, known), group_names(slow))
        for kind, level in throttled.items():
            own = effects.setdefault(kind, {})
            own |= {gpu: round((own.get(gpu, effect) + effect) / 2, 4) for gpu, effect in level.items()}
    return effects


def limited_kinds(rows: Sequence[DeviceRows], known: Knowledge) -> list[str]:
    """Names of effects of kinds that a GPU ran, but for a few rows, where power limits them alone."""
    counts: Counter[str] = Counter()
    for r in rows:
        counts.update(r.groups[known.situation(r).throttle > THROTTLED].tolist())
    whole = Counter(name for r in rows for name in r.groups.tolist())
    return sorted(name for name, count in counts.items() if count >= MOSTLY * whole[name])


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


def _cleaning(corpus: Corpus, model: str) -> dict[str, int]:
    """Rows of the model's families that were left out, by reason."""
    families = {r.batch.family for r in corpus.rows[model]}
    counts: Counter[str] = Counter()
    for (family, reason), rows in corpus.left_out.items():
        counts[reason] += rows if family in families else 0
    return dict(+counts)


def _versions(backend: str) -> dict[str, str]:
    library = {"mlp": ("torch",), "gbm": ("lightgbm",), "linear": ("scikit-learn",)}.get(backend, ())
    return versions_of("neusight", "numpy", *library)


def _key(options: TrainOptions, corpus: Corpus, contracts: Mapping[str, FeatureContract]) -> str:
    """What a fold depends on: a run with another key starts afresh."""
    constants = (options.physics or shipped_physics()).values
    features = [contract.features for contract in contracts.values()]
    request = [options.request(), constants, hashes(corpus.files), features]
    return sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
