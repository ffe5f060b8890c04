"""Loads that replicas, groups and stages share."""

from itertools import product

import numpy as np
import pytest

from neusight import Predictor
from neusight.devices import load_device
from neusight.estimates.core import core
from neusight.laws.doubts import NORMAL_90
from neusight.laws.fitted import shipped_boards
from neusight.serving import Closed, Offline, Open, Static, closed
from neusight.serving.batching import Chunks
from neusight.serving.passes import PipelinedTimes, in_flight
from neusight.workloads.decoders.shares import Steps

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
        (Closed(concurrency=7, num_prompts=70, isl=8, osl=8), 7 / 3),
        (Open(request_rate=1, num_prompts=10, isl=8, osl=8), 3),
        (Offline(num_prompts=8, isl=8, osl=8), 8 / 3),
    ],
    ids=lambda value: type(value).__name__,
)
def test_shares_make_up_the_load(predictor: Predictor, load: Static, shares: float) -> None:
    assert predictor.deployment(MODEL, "l40s", 16, replicas=3).shares(load) == pytest.approx(shares)


def test_boards_that_wait_draw_what_they_draw_whatever_they_do(predictor: Predictor) -> None:
    idle_w = shipped_boards().physics.gpu.idle_share * predictor.deployment(MODEL, "l40s", 16).replica.device.tdp_w
    load = Open(request_rate=1e-3, num_prompts=4, isl=64, osl=8, arrivals="uniform")
    rare = predictor.serving(MODEL, "l40s", load, replicas=2)
    assert rare.power_w == pytest.approx(2 * idle_w, rel=1e-3)
    one, four = (predictor.serving(MODEL, "l40s", closed(1, 64, 32), replicas=n) for n in (1, 4))
    assert four.power_w == pytest.approx(one.power_w + 3 * idle_w, rel=1e-3)


class Counted:
    """Passes of a second for all layers and a microsecond a token; remembers its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, list[tuple[int, int]], int, float]] = []

    def pass_s(self, new_tokens: int, chunks: Chunks, decodes: int, decode_cached_sum: float) -> float:
        self.calls.append((new_tokens, list(chunks), decodes, decode_cached_sum))
        return 1.0 + 1e-6 * new_tokens


def test_a_round_is_one_pass_of_each_stage() -> None:
    times = Counted()
    rounds = PipelinedTimes(times, 4, 1000)
    assert rounds.pass_s(64, (), 64, 6400.0) == pytest.approx(1 + 16e-6)
    assert rounds.pass_s(600, [(600, 0)], 0, 0.0) == pytest.approx(1 + 600e-6)
    # Full rounds follow one another without a gap; a prompt alone waits until its last part has gone through.
    assert rounds.pass_s(4000, [(500, 0)] * 8, 0, 0.0) == pytest.approx(1 + 1e-3)
    assert rounds.pass_s(3600, [(3600, 0)], 0, 0.0) == pytest.approx((1 + 900e-6) * (1 + 3 / 4))
    assert times.calls[0] == (16, [], 16, 1600.0)
    assert times.calls[2] == (1000, [(500, 0)] * 2, 0, 0.0)
    assert times.calls[3] == (900, [(900, 1800)], 0, 0.0)


def test_parts_of_rounds_stay_within_a_pass() -> None:
    random = np.random.default_rng(0)
    for stages, most in product((2, 3, 5), (7, 64, 1000)):
        times = Counted()
        for decodes in random.integers(0, most, 50).tolist():
            new = random.integers(1, stages * most - decodes + 1)
            chunks = [(part, 0) for part in np.diff(np.linspace(0, new, 4).astype(int)).tolist() if part]
            PipelinedTimes(times, stages, most).pass_s(new + decodes, chunks, decodes, 10.0 * decodes)
        assert all(tokens <= most and chunks for tokens, chunks, _, _ in times.calls)


def test_stages_share_prompts_that_wait_and_do_not_speed_up_one_answer(predictor: Predictor) -> None:
    many, one = Offline(num_prompts=200, isl=2000, osl=2), Static(batch=1, isl=2000, osl=64)
    single, double = (predictor.serving(MODEL, "h100-sxm-80gb", many, pp=n) for n in (1, 2))
    assert double.total_tokens_per_s == pytest.approx(2 * single.total_tokens_per_s, rel=0.1)
    single, double = (predictor.serving(MODEL, "h100-sxm-80gb", one, pp=n) for n in (1, 2))
    assert double.ttft_s.mean >= single.ttft_s.mean
    assert double.tpot_s.mean >= single.tpot_s.mean


def test_rounds_as_columns_are_those_of_the_simulation() -> None:
    steps = Steps.of(prompts=[0, 1, 8], prompt_tokens=[0, 600, 500], decodes=[64, 0, 0], decode_cached=[100, 0, 0])
    one = in_flight(steps, 4, 1000)
    assert one.decodes.tolist() == [16, 0, 0]
    assert one.prompts.tolist() == [0, 1, 2]
    assert one.tokens.tolist() == [16, 600, 1000]


@pytest.mark.parametrize(
    "load", [closed(8, 256, 32), Open(request_rate=2.0, num_prompts=60, isl=256, osl=32)], ids=["closed", "open"]
)
def test_the_core_of_an_answer_is_that_of_every_estimate(predictor: Predictor, load: Closed | Open) -> None:
    """Errors by source make up the interval, terms of memory fill the engine's share, and power lasts for an answer."""
    estimate = predictor.serving(MODEL, "l40s", load)
    data = core(estimate)
    assert data["low_s"] <= data["latency_s"] <= data["high_s"]
    assert np.exp(2 * NORMAL_90 * np.hypot.reduce(list(data["errors"].values()))) == pytest.approx(
        data["high_s"] / data["low_s"]
    )
    assert set(data["memory_terms"]) == {"weights", "kv_cache", "activations", "buffers"}
    assert data["peak_bytes"] == pytest.approx(0.9 * load_device("l40s").usable_bytes, rel=1e-6)
    assert data["limiter"] == "dram"
    assert data["fits"] is True
    assert data["board_energy_j"] is not None
