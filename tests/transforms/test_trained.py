"""Products of a training step in 8 bits, or with zeros: which, and what runs beside them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from neusight.errors import InapplicableError
from neusight.kernels.families import Collective, Gemm, Memory, Optimizer, RowReduction
from neusight.requests import Request
from neusight.transforms.optimizer import fuse_optimizer, paged_moments
from neusight.transforms.trained import int8_products, sparse_products
from neusight.workloads import load_workload
from neusight.workloads.workload import Workload

TOKENS, WIDE, NARROW = 4096, 2048, 1024


@pytest.fixture(scope="module")
def step() -> Workload:
    layers = nn.Sequential(nn.Linear(NARROW, WIDE), nn.Linear(WIDE, NARROW), nn.Linear(NARROW, 8))
    request = Request.of(mode="training", dtype="bfloat16", optimizer="adam")
    return load_workload(layers, request, inputs=(torch.zeros(TOKENS, NARROW),))


def kernels(workload: Workload, *kinds: type) -> list[object]:
    return [k for n in workload.nodes for k in n.kernels if isinstance(k, kinds) for _ in range(n.copies)]


def test_products_of_both_passes_take_operands_of_eight_bits(step: Workload) -> None:
    after = int8_products(step)
    narrow = [k for k in kernels(after, Gemm) if k.dtype == "int8"]  # type: ignore[attr-defined]
    # Two layers forward and for their weights, one of them for its input; the third has too few columns.
    assert sorted((k.m, k.n, k.k) for k in narrow) == sorted([  # type: ignore[attr-defined]
        (TOKENS, WIDE, NARROW), (TOKENS, NARROW, WIDE), (TOKENS, WIDE, NARROW), (WIDE, NARROW, TOKENS),
        (NARROW, WIDE, TOKENS),
    ])  # fmt: skip
    written = [k.write_bytes for k in kernels(after, RowReduction) if k.op == "amax"]  # type: ignore[attr-defined]
    assert sum(written) == sum(rows * k.k + 4 * rows for k in narrow for rows in (k.m, k.n))  # type: ignore[attr-defined]


def test_zeros_halve_products_with_weights_and_no_gradients_of_weights(step: Workload) -> None:
    after = sparse_products(step)
    halved = [k for k in kernels(after, Gemm) if (k.m, k.n) != (NARROW, WIDE)]  # type: ignore[attr-defined]
    depths = sorted(k.k for k in halved if k.m == TOKENS and k.n > 8 and k.k > 8)  # type: ignore[attr-defined]
    assert depths == [NARROW // 2, NARROW // 2, WIDE // 2]
    assert {k.k for k in kernels(after, Gemm) if k.m in (WIDE, NARROW)} == {TOKENS}  # type: ignore[attr-defined]
    packed = [k.write_bytes for k in kernels(after, Memory) if k.read_bytes == 2 * WIDE * NARROW]  # type: ignore[attr-defined]
    assert packed == [round(2 * (0.5 + 1 / 16) * 2 * WIDE * NARROW)] * 2


def test_pages_of_moments_cross_the_link_both_ways(step: Workload) -> None:
    after = paged_moments(step)
    (update,) = kernels(fuse_optimizer(step), Optimizer)
    copies = [k.bytes for k in kernels(after, Collective)]  # type: ignore[attr-defined]
    assert copies == [2 * 2 * update.elements] * 2  # type: ignore[attr-defined]
    assert after.memory.optimizer == 0


def test_wide_products_and_inference_are_refused() -> None:
    layer = nn.Linear(64, 64)
    wide = load_workload(layer, Request.of(mode="training"), inputs=(torch.zeros(64, 64),))
    forward = load_workload(layer, Request.of(dtype="bfloat16"), inputs=(torch.zeros(64, 64),))
    for change in (int8_products, sparse_products):
        with pytest.raises(InapplicableError, match="no product of 16 bits"):
            change(wide)
        with pytest.raises(InapplicableError, match="no backward pass"):
            change(forward)
