"""Drag, look and decide in a real browser."""

import csv
import io
import json
from typing import Any

import pytest

from neusight import Predictor
from neusight.page import drag
from neusight.page.form import Form, PageWords
from neusight.questions import Step
from neusight.units import milliseconds
from tests.cli_runs import run
from tests.page.conftest import Opened, serious

STEP = "model=gpt2-large&gpu=h100&mode=training&batch=4"


DRAGGED = """() => {
  const batch = +new URLSearchParams(location.search).get('batch');
  const said = document.querySelector('.answer').innerText;
  const field = document.querySelector('.field-batch input').value;
  return batch > 30 && +field === batch && said.startsWith(`batch size ${batch},`) && [batch, said];
}"""
"""The batch that address, field and answer agree on, once it is a large one, and the answer."""


def drawn(page: Any, charts: int) -> None:
    page.wait_for_function(f"document.querySelectorAll('.plot canvas').length === {charts}")


def test_dragging_on_the_chart_moves_the_question(opened: Opened, predictor: Predictor) -> None:
    page = opened(f"/drag?{STEP}")
    drawn(page, 3)
    page.locator(".draggable").wait_for()
    box = page.locator(".plot canvas").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.4)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + box["height"] * 0.4, steps=8)
    page.mouse.up()
    batch, said = page.wait_for_function(DRAGGED).json_value()
    expected = predictor.estimate("gpt2-large", "h100-sxm-80gb", mode="training", batch=batch)
    assert f"h100-sxm-80gb: {milliseconds(expected.latency_s)}" in said


def test_the_slider_does_the_same_by_keyboard(opened: Opened) -> None:
    page = opened(f"/drag?{STEP}")
    drawn(page, 3)
    before = page.locator(".answer").inner_text()
    page.locator(".q-slider [tabindex]").first.focus()
    for _ in range(3):
        page.keyboard.press("PageUp")
    page.wait_for_function(f"document.querySelector('.answer').innerText !== {before!r}")


def test_other_modes_have_other_things_to_drag(opened: Opened) -> None:
    page = opened("/drag?model=llama-3.1-8b&gpu=h100&mode=serving&concurrency=8")
    drawn(page, 3)
    assert "concurrency 8" in page.locator(".answer").inner_text()
    assert page.locator(".plot h2").nth(1).inner_text() == "Throughput against speed"


def test_what_more_devices_bring_is_dragged(opened: Opened) -> None:
    page = opened(f"/drag?{STEP}&axis=dp")
    drawn(page, 4)
    page.locator(".q-slider [tabindex]").first.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.locator(".answer").filter(has_text="data parallel 8, h100-sxm-80gb").wait_for()
    with page.expect_download() as download:
        page.locator(".plot").nth(1).get_by_role("link", name="CSV").click()
    rows = list(csv.DictReader(io.StringIO(download.value.path().read_text())))
    assert [float(row["devices"]) for row in rows] == [1, 2, 4, 8]
    first, last = (float(rows[place]["per_s"]) for place in (0, -1))
    assert first < last <= 8 * first


def test_a_curve_is_dashed_where_it_does_not_fit_and_grey_outside_of_what_was_measured(predictor: Predictor) -> None:
    form = Form(
        question=Step(model="gpt2-large", gpu="rtx-4090,mi300x", mode="training", batch=2),
        page=PageWords(mode="training"),
    )
    chart = drag.ask(predictor, form).charts[0]
    for line in chart.lines[:-1]:
        for x in line.xs[1:] if line.outside else line.xs[:1]:
            estimate = predictor.estimate("gpt2-large", line.series, mode="training", batch=int(x))
            assert line.dashed or estimate.fits
            assert not line.outside or line.series == "mi300x"
    assert {line.dashed for line in chart.lines if line.series == "rtx-4090"} == {True, False}
    assert {line.outside for line in chart.lines if line.series == "mi300x"} == {True}


def test_look_shows_one_step_from_all_sides(opened: Opened) -> None:
    page = opened(f"/look?{STEP}")
    drawn(page, 5)
    assert "limited by compute" in page.locator(".answer").inner_text()
    titles = page.locator(".plot h2").all_inner_texts()
    assert titles[0].startswith("Roofline of NVIDIA H100")
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").first.click()
    text = download.value.path().read_text()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert {"kernel", "flop", "moved_bytes", "latency_s"} <= set(rows[0])
    for form, first in (("PNG", b"\x89PNG"), ("SVG", b"<?xml"), ("JSON", b"[")):
        with page.expect_download() as download:
            page.get_by_role("link", name=form).first.click()
        assert download.value.path().read_bytes().startswith(first)


