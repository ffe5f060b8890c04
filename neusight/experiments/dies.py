"""Kernels of today, boards of one die left out together: folds, their trainings, and the errors of all contestants.

What a fold learns lies in the user's cache, so that an interrupted run goes on with the fold in which it stopped. Tile
models choose what to trust, and how wide intervals are, by leaving out one more kind of SM, with constants that were
fitted without both dies.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.api import Predictor
from neusight.evaluation.scored import Scored, joined
from neusight.executors.gpu.features import load_contract
from neusight.executors.gpu.predictor import KernelPredictor
from neusight.executors.gpu.tile_models.artifact import file_sha256
from neusight.executors.gpu.tiling.library import shipped_choice
from neusight.experiments.assumptions import assumptions
from neusight.experiments.constants import Constants
from neusight.experiments.dies_contestants import Forecaster, contestants
from neusight.experiments.folds import DONE, code_sha256, training_seconds
from neusight.experiments.judge import at_most, between
from neusight.kernels import KernelBatch
from neusight.laws.fitted import FILE as PHYSICS_FILE
from neusight.laws.physics import Physics
from neusight.learn import Report
from neusight.learn.folds import FoldRun, FoldStore, Without
from neusight.learn.physics.observations import ProblemPart, Reading
from neusight.learn.tile_choice import Choices
from neusight.learn.training import STATE, TrainOptions, train_model
from neusight.learn.training_data import Corpus, DeviceRows, load_corpus, thinned
from neusight.paths import cache_dir, data_dir

if TYPE_CHECKING:
    from neusight.experiments.declare import Die, DiesDeclaration, DiesTargets, Learning

MODELS = ("matrix", "attention", "moe", "stream")
FAMILIES = (
    *("16-bit GEMM", "fp8 GEMM", "fp8 block GEMM", "int8 and weight-only GEMM", "context attention"),
    *("decode attention", "MoE", "pointwise and norms"),
)
"""Families of kernels as reports tell them apart, in their order."""
SHORT_S = 20e-6
"""Context attention that is shorter is mostly launch, and no target's."""
LEAST_ROWS = 20
"""A board and family that has fewer is left out: prefills of one token are a row each."""
LONGEST_VALUE = 48
"""Letters of an assumption that is a number, or a few."""
QUICK_ROWS, QUICK_REMARK = 150, "A quick run: two folds, few rows and little training. Its figures are no results."
Results = dict[str, Any]


@dataclass(frozen=True)
class DieFold:
    """Boards that are left out: all of a die, or one; ``without`` are the boards of that die."""

    name: str
    kind: str
    left_out: tuple[str, ...]
    without: tuple[str, ...]


def families_of(batch: KernelBatch) -> np.ndarray:
    """Name of each kernel's family, one of ``FAMILIES``, or "" for those that no target names; shape (n,)."""
    if batch.family in ("moe", "grouped_gemm"):
        return np.full(len(batch), "MoE")
    if batch.family == "attention":
        dense = (batch["op"] == "forward") & (batch["selected"] == 0) & ~batch["shared_kv"].astype(bool)
        return np.where(dense, np.where(batch["q_len"] == 1, "decode attention", "context attention"), "")
    if batch.family != "gemm":
        return np.full(len(batch), "pointwise and norms")
    narrow = (batch["weight_dtype"] != "") | (batch["dtype"] == "int8")
    kinds = [narrow, batch["dtype"] == "float8", np.isin(batch["dtype"], ("float16", "bfloat16"))]
    eight = np.where(batch["scaling"] == "block", "fp8 block GEMM", "fp8 GEMM")
    return np.select(kinds, [np.full(len(batch), "int8 and weight-only GEMM"), eight, "16-bit GEMM"], "")


