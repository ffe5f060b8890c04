"""Answers to questions that leave the version of the engine open: the mean over versions, with a doubt."""

from __future__ import annotations

from math import exp, log
from typing import Any

import pytest

from neusight.api import Predictor
from neusight.questions import Serving
from neusight.serving.estimate import Metric, ServingEstimate
from neusight.serving.versions import UNSET

LOADS: list[dict[str, Any]] = [
    {"batch": 8, "isl": 512, "osl": 64},
    {"concurrency": 24, "isl": 1024, "osl": 128, "num_prompts": 48},
    {"request_rate": 2.0, "isl": 512, "osl": 64, "num_prompts": 48},
    {"concurrency": 8, "isl": 512, "osl": 64, "num_prompts": 16, "prefill": "tp=1"},
]
TIMES = ("tpot_s", "e2e_s")


def question_of(load: dict[str, Any], **words: Any) -> Serving:
    return Serving.named({"model": "meta-llama/Llama-3.1-8B", "gpu": "h100-sxm-80gb", **load, **words})


def variance(metric: Metric) -> float:
    return log(metric.high / metric.low) ** 2


@pytest.mark.parametrize(
    "load", LOADS, ids=lambda load: next(word for word in load if word not in ("isl", "osl", "num_prompts"))
)
def test_open_version_is_the_mean_and_wider_than_given_ones_on_average(
    predictor: Predictor, load: dict[str, Any]
) -> None:
    answer = predictor.ask(question_of(load))
    shares = dict(question_of(load).versions)
    given = {version: predictor.ask(question_of(load, engine_version=version)) for version in shares}
    for name in TIMES:
        figure: Metric = getattr(answer, name)
        each = {version: getattr(estimate, name) for version, estimate in given.items()}
        mean = exp(sum(share * log(each[version].mean) for version, share in shares.items()))
        assert figure.mean == pytest.approx(mean, rel=0.03)
        assert variance(figure) >= 0.95 * sum(share * variance(each[version]) for version, share in shares.items())
        assert all(figure.low < metric.mean < figure.high for metric in each.values())
    newest = given[max(shares, key=lambda version: float(version.partition(".")[2]))]
    assert variance(newest.e2e_s) < variance(answer.e2e_s)


def test_open_version_says_what_it_costs(predictor: Predictor) -> None:
    answer: ServingEstimate = predictor.ask(question_of(LOADS[0]))
    assert answer.doubts[UNSET] > 0.02
    ends = 100.0 * (exp(1.645 * abs(answer.doubts_of("throughput")[UNSET])) - 1.0)
    assert answer.assumed["engine_version"].endswith(f"± {ends:.0f} % (give --engine-version)")


@pytest.mark.parametrize("words", [{"engine_version": "0.15.1"}, {"engine": "sglang"}], ids=["given", "one era"])
def test_version_that_is_not_open_is_no_doubt(predictor: Predictor, words: dict[str, str]) -> None:
    answer: ServingEstimate = predictor.ask(question_of(LOADS[0], **words))
    assert UNSET not in answer.doubts
    assert "give --engine-version" not in str(answer.assumed)


def test_open_version_is_one_that_the_device_has(predictor: Predictor) -> None:
    words = {"model": "meta-llama/Llama-3.1-8B", "isl": 512, "osl": 64, "batch": 8}
    on_tpu = Serving.named({**words, "gpu": "tpu-v6e"})
    assert {version for version, _ in Serving.named({**words, "gpu": "h100-sxm-80gb"}).versions} == {"0.10.2", "0.19.0"}
    assert on_tpu.versions == ()
    answer, newest = predictor.ask(on_tpu), predictor.ask(on_tpu.changed(engine_version="0.19.0"))
    assert answer.e2e_s == newest.e2e_s
    assert answer.assumed["engine_version"] == "0.19.0, the newest known"
    assert predictor.deployment(words["model"], "tpu-v6e", 576).setup.versions == ()


def test_open_version_prices_no_kernel_more_and_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    price = Predictor._priced
    monkeypatch.setattr(Predictor, "_priced", lambda *args: calls.append(len(args[1])) or price(*args))
    answers = [Predictor.load().ask(question_of(LOADS[0], engine_version=version)) for version in ("0.19.0", "", "")]
    assert calls[: len(calls) // 3] == calls[len(calls) // 3 : 2 * len(calls) // 3]
    assert len(calls) % 3 == 0
    assert answers[1] == answers[2]
