"""What hosts take, fitted to calls that are known to the microsecond."""

import numpy as np
import pandas as pd
import pytest

from neusight.engines import Host
from neusight.learn.evidence import FitOptions
from neusight.learn.hosts import HOSTS, HostGroup, TimedCall, fitted, fitted_dispatches, others

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


def test_others_takes_hosts_that_launch_alike():
    here, there, graph = (
        HostGroup(host, "l4", "", how) for host, how in (("a", "eager"), ("b", "eager"), ("b", "graph"))
    )
    groups = {here: calls(1e-4, 2e-5), there: calls(1e-5, 4e-6), graph: calls(1e-3, 4e-5)}
    assert others(groups, here).operator_s == pytest.approx(4e-6, rel=0.1)
    assert others(groups, there).operator_s == pytest.approx(2e-5, rel=0.1)
    assert others({here: groups[here]}, here) == UNKNOWN


def test_fit_hosts_finds_times_of_one_host(tmp_path):
    for name in ("kernels", "programs"):
        (tmp_path / name).mkdir()
    row = {"model": "gpt2", "gpu": "l4", "synchronized": True, "host": "here", "measured_on": "today", "seq_len": 64}
    rows = [row | {"batch": batch, "latency_ms": 25.0, "suspect": None} for batch in (1, 2, 4)]
    rows += [row | {"latency_ms": 1.0, "suspect": "it varies"}, row | {"model": "no-such-model", "latency_ms": 1.0}]
    pd.DataFrame(rows).to_parquet(tmp_path / "programs" / "lab.parquet")
    found = HOSTS.fitted(FitOptions(data=tmp_path))
    (host,) = found.errors
    assert (host["host"], host["gpu"], host["launch"], host["rows"]) == ("here", "l4", "eager", 3)
    assert host["mean"] < 30 and found.values["eager.operator_s"] == pytest.approx(1e-6 * host["operator_us"], rel=1e-3)
    assert found.values["dispatch.pointwise"] == 1.0
    assert sum(found.skipped.values()) == 1


def test_what_kinds_of_operators_take_is_found_whatever_their_hosts_take():
    units = {"view": 0.25, "pointwise": 1.0, "reduction": 1.5, "library": 6.0, "further": 0.5, "hand_written": 5.0}
    random = np.random.default_rng(2)

    def host(call_s: float, operator_s: float) -> list[TimedCall]:
        kinds = [dict(zip(units, random.integers(0, 12, len(units)).tolist(), strict=True)) for _ in range(240)]
        return [
            TimedCall(call_s + operator_s * sum(units[kind] * count for kind, count in counts.items()), 1e-7, counts)
            for counts in kinds
        ]

    found = fitted_dispatches([host(2e-5, 5e-6), host(4e-5, 1.5e-5)])
    assert {kind: found[kind] for kind in units} == pytest.approx(units, rel=0.12)
