"""Results, summaries and what turned between two of them, on disk and by the command; and what the checkout holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from neusight.cli.app import app
from neusight.errors import DataError
from neusight.experiments import (
    Experiment,
    compare,
    list_experiments,
    load_results,
    read_results,
    summary_of,
)
from neusight.experiments.declare import DECLARATION
from neusight.experiments.report import drawings, render
from neusight.experiments.results import SUMMARY, has_rows, rounded


def ran() -> list[Experiment]:
    """Experiments of the checkout that ran to their end."""
    return [e for e in list_experiments() if (e.folder / SUMMARY).is_file()]


def kernel(id_: str, error: float) -> dict[str, Any]:
    return {"fold": "f", "gpu": "l4", "kind": "bmm", "op": "bmm", "id": id_, "error": error}


def made(kernels: dict[str, float], model: float | None = None, quick: str | None = None) -> dict[str, Any]:
    """Results of one predictor with the errors of single kernels, by id, and of one whole model."""
    step = {"fold": "f", "gpu": "l4", "model": "m", "mode": "training", "batch": 1, "seq_len": 2}
    both = {"ours": model, "paper": 99.0}
    rows = [] if model is None else [{**step, "predictor": name, "error": error} for name, error in both.items()]
    mean = sum(map(abs, kernels.values())) / len(kernels)
    cell = {"fold": "f", "gpu": "l4", "kind": "bmm", "predictor": "ours", "mean": mean}
    declared = {"kind": "measured", "predictors": [{"name": "ours"}]}
    return {
        **{"experiment": "mine", "declared": declared, "verdicts": [], "quick": quick},
        "kernels": {"sample": [kernel(*k) for k in kernels.items()], "cells": [cell, {**cell, "predictor": "paper"}]},
        "models": {"rows": rows, "by_gpu": []},
    }


OLD = made({"a": 2.0, "b": -9.8, "c": 30.0, "d": 1.0}, 5.0)
NEW = made({"a": -14.0, "b": -10.6, "c": 3.0, "e": 1.0}, -22.0)


def test_equal_averages_hide_nothing() -> None:
    found = compare(OLD, NEW)
    assert [case.name for case in found.worse] == ["f l4 whole models m training 1 × 2", "f l4 bmm bmm a"]
    assert [case.name for case in found.better] == ["f l4 bmm bmm c"]
    assert (found.by, found.lost, found.new) == ("prediction", 1, 1)
    # b crosses the tolerance by 0.8 points, which is noise; by 1.1 it is none.
    assert "f l4 bmm bmm b" in [case.name for case in compare(OLD, made({"b": 10.9})).worse]
    assert [case.after for case in compare(OLD, NEW, tolerance=20).worse] == [-22.0]
    assert compare(OLD, NEW, tolerance=25).worse == []
    bmm, models, every = found.groups()
    assert (bmm["group"], bmm["cases"], bmm["worse"], bmm["better"]) == ("l4 bmm", 3, 1, 1)
    assert (bmm["before"], bmm["after"]) == pytest.approx(((2 + 9.8 + 30) / 3, (14 + 10.6 + 3) / 3))
    assert (models["group"], models["before"], models["after"]) == ("l4 whole models", 5, 22)
    assert (every["group"], every["cases"], every["worse"]) == ("all", 4, 2)


def test_a_summary_is_compared_by_its_means() -> None:
    for old, new in ((OLD, summary_of(NEW)), (summary_of(OLD), NEW), (summary_of(OLD), summary_of(NEW))):
        found = compare(old, new, tolerance=9)
        (case,) = found.cases
        assert (found.by, case.group, case.name) == ("mean", "l4 bmm", "f l4 bmm, mean")
        assert (case.before, case.after) == pytest.approx(((2 + 9.8 + 30 + 1) / 4, (14 + 10.6 + 3 + 1) / 4))
        assert found.better == [case]


def test_runs_that_have_nothing_in_common_or_are_of_two_sorts_are_refused() -> None:
    with pytest.raises(DataError, match="no prediction in common"):
        compare(OLD, made({"z": 1.0}))
    with pytest.raises(DataError, match="quick run"):
        compare(OLD, made({"a": 1.0}, quick="A quick run."))


def call(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["experiments", *arguments])


@pytest.fixture
def two(tmp_path: Path) -> tuple[str, str]:
    for name, content in (("old", OLD), ("new", NEW)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(json.dumps(content))
        (tmp_path / name / SUMMARY).write_text(json.dumps(summary_of(content)))
    return str(tmp_path / "old"), str(tmp_path / "new" / "results.json")


def test_the_command_fails_when_more_turned_than_allowed(two: tuple[str, str]) -> None:
    done = call("compare", *two)
    assert done.exit_code == 1
    assert done.stdout.startswith("Compared prediction by prediction.\n")
    assert "right to wrong: f l4 bmm bmm a: +2.0 % to -14.0 %" in done.stdout
    assert done.stderr == "error: 2 cases turned from right to wrong, 0 may: see which and why, or --allow them\n"
    assert call("compare", *two, "--allow", "2").exit_code == 0
    assert call("compare", *two, "--tolerance", "25").exit_code == 0
    same = call("compare", f"{two[0]}/{SUMMARY}", two[0])
    assert (same.exit_code, same.stdout.partition(":")[0]) == (
        0,
        "Compared mean by mean, since one of the two is a summary",
    )
    found = json.loads(call("compare", *two, "--format", "json", "--allow", "2").stdout)
    assert (found["by"], found["lost"], found["new"]) == ("prediction", 1, 1)
    worst = {"group": "l4 whole models", "name": "f l4 whole models m training 1 × 2", "before": 5.0, "after": -22.0}
    assert found["worse"][0] == worst


HOLLOW = '{"experiment": 1, "declared": 3, "quick": null, "verdicts": []}'
BROKEN = {"{": "damaged", "[]": "holds no", "[" * 99999: "damaged", HOLLOW: "holds no"}


def test_what_is_no_results_is_one_line(two: tuple[str, str], tmp_path: Path, experiment: Experiment) -> None:
    path = tmp_path / "broken.json"
    for content, said in ((None, "is not there"), *BROKEN.items()):
        if content is not None:
            path.write_text(content)
        done = call("compare", two[0], str(path))
        assert (done.exit_code, done.stdout) == (1, "")
        assert done.stderr.startswith(f"error: {path}")
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 1
    with pytest.raises(DataError, match="not there: neusight experiments run mine"):
        load_results(experiment)


def test_commands_say_what_is_declared_and_where_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "asplos25" in {row["id"] for row in json.loads(call("list", "--format", "json").stdout)}
    refused = call("run", "asplos")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "did you mean asplos25" in refused.stderr
    quick = call("run", "asplos25", "--quick")
    assert quick.exit_code == 2
    assert "--out" in quick.stderr
    monkeypatch.setattr("neusight.paths._CHECKOUT", tmp_path)
    empty = call("list", "--format", "json")
    assert (empty.exit_code, json.loads(empty.stdout)) == (0, [])
    assert empty.stderr.startswith(f"{tmp_path}/experiments declares no experiment: add ID/experiment.toml")
    assert len(empty.stderr.splitlines()) == 1
    installed = call("run", "asplos25")
    assert installed.exit_code == 2
    assert "an installed package keeps no results" in installed.stderr


def test_rounding_leaves_five_digits_no_nan_and_a_tenth_of_a_percent_of_rows() -> None:
    plain = {1: [0.123456789, float("nan")], "n": 3, "t": (123456.7,)}
    assert rounded(plain) == {"1": [0.12346, None], "n": 3, "t": [123460.0]}
    row = {"predicted_ms": 12.34567, "error": -12.3456, "model_error": 0.0412346}
    short = {"predicted_ms": 12.346, "error": -12.3, "model_error": 0.041235}
    assert rounded({"rows": [row]}) == {"rows": [short]}


def keys(value: Any) -> set[str]:
    """Every key in nested lists and tables."""
    entries = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return set(value if isinstance(value, dict) else ()).union(*map(keys, entries))


def test_what_never_ran_to_its_end_is_a_declaration_alone() -> None:
    for experiment in (e for e in list_experiments() if not (e.folder / SUMMARY).is_file()):
        assert [path.name for path in experiment.folder.iterdir()] == [DECLARATION]
        assert not experiment.declared.readme


def test_what_the_checkout_holds_is_of_what_is_declared_and_rendered_from_its_summary() -> None:
    for experiment in ran():
        summary = read_results(experiment.folder / SUMMARY)
        assert summary["declared"] == rounded(experiment.declared.model_dump(mode="json")), experiment.id
        assert summary["quick"] is None
        assert not has_rows(summary)
        assert (experiment.folder / SUMMARY).stat().st_size <= 100_000
        names = list(drawings(summary))
        missing = {name for name in names if not (experiment.folder / name).is_file()}
        assert missing <= {"few-shot.png", "models.png", "gpus.png"}, experiment.id
        # What is outdated is in no picture.
        assert not summary.get("outdated") or not list(experiment.folder.glob("*.png")), experiment.id
        figures = [name for name in names if name not in missing]
        assert all((experiment.folder / name).stat().st_size <= 150_000 for name in figures)
        assert (experiment.folder / "report.md").read_text(encoding="utf-8") == render(summary, figures), experiment.id
