"""Baselines as entrants: trained on the same rows, whole models as the sum of their kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neusight.devices import DeviceSpec, load_device
from neusight.experiments.entrants import Forecast, StepForecast, asked
from neusight.learn.training_data import FAMILIES, Corpus, load_corpus
from neusight.schedule.serial import PreparedGraph, prepare

if TYPE_CHECKING:
    from neusight.experiments.baselines import Baseline
    from neusight.experiments.declare import Contestant, Data
    from neusight.kernels import KernelBatch

REMEMBERED = 128
"""Steps whose kernels are kept: every baseline and GPU asks for the same ones."""


@dataclass(frozen=True)
class BaselineEntrant:
    """A fitted baseline; it states no interval."""

    name: str
    seed: int
    label: str
    baseline: Baseline
    training: tuple[str, ...]

    def kernels(self, batch: KernelBatch, device: DeviceSpec) -> Forecast:
        """Without an interval."""
        return Forecast(self.baseline.predict_s(batch, device))

    def step(self, record: Mapping[str, Any], config: Path) -> StepForecast:
        """The sum of all phases."""
        from neusight.experiments.baselines import whole_model_s

        graph = _prepared(config, tuple(asked(record).items()))
        return StepForecast(1e3 * sum(whole_model_s(self.baseline, graph, load_device(record["gpu"])).values()))

    def provenance(self) -> dict[str, Any]:
        """What it learned from."""
        return {"baseline": self.baseline.name, "seed": self.seed, "training_gpus": sorted(self.training)}


def corpus_of(data: Data, source: Path, gpus: tuple[str, ...]) -> Callable[[], Corpus]:
    """The rows that a fold's baselines learn from, read when the first one asks."""
    return lru_cache(maxsize=1)(
        lambda: load_corpus(source, gpus, data.families or FAMILIES).of_split(data.training_split)
    )


def fitted_baseline(
    contestant: Contestant, seed: int, corpus: Callable[[], Corpus], gpus: tuple[str, ...]
) -> BaselineEntrant:
    """A baseline trained on a corpus, with the rows that were set aside as throttled: published ones had them, too."""
    from neusight.experiments.baselines import new_baseline, rows_of

    baseline = new_baseline(contestant.kind, seed).fit(rows_of(corpus(), split=""))
    return BaselineEntrant(contestant.name, seed, contestant.label(seed), baseline, gpus)


@lru_cache(maxsize=REMEMBERED)
def _prepared(config: Path, options: tuple[tuple[str, Any], ...]) -> PreparedGraph:
    from neusight.workloads import load_graph

    return prepare(load_graph(str(config), **dict(options), allow_fallback=True))
