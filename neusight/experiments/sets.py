"""Kernels of today, of several data sets: families as targets tell them apart, folds without boards of a die, rates.

Tile models choose what to trust, and how wide intervals are, by leaving out one more kind of SM, with constants that
were fitted without both dies.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.executors.gpu.features import load_contract
from neusight.executors.gpu.tile_models.artifact import file_sha256
from neusight.executors.gpu.tiling.library import shipped_choice
from neusight.experiments.assumptions import assumptions
from neusight.experiments.baselines.lines import families_of, roofline_s
from neusight.experiments.constants import Constants
from neusight.experiments.folds import code_sha256, measured_tables, trained_with
from neusight.experiments.kernels import Tested, kernel_ids
from neusight.kernels.work import work_of
from neusight.laws.fitted import FILE as PHYSICS_FILE
from neusight.laws.physics import Physics
from neusight.learn.folds import FoldRun, FoldStore, Without
from neusight.learn.physics.observations import ObservationReader, ProblemPart
from neusight.learn.tile_choice import Choices
from neusight.learn.training import STATE, TrainOptions, train_model
from neusight.learn.training_data import Corpus, DeviceRows, load_corpus, thinned
from neusight.paths import cache_dir, data_dir

if TYPE_CHECKING:
    from neusight.experiments.declare import Contestant, Data, Declaration, Fold
    from neusight.learn import Report

MODELS = ("matrix", "attention", "moe", "stream")
SHORT_S = 20e-6
"""Context attention that is shorter is mostly launch, and no target's."""
LEAST_ROWS = 20
"""A board and family that has fewer is left out: prefills of one token are a row each."""
LONGEST_VALUE = 48
"""Letters of an assumption that is a number, or a few."""
QUICK_ROWS = 150


@dataclass(frozen=True)
class SeveralSets:
    """Kernels of several data sets; ``quick`` trains next to nothing. See ``folds.Learning``."""

    declared: Declaration
    quick: bool = False

    least_rows = LEAST_ROWS

    @property
    def folds(self) -> Sequence[Fold]:
        """Of a quick run the first, and the first sibling."""
        folds = self.declared.rounds
        if not self.quick:
            return folds
        return (folds[0], *[fold for fold in folds if fold.die][:1])

    @cached_property
    def data(self) -> Data:
        """What is read, of a quick run little."""
        short = {"learned_rows": QUICK_ROWS, "tested_rows": QUICK_ROWS, "each": 5, "steps": 1}
        return self.declared.data.model_copy(update=short if self.quick else {})

    @cached_property
    def corpora(self) -> dict[str, Corpus]:
        """Clean rows by data set."""
        corpora = {}
        for name in self.data.sets:
            corpus = load_corpus(measured_tables(name))
            corpora[name] = replace(corpus, rows={m: thinned(corpus.rows[m], self.data.tested_rows) for m in MODELS})
        return corpora

    @cached_property
    def measured(self) -> list[DeviceRows]:
        """All rows."""
        return [r for corpus in self.corpora.values() for parts in corpus.rows.values() for r in parts]

    @cached_property
    def gpus(self) -> tuple[str, ...]:
        """GPUs that have rows, of those that are declared."""
        named = dict.fromkeys(r.device.id for r in self.measured)
        return tuple(gpu for gpu in named if not self.declared.gpus or gpu in self.declared.gpus)

    @cached_property
    def constants(self) -> Constants:
        """Fits of constants."""
        return Constants(data_dir(), code_sha256(), self.quick, each=self.data.each, steps=self.data.steps)

    def rows_by_model(self, left_out: Iterable[str]) -> dict[str, list[DeviceRows]]:
        """Rows to learn from, by tile model, without some GPUs."""
        kept = set(self.gpus) - set(left_out)
        by_model: dict[str, list[DeviceRows]] = {}
        for model in MODELS:
            rows = [r for corpus in self.corpora.values() for r in corpus.rows[model] if r.device.id in kept]
            by_model[model] = thinned(rows, self.data.learned_rows)
        return by_model

    def rows(self, fold: Fold) -> list[DeviceRows]:
        """See ``folds.Learning``."""
        return [r for parts in self.rows_by_model(fold.held_out).values() for r in parts]

    def boards(self, gpus: Iterable[str]) -> set[str]:
        """All boards of the dies that some GPUs have."""
        named = set(gpus)
        return named.union(*(fold.held_out for fold in self.declared.folds if named & set(fold.held_out)))

    def job(self, fold: Fold, contestant: Contestant, seed: int, report: Report | None) -> WithoutBoards:
        """See ``folds.Learning``."""
        left_out = fold.held_out if contestant.kind == "ours" else ()
        fitted = self.constants.without(left_out, report)
        options = TrainOptions(
            files=(), out=Path(), resume=True, seed=seed, physics=fitted,
            **trained_with(contestant.options, self.quick),
        )  # fmt: skip
        job = WithoutBoards(self, options, left_out, (fold.die or left_out) if left_out else ())
        return replace(job, options=replace(options, out=cache_dir() / "experiments" / f"sets-{job.key}"))

    def tested(self, fold: Fold) -> Iterator[Tested]:
        """See ``folds.Learning``; kernels that no target names are left out."""
        for r in self.measured:
            if r.device.id in fold.held_out:
                yield _tested(r)

    def rates(self, report: Report | None) -> list[dict[str, Any]]:
        """Rates of large square products on GPUs without kernels, by constants without those of their architecture.

        Returns:
            architecture, kind (rates/float32, …), devices, gpus (how many), count, mean and bias.
        """
        by_name: dict[str, list[ProblemPart]] = {}
        for part in ObservationReader(data_dir(), 0).rates():
            if part.device.id not in self.gpus and part.kind in ("rates/float32", "rates/float16"):
                by_name.setdefault(part.device.architecture, []).append(part)
        rates = []
        for name in sorted(by_name)[: 1 if self.quick else None]:
            parts = by_name[name]
            physics = self.constants.without({part.device.id for part in parts}, report).physics
            for kind in sorted({part.kind for part in parts}):
                own = [part for part in parts if part.kind == kind]
                rates.append({"architecture": name, "kind": kind, **_of_rates(own, physics)})
        return rates

    def parts(self, report: Report | None) -> dict[str, Any]:
        """Parts of results that one set lacks: rows of each data set, numbers that no fit found, and rates."""
        sizes = {name: sum(len(r) for parts in c.rows.values() for r in parts) for name, c in self.corpora.items()}
        parts: dict[str, Any] = {"data": sizes, "rates": self.rates(report) if "rates" in self.declared.report else []}
        return parts | {"assumptions": [vars(each) for each in assumptions() if len(each.value) <= LONGEST_VALUE]}


