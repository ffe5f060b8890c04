"""Recurrent layers: the work of the formula, one step after another, as cuDNN runs them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from small_models import kernels
from torch import nn

from neusight.kernels import Elementwise, Gemm
from neusight.requests import Request
from neusight.workloads import Workload
from neusight.workloads.tensors import TensorSpec
from neusight.workloads.trace.tracing import trace

STEPS, BATCH, WIDTH, HIDDEN = 12, 4, 16, 32
GATES = {nn.RNN: 1, nn.GRU: 3, nn.LSTM: 4}


def traced(kind: Any, mode: str = "inference", **options: Any) -> Workload:
    layer = lambda: kind(WIDTH, HIDDEN, **options)  # noqa: E731
    shape = (BATCH, STEPS, WIDTH) if options.get("batch_first") else (STEPS, BATCH, WIDTH)
    return trace(layer, [TensorSpec(shape)], Request.of("m", mode=mode, optimizer="none"), loss=lambda r: r[0].sum())


def product_flops(workload: Workload) -> int:
    return sum(2 * k.m * k.n * k.k for k in kernels(workload) if isinstance(k, Gemm))


def cells(workload: Workload) -> Counter[str]:
    return Counter(k.op for k in kernels(workload) if isinstance(k, Elementwise) and "_cell" in k.op)


@pytest.mark.parametrize("kind", GATES)
def test_every_step_is_a_product_with_the_state_and_a_kernel_for_the_cell(kind: Any) -> None:
    workload, gates = traced(kind), GATES[kind]
    # Each of T steps of B sequences multiplies input and state by the weights of all gates.
    assert product_flops(workload) == 2 * STEPS * BATCH * gates * HIDDEN * (WIDTH + HIDDEN)
    assert sum(cells(workload).values()) == STEPS


@pytest.mark.parametrize("kind", GATES)
def test_training_does_twice_the_products_of_inference_again(kind: Any) -> None:
    workload = traced(kind, "training")
    assert product_flops(workload) == 3 * product_flops(traced(kind))
    assert set(cells(workload).values()) == {STEPS} and len(cells(workload)) == 2


def test_layers_directions_and_projections_have_their_own_widths() -> None:
    step = 2 * STEPS * BATCH * 4 * HIDDEN
    deep = traced(nn.LSTM, num_layers=2, bidirectional=True, batch_first=True)
    assert product_flops(deep) == 2 * step * (WIDTH + HIDDEN) + 2 * step * (2 * HIDDEN + HIDDEN)
    narrow = traced(nn.LSTM, proj_size=8)
    assert product_flops(narrow) == step * (WIDTH + 8) + 2 * STEPS * BATCH * 8 * HIDDEN


def test_what_the_backward_pass_needs_is_kept() -> None:
    kept = [t.nbytes for t in traced(nn.LSTM, "training").tensors if t.dtype == "uint8"]
    # Four gates, the state of the cell and its tanh, of every step.
    assert kept == [6 * STEPS * BATCH * HIDDEN * 4]
