"""Two results, case by case: what turned, what is noise, and what the command says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from neusight.cli.app import app
from neusight.errors import DataError
from neusight.experiments import compare


def kernel(id_: str, error: float, kind: str = "bmm") -> dict[str, Any]:
    return {"fold": "f", "gpu": "l4", "kind": kind, "op": kind, "id": id_, "error": error}


def model(name: str, error: float) -> dict[str, Any]:
    step = {"fold": "f", "gpu": "l4", "model": name, "mode": "training", "batch": 1, "seq_len": 2}
    return {**step, "errors": {"ours": error, "paper": 99.0}}


def results(kernels: list[dict[str, Any]], models: list[dict[str, Any]], quick: str | None = None) -> dict[str, Any]:
    head = {"experiment": "mine", "folds": [], "predictors": [], "quick": quick}
    return {**head, "kernels": {"sample": kernels}, "models": {"rows": models}}


OLD = results([kernel("a", 2.0), kernel("b", -9.8), kernel("c", 30.0), kernel("d", 1.0)], [model("m", 5.0)])
NEW = results([kernel("a", -14.0), kernel("b", -10.6), kernel("c", 3.0), kernel("e", 1.0)], [model("m", -22.0)])


def test_equal_averages_hide_nothing() -> None:
    found = compare(OLD, NEW)
    assert [case.name for case in found.worse] == ["f l4 whole models m training 1 × 2", "f l4 bmm bmm a"]
    assert [case.name for case in found.better] == ["f l4 bmm bmm c"]
    assert (found.lost, found.new) == (1, 1)


def test_growth_by_no_more_than_a_point_is_noise() -> None:
    # -9.8 to -10.6 crosses the tolerance by 0.8 points.
    assert "f l4 bmm bmm b" not in [case.name for case in compare(OLD, NEW).worse]
    assert "f l4 bmm bmm b" in [case.name for case in compare(OLD, results([kernel("b", 10.9)], [])).worse], (
        "by 1.1 points it is none"
    )


def test_the_tolerance_decides_what_is_right() -> None:
    assert [case.after for case in compare(OLD, NEW, tolerance=20).worse] == [-22.0]
    assert compare(OLD, NEW, tolerance=25).worse == []


def test_groups_have_means_before_and_after() -> None:
    bmm, models, every = compare(OLD, NEW).groups()
    assert (bmm["group"], bmm["cases"], bmm["worse"], bmm["better"]) == ("l4 bmm", 3, 1, 1)
    assert (bmm["before"], bmm["after"]) == pytest.approx(((2 + 9.8 + 30) / 3, (14 + 10.6 + 3) / 3))
    assert (models["group"], models["before"], models["after"]) == ("l4 whole models", 5, 22)
    assert (every["group"], every["cases"], every["worse"]) == ("all", 4, 2)


def test_runs_that_have_nothing_in_common_or_are_of_two_sorts_are_refused() -> None:
    with pytest.raises(DataError, match="no prediction in common"):
        compare(OLD, results([kernel("z", 1.0)], []))
    with pytest.raises(DataError, match="quick run"):
        compare(OLD, results([kernel("a", 1.0)], [], quick="A quick run."))


@pytest.fixture
def written(tmp_path: Path) -> tuple[str, str]:
    for name, content in (("old", OLD), ("new", NEW)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(json.dumps(content))
    return str(tmp_path / "old"), str(tmp_path / "new" / "results.json")


def call(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["experiments", "compare", *arguments])


def test_the_command_fails_when_more_turned_than_allowed(written: tuple[str, str]) -> None:
    done = call(*written)
    assert done.exit_code == 1
    assert "right to wrong: f l4 bmm bmm a: +2.0 % to -14.0 %" in done.stdout
    assert done.stderr == "error: 2 cases turned from right to wrong, 0 may: see which and why, or --allow them\n"
    assert call(*written, "--allow", "2").exit_code == 0
    assert call(*written, "--tolerance", "25").exit_code == 0
    assert call(written[0], written[0]).exit_code == 0


def test_the_command_gives_data(written: tuple[str, str]) -> None:
    done = call(*written, "--format", "json", "--allow", "2")
    found = json.loads(done.stdout)
    assert (found["lost"], found["new"]) == (1, 1)
    assert found["worse"][0] == {
        "group": "l4 whole models",
        "name": "f l4 whole models m training 1 × 2",
        "before": 5.0,
        "after": -22.0,
    }


@pytest.mark.parametrize("content", ["{", "[]", None])
def test_what_is_no_results_is_one_line(written: tuple[str, str], tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "broken.json"
    if content is not None:
        path.write_text(content)
    done = call(written[0], str(path))
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {path}")
    assert len(done.stderr.splitlines()) == 1
