"""Pairs of measurements as an experiment: what is answered, verdicts and the report, on four small pairs."""

from pathlib import Path
from typing import Any

import pytest

from neusight.experiments import find_experiment, run, summary_of, write_results
from neusight.experiments.declare import Experiment, PairsDeclaration

PAIR = """
[[pairs]]
optimisation = '{optimisation}'
as_written = '{optimisation} of {model}'
model = '{model}'
mode = 'inference'
gpu = 'l4'
metric = 'time'
gain = {gain}
told = {{ apply = ['{optimisation}'], batch = 4, seq_len = 256 }}
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("data")
    pairs = (("tf32", "gpt2", 1.4), ("tf32", "gpt2", 0.5), ("tf32", "no-such-model", 1.4), ("compile", "gpt2", 1.1))
    told = [PAIR.format(optimisation=name, model=model, gain=gain) for name, model, gain in pairs]
    (folder / "pairs.toml").write_text("".join(told))
    (folder / "published.toml").write_text(told[0] + told[2])
    declared = PairsDeclaration(
        kind="pairs", title="Mine", question="How wrong?", pairs="pairs.toml", published="published.toml",
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
