"""Weights as two factors: products, bytes and updates by the formula."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn

from neusight.errors import InapplicableError
from neusight.kernels.families import Conv2d, Gemm, Optimizer
from neusight.requests import Request
from neusight.transforms.factored import low_rank, with_adapters
from neusight.workloads import load_workload
from neusight.workloads.workload import Workload

TOKENS, WIDE, NARROW, RANK = 96, 256, 128, 8


def traced(module: nn.Module, *inputs: torch.Tensor, mode: str = "training") -> Workload:
    optimizer = "adam" if mode == "training" else "none"
    return load_workload(module, Request.of(mode=mode, optimizer=optimizer), inputs=inputs)


@pytest.fixture(scope="module")
def step() -> Workload:
    layers = nn.Sequential(
        nn.Linear(NARROW, NARROW), nn.Linear(NARROW, WIDE), nn.Linear(WIDE, NARROW), nn.Linear(NARROW, 2)
    )
    return traced(layers, torch.zeros(TOKENS, NARROW))


def products(workload: Workload) -> Counter[tuple[int, int, int]]:
    kernels = ((k, n.copies) for n in workload.nodes for k in n.kernels if isinstance(k, Gemm))
    return Counter(dict.fromkeys((), 1)) + sum((Counter({(k.m, k.n, k.k): c}) for k, c in kernels), Counter())


def bytes_of(workload: Workload, kind: str) -> int:
    return sum(t.nbytes * t.copies for t in workload.tensors if t.kind == kind)


def updated(workload: Workload) -> int:
    steps = [k for n in workload.nodes for k in n.kernels if isinstance(k, Optimizer)]
    return max(k.elements for k in steps)


def test_the_second_half_of_the_layers_but_the_last_has_two_products_for_one(step: Workload) -> None:
    after, rank = low_rank(step, 0.25), NARROW // 4
    gone, come = products(step) - products(after), products(after) - products(step)
    # The third layer: forward, gradient of its input, gradient of its weight.
    assert gone == Counter([(TOKENS, NARROW, WIDE), (TOKENS, WIDE, NARROW), (NARROW, WIDE, TOKENS)])
    assert come == Counter([
        (TOKENS, rank, WIDE), (TOKENS, NARROW, rank), (TOKENS, rank, NARROW), (TOKENS, WIDE, rank),
        (NARROW, rank, TOKENS), (rank, WIDE, TOKENS),
    ])  # fmt: skip
    saved = WIDE * NARROW - rank * (WIDE + NARROW)
    for kind in ("weight", "gradient"):
        assert bytes_of(step, kind) - bytes_of(after, kind) == 4 * saved
    assert bytes_of(step, "state") - bytes_of(after, "state") == pytest.approx(8 * saved, rel=1e-3)
    assert (step.parameters - after.parameters, updated(step) - updated(after)) == (saved, saved)


def test_adapters_are_trained_alone(step: Workload) -> None:
    after = with_adapters(step, RANK)
    adapters = RANK * (2 * NARROW + 2 * (NARROW + WIDE))
    assert bytes_of(after, "weight") - bytes_of(step, "weight") == 4 * adapters
    assert bytes_of(after, "gradient") == 4 * adapters
    assert (after.parameters - step.parameters, updated(after)) == (adapters, adapters)
    gone = products(step) - products(after)
    # No product gives the gradient of a frozen weight.
    assert {(NARROW, WIDE, TOKENS), (WIDE, NARROW, TOKENS)} <= set(gone)
    assert not any(m == TOKENS for m, _, _ in gone)


def test_a_convolution_becomes_one_of_few_channels_and_one_of_points() -> None:
    layers = nn.Sequential(nn.Conv2d(3, 64, 3), nn.Conv2d(64, 64, 3, stride=2, padding=1), nn.Conv2d(64, 8, 3))
    after = low_rank(traced(layers, torch.zeros(2, 3, 32, 32), mode="inference"), 0.25)
    convolutions = [k for n in after.nodes for k in n.kernels if isinstance(k, Conv2d)]
    assert [(k.in_channels, k.out_channels, k.height, k.kernel_height, k.stride) for k in convolutions[1:3]] == [
        (64, 16, 30, 3, 2), (16, 64, 15, 1, 1),
    ]  # fmt: skip


def test_what_has_no_such_weights_is_told_so(step: Workload) -> None:
    with pytest.raises(InapplicableError, match="second half"):
        low_rank(step, 1.0)
    with pytest.raises(InapplicableError, match="beside its head"):
        with_adapters(traced(nn.Linear(8, 8), torch.zeros(4, 8)), RANK)
    with pytest.raises(InapplicableError, match="trains no weights"):
        with_adapters(traced(nn.Linear(8, 8), torch.zeros(4, 8), mode="inference"), RANK)
