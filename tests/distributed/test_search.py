"""The search over plans finds what looking at every plan finds, and its bounds hold."""

from dataclasses import replace
from random import Random

import pytest
from small_runs import small_decoder, small_run, some_gpus

from neusight import Predictor
from neusight.devices import cluster_of, load_cluster
from neusight.distributed.search import Found, bounds_s
from neusight.distributed.sources import DescribedModel
from neusight.distributed.space import Space, plans_in
from neusight.distributed.training_run import TrainingRun, usual_plan, usual_run
from neusight.errors import ModelError
from neusight.requests import Plan
from neusight.workloads.decoders.known import known_decoder

SPACE = Space(longest_micro_batch=2, schedules=("1f1b", "zero-bubble"), recomputes=("none", "full"))
REACH = 1.5


@pytest.fixture(scope="module")
def asked() -> TrainingRun:
    return small_run(some_gpus(nodes=2, per_node=2), tp=1, global_batch_size=8)


@pytest.fixture(scope="module")
def every(predictor: Predictor, asked: TrainingRun) -> list[tuple[float, float, Plan]]:
    """(seconds, bytes, plan) of each plan there is, fastest first."""
    plans = plans_in(SPACE, DescribedModel(asked.decoder), asked.cluster, asked.seq_len, 8)
    answers = [predictor.training(replace(asked, plan=plan)) for plan in plans]
    return sorted(((e.latency_s, e.peak_bytes, e.plan) for e in answers), key=lambda row: row[:2])


@pytest.fixture(scope="module")
def found(predictor: Predictor, asked: TrainingRun) -> Found:
    return predictor.plans(asked, SPACE, 3, reach=REACH)


def test_the_best_are_those_of_brute_force(found: Found, every: list[tuple[float, float, Plan]]) -> None:
    assert [e.latency_s for e in found.best] == pytest.approx([step_s for step_s, _, _ in every[:3]])
    assert found.plans == len(every)
    assert found.simulated < len(every)


def test_many_workers_find_what_one_finds(predictor: Predictor, asked: TrainingRun, found: Found) -> None:
    shared = predictor.shared(jobs=2).plans(asked, SPACE, 3, reach=REACH)
    assert (shared.plans, shared.simulated, shared.too_large) == (found.plans, found.simulated, found.too_large)
    assert [e.plan for e in shared.best] == [e.plan for e in found.best]
    assert [e.latency_s for e in shared.frontier] == pytest.approx([e.latency_s for e in found.frontier], rel=1e-6)


def test_nothing_beats_the_frontier_in_both(found: Found, every: list[tuple[float, float, Plan]]) -> None:
    wanted: list[tuple[float, float]] = []
    for step_s, size, _ in every:
        if step_s <= REACH * every[0][0] and (not wanted or size < wanted[-1][1]):
            wanted.append((step_s, size))
    assert len(wanted) > 1
    got = [(e.latency_s, e.peak_bytes) for e in found.frontier]
    assert got == [pytest.approx(pair) for pair in wanted]


def test_no_step_is_below_its_bound(predictor: Predictor) -> None:
    asked = small_run(some_gpus(nodes=2), tp=1, global_batch_size=32)
    plans = list(plans_in(Space(longest_micro_batch=4), DescribedModel(asked.decoder), asked.cluster, 2048, 32))
    chosen = Random(0).sample(plans, 60)
    assert {plan.schedule for plan in chosen} == {"1f1b", "gpipe", "zero-bubble"}
    assert {plan.vp > 1 for plan in chosen} == {True, False}
    bounds = bounds_s(asked, chosen, predictor.on_cluster(asked.cluster, asked.engine))
    steps = [predictor.training(replace(asked, plan=plan)).latency_s for plan in chosen]
    assert [plan for plan, bound, step in zip(chosen, bounds, steps, strict=True) if bound > step * (1 + 1e-9)] == []
    assert bounds.min() > 0.3 * min(steps)


def test_plans_fill_the_cluster_and_divide_the_model() -> None:
    decoder, cluster = small_decoder(), some_gpus(nodes=2)
    plans = list(plans_in(Space(), DescribedModel(decoder), cluster, 2048, 32))
    assert len(plans) == len(set(plans))
    assert {plan.world for plan in plans} == {cluster.devices}
    assert all(decoder.depth % (plan.pp * plan.vp) == 0 and plan.global_batch_size == 32 for plan in plans)
    assert max(plan.tp for plan in plans) == cluster.per_node


@pytest.mark.parametrize("vp", [6, 12])
def test_the_space_has_what_others_ran(vp: int) -> None:
    """NeMo's recipes for GPT-3 175B on 1,024 H100 (NVIDIA dgxc-benchmarking, v24.11.1 to v25.04)."""
    decoder, cluster = known_decoder("gpt3-175b"), load_cluster("dgx-h100", 128)
    told = {"tp": 4, "pp": 8, "vp": vp, "micro_batch_size": 1, "global_batch_size": 2048, "shard": "zero1"}
    assert usual_plan(told, 1024, "megatron-te") in set(plans_in(Space(), DescribedModel(decoder), cluster, 2048, 2048))


def test_what_fits_nowhere_is_one_line(predictor: Predictor) -> None:
    large = small_run(some_gpus(per_node=2), tp=2, global_batch_size=8)
    wide = replace(large, decoder=replace(large.decoder, vocab=32000 * 1000))
    with pytest.raises(ModelError, match=r"fits on 2 x h100-sxm-80gb under none of .* plans: take more devices"):
        predictor.plans(wide, Space(longest_micro_batch=1))
    with pytest.raises(ModelError, match="no plan shares small and 7 sequences among 1024 devices"):
        predictor.plans(replace(large, cluster=some_gpus(nodes=256), plan=Plan(global_batch_size=7)))


def test_find_plans_lists_plans_that_fit(predictor: Predictor) -> None:
    """What a device must have counts, with context and allocator, not the peak of the tensors."""
    run = usual_run(
        known_decoder("llama-2-7b"), cluster_of("h100-sxm-80gb", 8), {"global_batch_size": 16, "seq_len": 4096}
    )
    found = predictor.plans(run, count=20)
    assert all(step.fits for step in (*found.best, *found.frontier))
