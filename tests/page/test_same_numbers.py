"""Page, command and Python say the same, to the last digit."""

import shlex
from itertools import product
from typing import Any

import pytest

from neusight import Predictor
from neusight.page.answers import answer_form
from neusight.page.form import Form
from tests.cli_runs import as_json

MODELS = ("gpt2-large", "bert-large", "resnet-50", "opt-1.3b", "llama-2-7b")
STEPS = (
    *(
        {"model": m, "gpu": g, "mode": "training", "batch": "2"}
        for m, g in product(MODELS, ("l4", "h100", "mi300x", "rtx-4090"))
    ),
    *({"model": m, "gpu": g} for m, g in product(MODELS, ("a100-pcie-80gb", "h200", "v100-pcie-32gb"))),
    *(
        {"model": "gpt2-large", "gpu": "a100-sxm-40gb", "batch": b, "dtype": d}
        for b, d in product(("1", "3"), ("bf16", "tf32"))
    ),
    {"model": "gpt2-large", "gpu": "l4", "mode": "training", "optimizer": "adamw", "batch": "4", "seq_len": "512"},
    {"model": "bert-large", "gpu": "h100", "launch": "compiled"},
    {"model": "gpt2-large", "gpu": "a100-sxm-80gb", "mode": "training", "batch": "8", "tp": "2", "dp": "2"},
    {"model": "gpt2-large", "gpu": "h100", "changes": "dram_bandwidth=4.8TB/s"},
)
LOADS = tuple(
    {"model": "llama-3.1-8b", "gpu": g, "mode": "serving", "concurrency": c, "isl": "512", "osl": "64"}
    for g, c in product(("h100", "l40s", "a100-sxm-80gb", "mi300x"), ("1", "8"))
)
DRAFTED = {**LOADS[0], "speculate": "draft=ngram,tokens=4,acceptance=0.6"}
QUESTIONS = [Form.of(words.items()) for words in (*STEPS, *LOADS, DRAFTED)]


def test_there_are_fifty() -> None:
    assert len(set(QUESTIONS)) >= 50


def by_python(form: Form) -> list[Any]:
    """What the lines of Python print, as objects."""
    answers: list[Any] = []
    exec(form.python, {"print": answers.append})
    return answers


@pytest.fixture(autouse=True)
def one_predictor(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Predictor, "load", classmethod(lambda *_: predictor))


@pytest.mark.parametrize("form", QUESTIONS, ids=lambda form: form.query)
def test_page_command_and_python_agree(form: Form, predictor: Predictor) -> None:
    assert Form.of(form.words()) == form
    (answer,) = answer_form(predictor, form)
    assert answer.estimate is not None, answer.error
    (same,) = by_python(form)
    said = as_json(*shlex.split(form.command)[1:])
    latency_s = said["latency_s"]
    assert answer.estimate.latency_s == same.latency_s == latency_s
    assert list(answer.estimate.interval) == list(same.interval) == [said["low_s"], said["high_s"]]
