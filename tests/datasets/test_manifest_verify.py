from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest

from neusight.datasets import About, describe, list_datasets, load_kernels, show, verify
from neusight.datasets import manifest as manifests
from neusight.datasets.manifest import read_manifest
from neusight.errors import DataError

ABOUT = About(title="Two kernels", origin="a test", licence="MIT", known_faults=("it is small",))


@pytest.fixture
def dataset(rows, parquet, tmp_path):
    """A data set of one table below ``tmp_path/data`` with its manifest beside the table."""
    parquet(rows({}, {"m": 8, "gpu": "t4", "latency_ms": 0.1}), "data/mine/gemm.parquet")
    describe(tmp_path / "data" / "mine", ABOUT)
    return tmp_path / "data" / "mine"


def test_a_manifest_is_what_the_files_say(dataset):
    manifest = read_manifest(dataset / "manifest.json")
    (record,) = manifest.files
    assert record.sha256 == hashlib.sha256((dataset / "gemm.parquet").read_bytes()).hexdigest()
    assert (record.path, record.rows, record.gpus) == ("gemm.parquet", 2, {"t4": 1, "v100-pcie-32gb": 1})
    assert record.columns["latency_ms"].endswith("[ms]")
    assert manifest.about == ABOUT


def test_writing_again_keeps_what_a_person_wrote(dataset):
    card = dataset / "card.md"
    assert "it is small" in card.read_text()
    card.write_text(card.read_text() + "\nWritten by hand.\n")
    load_kernels(dataset).head(1).drop(columns="family").to_parquet(dataset / "gemm.parquet")
    manifest = describe(dataset)
    assert manifest.about == ABOUT and manifest.rows == 1
    text = card.read_text()
    assert text.endswith("Written by hand.\n") and "| rows | 1 |" in text and "| rows | 2 |" not in text


def test_a_folder_of_many_files_is_one_line_of_the_card(dataset):
    (dataset / "programs").mkdir()
    for number in range(30):
        (dataset / "programs" / f"{number}.bin").write_bytes(bytes([number]))
    manifest = describe(dataset)
    text = (dataset / "card.md").read_text()
    assert "| programs/ (30 files) | | in manifest.json |" in text and "3.bin" not in text
    assert len(manifest.files) == 31 and verify(dataset).ok


def test_verify_sees_change_loss_and_additions(dataset):
    assert verify(dataset).ok
    frame = load_kernels(dataset).drop(columns="family")
    frame.to_parquet(dataset / "more.parquet")
    frame.assign(m=9).to_parquet(dataset / "gemm.parquet")
    report = verify(dataset)
    assert report.hashes == {"gemm.parquet": "changed", "more.parquet": "unlisted"} and not report.ok
    (dataset / "gemm.parquet").unlink()
    assert verify(dataset).hashes["gemm.parquet"] == "missing"


def test_verify_sees_implausible_rows_seconds_for_milliseconds_and_unknown_gpus(rows, parquet):
    wrong = {0.0: "1 rows have no positive latency", 2e7: "outside 0.5 µs to 1000 s"}
    for latency_ms, said in wrong.items():
        report = verify(parquet(rows({}, {"m": 7}, {"latency_ms": latency_ms, "m": 8})))
        assert not report.ok and any(said in p for p in report.problems), said
    seconds = verify(parquet(rows(*[{"m": m, "latency_ms": 0.001} for m in (8, 9)])))
    assert any("is the unit milliseconds" in p for p in seconds.problems)
    unknown = verify(parquet(rows({"gpu": "t5"}), "unknown.parquet"))
    assert any("GPU t5 is not in the catalogue" in p for p in unknown.problems)


def test_the_tables_count(rows, parquet):
    alike = [{"m": 4096 - i, "latency_ms": t} for i, t in enumerate((20.0, 22.0, 20.0, 20.0))]
    report = verify(parquet(rows(*alike, {"gpu": "t4", "latency_ms": 1.0})))
    assert report.tables["coverage"].loc[("gemm", "linear"), "v100-pcie-32gb"] == 4
    assert report.tables["physics"].loc[("gemm", "t4"), "above_peak"] == 100  # 137 TFLOP/s on a t4
    assert report.tables["noise"].loc[("gemm", "v100-pcie-32gb"), "rows"] == 4
    assert 0 < report.tables["noise"].loc[("gemm", "v100-pcie-32gb"), "p95_percent"] <= 10
    assert report.tables["cleaning_by_gpu"].loc[("faster_than_datasheet", "t4", "linear")].tolist() == [1, 1]
    cleaning = report.tables["cleaning"].loc["faster_than_datasheet"]
    assert (cleaning["removed"], cleaning["mostly"]) == (1, "t4 linear 1") and "timer" in cleaning["why"]
    as_json = json.loads(json.dumps(report.to_dict()))
    assert as_json["tables"]["physics"][0]["family"] == "gemm"


def test_sessions_compare_models_with_kernels(rows, parquet, tmp_path):
    import pandas as pd

    parquet(rows({"split": "test", "m": 64, "n": 32, "k": 16, "latency_ms": 2.0}), "set/kernels/gemm.parquet")
    op = {
        "gpu": "v100-pcie-32gb",
        "kind": "call_module",
        "input_shapes": "[[4, 16, 16]]",
        "output_shape": "(4, 16, 32)",
    }
    layers = [op | {"target": "h.0.fc", "forward_ms": 3.0}, op | {"target": "h.0.dropout", "forward_ms": 9.0}]
    (tmp_path / "set" / "models").mkdir()
    pd.DataFrame(layers).to_parquet(tmp_path / "set" / "models" / "operators.parquet")
    table = verify(tmp_path / "set").tables["sessions"]
    assert table.loc["v100-pcie-32gb", ["layers", "median"]].tolist() == [1, 1.5]


def test_what_is_no_manifest(dataset):
    (dataset / "manifest.json").write_text("{}")
    with pytest.raises(DataError, match="no data set manifest") as error:
        verify(dataset)
    assert "\n" not in str(error.value)


def test_the_checkout_knows_three_data_sets():
    known = {m.name: m for m in list_datasets()}
    assert {"neusight-fp32", "llm-serving", "training-throughput"} <= set(known)
    for name, manifest in known.items():
        assert manifest.rows > 0 and manifest.about.licence and manifest.about.origin
        assert f"| rows | {manifest.rows:,} |" in show(name)
    fp32 = known["neusight-fp32"]
    assert not set(fp32.about.training_gpus) & set(fp32.about.held_out_gpus)
    assert set(fp32.about.training_gpus + fp32.about.held_out_gpus) <= set(fp32.gpus)


def test_unknown_names_and_no_checkout(monkeypatch, tmp_path):
    with pytest.raises(DataError, match="did you mean neusight-fp32"):
        show("neusight-fp23")
    monkeypatch.setattr(manifests, "checkout_dir", lambda stage: tmp_path / stage)
    with pytest.raises(DataError, match="run from a checkout") as error:
        list_datasets()
    assert "\n" not in str(error.value)


def test_verify_needs_the_data(monkeypatch, tmp_path):
    monkeypatch.setenv("NEUSIGHT_DATA", str(tmp_path))
    with pytest.raises(DataError, match="put the data set neusight-fp32 below NEUSIGHT_DATA"):
        verify("neusight-fp32")


def test_noise_of_rows_that_repeat_is_zero(rows, parquet):
    report = verify(parquet(rows(*[{"m": 4096 - i, "latency_ms": 20.0} for i in range(3)])))
    np.testing.assert_equal(report.tables["noise"]["p95_percent"].to_numpy(), 0)