def folds_of(declared: DiesDeclaration) -> list[DieFold]:
    """Every die left out, then every sibling."""
    dies = [DieFold(die.name, "die", die.boards, die.boards) for die in declared.dies]
    siblings = [DieFold(gpu, "sibling", (gpu,), die.boards) for die in declared.dies for gpu in die.siblings]
    return dies + siblings


@dataclass(frozen=True)
class DieTrainings:
    """Everything that folds learn from, and what they learned.

    Args:
        data: folder of the data sets.
        sets: names of those that kernels are read from.
        dies: the boards of each.
        training: how much is learned.
        tested: rows that are tested, at most, of each data set, GPU and family.
        quick: next to nothing.
        report: called with progress.
        cached: folders of what an earlier run trained.
    """

    data: Path
    sets: tuple[str, ...]
    dies: tuple[Die, ...]
    training: Learning
    tested: int
    quick: bool
    report: Report | None
    cached: list[Path] = field(default_factory=list)

    @cached_property
    def corpora(self) -> dict[str, Corpus]:
        """Clean rows by data set."""
        corpora = {}
        for name in self.sets:
            if self.report:
                self.report(f"reading {name}", 0, 1, float("nan"))
            corpus = load_corpus(self.data / name)
            corpora[name] = replace(corpus, rows={m: thinned(corpus.rows[m], self.tested) for m in MODELS})
        return corpora

    @cached_property
    def code(self) -> str:
        """Hash of the code that decides what is learned."""
        return code_sha256()

    @cached_property
    def constants(self) -> Constants:
        """Fits of constants."""
        training = self.training
        return Constants(self.data, self.code, self.quick, each=training.each, steps=training.steps)

    def rows(self, left_out: Iterable[str]) -> dict[str, list[DeviceRows]]:
        """Rows to learn from, by tile model, without some GPUs."""
        kept = set(left_out)
        by_model: dict[str, list[DeviceRows]] = {}
        for model in MODELS:
            rows = [r for corpus in self.corpora.values() for r in corpus.rows[model] if r.device.id not in kept]
            by_model[model] = thinned(rows, self.training.rows)
        return by_model

    def predictor(self, left_out: tuple[str, ...], without: tuple[str, ...]) -> KernelPredictor:
        """Tile models without some GPUs, from the cache or trained; see ``DieFold``."""
        folder = cache_dir() / "experiments" / f"dies-{self._key(left_out)}"
        if (folder / DONE).is_file():
            self.cached.append(folder)
        else:
            began = monotonic()
            self._train(folder, left_out, without)
            (folder / DONE).write_text(json.dumps({"seconds": monotonic() - began}) + "\n", encoding="utf-8")
        return Predictor.load(folder).kernel_predictor

    def _train(self, folder: Path, left_out: tuple[str, ...], without: tuple[str, ...]) -> None:
        fitted = self.constants.without(left_out, self.report)
        rows = self.rows(left_out)
        first = next(iter(self.corpora.values()))
        corpus = replace(first, rows=rows, throttled={model: [] for model in MODELS}, source=self.data)
        options = TrainOptions(
            source=self.data,
            out=folder,
            backend=self.training.backend,
            parameters=tuple(sorted(self.training.parameters.items())),
            resume=True,
            physics=fitted,
        )

        def refit(gpus: Iterable[str]) -> Physics:
            more = self._boards(gpus)
            return self.constants.without({*without, *more}, self.report).physics if more else fitted.physics

        known = Without(Choices([], options.seed), refit)
        state = FoldStore(folder / STATE, self._key(left_out), resume=True)
        for model in (model for model in MODELS if rows[model]):
            contract = load_contract(model)
            train_model(FoldRun(model, contract, corpus, corpus, known, options.backend, state, self.report), options)
        shipped_choice().save(folder / "tile_choice.json")
        fitted.save(folder / PHYSICS_FILE)
        state.clear()

    def _boards(self, gpus: Iterable[str]) -> set[str]:
        """All boards of the dies that some GPUs have."""
        named = set(gpus)
        return named.union(*(die.boards for die in self.dies if named & set(die.boards)))

    def _key(self, left_out: tuple[str, ...]) -> str:
        files = sorted(file for name in self.sets for file in (self.data / name / "kernels").glob("*.parquet"))
        data = [file_sha256(file) for file in files]
        request = [sorted(left_out), self.training.model_dump(), self.tested, self.quick, data, self.code]
        return sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:24]


