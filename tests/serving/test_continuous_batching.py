"""The simulation against an engine that goes token by token, against closed formulas, and against what must hold."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from stepped_engine import LinearTimes, SteppedEngine

from neusight.errors import LoadError
from neusight.serving import (
    SCHEDULERS,
    SGLANG,
    TRTLLM,
    TRTLLM_MAX_UTILIZATION,
    VLLM,
    Closed,
    EngineLimits,
    Lengths,
    Load,
    Offline,
    Open,
    Scheduler,
    Spread,
    Static,
    Trace,
    simulate,
)
from neusight.serving.run import ServingRun

TIMES = LinearTimes()
UNLIMITED = EngineLimits(max_num_batched_tokens=None)
PROMPTS = Lengths(mean=100, shape="lognormal", cv=1, longest=400)
ANSWERS = Lengths(mean=50, shape="lognormal", cv=1, longest=400)
LOADS: dict[str, Load] = {
    "open": Open(request_rate=20, num_prompts=70, isl=PROMPTS, osl=ANSWERS),
    "rare": Open(request_rate=2, num_prompts=30, isl=PROMPTS, osl=ANSWERS),
    "closed": Closed(concurrency=16, num_prompts=70, isl=PROMPTS, osl=ANSWERS),
    "offline": Offline(num_prompts=60, isl=PROMPTS, osl=ANSWERS),
    "one token": Open(request_rate=60, num_prompts=40, isl=PROMPTS, osl=1),
}
TIGHT = 1700
"""Tokens of a cache that holds some fifteen of these requests, and each of them alone."""


def limits_of(scheduler: Scheduler, cache: int | None, tokens: int | None, prefix: int) -> EngineLimits:
    """Prompts are cut in passes of 64 tokens, and not in those of 900."""
    return EngineLimits(
        max_num_seqs=24,
        max_num_batched_tokens=tokens,
        chunked_prefill=tokens != 900,
        kv_tokens=cache,
        prefix_cached_tokens=prefix,
        scheduler=scheduler,
    )


@pytest.mark.parametrize("scheduler", SCHEDULERS.values(), ids=SCHEDULERS)
@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_events_are_what_going_token_by_token_gives(load: Load, scheduler: Scheduler) -> None:
    for cache, tokens, prefix in product((None, TIGHT), (None, 64, 900), (0, 50)):
        limits = limits_of(scheduler, cache, tokens, prefix)
        run, stepped = simulate(load, limits, TIMES), SteppedEngine(load, limits, TIMES)
        sequences = stepped.serve()
        assert run.first_token_s == pytest.approx([s.times_s[0] for s in sequences], rel=1e-9)
        assert run.finish_s == pytest.approx([s.times_s[-1] for s in sequences], rel=1e-9)
        assert run.preempted.tolist() == [s.losses for s in sequences]
        assert run.passes.count.sum() == len(stepped.passes)
        assert run.passes.kv_tokens.max() == (max(stepped.kv_blocks) + limits.prefix_tokens // 16) * 16
        gaps = Spread.of(np.concatenate([np.diff(s.times_s) for s in sequences]))
        assert run.itl_s.mean == pytest.approx(gaps.mean, rel=1e-9, nan_ok=True)
        assert run.itl_s.p99 == pytest.approx(gaps.p99, rel=0.01, nan_ok=True)


@pytest.mark.parametrize("overlapped", [True, False], ids=["overlapped", "one after the other"])
@pytest.mark.parametrize("scheduler", [VLLM, SGLANG], ids=lambda scheduler: scheduler.name)
@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_requests_are_looked_at_as_going_token_by_token(load: Load, scheduler: Scheduler, overlapped: bool) -> None:
    for cache, interval in product((None, TIGHT), (1, 3, 40)):
        limits = replace(limits_of(scheduler, cache, 64, 0), overlapped=overlapped, recv_interval=interval)
        run, stepped = simulate(load, limits, TIMES), SteppedEngine(load, limits, TIMES)
        sequences = stepped.serve()
        assert run.first_token_s == pytest.approx([s.times_s[0] for s in sequences], rel=1e-9)
        assert run.finish_s == pytest.approx([s.times_s[-1] for s in sequences], rel=1e-9)


def test_an_overlapped_engine_lets_a_request_wait_for_one_pass_more() -> None:
    """Two requests: the second comes in the third pass of the first, whose passes take 10 ms each."""
    times = LinearTimes(floor_s=0.01, token_s=0.0, cached_s=0.0, pair_s=0.0)
    load = Trace(arrival_s=(0.0, 0.025), prompt_tokens=(8, 8), output_tokens=(20, 20))
    firsts_s = {
        (overlapped, interval): float(
            simulate(load, replace(UNLIMITED, overlapped=overlapped, recv_interval=interval), times).first_token_s[1]
        )
        for overlapped in (False, True)
        for interval in (1, 8)
    }
    assert firsts_s == pytest.approx({(False, 1): 0.04, (True, 1): 0.05, (False, 8): 0.1, (True, 8): 0.1})


@pytest.mark.parametrize(
    ("arrival_s", "changes", "first_s"),
    [
        # Looked at after the third pass, it waits for five that generate.
        (0.025, {"batch_wait": 5}, 0.09),
        (0.025, {"batch_wait": 5, "overlapped": True}, 0.1),
        (0.025, {"batch_wait": 5, "max_num_batched_tokens": 9}, 0.04),
        # The first generates for seven passes more, and then there is none to wait beside.
        (0.025, {"batch_wait": 500}, 0.21),
        (1.0, {"batch_wait": 5}, 1.01),
        (1.0, {"overlapped": True}, 1.01),
        # Four groups look together: after the first prompt, and after five passes that generate.
        (0.025, {"batch_wait": 5, "groups": 4}, 0.07),
    ],
)
def test_prompts_wait_for_others_while_some_generate(arrival_s: float, changes: dict[str, int], first_s: float) -> None:
    times = LinearTimes(floor_s=0.01, token_s=0.0, cached_s=0.0, pair_s=0.0)
    load = Trace(arrival_s=(0.0, arrival_s), prompt_tokens=(8, 8), output_tokens=(20, 20))
    limits = replace(UNLIMITED, max_num_seqs=8, **changes)
    assert simulate(load, limits, times).first_token_s[1] == pytest.approx(first_s)


def test_passes_until_all_wait_are_a_sum_of_waits_for_the_next_group() -> None:
    """Of 4 groups with 8 clients each, whose answers take 80 passes, the last has a prompt after 10 (1/1 + … + 1/4)."""
    requests = Closed(concurrency=8, num_prompts=80, isl=8, osl=80).requests()
    for groups, most, passes in ((4, 60, 20), (1, 60, 10), (4, 15, 15)):
        assert EngineLimits(batch_wait=most, groups=groups).passes_until_all_wait(requests) == passes


@pytest.mark.parametrize("scheduler", SCHEDULERS.values(), ids=SCHEDULERS)
@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_no_pass_breaks_a_limit_and_every_token_is_served(load: Load, scheduler: Scheduler) -> None:
    for cache, tokens in product((None, TIGHT), (64, 900)):
        run = simulate(load, limits_of(scheduler, cache, tokens, 0), TIMES)
        passes = run.passes
        assert (passes.prompt_tokens + np.where(passes.prompts, passes.decodes, 0) <= tokens).all()
        assert (passes.running <= 24).all()
        assert (passes.kv_tokens <= (cache or np.inf)).all()
        assert (passes.start_s[1:] >= passes.end_s[:-1]).all()
        assert (passes.decodes * passes.count + passes.ended).sum() == run.output_tokens.sum()
        if not run.preempted.any():
            assert passes.prompt_tokens.sum() == run.prompt_tokens.sum()
            # Who holds a place, over time, is how long requests hold one.
            assert passes.running @ passes.lasts_s == pytest.approx((run.finish_s - run.admitted_s).sum())
        assert (run.arrival_s <= run.admitted_s).all()
        assert (run.admitted_s < run.first_token_s).all()
        assert ((run.first_token_s < run.finish_s) | (run.output_tokens == 1)).all()
        assert sum(run.time_shares.values()) == pytest.approx(1.0)


def test_a_static_batch_is_the_sum_of_its_passes() -> None:
    batch, isl, osl = 8, 300, 120
    run = simulate(Static(batch=batch, isl=isl, osl=osl), UNLIMITED, TIMES)
    prompt_s = TIMES.pass_s(batch * isl, [(isl, 0)] * batch, 0, 0)
    decode_s = sum(TIMES.pass_s(batch, (), batch, batch * (isl + j)) for j in range(osl - 1))
    assert run.ttft_s.mean == pytest.approx(prompt_s, rel=1e-12)
    assert run.makespan_s == pytest.approx(prompt_s + decode_s, rel=1e-12)
    assert run.tpot_s.p50 == pytest.approx(decode_s / (osl - 1), rel=1e-12)
    assert run.output_tokens_per_s == pytest.approx(batch * osl / (prompt_s + decode_s), rel=1e-12)
    assert run.mean_batch == batch
    assert run.time_shares == pytest.approx(
        {"prompt": prompt_s / run.makespan_s, "decode": decode_s / run.makespan_s, "idle": 0}
    )


def test_steps_of_many_passes_follow_times_that_are_not_linear() -> None:
    """Context grows thirtyfold; a law of its square root is met within 0.1 %."""

    class Curved(LinearTimes):
        def pass_s(self, new_tokens: int, chunks: object, decodes: int, decode_cached_sum: float) -> float:
            return 1e-4 * (new_tokens + decode_cached_sum) ** 0.5

    run = simulate(Static(batch=4, isl=100, osl=3000), UNLIMITED, Curved())
    exact_s = 1e-4 * ((400**0.5) + sum((4 + 4 * (100 + j)) ** 0.5 for j in range(2999)))
    assert run.makespan_s == pytest.approx(exact_s, rel=1e-3)


def test_one_client_gets_static_batches_of_one_after_each_other() -> None:
    lengths = list(zip([50, 400, 120], [30, 1, 77], strict=True))
    alone_s = [simulate(Static(batch=1, isl=i, osl=o), UNLIMITED, TIMES).makespan_s for i, o in lengths]
    isl, osl = (list(column) for column in zip(*lengths, strict=True))
    run = simulate(Closed(concurrency=1, num_prompts=3, isl=isl, osl=osl), UNLIMITED, TIMES)
    assert run.finish_s == pytest.approx(np.cumsum(alone_s), rel=1e-12)
    assert run.arrival_s == pytest.approx(np.cumsum([0.0, *alone_s[:-1]]), rel=1e-12)


def test_a_client_that_takes_its_time_sends_later() -> None:
    load = Closed(concurrency=1, num_prompts=20, isl=100, osl=30)
    plain, slow = (simulate(load, UNLIMITED, TIMES, between_s) for between_s in (0.0, 0.5))
    assert slow.e2e_s.mean == pytest.approx(plain.e2e_s.mean)
    assert slow.makespan_s == pytest.approx(plain.makespan_s + 19 * 0.5)
    many = simulate(Closed(concurrency=12, num_prompts=100, isl=PROMPTS, osl=ANSWERS), UNLIMITED, TIMES, 0.05)
    assert (np.diff(many.arrival_s) >= 0).all()
    assert np.sort(many.arrival_s[12:]) == pytest.approx(np.sort(many.finish_s)[:88] + 0.05)


def test_a_closed_load_keeps_as_many_present_as_there_are_clients() -> None:
    run = simulate(Closed(concurrency=12, num_prompts=100, isl=PROMPTS, osl=ANSWERS), UNLIMITED, TIMES)
    inside = np.linspace(0, np.sort(run.finish_s)[-12], 200)[1:-1]
    assert (run.present(inside) == 12).all()


def test_waiting_for_one_server_is_pollaczek_and_khinchine() -> None:
    """M/D/1: one request at a time, all alike, of one token: a wait of rho D / (2 (1 - rho)) on average."""
    service_s, rho = TIMES.pass_s(100, [(100, 0)], 0, 0), 0.6
    load = Open(request_rate=rho / service_s, num_prompts=40_000, isl=100, osl=1)
    run = simulate(load, EngineLimits(max_num_seqs=1), TIMES)
    assert run.queue_s.mean == pytest.approx(rho * service_s / (2 * (1 - rho)), rel=0.05)
    assert 1 - run.time_shares["idle"] == pytest.approx(rho, rel=0.03)
    assert run.diverges == ""


def test_as_many_are_present_as_arrive_while_one_stays() -> None:
    """Little's law, counted at 20,000 moments."""
    run = simulate(Open(request_rate=15, num_prompts=3000, isl=PROMPTS, osl=ANSWERS), UNLIMITED, TIMES)
    moments = np.linspace(run.arrival_s[0], run.finish_s.max(), 20_000)
    assert run.present(moments).mean() == pytest.approx(run.requests_per_s * run.e2e_s.mean, rel=0.01)
    assert run.settled


