"""What is on the screen belongs to the question on the screen: history, fields that cannot be read, old answers."""

import json
import shlex
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from tests.cli_runs import as_json, run
from tests.page.conftest import Opened

SHOWN = "document.querySelector('.shown')"
TYPE = f"""(input, text) => {{
  input.value = text;
  input.dispatchEvent(new Event('input', {{ bubbles: true }}));
  return {SHOWN}.className;
}}"""
"""How the answer looks at the moment that something is typed."""
LATE = "const later = setTimeout; window.setTimeout = (call, ms, ...rest) => later(call, (ms ?? 0) + 1000, ...rest)"
"""Events that are throttled come after what is dragged has been let go, as on a busy machine."""
ANSWERED = f"{SHOWN}?.getAttribute('aria-busy') === 'false' && !{SHOWN}.classList.contains('failed')"


def answer_form(page: Any, query: str = "") -> None:
    """Wait until the question of an address is answered."""
    page.wait_for_function(f"{ANSWERED} && location.search.includes({query!r})")


def fill(page: Any, label: str, text: str) -> None:
    page.locator(f".field-{label} input").first.fill(text)


def value(page: Any, label: str) -> str:
    return str(page.locator(f".field-{label} input").first.input_value())


def marked(page: Any, label: str) -> str:
    """The reason below a field that cannot be read."""
    field = page.locator(f"label.q-field--error.field-{label}")
    field.locator("[role=alert]").wait_for()
    return str(field.inner_text())


def test_back_goes_one_edit_back_and_forward_again(opened: Opened) -> None:
    page = opened()
    answer_form(page)
    fill(page, "model", "gpt2")
    answer_form(page, "model=gpt2")
    for batch in ("8", "16"):
        fill(page, "batch", batch)
        answer_form(page, f"batch={batch}")
    for move, batch in ((page.go_back, "8"), (page.go_back, "1"), (page.go_forward, "8"), (page.go_forward, "16")):
        move()
        page.wait_for_function(f"document.querySelector('.facts')?.innerText.includes('batch {batch} ') && {ANSWERED}")
        assert value(page, "batch") == batch
        assert value(page, "model") == "gpt2"


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("/look?model=gpt2&gpu=l4", "batch"),
        ("/drag?model=gpt2&gpu=l4", "batch"),
        ("/decide?model=gpt2&gpu=l4", "batch"),
        ("/decide?model=llama-3.1-8b&gpu=l4&mode=serving", "isl"),
    ],
)
def test_back_is_an_edit_on_every_view(opened: Opened, path: str, label: str) -> None:
    page = opened(path)
    answer_form(page)
    before = value(page, label)
    fill(page, label, "32")
    answer_form(page, "=32")
    page.go_back()
    page.wait_for_function("!location.search.includes('=32')")
    answer_form(page)
    assert value(page, label) == before


def test_back_undoes_a_mode_and_what_was_dragged_at_once(opened: Opened) -> None:
    page = opened("/drag?model=gpt2&gpu=l4&batch=2")
    answer_form(page)
    page.get_by_role("button", name="training").click()
    answer_form(page, "mode=training")
    slider = page.locator(".q-slider [tabindex]").first
    page.wait_for_function("document.querySelector('.q-slider').ariaValueNow > 0")
    page.evaluate(LATE)
    slider.focus()
    page.keyboard.down("PageUp")
    answer_form(page, "batch=3")
    for _ in range(6):
        page.keyboard.down("PageUp")
    page.keyboard.up("PageUp")
    answer_form(page, "batch=64")
    page.go_back()
    page.wait_for_function("location.search.includes('batch=2') && location.search.includes('training')")
    page.go_back()
    page.wait_for_function("!location.search.includes('training')")
    page.locator("button[aria-pressed=true]", has_text="inference").wait_for(timeout=120_000)
    assert "batch=2" in page.url


@pytest.mark.parametrize(
    ("query", "label", "reason"),
    [
        ("batch=x", "batch", "is not a whole number"),
        ("seq_len=9999", "seq_len", "at most 1024"),
        ("dtype=foo", "dtype", "unknown dtype 'foo'"),
        ("tp=3", "tp", "tp 3 does not divide"),
        ("optimizer=adan", "optimizer", "did you mean adam"),
        ("micro_batch_size=0", "micro_batch_size", "is out of range"),
    ],
)
def test_a_field_of_an_address_spoils_itself_alone(opened: Opened, query: str, label: str, reason: str) -> None:
    page = opened(f"/?model=gpt2-large&gpu=l4&{query}")
    assert reason in marked(page, label)
    assert value(page, "gpu") == "l4"
    assert not page.locator(".answer:visible").count()
    assert page.locator("label.q-field--error").count() == 1


