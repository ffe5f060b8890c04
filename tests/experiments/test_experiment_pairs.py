"""Measured gains as an experiment: what is answered, verdicts and the report, on four small pairs."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from neusight import Predictor
from neusight.experiments import find_experiment, run, summary_of, write_results
from neusight.experiments.declare import Experiment, PairsDeclaration
from neusight.learn.gains import residuals
from neusight.measured import read_table
from neusight.measured.compare import question_of
from neusight.paths import checkout_dir
from neusight.questions import WhatIfQuestion

HEAD = "source,optimisation,as_written,model,gpu,batch,seq_len,apply,metric,gain\n"
ROW = "lab,{0},{0} of {1},{1},l4,4,256,{0},time,{2}\n"
PUBLISHED = checkout_dir("experiments") / "what-if" / "published.csv"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    pairs = (("tf32", "gpt2", 1.4), ("tf32", "gpt2", 0.5), ("tf32", "no-such-model", 1.4), ("compile", "gpt2", 1.1))
    rows = [ROW.format(*pair) for pair in pairs]
    (folder / "gains").mkdir()
    (folder / "gains" / "lab.csv").write_text(HEAD + "".join(rows))
    (folder / "published.csv").write_text(HEAD + rows[0] + rows[2])
    return folder


@pytest.fixture(scope="module")
def results(folder: Path) -> dict[str, Any]:
    declared = PairsDeclaration(
        kind="pairs", title="Mine", question="How wrong?", tables=("gains/lab.csv",), published="published.csv",
        targets=find_experiment("what-if").declared.targets,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEUSIGHT_DATA", str(folder))
        return run(Experiment("mine", folder, declared))


def test_coverage_and_signs_are_counted_by_optimisation(results: dict[str, Any]) -> None:
    rows = {row["optimisation"]: row for row in results["optimisations"]}
    assert {name: (row["pairs"], row["count"]) for name, row in rows.items()} == {
        "compile": (1, 1), "tf32": (3, 2), "all": (4, 3),
    }  # fmt: skip
    # Of two answered pairs of TF32 one gains, as predicted, and one is said to lose.
    assert rows["tf32"]["sign"] == 50
    assert rows["tf32"]["answered"] == pytest.approx(200 / 3, abs=1e-3)


def test_effects_stand_beside_what_papers_state(results: dict[str, Any]) -> None:
    assert [row["stated_gain"] for row in results["published"]] == [1.4]
    assert "no-such-model" in results["unanswered"][0]["reason"]


def test_the_report_judges_and_draws(results: dict[str, Any], tmp_path: Path) -> None:
    written = {path.name for path in write_results(tmp_path, results)}
    assert {"report.md", "summary.json", "gains.png"} <= written
    report = (tmp_path / "report.md").read_text()
    assert "| all: pairs that are answered, of those whose model is named" in report
    assert "| compile of gpt2 | l4" not in report
    assert "| tf32 of gpt2" in report
    assert "measured_gain" not in str(summary_of(results).get("rows", ""))


def test_residuals_are_of_rows_that_are_answered(folder: Path, predictor: Predictor) -> None:
    high, low, compiled = residuals(read_table(folder / "gains" / "lab.csv"), predictor, Counter())
    assert (high.of_set, high.memory, high.ratio) == ("lab", False, low.ratio)
    assert (low.error - high.error) == pytest.approx(1.0296, abs=1e-4)
    assert compiled.sources > 0


def test_published_effects_are_questions_and_say_where_they_come_from() -> None:
    table = read_table(PUBLISHED)
    assert table.frame["origin"].notna().all()
    questions = [question_of(row, table) for row in table.frame.to_dict("records")]
    assert all(isinstance(one, WhatIfQuestion) and one.apply for one in questions)
