"""Served models on GPUs of which nothing was measured: neither kernels nor collectives nor runs.

Constants of physics, of links and of engines are fitted without all boards of a die. What tile models learned of those
boards is forgotten; of what they learned at all, as much counts as on any GPU of an unknown kind.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neusight.api import Predictor
from neusight.evaluation.scored import Selection
from neusight.evaluation.serving import deployed_cells, evaluate_serving
from neusight.executors.gpu.predictor import KernelPredictor
from neusight.executors.gpu.tile_models.artifact import Artifact, sm_kind
from neusight.executors.link.executor import LinkPredictor
from neusight.experiments.constants import Constants
from neusight.experiments.folds import code_sha256
from neusight.laws.fitted_links import shipped_links
from neusight.laws.physics import Physics
from neusight.learn.engines import EngineFit, fit_engines, with_fitted
from neusight.learn.links import links_without
from neusight.serving.deployment import Deployment

if TYPE_CHECKING:
    from neusight.experiments.declare_serving import LeftOut
    from neusight.learn import Report

Evaluated = dict[str, Any]


def without_dies(
    dies: Collection[LeftOut], cells: Path, models: Path, data: Path, *, quick: int | None, report: Report | None
) -> Iterator[tuple[LeftOut, Evaluated]]:
    """What is said of the cells of each die, by a predictor that knows nothing of it.

    Args:
        dies: left out one after the other.
        cells, models: as ``evaluate_serving`` takes them.
        data: folder of the data sets.
        quick: cells of a die, at most.
        report: called with progress.
    """
    if not dies:
        return
    fitted = _engines(cells, models, quick, report)
    constants = Constants(data, code_sha256(), quick is not None)
    for die in dies:
        physics = constants.without(die.boards, report).physics
        predictor = unseen(Predictor.load(), die.boards, physics, data)
        engines = fitted.without(die.boards)

        def prepared(deployment: Deployment, known: Mapping[str, Any] = engines) -> Deployment:
            return with_fitted(deployment, known)

        picked = Selection(gpus=die.boards, limit=quick)
        advance = _advance(die.name, report)
        yield die, evaluate_serving(cells, predictor, models, picked, progress=advance, prepare=prepared)


def _engines(cells: Path, models: Path, quick: int | None, report: Report | None) -> EngineFit:
    """Observations of all cells, simulated with the constants that ship, and fits to them."""
    shipped = Predictor.load()
    picked = Selection(limit=None if quick is None else 4 * quick)
    return fit_engines(lambda: deployed_cells(cells, shipped, models, picked), rounds=1, report=report)


def _advance(name: str, report: Report | None) -> Callable[[int, int], None]:
    def advance(done: int, of: int) -> None:
        if report:
            report(f"without {name}", done, of, float("nan"))

    return advance


def unseen(predictor: Predictor, boards: Collection[str], physics: Physics, data: Path) -> Predictor:
    """The same, as if some boards had never been measured."""
    kernels = predictor.kernel_predictor
    artifacts = {name: _forgotten(artifact, boards) for name, artifact in kernels.artifacts.items()}
    links = LinkPredictor(links_without(data, boards, shipped_links()))
    return Predictor(KernelPredictor(artifacts, kernels.choice, physics=physics), links=links)


def _forgotten(artifact: Artifact, boards: Collection[str]) -> Artifact:
    from neusight.devices import load_device

    known = artifact.manifest
    left = [gpu for gpu in known.training_gpus if gpu not in boards]
    levels = {name: level for name, level in known.levels.items() if name.split("/")[0] not in boards}
    kinds = sorted({sm_kind(load_device(gpu)) for gpu in left})
    return replace(artifact, manifest=replace(known, training_gpus=left, levels=levels, kinds=kinds))
