"""Train the tile model of TensorDash from nothing: simulate the data set, fit, measure on held-out passes, save.

    python -m neusight.learn.tensordash.train --out DIR [--data DIR] [--seed 0]

writes ``OUT/tensordash`` (weights, manifest, card) and ``DATA/tensordash-tiles``, which is taken up where it was left;
``DATA`` is ``OUT/data`` unless it is given. On one core it takes less than ten minutes, most of them for the data. In a
checkout, ``--out tile_models --data ELSEWHERE`` renews the model that ships, and
``neusight.datasets.describe(Path(ELSEWHERE, NAME), into=Path("datasets", NAME))`` the card of its data.

    python -m neusight.learn.tensordash.train --judge 10000 [--seed 977]

trains nothing: it tells how far the model that ships is from the simulator on so many passes that it has never seen,
drawn from the ranges of ``TileRanges`` by another seed; 10,000 take some minutes on one core.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight import __version__
from neusight.errors import NeusightError
from neusight.executors.gpu.tile_models import Artifact, load_artifact, new_model, save_artifact
from neusight.executors.gpu.tile_models.artifact import Manifest, file_sha256
from neusight.executors.gpu.tile_models.doubts import ANY
from neusight.executors.tensordash.tile_model import (
    MOST_ROWS,
    NAME,
    SHORT,
    Passes,
    load_tile_model,
    pass_cycles,
    tensordash_contract,
    training_set,
)
from neusight.learn.card import bullets
from neusight.learn.tensordash.dataset import NAME as DATASET
from neusight.learn.tensordash.dataset import PARTS, PassPart, load_passes, make_dataset, simulate_passes

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


def train(
    out: Path,
    data: Path | None = None,
    seed: int = 0,
    parts: tuple[PassPart, ...] = PARTS,
    parameters: dict[str, Any] | None = None,
) -> Artifact:
    """Make the data set in ``data`` (default ``out / "data"``) and train ``out / "tensordash"`` on it.

    Raises:
        DataError: the data set there was made otherwise. ArtifactError: the contract is not that of the formulas.
    """
    data = data or out / "data"
    make_dataset(data, seed, parts, lambda done, of: _say(f"simulated {done:,} of {of:,} passes"))
    frame = load_passes(data / DATASET)
    held = np.arange(len(frame)) % HELD_OUT == 0
    contract = tensordash_contract()
    chosen = PARAMETERS | (parameters or {}) | {"seed": seed}
    learned = training_set(_columns(frame[~held]), contract)
    model = new_model("mlp", **chosen).fit(learned, None, _epoch)
    files = sorted((data / DATASET / "passes").glob("*.parquet"))
    low, high = (_rounded(end) for end in (learned.features.min(axis=0), learned.features.max(axis=0)))
    unmeasured = Manifest(
        name=NAME,
        backend="mlp",
        parameters=chosen,
        contract=contract,
        data={"rows": int((~held).sum()), "sha256": {f"passes/{f.name}": file_sha256(f) for f in files}},
        training_gpus=["tensordash"],
        seed=seed,
        doubts={},
        device_bias={},
        domain={"low": low, "high": high},
        launch_floors_s={},
        metrics={},
        versions={"neusight": __version__, **{name: version(name) for name in ("numpy", "scipy", "torch")}},
        simulator="neusight.executors.tensordash",
    )
    measured = _measured(Artifact(unmeasured, model), frame[held])
    folder = save_artifact(Artifact(measured, model), out / NAME, render_tensordash_card(measured))
    load_tile_model.cache_clear()
    return load_artifact(folder, contract)


def judged(count: int, seed: int) -> dict[str, dict[str, float]]:
    """Errors in percent of the model that ships: of all passes, and of those that a device asks it for (streams beyond
    ``SHORT``); the truth is the mean over many draws of their zeros.

    Returns:
        By name ``count``, ``mean``, ``p99``, ``worst`` and ``above_10`` (how many).

    Raises:
        DataError: a negative count or seed.
    """
    passes = simulate_passes(count, seed)
    error = 100 * np.abs(pass_cycles(load_tile_model(), Passes.of(passes)) / passes["cycles"] - 1)
    return {"all": _judged(error), f"beyond {SHORT} steps": _judged(error[passes["length"] > SHORT])}


def _judged(error: np.ndarray) -> dict[str, float]:
    points = {"mean": error.mean(), "p99": np.quantile(error, 0.99), "worst": error.max()}
    return {"count": len(error), **points, "above_10": int((error > 10).sum())}


def _measured(artifact: Artifact, frame: pd.DataFrame) -> Manifest:
    """The manifest with errors and intervals on held-out passes."""
    columns = _columns(frame)
    ratio = columns["cycles"] / pass_cycles(artifact, Passes.of(columns))
    error = 100 * np.abs(1 / ratio - 1)
    noise = 100 * columns["scatter"] / np.sqrt(columns["draws"])
    low, high = (round(float(q), 4) for q in np.quantile(ratio, [0.05, 0.95]))
    whole = columns["part"] == "whole"
    metrics = {
        "held_out_rows": len(frame),
        "held_out_error_percent": {name: _figures(error[rows]) for name, rows in _groups(columns) if rows.any()},
        "held_out_noise_percent": _figures(noise),
        "one_draw_scatter_percent": _figures(100 * columns["scatter"][whole]) if whole.any() else {},
    }
    return replace(artifact.manifest, metrics=metrics, doubts={"stranger": {ANY: [low, high, 0.0]}})


def _groups(columns: dict[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Passes whose errors are told apart: all, by part, and of the whole range by how zeros keep together."""
    part, cluster = columns["part"], columns["cluster"]
    yield "all", np.ones(len(part), dtype=bool)
    yield from ((f"part {name}", part == name) for name in np.unique(part))
    for name in np.unique(cluster):
        yield f"part whole, zeros by {name}", (part == "whole") & (cluster == name)


