"""Launches that grow along a table are told from work that does."""

import numpy as np
import pytest

from neusight.learn.training_sets import drifting_floor_s


def table(n: int = 3000, growth: float = 4.0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Place, latency, least time and launch: launches grow from 70 us, work lies in random order."""
    rng = np.random.default_rng(0)
    place, least_s = np.arange(n), 10.0 ** rng.uniform(-6, -2.5, n)
    launch_s = 70e-6 * (1 + (growth - 1) * (place / n) ** 2)
    return place, launch_s + least_s * rng.uniform(1.0, 3.0, n), least_s, launch_s


def test_growing_launches_are_found() -> None:
    place, latency_s, least_s, launch_s = table()
    found = drifting_floor_s(place, latency_s, least_s)
    assert found is not None
    assert found == pytest.approx(launch_s, rel=0.05)


def test_rows_may_be_missing_or_in_any_order() -> None:
    place, latency_s, least_s, _ = table()
    rows = np.random.default_rng(1).permutation(len(place))[:2000]
    part = drifting_floor_s(place[rows], latency_s[rows], least_s[rows])
    assert part is not None
    assert np.corrcoef(part, place[rows])[0, 1] > 0.9


def test_constant_launches_sorted_work_and_few_rows_do_not_drift() -> None:
    place, latency_s, least_s, _ = table(growth=1.0)
    assert drifting_floor_s(place, latency_s, least_s) is None
    order = np.argsort(least_s)
    place, latency_s, least_s, _ = table()
    assert drifting_floor_s(place, latency_s[order], least_s[order]) is None
    assert drifting_floor_s(place[:500], latency_s[:500], least_s[:500]) is None
