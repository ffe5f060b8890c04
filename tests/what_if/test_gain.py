"""A gain is a ratio: 1 of nothing, its inverse the other way, better known than either time."""

from __future__ import annotations

from math import log
from statistics import NormalDist

import pytest

from neusight import Predictor
from neusight.laws.doubts import spread
from neusight.questions.step import step_question
from neusight.what_if import Gain
from neusight.what_if.gain import faster_probability, ratio_doubts

STEP = step_question("gpt2", "l4", mode="training", optimizer="adam", batch=4)


def test_no_change_is_no_gain_without_doubt(predictor: Predictor) -> None:
    answer = predictor.answer(STEP)
    for metric in ("time", "throughput"):
        gain = Gain.of(answer, answer, metric)
        assert (gain.ratio, gain.low, gain.high) == pytest.approx((1.0, 1.0, 1.0))
        assert not gain.known
    assert Gain.of(answer, answer, "memory").ratio == 1.0


def test_the_way_back_is_the_inverse(predictor: Predictor) -> None:
    step = predictor.what_if(STEP, ["amp", "compile"])
    there, back = Gain.of(step.before, step.after), Gain.of(step.after, step.before)
    assert there.ratio * back.ratio == pytest.approx(1.0)
    assert (back.low, back.high) == pytest.approx((1 / there.high, 1 / there.low))


def test_rungs_multiply_to_the_whole(predictor: Predictor) -> None:
    ladder = predictor.what_if(STEP, ["amp", "compile", "fused-optimizer"])
    product = 1.0
    for rung in ladder.rungs:
        product *= rung.time.ratio
    assert ladder.gain().ratio == pytest.approx(product)
    assert ladder.to_dict()["gain"]["time"]["ratio"] == pytest.approx(product)


def test_shared_errors_cancel(predictor: Predictor) -> None:
    ladder = predictor.what_if(STEP, ["fused-optimizer"])
    before, after = ladder.before, ladder.after
    both = (spread(before.doubts) ** 2 + spread(after.doubts) ** 2) ** 0.5
    assert spread(ratio_doubts(before, after, "time")) < 0.2 * both
    gain = ladder.gain()
    assert gain.high / gain.ratio < 1.0 + 1.645 * both


def test_faster_probability_subtracts_shared_doubts(predictor: Predictor) -> None:
    t4, l4 = (predictor.answer(step_question("gpt2", gpu, batch=8)) for gpu in ("t4", "l4"))
    assert faster_probability(t4, t4) == 0.5
    assert faster_probability(t4, l4) + faster_probability(l4, t4) == pytest.approx(1.0)
    fast, slow = sorted((t4, l4), key=lambda answer: answer.latency_s)
    width = NormalDist().inv_cdf(faster_probability(fast, slow))
    independent = (spread(fast.doubts) ** 2 + spread(slow.doubts) ** 2) ** 0.5
    assert width > log(slow.latency_s / fast.latency_s) / independent > 0


def test_the_search_ranks_and_stops_at_its_target(predictor: Predictor) -> None:
    small = step_question("opt-one-layer", "l4", mode="training", optimizer="adam", batch=4)
    every = predictor.what_ifs(small)
    gains = [rung.time.ratio for rung in every.alone]
    assert gains == sorted(gains, reverse=True)
    assert every.after.latency_s <= min(rung.answer.latency_s for rung in every.alone)
    assert all(why for why in every.refused.values())
    first = every.rungs[0].answer.latency_s
    assert len(predictor.what_ifs(small, "time", first).rungs) == 1
