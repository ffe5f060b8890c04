"""Schedules of training steps against the formulas of their papers, and against what no schedule can beat."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from steps import IDS, NAMES, ORDERS, drawn

from neusight.errors import ModelError
from neusight.plans.stages import Stage, waiting
from neusight.requests import Plan
from neusight.schedule.pipeline import Pipeline, order_of
from neusight.schedule.run import simulate, step_s
from neusight.schedule.times import StepTimes
from neusight.schedule.trace import events_of

F, B, W = 1.0, 1.25, 0.75
EQUAL = StepTimes(forward=F, backward=B, weights=W)
SIZES = [(2, 4), (4, 4), (4, 16), (8, 24)]


@pytest.mark.parametrize(("p", "m"), SIZES)
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_equal_stages_idle_for_all_but_one_of_them(schedule: str, p: int, m: int) -> None:
    """Narayanan et al. 2021b, section 2.2.1: the bubble is (p - 1) (f + b) of (m + p - 1) (f + b)."""
    step = simulate(Pipeline(schedule=schedule, pp=p, micro_batches=m), EQUAL)
    assert step.step_s == pytest.approx((m + p - 1) * (F + B + W))
    assert step.bubble_s == pytest.approx(np.full(p, (p - 1) * (F + B + W)))
    assert step.bubble == pytest.approx((p - 1) / (m + p - 1))


@pytest.mark.parametrize(("p", "m"), SIZES)
@pytest.mark.parametrize("v", [2, 3])
def test_chunks_divide_the_bubble(p: int, m: int, v: int) -> None:
    """Section 2.2.2 there: by v, where a chunk takes 1 / v of its rank's time."""
    chunk = StepTimes(forward=F / v, backward=B / v, weights=W / v)
    step = simulate(Pipeline(pp=p, vp=v, micro_batches=m), chunk)
    assert step.bubble_s == pytest.approx(np.full(p, (p - 1) * (F + B + W) / v))


@pytest.mark.parametrize(("p", "m"), SIZES)
@pytest.mark.parametrize("w", [0.0, 0.75, 1.25, 3.0])
def test_weights_fill_the_bubble(p: int, m: int, w: float) -> None:
    """Qi et al. 2024, table 2: (p - 1) (f + b - w) is left, where w is no longer than either of the others."""
    step = simulate(Pipeline(schedule="zero-bubble", pp=p, micro_batches=m), replace(EQUAL, weights=w))
    assert step.step_s == pytest.approx(m * (F + B + w) + (p - 1) * max(F, B, F + B - w))


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 16), (8, 24)])
@pytest.mark.parametrize("w", [0.25, 0.75, 1.25])
def test_both_ways_halve_the_bubble(p: int, m: int, w: float) -> None:
    """DeepSeek-AI 2024, table 2: at most (p / 2 - 1) (F&B + B - 3 W), where F&B and B have W in them; ours begins a
    pass as soon as what it needs is there, not with its pair.
    """
    times = replace(EQUAL, weights=w)
    steps = {s: simulate(Pipeline(schedule=s, pp=p, micro_batches=m), times).step_s for s in ("dualpipe", "1f1b")}
    bubble_s = steps["dualpipe"] - m * (F + B + w)
    assert -1e-9 <= bubble_s <= (p / 2 - 1) * (F + 2 * (B + w) - 3 * w) + 1e-9
    assert bubble_s <= (steps["1f1b"] - m * (F + B + w)) / 2


def test_one_stage_both_ways_is_one_stage() -> None:
    steps = [simulate(Pipeline(schedule=s, micro_batches=6), EQUAL).step_s for s in ("dualpipe", "1f1b")]
    assert steps[0] == pytest.approx(steps[1])


@pytest.mark.parametrize("m", [1, 2, 5, 16])
@pytest.mark.parametrize("seed", range(4))
def test_zero_bubble_is_never_slower_on_equal_stages(m: int, seed: int) -> None:
    f, b, w = np.random.default_rng(seed).uniform(0.1, 2.0, 3)
    times = StepTimes(forward=f, backward=b, weights=w)
    steps = [simulate(Pipeline(schedule=s, pp=4, micro_batches=m), times).step_s for s in ("zero-bubble", "1f1b")]
    assert steps[0] <= steps[1] * (1 + 1e-12)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zero-bubble"])
def test_one_device_adds_up(schedule: str) -> None:
    step = simulate(Pipeline(schedule=schedule, micro_batches=5), replace(EQUAL, optimizer=0.5, send_forward=9.0))
    assert step.step_s == pytest.approx(5 * (F + B + W) + 0.5)
    assert (step.bubble_s, step.exposed_s) == (pytest.approx([0.0]), pytest.approx([0.0]))