def test_ranks_and_streams_of_a_cluster_are_looked_at_and_go_to_perfetto(opened: Opened) -> None:
    page = opened("/look?mode=training&model=gpt2-xl&cluster=dgx-h100&batch=16")
    page.locator(".answer").filter(has_text="time in bubbles").wait_for()
    with page.expect_download() as download:
        page.get_by_role("link", name="Perfetto").click()
    events = json.loads(download.value.path().read_text())["traceEvents"]
    lanes = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert {"rank 0, compute", "rank 0, communication"} <= lanes


def test_the_question_goes_along_to_other_views(opened: Opened) -> None:
    page = opened(f"/?{STEP}")
    page.locator(".field-batch input").fill("5")
    page.wait_for_url("**batch=5*")
    page.get_by_role("link", name="Look").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/look?*batch=5*")
    drawn(page, 5)


def test_designs_that_no_other_beats(opened: Opened) -> None:
    page = opened("/decide?mode=training&model=gpt2&batch=64&seq_len=256&space=systolic")
    page.locator(".answer").filter(has_text="the baseline's throughput").wait_for()
    drawn(page, 1)
    command = page.locator(".lines").inner_text()
    assert command.startswith("neusight design systolic --model gpt2 --global-batch-size 64 --seq-len 256 --front")


def test_two_devices_part_by_part(opened: Opened) -> None:
    page = opened(f"/decide?{STEP.replace('h100', 'h100,mi300x')}")
    drawn(page, 3)
    shown = page.locator(".answer").inner_text()
    assert "as fast as h100-sxm-80gb (90 %:" in shown
    printed = run("predict", "gpt2-large", "--gpu", "h100,mi300x", "--mode", "training", "--batch", 4).stdout
    faster = printed[printed.rindex("\n", 0, -1) + 1 :].strip()
    assert " faster than " in faster
    assert faster in shown
    page.goto(page.url.replace("/decide", "/"))
    page.get_by_text(faster, exact=True).wait_for()


def test_a_switch_tells_what_an_optimisation_brings(opened: Opened) -> None:
    page = opened(f"/decide?{STEP}")
    drawn(page, 2)
    page.get_by_text("bf16", exact=True).click()
    page.locator("table.figures").wait_for()
    assert "bf16" in page.locator("table.figures").inner_text()
    assert "apply=bf16" in page.url
    assert "--apply bf16" in page.locator(".lines").inner_text()


def test_a_frontier_and_the_cheapest_that_holds(opened: Opened) -> None:
    page = opened("/decide?model=llama-3.1-8b&gpu=h100,l4&mode=serving")
    drawn(page, 1)
    page.locator(".field-slo input").fill("ttft=500ms")
    page.locator(".answer").wait_for()
    assert "holds the level for" in page.locator(".answer").inner_text()
    assert "vllm serve" in page.locator(".lines").first.inner_text()
    page.locator(".field-slo input").fill("ttft=soon")
    page.locator("[role=alert]:visible").first.wait_for()


VIEWS = (f"/drag?{STEP}", f"/look?{STEP}", f"/decide?{STEP}", "/decide?mode=serving&model=llama-3.1-8b")


@pytest.mark.parametrize("path", VIEWS)
@pytest.mark.parametrize("dark", [False, True])
def test_nothing_serious_and_nothing_wider_than_a_phone(opened: Opened, path: str, dark: bool) -> None:
    page = opened(path, width=390, dark=dark)
    page.locator(".plot canvas").first.wait_for()
    assert serious(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("mode=training&model=gpt2-xl&cluster=dgx-h100&batch=16", "a step, MFU"),
        ("model=gpt2&mode=training&gpu=l4&apply=amp&apply=fused-optimizer&optimizer=adam", "fused-optimizer: together"),
    ],
)
def test_what_takes_long_is_opened_by_its_address_as_well(opened: Opened, query: str, said: str) -> None:
    page = opened(f"/decide?{query}")
    page.locator(".answer").filter(has_text=said).wait_for()
    page.locator(".plot canvas").first.wait_for()