def served_per_s(run: ServingRun) -> float:
    """Requests whose answers the steady output tokens are."""
    return float(run.steady_output_tokens_per_s / run.output_tokens.mean())


@pytest.mark.parametrize("scheduler", SCHEDULERS.values(), ids=SCHEDULERS)
def test_a_queue_grows_without_limit_where_requests_come_faster_than_they_are_served(scheduler: Scheduler) -> None:
    limits = EngineLimits(max_num_seqs=16, scheduler=scheduler)
    shapes = {"isl": PROMPTS, "osl": ANSWERS}
    capacity = served_per_s(simulate(Offline(num_prompts=1500, **shapes), limits, TIMES))
    stable = simulate(Open(request_rate=0.7 * capacity, num_prompts=1500, **shapes), limits, TIMES)
    assert stable.diverges == ""
    assert stable.settled
    flooded = simulate(Open(request_rate=1.4 * capacity, num_prompts=1500, **shapes), limits, TIMES)
    assert flooded.diverges.startswith("the queue grows without limit: ")
    assert not flooded.settled
    assert served_per_s(flooded) == pytest.approx(capacity, rel=0.05)


def test_a_load_too_short_to_fill_the_engine_has_not_settled() -> None:
    run = simulate(Open(request_rate=100, num_prompts=200, isl=10, osl=5000), EngineLimits(), TIMES)
    assert run.diverges == ""
    assert not run.settled


