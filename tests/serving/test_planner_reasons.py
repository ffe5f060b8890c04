"""Reasons of a search are true of their deployments; what may be chosen is searched; all passes are explained."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from neusight import Predictor
from neusight.cli.show_serving import _why_not
from neusight.devices import load_devices
from neusight.devices.chosen import as_device
from neusight.serving import Choice, Demand, Load, Offline, Open, Setup, Static, closed
from neusight.serving.space import setups
from neusight.workloads.decoders.known import known_decoder

MODEL = "Qwen/Qwen3-8B"
TIGHT = {"isl": 512, "osl": 64}


def failures(choices: list[Choice]) -> Iterator[tuple[Choice, int, str]]:
    """Choices that fail with some replicas, how many those are, and what is said of them."""
    for choice in choices:
        if match := re.search(r"with ([\d,]+) replicas? (.*)$", choice.reason):
            yield choice, int(match[1].replace(",", "")), match[2]


@pytest.mark.parametrize(
    ("demand", "prefer", "beyond"),
    [
        ({"slo": "tpot=60ms,ttft=1s", "request_rate": 3.0}, "cost", "too expensive: more than 3 times the best"),
        ({"slo": "tpot=60ms,ttft=1s", "concurrency": 4}, "cost", "too expensive: more than 3 times the best"),
        ({"slo": "tpot=60ms,ttft=1s", "request_rate": 3.0}, "gpus", "too many devices: more than 3 times the best"),
    ],
)
def test_cheapest_gives_the_price_as_the_whole_reason_of_what_would_hold(
    predictor: Predictor, demand: dict[str, Any], prefer: str, beyond: str
) -> None:
    choices = predictor.cheapest(MODEL, "l40s", Demand(**demand, **TIGHT), tp=[1, 2, 8], prefer=prefer)
    (eight,) = (choice for choice in choices if choice.setup.tp == 8)
    assert eight.reason == beyond
    alone = predictor.cheapest(MODEL, "l40s", Demand(**demand, **TIGHT), tp=8)
    assert alone[0].holds


@pytest.mark.parametrize(("rate", "slo"), [(20.0, "tpot=45ms"), (30.0, "tpot=60ms,ttft=500ms"), (4.0, "e2e=2s")])
def test_cheapest_says_of_so_many_replicas_what_is_true_of_them(predictor: Predictor, rate: float, slo: str) -> None:
    demand = Demand(slo=slo, request_rate=rate, **TIGHT)
    gpus = load_devices(["l4", "l40s"])
    for choice, replicas, said in failures(predictor.cheapest(MODEL, gpus, demand, tp=[1, 2, 4])):
        deployment = predictor.deployment(MODEL, as_device(choice.gpu), 576, tp=choice.setup.tp, replicas=replicas)
        if said == "it cannot serve so much":
            full = predictor.serving(MODEL, choice.gpu, Offline(num_prompts=512 * replicas, **TIGHT),
                                     tp=choice.setup.tp, replicas=replicas)  # fmt: skip
            assert full.requests_per_s < rate
        else:
            assert deployment.devices == replicas * choice.setup.tp
            assert said.split()[0] in ("tpot", "ttft", "e2e", "holds")
        assert ("1 replica " in choice.reason) == (replicas == 1)


def test_cheapest_does_not_depend_on_the_order_of_devices(predictor: Predictor) -> None:
    demand = Demand(slo="tpot=60ms,ttft=1s", request_rate=20.0, **TIGHT)
    gpus = load_devices(["l4", "l40s", "h100-sxm-80gb"])
    answers = [predictor.cheapest(MODEL, each, demand, tp=1) for each in (gpus, gpus[::-1])]
    assert len({frozenset((c.gpu, c.setup.tp, c.holds, c.usd_per_hour) for c in answer) for answer in answers}) == 1


def test_cheapest_reports_what_is_done_and_the_best_so_far(predictor: Predictor) -> None:
    seen: list[tuple[int, int, str]] = []
    demand = Demand(slo="tpot=60ms", request_rate=3.0, **TIGHT)
    best = predictor.cheapest(MODEL, "l40s", demand, tp=[1, 2], progress=lambda *each: seen.append(each))[0]
    assert [(done, of) for done, of, _ in seen] == [(0, 2), (1, 2)]
    assert (seen[0][2], seen[1][2]) == ("", best.described)


@pytest.mark.parametrize(
    ("model", "gpu", "dtypes"),
    [
        ("Qwen/Qwen3-32B", "t4", {"float16"}),
        ("Qwen/Qwen3-32B", "v100-sxm2-16gb", {"float16"}),
        ("Qwen/Qwen3-32B", "p4", {"float16"}),
        ("Qwen/Qwen3-32B", "l4", {"", "fp8"}),
        ("Qwen/Qwen3-32B", "a100-sxm-80gb", {""}),
        ("llama-2-7b", "t4", {""}),
        ("deepseek-ai/DeepSeek-V3", "t4", {""}),
    ],
)
def test_setups_tries_dtypes_that_the_device_computes_in(model: str, gpu: str, dtypes: set[str]) -> None:
    assert {each.dtype for each in setups(known_decoder(model), as_device(gpu), {}, usual=True)} == dtypes


@pytest.mark.parametrize(
    ("model", "gpu", "usual"),
    [
        ("Qwen/Qwen3-32B", "p4", True),
        ("deepseek-ai/DeepSeek-V3", "l4", True),
        ("meta-llama/Llama-3.1-70B", "t4", True),
        ("Qwen/Qwen3-30B-A3B", "h100-sxm-80gb", True),
        ("Qwen/Qwen3-8B", "l4", False),
    ],
)
def test_setups_has_each_plan_once(model: str, gpu: str, usual: bool) -> None:
    found = setups(known_decoder(model), as_device(gpu), {} if usual else {"tp": [1, 2, 2, 1]}, usual=usual)
    assert len(found) == len(set(found)) > 1


def test_why_not_counts_plans_that_look_alike(capsys: pytest.CaptureFixture[str]) -> None:
    def failed(**setup: Any) -> Choice:
        return Choice(gpu="l4", setup=Setup(**setup), reason="does not fit")

    _why_not([failed(tp=2), failed(tp=2, engine="sglang"), failed(tp=4)])
    assert capsys.readouterr().out == "not l4, tp2 (2 plans); tp4: does not fit\n"


LOADS: list[Load] = [
    closed(1, 128, 256), closed(1, 16, 2000), closed(2, 32, 900), Static(batch=1, isl=8, osl=1500),
    Open(request_rate=0.05, num_prompts=32, isl=64, osl=512),
]  # fmt: skip


@pytest.mark.parametrize("load", LOADS, ids=lambda load: type(load).__name__)
def test_serving_explains_passes_with_prompts_however_rare(predictor: Predictor, load: Load) -> None:
    answer = predictor.serving("llama-2-7b", "a100-sxm-80gb", load)
    assert answer.prefill is not None
    assert answer.decode is not None
    assert sum(answer.prefill.parts.values()) == pytest.approx(1.0)


def test_serving_has_no_decode_of_answers_of_one_token(predictor: Predictor) -> None:
    answer = predictor.serving("llama-2-7b", "a100-sxm-80gb", Static(batch=4, isl=64, osl=1))
    assert answer.prefill is not None
    assert answer.decode is None
    assert np.isfinite(answer.power_w)
