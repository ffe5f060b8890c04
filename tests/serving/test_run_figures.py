"""What is read from a run, against counting; and how much of it is chance."""

from __future__ import annotations

import numpy as np
import pytest
from stepped_engine import LinearTimes

from neusight.serving import Closed, EngineLimits, Lengths, Offline, Spread, Static, simulate

TIMES = LinearTimes()
ANSWERS = Lengths(mean=50, shape="exponential")


def test_percentiles_are_the_values_that_shares_do_not_exceed() -> None:
    values = np.random.default_rng(0).permutation(np.arange(1.0, 101.0))
    spread = Spread.of(values)
    assert (spread.mean, spread.p50, spread.p90, spread.p95, spread.p99) == (50.5, 50, 90, 95, 99)
    assert Spread.of(np.array([5.0])).p99 == 5
    assert np.isnan(Spread.of(np.array([])).mean)


def test_weights_are_repetitions() -> None:
    values, weights = np.array([3.0, 1.0, 2.0]), np.array([1, 7, 12])
    assert Spread.of(values, weights) == Spread.of(np.repeat(values, weights))
    assert Spread.of(np.array([9.0, *values]), np.array([0, *weights])) == Spread.of(values, weights)


def test_steady_throughput_leaves_the_ramps_out() -> None:
    """Twenty rounds of sixteen equal clients and a last one of a single client, who has the engine for himself."""
    run = simulate(Closed(concurrency=16, num_prompts=321, isl=10, osl=100), EngineLimits(), TIMES)
    round_s = simulate(Static(batch=16, isl=10, osl=100), EngineLimits(), TIMES).makespan_s
    assert run.steady_output_tokens_per_s == pytest.approx(1600 / round_s, rel=0.02)
    assert run.output_tokens_per_s < 0.98 * run.steady_output_tokens_per_s


def test_what_waits_and_what_is_present_are_counts() -> None:
    run = simulate(Offline(num_prompts=10, isl=10, osl=5), EngineLimits(max_num_seqs=4), TIMES)
    assert run.waiting(np.array([-1.0, 0.0, run.finish_s.max()])).tolist() == [0, 6, 0]
    assert run.present(np.array([-1.0, 0.0, run.finish_s.max()])).tolist() == [0, 10, 0]


def test_runs_of_other_seeds_scatter_as_means_do() -> None:
    """The standard deviation of a mean falls with the root of the number: a quarter for sixteen times as many."""

    def scatter(number: int) -> float:
        loads = [Offline(num_prompts=number, isl=10, osl=ANSWERS, seed=seed) for seed in range(30)]
        runs = [simulate(load, EngineLimits(max_num_seqs=1), LinearTimes(cached_s=0)) for load in loads]
        return float(np.std([run.e2e_s.mean for run in runs], ddof=1)) / number

    # Each of the two is known to about an eighth.
    assert scatter(400) / scatter(25) == pytest.approx(0.25, rel=0.5)
