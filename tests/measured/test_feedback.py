"""Predictions of commands and of the page are tables that measurements can be filled into."""

import csv
from io import StringIO
from pathlib import Path

import pytest
from cli_runs import as_csv, as_json

STEPS = ("sweep", "gpt2", "--gpu", "l4", "--batch", "1,2", "--set", "sm_count=50")
SERVED = ("serving", "llama-3.2-1b", "--gpu", "l4", "--isl", 128, "--osl", 8, "--batch", "1,2")
CLUSTER = "mode=training&model=gpt2&cluster=dgx-h100&batch=64&dp=8"


def rows_of(asked: tuple[str | int, ...] | str) -> list[dict[str, str]]:
    """Rows of a command, or of a file of the page."""
    if not isinstance(asked, str):
        return as_csv(*asked)
    pytest.importorskip("nicegui", reason="the page needs the extra 'page'")
    from starlette.testclient import TestClient

    from neusight.page.answers import Answers
    from neusight.page.app import application
    from neusight.page.form import Form

    answer = TestClient(application(Answers(), Form()), "http://127.0.0.1").get(asked)
    assert answer.status_code == 200, answer.text
    return list(csv.DictReader(StringIO(answer.text)))


@pytest.mark.parametrize(
    ("asked", "quantity", "count"),
    [
        (STEPS, "latency_ms", 2),
        (SERVED, "ttft_ms", 2),
        ("/files/predictions.csv?model=gpt2&gpu=l4,t4&batch=2&overrides=sm_count=50", "latency_ms", 2),
        ("/files/predictions.csv?mode=serving&model=llama-3.2-1b&gpu=l4&batch=4&isl=128&osl=8", "ttft_ms", 1),
        (f"/files/predictions.csv?{CLUSTER}", "latency_ms", 1),
        ("/files/drag/predictions.csv?model=gpt2&gpu=l4,t4", "latency_ms", 18),
    ],
)
def test_filled_predictions_are_evaluated(
    asked: tuple[str | int, ...] | str, quantity: str, count: int, tmp_path: Path
) -> None:
    rows = rows_of(asked)
    assert len(rows) == count
    figure = {"latency_ms": "latency_s", "ttft_ms": "ttft_ms"}[quantity]
    scale = 1e3 if figure.endswith("_s") else 1.0
    expected = [scale * float(row[f"predicted_{figure}"]) for row in rows]
    assert not any(row[quantity] for row in rows)
    with (tmp_path / "plan.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(row | {quantity: 2 * value} for row, value in zip(rows, expected, strict=True))
    answer = as_json("evaluate", tmp_path / "plan.csv")
    assert [row["predicted"] for row in answer["rows"]] == pytest.approx(expected)
    assert answer["skipped"] == []
