"""Prompts and answers on devices apart: against the parts alone, what the cache adds, and whole estimates."""

from __future__ import annotations

import numpy as np
import pytest
from stepped_engine import LinearTimes

from neusight import Predictor
from neusight.devices import load_device
from neusight.errors import LoadError
from neusight.serving import (
    Closed,
    EngineLimits,
    Lengths,
    Load,
    Offline,
    Open,
    Routing,
    ServingEstimate,
    Trace,
    simulate,
)
from neusight.serving.disaggregated import ApartRun, CacheTransfer, simulate_apart
from neusight.serving.simulate import Pool

TIMES = LinearTimes()
PROMPTS = Lengths(mean=100, shape="lognormal", cv=1, longest=400)
ANSWERS = Lengths(mean=50, shape="lognormal", cv=1, longest=400)
OPEN = Open(request_rate=40, num_prompts=120, isl=PROMPTS, osl=ANSWERS)
LIMITS = EngineLimits(max_num_seqs=32, max_num_batched_tokens=256, kv_tokens=8000)
NONE = CacheTransfer(of=lambda tokens: np.zeros(len(tokens)))


def pool(n: int = 1, limits: EngineLimits = LIMITS) -> Pool:
    return Pool(limits=limits, times=TIMES, routing=Routing(schedulers=n))


def linear(seconds: float, layers: int = 1) -> CacheTransfer:
    return CacheTransfer(of=lambda tokens: seconds * tokens, layers=layers)


def served(
    load: Open | Closed | Offline, transfer: CacheTransfer = NONE, prefill: int = 1, decode: int = 1
) -> ApartRun:
    return simulate_apart(load, pool(prefill), pool(decode), transfer)


def test_without_a_transfer_both_are_the_parts_alone() -> None:
    """Prompts are a load of one token each; answers one that arrives when they end, with all but a token cached."""
    run = served(OPEN)
    requests = OPEN.requests()
    prompts = Trace(
        arrival_s=requests.arrival_s, prompt_tokens=requests.prompt_tokens, output_tokens=np.ones(120, dtype=int)
    )
    alone = simulate(prompts, LIMITS, TIMES)
    assert run.prefill.finish_s == pytest.approx(alone.finish_s)
    order = np.argsort(alone.finish_s, kind="stable")
    answers = Trace(
        arrival_s=alone.finish_s[order],
        prompt_tokens=requests.prompt_tokens[order],
        output_tokens=requests.output_tokens[order],
    )
    cached = EngineLimits(max_num_seqs=32, max_num_batched_tokens=256, kv_tokens=8000, prefix_hit=1.0, block_tokens=1)
    blocks = simulate_apart(OPEN, pool(), pool(limits=cached), NONE)
    later = simulate(answers, cached, TIMES)
    assert blocks.decode.finish_s[order] == pytest.approx(later.finish_s)
    assert blocks.whole.e2e_s.mean == pytest.approx(np.mean(later.finish_s - requests.arrival_s[order]))


def test_every_token_is_served_by_its_pool() -> None:
    closed = Closed(concurrency=16, num_prompts=80, isl=PROMPTS, osl=ANSWERS)
    for load in (OPEN, closed, Offline(num_prompts=50, isl=64, osl=20)):
        run = served(load, linear(1e-5), prefill=2, decode=3)
        assert not run.prefill.passes.decodes.any()
        assert run.prefill.passes.prompt_tokens.sum() == run.whole.prompt_tokens.sum()
        made = run.decode.passes.decodes @ run.decode.passes.gained + run.decode.passes.ended.sum()
        assert made == run.whole.output_tokens.sum()
        assert run.decode.passes.prompt_tokens.sum() == len(run.whole)
        assert (run.whole.arrival_s <= run.whole.admitted_s).all()
        assert (run.prefill.finish_s < run.decode.first_token_s).all()
        assert run.whole.schedulers == 5
        assert sum(run.whole.time_shares.values()) == pytest.approx(1.0)


def test_clients_wait_for_the_whole_answer() -> None:
    run = served(Closed(concurrency=1, num_prompts=5, isl=100, osl=10), linear(1e-4))
    assert run.whole.arrival_s[1:] == pytest.approx(run.whole.finish_s[:-1])
    assert run.transfer_s == pytest.approx(0.01)
    none = served(Closed(concurrency=1, num_prompts=5, isl=100, osl=10))
    assert run.whole.e2e_s.mean - none.whole.e2e_s.mean == pytest.approx(0.01)
    assert run.whole.tpot_s.mean == pytest.approx(none.whole.tpot_s.mean)


def test_transfers_of_one_engine_follow_one_another() -> None:
    run = served(Offline(num_prompts=4, isl=50, osl=2), linear(0.01))
    # All four prompts end with one pass.
    assert run.transfer_s == pytest.approx([0.5, 1.0, 1.5, 2.0])


def test_layers_that_travel_beside_the_prompt_leave_the_last() -> None:
    one = Closed(concurrency=1, num_prompts=3, isl=100, osl=10)
    prompt_s = TIMES.pass_s(100, [(100, 0)], 0, 0)
    short = served(one, linear(0.5 * prompt_s / 100, layers=10))
    assert short.transfer_s == pytest.approx(0.05 * prompt_s)
    long = served(one, linear(3 * prompt_s / 100, layers=10))
    assert long.transfer_s == pytest.approx(2 * prompt_s)