def test_a_mode_that_is_none_is_marked_where_modes_are(opened: Opened) -> None:
    page = opened("/?model=gpt2-large&gpu=l4&mode=foo&batch=2")
    page.get_by_text("mode 'foo' is unknown").wait_for()
    assert (value(page, "gpu"), value(page, "batch")) == ("l4", "2")
    assert not page.locator(".answer").count()
    page.get_by_role("button", name="training").click()
    answer_form(page, "mode=training")
    assert "l4" in page.locator(".answer").inner_text()


def test_a_field_that_is_unknown_shows_no_answer(opened: Opened) -> None:
    page = opened("/?model=gpt2-large&gpu=l4&sequence=9999")
    page.get_by_text("sequence is no field").wait_for()
    assert value(page, "gpu") == "l4"
    assert not page.locator(".answer").count()
    fill(page, "batch", "2")
    answer_form(page, "batch=2")
    assert "gpu=l4" in page.url


@pytest.mark.parametrize(
    ("path", "label", "bad", "reason"),
    [
        ("/?gpu=l4", "gpu", "h1000", "unknown device 'h1000'"),
        ("/?gpu=l4", "batch", "many", "is not a whole number"),
        ("/look?gpu=l4&mode=training", "cluster", "dgx-h1000", "unknown cluster"),
        ("/decide?gpu=h100&mode=serving&model=llama-3.1-8b", "slo", "tfft=3s", "is no bound"),
    ],
)
def test_an_old_answer_fades_and_goes_where_the_new_question_has_none(
    opened: Opened, path: str, label: str, bad: str, reason: str
) -> None:
    page = opened(path)
    answer_form(page)
    before = value(page, label)
    field = page.locator(f".field-{label} input").first
    assert "asking" in field.evaluate(TYPE, bad)
    assert reason in marked(page, label)
    assert not page.locator(".answer:visible, .lines:visible").count()
    field.fill(before)
    page.wait_for_function("!document.querySelector('.q-field--error')")
    answer_form(page)


def test_a_figure_of_a_device_that_cannot_be_is_marked_where_it_stands(opened: Opened) -> None:
    page = opened("/?model=gpt2&gpu=l4")
    answer_form(page)
    for text in ("5", "5 TB/s", ""):
        fill(page, "dram_bandwidth", text)
        page.get_by_label("memory bandwidth").press("Enter")
        if text == "5":
            assert "'5' has no unit" in marked(page, "dram_bandwidth")
            assert not page.locator(".answer:visible").count()
        else:
            page.wait_for_function(f"location.search.includes('dram_bandwidth') === {json.dumps(bool(text))}")
            answer_form(page)
    assert value(page, "dram_bandwidth") == "300 GB/s"


def test_a_choice_that_is_none_is_marked_on_a_view_without_a_question(opened: Opened) -> None:
    page = opened("/trust?by=nope")
    assert "by 'nope' is unknown" in marked(page, "by")
    assert not page.locator(".plot:visible").count()


def test_an_answer_without_charts_is_an_answer(opened: Opened) -> None:
    page = opened("/decide?model=llama-3.1-8b&mode=serving&gpu=l4&slo=ttft%3D1ms")
    answer_form(page)
    assert page.locator(".answer").inner_text() == "nothing holds ttft=1ms"


def test_working_is_shown_after_a_tenth_of_a_second_and_nothing_else_is_new(opened: Opened) -> None:
    page = opened("/decide?model=gpt2-large&gpu=h100&mode=training&batch=4")
    answer_form(page)
    for name in ("bf16", "compile", "flash"):
        page.get_by_text(name, exact=True).click()
        page.wait_for_function(
            f"!({ANSWERED}) && getComputedStyle(document.querySelector('.working')).visibility === 'visible'"
            f" || {ANSWERED} && location.search.includes({name!r})"
        )
    answer_form(page, "apply=flash")
    assert page.locator(".answer").inner_text().startswith("bf16, compile, flash")
    assert page.evaluate("getComputedStyle(document.querySelector('.working')).visibility") == "hidden"


@pytest.mark.parametrize("model", ["gpt2-large", "llama-3.1-8b"])
def test_the_first_click_on_a_mode_answers(opened: Opened, model: str) -> None:
    page = opened(f"/?model={model}")
    answer_form(page)
    for mode in ("serving", "training", "inference"):
        page.get_by_role("button", name=mode).click()
        page.wait_for_url(f"**mode={mode}*" if mode != "inference" else f"**/?model={model}")
        answer_form(page)
        assert page.locator(".answer").count() == 1


