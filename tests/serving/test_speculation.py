"""Speculative decoding: what is accepted, against the formula; the engine, token by token; limits; what passes cost."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from stepped_engine import LinearTimes, SteppedEngine

from neusight.api import Predictor
from neusight.errors import LoadError
from neusight.requests import Plan
from neusight.serving import (
    SGLANG,
    TRTLLM,
    VLLM,
    Closed,
    EngineLimits,
    Lengths,
    Offline,
    Open,
    Scheduler,
    ServingEstimate,
    Speculation,
    Static,
    simulate,
)
from neusight.workloads.decoders.build import step_program
from neusight.workloads.decoders.known import known_decoder
from neusight.workloads.decoders.quantisation import ServingPrecision
from neusight.workloads.decoders.shares import Steps

TIMES = LinearTimes()
PROMPTS = Lengths(mean=100, shape="lognormal", cv=1, longest=400)
ANSWERS = Lengths(mean=50, shape="lognormal", cv=1, longest=400)
LOADS = {
    "open": Open(request_rate=20, num_prompts=70, isl=PROMPTS, osl=ANSWERS),
    "closed": Closed(concurrency=16, num_prompts=70, isl=PROMPTS, osl=ANSWERS),
    "offline": Offline(num_prompts=60, isl=PROMPTS, osl=ANSWERS),
}


def speculation(tokens: int, *acceptance: float, draft: str = "eagle") -> Speculation:
    return Speculation(draft=draft, tokens=tokens, acceptance=acceptance)


@pytest.mark.parametrize(("tokens", "rate"), list(product((0, 1, 4, 7), (0.0, 0.3, 0.7, 0.95))))
def test_tokens_of_a_pass_are_those_of_the_geometric_series(tokens: int, rate: float) -> None:
    assert speculation(tokens, rate).gain == pytest.approx((1 - rate ** (tokens + 1)) / (1 - rate))


def test_limits_of_acceptance() -> None:
    assert speculation(5, 0.0).gain == 1
    assert speculation(5, 1.0).gain == 6
    assert speculation(0, 0.9).gain == 1
    assert speculation(3, 0.8, 0.5, 0.25).gain == pytest.approx(1 + 0.8 + 0.4 + 0.1)


def test_is_read_from_words() -> None:
    given = Speculation.named("draft=Qwen/Qwen3-8B, tokens=3, acceptance=0.8/0.7/0.5")
    assert given == speculation(3, 0.8, 0.7, 0.5, draft="Qwen/Qwen3-8B")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("draft=eagle,tokens=4", "lacks acceptance: write it like"),
        ("draft=eagle,acceptance=2", "lacks tokens: .* acceptance from 0 to 1"),
        ("draft=eagle,tokens=4,acceptance=0.7,tokens=3", "key twice: write it like"),
        ("draft=eagle,token=4,acceptance=0.7", "unknown key 'token'"),
        ("draft=eagle,tokens=four,acceptance=0.7", "numbers"),
        ("draft=eagle,tokens=4,acceptance=1.7", "probability"),
        ("draft=eagle,tokens=4,acceptance=0.7/0.6", "2 positions for 4"),
        ("draft=eagle,tokens=400,acceptance=0.7", "400 drafted"),
        ("draft=,tokens=4,acceptance=0.7", "without a draft"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, says: str) -> None:
    with pytest.raises(LoadError, match=says):
        Speculation.named(text)


@pytest.mark.parametrize("scheduler", (VLLM, SGLANG, TRTLLM), ids=lambda s: s.name)
@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_events_are_what_going_token_by_token_gives(load: Offline, scheduler: Scheduler) -> None:
    for cache, tokens, rate in product((None, 1700), (None, 96), (0.0, 0.45, 0.8, 1.0)):
        limits = EngineLimits(
            max_num_seqs=24, max_num_batched_tokens=tokens, kv_tokens=cache, scheduler=scheduler,
            speculation=speculation(3, rate),
        )  # fmt: skip
        run, stepped = simulate(load, limits, TIMES), SteppedEngine(load, limits, TIMES)
        sequences = stepped.serve()
        assert run.first_token_s == pytest.approx([s.times_s[0] for s in sequences], rel=1e-9)
        assert run.finish_s == pytest.approx([s.times_s[-1] for s in sequences], rel=1e-9)
        assert run.preempted.tolist() == [s.losses for s in sequences]
        assert run.passes.count.sum() == len(stepped.passes)
        assert run.passes.kv_tokens.max() == max(stepped.kv_blocks) * 16


def test_every_pass_gives_what_was_accepted() -> None:
    limits = EngineLimits(speculation=speculation(4, 1.0))
    run = simulate(Static(batch=2, isl=64, osl=101), limits, TIMES)
    assert run.passes.count.sum() == 1 + 20
    assert simulate(Static(batch=2, isl=64, osl=101), EngineLimits(), TIMES).passes.count.sum() == 1 + 100


def test_a_pass_needs_a_token_of_every_draft() -> None:
    with pytest.raises(LoadError, match="needs 4 tokens of a pass"):
        EngineLimits(max_num_seqs=100, max_num_batched_tokens=399, speculation=speculation(3, 0.5))


@pytest.mark.parametrize("name", ["meta-llama/Llama-3.1-8B", "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-Next-80B-A3B"])
def test_verification_multiplies_work_and_not_what_is_read(name: str) -> None:
    """Products have so many times the rows; attention reads the cache once and has so many times the FLOP."""
    decoder, cached = known_decoder(name), 1000
    steps = (Steps.of(decodes=8, decode_cached=cached, decode_tokens=n) for n in (1, 4))
    one, four = (step_program(decoder, each, ServingPrecision(), Plan()) for each in steps)
    for first, second in zip(one.counted_parts, four.counted_parts, strict=True):
        if first.name == "attention of decodes":
            assert second.batch["heads"] == pytest.approx(4 * first.batch["heads"])
            assert second.batch["kv_heads"] == first.batch["kv_heads"]
            assert (second.batch["q_len"] == 1).all()
            assert second.batch["kv_len"] == first.batch["kv_len"] + 3
        elif first.batch.family == "gemm" and first.runs.all():
            assert second.batch["m"] == 4 * first.batch["m"]


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor.load()


def served(predictor: Predictor, speculate: str, **setup: int) -> ServingEstimate:
    load = Closed(concurrency=4, num_prompts=16, isl=512, osl=128)
    return predictor.serving("meta-llama/Llama-3.1-8B", "h100", load, speculate=speculate, **setup)


def test_nothing_drafted_is_no_speculation(predictor: Predictor) -> None:
    plain, none = (served(predictor, text) for text in ("", "draft=ngram,tokens=0,acceptance=0.9"))
    assert none.e2e_s == plain.e2e_s
    assert none.output_tokens_per_s == plain.output_tokens_per_s


@pytest.mark.parametrize("draft", ["ngram", "eagle", "mtp", "JackFram/llama-68m"])
def test_what_is_never_accepted_costs_no_less(predictor: Predictor, draft: str) -> None:
    plain, refused = served(predictor, ""), served(predictor, f"draft={draft},tokens=3,acceptance=0")
    accepted = served(predictor, f"draft={draft},tokens=3,acceptance=1")
    assert refused.tpot_s.mean >= plain.tpot_s.mean
    assert refused.tpot_s.mean / accepted.tpot_s.mean == pytest.approx(4, rel=0.05)
    assert accepted.tpot_s.low < accepted.tpot_s.mean < accepted.tpot_s.high
    assert np.isclose(sum(refused.decode.parts.values()), 1.0)


def test_a_draft_has_weights_and_a_cache(predictor: Predictor) -> None:
    plain, small, layer = (
        served(predictor, text).memory
        for text in ("", "draft=JackFram/llama-68m,tokens=3,acceptance=0", "draft=eagle,tokens=3,acceptance=0")
    )
    assert small.weights - plain.weights == pytest.approx(2 * known_decoder("JackFram/llama-68m").parameters, rel=0.01)
    assert small.kv_bytes_per_token - plain.kv_bytes_per_token == 2 * 2 * 2 * 768
    layer_parameters = known_decoder("meta-llama/Llama-3.1-8B").layers[0][0].parameters(4096)
    assert layer.weights - plain.weights == pytest.approx(2 * layer_parameters, rel=0.01)
    assert layer.kv_bytes_per_token == pytest.approx(plain.kv_bytes_per_token * 33 / 32)


def test_stages_do_not_draft(predictor: Predictor) -> None:
    with pytest.raises(LoadError, match="pp = 2"):
        served(predictor, "draft=eagle,tokens=3,acceptance=0.5", pp=2)


def test_a_tree_gains_by_its_depth_and_is_verified_whole() -> None:
    tree, row = (Speculation.named(f"draft=eagle,tokens=20,acceptance=0.5{depth}") for depth in (",depth=3", ""))
    assert (tree.levels, tree.queries, tree.is_tree) == (3, 21, True)
    assert tree.gain == 1 + 0.5 + 0.25 + 0.125
    assert not row.is_tree
    with pytest.raises(LoadError, match="depth 21"):
        Speculation.named("draft=eagle,tokens=20,acceptance=0.5,depth=21")
