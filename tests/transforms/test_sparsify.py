"""Zeros of a profile find the operands of a workload's products, layer by layer, and change nothing else."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from neusight import Predictor
from neusight.errors import DataError
from neusight.kernels import Conv2d, Gemm, Kernel
from neusight.kernels.sparsity import LayerSparsity, OperandSparsity
from neusight.plans import single
from neusight.requests import Plan, Request
from neusight.transforms.sparsity import DENSE, SparsityProfile, mapped_layers, sparsify
from neusight.workloads import Node, Workload, load_workload

LINEAR = Gemm(m=256, n=512, k=1024)
CONV = Conv2d(batch=2, in_channels=64, out_channels=64, height=14, width=14, kernel_height=3, kernel_width=3, padding=1)


def layer(activations: float = 0.0, gradients: float = 0.0, weights: float = 0.0) -> LayerSparsity:
    return LayerSparsity(*map(OperandSparsity, (activations, gradients, weights)))


def step(*kernels: tuple[Kernel, Any]) -> Workload:
    nodes = tuple(Node(id=i, operator="op", phase=phase, kernels=(k,)) for i, (k, phase) in enumerate(kernels))
    return Workload(request=Request.of("mine", mode="training"), nodes=nodes, tensors=(), parameters=1)


@cache
def bert() -> Workload:
    return load_workload("bert-base", mode="training", batch=1, seq_len=32)


def test_each_direction_multiplies_its_own_two_tensors() -> None:
    cases = [
        (LINEAR, "forward", (0.1, 0.3)),
        (replace(LINEAR, layout="nn"), "forward", (0.1, 0.3)),
        (replace(LINEAR, layout="nn"), "backward", (0.2, 0.3)),
        (replace(LINEAR, layout="nt"), "backward", (0.2, 0.1)),
        (CONV, "forward", (0.1, 0.3)),
        (replace(CONV, op="input_grad"), "backward", (0.2, 0.3)),
        (replace(CONV, op="weight_grad"), "backward", (0.2, 0.1)),
    ]
    profile = SparsityProfile(model="", default=layer(activations=0.1, gradients=0.2, weights=0.3))
    for kernel, phase, shares in cases:
        program = single(sparsify(step((kernel, phase)), profile))
        ((batch, _),) = program.batches
        found = batch["first_sparsity"][0], batch["second_sparsity"][0]
        assert found == shares, (kernel, phase)
    # A batched product multiplies no tensor of a layer, and is told nothing of zeros.
    ((batch, _),) = single(sparsify(step((replace(LINEAR, op="bmm", batch=4), "forward")), profile)).batches
    assert "first_sparsity" not in batch.columns


def test_zeros_arrive_on_every_product_of_their_layer_and_nowhere_else() -> None:
    names = mapped_layers(bert())
    profile = SparsityProfile(model="x", layers={name: layer(i / 100, 0.5) for i, name in enumerate(names)})
    told = sparsify(bert(), profile)
    for node, copy in told.expanded():
        mapped = [k.family in ("gemm", "conv2d") and k.op != "bmm" for k in node.kernels]
        each = [zeros for _, zeros in node.sparse_kernels]
        assert [zeros is not None for zeros in each] == mapped
        expected = profile.of(node.layer.name(copy))
        for zeros in filter(None, each):
            assert zeros[0] == (expected.activations if node.phase == "forward" else expected.gradients)


def test_layers_told_apart_are_stored_one_by_one_and_others_stay() -> None:
    deep = next(n for n in bert().nodes if n.copies > 3 and any(k.family == "gemm" for k in n.kernels))
    names = mapped_layers(bert())
    apart = sparsify(bert(), SparsityProfile(model="x", layers=dict.fromkeys(names, layer(0.5))))
    alike = sparsify(bert(), SparsityProfile.uniform("activations=0.5"))
    assert sum(n.layer.pattern == deep.layer.pattern and n.operator == deep.operator and n.phase == deep.phase
               for n in apart.nodes) >= deep.copies  # fmt: skip
    assert len(alike.nodes) == len(bert().nodes)
    for told in (apart, alike):
        steps, before = list(told.expanded()), list(bert().expanded())
        assert [(n.operator, n.kernels, n.layer.name(c)) for n, c in steps] == [
            (n.operator, n.kernels, n.layer.name(c)) for n, c in before
        ]
        assert (told.memory, told.traffic_bytes, told.length) == (
            bert().memory, bert().traffic_bytes, bert().length)  # fmt: skip


def figures(predictor: Predictor, sparsity: Any, model: str = "alexnet", **options: Any) -> tuple[float, ...]:
    found = predictor.estimate(model, "tensordash", sparsity=sparsity, **options)
    return (found.latency_s, *found.interval, found.bound_s, *found.energy_j.values())


def test_a_uniform_profile_says_the_same_with_and_without_layers(predictor: Predictor) -> None:
    options: dict[str, Any] = {"mode": "training", "batch": 2}
    names = mapped_layers(load_workload("alexnet", **options))
    uniform = SparsityProfile.uniform("activations=0.6,gradients=0.5")
    by_layer = SparsityProfile(model="alexnet", layers=dict.fromkeys(names, uniform.default))
    assert figures(predictor, by_layer, **options) == pytest.approx(figures(predictor, uniform, **options))
    assert figures(predictor, uniform, **options)[0] < figures(predictor, None, **options)[0]


def test_no_zeros_are_the_dense_step(predictor: Predictor) -> None:
    nothing = SparsityProfile.uniform("activations=0,weights=0")
    assert figures(predictor, nothing) == figures(predictor, None)


def test_a_profile_by_layer_counts_layer_by_layer_and_must_fit(predictor: Predictor) -> None:
    names = [f"features.{i}" for i in (0, 3, 6, 8, 10)] + [f"classifier.{i}" for i in (1, 4, 6)]
    dense = dict.fromkeys(names, DENSE)
    plain, sparse = (
        figures(predictor, SparsityProfile(model="alexnet", layers=layers))[0]
        for layers in (dense, dense | {"features.3": layer(activations=0.9)})
    )
    assert sparse < plain
    with pytest.raises(DataError, match=r"missing features\.3"):
        figures(predictor, SparsityProfile(model="alexnet", layers={"features.0": DENSE}))
    with pytest.raises(DataError, match=r"unknown features\.33; did you mean features\.3"):
        figures(predictor, SparsityProfile(model="alexnet", layers=dense | {"features.33": DENSE}))


@pytest.mark.parametrize(
    "options",
    [
        {"plan": Plan(tp=2)},
        {"plan": Plan(dp=2, global_batch_size=2), "mode": "training"},
        {"mode": "training", "optimizer": "adam", "fused_optimizer": True},
        {"mode": "training", "optimizer": "bert_adam", "grad_scaler": True},
        {"mode": "training", "launch": "compiled"},
        {"mode": "training", "optimizer": "bert_adam", "plan": Plan(dp=2, global_batch_size=2, shard="zero3")},
    ],
    ids=["tp", "dp", "fused optimizer", "grad scaler", "compiled", "sharded update"],
)
def test_sparsify_goes_with_options_that_change_kernels(predictor: Predictor, options: dict[str, Any]) -> None:
    """A GPU multiplies zeros: the answer is that without them."""
    dense = predictor.estimate("bert-base", "l4", seq_len=32, **options)
    sparse = predictor.estimate("bert-base", "l4", seq_len=32, sparsity="activations=0.5", **options)
    assert sparse.latency_s == pytest.approx(dense.latency_s)


def test_sparsify_halves_products_with_tp(predictor: Predictor) -> None:
    """With memory fast enough that products are bound by compute, on one rank and on each of two."""
    changes = ["links.pcie=64GB/s", "dram_bandwidth=20TB/s"]

    def products_s(share: float, plan: Plan) -> float:
        estimate = predictor.estimate(
            "bert-base", "tensordash", seq_len=128, plan=plan, overrides=changes, sparsity=f"activations={share}"
        )
        return sum(row.total_s for row in estimate.by_kernel if row.family == "gemm")

    for tp in (1, 2):
        plan = Plan(tp=tp, micro_batch_size=4, global_batch_size=4)
        assert products_s(0.7, plan) < 0.6 * products_s(0.0, plan)