def run(declared: DiesDeclaration, quick: bool, report: Report | None = None) -> Results:
    """Train and test every fold.

    Returns:
        ``cells``: fold, kind (die or sibling), gpu, family, contestant, count, mape, bias, and where an interval
        is stated inside and width; ``by_fold`` their means over boards;
        ``rates``: architecture, kind (rates/float32, …), devices, count, mape, bias of rates that were left out;
        ``data``: rows of each data set; ``assumptions``: numbers that no fit found; ``cached_s``: what earlier runs
        took to train; ``verdicts``.
    """
    training = declared.training
    if quick:
        short = {**training.parameters, **({"epochs": 2} if training.backend == "mlp" else {})}
        training = training.model_copy(update={"rows": QUICK_ROWS, "each": 5, "steps": 1, "parameters": short})
    tested = QUICK_ROWS if quick else declared.rows
    learning = DieTrainings(data_dir(), declared.data, declared.dies, training, tested, quick, report)
    folds = folds_of(declared)
    if quick:
        folds = [folds[0], next((fold for fold in folds if fold.kind == "sibling"), folds[-1])]
    floor, cells = learning.predictor((), ()), []
    for done, fold in enumerate(folds, start=1):
        cells += _cells(learning, fold, floor, quick)
        if report:
            report("folds", done, len(folds), float("nan"))
    results: Results = {
        "data": {name: sum(len(r) for rows in c.rows.values() for r in rows) for name, c in learning.corpora.items()},
        "cells": cells,
        "by_fold": means(cells, ("kind", "fold", "family", "contestant")),
    }
    if declared.rates:
        results["rates"] = _rates(learning, quick)
    results["assumptions"] = [vars(each) for each in assumptions() if len(each.value) <= LONGEST_VALUE]
    results["cached_s"] = training_seconds(set(learning.cached))
    return results | {"verdicts": list(verdicts(results, declared.targets))}


def _cells(learning: DieTrainings, fold: DieFold, floor: KernelPredictor, quick: bool) -> list[dict[str, Any]]:
    """Errors on every board that was left out, by family and contestant; in percent over all rows of a board."""
    rows = [r for parts in learning.rows(fold.left_out).values() for r in parts]
    predictor = learning.predictor(fold.left_out, fold.without)
    forecasters = contestants(predictor, floor, rows, families_of)
    held = [r for corpus in learning.corpora.values() for parts in corpus.rows.values() for r in parts]
    scored = joined(
        _scored(r, name, forecaster)
        for r in held
        if r.device.id in fold.left_out
        for name, forecaster in forecasters.items()
    )
    return [
        {"fold": fold.name, "kind": fold.kind, **names, **_figures(part)}
        for names, part in scored.groups("gpu", "family", "contestant")
        if quick or len(part) >= LEAST_ROWS
    ]


def _scored(r: DeviceRows, contestant: str, forecaster: Forecaster) -> Scored:
    """Kernels that a target names; short context attention is none's."""
    import pandas as pd

    families = families_of(r.batch)
    families[(families == "context attention") & (r.latency_s < SHORT_S)] = ""
    keys = pd.DataFrame({"gpu": r.device.id, "family": families, "contestant": contestant})
    scored = forecaster(r.batch, r.device, r.conditions).scored(keys, r.latency_s)
    return scored.take(scored.keys["family"].to_numpy() != "")


def _figures(rows: Scored) -> dict[str, Any]:
    figures = rows.figures()
    names = {"count": "count", "mean": "mape", "bias": "bias", "inside": "inside", "width": "width"}
    return {name: figures[key] for key, name in names.items() if key in figures}


