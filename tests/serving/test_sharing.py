"""Loads that replicas, groups and stages share."""

import pytest

from neusight import Predictor
from neusight.serving import Closed, Offline, Open, Static, closed
from neusight.serving.power import BoardPower

MODEL = "Qwen/Qwen3-8B"


def test_one_client_gets_no_more_of_four_replicas_than_of_one(predictor: Predictor) -> None:
    one, four = (predictor.serving(MODEL, "l40s", closed(1, 256, 32), replicas=n) for n in (1, 4))
    assert four.output_tokens_per_s.mean == pytest.approx(one.output_tokens_per_s.mean, rel=0.01)
    assert four.output_tokens_per_s_per_device == pytest.approx(one.output_tokens_per_s_per_device / 4, rel=0.01)
    assert "a concurrency of 1 does not divide by 4 schedulers" in four.warnings[-1]


def test_a_batch_that_does_not_divide_makes_its_own_tokens_and_no_more(predictor: Predictor) -> None:
    five = predictor.serving(MODEL, "l40s", Static(batch=5, isl=256, osl=32), replicas=2)
    three = predictor.serving(MODEL, "l40s", Static(batch=3, isl=256, osl=32))
    assert five.e2e_s == three.e2e_s
    assert five.output_tokens_per_s.mean == pytest.approx(5 * 32 / three.e2e_s.p99)


@pytest.mark.parametrize(
    ("load", "shares"),
    [
        (Static(batch=6, isl=8, osl=8), 3),
        (Static(batch=2, isl=8, osl=8), 2),
        (Closed(concurrency=7, number=70, isl=8, osl=8), 7 / 3),
        (Open(rate_per_s=1, number=10, isl=8, osl=8), 3),
        (Offline(number=8, isl=8, osl=8), 8 / 3),
    ],
    ids=lambda value: type(value).__name__,
)
def test_shares_make_up_the_load(predictor: Predictor, load: Static, shares: float) -> None:
    assert predictor.deployment(MODEL, "l40s", 16, replicas=3).shares(load) == pytest.approx(shares)


def test_boards_that_wait_draw_what_they_draw_whatever_they_do(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    power = BoardPower(static_share=0.3, dynamic_share=0.5, spread=0.1)
    monkeypatch.setattr("neusight.serving.served.shipped_power", lambda: power)
    idle_w = 0.3 * predictor.deployment(MODEL, "l40s", 16).served.device.tdp_w
    load = Open(rate_per_s=1e-3, number=4, isl=64, osl=8, arrivals="uniform")
    rare = predictor.serving(MODEL, "l40s", load, replicas=2)
    assert rare.power_w == pytest.approx(2 * idle_w, rel=1e-3)
    one, four = (predictor.serving(MODEL, "l40s", closed(1, 64, 32), replicas=n) for n in (1, 4))
    assert four.power_w == pytest.approx(one.power_w + 3 * idle_w, rel=1e-3)
