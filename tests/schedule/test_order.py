"""Orders of pipelines against what their papers say of them: every pass once, warm-up, activations alive at a time."""

import pytest

from neusight.errors import ModelError
from neusight.plans.stages import Stage, waiting
from neusight.requests import Plan
from neusight.schedule.pipeline import Op, order_of

GRID = [(s, p, v, m) for s in ("1f1b", "gpipe", "zero-bubble") for p in (1, 2, 4) for v in (1, 3) for m in (4, 8)]


@pytest.mark.parametrize(("schedule", "p", "v", "m"), GRID)
def test_every_rank_runs_every_pass_once_and_forward_first(schedule: str, p: int, v: int, m: int) -> None:
    passes = ("forward", "backward", "weights")[: 3 if schedule == "zero-bubble" else 2]
    for rank in range(p):
        order = order_of(schedule, p, v, m, rank)
        assert sorted(order) == sorted(Op(of, i, c) for of in passes for i in range(m) for c in range(v))
        at = {op: n for n, op in enumerate(order)}
        for op in order:
            before = [op._replace(of=of) for of in passes[: passes.index(op.of)]]
            assert all(at[earlier] < at[op] for earlier in before)


def test_one_forward_one_backward_of_the_second_of_three_ranks() -> None:
    words = "".join(f"{op.of[0]}{op.micro_batch}" for op in order_of("1f1b", 3, 1, 4, 1))
    assert words == "f0f1b0f2b1f3b2b3"


BOTH_WAYS = [(p, m) for p in (2, 4, 8) for m in (2 * p, 2 * p + 4)]


@pytest.mark.parametrize(("p", "m"), BOTH_WAYS)
def test_every_rank_runs_half_of_the_micro_batches_each_way(p: int, m: int) -> None:
    for rank in range(p):
        order = order_of("dualpipe", p, 1, m, rank)
        passes = ("forward", "backward", "weights")
        assert sorted(order) == sorted(Op(of, i, way) for of in passes for i in range(m // 2) for way in (0, 1))
        at = {op: n for n, op in enumerate(order)}
        for op in order:
            assert op.of == "forward" or at[op._replace(of=passes[passes.index(op.of) - 1])] < at[op]


@pytest.mark.parametrize(("p", "m"), BOTH_WAYS)
def test_both_ways_keep_one_micro_batch_more_than_there_are_ranks(p: int, m: int) -> None:
    """DeepSeek-AI 2024, table 2: activations of PP + 1."""
    plan = Plan(pp=p, micro_batch_size=1, global_batch_size=m, schedule="dualpipe")
    for rank in range(p):
        alive, most = [0, 0], [0, 0]
        for op in order_of("dualpipe", p, 1, m, rank):
            alive[op.chunk] += (op.of == "forward") - (op.of == "weights")
            most = list(alive) if sum(alive) > sum(most) else most
        stage = Stage(index=rank, of=p, chunks=((0,), (0,)), mirrored=True)
        assert tuple(most) == waiting(stage, plan)
        assert sum(most) == p + 1


def test_one_stage_goes_both_ways_as_one() -> None:
    assert order_of("dualpipe", 1, 1, 3, 0) == order_of("zero-bubble", 1, 1, 3, 0)


def test_the_first_of_four_ranks_goes_both_ways_as_published() -> None:
    words = " ".join(f"{op.of[0]}{op.micro_batch}{'ab'[op.chunk]}" for op in order_of("dualpipe", 4, 1, 8, 0))
    assert words == ("f0a f1a f2a f0b b0b w0b f1b f3a b1b w1b f2b b0a w0a b2b w2b f3b b1a w1a b3b w3b b2a w2a b3a w3a")


@pytest.mark.parametrize(("p", "v", "m"), [(3, 1, 8), (4, 2, 8), (4, 1, 6), (4, 1, 9)])
def test_both_ways_need_even_ranks_and_micro_batches_and_enough(p: int, v: int, m: int) -> None:
    with pytest.raises(ModelError, match=f"dualpipe of {p} pipeline ranks, {v} chunks each, and {m} micro-batches"):
        order_of("dualpipe", p, v, m, 0)


def test_interleaved_ranks_take_groups_of_p_micro_batches_through_each_chunk() -> None:
    """First rank of two with two chunks: warm-up of 2 (p - 1) + (v - 1) p = 4."""
    words = " ".join(f"{op.of[0]}{op.micro_batch}{'ab'[op.chunk]}" for op in order_of("1f1b", 2, 2, 4, 0))
    assert words == "f0a f1a f0b f1b f2a b0b f3a b1b f2b b0a f3b b1a b2b b3b b2a b3a"


def test_weights_of_zero_bubble_come_as_many_backward_passes_late_as_the_rank_says() -> None:
    assert "".join(f"{op.of[0]}{op.micro_batch}" for op in order_of("zero-bubble", 2, 1, 3, 0)) == "f0f1b0w0f2b1w1b2w2"
    assert "".join(f"{op.of[0]}{op.micro_batch}" for op in order_of("zero-bubble", 2, 1, 3, 1)) == "f0b0f1b1w0f2b2w1w2"


def alive(schedule: str, p: int, v: int, m: int, rank: int) -> tuple[int, ...]:
    """Passes through each chunk whose activations are alive, at the first moment at which most are: from a forward
    pass to the end of the pass that gives its weights' gradients.
    """
    ends = "weights" if schedule == "zero-bubble" else "backward"
    live, seen = [0] * v, []
    for op in order_of(schedule, p, v, m, rank):
        live[op.chunk] += (op.of == "forward") - (op.of == ends)
        if op.of == "forward":
            seen.append(tuple(live))
    return max(seen, key=sum)


@pytest.mark.parametrize(("schedule", "p", "v", "m"), GRID)
def test_activations_that_memory_counts_are_those_alive_in_the_order_of_passes(
    schedule: str, p: int, v: int, m: int
) -> None:
    plan = Plan(pp=p, vp=v, micro_batch_size=1, global_batch_size=m, schedule=schedule)
    for rank in range(p):
        stage = Stage(index=rank, of=p, chunks=((0,),) * v)
        assert sum(waiting(stage, plan)) == sum(alive(schedule, p, v, m, rank))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("1f1bb", 2, 1, 4, 0), "unknown schedule '1f1bb'; did you mean 1f1b"),
        (("1f1b", 0, 1, 4, 0), "pp 0 of a pipeline"),
        (("1f1b", 4, 1, 4, 4), "rank 4 of a pipeline of 4: give one from 0 to 3"),
        (("1f1b", 4, 2, 6, 0), "6 micro-batches over 4 pipeline ranks of 2 chunks each: .* such as 4, or vp 1"),
    ],
)
def test_what_is_no_pipeline_is_said(asked: tuple[str, int, int, int, int], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        order_of(*asked)
