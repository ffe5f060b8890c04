"""The runner of experiments: rows, rounds, groups by their formulas, targets, and what is written."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from neusight.errors import DataError
from neusight.lab import compare, find_experiment, list_experiments, run, write_results
from neusight.lab.accuracy import accuracy_part, headline_block
from neusight.lab.declare import Declaration, ErrorGroup, fitting, load_experiment
from neusight.lab.groups import errors_of, grouped
from neusight.lab.results import read_results
from neusight.lab.run import rounds_of

DECLARED = """
title = "Products"
question = "How wrong?"

[[tables]]
files = ["kernels/mine-gemm.csv"]

[[groups]]
name = "by_gpu"
by = ["gpu", "quantity"]
accuracy = ["count", "mean"]

[[figures]]
file = "spread"
kind = "spread"
group = "by_gpu"
lines = ["gpu"]
caption = "Predicted over measured."

[[targets]]
target = "mean error on {gpu}"
table = "by_gpu"
figure = "mean"
at_most = 1e9
"""


@pytest.fixture
def declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An experiment of three measured products, in the folder ``mine``."""
    (tmp_path / "data" / "kernels").mkdir(parents=True)
    rows = [f"gemm,{gpu},{m},1024,1024,float16,0.05\n" for gpu, m in (("l4", 512), ("l4", 1024), ("t4", 512))]
    head = "op,gpu,m,n,k,dtype,latency_ms\n"
    (tmp_path / "data" / "kernels" / "mine-gemm.csv").write_text(head + "".join(rows))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "experiment.toml").write_text(DECLARED)
    monkeypatch.setenv("NEUSIGHT_DATA", str(tmp_path / "data"))
    return tmp_path


def scored(**columns: list[object]) -> pd.DataFrame:
    size = len(next(iter(columns.values())))
    fixed = {"set": "a", "place": range(size), "quantity": "latency_ms", "pairs": None, "left_out": "nothing"}
    return pd.DataFrame({**fixed, "low": np.nan, "high": np.nan, **columns})


def test_run_writes_same_results_that_compare_as_equal(declared: Path) -> None:
    experiment = find_experiment("mine", declared)
    results = run(experiment)
    assert [row["count"] for row in results["groups"]["by_gpu"]] == [2, 1]
    assert [verdict["met"] for verdict in results["verdicts"]] == [True, True]
    names = {path.name for path in write_results(declared / "out", results)}
    assert names == {"results.json", "summary.json", "report.md", "spread.png"}
    again = read_results(declared / "out")
    assert compare(again, results).groups()[0]["worse"] == 0
    assert "measured" not in again["rows"][0]
    assert "| l4  | latency_ms |    2 |" in accuracy_part(again)


def test_headline_block_names_row_that_is_missing(tmp_path: Path) -> None:
    row = '[[rows]]\ntitle = "a"\nexperiment = "mine"\ntable = "groups.x"\nwhere = { gpu = "l4" }\n'
    (tmp_path / "accuracy.toml").write_text(row)
    figures = {"gpu": "l4", "count": 1234, "median": 1.0, "mean": 2.0, "inside": 90.0}
    assert "| a                  |   1,234 |" in headline_block({"mine": {"groups": {"x": [figures]}}}, tmp_path)
    with pytest.raises(DataError, match="mine has no row"):
        headline_block({}, tmp_path)


def test_errors_of_follow_their_formulas() -> None:
    lines = scored(
        predicted=[1.1, 0.8, np.nan], measured=[1.0, 1.0, 1.0], low=[0.9, 0.7, np.nan], high=[1.2, 0.9, np.nan]
    )
    found = errors_of(lines)
    assert (found["rows"], found["count"]) == (3, 2)
    assert found["answered"] == pytest.approx(200 / 3)
    assert (found["mean"], found["bias"], found["inside"]) == pytest.approx((15.0, -5.0, 50.0))
    assert found["ratio"] == pytest.approx([0.83, 0.95, 1.07])


