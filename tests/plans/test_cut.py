"""Pipeline stages of traced steps, replicas, and what a shared step takes."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from neusight import Predictor
from neusight.errors import ModelError
from neusight.plans import single
from neusight.plans.cut import balanced, pipeline_stages
from neusight.plans.plan import Plan
from neusight.plans.program import replica
from neusight.schedule.overlap import exposed_s
from neusight.workloads import Workload, load_workload

STEP: dict[str, Any] = {"mode": "training", "optimizer": "adam", "seq_len": 64}
LONG = STEP | {"seq_len": 1024}
"""So long that the host has time."""
GPU = "a100-sxm-40gb"


@cache
def workload(name: str = "gpt2") -> Workload:
    return load_workload(name, batch=2, **STEP)


def test_stretches_have_the_least_largest_sum() -> None:
    random = np.random.default_rng(0)
    for parts in (1, 2, 3):
        costs = random.random(7)
        bounds = balanced(costs, parts)
        largest = max(costs[a:b].sum() for a, b in pairwise(bounds))
        cuts = np.array(np.meshgrid(*[np.arange(1, 7)] * (parts - 1))).reshape(parts - 1, -1).T if parts > 1 else [[]]
        tried = [[0, *cut, 7] for cut in cuts if list(cut) == sorted(set(cut))]
        best = min(max(costs[a:b].sum() for a, b in pairwise(t)) for t in tried)
        assert largest == pytest.approx(best)
        assert (np.diff(bounds) > 0).all()


def test_stages_run_every_kernel_once_and_send_what_the_next_reads() -> None:
    whole = workload()
    stages = pipeline_stages(whole, 3, lambda node: float(len(node.kernels)))
    assert passes(whole) == sum((passes(stage) for stage in stages), start=type(passes(whole))())
    hidden = 4 * 2 * 64 * 768
    sent = [exchanged(stage, "send_recv") for stage in stages]
    # The residual stream once a boundary, and its gradient back; the last stage sends nothing on.
    assert sent == [[hidden, hidden], [hidden, hidden], []]
    # Words lie on the first stage and, tied to the head, on the last.
    table = 4 * 50257 * 768
    assert [exchanged(stage, "all_reduce") for stage in stages] == [[table], [], [table]]
    assert sum(stage.parameters for stage in stages) == pytest.approx(whole.parameters + 50257 * 768, abs=3)


def passes(step: Workload) -> Any:
    found: Counter[Any] = Counter()
    for one in step.launches:
        if one.phase != "optimizer" and one.kernel.family != "collective":
            found[one.kernel, one.operator, one.phase] += one.count
    return found


def exchanged(step: Workload, op: str) -> list[int]:
    return [one.kernel.bytes for one in step.launches if one.operator == op for _ in range(one.count)]  # type: ignore[union-attr]


def test_encoder_and_decoder_are_cut_between_blocks() -> None:
    stages = pipeline_stages(workload("t5-small"), 4, lambda node: float(len(node.kernels)))
    blocks = [
        {n.layer.name().split(".layer.")[0] for n in stage.nodes if ".block." in n.layer.name()} for stage in stages
    ]
    assert set.union(*blocks) == {f"{side}.block.{i}" for side in ("encoder", "decoder") for i in range(6)}
    assert sum(map(len, blocks)) == 12


def test_replicas_sum_gradients_once_a_step() -> None:
    plan = Plan(dp=4, micro_batch=2, global_batch=24)
    program, whole = replica(workload(), plan), single(workload())
    (summed,) = [one for one in program.launches if one.kernel.family == "collective"]
    assert (summed.operator, summed.count) == ("all_reduce", 1)
    assert summed.kernel.bytes == 4 * workload().parameters  # type: ignore[union-attr]
    runs = {(one.kernel, one.operator, one.phase): one.count for one in program.launches}
    for one in whole.launches:
        assert runs[one.kernel, one.operator, one.phase] == one.count * (1 if one.phase == "optimizer" else 3)


def test_sharded_states_are_updated_in_shares() -> None:
    plan = Plan(dp=4, micro_batch=2, global_batch=8, shard="zero1")
    program, whole = replica(workload(), plan), single(workload())
    assert [one.operator for one in program.launches if one.kernel.family == "collective"] == [
        "reduce_scatter",
        "all_gather",
    ]
    assert program.memory.optimizer == pytest.approx(whole.memory.optimizer / 4, abs=1)


@pytest.mark.parametrize("name", ["gpt2", "bert-base"])
@pytest.mark.parametrize("launch", ["eager", "compiled"])
def test_a_plan_for_one_device_is_the_step_on_it(predictor: Predictor, name: str, launch: str) -> None:
    plan = Plan(micro_batch=2, global_batch=2)
    assert predictor.estimate(name, GPU, plan=plan, launch=launch, **STEP) == predictor.estimate(
        name, GPU, batch=2, launch=launch, **STEP
    )


PLANS = [
    Plan(dp=4, micro_batch=2, global_batch=8),
    Plan(dp=4, micro_batch=2, global_batch=8, overlap_gradients=True),
    Plan(tp=4, micro_batch=8, global_batch=8),
    Plan(pp=4, micro_batch=2, global_batch=8),
    Plan(dp=2, tp=2, pp=2, micro_batch=2, global_batch=8),
]


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_faster_links_never_slow_a_shared_step(predictor: Predictor, plan: Plan) -> None:
    from neusight.devices import load_device

    device = load_device(GPU)
    times = []
    for factor in (1.0, 1.5, 4.0):
        links = [
            one.model_copy(update={"bandwidth_bytes_per_s": factor * one.bandwidth_bytes_per_s}) for one in device.links
        ]
        times.append(
            predictor.estimate("gpt2", device.model_copy(update={"links": links}), plan=plan, **STEP).latency_s
        )
    assert all(faster <= slower * (1 + 1e-9) for slower, faster in pairwise(times))


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_a_shared_step_is_the_sum_of_its_rows_and_of_all_samples(predictor: Predictor, plan: Plan) -> None:
    found = predictor.estimate("gpt2", GPU, plan=plan, **STEP)
    assert (found.samples, found.batch, found.devices) == (8, 8, plan.world)
    low_s, high_s = found.interval
    assert found.bound_s <= low_s <= found.latency_s <= high_s
    assert found.gpu_hours(8) == pytest.approx(plan.world * found.latency_s / 3600)


def test_one_micro_batch_passes_the_stages_one_after_another(predictor: Predictor) -> None:
    whole = predictor.estimate("gpt2", GPU, batch=4, **LONG)
    piped = predictor.estimate("gpt2", GPU, plan=Plan(pp=4, micro_batch=4, global_batch=4), **LONG)
    # All passes of all stages, and each updates a part; sends are short.
    assert piped.latency_s == pytest.approx(whole.latency_s, rel=0.05)
    assert piped.by_phase["optimizer"] < whole.by_phase["optimizer"] / 2


def test_more_micro_batches_leave_a_smaller_share_to_the_bubble(predictor: Predictor) -> None:
    plans = [Plan(pp=4, micro_batch=1, global_batch=n) for n in (1, 4, 32)]
    steps = [predictor.estimate("gpt2", GPU, plan=plan, **LONG) for plan in plans]
    shares = [step.by_phase["pipeline"] / step.latency_s for step in steps]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.6 > 0.2 > shares[2]


def test_transfers_end_after_what_hides_them_by_what_is_left() -> None:
    # Ready at 1, 2 and 3, each takes 2: they end at 3, 5 and 7.
    ready, transfer = np.array([1.0, 2.0, 3.0]), np.full(3, 2.0)
    assert exposed_s(ready, transfer, 4.0) == 3.0
    assert exposed_s(ready, transfer, 9.0) == 0.0


REFUSED = [
    (Plan(pp=13, global_batch=1), "pp 13 is more than the 12 layers of gpt2: at most 12"),
    (Plan(cp=2, global_batch=1), "cp 2 of a traced model is not estimated"),
    (Plan(dp=2, global_batch=2, shard="zero3"), "shard zero3 of a traced model is not estimated"),
    (Plan(dp=32, global_batch=32), "one node of at most 16"),
]


@pytest.mark.parametrize(("plan", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_is_not_estimated_is_refused(predictor: Predictor, plan: Plan, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        predictor.estimate("gpt2", GPU, plan=plan, **STEP)


def test_a_batch_beside_a_plan_is_refused(predictor: Predictor) -> None:
    with pytest.raises(ModelError, match="batch 3 beside a plan for 4 samples"):
        predictor.estimate("gpt2", GPU, batch=3, plan=Plan(global_batch=4, dp=4), **STEP)
