"""Train the tile model of TensorDash from nothing: simulate the data set, fit, measure on held-out passes, save.

    neusight train --models tensordash --out DIR [--seed 0]

writes ``DIR/tensordash`` (weights, manifest, card) and ``DIR/data/tensordash-tiles``. On one core it takes less than
ten minutes, most of them for the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.executors.gpu.tile_models import Artifact, load_artifact, new_model, save_artifact
from neusight.executors.gpu.tile_models.artifact import Manifest, file_sha256
from neusight.executors.gpu.tile_models.doubts import ANY
from neusight.executors.gpu.tile_models.protocol import TileModel, TrainingSet
from neusight.executors.tensordash.tile_model import (
    MOST_ROWS,
    NAME,
    load_tile_model,
    tensordash_contract,
    training_set,
)
from neusight.learn import Report
from neusight.learn.card import card_of, markdown_table, setting, versions_of
from neusight.learn.folds import percent_by_kind, progress, with_share
from neusight.learn.tensordash.dataset import NAME as DATASET
from neusight.learn.tensordash.dataset import PARTS, TileRanges, make_dataset

if TYPE_CHECKING:
    import pandas as pd

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


def train_tensordash(
    out: Path,
    seed: int = 0,
    parts: Mapping[str, TileRanges] = PARTS,
    parameters: dict[str, Any] | None = None,
    *,
    report: Report | None = None,
) -> Artifact:
    """Make the data set in ``out / "data"`` and train ``out / "tensordash"`` on it.

    Raises:
        DataError: a negative seed. ArtifactError: the contract is not that of the formulas.
    """
    folder = out / "data" / DATASET
    rows, contract = make_dataset(folder, seed, parts, report), tensordash_contract()
    passes = training_set({str(name): rows[name].to_numpy() for name in rows}, contract)
    held = np.arange(len(rows)) % HELD_OUT == 0
    chosen, learned = PARAMETERS | (parameters or {}) | {"seed": seed}, passes.take(~held)
    model = new_model("mlp", **chosen).fit(learned, None, progress(report, "epochs"))
    left_out = _left_out(model, passes.take(held), rows[held])
    ends = np.quantile(np.exp(with_share(left_out, 1.0)["ratio"]), [0.05, 0.95])
    files = sorted((folder / "passes").glob("*.parquet"))
    domain = {"low": learned.features.min(axis=0), "high": learned.features.max(axis=0)}
    manifest = Manifest(
        name=NAME,
        backend="mlp",
        parameters=chosen,
        contract=contract,
        data={"rows": len(learned), "sha256": {f"passes/{f.name}": file_sha256(f) for f in files}},
        training_gpus=[NAME],
        seed=seed,
        doubts={"stranger": {ANY: [*(round(float(end), 4) for end in ends), 0.0]}},
        effects={},
        domain={name: [float(f"{value:.4g}") for value in values] for name, values in domain.items()},
        launch_floors_s={},
        metrics={"own": percent_by_kind(left_out, 1.0)},
        versions=versions_of("neusight", "numpy", "scipy", "torch"),
        simulator="neusight.executors.tensordash",
    )
    saved = save_artifact(Artifact(manifest, model), out / NAME, render_tensordash_card(manifest))
    load_tile_model.cache_clear()
    return load_artifact(saved, contract)


def _left_out(model: TileModel, passes: TrainingSet, rows: pd.DataFrame) -> pd.DataFrame:
    """Passes that were left out as ``folds.COLUMNS`` has them; of the whole range by how zeros keep together."""
    whole = rows["part"] == "whole"
    kinds = rows["part"].where(~whole, "whole, zeros by " + rows["cluster"])
    columns = {name: getattr(passes, name) for name in ("prior", "bound_s", "floor_s", "latency_s")}
    learned = model.logits(passes.features, passes.prior).mean(axis=0) - passes.prior
    return rows.assign(gpu=NAME, kind=kinds, learned=learned, **columns)


def render_tensordash_card(manifest: Manifest) -> str:
    """Markdown for ``card.md``, from the manifest alone."""
    training = {
        "simulator": f"{manifest.simulator}, option list oldest-row, depth 3, 16 lanes, up to {MOST_ROWS} PE rows",
        "rows": f"{manifest.data['rows']:,} passes, each a mean over draws of its zeros",
        "parameters": setting(manifest.parameters, " = "),
        "versions": setting(manifest.versions),
    }
    errors, (low, high) = manifest.metrics["own"][NAME], manifest.interval
    return card_of(
        manifest,
        "Predicts how close a pass of a TensorDash tile comes to the sparse bound, `max(⌈T / 3⌉, T · density)` cycles: "
        "`logit(utilisation)` as a correction of what order statistics expect. It answers simulated TensorDash tiles, "
        "never kernels on GPUs.",
        f"neusight train --models {NAME}",
        training,
        "## Error on passes that were left out",
        f"Cycles against the mean over draws, every {HELD_OUT}th pass, mean in percent.",
        markdown_table("passes | error", (f"{name} | {error:.2f}" for name, error in errors.items())),
        f"Interval: cycles x {low:g} to x {high:g} encloses 90 % of these means. A single draw scatters by more than "
        "the model errs where streams or lanes have zero fractions of their own.",
        "## Gaps",
        "Other depths, lanes and wider tiles are refused: simulate them. Zeros are drawn from a "
        "beta-Bernoulli model; masks of networks may keep together in ways that it does not have.",
    )
