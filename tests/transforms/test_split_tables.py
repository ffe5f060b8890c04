"""Tables of embeddings that ranks share: bytes, exchanges and updates of a small model, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from neusight import Predictor
from neusight.errors import InapplicableError
from neusight.kernels.families import Collective, Memory, Optimizer
from neusight.plans.traced import TracedProgram
from neusight.questions import Training
from neusight.requests import Request
from neusight.steps.questions import Setting, workload_of
from neusight.transforms.tables import has_tables, split_among
from neusight.workloads.models.recommendation import Dlrm
from neusight.workloads.target import TargetDevice
from neusight.workloads.workload import Workload

ROWS, WIDTH, BATCH, RANKS = (50_000, 1_000, 10), 16, 64, 4
CONFIG = {"embedding_dim": WIDTH, "tables": ROWS, "dense_features": 4, "bottom": [8], "top": [8]}
IN_TABLES = sum(ROWS) * WIDTH
READ = len(ROWS) * BATCH * WIDTH
"""Values of rows that a step reads."""
VECTORS = len(ROWS) + 1
DENSE = (4 * 8 + 8) + (8 * WIDTH + WIDTH) + ((VECTORS * (VECTORS - 1) // 2 + WIDTH) * 8 + 8) + (8 + 1)
"""Weights of both networks."""


def inputs() -> dict[str, torch.Tensor]:
    tables = len(ROWS)
    indices = torch.zeros(tables, BATCH, dtype=torch.int64)
    return {"dense": torch.zeros(BATCH, 4), "indices": indices, "offsets": torch.arange(BATCH).repeat(tables, 1)}


def step(optimizer: str = "sgd") -> Workload:
    request = Request.of(mode="training", batch=BATCH, optimizer=optimizer)
    return workload_of(Dlrm(CONFIG).train(), request, Setting(), TargetDevice(), inputs())


def kernels_of(workload: Workload, kind: type, phase: str) -> list[Any]:
    nodes = (node for node in workload.nodes if node.phase == phase)
    return [kernel for node in nodes for kernel in node.kernels if isinstance(kernel, kind)]


def held(workload: Workload, kind: str) -> int:
    return sum(tensor.copies * tensor.nbytes for tensor in workload.tensors if tensor.kind == kind)


@pytest.mark.parametrize(("optimizer", "moments"), [("sgd", 0), ("adagrad", 1), ("lion", 1)])
def test_split_among_leaves_a_share_of_tables_and_of_their_moments(optimizer: str, moments: int) -> None:
    """SGD of rows has no momentum; that of dense weights has."""
    split = split_among(step(optimizer), RANKS)
    assert held(split, "weight") - 4 * IN_TABLES / RANKS == pytest.approx(4 * DENSE, abs=200)
    assert held(split, "state") == pytest.approx(4 * (DENSE + moments * IN_TABLES / RANKS), rel=0.01)


def test_split_among_exchanges_indices_bags_and_their_gradients() -> None:
    """8 bytes of an index, then a bag of each table and sample there, and its gradient back."""
    split = split_among(step(), RANKS)
    forward, backward = (kernels_of(split, Collective, phase) for phase in ("forward", "backward"))
    assert [(one.op, one.ranks, one.bytes) for one in forward] == [
        ("all_to_all", RANKS, 8 * len(ROWS) * BATCH),
        ("all_to_all", RANKS, 4 * READ),
    ]
    assert [(one.op, one.ranks, one.bytes) for one in backward] == [("all_to_all", RANKS, 4 * READ)]


@pytest.mark.parametrize(("optimizer", "moments"), [("sgd", 0), ("adagrad", 1)])
def test_split_among_steps_rows_that_were_read_and_dense_weights(optimizer: str, moments: int) -> None:
    split = split_among(step(optimizer), RANKS)
    assert {kernel.elements for kernel in kernels_of(split, Optimizer, "optimizer")} == {DENSE}
    (rows,) = kernels_of(split, Memory, "optimizer")
    assert (rows.elements, rows.read_bytes, rows.write_bytes) == (
        READ, 4 * READ * (2 + moments), 4 * READ * (1 + moments),
    )  # fmt: skip


def test_replicas_have_copies_of_dense_weights_alone() -> None:
    whole, split = step(), split_among(step(), RANKS)
    assert sum(TracedProgram.of(whole).parameters) == DENSE + IN_TABLES
    assert sum(TracedProgram.of(split).parameters) == DENSE


def test_split_among_needs_bags_and_an_optimizer_of_all_tensors() -> None:
    assert has_tables(step())
    with pytest.raises(InapplicableError, match="bert_adam steps tensor by tensor"):
        request = Request.of(mode="training", batch=BATCH, optimizer="bert_adam")
        split_among(replace(step(), request=request), RANKS)
    linear = torch.nn.Linear(4, 4)
    plain = workload_of(linear, Request.of(mode="training"), Setting(), TargetDevice(), {"input": torch.zeros(1, 4)})
    assert not has_tables(plain)
    with pytest.raises(InapplicableError, match="no tables of embeddings"):
        split_among(plain, RANKS)


TERABYTE = {"model": "dlrm-terabyte", "gpu": "a100-sxm-40gb", "dp": 8, "engine": "torch-eager", "optimizer": "sgd"}


def test_training_shares_tables_unless_each_replica_has_them(predictor: Predictor) -> None:
    """24 billion weights in float32 are 90 GB, 12 a device; their dense sums took more than a second."""
    asked = {"global_batch_size": 16384, **TERABYTE}
    shared, copied = (
        predictor.ask(Training.named({**asked, "embedding_shard": word})) for word in ("rows and tables", "none")
    )
    default = predictor.ask(Training.named(asked))
    assert default.latency_s == shared.latency_s < copied.latency_s / 50
    assert shared.fit.needed_bytes == pytest.approx(13e9, rel=0.1)
    assert shared.fit.fits and not copied.fit.fits
    assert not [line for line in shared.warnings if "embedding_shard" in line]
    doubled = predictor.ask(Training.named({**asked, "optimizer": "adagrad"}))
    assert doubled.fit.needed_bytes == pytest.approx(2 * shared.fit.needed_bytes, rel=0.1)
    language = {"model": "gpt2", "gpu": "a100-sxm-40gb", "dp": 8, "global_batch_size": 8, "engine": "torch-eager"}
    lines = predictor.ask(Training.named({**language, "embedding_shard": "tables"})).warnings
    assert [line for line in lines if line.startswith("embedding_shard has no effect")]