def _tested(r: DeviceRows) -> Tested:
    import pandas as pd

    kinds = families_of(r.batch)
    kinds[(kinds == "context attention") & (r.latency_s < SHORT_S)] = ""
    kept = np.flatnonzero(kinds != "")
    rows = r.take(kept)
    work = work_of(rows.batch)
    facts = pd.DataFrame({"family": rows.batch.family, "kind": kinds[kept], "id": kernel_ids(rows.batch)})
    facts = facts.assign(gpu=r.device.id, op=rows.batch["op"] if "op" in rows.batch.columns else rows.batch.family)
    facts = facts.assign(flops=work.least_flops, bytes=work.bytes, measured=1e3 * rows.latency_s)
    facts["roofline"] = 1e3 * roofline_s(rows.batch, r.device)
    return Tested(r.device, facts, [(rows.batch, np.arange(len(rows)), rows.conditions)], in_order=False)


@dataclass(frozen=True)
class WithoutBoards:
    """Tile models of several data sets without some boards; ``die`` are all boards of the die that those are of."""

    learning: SeveralSets
    options: TrainOptions
    left_out: tuple[str, ...]
    die: tuple[str, ...]

    @property
    def out(self) -> Path:
        """See ``folds.Job``."""
        return self.options.out

    @cached_property
    def key(self) -> str:
        """Everything that the training depends on."""
        learning, options = self.learning, self.options
        files = sorted(
            file for name in learning.data.sets for file in (data_dir() / name / "kernels").glob("*.parquet")
        )
        data = [file_sha256(file) for file in files]
        learned = [options.backend, options.parameters, options.seed, learning.data.model_dump(), learning.quick]
        request = [sorted(self.left_out), learned, data, code_sha256()]
        return sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:24]

    def run(self, report: Report | None) -> None:
        """See ``folds.Job``."""
        learning, options, fitted = self.learning, self.options, self.options.physics
        assert fitted is not None
        rows, first = learning.rows_by_model(self.left_out), next(iter(learning.corpora.values()))
        corpus = replace(first, rows=rows, throttled={model: [] for model in MODELS})

        def refit(gpus: Iterable[str]) -> Physics:
            more = learning.boards(gpus)
            return learning.constants.without({*self.die, *more}, report).physics if more else fitted.physics

        without = Without(Choices([], options.seed), refit)
        state = FoldStore(self.out / STATE, self.key, resume=True)
        for model in (model for model in MODELS if rows[model]):
            contract = load_contract(model)
            train_model(
                FoldRun(model, contract, corpus, corpus, without, options.backend, state, report, options.fold_rows),
                options,
            )
        shipped_choice().save(self.out / "tile_choice.json")
        fitted.save(self.out / PHYSICS_FILE)
        state.clear()


def _of_rates(parts: Sequence[ProblemPart], physics: Physics) -> dict[str, Any]:
    """Errors in percent, each device counting once."""
    choice = shipped_choice()
    signed = [100 * (part.expected_s(physics, choice, None)[0] / part.latency_s - 1.0) for part in parts]
    devices = sorted({part.device.id for part in parts})
    return {
        "devices": devices,
        "gpus": len(devices),
        "count": sum(len(part) for part in parts),
        "mean": float(np.mean([np.abs(s).mean() for s in signed])),
        "bias": float(np.mean([s.mean() for s in signed])),
    }
