"""The search finds what brute force finds, on one worker and on several."""

from __future__ import annotations

import numpy as np
import pytest

from neusight.design import evaluate
from neusight.design.bounds import least_share
from neusight.design.search import DesignSearch, Optimum
from neusight.design.space import Axis, DesignSpace, load_space
from neusight.design.workloads import Training
from neusight.requests import Plan
from neusight.workers import hired

WORKLOAD = Training(model="gpt2", global_batch=32, seq_len=512, nodes=1, engine="maxtext", recomputes=("none",))


@pytest.fixture(scope="module")
def space() -> DesignSpace:
    """A corner of PHAZE's, with the baseline in it."""
    axes = {
        "tensor_units": (4, 8, 32),
        "vector_units": (2, 8),
        "width": (64, 128),
        "depth": (128,),
        "buffer_mib": (128,),
    }
    return load_space("phaze").model_copy(
        update={"axes": {name: Axis(values=values) for name, values in axes.items()}, "limits": ()}
    )


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
    steps = np.array([bench.best(designs.device(row)).step_s for row in range(len(designs))])
    assert best.steps_s[0] == pytest.approx(steps.min())
    assert best.least_share == 1.0
    assert (search.known[0].least_s <= steps * (1.0 + 1e-9)).all()


def test_many_workers_find_what_one_finds(space: DesignSpace) -> None:
    (one, _), (two, _) = _found(space, 1), _found(space, 2)
    assert (one.row, one.steps_s, one.simulated) == (two.row, two.steps_s, two.simulated)


def test_a_pipeline_cannot_be_shorter_than_its_kernels() -> None:
    one = Plan(dp=1, pp=1, micro_batch=1, global_batch=8)
    four = Plan(dp=1, pp=4, micro_batch=1, global_batch=8)
    assert least_share(one) == 8.0
    # Eight micro-batches on four equal stages take eleven of their twelfths; unequal stages are never better than this.
    assert 8.0 / 4.0 < least_share(four) < 11.0 / 4.0


def test_more_of_a_never_slower_axis_slows_no_kernel() -> None:
    """What bounds of groups rest on: each group's own designs against the one that stands for them."""
    space = load_space("phaze")
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
