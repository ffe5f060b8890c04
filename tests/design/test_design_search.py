"""The search finds what brute force finds, on one worker and on several."""

from __future__ import annotations

import numpy as np
import pytest

from neusight.design import evaluate
from neusight.design.bounds import least_share
from neusight.design.front import chart
from neusight.design.report import answers
from neusight.design.search import DesignSearch, Optimum
from neusight.design.space import DesignSpace, load_space
from neusight.design.workloads import DesignTraining
from neusight.requests import Plan
from neusight.workers import hired

WORKLOAD = DesignTraining(
    model="gpt2", global_batch_size=32, seq_len=512, nodes=1, engine="maxtext", recomputes=("none",)
)


def corner() -> DesignSpace:
    """Of PHAZE's space, with the baseline in it, and without limits."""
    axes = {
        "tensor_units": (4, 8, 32),
        "vector_units": (2, 8),
        "width": (64, 128),
        "depth": (128,),
        "buffer_mib": (128,),
    }
    return load_space("phaze").model_copy(update={"limits": ()}).narrowed(axes)


@pytest.fixture(scope="module")
def space() -> DesignSpace:
    return corner()


def _found(space: DesignSpace, jobs: int) -> tuple[Optimum, DesignSearch]:
    designs = space.admitted
    first = designs.row(**space.baseline)
    usual = designs.device(first)
    evaluate.begin((WORKLOAD,), usual)
    with hired(jobs, "", evaluate.begin, (WORKLOAD,), usual) as workers:
        search = DesignSearch(designs, evaluate.benches(), workers)
        search.refer(first)
        return search.optimum([0]), search


def test_the_search_agrees_with_brute_force_and_bounds_hold(space: DesignSpace) -> None:
    best, search = _found(space, 1)
    (bench,) = evaluate.benches()
    designs = space.admitted
    found = [bench.best(designs.device(row)) for row in range(len(designs))]
    steps = np.array([one.step_s if one else np.inf for one in found])
    assert best.steps_s[0] == pytest.approx(steps.min())
    assert best.least_share == 1.0
    assert (search.known[0].least_s <= steps * (1.0 + 1e-9)).all()


def test_many_workers_find_what_one_finds(space: DesignSpace) -> None:
    (one, _), (two, _) = _found(space, 1), _found(space, 2)
    assert (one.row, one.steps_s, one.simulated) == (two.row, two.steps_s, two.simulated)


def test_a_front_is_the_best_below_each_limit(space: DesignSpace) -> None:
    found = answers(space, (WORKLOAD,), front=3)
    every = answers(space, (WORKLOAD,), front=3, every=True)
    assert [answer.optimum.row for answer in found] == [answer.optimum.row for answer in every]
    assert every[0].optimum.simulated == 0 and len(found) > 1
    gains = np.array([[-a.gain.ratio, a.area_mm2, a.power_w] for a in found])
    for one in range(len(found)):
        assert not any((gains[other] <= gains[one]).all() for other in range(len(found)) if other != one)
    picture = chart(found, "the baseline", 278.8)
    assert len(picture.dots) == len(found) + 1
    assert all(low < dot.y < high for dot in picture.dots if dot.y_interval for low, high in [dot.y_interval])


def test_a_pipeline_cannot_be_shorter_than_its_kernels() -> None:
    one = Plan(dp=1, pp=1, micro_batch_size=1, global_batch_size=8)
    four = Plan(dp=1, pp=4, micro_batch_size=1, global_batch_size=8)
    assert least_share(one) == 8.0
    # Eight micro-batches on four equal stages take eleven of their twelfths; unequal stages are never better than this.
    assert 8.0 / 4.0 < least_share(four) < 11.0 / 4.0


@pytest.mark.parametrize("name", ["phaze", "systolic"])
def test_more_of_a_never_slower_axis_slows_no_kernel(name: str) -> None:
    """What bounds of groups rest on: each group's own designs against the one that stands for them."""
    space = load_space(name)
    designs = space.admitted
    evaluate.begin((WORKLOAD,), designs.device(designs.row(**space.baseline)))
    (bench,) = evaluate.benches()
    some = np.random.default_rng(0).choice(len(designs), 12, replace=False)
    for loose, groups in designs.loosened():
        for design in some:
            least = bench.priced(loose.device(int(groups[design])))[:-3]
            assert (least <= bench.priced(designs.device(int(design)))[:-3] * (1.0 + 1e-9)).all()


def test_groups_of_designs_end_in_the_designs_themselves() -> None:
    designs = load_space("phaze").admitted
    levels = designs.loosened()
    assert [len(loose) for loose, _ in levels] == sorted(len(loose) for loose, _ in levels)
    last, groups = levels[-1]
    assert all((last.axes[name][groups] == designs.axes[name]).all() for name in designs.axes)
