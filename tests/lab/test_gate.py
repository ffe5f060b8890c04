"""The gate: what the predictor that ships says and how far it is off is what the committed summary says."""

import copy
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from neusight import Predictor
from neusight.cli.app import app
from neusight.errors import DataError
from neusight.lab import gate


def assert_as_committed(found: gate.Summary) -> None:
    changed = gate.differences(gate.read_summary(gate.summary_path()), found)
    assert not changed, "\n".join([*changed, f"meant so? then `{gate.REWRITE}`, and say why in the commit"])


def test_single_predictions_are_those_committed() -> None:
    found = gate.single_predictions(Predictor.load())
    assert len(found) > 250
    assert_as_committed({"single": found})


KERNEL = {"data": "a", "family": "gemm", "dtype": "float32", "gpu": "l4", "count": 9, "mape": 8.0, "bias": -1.0}
SUMMARY: gate.Summary = {
    "kernels": [KERNEL | {"inside": 90.0}],
    "models": [{"data": "a", "gpu": "l4", "mode": "training", "count": 3, "mape": 5.0, "bias": 5.0, "inside": 100.0}],
    "single": [{"gpu": "l4", "what": "gelu", "latency_ms": 1.0, "low_ms": 0.9, "high_ms": 1.1}],
}


def test_what_differs_is_listed_and_rounding_is_not() -> None:
    found = copy.deepcopy(SUMMARY)
    found["kernels"][0] |= {"mape": 8.05, "bias": -1.05}
    found["single"][0]["latency_ms"] = 1.0009
    assert gate.differences(SUMMARY, found) == []
    found["kernels"][0] |= {"mape": 8.07, "inside": 89.0, "count": 10}
    found["models"][0]["mape"] = 4.0
    found["single"] = [found["single"][0] | {"low_ms": 0.91}, found["single"][0] | {"gpu": "t4"}]
    changes = gate.differences(SUMMARY, found)
    assert changes == [
        "kernels a gemm float32 l4: number of rows 9 -> 10",
        "kernels a gemm float32 l4: mean error 8.0 % -> 8.07 % (worse)",
        "kernels a gemm float32 l4: rows inside their 90 % interval 90.0 % -> 89.0 %",
        "models a l4 training: mean error 5.0 % -> 4.0 % (better)",
        "single l4 gelu: low end 0.9 ms -> 0.91 ms (+1.11 %)",
        "single t4 gelu: a new row",
    ]
    found["single"] = []
    assert "single l4 gelu: the row is no longer there" in gate.differences(SUMMARY, found)


def test_a_summary_has_a_line_a_row_and_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "gate" / "summary.json"
    gate.write_summary(SUMMARY, path)
    assert gate.read_summary(path) == SUMMARY
    assert sum('"gpu": "l4"' in line for line in path.read_text().splitlines()) == 3
    for text in ("{", "[]", '{"kernels": [{}]}', '{"kernels": []}'):
        path.write_text(text)
        with pytest.raises(DataError, match=r"summary.json is no summary of the gate: write it again with .*--write"):
            gate.read_summary(path)
    with pytest.raises(DataError, match=r"missing.json is not there: write it with .*--write"):
        gate.read_summary(tmp_path / "missing.json")


def test_the_command_writes_and_compares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"m": 64 * m, "n": 128, "k": 256, "latency_ms": 0.01 * m} for m in range(1, 1 + gate.SAMPLE + 5)]
    told = {"gpu": "l4", "op": "linear", "batch": 1, "dtype": "float32", "split": "test"}
    file = tmp_path / "data" / "kernels" / "mine.parquet"
    file.parent.mkdir(parents=True)
    pd.DataFrame(rows).assign(**told).to_parquet(file)
    monkeypatch.setenv("NEUSIGHT_DATA", str(tmp_path / "data"))
    summary = tmp_path / "summary.json"
    monkeypatch.setattr(gate, "summary_path", lambda: summary)
    single = {"kernels": {"questions": ["gelu rows=64 cols=64 dtype=float32"], "gpus": ["l4", "mi300x"]}}
    monkeypatch.setattr(gate, "_declared", lambda: {"kernels": ["kernels/*"], "models": [], "single": single})
    assert CliRunner().invoke(app, ["experiments", "gate", "--write"]).exit_code == 0
    written = gate.read_summary(summary)
    assert [(row["data"], row["count"]) for row in written["kernels"]] == [("mine", gate.SAMPLE)]
    assert {row["gpu"] for row in written["single"]} == {"l4", "mi300x"}
    assert CliRunner().invoke(app, ["experiments", "gate"]).exit_code == 0
    written["single"][0]["latency_ms"] *= 2
    gate.write_summary(written, summary)
    result = CliRunner().invoke(app, ["experiments", "gate"])
    assert result.exit_code == 1
    assert "single" in result.stdout and "latency" in result.stdout and "(-50.00 %)" in result.stdout
    assert "1 figures differ from" in result.stderr and "--write" in result.stderr