def means(cells: Iterable[Mapping[str, Any]], keys: tuple[str, ...]) -> list[dict[str, Any]]:
    """Plain means of what has the same ``keys``: boards count alike, however many rows they have."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for cell in cells:
        groups.setdefault(tuple(cell[key] for key in keys), []).append(cell)
    return [{**dict(zip(keys, names, strict=True)), **_mean(part)} for names, part in groups.items()]


def _mean(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names = [name for name in ("mape", "bias", "inside", "width") if all(name in cell for cell in cells)]
    figures = {name: float(np.mean([cell[name] for cell in cells])) for name in names}
    return {"count": sum(cell["count"] for cell in cells), **figures}


def _rates(learning: DieTrainings, quick: bool) -> list[dict[str, Any]]:
    """Rates of products on GPUs without kernels, predicted by constants without the rates of their architecture."""
    measured = {r.device.id for c in learning.corpora.values() for parts in c.rows.values() for r in parts}
    by_name: dict[str, list[ProblemPart]] = {}
    for part in Reading(learning.data, 0).rates():
        if part.device.id not in measured and part.kind in ("rates/float32", "rates/float16"):
            by_name.setdefault(part.device.architecture, []).append(part)
    rates = []
    for name in sorted(by_name)[: 1 if quick else None]:
        parts = by_name[name]
        physics = learning.constants.without({part.device.id for part in parts}, learning.report).physics
        for kind in sorted({part.kind for part in parts}):
            rates.append(
                {"architecture": name, "kind": kind, **_of_rates([p for p in parts if p.kind == kind], physics)}
            )
    return rates


def _of_rates(parts: Sequence[ProblemPart], physics: Physics) -> dict[str, Any]:
    """Errors in percent, each device counting once."""
    choice = shipped_choice()
    signed = [100 * (part.expected_s(physics, choice, None)[0] / part.latency_s - 1.0) for part in parts]
    return {
        "devices": sorted({part.device.id for part in parts}),
        "count": sum(len(part) for part in parts),
        "mape": float(np.mean([np.abs(s).mean() for s in signed])),
        "bias": float(np.mean([s.mean() for s in signed])),
    }


def verdicts(results: Mapping[str, Any], targets: DiesTargets) -> Iterator[dict[str, Any]]:
    """Every target of what was found, of ``ours``."""
    ours = [row for row in results["by_fold"] if row["contestant"] == "ours"]
    for aim in targets.families:
        for row in (row for row in ours if row["family"] == aim.family):
            limit = aim.dies.get(row["fold"], aim.die) if row["kind"] == "die" else aim.sibling
            if limit is not None:
                how = "left out" if row["kind"] == "die" else "left out, its siblings known"
                yield at_most(f"{aim.family}, {row['fold']} {how}", row["mape"], limit, [])
    if targets.coverage:
        for row in means(ours, ("kind", "family")):
            alike = [r for r in ours if (r["kind"], r["family"]) == (row["kind"], row["family"])]
            low, high = targets.coverage
            beyond = [f"{r['fold']} {r['inside']:.0f}" for r in alike if not low <= r["inside"] <= high]
            what = f"{row['family']} within 90 % intervals, {row['kind']} left out"
            yield between(what, row["inside"], targets.coverage, beyond)
    for kind, limit in targets.rates.items():
        rows = [row for row in results.get("rates", ()) if row["kind"] == f"rates/{kind}"]
        if rows:
            above = [f"{row['architecture']} {row['mape']:.1f}" for row in rows if row["mape"] > limit]
            devices = [len(row["devices"]) for row in rows]
            mean = float(np.average([row["mape"] for row in rows], weights=devices))
            yield at_most(f"{kind} rates of {sum(devices)} GPUs without kernels", mean, limit, above)