def _figures(percent: np.ndarray) -> dict[str, float]:
    points = {"mean": percent.mean(), "p99": np.quantile(percent, 0.99), "worst": percent.max()}
    return {name: round(float(value), 3) for name, value in points.items()}


def render_tensordash_card(manifest: Manifest) -> str:
    """Markdown for ``card.md``, from the manifest alone."""
    contract, domain, metrics = manifest.contract, manifest.domain, manifest.metrics
    ranges = zip(contract.features, domain["low"], domain["high"], strict=True)
    training = {
        "simulator": f"{manifest.simulator}, option list oldest-row, depth 3, 16 lanes, up to {MOST_ROWS} PE rows",
        "rows": f"{manifest.data['rows']:,} passes, each a mean over draws of its zeros",
        "parameters": ", ".join(f"{k} = {v}" for k, v in manifest.parameters.items()),
        "versions": ", ".join(f"{k} {v}" for k, v in manifest.versions.items()),
    }
    errors = {**metrics["held_out_error_percent"], "noise of these means": metrics["held_out_noise_percent"]}
    if metrics["one_draw_scatter_percent"]:
        errors["scatter of a single draw"] = metrics["one_draw_scatter_percent"]
    cells = (f"{name} | {e['mean']:.2f} | {e['p99']:.2f} | {e['worst']:.2f}" for name, e in errors.items())
    parts = [
        f"# Tile model `{manifest.name}`",
        "Predicts how close a pass of a TensorDash tile comes to the sparse bound, `max(⌈T / 3⌉, T · density)` cycles: "
        "`logit(utilisation)` as a correction of what order statistics expect. It answers simulated TensorDash tiles, "
        f"never kernels on GPUs. Backend `{manifest.backend}`, protocol {manifest.protocol}, seed {manifest.seed}. "
        "Generated by `python -m neusight.learn.tensordash.train`.",
        "## Training",
        bullets(training),
        "Data, by sha256:",
        bullets(manifest.data["sha256"]),
        f"## Features (contract version {contract.version})",
        _table("feature | from | to", (f"{name} | {low:.3g} | {high:.3g}" for name, low, high in ranges)),
        "## Error on passes that were left out",
        f"Cycles against the mean over draws, {metrics['held_out_rows']:,} passes, in percent.",
        _table("passes | mean | p99 | worst", cells),
        f"Interval: cycles x {manifest.interval[0]:g} to x {manifest.interval[1]:g} encloses 90 % of these means. A "
        "single draw scatters by more than the model errs where streams or lanes have zero fractions of their own.",
        "## Gaps",
        "Other depths, lanes and wider tiles are refused: simulate them. Zeros are drawn from a "
        "beta-Bernoulli model; masks of networks may keep together in ways that it does not have.",
    ]
    return "\n\n".join(parts) + "\n"


def _table(head: str, lines: Any) -> str:
    columns = head.count("|")
    return "\n".join([f"| {head} |", "|---|" + "---:|" * columns, *(f"| {line} |" for line in lines)])


def _columns(frame: pd.DataFrame) -> dict[str, np.ndarray]:
    return {str(name): frame[name].to_numpy() for name in frame}


def _rounded(ends: np.ndarray) -> list[float]:
    return [float(f"{value:.4g}") for value in ends]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _epoch(done: int, of: int, _: float) -> None:
    if done % 40 == 0:
        _say(f"epoch {done} of {of}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command of the module; 1 after an error, which is one line."""
    parser = argparse.ArgumentParser(prog="python -m neusight.learn.tensordash.train", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--out", type=Path, help="folder for the tile model")
    parser.add_argument("--data", type=Path, help="folder that holds the data set, or gets it; default OUT/data")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--judge", type=int, metavar="COUNT", help="only judge what ships, on so many passes")
    given = parser.parse_args(arguments)
    if given.judge is not None:
        for name, figures in judged(given.judge, given.seed).items():
            print(f"{name}: " + ", ".join(f"{key} {value:.4g}" for key, value in figures.items()))
        return 0
    if given.out is None:
        parser.error("the following arguments are required: --out")
    try:
        artifact = train(given.out, given.data, given.seed)
    except NeusightError as error:
        _say(f"error: {error}")
        return 1
    errors = artifact.manifest.metrics["held_out_error_percent"]["all"]
    _say(f"{artifact.folder}: held-out error {errors['mean']:.2f} % in the mean, {errors['worst']:.2f} % at worst")
    return 0


if __name__ == "__main__":
    sys.exit(main())
