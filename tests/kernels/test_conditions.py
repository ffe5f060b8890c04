"""Conditions as columns: defaults, rows taken, parts joined."""

import numpy as np
import pytest

from neusight.errors import CoverageError
from neusight.kernels import Conditions
from neusight.kernels.conditions import TIMINGS


def several() -> Conditions:
    return Conditions.of(
        4,
        timing=np.array(TIMINGS),
        launches=np.array([1.0, 6.0, 1.0, 1.0]),
        cycled_bytes=[np.inf, 1e6, 2e6, 3e6],
        variant=["", "fa2", "fa3", "triton"],
    )


def test_a_kernel_asked_for_is_launched_by_itself_on_cold_operands() -> None:
    asked = Conditions.of(3)
    assert len(asked) == 3
    assert asked.timing.tolist() == ["stream"] * 3
    assert asked.launches.tolist() == [1.0] * 3
    assert np.isinf(asked.cycled_bytes).all()
    assert (asked.engine == "torch").all()
    assert (asked.variant == "").all()
    assert asked.random.dtype == bool
    assert asked.random.all()


def test_rows_are_taken_by_number_and_by_mask() -> None:
    for index in (np.array([2, 1]), np.array([False, True, True, False])):
        taken = several().take(index)
        assert sorted(taken.timing) == ["graph", "profiler"]
        assert sorted(taken.cycled_bytes) == [1e6, 2e6]
        assert sorted(taken.variant) == ["fa2", "fa3"]


def test_parts_that_are_joined_are_the_whole() -> None:
    whole = several()
    joined = Conditions.joined([whole.take(np.arange(1)), whole.take(np.arange(1, 4))])
    assert all(np.array_equal(getattr(joined, name), getattr(whole, name)) for name in vars(whole))


def test_an_unknown_timing_is_refused() -> None:
    with pytest.raises(CoverageError, match="unknown timing 'clock': one of stream, graph, profiler, wall"):
        Conditions.of(2, timing="clock")
