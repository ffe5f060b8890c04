"""Timed programs as an experiment: what is left out, verdicts and the report, on two small programs."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

from neusight.evaluation.hosts import half_of
from neusight.experiments import compare, find_experiment, programs, run, summary_of, write_results
from neusight.experiments.declare import Experiment, Fold, ProgramsDeclaration
from neusight.experiments.programs_report import PROGRAMS
from neusight.experiments.report import render
from neusight.lab.targets import verdicts

CALL = {
    "level": 1, "tf32": False, "conv_tf32": True, "l2_flushed": False, "host_bytes": 0, "std_ms": 0.001,
    "measured_on": "2025-01-19",
}  # fmt: skip
BOARDS = {"t4": 3.0, "l40s": 0.08}
"""What eager takes on each [ms]; compiled, half of it."""
GRAPHS = ("a", "d")
FOLDS = tuple(Fold(name=gpu, held_out=(gpu,)) for gpu in BOARDS)


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """Two programs of different halves on two boards at a host each; a third timing is too uneven to count."""
    folder = tmp_path_factory.mktemp("data") / "mine"
    (folder / "problems").mkdir(parents=True)
    rows: list[dict[str, Any]] = []
    for graph in GRAPHS:
        program = torch.export.export(nn.Sequential(nn.Linear(512, 512), nn.ReLU()), (torch.zeros(16, 512),))
        torch.export.save(program, folder / "problems" / f"{graph}.pt2")
        for gpu, ms in BOARDS.items():
            call = {**CALL, "gpu": gpu, "host": f"with {gpu}", "graph": graph, "problem": graph}
            rows += [{**call, "mode": mode, "mean_ms": ms / part} for mode, part in (("eager", 1), ("compile", 2))]
    pd.DataFrame([*rows, {**rows[0], "std_ms": 9.0}]).to_parquet(folder / "timings.parquet")
    declared = ProgramsDeclaration(
        kind="programs", title="Mine", question="How wrong?", timings="mine/timings.parquet", folds=FOLDS,
        targets=find_experiment("kernelbench").declared.targets,
    )  # fmt: skip
    return Experiment("mine", folder, declared)


@pytest.fixture(scope="module")
def results(experiment: Experiment) -> dict[str, Any]:
    """Of dies that are left out in name alone: no constants are fitted here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEUSIGHT_DATA", str(experiment.folder.parent))
        patch.setattr(
            programs, "fold_predictors", lambda folds, shipped, quick, report: ((fold, shipped) for fold in folds)
        )
        return run(experiment)


def test_every_timing_is_compared_with_nothing_its_host_and_its_die_left_out(results: dict[str, Any]) -> None:
    assert len({half_of(graph) for graph in GRAPHS}) == 2
    rows = {(row["left_out"], row["gpu"], row["graph"], row["mode"]): row for row in results["rows"]}
    assert len(rows) == len(results["rows"]) == 3 * 2 * 2 * 2
    for table in ("errors", "by_gpu"):
        counts = [(row["left_out"], row["count"]) for row in results[table]]
        assert sorted(counts) == sorted((left_out, 2) for left_out in programs.LEFT_OUT for _ in range(4)), table
    gains = [row for row in results["gains"] if row["left_out"] == "die"]
    assert {(row["mode"], row["clear"]) for row in gains} == {("compile", 2)}
    # A host that was seen explains its own calls better than others do.
    small = {row["left_out"]: row["mean"] for row in results["errors"] if row["size"] == "below 1 ms"}
    assert small["nothing"] < small["host"]
    assert [row["count"] for row in results["skipped"]] == [1]


def test_a_run_writes_a_report_that_is_made_of_its_summary(results: dict[str, Any], tmp_path: Path) -> None:
    written = {path.name for path in write_results(tmp_path, results)}
    assert written == {"results.json", "summary.json", "report.md", *PROGRAMS.figures}
    summary = summary_of(results)
    assert "rows" not in summary
    assert render(summary, list(PROGRAMS.figures)) == (tmp_path / "report.md").read_text()
    # What was measured stays where it is.
    assert '"measured' not in (tmp_path / "results.json").read_text()
    near, worse = ({**results, "rows": [{**r, "error": e} for r in results["rows"]]} for e in (1.0, 500.0))
    assert len(compare(near, worse).worse) == len(results["rows"])
    assert not compare(summary, summary).worse


def test_verdicts_are_of_hosts_and_dies_that_were_left_out() -> None:
    errors = [
        {"left_out": left_out, "mode": mode, "size": size, "median": 11.0, "mean": 16.5}
        for left_out in programs.LEFT_OUT
        for mode in ("eager", "compile", "cuda_graph")
        for size in ("above 1 ms", "below 1 ms")
    ]
    by_gpu = [{**row, "gpu": gpu, "median": median} for row in errors for gpu, median in (("t4", 25.0), ("l4", 5.0))]
    gains = [
        {"left_out": "die", "mode": mode, "size": "below 1 ms", "median": 9.0, "direction_right": right}
        for mode, right in (("compile", 89.0), ("cuda_graph", 10.0), ("compile", None))
    ]
    parts = {"errors": errors, "by_gpu": by_gpu, "gains": gains}
    found = verdicts(parts, find_experiment("kernelbench").declared.targets)
    words = {v["target"]: (v["met"], v["short"]) for v in found}
    for left_out in ("host", "die"):
        assert words[f"median of eager above 1 ms, {left_out} left out"] == (False, ["t4 25.0"])
        assert words[f"median of compile above 1 ms, {left_out} left out"] == (True, [])
        assert words[f"mean of eager above 1 ms, {left_out} left out"][0] is False
    assert words["median of compile below 1 ms, nothing left out"] == (True, [])
    assert "median of eager below 1 ms, host left out" not in words
    assert words["direction of the gain of compile below 1 ms is right, die left out"] == (False, [])
    assert not any("cuda_graph" in target for target in words)


def test_boards_that_were_timed_are_left_out_once_each() -> None:
    declared = find_experiment("kernelbench").declared
    assert isinstance(declared, ProgramsDeclaration)
    assert (declared.report, declared.subject) == (("programs", "gains", "folds"), "kernelbench")
    held_out = [gpu for fold in declared.folds for gpu in fold.held_out]
    assert len(held_out) == len(set(held_out))
