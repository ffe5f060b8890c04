"""Train the tile model of TensorDash from nothing: simulate the data set, fit, measure on held-out passes, save.

    python -m neusight.learn.tensordash.train --out DIR [--data DIR] [--seed 0]

writes ``OUT/tensordash`` (weights, manifest, card) and ``DATA/tensordash-tiles``; ``DATA`` is ``OUT/data`` unless it is
given. On one core it takes less than ten minutes, most of them for the data. In a checkout, ``--out tile_models --data
ELSEWHERE`` renews the model that ships.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from neusight.errors import NeusightError
from neusight.executors.gpu.tile_models import Artifact, load_artifact, new_model, save_artifact
from neusight.executors.gpu.tile_models.artifact import Manifest, file_sha256
from neusight.executors.gpu.tile_models.doubts import ANY
from neusight.executors.tensordash.tile_model import (
    MOST_ROWS,
    NAME,
    Passes,
    load_tile_model,
    pass_cycles,
    tensordash_contract,
    training_set,
)
from neusight.learn import Report
from neusight.learn.card import card_of, markdown_table, setting, versions_of
from neusight.learn.folds import progress
from neusight.learn.tensordash.dataset import NAME as DATASET
from neusight.learn.tensordash.dataset import PARTS, PassPart, make_dataset

HELD_OUT = 8
"""Every eighth pass is measured on, not learned from."""

PARAMETERS: dict[str, Any] = {
    "epochs": 300,
    "hidden": 96,
    "members": 2,
    "cap": 8.0,
    "weight_decay": 1e-4,
    "learning_rate": 4e-3,
    "batch_rows": 2048,
}
"""Of the backend ``mlp``: simulated means have little noise, so that it may learn longer than from measured kernels."""


def train(
    out: Path,
    data: Path | None = None,
    seed: int = 0,
    parts: Sequence[PassPart] = PARTS,
    parameters: dict[str, Any] | None = None,
    *,
    report: Report | None = None,
) -> Artifact:
    """Make the data set in ``data`` (default ``out / "data"``) and train ``out / "tensordash"`` on it.

    Raises:
        DataError: a negative seed. ArtifactError: the contract is not that of the formulas.
    """
    folder = (data or out / "data") / DATASET
    rows = make_dataset(folder, seed, parts, report)
    held = np.arange(len(rows)) % HELD_OUT == 0
    contract = tensordash_contract()
    chosen = PARAMETERS | (parameters or {}) | {"seed": seed}
    learned = training_set(_columns(rows[~held]), contract)
    model = new_model("mlp", **chosen).fit(learned, None, progress(report, "epochs"))
    files = sorted((folder / "passes").glob("*.parquet"))
    ends = {"low": learned.features.min(axis=0), "high": learned.features.max(axis=0)}
    manifest = Manifest(
        name=NAME,
        backend="mlp",
        parameters=chosen,
        contract=contract,
        data={"rows": len(learned), "sha256": {f"passes/{f.name}": file_sha256(f) for f in files}},
        training_gpus=["tensordash"],
        seed=seed,
        doubts={},
        device_bias={},
        domain={name: [float(f"{value:.4g}") for value in values] for name, values in ends.items()},
        launch_floors_s={},
        metrics={},
        versions=versions_of("neusight", "numpy", "scipy", "torch"),
        simulator="neusight.executors.tensordash",
    )
    manifest = _with_errors(Artifact(manifest, model), rows[held])
    saved = save_artifact(Artifact(manifest, model), out / NAME, render_tensordash_card(manifest))
    load_tile_model.cache_clear()
    return load_artifact(saved, contract)


def _with_errors(artifact: Artifact, rows: pd.DataFrame) -> Manifest:
    """The manifest with errors and intervals on held-out passes: of all, by part, and of the whole range by how zeros
    keep together.
    """
    columns = _columns(rows)
    ratio = columns["cycles"] / pass_cycles(artifact, Passes.of(columns))
    error, whole = 100 * np.abs(1 / ratio - 1), columns["part"] == "whole"
    groups = {"all": whole | True}
    groups |= {f"part {name}": columns["part"] == name for name in np.unique(columns["part"])}
    clusters = np.unique(columns["cluster"])
    groups |= {f"part whole, zeros by {name}": whole & (columns["cluster"] == name) for name in clusters}
    metrics = {
        "held_out_rows": len(rows),
        "held_out_error_percent": {name: _figures(error[chosen]) for name, chosen in groups.items() if chosen.any()},
        "held_out_noise_percent": _figures(100 * columns["scatter"] / np.sqrt(columns["draws"])),
        "one_draw_scatter_percent": _figures(100 * columns["scatter"][whole]) if whole.any() else {},
    }
    low, high = (round(float(end), 4) for end in np.quantile(ratio, [0.05, 0.95]))
    return replace(artifact.manifest, metrics=metrics, doubts={"stranger": {ANY: [low, high, 0.0]}})


def _figures(percent: np.ndarray) -> dict[str, float]:
    points = {"mean": percent.mean(), "p99": np.quantile(percent, 0.99), "worst": percent.max()}
    return {name: round(float(value), 3) for name, value in points.items()}


def render_tensordash_card(manifest: Manifest) -> str:
    """Markdown for ``card.md``, from the manifest alone."""
    metrics, (low, high) = manifest.metrics, manifest.interval
    training = {
        "simulator": f"{manifest.simulator}, option list oldest-row, depth 3, 16 lanes, up to {MOST_ROWS} PE rows",
        "rows": f"{manifest.data['rows']:,} passes, each a mean over draws of its zeros",
        "parameters": setting(manifest.parameters, " = "),
        "versions": setting(manifest.versions),
    }
    errors = {**metrics["held_out_error_percent"], "noise of these means": metrics["held_out_noise_percent"]}
    if metrics["one_draw_scatter_percent"]:
        errors["scatter of a single draw"] = metrics["one_draw_scatter_percent"]
    cells = (f"{name} | {e['mean']:.2f} | {e['p99']:.2f} | {e['worst']:.2f}" for name, e in errors.items())
    return card_of(
        manifest,
        "Predicts how close a pass of a TensorDash tile comes to the sparse bound, `max(⌈T / 3⌉, T · density)` cycles: "
        "`logit(utilisation)` as a correction of what order statistics expect. It answers simulated TensorDash tiles, "
        "never kernels on GPUs.",
        "python -m neusight.learn.tensordash.train",
        training,
        "## Error on passes that were left out",
        f"Cycles against the mean over draws, {metrics['held_out_rows']:,} passes, in percent.",
        markdown_table("passes | mean | p99 | worst", cells),
        f"Interval: cycles x {low:g} to x {high:g} encloses 90 % of these means. A single draw scatters by more than "
        "the model errs where streams or lanes have zero fractions of their own.",
        "## Gaps",
        "Other depths, lanes and wider tiles are refused: simulate them. Zeros are drawn from a "
        "beta-Bernoulli model; masks of networks may keep together in ways that it does not have.",
    )


def _columns(rows: pd.DataFrame) -> dict[str, np.ndarray]:
    return {str(name): rows[name].to_numpy() for name in rows}


def _print_progress(task: str, done: int, of: int, _: float) -> None:
    print(f"{task}: {done:,} of {of:,}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command of the module; 1 after an error, which is one line."""
    parser = argparse.ArgumentParser(prog="python -m neusight.learn.tensordash.train", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--out", type=Path, required=True, help="folder for the tile model")
    parser.add_argument("--data", type=Path, help="folder that gets the data set; default OUT/data")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    try:
        artifact = train(given.out, given.data, given.seed, report=_print_progress)
    except NeusightError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    figures = artifact.manifest.metrics["held_out_error_percent"]["all"]
    print(f"{artifact.folder}: " + ", ".join(f"{key} {value:.4g}" for key, value in figures.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
