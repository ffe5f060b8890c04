"""Train the tile models: leave-one-GPU-out folds choose when to stop and how wide the interval is, then all GPUs.

With a single GPU there is nothing to leave out: the model is trained to the end, no error is measured, and the
interval is an assumption that the card states.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from neusight.datasets.load import root_of
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
from neusight.executors.gpu.tile_models.protocol import TileModel, TrainingSet, device_levels, new_model
from neusight.executors.gpu.tiling import TileChoice
from neusight.kernels.work import work_of
from neusight.learn.card import render_card
from neusight.learn.folds import Fold, FoldRun, FoldStore, Report, best_stop, progress, real_shapes, with_kin
from neusight.learn.intervals import interval, op_intervals, op_spreads, seen_interval, seen_ratios, unseen_interval
from neusight.learn.tile_choice import Choices
from neusight.learn.training_data import FAMILIES, Corpus, DeviceRows, load_corpus
from neusight.learn.training_sets import group_names, launch_floors, training_set

STATE = ".training"


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
        run = FoldRun(family, contract, corpus, whole, choices, options.backend, state, report)
        trained[family] = _train_family(run, options)
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


def _train_family(run: FoldRun, options: Options) -> Artifact:
    rows, choice = run.corpus.rows[run.family], run.choices.without("")
    folds, parameters = _judged(run, options)
    floors = launch_floors(rows)
    data = training_set(rows, run.contract, choice, floors)
    model = new_model(options.backend, **parameters).fit(data, None, progress(run.report, f"{run.family}: all GPUs"))
    levels = _levels(model, run, choice, floors)
    manifest = Manifest(
        name=run.family,
        backend=options.backend,
        parameters=parameters,
        contract=run.contract,
        data=_data_record(run.corpus, run.family, len(data)),
        training_gpus=run.corpus.gpus(run.family),
        seed=options.seed,
        **_intervals(model, data, rows, folds, levels),
        levels=levels,
        domain=_domain(data, rows),
        launch_floors_s={op: round(s, 9) for op, s in floors.items()},
        metrics={"leave_one_gpu_out_mape": {f.gpu: f.mape for f in folds}},
        versions=_versions(options.backend),
        cleaning=_cleaning(run.corpus, run.family),
        vendors=dict(sorted(Counter(r.device.vendor for r in rows).items())),
        protocol=PROTOCOL,
    )
    folder = save_artifact(Artifact(manifest, model), options.out / run.family, render_card(manifest))
    return load_artifact(folder)


def _judged(run: FoldRun, options: Options) -> tuple[list[Fold], dict[str, Any]]:
    """Folds of the model as it ships, which is stopped and not trained to the end, and its parameters."""
    whole = options.model_parameters()
    folds = run.all(whole, "whole")
    parameters = whole | best_stop(options.backend, with_kin(folds, run.corpus.rows[run.family]))
    return run.all(parameters, "stopped") if parameters != whole else folds, parameters


def _intervals(
    model: TileModel, data: TrainingSet, rows: Sequence[DeviceRows], folds: Sequence[Fold], levels: dict[str, float]
) -> dict[str, Any]:
    """Factors for GPUs that were left out, of all ops and by op, and for those that were learned from."""
    names, left_out = group_names(rows), [f.ratios for f in with_kin(folds, rows)]
    everything = [ratios for by_op in left_out for ratios in by_op.values()]
    return {
        "interval": interval(everything) if folds else unseen_interval(seen_ratios(model, data, names, {})),
        "intervals": op_intervals(left_out),
        "spread": op_spreads(left_out),
        "interval_seen": seen_interval(seen_ratios(model, data, names, levels), len(data)),
    }


def _levels(model: TileModel, run: FoldRun, choice: TileChoice, floors: dict[str, float]) -> dict[str, float]:
    """The level of each training GPU, op and dtype, on the shapes of real models. One that was measured in two states,
    throttled and not, will be met in either: its level is the middle of both.
    """
    real = [r.take(real_shapes(r)) for r in run.corpus.rows[run.family]]
    data = training_set(real, run.contract, choice, floors)
    levels = device_levels(model, data, group_names(real))
    if slow := run.corpus.throttled[run.family]:
        throttled = device_levels(model, training_set(slow, run.contract, choice, floors), group_names(slow))
        levels |= {name: round((levels.get(name, v) + v) / 2, 4) for name, v in throttled.items()}
    return levels


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


def _key(options: Options, corpus: Corpus, contracts: Mapping[str, FeatureContract]) -> str:
    """What a fold depends on: a run with another key starts afresh."""
    counts = {family: sum(len(r.latency_s) for r in parts) for family, parts in corpus.rows.items()}
    data = {family: _data_record(corpus, family, rows) for family, rows in counts.items()}
    features = [list(contract.features) for contract in contracts.values()]
    gpus = [corpus.gpus(family) for family in corpus.rows]
    settings = [options.backend, options.seed, options.split, gpus, options.model_parameters()]
    return json.dumps([*settings, data, features], sort_keys=True)
