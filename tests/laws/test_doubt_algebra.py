"""Doubts add and subtract by key, and a measured figure tells of others as far as keys are one."""

from __future__ import annotations

from math import log

import numpy as np
import pytest

from neusight.laws.doubts import COMMON, Anchors, by_cause, common, spread, weighed


def test_weighed_cancels_what_a_ratio_shares() -> None:
    before, after = {"device": 0.2, "host": 0.1}, {"device": 0.2, "engine": 0.3}
    assert weighed([(1.0, before), (-1.0, after)]) == pytest.approx({"device": 0.0, "host": 0.1, "engine": -0.3})


def test_spread_of_a_sum_lies_between_independent_and_shared_errors() -> None:
    halves = [(0.5, {"device": 0.2, "a": 0.1}), (0.5, {"device": 0.2, "b": 0.1})]
    assert spread(weighed(halves)) == pytest.approx((0.2**2 + 0.1**2 / 2) ** 0.5)


def test_anchor_without_noise_that_is_the_figure_leaves_no_doubt() -> None:
    doubts = {"device": 0.2, "host": -0.1}
    anchors = Anchors([doubts], np.array([log(1.3)]), np.zeros(1))
    assert anchors.shift(doubts) == pytest.approx(log(1.3))
    assert anchors.spread(doubts) == pytest.approx(0.0, abs=1e-6)


def test_anchor_tells_as_much_as_is_shared() -> None:
    # One shared key of 0.3 beside an own one of 0.4: 0.36 of the squares are shared.
    anchor, other = {"source": 0.3, "own:a": 0.4}, {"source": 0.3, "own:b": 0.4}
    anchors = Anchors([anchor], np.array([0.5]), np.zeros(1))
    assert anchors.shift(other) == pytest.approx(0.36 * 0.5)
    assert anchors.spread(other) == pytest.approx(0.5 * (1 - 0.36**2) ** 0.5)


def test_anchor_without_a_shared_key_tells_nothing() -> None:
    anchors = Anchors([{"device:gh100": 0.3}], np.array([0.5]), np.array([0.02]))
    assert anchors.shift({"device:ga100": 0.3}) == 0.0
    assert anchors.spread({"device:ga100": 0.3}) == 0.3


def test_many_anchors_agree_with_the_joint_normal_distribution() -> None:
    sizes = np.array([[0.3, 0.1, 0.0], [0.2, 0.0, -0.2]])
    keys, noise, off = ("a", "b", "c"), np.array([0.05, 0.1]), np.array([0.2, -0.1])
    question = np.array([0.25, 0.2, 0.1])
    anchors = Anchors([dict(zip(keys, row, strict=True)) for row in sizes], off, noise)
    inverse = np.linalg.inv(sizes @ sizes.T + np.diag(noise**2))
    told = question @ sizes.T @ inverse
    doubts = dict(zip(keys, question, strict=True))
    assert anchors.shift(doubts) == pytest.approx(told @ off)
    assert anchors.spread(doubts) ** 2 == pytest.approx(question @ question - told @ sizes @ question)


@pytest.mark.parametrize("n", [1, 4, 100])
def test_sums_average_own_errors_and_keep_what_is_shared(n: int) -> None:
    """Steps of a run, replicas of a server, ranks of a job: each has one part in n of the sum."""
    parts = [(1.0 / n, {"device:gh100": 0.2, f"own:gh100/{i}": 0.1}) for i in range(n)]
    assert spread(weighed(parts)) == pytest.approx((0.2**2 + 0.1**2 / n) ** 0.5)


def test_common_keeps_the_deviation_and_ties_kinds_of_a_die() -> None:
    first, second = common("device:gh100/gemm", 0.3), common("device:gh100/stream", 0.3)
    assert spread(first) == spread(second) == pytest.approx(0.3)
    shared = sum(size * second.get(key, 0.0) for key, size in first.items()) / 0.3**2
    assert shared == pytest.approx(COMMON)
    assert not set(first) & set(common("device:ga100/gemm", 0.3))


def test_by_cause_groups_keys_and_keeps_the_deviation() -> None:
    doubts = {"device:a/gemm": 0.3, "device:a/stream": -0.4, "own:a/relu": 0.1, "host:a": 0.0}
    assert by_cause(doubts) == pytest.approx({"device": 0.5, "kernel": 0.1})
    assert spread(by_cause(doubts)) == pytest.approx(spread(doubts))
