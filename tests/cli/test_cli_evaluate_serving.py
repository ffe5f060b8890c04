"""``neusight evaluate serving``: data in every format, and a page that reads at 80 columns."""

import json
from pathlib import Path

import pandas as pd
import pytest
from cli_runs import as_csv, as_json, run

CONFIG = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 4096,
}  # fmt: skip
CELL = {"gpu": "h100-sxm-80gb", "model": "small", "mode": "static", "isl": 256, "osl": 32}


@pytest.fixture
def cells(tmp_path: Path) -> Path:
    rows = [{**CELL, "cell": f"{source}/{n}", "concurrency": n, "e2e_ms": 40.0} for source in "ab" for n in (1, 8)]
    rows[-1]["fault"] = "power not told"
    rows.append({**CELL, "cell": "b/unknown", "model": "large", "concurrency": 1, "e2e_ms": 1.0})
    pd.DataFrame(rows).to_parquet(tmp_path / "cells.parquet")
    (tmp_path / "models.json").write_text(json.dumps({"small": CONFIG}))
    return tmp_path / "cells.parquet"


def test_json_and_csv_hold_the_same_rows(cells: Path) -> None:
    data, rows = as_json("evaluate", "serving", cells), as_csv("evaluate", "serving", cells)
    assert [row["cell"] for row in data["rows"]] == [row["cell"] for row in rows] == ["a/1", "a/8", "b/1", "b/8"]
    assert [row["predicted"] for row in data["rows"]] == [float(row["predicted"]) for row in rows]
    assert [row["cell"] for row in data["skipped"]] == ["b/unknown"]
    assert {row["what"] for row in data["assumed"]} >= {"engine", "ep", "kv_dtype"}


def test_a_page_for_people(cells: Path) -> None:
    result = run("evaluate", "serving", cells)
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    line = next(line for line in result.stdout.splitlines() if line.startswith("b "))
    # One cell of source b has no fault, two are in all.
    assert (line.split()[1], line.split()[-2]) == ("1", "2")
    assert "the engine of most published runs" in " ".join(result.stdout.split())
    assert "1 row skipped: unknown model 'large'" in result.stderr


def test_models_and_cells_that_are_picked(cells: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"small": CONFIG, "large": {**CONFIG, "hidden_size": 1024}}))
    answer = as_json("evaluate", "serving", cells, "--configs", other, "--source", "b")
    assert [row["cell"] for row in answer["rows"]] == ["b/1", "b/8", "b/unknown"]
    few = as_csv("evaluate", "serving", cells, "--configs", other, "--limit", 2, "--seed", 5)
    assert len(few) == 2