def test_a_service_level_compares_the_devices_that_are_given(opened: Opened) -> None:
    page = opened("/decide?model=llama-3.1-8b&gpu=l40s,a10g&mode=serving&slo=ttft%3D1s,tpot%3D50ms&rate=5")
    page.locator(".answer").filter(has_text="holds the level for 5 requests/s").wait_for()
    assert "--gpu l40s,a10g" in page.locator(".lines").last.inner_text()
    fill(page, "gpu", "")
    page.locator(".field-gpu input[placeholder='all with a price']").wait_for()


BLOOM = {"model_type": "bloom", "hidden_size": 64, "n_layer": 2, "n_head": 2, "vocab_size": 1000}


def test_a_dropped_configuration_is_called_by_type_and_size(opened: Opened, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(BLOOM))
    page = opened("/?gpu=l4")
    answer_form(page)
    page.locator("input[type=file]").set_input_files(file)
    answer_form(page, "bloom-0.164m")
    assert page.locator(".answer strong").first.inner_text() == "bloom-0.164m"
    command = shlex.split(page.locator(".lines").first.inner_text())
    assert as_json(*command[1:])["latency_s"] == float(page.locator(".answer").get_attribute("data-latency") or 0)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("config.json", "{}", "config.json states no model_type"),
        ("notes.json", "{", "notes.json is not JSON"),
        ("model.txt", "text", "this file is no config.json, .onnx or .pt2"),
    ],
)
def test_a_dropped_file_that_is_not_understood_says_so(
    opened: Opened, tmp_path: Path, name: str, content: str, reason: str
) -> None:
    (tmp_path / name).write_text(content)
    page = opened("/?model=gpt2&gpu=l4")
    answer_form(page)
    page.locator("input[type=file]").set_input_files(tmp_path / name)
    page.get_by_text(reason).wait_for()
    assert page.url.endswith("/?model=gpt2&gpu=l4")
    assert page.locator(".answer").is_visible()


def test_a_served_model_has_the_memory_of_its_command(opened: Opened) -> None:
    page = opened("/?model=llama-3.1-8b&gpu=h100-sxm-80gb&mode=serving")
    answer_form(page)
    facts = page.locator(".facts").inner_text()
    printed = " ".join(run(*shlex.split(page.locator(".lines").first.inner_text())[1:]).stdout.split())
    for words in ("KV cache 5", "kept free 7.91 GiB", "fits in 79.10 GiB a GPU"):
        assert words in facts
        assert words in printed
    assert not page.locator(".field-pp input").count()
    page.locator("fieldset", has_text="Parallelism").locator("summary").click()
    for name in ("pp", "ep", "replicas"):
        page.locator(f".field-{name} input").locator("visible=true").wait_for()
    page.locator(".field-replicas input").fill("2")
    answer_form(page, "replicas=2")
    assert "--replicas 2" in page.locator(".lines").first.inner_text()


TEXTS = """() => {
  const plot = document.querySelector('.nicegui-echart');
  const chart = plot && getElement(+plot.id.slice(1))?.chart;
  if (!chart || chart.getWidth() !== plot.clientWidth) return false;
  const texts = chart.getZr().storage.getDisplayList().filter((each) => each.style && each.style.text).map((each) => {
    const box = each.getBoundingRect().clone();
    if (each.transform) box.applyTransform(each.transform);
    return [each.style.text, box.x, box.y, box.x + box.width, box.y + box.height];
  }).filter((each) => each[2] < chart.getHeight() - 60);
  return texts.filter(([text]) => text.includes("FLOP/s")).length > 4 && texts;
}"""
"""Texts of the first chart and their boxes, once it is drawn in its width."""


@pytest.mark.parametrize("width", [360, 390, 1280])
@pytest.mark.parametrize("gpu", ["h100", "b200", "mi300x"])
def test_names_in_a_roofline_do_not_overlap(opened: Opened, width: int, gpu: str) -> None:
    page = opened(f"/look?model=gpt2-large&gpu={gpu}&mode=training", width=width)
    answer_form(page)
    texts = page.wait_for_function(TEXTS).json_value()
    for (one, *a), (other, *b) in combinations(texts, 2):
        apart = a[2] <= b[0] + 1 or b[2] <= a[0] + 1 or a[3] <= b[1] + 1 or b[3] <= a[1] + 1
        assert apart, (one, a, other, b)
        assert a[0] >= 0
        assert a[2] <= width
