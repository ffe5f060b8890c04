"""Tables of embeddings that lie elsewhere, or in another form: bytes and products of each, written out."""

from __future__ import annotations

from typing import Any

import pytest

from neusight.errors import InapplicableError
from neusight.kernels.families import Collective, Gemm
from neusight.requests import Request
from neusight.steps.questions import Setting, workload_of
from neusight.transforms.tables import (
    Lookup,
    as_trains,
    cold_share,
    factors,
    hot_rows,
    lookups,
    on_host,
    train_bytes,
    train_products,
    with_hot_rows,
)
from neusight.workloads.models.recommendation import Dlrm
from neusight.workloads.target import TargetDevice
from neusight.workloads.workload import Tensor, Workload

ROWS, WIDTH, BATCH = (50_000, 1_000, 10), 16, 64
CONFIG = {"embedding_dim": WIDTH, "tables": ROWS, "dense_features": 4, "bottom": [8], "top": [8]}


@pytest.fixture(scope="module")
def step() -> Workload:
    import torch

    tables = len(ROWS)
    inputs = {
        "dense": torch.zeros(BATCH, 4),
        "indices": torch.zeros(tables, BATCH, dtype=torch.int64),
        "offsets": torch.arange(BATCH).repeat(tables, 1),
    }
    request = Request.of(mode="training", batch=BATCH)
    return workload_of(Dlrm(CONFIG).train(), request, Setting(), TargetDevice(), inputs)


def kernels_of(step: Workload, kind: type) -> list[Any]:
    return [kernel for node in step.nodes for kernel in node.kernels if isinstance(kernel, kind)]


def table(rows: int, width: int = WIDTH) -> Lookup:
    sizes = {"nbytes": 4 * rows * width, "touched_bytes": 0, "born": -1, "died": 0}
    return Lookup(table=Tensor(shape=(rows, width), dtype="float32", kind="weight", **sizes), count=BATCH)  # type: ignore[arg-type]


def test_tables_are_found_with_their_lookups(step: Workload) -> None:
    found = [one for _, one in lookups(step).values()]
    assert [(one.rows, one.width, one.count, one.row_bytes) for one in found] == [(n, 16, 64, 64) for n in ROWS]


def test_sums_and_their_gradients_cross_the_link_of_tables_on_the_host(step: Workload) -> None:
    after = on_host(step)
    copies = kernels_of(after, Collective)
    assert [(one.op, one.bytes) for one in copies] == [("host_copy", BATCH * WIDTH * 4)] * 2 * len(ROWS)
    assert after.memory.weights == step.memory.weights - sum(ROWS) * WIDTH * 4


def test_hot_rows_leave_the_cold_ones_to_the_host(step: Workload) -> None:
    after = with_hot_rows(step, hot_bytes=(2_000 + 1_000 + 10) * WIDTH * 4, skew=0.0)
    # Without skew the share of lookups is that of rows: one table of three is larger than its 2,000 hot rows.
    cold = -(-BATCH * 48_000 // 50_000) * WIDTH * 4
    assert [one.bytes for one in kernels_of(after, Collective)] == [cold, cold]
    assert after.memory.weights == step.memory.weights - 48_000 * WIDTH * 4
    steeper = with_hot_rows(step, hot_bytes=3_010 * WIDTH * 4, skew=1.2)
    assert sum(one.bytes for one in kernels_of(steeper, Collective)) < cold


def test_hot_rows_of_tables_that_fit_change_nothing(step: Workload) -> None:
    with pytest.raises(InapplicableError, match="all tables fit"):
        with_hot_rows(step, hot_bytes=10**9)


def test_hot_rows_are_as_many_of_each_table_as_their_bytes_allow() -> None:
    tables = [table(1000), table(100), table(10)]
    assert hot_rows(tables, (300 + 100 + 10) * WIDTH * 4) == 300
    assert hot_rows(tables, 0) == 0


@pytest.mark.parametrize("skew", [0.0, 0.5, 1.0, 1.05, 2.0])
def test_the_share_of_cold_lookups_is_that_of_zipfs_law(skew: float) -> None:
    weights = [i**-skew for i in range(1, 5001)]
    assert cold_share(5000, 200, skew) == pytest.approx(sum(weights[200:]) / sum(weights), rel=0.02, abs=1e-4)
    assert cold_share(5000, 5000, skew) == 0.0
    assert cold_share(5000, 0, skew) == 1.0


def test_gradients_of_stale_rows_are_not_made(step: Workload) -> None:
    after = with_hot_rows(step, hot_bytes=10**9, updated=0.5)
    made = [n.kernels[0] for n in after.nodes if n.kernels and "bag_backward" in n.operator]
    assert [one.elements for one in made] == [BATCH * WIDTH // 2] * len(ROWS)  # type: ignore[union-attr]


def test_a_train_is_three_cores_and_its_rows_are_their_products() -> None:
    lookup, rank = table(1_000_000), 8
    assert factors(WIDTH) == (2, 2, 4)
    assert factors(64) == (4, 4, 4)
    assert train_bytes(lookup, rank) == 100 * (2 * rank + rank * 2 * rank + rank * 4) * 4
    forward = [(one.batch, one.m, one.n, one.k) for one in train_products(lookup, rank, False)]  # type: ignore[union-attr]
    assert forward == [(BATCH, 2, 2 * rank, rank), (BATCH, 4, 4, rank)]
    backward = list(train_products(lookup, rank, True))
    # Each product has two gradients of its own size, and the first is formed again.
    flop = [one.m * one.n * one.k for one in backward]  # type: ignore[union-attr]
    assert sum(flop) == 3 * 2 * 2 * rank * rank + 2 * 4 * 4 * rank


def test_large_tables_alone_become_trains(step: Workload) -> None:
    after = as_trains(step, rank=4, least_rows=10_000)
    assert (
        len([one for one in kernels_of(after, Gemm) if one.op == "bmm" and one.batch == BATCH])
        - len([one for one in kernels_of(step, Gemm) if one.op == "bmm" and one.batch == BATCH])
        == 2 + 5
    )
    assert step.memory.weights - after.memory.weights == 50_000 * WIDTH * 4 - train_bytes(table(50_000), 4)
    with pytest.raises(InapplicableError, match="no table has"):
        as_trains(step, rank=4, least_rows=10**6)


def test_rows_that_are_asked_for_most_are_not_multiplied(step: Workload) -> None:
    after = as_trains(step, rank=4, least_rows=10_000, cached=0.1, skew=1.05)
    lookups_left = -(-BATCH * cold_share(50_000, 5_000, 1.05) // 1)
    products = [one for one in kernels_of(after, Gemm) if one.op == "bmm" and one.batch == lookups_left]
    assert len(products) == 2 + 5
    assert step.memory.weights - after.memory.weights == 45_000 * WIDTH * 4 - train_bytes(table(50_000), 4)