def test_errors_of_gains_count_clear_ones_on_the_right_side() -> None:
    lines = scored(quantity=["gain"] * 3, predicted=[1.5, 0.9, 0.9], measured=[2.0, 1.2, 1.01])
    assert errors_of(lines)["sign"] == 50.0


def test_grouped_puts_same_rows_of_other_lines_beside() -> None:
    lines = pd.concat(
        [
            scored(predicted=[1.1, 1.3], measured=[1.0, 1.0]),
            scored(predicted=[1.2], measured=[1.0], left_out=["gpu"]),
        ]
    )
    group = ErrorGroup(name="g", by=("quantity",), where={"left_out": "gpu"}, beside={"left_out": "nothing"})
    (row,) = grouped(lines, group)
    assert (row["count"], row["mean"], row["known_mean"]) == pytest.approx((1, 20.0, 10.0))


def test_grouped_averages_groups_alike() -> None:
    lines = scored(predicted=[1.1, 1.1, 1.3], measured=[1.0] * 3, gpu=["a", "a", "b"])
    (row,) = grouped(lines, ErrorGroup(name="g", by=("quantity", "gpu"), average=("gpu",)))
    assert (row["mean"], row["count"], row["groups"]) == pytest.approx((20.0, 3, 2))


def test_fitting_takes_values_patterns_and_bounds() -> None:
    frame = pd.DataFrame({"gpu": ["l4", "t4", "h100"], "ms": [1.0, 2.0, np.nan]})
    assert fitting(frame, {"gpu": "?4"}).tolist() == [True, True, False]
    assert fitting(frame, {"gpu": {"not": ["l4", "t4"]}}).tolist() == [False, False, True]
    assert fitting(frame, {"ms": {"least": 1.5}}).tolist() == [False, True, False]
    assert fitting(frame, {"ms": {"below": 2.0}, "gpu": ["l4", "t4"]}).tolist() == [True, False, False]


def test_rounds_of_leave_out_whole_dies() -> None:
    content = {"title": "t", "question": "q", "tables": [{"files": ["a"]}], "groups": [{"name": "g"}]}
    declared = Declaration.model_validate(content | {"left_out": [{"by": "die"}, {"by": "host"}]})
    first, *others = rounds_of(declared, ["a100-sxm-80gb", "l4"], ["mine"])
    assert (first.left_out, first.held_out) == ("nothing", ())
    assert [one.fold for one in others] == ["AD104", "GA100", "mine"]
    assert {"l4", "rtx-4070"} < {*others[0].held_out} and "a30" in others[1].held_out
    assert others[2].host == "mine"


def test_rounds_of_take_boards_of_a_die_from_the_catalogue() -> None:
    content = {"title": "t", "question": "q", "tables": [{"files": ["a"]}], "groups": [{"name": "g"}]}
    folds = [{"name": "GA100", "siblings": ["a30"]}, {"name": "mine", "held_out": ["l4"]}, {"name": "GA999"}]
    declared = Declaration.model_validate(content | {"left_out": [{"folds": folds}]})
    rounds = rounds_of(declared, ["l4"])
    _, whole, sibling, mine = (next(rounds) for _ in range(4))
    assert {"a30", "a100-sxm-80gb"} < {*whole.held_out} and sibling.held_out == ("a30",) and mine.held_out == ("l4",)
    with pytest.raises(DataError, match="no device is of die 'GA999'"):
        next(rounds)


def test_load_experiment_names_wrong_key(tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_text(DECLARED.replace('group = "by_gpu"', 'group = "by_gpus"'))
    with pytest.raises(DataError, match="no group is called 'by_gpus'; did you mean by_gpu"):
        load_experiment(tmp_path)
    (tmp_path / "experiment.toml").write_text(DECLARED + "\nunknown = 1\n")
    with pytest.raises(DataError, match="unknown"):
        load_experiment(tmp_path)


def test_list_experiments_reads_all_declarations() -> None:
    assert {"energy"} <= {experiment.id for experiment in list_experiments()}
