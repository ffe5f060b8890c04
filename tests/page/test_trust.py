"""Accuracy of committed experiments, on the page and as plain files, and measurements of one's own."""

import json
from pathlib import Path

import pytest

from neusight import Predictor
from neusight.errors import DataError
from neusight.page.accuracy import AMONG, BY, LEFT_OUT, OURS, accuracies
from neusight.paths import checkout_dir
from tests.cli_runs import run
from tests.page.conftest import Opened, serious

ROWS = """op,gpu,dtype,latency_ms,split,m,n,k
linear,l4,float32,{},train,1024,1024,1024
linear,l4,float32,{},train,2048,1024,1024
"""


PLOT = "getElement(+document.querySelector('.nicegui-echart').id.slice(1)).chart"


@pytest.mark.parametrize("by", BY)
def test_every_cell_is_that_of_a_summary(by: str) -> None:
    rows = accuracies(by)
    assert any(row.predictor == OURS for row in rows)
    for row in rows:
        cell = summary = json.loads((checkout_dir("experiments") / row.experiment / "summary.json").read_text())
        for key in row.row.partition("[")[0].split("."):
            cell = cell[key]
        cell = cell[int(row.row.partition("[")[2].rstrip("]"))]
        assert row.mean in (cell["mean"], cell.get("ours_mean"))
        assert row.outdated == bool(summary.get("outdated")) == row.run.endswith("(an earlier run)")


def test_what_was_left_out_is_told_apart() -> None:
    series = {(row.experiment, row.series) for row in accuracies("GPU") if row.predictor == OURS}
    assert ("leave-one-gpu-out", LEFT_OUT) in series
    assert ("serving", AMONG) in series
    with pytest.raises(DataError, match="by GPU, family"):
        accuracies("GPUs")


def test_others_run_no_more_than_all() -> None:
    runs = [row.runs for row in accuracies("quantity and other predictors") if row.predictor != OURS]
    assert runs
    assert all(share is not None and 0 < share <= 1 for share in runs)


def test_plain_pages_hold_figures_and_refer_to_nothing_else(tmp_path: Path) -> None:
    run("page", "--export", tmp_path / "site")
    pages = sorted((tmp_path / "site").glob("*.html"))
    assert len(pages) == len(BY)
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert "http" not in text
        assert "<script" not in text
        assert text.count("<tr") > 3
    assert (tmp_path / "site" / "GPU.svg").read_text().startswith("<?xml")


def test_a_dot_leads_to_its_row_and_a_report(opened: Opened) -> None:
    page = opened("/trust?by=optimisation")
    page.locator(".plot canvas").wait_for()
    assert "amp" in page.locator("table.figures").inner_text()
    page.wait_for_function(f"{PLOT}?.getOption()?.series.length > 1")
    x, y = page.evaluate(f"{PLOT}.convertToPixel({{ seriesIndex: 0 }}, {PLOT}.getOption().series[0].data[3].value)")
    link = page.evaluate(f"{PLOT}.getOption().series[0].data[3].link")
    page.locator(".plot canvas").click(position={"x": x, "y": y})
    page.wait_for_function("id => document.activeElement.id === id", arg=link)
    assert serious(page) == []
    page.get_by_role("link", name="what-if").click()
    page.get_by_role("heading", name="Targets").wait_for()


def test_own_measurements_are_compared_at_once(opened: Opened, predictor: Predictor, tmp_path: Path) -> None:
    page = opened("/trust", width=390)
    page.locator(".plot canvas").wait_for()
    times = [1e3 * predictor.kernel("linear", "l4", m=m, n=1024, k=1024).latency_s for m in (1024, 2048)]
    file = tmp_path / "mine.csv"
    file.write_text(ROWS.format(*times))
    page.locator("input[type=file]").set_input_files(file)
    page.get_by_text("inside the interval, of 2 rows").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    file.write_text(ROWS.format(1, "slow"))
    page.locator("input[type=file]").set_input_files(file)
    page.locator("[role=alert]:visible").filter(has_text="slow").wait_for()