def relaxed_s(pipeline: Pipeline, times: StepTimes) -> float:
    """The step without collectives, from ends that are put later until no pass starts too early."""
    p, stages = pipeline.pp, pipeline.stages
    takes = {"forward": times.forward, "backward": times.backward + times.recompute, "weights": times.weights}
    if pipeline.schedule != "zero-bubble":
        takes["backward"] = takes["backward"] + times.weights
    sends = {"forward": (1, times.send_forward), "backward": (-1, times.send_backward), "weights": (0, None)}
    ends: dict[tuple[str, int, int], float] = {}
    link: dict[tuple[str, int, int], float] = {}
    for _ in range(2 * stages * pipeline.micro_batches):
        before = dict(ends)
        for rank in range(p):
            now, free = 0.0, {"forward": 0.0, "backward": 0.0}
            for of, i, chunk in order_of(pipeline.schedule, p, pipeline.vp, pipeline.micro_batches, rank):
                stage = chunk * p + rank
                hop, send_s = sends[of]
                start = max(now, link.get((of, stage - hop, i), 0.0)) if hop else now
                now = ends[of, stage, i] = start + float(np.sum(takes[of][stage]))
                if hop and 0 <= stage + hop < stages:
                    free[of] = link[of, stage, i] = max(free[of], now) + send_s[stage]
        if ends == before:
            break
    return max(ends.values())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("schedule", "p", "v", "m"),
    [("1f1b", 4, 1, 6), ("1f1b", 3, 2, 6), ("gpipe", 3, 2, 4), ("zero-bubble", 4, 1, 7), ("zero-bubble", 2, 3, 4)],
)
def test_uneven_stages_and_sends_end_as_when_relaxed(schedule: str, p: int, v: int, m: int, seed: int) -> None:
    pipeline = Pipeline(schedule=schedule, pp=p, vp=v, micro_batches=m, sends="overlapped")
    times = replace(drawn(pipeline, seed), optimizer=0.0)
    assert simulate(pipeline, times).step_s == pytest.approx(relaxed_s(pipeline, times))


def test_exposed_sends_hold_up_the_sender_and_the_way() -> None:
    times = StepTimes(forward=1.0, backward=2.0, send_forward=0.25, send_backward=0.5)
    alone = simulate(Pipeline(pp=2), times)
    assert alone.step_s == pytest.approx(1.0 + 0.25 + 1.0 + 2.0 + 0.5 + 2.0)
    assert alone.exposed_s == pytest.approx([0.25 + 0.5, 0.25 + 0.5])
    assert alone.bubble_s == pytest.approx([3.0, 3.0])
    many = [simulate(Pipeline(pp=2, micro_batches=8, sends=sends), times).step_s for sends in ("overlapped", "exposed")]
    assert many[0] <= many[1]


@pytest.mark.parametrize("order", ORDERS, ids=IDS)
@pytest.mark.parametrize("seed", range(2))
def test_no_schedule_beats_its_longest_chain_or_its_busiest_rank(order: Pipeline, seed: int) -> None:
    times = drawn(order, seed)
    step = simulate(order, times, contention=0.1)
    once = {name: np.asarray(getattr(times, name)).reshape(order.stages, -1).sum(axis=1) for name in NAMES}
    chain = once["forward"].sum() + once["recompute"].sum() + once["backward"].sum()
    if order.pp > 1:
        chain += once["send_forward"][:-1].sum() + once["send_backward"][1:].sum()
    passes = once["forward"] + once["recompute"] + once["backward"] + once["weights"]
    kernels = order.micro_batches * passes + (0.0 if order.offload else once["optimizer"])
    assert step.busy_s == pytest.approx(kernels.reshape(order.vp, order.pp).sum(axis=0))
    assert step.step_s >= max(chain + once["optimizer"].max(), step.busy_s.max())
    assert step.busy_s + step.exposed_s + step.bubble_s == pytest.approx(np.full(order.pp, step.step_s))
    assert min(step.exposed_s.min(), step.bubble_s.min()) >= -1e-9


@pytest.mark.parametrize("order", ORDERS, ids=IDS)
@pytest.mark.parametrize("seed", range(3))
def test_slower_anything_is_never_faster(order: Pipeline, seed: int) -> None:
    times, more = drawn(order, seed), drawn(order, seed + 100)
    before = step_s(order, times, 0.15)
    for name in NAMES:
        slower = replace(times, **{name: getattr(times, name) + getattr(more, name)})
        assert step_s(order, slower, 0.15) >= before * (1 - 1e-12)
    assert step_s(order, times, 0.3) >= before


