"""Recurrent backward passes as a scan: levels, and the products of each."""

from __future__ import annotations

from math import log2

import pytest
import torch
from torch import nn

from neusight.errors import InapplicableError
from neusight.kernels.families import Elementwise, Gemm
from neusight.requests import Request
from neusight.transforms.scanned import with_scanned_gradients
from neusight.workloads import load_workload
from neusight.workloads.workload import Workload

SAMPLES, STEPS, WIDTH, HIDDEN = 4, 64, 10, 8


def traced(layer: nn.Module) -> Workload:
    return load_workload(layer, Request.of(mode="training"), inputs=(torch.zeros(STEPS, SAMPLES, WIDTH),))


@pytest.mark.parametrize(("layer", "states"), [(nn.RNN(WIDTH, HIDDEN), 1), (nn.LSTM(WIDTH, HIDDEN), 2)])
def test_steps_become_levels_of_products_of_jacobians(layer: nn.Module, states: int) -> None:
    before, after = traced(layer), with_scanned_gradients(traced(layer))
    products = [k for n in after.nodes for k in n.kernels if isinstance(k, Gemm) and k.op == "bmm"]
    side, levels = states * HIDDEN, int(log2(STEPS))
    assert [(k.m, k.n, k.k) for k in products] == [(side,) * 3] * levels + [(1, side, side)] * levels
    up = [SAMPLES * STEPS // 2**level for level in range(1, levels + 1)]
    assert [k.batch for k in products] == up + up[::-1]
    jacobians = [k for n in after.nodes for k in n.kernels if isinstance(k, Elementwise) and k.op == "mul"]
    assert [k.elements for k in jacobians] == [STEPS * SAMPLES * side**2]

    def count(workload: Workload) -> int:
        return sum(len(n.kernels) for n in workload.nodes if n.phase == "backward")

    assert count(before) - count(after) == 2 * STEPS - (2 + 2 * levels)


def test_a_model_without_recurrent_layers_is_refused() -> None:
    with pytest.raises(InapplicableError, match="no recurrent layer"):
        with_scanned_gradients(traced(nn.Linear(WIDTH, 1)))
