from __future__ import annotations

import shutil
import sys

import numpy as np
import pandas as pd
import pytest
from collected_sets import family_rows, rows_of, write_rows, write_set
from kernel_grids import MAKERS, grid

from neusight.datasets import (
    About,
    dataset_folder,
    describe,
    list_datasets,
    load_kernels,
    show,
    to_batches,
    verify,
)
from neusight.datasets import manifest as manifests
from neusight.datasets.manifest import read_manifest
from neusight.errors import DataError

ABOUT = About(title="A stand-in", origin="a test", licence="MIT")
NCCL = {"nccl_version": "2.27", "collective": "all_reduce", "dtype": "float16", "num_gpus": 2, "bytes": 1024}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A whole set that tests only read."""
    return write_set(tmp_path_factory.mktemp("sets") / "made", n=12)


@pytest.fixture
def own(tmp_path):
    """A set that a test may change."""
    return write_set(tmp_path / "own", n=4)


def test_a_made_set_is_sound_and_every_family_is_judged(made):
    report = verify(made)
    assert report.ok, report.problems
    assert set(report.tables["coverage"].index.get_level_values("family")) == set(MAKERS)
    assert report.tables["coverage"].to_numpy().sum() == len(load_kernels(made))
    physics = report.tables["physics"]
    assert {family for family, _, _ in physics.index} == set(MAKERS)
    assert ("gemm", "float8", "stand-in") in physics.index
    assert (physics["uncached"] == 0).all() and (physics.drop("conv2d")["above_peak"] == 0).all()


def test_repeatability_is_the_distance_of_pairs(tmp_path):
    rows = rows_of(grid("attention", 20, "bfloat16"), "x")
    again = rows.head(10).assign(repeat=1, sample=[f"again-{i}" for i in range(10)])
    off = np.linspace(0.001, 0.01, 10)
    again["latency_ms"] *= 1 + off
    again["execution_ms"] *= 1 - 2 * off
    path = write_rows(tmp_path / "attention.parquet", pd.concat([rows.assign(gpu="l4"), again.assign(gpu="l4")]))
    row = verify(path).tables["repeatability"].loc[("attention", "bfloat16")]
    assert row["pairs"] == 10
    assert row["median_percent"] == pytest.approx(100 * np.quantile(off, 0.5), abs=0.01)
    assert row["p95_percent"] == pytest.approx(100 * np.quantile(off, 0.95), abs=0.01)
    assert row["execution_p95_percent"] == pytest.approx(200 * np.quantile(off, 0.95), abs=0.01)


def test_conditions_sources_and_what_was_skipped(own):
    rows = family_rows("optimizer", 4)
    rows.loc[0, "stable"], rows.loc[[1, 2], "throttle"] = False, "sw_thermal_slowdown"
    write_rows(own / "kernels" / "optimizer.parquet", rows)
    tables = verify(own).tables
    row = tables["conditions"].loc[("stand-in", "optimizer")]
    assert row[["rows", "unstable", "throttled", "clock_mhz", "power_w"]].tolist() == [len(rows), 1, 2, 1980, 310]
    assert tables["sources"].loc[("stand-in", "host/0", "torch 2.13"), "first"] == "2026-11-21"
    skipped = tables["skipped"]["samples"]
    assert skipped[("attention", "float32", "out of memory")] == skipped[("models", "float32", "out of memory")] == 1


def test_a_cpu_without_conditions_or_executions_goes_the_same_way(own):
    for path in (own / "kernels").glob("*.parquet"):
        rows = pd.read_parquet(path).drop(columns=["execution_ms", "clock_mhz", "power_w", "temperature_c", "throttle"])
        write_rows(path, rows)
    report = verify(own)
    assert report.ok, report.problems
    assert list(report.tables["conditions"].columns) == ["rows", "unstable", "throttled"]
    assert list(report.tables["repeatability"].columns) == ["pairs", "median_percent", "p95_percent"]


def test_tiny_kernels_are_plausible_where_the_project_measured_them(tmp_path):
    rows = rows_of(grid("elementwise", 8), "x").assign(gpu="l4", latency_ms=1.5e-3, execution_ms=np.nan)
    rows = rows[rows["write_bytes"] < 2**20]
    assert len(rows) and verify(write_rows(tmp_path / "elementwise.parquet", rows)).ok
    rows["latency_ms"] = 1e-4
    report = verify(write_rows(tmp_path / "elementwise.parquet", rows))
    assert any("outside 0.5 µs" in problem for problem in report.problems)


def test_faults_of_a_set_are_problems(own):
    describe(own, ABOUT)
    assert verify(own).ok
    write_rows(own / "kernels" / "attention-part-0001.parquet", family_rows("attention", 4).head(2))
    assert any("2 samples are there more than once, such as attention-float32-0-0" in p for p in verify(own).problems)
    (own / "devices" / "stand-in.toml").unlink()
    problems = verify(own).problems
    assert any("devices/stand-in.toml is missing" in p for p in problems)
    assert any("GPU stand-in is not in the catalogue" in p and "devices/" in p for p in problems)


def test_files_beside_the_tables_are_hashed(own):
    describe(own, ABOUT)
    for path in ("collection.json", "devices/stand-in.toml"):
        (own / path).write_text((own / path).read_text() + "\n")
    pd.read_parquet(own / "skipped.parquet").head(1).to_parquet(own / "skipped.parquet")
    states = verify(own).hashes
    changed = {path for path, state in states.items() if state == "changed"}
    assert changed == {"collection.json", "devices/stand-in.toml", "skipped.parquet"}


def test_collectives_are_part_of_the_set(own):
    rows = [{"sample": f"nccl-{n}", "gpu": "stand-in", "latency_ms": 0.01 * n, **NCCL, "bytes": n} for n in (1, 2)]
    pd.DataFrame(rows).to_parquet(own / "kernels" / "nccl.parquet")
    frame = load_kernels(own)
    assert (frame["family"] == "nccl").sum() == 2
    assert verify(own).ok and verify(own).tables["coverage"].loc[("nccl", "nccl"), "float16"] == 2
    ((batch, _),) = to_batches(frame[frame["family"] == "nccl"])
    assert batch.family == "collective" and list(batch["bytes"]) == [1, 2]
    pd.DataFrame([*rows, rows[0]]).to_parquet(own / "kernels" / "nccl.parquet")
    assert len(load_kernels(own, ["nccl"])) == 2 and not verify(own).ok


def test_a_collection_that_measured_nothing_says_why(own):
    shutil.rmtree(own / "kernels")
    assert list(verify(own).tables) == ["skipped"]
    with pytest.raises(DataError, match="holds no parquet file"):
        load_kernels(own)


def test_card_and_manifest_lie_in_the_set(own):
    manifest = describe(own, ABOUT)
    assert manifest == read_manifest(own / "manifest.json")
    paths = {file.path for file in manifest.files}
    assert {"collection.json", "skipped.parquet", "devices/stand-in.toml", "kernels/conv2d.parquet"} <= paths
    assert manifest.rows == len(load_kernels(own)) == manifest.gpus["stand-in"]  # what was skipped is no row
    records = {file.path: file for file in manifest.files}
    assert records["kernels/attention.parquet"].columns["power_w"].endswith("[W]")
    card = (own / "card.md").read_text()
    for said in (
        "# A stand-in",
        "| versions.torch | 2.13 |",
        "| minutes | 20 |",
        "out of memory",
        "Kernels measured twice",
    ):
        assert said in card
    (own / "card.md").write_text(card + "\nWritten by hand.\n")
    assert describe(own) == manifest
    assert (own / "card.md").read_text() == card + "\nWritten by hand.\n"


def test_what_was_asked_must_be_json(own):
    (own / "collection.json").write_text("[]")
    with pytest.raises(DataError, match=r"collection\.json is no JSON object"):
        describe(own, ABOUT)


def test_a_set_may_lie_in_the_checkout_itself(tmp_path, monkeypatch):
    checkout = tmp_path / "checkout"
    write_set(checkout / "datasets" / "stand-in-2026-11", n=4)
    describe(checkout / "datasets" / "stand-in-2026-11", ABOUT)
    for module in (manifests, sys.modules["neusight.datasets.verify"]):
        monkeypatch.setattr(module, "checkout_dir", lambda stage: checkout / stage)
    monkeypatch.delenv("NEUSIGHT_DATA", raising=False)
    (known,) = list_datasets()
    assert dataset_folder(known) == checkout / "datasets" / "stand-in-2026-11"
    assert verify("stand-in-2026-11").ok and "# A stand-in" in show("stand-in-2026-11")
    (dataset_folder(known) / "kernels" / "memory.parquet").unlink()
    assert verify("stand-in-2026-11").hashes["kernels/memory.parquet"] == "missing"
