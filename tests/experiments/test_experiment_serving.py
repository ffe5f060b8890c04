"""Served language models as an experiment: figures, peers, verdicts and the report, by formula."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from neusight.devices import load_device
from neusight.evaluation import Scored
from neusight.executors.gpu.tile_models.artifact import load_artifacts
from neusight.experiments import compare, find_experiment, run, summary_of, write_results
from neusight.experiments.declare import Experiment, PublishedMedian, Reason, ServingDeclaration
from neusight.experiments.report import render
from neusight.experiments.runs import WORST, figures, groups, peers, worst
from neusight.experiments.runs_report import SERVING
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.lab.targets import verdicts

CONFIG = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 4096,
}  # fmt: skip
CELL = {"gpu": "h100-sxm-80gb", "model": "small", "mode": "static", "isl": 128, "osl": 16}


def row(ratio: float, cell: str = "lab/a", fault: str = "", quantity: str = "e2e_ms") -> dict[str, Any]:
    """A figure that is predicted ``ratio`` times as long as the 10 ms that were measured."""
    return {
        "cell": cell, "source": "lab", "quantity": quantity, "engine": "vllm", "gpu": "l4", "mode": "static",
        "predicted": 10 * ratio, "low": 0.0, "high": 0.0 if ratio >= 2 else 20.0, "measured": 10.0,
        "ape": 100 * abs(ratio - 1), "bias": 100 * (ratio - 1),
        "inside": ratio < 2, "fault": fault, "limited_by": "experts 60 %, dram",
    }  # fmt: skip


def test_figures_by_formula() -> None:
    found = figures(Scored.of([row(ratio) for ratio in (0.5, 1.0, 1.1, 4.0)]))
    assert (found["count"], found["inside"]) == (4, 75)
    assert found["mean"] == pytest.approx((50 + 0 + 10 + 300) / 4)
    assert found["median"] == pytest.approx(30)
    assert found["bias"] == pytest.approx((-50 + 0 + 10 + 300) / 4)
    assert found["ratio"][1] == pytest.approx(1.05)


def test_faults_are_a_group_of_their_own() -> None:
    found = groups([row(1.0), row(3.0, fault="not told"), row(1.2)])
    assert [(g["fault"], g["count"]) for g in found] == [("", 2), ("fault", 1)]
    assert found[1]["mean"] == pytest.approx(200)


def test_peers_are_compared_on_what_both_predict() -> None:
    rows = [row(1.1, "lab/a"), row(0.8, "lab/b"), row(2.0, "lab/c")]
    told = [
        {"cell": cell, "peer": "other", "quantity": quantity, "predicted": ms}
        for cell, quantity, ms in (("lab/a", "e2e_ms", 15), ("lab/b", "e2e_ms", 10), ("lab/b", "ttft_ms", 1))
    ]
    assert peers(rows, told) == [
        {"peer": "other", "source": "lab", "quantity": "e2e_ms", "count": 2, "mean": pytest.approx(25),
         "median": pytest.approx(25), "ours_mean": pytest.approx(15), "ours_median": pytest.approx(15), "best": True}
    ]  # fmt: skip


def test_the_most_wrong_are_so_by_ratio_each_cell_once() -> None:
    rows = [row(1 + n / 100, f"lab/{n}") for n in range(20)]
    rows += [row(0.2, "lab/slow"), row(0.3, "lab/slow", quantity="tpot_ms"), row(9.0, "lab/told", fault="not told")]
    found = worst(rows)
    assert [w["cell"] for w in found[:2]] == ["lab/slow", "lab/19"]
    assert len(found) == len({w["cell"] for w in found}) == WORST
    assert found[0]["error"] == pytest.approx(-80)
    said = worst(rows, (Reason(cells="lab/s*", reason="slow"), Reason(cells="*", reason="other")))
    assert [w["reason"] for w in said[:2]] == ["slow", "other"]


def test_verdicts_name_every_target() -> None:
    means = [
        {"by": "quantity", "quantity": "e2e_ms", "median": 12.5},
        {"by": "source", "source": "lab", "inside": 90.0},
        {"by": "source quantity", "source": "lab", "quantity": "e2e_ms", "median": 12.5},
    ]
    others = [
        {"peer": peer, "source": "lab", "quantity": "e2e_ms", "count": 3, "mean": mean, "ours_mean": 11.0, "best": best}
        for peer, mean, best in (("near", 10.0, True), ("far", 20.0, False))
    ]
    left = {"die": "D", "source": "lab", "engine": "vllm", "quantity": "e2e_ms", "known_median": 10.0, "inside": 90.0}
    dies = [{**left, "count": count, "median": median} for count, median in ((50, 14.0), (50, 16.0), (3, 99.0))]
    found = verdicts({"means": means, "peers": others, "dies": dies}, find_experiment("serving").declared.targets)
    assert [(v["value"], v["met"], v["short"]) for v in found] == [
        (12.5, False, ["lab 12.5"]),
        (90.0, True, []),
        (14.0, True, []),
        (16.0, False, []),
        (11.0, False, []),
    ]
    assert "near" in found[-1]["target"]


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """Over two cells, one of which another predictor knows."""
    folder = tmp_path_factory.mktemp("data") / "mine"
    folder.mkdir()
    cells = [{**CELL, "cell": f"lab/{n}", "concurrency": n, "e2e_ms": 20.0} for n in (1, 4)]
    cells += [{**CELL, "cell": "lab/9", "concurrency": 9, "model": "absent", "e2e_ms": 1.0}]
    pd.DataFrame(cells).to_parquet(folder / "cells.parquet")
    (folder / "models.json").write_text(json.dumps({"small": CONFIG}))
    more = folder.parent / "more"
    more.mkdir()
    pd.DataFrame([{**CELL, "cell": "lab/l4", "gpu": "l4", "concurrency": 1, "e2e_ms": 40.0}]).to_parquet(
        more / "cells.parquet"
    )
    (more / "models.json").write_text(json.dumps({"small": CONFIG}))
    said = [{"cell": "lab/1", "peer": "other", "quantity": "e2e_ms", "predicted": 30.0}]
    pd.DataFrame(said).to_parquet(folder / "peers.parquet")
    declared = ServingDeclaration(
        kind="serving", title="Mine", question="How wrong?", tables=("mine/cells.parquet", "more/cells.parquet"),
        peers="mine/peers.parquet", targets=find_experiment("serving").declared.targets,
        published=(PublishedMedian(peer="other", cells="lab/[14]", quantity="e2e_ms", median=5.0),),
    )  # fmt: skip
    return Experiment("mine", folder, declared)


def test_a_run_writes_a_report_that_is_made_of_its_summary(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEUSIGHT_DATA", str(experiment.folder.parent))
    results = run(experiment)
    assert [r["cell"] for r in results["rows"]] == ["lab/1", "lab/4", "lab/l4"]
    assert results["peers"][0]["mean"] == pytest.approx(50)
    assert [s["count"] for s in results["skipped"]] == [1]
    files = {f"{folder}/{name}" for folder in ("mine", "more") for name in ("cells.parquet", "models.json")}
    assert files | {"mine/peers.parquet"} == set(results["sha256"])
    errors = [abs(r["error"]) for r in results["rows"] if r["cell"] != "lab/l4"]
    (published,) = results["published"]
    assert (published["count"], published["ours"]) == (2, pytest.approx(sum(errors) / 2, rel=1e-3))
    targets = {row["target"] for row in results["verdicts"]}
    assert {"lab within 90 % intervals", "mean error of e2e_ms on 1 cells of lab that other predicts"} <= targets
    written = {path.name for path in write_results(tmp_path, results)}
    assert written == {"results.json", "summary.json", "report.md", *SERVING.figures}
    summary = summary_of(results)
    assert "rows" not in summary
    assert render(summary, list(SERVING.figures)) == (tmp_path / "report.md").read_text()
    # What was measured stays where it is.
    assert '"measured"' not in (tmp_path / "results.json").read_text()
    worse = {**results, "rows": [{**r, "error": 500.0} for r in results["rows"]]}
    near = {**results, "rows": [{**r, "error": 1.0} for r in results["rows"]]}
    assert len(compare(near, worse).worse) == 3
    assert not compare(summary, summary).worse


def test_the_declaration_of_the_checkout_names_files_that_are_there() -> None:
    declared = find_experiment("serving").declared
    assert isinstance(declared, ServingDeclaration)
    assert declared.report == ("cells", "peers", "folds")
    assert declared.subject == "serving, serving-more"


def test_what_ships_learned_nothing_that_counts_on_boards_of_a_forgotten_die() -> None:
    declared = find_experiment("serving").declared
    assert isinstance(declared, ServingDeclaration)
    batch = KernelBatch.from_columns("gemm", op=["linear"], batch=[1], m=[512], n=[512], k=[512], dtype=["float16"])
    for die in declared.folds:
        for name, shipped in load_artifacts().items():
            artifact = shipped.without(die.held_out)
            for device in map(load_device, die.held_out):
                kinship = artifact.kinship(device, batch, Conditions.of(1))
                assert (kinship == "stranger").all(), (name, device.id)
                assert artifact.shrinkage(kinship) == 0
                assert artifact.device_bias(device, "linear float16") is None
            for gpu in artifact.manifest.training_gpus:
                assert (artifact.kinship(load_device(gpu), batch, Conditions.of(1)) == "own").all()
