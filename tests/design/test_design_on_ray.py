"""The search on a cluster of two workers, one of which is killed on the way, ends as it does in one process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from test_design_search import WORKLOAD, corner

from neusight.design import evaluate
from neusight.design.search import DesignSearch, Optimum
from neusight.workers import hired

ray = pytest.importorskip("ray", reason="Ray is an optional extra")


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield
    ray.shutdown()


def _optimum(address: str) -> tuple[Optimum, list[int]]:
    designs = corner().admitted
    first = designs.row(**corner().baseline)
    usual = designs.device(first)
    killed: list[int] = []
    evaluate.begin((WORKLOAD,), usual)
    with hired(2 if address else 1, address, evaluate.begin, (WORKLOAD,), usual) as workers:

        def kill_one(least: float) -> None:
            if address and not killed:
                killed.append(workers[0].run(None, os.getpid))
                os.kill(killed[0], signal.SIGKILL)

        search = DesignSearch(designs, evaluate.benches(), workers, kill_one)
        search.refer(first)
        return search.optimum([0]), killed


def test_a_killed_worker_of_a_cluster_changes_no_answer() -> None:
    (there, killed), (here, _) = _optimum("auto"), _optimum("")
    assert killed and killed[0] != os.getpid()
    assert (there.row, there.steps_s, there.priced, there.simulated) == (
        here.row, here.steps_s, here.priced, here.simulated,
    )  # fmt: skip
    assert there.least_share == here.least_share == 1.0
