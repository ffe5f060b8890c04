from __future__ import annotations

import numpy as np
import pytest

from neusight.datasets import (
    dataset_folder,
    find_dataset,
    list_datasets,
    load_kernels,
    load_models,
    observed_tiles,
    to_batches,
    verify,
)
from neusight.datasets.manifest import records


@pytest.fixture(scope="module")
def kernels(data):
    return load_kernels(data / "neusight-fp32" / "kernels")


def test_hashes_match_the_manifests(data, monkeypatch):
    monkeypatch.setenv("NEUSIGHT_DATA", str(data))
    for manifest in list_datasets():
        if manifest.name == "tensordash-tiles" and not (data / manifest.name).is_dir():
            continue  # simulated: made anew rather than kept
        assert records(dataset_folder(manifest)) == manifest.files, manifest.name


def test_every_row_becomes_a_kernel(kernels):
    positions = np.concatenate([p for _, p in to_batches(kernels)])
    assert sorted(positions) == list(range(len(kernels)))


def test_every_gemm_has_a_tile_that_explains_its_grid(kernels):
    gemms = kernels[(kernels["family"] == "gemm") & (kernels["gpu"] != "mi100")]
    seen = observed_tiles(gemms)
    assert seen[["tile_m", "tile_n", "split_k", "grid"]].notna().all().all()
    exact = gemms["kernel_name"].str.contains(r"^(?:ampere|volta|maxwell)_sgemm")
    across = np.ceil(gemms["n"] / seen["tile_n"]) == gemms["grid_x"]
    down = np.ceil(gemms["m"] / seen["tile_m"]) == gemms["grid_y"]
    assert (across & down)[exact].all()


def test_models_and_their_gpus_are_known(data):
    models = load_models(data / "neusight-fp32" / "models" / "latency.parquet")
    assert (models["option"] == "").sum() == 72
    assert (models["e2e_ms"] > 0).all()


def test_the_float32_set_verifies(data, monkeypatch):
    monkeypatch.setenv("NEUSIGHT_DATA", str(data))
    report = verify("neusight-fp32")
    assert report.ok, report.problems
    assert (report.tables["physics"]["uncached"] == 0).all()
    training = find_dataset("neusight-fp32").about.training_gpus
    removed = report.tables["cleaning_by_gpu"]["removed"].unstack(["gpu", "op"], fill_value=0)
    assert list(removed.columns[removed.loc["throttled_split"] > 0]) == [("p4", "linear")]
    lost = removed.T.groupby("gpu").sum().sum(axis=1).drop("p4")
    rows = report.tables["coverage"].sum()
    assert (lost[lost.index.isin(training)] < 0.01 * rows.reindex(lost.index)[lost.index.isin(training)]).all()