def test_a_full_cache_preempts_and_everyone_is_served_in_the_end() -> None:
    runs = {s.name: simulate(LOADS["offline"], limits_of(s, TIGHT, 64, 0), TIMES) for s in SCHEDULERS.values()}
    assert runs["vllm"].preempted.sum() > 0
    assert runs["trtllm-max-utilization"].preempted.sum() > 0
    assert runs["trtllm"].preempted.sum() == 0
    # To reserve costs places: fewer run together where nothing is ever lost.
    assert runs["trtllm"].mean_batch < runs["vllm"].mean_batch
    for run in runs.values():
        assert np.isfinite(run.finish_s).all()
        assert 0 < run.kv_use <= 1


def test_cutting_prompts_bounds_the_time_between_tokens() -> None:
    load = Open(request_rate=4, num_prompts=60, isl=[200, 4000], osl=60)
    cut = simulate(load, EngineLimits(max_num_seqs=64, max_num_batched_tokens=256), TIMES)
    whole = simulate(load, EngineLimits(max_num_seqs=64, max_num_batched_tokens=None), TIMES)
    longest_s = cut.passes.intervals()[0].max()
    assert longest_s <= TIMES.pass_s(256, [(256, 4000)], 64, 64 * 4060)
    assert whole.passes.intervals()[0].max() > 3 * longest_s


