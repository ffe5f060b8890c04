"""A small data set, made here: kernels and a whole model on three GPUs, with figures that follow from formulas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from experiment_sets import GPT2, GPUS, STEP, STEP_MS, kernels

from neusight.experiments import run, write_results
from neusight.experiments.declare import Contestant, Data, Declaration, Experiment, Fold
from neusight.lab.targets import AccuracyTarget


@pytest.fixture(scope="session")
def data_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that ``NEUSIGHT_DATA`` would name; the set is called ``mine``."""
    root = tmp_path_factory.mktemp("data")
    folder = root / "mine"
    (folder / "kernels").mkdir(parents=True)
    (folder / "configs").mkdir()
    (folder / "configs" / "mine.json").write_text(GPT2.read_text())
    for family, ops in {"gemm": ("linear", "bmm"), "elementwise": ("add",), "row_reduction": ("softmax",)}.items():
        rows = [kernels(gpu, op, 60) for gpu in (*GPUS, "mi100") for op in ops]
        pd.concat(rows).to_parquet(folder / "kernels" / f"{family}.parquet")
    steps = [{"gpu": gpu, **STEP, "option": "", "e2e_ms": ms} for gpu, ms in STEP_MS.items()]
    pd.DataFrame(steps).to_parquet(folder / "latency.parquet")
    # NeuSight is right, Habitat silent, Li half too slow, the roofline half as slow.
    said = pd.DataFrame(steps).rename(columns={"e2e_ms": "neusight_ms"}).assign(habitat_ms=np.nan)
    said = said.assign(li_ms=1.5 * said["neusight_ms"], roofline_ms=0.5 * said["neusight_ms"])
    said.to_parquet(folder / "published.parquet")
    # One layer of a twelfth of the step and a head of nothing: twelve layers make the step.
    layer = STEP_MS["l4"] / 12
    nodes = [("placeholder", "input_ids", 0.0), ("call_module", "h.0.mlp", layer), ("call_module", "ln_f", 0.0)]
    timed = [
        {"gpu": "l4", **STEP, "index": i, "kind": k, "target": t, "forward_ms": ms}
        for i, (k, t, ms) in enumerate(nodes)
    ]
    pd.DataFrame(timed).assign(backward_ms=0.0, accumulate_ms=0.0).to_parquet(folder / "operators.parquet")
    return root


DECLARED = Declaration(
    title="Mine",
    question="How wrong?",
    report=("kernels", "models", "operators"),
    gpus=GPUS,
    models_on="all",
    data=Data(
        name="mine",
        kernels="kernels",
        latency="latency.parquet",
        configs="configs",
        published="published.parquet",
        operators="operators.parquet",
        tested_split="test",
    ),
    folds=(Fold(name="mine", held_out=("l4", "mi100")),),
    predictors=(
        Contestant(name="ours", title="this project", options={"backend": "linear"}),
        Contestant(name="bound", kind="roofline"),
    ),
    targets=(
        AccuracyTarget(
            target="{kind}, mean over {gpus} held-out GPUs",
            table="kernels.by_kind",
            figure="mean",
            at_most=1e-3,
            where={"predictor": "ours", "group": "held_out", "kind": "linear"},
            misses="{gpu} {mean:.1f}",
            missing="kernels.cells",
            alike=("kind",),
        ),
        AccuracyTarget(
            target="mean of {count} whole models, held-out GPUs",
            table="models.groups",
            figure="mean",
            at_most=10,
            where={"predictor": "ours", "group": "held_out"},
        ),
    ),
)
"""Tile models that learn nothing, and a linear correction, each tested on an L4 and on another vendor's GPU."""


@pytest.fixture
def experiment(data_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    """``DECLARED`` in a folder of its own, with the data in reach."""
    monkeypatch.setenv("NEUSIGHT_DATA", str(data_set))
    return Experiment("mine", tmp_path / "out", DECLARED)


@pytest.fixture(scope="session")
def results(data_set: Path) -> dict[str, Any]:
    """What a run of it finds; not to be changed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEUSIGHT_DATA", str(data_set))
        return run(Experiment("mine", data_set / "out", DECLARED))


@pytest.fixture(scope="session")
def written(results: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that is written of it; not to be changed."""
    folder = tmp_path_factory.mktemp("written")
    write_results(folder, results)
    return folder
