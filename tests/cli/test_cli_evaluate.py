"""``neusight evaluate``: the same rows as data in every format, a page, and mistakes in one line."""

import json
from pathlib import Path

import pandas as pd
import pytest
from cli_runs import as_csv, as_json, run, unsaid

ROW = {"model": "gpt2", "gpu": "l4", "batch": 1, "seq_len": 64, "dtype": "float16", "latency_ms": 5.0}


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    rows = [ROW, {**ROW, "batch": 2}, {**ROW, "gpu": "l44"}, {**ROW, "suspect": "noise"}]
    pd.DataFrame(rows).to_csv(tmp_path / "mine.csv", index=False)
    return tmp_path / "mine.csv"


def test_json_csv_and_a_page_say_the_same(mine: Path) -> None:
    answer, rows = as_json("evaluate", mine), as_csv("evaluate", mine)
    assert [row["predicted"] for row in answer["rows"]] == [float(row["predicted"]) for row in rows]
    question = {name: value for name, value in ROW.items() if name != "latency_ms"}
    words = {**question, "kind": "predict", "quantity": "latency_ms", "measured": 5.0}
    assert answer["rows"][0].items() >= words.items()
    assert [(row["rows"], "l44" in row["reason"]) for row in answer["skipped"]] == [(1, False), (1, True)]
    (group,) = answer["summary"]
    assert (group["rows"], group["answered"]) == (3, pytest.approx(200 / 3))
    result = run("evaluate", mine, "--worst", 1)
    assert [line for line in result.stdout.splitlines() if len(line) > 80] == []
    assert "batch=1" in result.stdout.replace("\n", " ")
    assert "1 row skipped: suspect" in result.stderr


def test_groups_are_of_any_columns(mine: Path) -> None:
    groups = as_json("evaluate", mine, "--by", "batch,kind", "--gpu", "l4", "--suspect")["summary"]
    assert [(row["batch"], row["kind"], row["rows"]) for row in groups] == [(1, "predict", 2), (2, "predict", 1)]


def test_mistakes_are_one_line(tmp_path: Path, mine: Path) -> None:
    tables = {"unit": "latency_s\n1", "negative": "latency_ms\n-1", "unknown": "latancy_ms\n1", "empty": "latency_ms"}
    for name, text in tables.items():
        head, _, value = text.partition("\n")
        (tmp_path / f"{name}.csv").write_text(f"gpu,model,{head}\n" + (f"l4,gpt2,{value}\n" if value else ""))
    (tmp_path / "peers.csv").write_text("a\n1\n")
    (tmp_path / "others.csv").write_text("source,table,row,latency_ms\na,b,1,2\n")
    wrong: dict[tuple[object, ...], str] = {
        ("evaluate",): "Missing argument 'FILE",
        ("evaluate", tmp_path): "is a folder",
        ("evaluate", tmp_path / "no*.parquet"): "no file matches",
        ("evaluate", tmp_path / "unit.csv"): "unknown column 'latency_s'",
        ("evaluate", tmp_path / "negative.csv"): "latency_ms is '-1",
        ("evaluate", tmp_path / "unknown.csv"): "did you mean latency_ms",
        ("evaluate", tmp_path / "empty.csv"): "has no rows",
        ("evaluate", mine, "--gpu", "l44"): "l44",
        ("evaluate", mine, "--by", "cat"): "no table has a column 'cat'",
        ("evaluate", mine, "--split", "test"): "none is of this choice",
        ("evaluate", mine, "--against", tmp_path / "peers.csv"): "has no column source",
        ("evaluate", mine, "--against", tmp_path / "others.csv"): "no table has a column 'source'",
        ("datasets", "columns", "trainin"): "did you mean training",
    }
    assert unsaid(wrong) == {}


def test_columns_are_data_and_a_page() -> None:
    rows = as_json("datasets", "columns", "serving")
    assert {"isl", "ttft_ms", "suspect"} <= {row["name"] for row in rows}
    assert max(map(len, run("datasets", "columns", "serving").stdout.splitlines())) <= 80
    assert json.dumps(rows) != json.dumps(as_json("datasets", "columns", "kernel"))