@pytest.mark.parametrize("order", ORDERS, ids=IDS)
def test_slopes_are_derivatives_and_make_up_the_step(order: Pipeline) -> None:
    times, tiny = drawn(order, 7), 1e-7
    step = simulate(order, times, contention=0.15)
    assert sum(step.path_s.values()) == pytest.approx(step.step_s)
    for name in NAMES:
        values, slopes = getattr(times, name), getattr(step.slopes, name)
        nudges = tiny * np.eye(values.size).reshape(values.size, *values.shape)
        moved = np.array([step_s(order, replace(times, **{name: values + nudge}), 0.15) for nudge in nudges])
        assert (moved - step.step_s) / tiny == pytest.approx(slopes.ravel(), abs=1e-5)


@pytest.mark.parametrize(("schedule", "p"), [("1f1b", 1), ("1f1b", 4), ("gpipe", 4), ("zero-bubble", 4)])
def test_recomputation_adds_its_forward_pass(schedule: str, p: int) -> None:
    pipeline = Pipeline(schedule=schedule, pp=p, micro_batches=8)
    kept, again = (simulate(pipeline, replace(EQUAL, recompute=seconds)) for seconds in (0.0, F))
    assert again.busy_s - kept.busy_s == pytest.approx(np.full(p, 8 * F))
    waits = p - 1
    assert again.step_s - kept.step_s == pytest.approx((8 + waits) * F)


@pytest.mark.parametrize("order", [*ORDERS, Pipeline(pp=4, vp=3, micro_batches=8)], ids=[*IDS, "1f1b 4x3"])
def test_passes_in_flight_are_those_of_the_simulation(order: Pipeline) -> None:
    events = events_of(simulate(order, drawn(order, 3)))
    ends = "weights" if order.splits_weights else "backward"
    is_pass = events["piece"] <= 0  # Of a pass in pieces, one stands for all: the first forward, the last backward.
    plan = Plan(pp=order.pp, vp=order.vp, global_batch_size=order.micro_batches, schedule=order.schedule)
    for rank in range(order.pp):
        what = events["what"][is_pass & (events["rank"] == rank)]
        alive = np.cumsum(what == "forward") - np.cumsum(what == ends)
        stage = Stage(index=rank, of=order.pp, chunks=((0,),) * order.vp)
        assert alive.max() == sum(waiting(stage, plan))


@pytest.mark.parametrize(
    ("gather", "expected"), [(0.25, 0.25 + 2 * 4 * 1.0), (3.0, 2 * 4 * 3.0 + 1.0)], ids=["compute", "links"]
)
def test_weights_gathered_one_piece_ahead_show_first_or_throughout(gather: float, expected: float) -> None:
    """Four pieces forward and backward of 1 s each: the first gather is seen, or all and the last piece are."""
    times = StepTimes(forward=1.0, backward=1.0, gather_forward=gather, gather_backward=gather)
    assert simulate(Pipeline(pieces=4, gathers="each"), times).step_s == pytest.approx(expected)


def test_no_more_than_one_piece_is_gathered_ahead() -> None:
    """Short pieces behind a long one: what they need comes only when the long one is over."""
    times = StepTimes(forward=np.array([[4.0, 1.0, 1.0]]), backward=0.0, gather_forward=np.array([[1.0, 2.0, 2.0]]))
    assert simulate(Pipeline(pieces=3, gathers="each"), times).step_s == pytest.approx(1.0 + 4.0 + 2.0 + 1.0)


@pytest.mark.parametrize("share", [0.0, 0.2])
def test_gradients_reduced_beside_the_backward_pass_slow_it_and_show_at_its_end(share: float) -> None:
    """Four pieces of 1 s, of which three run beside a reduction of 0.5 s; the last is reduced alone."""
    times = StepTimes(forward=1.0, backward=1.0, reduce=0.5)
    step = simulate(Pipeline(pieces=4, reduces="last"), times, share)
    assert step.step_s == pytest.approx(4.0 + 4.0 + 3 * share * 0.5 + 0.5)
    assert step.exposed_s == pytest.approx([3 * share * 0.5 + 0.5])
    hours = simulate(Pipeline(pieces=4, reduces="last"), replace(times, reduce=50.0), share)
    assert hours.step_s == pytest.approx(4.0 + 1.0 + 4 * 50.0)


def test_gradients_are_reduced_once_unless_each_micro_batch_does() -> None:
    times = StepTimes(forward=1.0, backward=1.0, reduce=5.0)
    once, each = (Pipeline(micro_batches=3, pieces=2, reduces=word) for word in ("last", "each"))
    assert simulate(once, times).step_s == pytest.approx(2 * 4.0 + 2.0 + 1.0 + 2 * 5.0)
    assert simulate(each, times).step_s == pytest.approx(2.0 + 1.0 + 3 * 2 * 5.0)