def test_answers_are_not_held_up_by_prompts() -> None:
    load = Open(request_rate=12, num_prompts=200, isl=1500, osl=60)
    limits = EngineLimits(max_num_seqs=64, max_num_batched_tokens=2048)
    together = simulate(load, limits, TIMES, routing=Routing(schedulers=2, admitted=10**6))
    apart = simulate_apart(load, pool(limits=limits), pool(limits=limits), NONE)
    assert apart.whole.itl_s.p99 < 0.3 * together.itl_s.p99


LOAD = Open(request_rate=4, num_prompts=200, isl=1000, osl=100)
GPU = "h100-sxm-80gb"


def estimate(predictor: Predictor, load: Load = LOAD, **setup: object) -> ServingEstimate:
    return predictor.serving("meta-llama/Llama-3.1-8B", GPU, load, **setup)


def test_an_estimate_has_both_pools(predictor: Predictor) -> None:
    e = estimate(predictor, tp=2, prefill="gpu=l40s,tp=1,replicas=3", replicas=2)
    assert e.prefill_pool == {"gpu": "l40s", "replicas": 3, "devices": 3, "tp": 1, "pp": 1, "ep": 1, "dp": 1}
    assert (e.devices, e.replicas, e.plan["tp"]) == (7, 2, 2)
    assert e.where == "3 x l40s for prompts, 4 x h100-sxm-80gb for answers"
    assert e.ttft_s.low < e.ttft_s.mean < e.ttft_s.high
    assert e.output_tokens_per_s_per_device == pytest.approx(e.output_tokens_per_s.mean / 7)
    l40s, h100 = (load_device(name).price_usd_per_hour for name in ("l40s", GPU))
    assert e.usd_per_hour == (None if l40s is None or h100 is None else pytest.approx((3 * l40s + 4 * h100) / 7))
    assert e.to_dict()["prefill_pool"]["gpu"] == "l40s"


def test_prompts_alone_take_what_they_take_by_themselves(predictor: Predictor) -> None:
    """With a cache that travels in no time, answers begin a pass of one token after their prompts end, once the pass
    that runs then and the one that is prepared already have ended.
    """
    apart = estimate(predictor, prefill="replicas=1", kv_link="none")
    alone = estimate(predictor, Open(request_rate=4, num_prompts=200, isl=1000, osl=1))
    assert apart.transfer_s == 0
    assert alone.ttft_s.mean < apart.ttft_s.mean < alone.ttft_s.mean + 3 * apart.itl_s.mean
    assert apart.itl_s.p99 is not None
    together = estimate(predictor).itl_s.p99
    assert together is not None
    assert apart.itl_s.p99 < together


def test_the_cache_travels_as_fast_as_its_link(predictor: Predictor) -> None:
    by = {
        link: estimate(predictor, prefill="replicas=1", kv_link=link).transfer_s or 0.0
        for link in ("nvlink", "8 x 400Gb/s", "8 x 100Gb/s")
    }
    size = 1000 * 32 * 2 * 8 * 128 * 2
    assert size / 450e9 < by["nvlink"] < by["8 x 400Gb/s"] < by["8 x 100Gb/s"]
    assert size / 50e9 < by["8 x 400Gb/s"] < 2 * size / 50e9
    beside = estimate(predictor, prefill="replicas=1", kv_link="8 x 100Gb/s", kv_overlap=True).transfer_s
    assert beside is not None
    assert beside < by["8 x 100Gb/s"] / 8


@pytest.mark.parametrize(
    ("engine", "version", "overlap", "prompts", "answers"),
    [
        ("tensorrt-llm", "1.2", None, False, True),
        ("tensorrt-llm", "0.11", None, False, False),
        ("sglang", "0.5.9", None, True, True),
        ("sglang", "0.5.9", False, False, False),
        ("vllm", "0.15", None, True, True),
    ],
)
def test_prompts_alone_overlap_where_their_engine_supports_it(
    predictor: Predictor, engine: str, version: str, overlap: bool | None, prompts: bool, answers: bool
) -> None:
    deployment = predictor.deployment(
        "meta-llama/Llama-3.1-8B", GPU, 4096, engine=engine, engine_version=version, overlap=overlap, prefill="tp=2"
    )
    assert deployment.prefill is not None
    assert (deployment.prefill.limits.overlapped, deployment.limits.overlapped) == (prompts, answers)


def test_fewer_ranks_send_longer(predictor: Predictor) -> None:
    def transfer_s(tp: int, prompts: int) -> float:
        deployment = predictor.deployment("meta-llama/Llama-3.1-8B", GPU, 4096, tp=tp, prefill=f"tp={prompts}")
        return float(deployment.transfer.of(np.array([4000]))[0])

    assert transfer_s(4, 1) == pytest.approx(transfer_s(1, 4))
    assert transfer_s(1, 1) == pytest.approx(4 * transfer_s(4, 4), rel=0.05)


@pytest.mark.parametrize(
    "words", ["tp=two", "gpus=h100", "tp=-1", "tp=0", "replicas=0", "replicas=4097", "tp=²", "tp=2,tp=4"]
)
def test_words_that_name_no_pool_are_refused(predictor: Predictor, words: str) -> None:
    with pytest.raises(LoadError, match="prefill"):
        estimate(predictor, prefill=words)
