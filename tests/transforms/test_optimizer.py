"""Optimizers of one table: bytes of their updates and states against what their algorithms say, by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from neusight.errors import ModelError
from neusight.kernels.families import Gemm, Optimizer
from neusight.kernels.optimizers import NEWTON_SCHULZ, algorithms, optimizer_named
from neusight.questions.step import step_question
from neusight.requests import Request
from neusight.steps.questions import checked, workload_of
from neusight.transforms.optimizer import fuse_optimizer
from neusight.workloads import load_workload
from neusight.workloads.inputs import as_inputs
from neusight.workloads.target import TargetDevice
from neusight.workloads.workload import Workload

NARROW, WIDE, CLASSES = 8, 16, 4
MATRICES = (NARROW * WIDE, WIDE * WIDE, WIDE * CLASSES)
PARAMETERS = sum(MATRICES) + WIDE + WIDE + CLASSES
SIZE = 4 * PARAMETERS
"""Of all of them in float32."""


class Small(nn.Module):
    """Three products with biases, the last of which gives logits."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(NARROW, WIDE), nn.Linear(WIDE, WIDE), nn.Linear(WIDE, CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def step(optimizer: str, **words: object) -> Workload:
    question = step_question(
        Small(), "l4", mode="training", batch=2, optimizer=optimizer, inputs=(torch.empty(2, NARROW),), **words
    )
    return workload_of(question.model, question.request, question.setting, TargetDevice(), question.inputs)


def adam() -> Workload:
    request = Request.of(mode="training", batch=2, optimizer="adam")
    return load_workload(Small(), request, inputs=as_inputs((torch.empty(2, NARROW),)))


def held(workload: Workload, kind: str) -> int:
    return sum(tensor.copies * tensor.nbytes for tensor in workload.tensors if tensor.kind == kind)


def update(workload: Workload, kind: type = Optimizer) -> list:
    nodes = (node for node in workload.nodes if node.phase == "optimizer")
    return [kernel for node in nodes for kernel in node.kernels if isinstance(kernel, kind)]


def moved(workload: Workload) -> int:
    return sum(kernel.read_bytes + kernel.write_bytes for kernel in update(workload))


def test_fuse_optimizer_keeps_weights_gradients_and_states_and_drops_results_between_passes() -> None:
    before = adam()
    after = fuse_optimizer(before)
    between = {
        reference.tensor
        for node in before.nodes
        if node.phase == "optimizer"
        for reference in node.writes
        if before.tensors[reference.tensor].kind == "intermediate"
    }
    assert sum(before.tensors[at].copies * before.tensors[at].nbytes for at in between) >= SIZE
    assert {after.tensors[at].nbytes for at in between} == {0}
    assert [held(after, kind) for kind in ("weight", "gradient", "state")] == [SIZE, SIZE, 2 * SIZE]
    (node,) = [node for node in after.nodes if node.phase == "optimizer" and node.kernels]
    assert {after.tensors[r.tensor].kind for r in node.reads} == {"weight", "gradient", "state"}
    assert {after.tensors[w.tensor].kind for w in node.writes} == {"weight", "state"}


@pytest.mark.parametrize(
    ("optimizer", "lists", "moments"),
    [("sgd", 5, 1), ("lion", 5, 1), ("adagrad", 5, 1), ("adam", 7, 2), ("adamw", 7, 2)],
)
def test_a_fused_step_reads_all_and_writes_all_but_gradients(optimizer: str, lists: int, moments: int) -> None:
    """Weights and moments are read and written, gradients read: lion moves 8 bytes a weight less than Adam."""
    fused = step(optimizer, fused_optimizer=True)
    assert moved(fused) == lists * SIZE
    assert held(fused, "state") == moments * SIZE
    assert fused.request.optimizer == optimizer


def test_passes_are_those_of_the_table() -> None:
    for name in ("lion", "adagrad", "adafactor"):
        passes = optimizer_named(name).passes
        expected = sum(lists + (op != "norm") for op, lists in passes)
        assert moved(step(name)) == expected * SIZE
        assert len(update(step(name))) == len(passes)


def test_traced_passes_are_those_that_torch_runs() -> None:
    """Descriptions take the passes that traces have, step counters and rates apart."""
    for name in ("adam", "adamw"):
        traced = [kernel.op.removeprefix("foreach_") for kernel in update(step(name)) if kernel.elements == PARAMETERS]
        assert sorted(traced) == sorted(op for op, _ in optimizer_named(name).passes)


def test_narrow_moments_take_their_bits_and_scales() -> None:
    for name, each in (("adamw8bit", 1 + 4 / 256), ("adamw4bit", 0.5 + 4 / 128)):
        narrow = step(name)
        assert held(narrow, "state") == pytest.approx(2 * each * PARAMETERS, rel=0.05)
        assert moved(narrow) == pytest.approx(3 * SIZE + 4 * each * PARAMETERS, abs=4)


def test_muon_makes_matrices_of_layers_orthogonal_and_steps_the_head_by_adam() -> None:
    muon = step("muon")
    products = update(muon, Gemm)
    assert len(products) == 2 * 3 * NEWTON_SCHULZ
    assert {(k.batch, k.m, k.n, k.k) for k in products} == {
        *((1, NARROW, NARROW, WIDE), (1, NARROW, NARROW, NARROW), (1, NARROW, WIDE, NARROW)),
        (1, WIDE, WIDE, WIDE),
    }
    one_moment = MATRICES[0] + MATRICES[1]
    assert held(muon, "state") == pytest.approx(4 * (2 * PARAMETERS - one_moment), rel=0.02)
    assert update(step("muon", fused_optimizer=True), Gemm) == products


def test_optimizers_without_a_fused_form_are_refused_it() -> None:
    for name in ("adafactor", "bert_adam"):
        with pytest.raises(ModelError, match=f"{name} has no fused form"):
            question = step_question("gpt2", "l4", mode="training", optimizer=name, fused_optimizer=True)
            checked(question.gpu, question.request, question.setting)


def test_every_optimizer_says_how_modules_are_traced_and_where_it_is_from() -> None:
    for name, one in algorithms().items():
        assert one.traced in ("none", "sgd", "adam", "adamw", "bert_adam"), name
        assert one.source or name == "none"
        assert one.passes or one.fused or one.traced == name
