"""``neusight evaluate programs``: the same rows as data in every format, and a page that reads at 80 columns."""

from pathlib import Path

import pandas as pd
import pytest
import torch
from cli_runs import as_csv, as_json, run

ROW = {"gpu": "l4", "host": "here", "level": 1, "graph": "small", "mode": "eager", "mean_ms": 0.5, "std_ms": 0.01}


@pytest.fixture
def timings(tmp_path: Path) -> Path:
    (tmp_path / "other").mkdir()
    program = torch.export.export(torch.nn.ReLU(), (torch.zeros(64, 64),))
    torch.export.save(program, tmp_path / "other" / "small.pt2")
    rows = [ROW, ROW | {"mode": "compile", "mean_ms": 0.4}, ROW | {"std_ms": 0.1}]
    pd.DataFrame(rows).to_parquet(tmp_path / "timings.parquet")
    return tmp_path / "timings.parquet"


def test_json_csv_and_a_page_say_the_same(timings: Path) -> None:
    options = ("evaluate", "programs", timings, "--programs", timings.parent / "other")
    data, rows = as_json(*options), as_csv(*options)
    assert [row["predicted_ms"] for row in data["rows"]] == [float(row["predicted_ms"]) for row in rows]
    assert {
        "gpu",
        "host",
        "level",
        "problem",
        "graph",
        "mode",
        "low_ms",
        "high_ms",
        "measured_ms",
        "ape",
        "inside",
    } <= (data["rows"][0].keys())
    (gain,) = data["speedups"]
    assert gain["measured_gain"] == pytest.approx(0.5 / 0.4)
    assert "standard deviation" in data["skipped"][0]["reason"]
    page = run(*options).stdout
    assert [line for line in page.splitlines() if len(line) > 80] == []
    assert "compile" in page and "What hosts take" in page
    assert len(as_json(*options, "--spread", 30)["rows"]) == 3