def test_what_overlaps_nothing_adds_up() -> None:
    times = replace(EQUAL, reduce=0.5, optimizer=0.25, gather_forward=2.0, to_host=4.0, to_device=8.0)
    step = simulate(Pipeline(micro_batches=2, reduces="after", gathers="after"), times)
    assert step.step_s == pytest.approx(2 * (F + B + W) + 0.5 + 0.25 + 2.0)
    assert step.exposed_s == pytest.approx([2.5])
    offloaded = simulate(Pipeline(micro_batches=2, reduces="after", gathers="after", offload=True), times)
    assert offloaded.step_s == pytest.approx(step.step_s + 4.0 + 8.0)
    assert offloaded.exposed_s == pytest.approx([2.5 + 0.25 + 12.0])


def test_a_rank_that_waits_for_the_slowest_before_the_update_idles() -> None:
    """The last of two ranks is done first: copies of its own show, then it waits for the other's."""
    times = StepTimes(forward=1.0, backward=1.0, to_host=0.5, optimizer=2.0, to_device=1.0)
    step = simulate(Pipeline(pp=2, offload=True), times)
    assert step.step_s == pytest.approx(4.0 + 0.5 + 2.0 + 1.0)
    assert step.bubble_s == pytest.approx([2.0, 1.0 + 1.0])
    assert step.exposed_s == pytest.approx([3.5, 3.5])


def test_weights_gathered_as_the_step_begins_hide_behind_earlier_pieces() -> None:
    times = StepTimes(forward=1.0, backward=1.0, gather_forward=0.5)
    assert simulate(Pipeline(pieces=4, gathers="step", micro_batches=2), times).step_s == pytest.approx(0.5 + 2 * 8.0)


def test_a_plan_says_what_overlaps() -> None:
    megatron = Plan(dp=2, pp=4, vp=2, micro_batch_size=1, global_batch_size=16, shard="zero1", overlap_grad_reduce=True)
    expected = Pipeline(pp=4, vp=2, micro_batches=8, sends="overlapped", gathers="after", reduces="last")
    assert Pipeline.of(megatron) == expected
    fsdp = Plan(dp=8, global_batch_size=16, shard="zero3")
    assert Pipeline.of(fsdp, 34) == Pipeline(micro_batches=2, pieces=34, gathers="each", reduces="each")
    alone = Plan(pp=2, global_batch_size=4, shard="zero1", offload="optimizer")
    assert Pipeline.of(alone) == Pipeline(pp=2, micro_batches=4, offload=True)
    assert Pipeline.of(replace(megatron, dp=1, cp=2, shard="none", overlap_grad_reduce=False)).reduces == "after"


def test_a_slow_stage_sets_the_pace() -> None:
    """Three ranks, the middle one twice as long: the others wait for it in every micro-batch."""
    times = StepTimes(forward=np.array([1.0, 2.0, 1.0]), backward=np.array([1.0, 2.0, 1.0]))
    step = simulate(Pipeline(pp=3, micro_batches=20), times)
    assert step.step_s == pytest.approx(1.0 + 20 * 4.0 + 1.0)
    assert np.argmax(step.slopes.forward) == 1
    assert step.bubble_s == pytest.approx([42.0, 2.0, 42.0])


@pytest.mark.parametrize(
    ("asked", "times", "share", "said"),
    [
        ({"pp": 2}, {"forward": np.ones(3)}, 0.0, r"forward of a step has shape \(3,\): give \(2,\)"),
        ({"pieces": 2}, {"forward": np.ones(2)}, 0.0, r"has shape \(2,\): give \(1, 2\)"),
        ({}, {"forward": -1.0}, 0.0, "forward of a step: give finite seconds"),
        ({}, {"forward": float("nan")}, 0.0, "forward of a step: give finite seconds"),
        ({}, {"forward": np.ones((1, 5))}, 0.0, r"shape \(1, 5\): give \(1,\)"),
        ({}, {"forward": 1.0}, 1.0, "contention 1.0: give the share"),
        ({"pp": 4, "vp": 2, "micro_batches": 3}, {"forward": 1.0}, 0.0, "3 micro-batches over 4 pipeline ranks"),
        ({"gathers": "eech"}, {"forward": 1.0}, 0.0, "unknown gathers 'eech'; did you mean each"),
        ({"pieces": 0}, {"forward": 1.0}, 0.0, "pieces 0 of a stage"),
    ],
)
def test_what_cannot_be_run_is_said(asked: dict, times: dict, share: float, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        simulate(Pipeline(**asked), StepTimes(**{"backward": 1.0} | times), share)
