"""Run an experiment: predict, compare, summarise, and write results, report and figures into its folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from neusight.errors import DataError
from neusight.experiments.declare import Data, Declaration, Experiment
from neusight.experiments.kernel_step import compared_kernels, summarise_kernels
from neusight.experiments.model_step import compared_models, summarise_models
from neusight.experiments.operator_step import summarise_operators, summed_operators
from neusight.experiments.verdicts import verdicts
from neusight.tile_models.artifact import file_sha256

if TYPE_CHECKING:
    from neusight.api import Predictor
    from neusight.tile_models.training import Report

RESULTS = "results.json"
REPORT = "report.md"
DIGITS = 5
"""Significant digits in results: more would differ between machines."""
ROW_DECIMALS = 1
"""Decimals of a single row's errors in percent: a report on measurements, not a copy of them."""


def run(experiment: Experiment, train: bool = False, report: Report | None = None) -> dict[str, Any]:
    """Do what an experiment declares.

    Args:
        experiment: what to do.
        train: train tile models afresh, even where the declaration takes those that ship.
        report: called with training progress.

    Returns:
        What ``results.json`` holds: the declaration, hashes of the data, ``runs`` (one a set of tile models, with its
        kernels, models and targets) and ``operators``.

    Raises:
        DataError: data are missing or foreign, or the tile models learned from other GPUs than declared.
    """
    declared = experiment.declared
    runs = []
    with TemporaryDirectory(prefix="neusight-") as scratch:
        for label, folder in _tile_models(declared, train, Path(scratch), report):
            runs.append({"tile_models": label, **evaluated(declared, _predictor(declared, folder))})
    data, split = declared.data, declared.split
    results: dict[str, Any] = {"experiment": experiment.id, **declared.model_dump(mode="json")}
    results |= {"sha256": _hashes(declared), "runs": runs}
    if "operators" in declared.steps:
        rows = summed_operators(data.path("operators"), data.path("latency"), data.path("configs"), split)
        results["operators"] = summarise_operators(rows, runs[0].get("models", {}).get("rows", ()))
    return rounded(results)


def evaluated(declared: Declaration, predictor: Predictor) -> dict[str, Any]:
    """The steps that judge one set of tile models, with where those come from."""
    data, split = declared.data, declared.split
    found: dict[str, Any] = {"provenance": dict(predictor.kernel_predictor.provenance)}
    if "kernels" in declared.steps:
        gpus = (*split.held_out, *split.other_vendor)
        found["kernels"] = summarise_kernels(compared_kernels(data.path("kernels"), gpus, predictor), split)
    if "models" in declared.steps:
        latency, configs, published = (data.path(part) for part in ("latency", "configs", "published"))
        found["models"] = summarise_models(compared_models(latency, configs, published, split, predictor), split)
    return found | {"targets": verdicts(found, declared.targets)}


def _tile_models(
    declared: Declaration, train: bool, scratch: Path, report: Report | None
) -> Iterator[tuple[str, Path | None]]:
    """Label and folder of each set of tile models; None is the one that ships."""
    if not (train or declared.tile_models.train):
        yield "shipped", None
        return
    from neusight.tile_models.training import Options
    from neusight.tile_models.training import train as fit

    backend = declared.tile_models.backend
    for seed in declared.tile_models.seeds:
        out = scratch / f"seed-{seed}"
        source, gpus = declared.data.path("kernels"), declared.split.training
        fit(Options(source=source, out=out, backend=backend, gpus=gpus, seed=seed), report)
        yield f"{backend}, seed {seed}", out


def _predictor(declared: Declaration, folder: Path | None) -> Predictor:
    """Raises DataError where the tile models learned from other GPUs than the declaration says."""
    from neusight.api import Predictor

    predictor = Predictor.load(folder)
    learned = set(predictor.kernel_predictor.provenance["training_gpus"])
    if learned - set(declared.split.training):
        raise DataError(
            f"the tile models learned from {', '.join(sorted(learned))}, the experiment declares "
            f"{', '.join(declared.split.training)}: correct split.training or run with --train"
        )
    return predictor


def _hashes(declared: Declaration) -> dict[str, str]:
    """SHA-256 of every data file that may be read, by path below the data set's folder."""
    data = declared.data
    parts = [data.path(part) for part in Data.model_fields if part != "name" and getattr(data, part)]
    files = [file for path in parts for file in (sorted(path.glob("*")) if path.is_dir() else [path])]
    return {file.relative_to(data.folder).as_posix(): file_sha256(file) for file in files if file.is_file()}


def rounded(value: Any) -> Any:
    """Floats to ``DIGITS`` significant digits, and None for what is no number, all through lists and tables; the
    ``errors`` of rows to ``ROW_DECIMALS``.
    """
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _of_row(entry) if key == "errors" else rounded(entry) for key, entry in value.items()}
    return [rounded(entry) for entry in value] if isinstance(value, list | tuple) else value


def _of_row(errors: dict[str, float | None]) -> dict[str, float | None]:
    return {name: None if error is None else round(error, ROW_DECIMALS) for name, error in errors.items()}


def load_results(experiment: Experiment) -> dict[str, Any]:
    """What the last run left.

    Raises:
        DataError: it never ran, or the file is damaged.
    """
    path = experiment.folder / RESULTS
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path} is not there: neusight experiments run {experiment.id}") from None
    except ValueError as error:
        raise DataError(f"{path} is damaged ({error}): neusight experiments run {experiment.id}") from None
    return found


def write_results(experiment: Experiment, results: dict[str, Any]) -> list[Path]:
    """Write results, figures and report; the same results give the same files."""
    from neusight.experiments.figures import draw
    from neusight.experiments.report import render

    folder = experiment.folder
    figures = draw(results, folder)
    texts = {RESULTS: json.dumps(results, indent=1, ensure_ascii=False) + "\n", REPORT: render(results, figures)}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in (*texts, *figures)]