def test_prompts_apart_hold_up_those_that_generate() -> None:
    """Between two tokens of the first request come whole passes of other prompts; where passes are shared, one."""
    load = Trace(arrival_s=np.array([0.0, 0.1]), prompt_tokens=np.array([10, 3000]), output_tokens=np.array([100, 2]))
    shared, apart = (
        simulate(load, EngineLimits(max_num_batched_tokens=1000, max_num_seqs=8, scheduler=s), TIMES)
        for s in (VLLM, SGLANG)
    )
    chunk_s = [TIMES.pass_s(1000, [(1000, 1000 * i)], 0, 0) for i in range(3)]
    assert apart.passes.intervals()[0].max() > sum(chunk_s)
    assert shared.passes.intervals()[0].max() < 1.5 * max(chunk_s)


def test_a_shared_prefix_is_computed_never_and_stored_once() -> None:
    load = Offline(num_prompts=20, isl=100, osl=10)
    run = simulate(load, EngineLimits(prefix_cached_tokens=70), TIMES)
    # Four whole blocks of the 70 tokens; the rest of the prompt is computed.
    assert run.passes.prompt_tokens.sum() == 20 * (100 - 64)
    assert run.passes.kv_tokens.max() == 64 + 20 * 48
    # Never all of a prompt: the last token is what the first answer follows from.
    assert (
        simulate(load, EngineLimits(prefix_cached_tokens=100, block_tokens=1), TIMES).passes.prompt_tokens.sum() == 20
    )


def test_what_never_fits_is_refused_by_its_number() -> None:
    load = Offline(num_prompts=3, isl=[10, 900, 20], osl=100)
    with pytest.raises(
        LoadError, match=r"request 2 with 900 prompt and 100 output tokens needs 1008 at once.*holds 992"
    ):
        simulate(load, EngineLimits(kv_tokens=1000), TIMES)
    assert simulate(load, EngineLimits(kv_tokens=1008), TIMES).finish_s.min() > 0
    # Who makes use of the shared prefix needs that much less; who does not needs his blocks beside it.
    shared = EngineLimits(kv_tokens=1008, prefix_cached_tokens=64)
    assert simulate(load, shared, TIMES).passes.kv_tokens.max() <= 1008
    with pytest.raises(LoadError, match="needs 1072 at once"):
        simulate(Offline(num_prompts=1, isl=10, osl=990), shared, TIMES)
    with pytest.raises(LoadError, match="needs 1000 at once, and max_model_len is 999"):
        simulate(load, EngineLimits(max_model_len=999), TIMES)
    with pytest.raises(LoadError, match="needs 900 at once, and max_num_batched_tokens is 512"):
        simulate(load, EngineLimits(max_num_batched_tokens=512, chunked_prefill=False), TIMES)
    with pytest.raises(LoadError, match="max_num_batched_tokens 100 is less than max_num_seqs 256"):
        EngineLimits(max_num_batched_tokens=100)
    with pytest.raises(LoadError, match="block_tokens = 0"):
        EngineLimits(block_tokens=0)
    assert EngineLimits(max_num_batched_tokens=100, scheduler=SGLANG).max_num_seqs == 256
    assert TRTLLM.reserved_output > TRTLLM_MAX_UTILIZATION.reserved_output
