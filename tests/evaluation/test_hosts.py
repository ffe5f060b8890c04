"""What hosts take, fitted to calls that are known to the microsecond."""

import numpy as np
import pytest

from neusight.engines import Host
from neusight.evaluation.hosts import HostFit, TimedCall, fitted, fitted_dispatches

UNKNOWN = Host(call_s=4e-5, operator_s=1e-5, spread=0.7)


def calls(call_s: float, operator_s: float, slow_kernels: float = 1.0) -> list[TimedCall]:
    """Of 1 to 60 operators, whose kernels take from a microsecond to a millisecond."""
    random = np.random.default_rng(1)
    operators, kernels_s = random.integers(1, 60, 80), 10 ** random.uniform(-6, -3, 80)
    real_s = call_s + np.maximum(operators * operator_s, kernels_s * slow_kernels)
    kinds = [{"pointwise": int(count)} for count in operators]
    return [TimedCall(*row) for row in zip(real_s.tolist(), kernels_s.tolist(), kinds, strict=True)]


@pytest.mark.parametrize(("call_s", "operator_s"), [(1.2e-5, 4e-6), (1.2e-4, 2e-5)])
def test_both_times_are_found_roughly_even_where_all_kernels_take_twice_as_long(call_s, operator_s):
    exact = fitted(calls(call_s, operator_s), UNKNOWN)
    assert (exact.call_s, exact.operator_s) == pytest.approx((call_s, operator_s), rel=0.15)
    assert exact.spread == 0.25
    rough = fitted(calls(call_s, operator_s, slow_kernels=2.0), UNKNOWN)
    assert (rough.call_s, rough.operator_s) == pytest.approx((call_s, operator_s), rel=0.6)


def test_no_call_tells_nothing():
    assert fitted([], UNKNOWN) is UNKNOWN


def test_a_half_is_told_by_the_other_and_a_host_by_others_that_launch_alike():
    here, there, graph = ("here", "l4", "eager"), ("there", "l4", "eager"), ("there", "l4", "graph")
    slow, fast = calls(1e-4, 2e-5), calls(1e-5, 4e-6)
    fit = HostFit(calls={(here, 0): slow, (here, 1): fast, (there, 0): fast, (graph, 0): slow})
    assert fit.own(here, 1).call_s == pytest.approx(1e-4, rel=0.1)
    assert fit.own(here, 0).call_s == pytest.approx(1e-5, rel=0.1)
    assert fit.others(here).operator_s == pytest.approx(4e-6, rel=0.1)
    # Nothing of this host itself is seen, even where it launches alike.
    assert fit.others(there).operator_s != pytest.approx(fit.others(here).operator_s, rel=0.1)


def test_what_kinds_of_operators_take_is_found_whatever_their_hosts_take():
    units = {"view": 0.25, "pointwise": 1.0, "reduction": 1.5, "library": 6.0, "further": 0.5, "hand_written": 5.0}
    random = np.random.default_rng(2)

    def host(call_s: float, operator_s: float) -> list[TimedCall]:
        kinds = [dict(zip(units, random.integers(0, 12, len(units)).tolist(), strict=True)) for _ in range(240)]
        return [
            TimedCall(call_s + operator_s * sum(units[kind] * count for kind, count in counts.items()), 1e-7, counts)
            for counts in kinds
        ]

    assert fitted_dispatches([host(2e-5, 5e-6), host(4e-5, 1.5e-5)]) == pytest.approx(units, rel=0.12)
