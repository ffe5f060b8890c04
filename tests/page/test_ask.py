"""The first view in a real browser: the answer at once, in the URL, on small screens, in the dark, wrong inputs."""

import json
from pathlib import Path
from typing import Any

import pytest
from torch import export, nn, ones

from neusight import Predictor
from tests.page.conftest import Opened, serious


def latencies(page: Any, count: int = 1) -> list[float]:
    """Of the answers on the screen [s]."""
    page.wait_for_function(f"document.querySelectorAll('.answer').length === {count}")
    return [float(line.get_attribute("data-latency")) for line in page.locator(".answer").all()]


def fill(page: Any, label: str, text: str) -> None:
    page.locator(f".field-{label} input").first.fill(text)


def wait_latency(page: Any, expected: float) -> None:
    page.wait_for_function(f"+document.querySelector('.answer')?.dataset.latency === {expected!r}")


def test_it_answers_before_anything_is_typed(opened: Opened, predictor: Predictor) -> None:
    page = opened()
    assert latencies(page) == [predictor.estimate("gpt2-large", "h100-sxm-80gb").latency_s]
    line = page.locator(".answer").inner_text()
    assert "90 %" in line
    facts = page.locator(".facts").inner_text()
    assert "fits" in facts
    assert "USD" in facts
    assert " J for a step" in facts


def test_a_question_is_in_the_url_and_survives_a_reload(opened: Opened, predictor: Predictor) -> None:
    page = opened()
    fill(page, "batch", "4")
    expected = predictor.estimate("gpt2-large", "h100-sxm-80gb", batch=4).latency_s
    wait_latency(page, expected)
    assert "batch=4" in page.url
    page.reload()
    assert latencies(page) == [expected]
    other = opened(page.url[page.url.index("/?") :])
    assert latencies(other) == [expected]
    assert other.locator(".field-batch input").input_value() == "4"


def test_several_devices_and_what_gives_the_same(opened: Opened, predictor: Predictor) -> None:
    page = opened("/?model=gpt2-large&gpu=h100,4090&mode=training&batch=8")
    expected = [predictor.estimate("gpt2-large", g, mode="training", batch=8) for g in ("h100-sxm-80gb", "rtx-4090")]
    assert latencies(page, 2) == [e.latency_s for e in expected]
    assert "does not fit" in page.locator(".facts").nth(1).inner_text()
    command, python = page.locator(".lines").all_inner_texts()
    assert command == "neusight predict gpt2-large --gpu h100-sxm-80gb,rtx-4090 --mode training --batch 8"
    assert "mode='training', batch=8" in python
    assert page.locator(".plot canvas").count() == 2


def test_wrong_inputs_are_the_line_of_the_command(opened: Opened) -> None:
    page = opened()
    latencies(page)
    for label, text, line in (
        ("model", "gpt2-lrage", "did you mean gpt2-large"),
        ("model", "os:getcwd", "is not run by a URL"),
    ):
        before = page.locator(f".field-{label} input").first.input_value()
        fill(page, label, text)
        page.get_by_text(line).first.wait_for()
        fill(page, label, before)
        page.wait_for_function("![...document.querySelectorAll('[role=alert]')].some((one) => one.offsetParent)")


def test_assumptions_are_edited_where_they_stand(opened: Opened, predictor: Predictor) -> None:
    page = opened()
    latencies(page)
    fill(page, "dram_bandwidth", "6.7 TB/s")
    page.get_by_label("memory bandwidth").press("Enter")
    changed = predictor.estimate("gpt2-large", "h100-sxm-80gb", overrides=["dram_bandwidth=6.7 TB/s"])
    wait_latency(page, changed.latency_s)
    assert "dram_bandwidth" in page.locator(".lines").first.inner_text()


def test_acceptance_of_drafted_tokens_is_an_assumption_as_well(opened: Opened) -> None:
    page = opened("/?model=llama-3.1-8b&gpu=h100&mode=serving")
    (first,) = latencies(page)
    page.locator("fieldset", has_text="Precision and engine").locator("summary").click()
    fill(page, "speculate", "draft=ngram,tokens=4,acceptance=0.6")
    page.wait_for_function(f"+document.querySelector('.answer')?.dataset.latency !== {first!r}")
    command, python = page.locator(".lines").all_inner_texts()
    assert "--speculate draft=ngram,tokens=4,acceptance=0.6" in command
    assert "speculate='draft=ngram,tokens=4,acceptance=0.6'" in python
    fill(page, "speculate", "draft=ngram,tokens=4,acceptance=2")
    page.get_by_text("acceptance 2: give a probability").first.wait_for()


def test_a_dropped_file_is_the_model(opened: Opened, tmp_path: Path) -> None:
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 2, "n_head": 2, "n_embd": 64}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    page = opened()
    (first,) = latencies(page)
    page.locator("input[type=file]").set_input_files(file)
    page.wait_for_function(f"+document.querySelector('.answer')?.dataset.latency < {first!r}")


def test_a_dropped_program_is_the_model_too(opened: Opened, tmp_path: Path) -> None:
    layer = nn.Linear(64, 64)
    file = tmp_path / "layer.pt2"
    export.save(export.export(layer, (ones(8, 64),)), file)
    page = opened()
    (first,) = latencies(page)
    page.locator("input[type=file]").set_input_files(file)
    page.wait_for_function(f"+document.querySelector('.answer')?.dataset.latency < {first!r}")
    assert "layer" in page.locator(".answer").inner_text()


def test_narrow_screens_and_the_dark(opened: Opened) -> None:
    page = opened("/?model=gpt2-large&gpu=h100,4090&mode=training", width=390, dark=True)
    latencies(page, 2)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("document.body.classList.contains('body--dark')")
    page.get_by_label("light or dark").click()
    page.reload()
    latencies(page, 2)
    assert not page.evaluate("document.body.classList.contains('body--dark')")


@pytest.mark.parametrize("dark", [False, True])
def test_nothing_serious_for_those_who_see_or_point_otherwise(opened: Opened, dark: bool) -> None:
    page = opened("/?model=gpt2-large&gpu=h100,4090&mode=training", dark=dark)
    latencies(page, 2)
    assert serious(page) == []
