"""Predictions of sweeps are tables that measurements can be filled into."""

import csv
from pathlib import Path

import pytest
from cli_runs import as_csv, as_json

COMMANDS = {
    "latency_ms": ("sweep", "gpt2", "--gpu", "l4", "--batch", "1,2", "--set", "sm_count=50"),
    "ttft_ms": ("serving", "llama-3.2-1b", "--gpu", "l4", "--isl", 128, "--osl", 8, "--batch", "1,2"),
}


@pytest.mark.parametrize("quantity", COMMANDS)
def test_filled_predictions_are_evaluated(quantity: str, tmp_path: Path) -> None:
    rows = as_csv(*COMMANDS[quantity])
    figure = {"latency_ms": "latency_s", "ttft_ms": "ttft_ms"}[quantity]
    scale = 1e3 if figure.endswith("_s") else 1.0
    expected = [scale * float(row[f"predicted_{figure}"]) for row in rows]
    assert [row[quantity] for row in rows] == ["", ""]
    with (tmp_path / "plan.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(row | {quantity: 2 * value} for row, value in zip(rows, expected, strict=True))
    answer = as_json("evaluate", tmp_path / "plan.csv")
    assert [row["predicted"] for row in answer["rows"]] == pytest.approx(expected)
    assert answer["skipped"] == []
