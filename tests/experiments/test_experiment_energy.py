"""What boards draw as an experiment: readings, verdicts and the report, on two readings."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from neusight.experiments import find_experiment, run, summary_of, write_results
from neusight.experiments.declare import EnergyDeclaration, Experiment

STEADY = {"flops_per_byte": 0.25, "gb_per_s": 1372.0, "gflop_per_s": 343.0, "clock_mhz": 1410, "power_w": 227.0}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("data")
    (folder / "microbenchmarks").mkdir()
    rows = [STEADY | {"gpu": gpu} for gpu in ("a100-sxm-40gb", "a40")]
    pd.DataFrame(rows).to_csv(folder / "microbenchmarks" / "roofline_power.csv", index=False)
    declared = EnergyDeclaration(
        kind="energy", title="Mine", question="How wrong?", targets=find_experiment("energy").declared.targets
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEUSIGHT_DATA", str(folder))
        return run(Experiment("mine", folder, declared))


def test_readings_are_grouped_and_judged(results: dict[str, Any]) -> None:
    assert [row["count"] for row in results["sources"]] == [2]
    assert {(row["gpu"], row["quantity"]) for row in results["readings"]} == {
        ("a100-sxm-40gb", "power_w"), ("a40", "power_w"),
    }  # fmt: skip
    assert {row["name"] for row in results["constants"]} == {"gpu.idle_share", "gpu.switching", "gpu.traffic"}
    assert results["verdicts"][0]["target"].startswith("roofline_power")
    assert any("left out" in verdict["target"] for verdict in results["verdicts"])


def test_the_report_has_tables_and_a_figure_and_nothing_measured(results: dict[str, Any], tmp_path: Path) -> None:
    written = {path.name for path in write_results(tmp_path, results)}
    assert {"report.md", "summary.json", "energy.png"} <= written
    report = (tmp_path / "report.md").read_text()
    assert "| roofline_power | a40 " in report
    assert "227" not in str(summary_of(results).get("rows", ""))
