"""Several engines behind a router: against engines that go token by token, against one engine, and limits."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from time import process_time

import numpy as np
import pytest
from stepped_engine import LinearTimes, Sequence, SteppedEngine

from neusight import Predictor
from neusight.errors import LoadError
from neusight.serving import (
    ROUTERS,
    SGLANG,
    VLLM,
    Closed,
    EngineLimits,
    Lengths,
    Offline,
    Open,
    Routing,
    Scheduler,
    ServingRun,
    Trace,
    read_trace,
    simulate,
)

TIMES = LinearTimes()
PROMPTS = Lengths(mean=100, shape="lognormal", cv=1, longest=400)
ANSWERS = Lengths(mean=50, shape="lognormal", cv=1, longest=400)
OPEN = Open(request_rate=60, num_prompts=150, isl=PROMPTS, osl=ANSWERS)
LIMITS = EngineLimits(max_num_seqs=24, max_num_batched_tokens=256, kv_tokens=3000)


def stepped(load: Open, limits: EngineLimits, policy: str, n: int) -> list[Sequence]:
    """A router that looks at every engine whenever a request arrives."""
    engines = [SteppedEngine(load, limits, TIMES) for _ in range(n)]
    for engine in engines:
        engine.waiting, engine.later, engine.time_s = [], [], 0.0
    given: list[list[Sequence]] = [[] for _ in engines]
    for number, arrival_s in enumerate(load.requests().arrival_s.tolist()):
        for engine in engines:
            while (engine.running or engine.waiting) and engine.time_s < arrival_s:
                engine.step()
        present = [sum(s.made < s.output or s.times_s[-1] > arrival_s for s in each) for each in given]
        turn = [(at - number - 1) % n for at in range(n)]
        to = number % n if policy == "round-robin" else min(range(n), key=lambda at: (present[at], turn[at]))
        request = engines[to].all[number]
        engines[to].waiting.append(request)
        given[to].append(request)
    for engine in engines:
        while engine.running or engine.waiting:
            engine.step()
    return sorted((s for each in given for s in each), key=lambda s: s.number)


@pytest.mark.parametrize("scheduler", (VLLM, SGLANG), ids=lambda s: s.name)
@pytest.mark.parametrize("policy", ["round-robin", "least-loaded"])
def test_events_are_what_going_token_by_token_gives(policy: str, scheduler: Scheduler) -> None:
    for n, cache in product((1, 2, 5), (None, 1700)):
        limits = EngineLimits(max_num_seqs=24, max_num_batched_tokens=256, kv_tokens=cache, scheduler=scheduler)
        run = simulate(OPEN, limits, TIMES, routing=Routing(schedulers=n, policy=policy, admitted=10**6))
        sequences = stepped(OPEN, limits, policy, n)
        assert run.first_token_s == pytest.approx([s.times_s[0] for s in sequences], rel=1e-9)
        assert run.finish_s == pytest.approx([s.times_s[-1] for s in sequences], rel=1e-9)
        assert run.preempted.tolist() == [s.losses for s in sequences]


def test_in_turn_is_what_each_engine_gets_by_itself() -> None:
    requests = OPEN.requests()
    run = simulate(OPEN, LIMITS, TIMES, routing=Routing(schedulers=3, admitted=10**6))
    for at in range(3):
        columns = (requests.arrival_s[at::3], requests.prompt_tokens[at::3], requests.output_tokens[at::3])
        own = simulate(
            Trace(**dict(zip(("arrival_s", "prompt_tokens", "output_tokens"), columns, strict=True))), LIMITS, TIMES
        )
        assert run.finish_s[at::3] == pytest.approx(own.finish_s)


@pytest.mark.parametrize("policy", ROUTERS)
def test_every_token_is_served(policy: str) -> None:
    closed = Closed(concurrency=30, num_prompts=120, isl=PROMPTS, osl=ANSWERS)
    loads = OPEN, closed, Offline(num_prompts=80, isl=64, osl=9)
    for load, admitted in product(loads, (None, 4)):
        routing = Routing(schedulers=4, policy=policy, admitted=admitted)
        run = simulate(load, LIMITS, TIMES, routing=routing)
        assert run.passes.decodes @ run.passes.gained + run.passes.ended.sum() == run.output_tokens.sum()
        assert (run.arrival_s <= run.admitted_s).all()
        assert sum(run.time_shares.values()) == pytest.approx(1.0)
        assert run.itl_s.mean == pytest.approx(gaps(run).mean(), rel=1e-9)
        assert set(run.passes.scheduler) == {0, 1, 2, 3}
        if admitted:
            assert run.passes.running.max() <= admitted


def gaps(run: ServingRun) -> np.ndarray:
    """Times between tokens, of all requests together, from what each took."""
    total_s = np.sum(run.finish_s - run.first_token_s)
    return np.array([total_s / (run.output_tokens - 1).sum()])


def test_the_least_loaded_waits_less() -> None:
    answers = Lengths(mean=60, shape="lognormal", cv=2, longest=900)
    uneven = Open(request_rate=45, num_prompts=400, isl=PROMPTS, osl=answers)
    limits = EngineLimits(max_num_seqs=8)
    routed = {p: simulate(uneven, limits, TIMES, routing=Routing(schedulers=4, policy=p)) for p in ROUTERS[:2]}
    assert routed["least-loaded"].ttft_s.p99 < 0.5 * routed["round-robin"].ttft_s.p99
    # Requests without sessions have nothing to be aware of.
    aware = simulate(uneven, limits, TIMES, routing=Routing(schedulers=4, policy="prefix-aware"))
    assert (aware.finish_s == routed["least-loaded"].finish_s).all()


def test_clients_of_one_engine_are_those_of_the_same_behind_a_router() -> None:
    load = Closed(concurrency=16, num_prompts=90, isl=PROMPTS, osl=ANSWERS)
    alone = simulate(load, LIMITS, TIMES, between_s=0.01)
    routed = simulate(load, LIMITS, TIMES, between_s=0.01, routing=Routing(admitted=10**6))
    assert routed.finish_s == pytest.approx(alone.finish_s, rel=1e-12)


def test_an_unknown_router_is_refused() -> None:
    with pytest.raises(LoadError, match="unknown router 'least-load'; did you mean"):
        Routing(policy="least-load")


def conversations(turns: int, number: int, every_s: float) -> Trace:
    """Conversations whose prompts have all that was before them, and 50 tokens more."""
    at, session = np.divmod(np.arange(turns * number), number)
    return Trace(
        arrival_s=at * every_s + session * every_s / number,
        prompt_tokens=50 + at * 80,
        output_tokens=np.full(turns * number, 30),
        sessions=session,
    )


def test_turns_find_what_was_before_them() -> None:
    load = conversations(turns=4, number=6, every_s=5.0)
    run = simulate(load, EngineLimits(), TIMES)
    # Of the turn before there are its prompt and its answer but for the last token, in whole blocks of 16.
    before = np.where(load.prompt_tokens > 50, load.prompt_tokens - 80 + 29, 0) // 16 * 16
    assert run.cached_tokens.tolist() == before.tolist()
    assert run.passes.prompt_tokens.sum() == (load.prompt_tokens - before).sum()


def test_sessions_that_were_used_least_recently_lose_their_blocks_first() -> None:
    """A session leaves 4 blocks of 16; while another computes its 5, room of 10 holds one of the two before it."""
    load = Trace(
        arrival_s=np.arange(5) * 10.0, prompt_tokens=np.array([50, 50, 66, 130, 130]), output_tokens=np.full(5, 15),
        sessions=np.array([0, 1, 2, 1, 0]),
    )  # fmt: skip
    run = simulate(load, EngineLimits(kv_tokens=160), TIMES)
    # Session 2 takes 5 of 10 blocks: 4 of session 1 stay, and one of session 0, whose last went first.
    assert run.cached_tokens.tolist() == [0, 0, 0, 64, 0]
    first = Trace(**{name: column[[0, 1, 2, 4]] for name, column in vars(load).items()})
    assert simulate(first, EngineLimits(kv_tokens=160), TIMES).cached_tokens.tolist() == [0, 0, 0, 16]


def test_what_the_cache_lost_comes_back_from_the_host() -> None:
    load = Trace(
        arrival_s=np.arange(3) * 10.0, prompt_tokens=np.array([100, 150, 200]), output_tokens=np.full(3, 13),
        sessions=np.array([0, 1, 0]),
    )  # fmt: skip
    run = simulate(load, EngineLimits(kv_tokens=256, host_tokens=320, restore_s=1e-2), TIMES)
    none = simulate(load, EngineLimits(kv_tokens=256), TIMES)
    kept = none.cached_tokens[2]
    assert 0 <= kept < 112
    assert run.cached_tokens[2] == 112
    # The pass lasts until all is back.
    restored_s = 1e-2 * (112 - kept)
    assert run.first_token_s[2] - run.arrival_s[2] == pytest.approx(restored_s)
    small = simulate(load, EngineLimits(kv_tokens=256, host_tokens=200, restore_s=1e-2), TIMES)
    assert small.cached_tokens[2] == kept


def test_a_router_that_knows_prefixes_finds_more_of_them() -> None:
    load = conversations(turns=6, number=7, every_s=2.0)
    found = {
        policy: simulate(load, EngineLimits(), TIMES, routing=Routing(schedulers=3, policy=policy)).cached_tokens.sum()
        for policy in ("least-loaded", "prefix-aware")
    }
    alone = simulate(load, EngineLimits(), TIMES).cached_tokens.sum()
    assert found["least-loaded"] < found["prefix-aware"] == alone


def test_a_rate_of_hits_leaves_the_rest_to_compute() -> None:
    load = Offline(num_prompts=20, isl=400, osl=5)
    half = simulate(load, EngineLimits(prefix_hit=0.5), TIMES)
    assert (half.cached_tokens == 192).all()
    assert half.passes.prompt_tokens.sum() == 20 * 208
    all_but_one = simulate(load, EngineLimits(prefix_hit=1.0, block_tokens=1), TIMES)
    assert all_but_one.passes.prompt_tokens.sum() == 20
    none = simulate(load, EngineLimits(prefix_hit=0.0), TIMES)
    assert (none.finish_s == simulate(load, EngineLimits(), TIMES).finish_s).all()


def test_a_cluster_is_simulated_within_its_time() -> None:
    load = Open(request_rate=400, num_prompts=10_000, isl=Lengths(mean=500), osl=Lengths(mean=200))
    started = process_time()
    simulate(load, EngineLimits(kv_tokens=400_000), TIMES, routing=Routing(schedulers=8, policy="least-loaded"))
    assert process_time() - started < 5


def test_what_one_of_many_gets_in_turn_is_a_share_of_its_own(predictor: Predictor) -> None:
    """A gamma's arrivals stand for every fourth of a Poisson process, which a simulation of all four draws."""
    load = Open(request_rate=26, num_prompts=4000, isl=Lengths(mean=300), osl=Lengths(mean=100))
    setup = {"replicas": 4, "dtype": "bf16"}
    share = predictor.serving("Qwen/Qwen3-8B", "l40s", load, **setup)
    whole = predictor.serving("Qwen/Qwen3-8B", "l40s", load, admitted=10**5, **setup)
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        assert getattr(share, name).mean == pytest.approx(getattr(whole, name).mean, rel=0.03)
    assert share.output_tokens_per_s.mean == pytest.approx(whole.output_tokens_per_s.mean, rel=0.03)
    assert share.power_w == pytest.approx(whole.power_w, rel=0.03)
    random = predictor.serving("Qwen/Qwen3-8B", "l40s", replace(load, request_rate=6.5, num_prompts=1000))
    assert share.ttft_s.p90 < random.ttft_s.p90


def test_a_trace_names_its_sessions(tmp_path: Path, predictor: Predictor) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(
        "timestamp,isl,osl,Conversation ID\n0,1000,20,a\n1,1000,20,\n2,1040,20,a\n3,1040,20,b\n", encoding="utf-8"
    )
    trace = read_trace(file)
    assert trace.sessions is not None
    assert trace.sessions.tolist() == [0, -1, 0, 1]
    found = predictor.serving("Qwen/Qwen3-8B", "l40s", trace)
    assert found.prefix_hit == pytest.approx(1008 / 4080)


def test_the_host_brings_back_what_its_link_carries(predictor: Predictor) -> None:
    deployment = predictor.deployment("Qwen/Qwen3-8B", "l40s", 4096, host_cache=64e9, tp=2)
    per_token = deployment.memory.kv_bytes_per_token
    assert deployment.limits.host_tokens == int(64e9 / (2 * per_token))
    # PCIe 4.0 x16 is 31.5 GB/s, of which a part is headers.
    assert per_token / 31.6e9 < deployment.limits.restore_s < per_token / 18e9
