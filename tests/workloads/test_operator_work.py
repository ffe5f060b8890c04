"""Arithmetic and bytes of operators against formulas; recurrent layers step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import log2
from typing import Any

import pytest
import torch
from small_models import kernels
from torch import nn
from torch.nn import functional

from neusight.kernels import Elementwise, Gemm, KernelBatch
from neusight.kernels.work import work_of
from neusight.requests import Request
from neusight.workloads import Workload
from neusight.workloads.tensors import TensorSpec
from neusight.workloads.trace.tracing import trace

N = 48


class Applied(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: torch.Tensor) -> Any:
        return self.function(*given)


def run(build: nn.Module | Callable[..., Any], *shapes: tuple[int, ...], mode: str = "inference") -> list[Any]:
    module = build if isinstance(build, nn.Module) else Applied(build)
    inputs = [s if isinstance(s, TensorSpec) else TensorSpec(s) for s in shapes]
    workload = trace(module, inputs, Request.of("m", mode=mode, optimizer="none"))
    assert workload.uncovered == ()
    return list(kernels(workload))


def flops(kernel: Any) -> float:
    return float(work_of(KernelBatch.of([kernel])).flops[0])


FACTORISATIONS: dict[str, tuple[Callable[..., Any], str, float, int]] = {
    # Golub and Van Loan: FLOP in n³, and columns that wait for each other.
    "cholesky": (torch.linalg.cholesky, "cholesky", 1 / 3, N),
    "lu": (torch.linalg.lu_factor, "lu", 2 / 3, N),
    "inverse": (torch.linalg.inv, "inverse", 2, N),
    "qr": (torch.linalg.qr, "qr", 8 / 3, 4 * N),
    "eigenvalues": (torch.linalg.eigvalsh, "eigh", 4 / 3, N),
    "eigenvectors": (torch.linalg.eigh, "eigh", 9, 3 * N),
    "singular values": (torch.linalg.svdvals, "svd", 8 / 3, 2 * N),
    "singular vectors": (torch.linalg.svd, "svd", 22, 4 * N),
}


@pytest.mark.parametrize("name", FACTORISATIONS)
def test_factorisations_have_their_arithmetic_and_their_chain(name: str) -> None:
    function, op, cubes, steps = FACTORISATIONS[name]
    (kernel,) = [k for k in run(function, (N, N)) if k.op == op]
    assert (kernel.flops, kernel.passes) == (round(cubes * N**3), steps)


def test_matrices_of_a_batch_are_factored_one_by_one_where_the_library_does_so() -> None:
    (singular,) = [k for k in run(torch.linalg.svdvals, (3, N, N)) if k.op == "svd"]
    (cholesky,) = [k for k in run(torch.linalg.cholesky, (3, N, N)) if k.op == "cholesky"]
    assert (singular.passes, cholesky.passes) == (3 * 2 * N, N)
    assert cholesky.flops == N**3


def test_a_solve_adds_two_triangles_for_every_right_side() -> None:
    (kernel,) = [k for k in run(torch.linalg.solve, (N, N), (N, 5)) if k.op == "solve"]
    assert kernel.flops == round(2 * N**3 / 3 + 2 * N**2 * 5)


def test_transforms_do_five_n_log_n(subtests: pytest.Subtests) -> None:
    for function, shape, expected, passes in [
        (torch.fft.rfft, (4, 256), 5 * 4 * 256 * log2(256) / 2, 1),
        (torch.fft.rfft2, (4, 32, 64), 5 * 4 * 2048 * log2(2048) / 2, 2),
        (torch.fft.rfft, (2, 65536), 5 * 2 * 65536 * 16 / 2, 2),
        (lambda x: torch.fft.fft(torch.complex(x, x)), (4, 256), 5 * 4 * 256 * 8, 1),
    ]:
        with subtests.test(shape=shape):
            transforms = [k for k in run(function, shape) if k.op == "fft"]
            assert sum(k.flops for k in transforms) == expected
            assert sum(k.passes for k in transforms) == passes


CONVOLUTIONS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "1-D, padded": (lambda: nn.Conv1d(8, 12, 3, padding=1, bias=False), (2, 8, 50)),
    "1-D, grouped and dilated": (lambda: nn.Conv1d(8, 12, 5, groups=4, dilation=2, stride=2, bias=False), (2, 8, 50)),
    "uneven": (lambda: nn.Conv2d(8, 12, (3, 5), stride=(1, 2), padding=(1, 2), bias=False), (2, 8, 20, 24)),
    "3-D": (lambda: nn.Conv3d(4, 6, 3, padding=1, stride=2, bias=False), (2, 4, 8, 10, 12)),
    "3-D, grouped": (lambda: nn.Conv3d(4, 6, (1, 3, 3), groups=2, padding=(0, 1, 1), bias=False), (2, 4, 8, 10, 12)),
    "1-D, transposed": (lambda: nn.ConvTranspose1d(8, 12, 4, 2, 1, bias=False), (2, 8, 50)),
    "3-D, transposed": (lambda: nn.ConvTranspose3d(4, 6, 4, 2, 1, bias=False), (2, 4, 4, 5, 6)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_of_any_dimension_do_two_flop_a_tap(name: str) -> None:
    build, shape = CONVOLUTIONS[name]
    module = build()
    (kernel,) = run(module, shape)
    x = torch.zeros(shape)
    y, weight = module(x), module.weight  # type: ignore[union-attr]
    # Every element of the output (of a transposed one, of the input) meets the taps of one filter.
    meets = x if "transposed" in name else y
    assert flops(kernel) == pytest.approx(2 * meets.numel() * weight[0].numel())
    moved = work_of(KernelBatch.of([kernel]))
    assert moved.bytes[0] == 4 * (x.numel() + y.numel() + weight.numel())


def test_gradients_of_uneven_convolutions_do_as_much_each_as_the_forward_pass() -> None:
    for build, shape in CONVOLUTIONS.values():
        forward, *others = [k for k in run(build(), shape, mode="training") if k.family == "conv2d"]
        assert others and [flops(k) for k in others] == pytest.approx([flops(forward)] * len(others))


def test_long_rows_are_sorted_digit_by_digit() -> None:
    for length, passes in [(4096, 1), (4097, 4)]:
        (kernel,) = [k for k in run(lambda x: x.sort()[0], (3, length)) if k.op == "sort"]
        assert (kernel.rows, kernel.cols, kernel.passes) == (3, length, passes)
        assert kernel.write_bytes == passes * 3 * length * (4 + 8)


def test_the_largest_of_a_long_row_are_searched_digit_by_digit() -> None:
    for length, reads in [(4096, 1), (50000, 5)]:
        (kernel,) = [k for k in run(lambda x: x.topk(4)[0], (3, length)) if k.op == "topk"]
        assert (kernel.passes, kernel.read_bytes) == (reads, reads * 3 * length * 4)


def test_counting_reads_every_value_and_writes_the_bins() -> None:
    (count,) = [k for k in run(lambda x: torch.histc(x, 32), (1000,)) if k.op == "bincount"]
    assert (count.read_bytes, count.write_bytes, count.rows * count.cols) == (4000, 32 * 4, 1000)


def test_interpolation_costs_its_neighbours(subtests: pytest.Subtests) -> None:
    for mode, dims, taps in [
        ("nearest", 1, 1), ("linear", 1, 2), ("nearest", 2, 1), ("nearest-exact", 2, 1), ("bilinear", 2, 4),
        ("bicubic", 2, 16), ("nearest", 3, 1), ("trilinear", 3, 8),
    ]:  # fmt: skip
        with subtests.test(mode=mode, dims=dims):
            (kernel,) = run(lambda x, m=mode: functional.interpolate(x, scale_factor=2, mode=m), (2, 3, *(8,) * dims))
            results = 2 * 3 * 16**dims
            assert (kernel.elements, kernel.flops) == (results, 2 * taps * results)
            assert (kernel.read_bytes, kernel.write_bytes) == (4 * 2 * 3 * 8**dims, 4 * results)


def test_adaptive_pooling_takes_every_element_once(subtests: pytest.Subtests) -> None:
    for module, shape in [
        (nn.AdaptiveAvgPool2d(2), (2, 3, 8, 8)), (nn.AdaptiveMaxPool2d(2), (2, 3, 8, 8)),
        (nn.AdaptiveAvgPool3d(2), (2, 3, 8, 8, 8)), (nn.AdaptiveMaxPool3d(2), (2, 3, 8, 8, 8)),
    ]:  # fmt: skip
        with subtests.test(module=module):
            (kernel,) = run(module, shape)
            assert kernel.flops == torch.Size(shape).numel()


def test_bags_read_a_row_for_each_index_and_write_one_for_each_bag() -> None:
    (kernel,) = [
        k for k in run(nn.EmbeddingBag(500, 16, mode="sum"), TensorSpec((8, 20), "int64")) if k.op == "embedding_bag"
    ]
    rows, bags = 8 * 20, 8
    assert (kernel.flops, kernel.write_bytes) == (rows * 16, bags * 16 * 4)
    # A row and an index of 8 bytes for each, and where each bag begins.
    assert kernel.read_bytes == rows * (16 * 4 + 8) + bags * 8


def test_distances_take_a_difference_an_element_of_every_pair() -> None:
    (kernel,) = [k for k in run(lambda a, b: torch.cdist(a, b, p=1.0), (30, 16), (20, 16)) if "cdist" in k.op]
    assert kernel.flops == 3 * 30 * 20 * 16


def test_experts_of_grouped_products_share_the_tokens() -> None:
    def layer(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ends = torch.arange(16, 65, 16, dtype=torch.int32)
        return torch._grouped_mm(x.bfloat16(), weight.bfloat16(), offs=ends)

    (kernel,) = [k for k in run(layer, (64, 32), (4, 32, 48)) if k.family == "grouped_gemm"]
    assert (kernel.groups, kernel.tokens, kernel.n, kernel.k) == (4, 64, 48, 32)


def test_experts_of_wide_numbers_run_one_by_one() -> None:
    def layer(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch._grouped_mm(x, weight, offs=torch.arange(16, 65, 16, dtype=torch.int32))

    kernels = [k for k in run(layer, (64, 32), (4, 32, 48)) if k.family == "gemm"]
    assert [(k.m, k.n, k.k) for k in kernels] == [(16, 48, 32)] * 4


def test_experts_without_tokens_run_nothing() -> None:
    def layer(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch._grouped_mm(x, weight, offs=torch.zeros(8, dtype=torch.int32))

    assert len([k for k in run(layer, (3, 32), (8, 32, 48)) if k.family == "gemm"]) == 3


def test_complex_products_do_four_real_ones() -> None:
    (gemm,) = [k for k in run(lambda x: torch.complex(x, x) @ torch.complex(x, x), (N, N)) if k.family == "gemm"]
    assert (flops(gemm), gemm.dtype) == (4 * 2 * N**3, "float32")


def test_samples_bisect_the_sums_of_their_row() -> None:
    ops = [k.op for k in run(lambda x: torch.multinomial(x, 3), (5, 64))]
    assert ops[-3:] == ["sum", "cumsum", "multinomial"]


STEPS, BATCH, WIDTH, HIDDEN = 12, 4, 16, 32
GATES = {nn.RNN: 1, nn.GRU: 3, nn.LSTM: 4}


def recurrent_step(kind: Any, mode: str = "inference", **options: Any) -> Workload:
    layer = lambda: kind(WIDTH, HIDDEN, **options)  # noqa: E731
    shape = (BATCH, STEPS, WIDTH) if options.get("batch_first") else (STEPS, BATCH, WIDTH)
    return trace(layer, [TensorSpec(shape)], Request.of("m", mode=mode, optimizer="none"))


def product_flops(workload: Workload) -> int:
    return sum(2 * k.m * k.n * k.k for k in kernels(workload) if isinstance(k, Gemm))


def cells(workload: Workload) -> Counter[str]:
    return Counter(k.op for k in kernels(workload) if isinstance(k, Elementwise) and "_cell" in k.op)


@pytest.mark.parametrize("kind", GATES)
def test_every_step_is_a_product_with_the_state_and_a_kernel_for_the_cell(kind: Any) -> None:
    workload, gates = recurrent_step(kind), GATES[kind]
    # Each of T steps of B sequences multiplies input and state by the weights of all gates.
    assert product_flops(workload) == 2 * STEPS * BATCH * gates * HIDDEN * (WIDTH + HIDDEN)
    assert sum(cells(workload).values()) == STEPS


@pytest.mark.parametrize("kind", GATES)
def test_training_does_twice_the_products_of_inference_again(kind: Any) -> None:
    workload = recurrent_step(kind, "training")
    assert product_flops(workload) == 3 * product_flops(recurrent_step(kind))
    assert set(cells(workload).values()) == {STEPS} and len(cells(workload)) == 2


def test_layers_directions_and_projections_have_their_own_widths() -> None:
    step = 2 * STEPS * BATCH * 4 * HIDDEN
    deep = recurrent_step(nn.LSTM, num_layers=2, bidirectional=True, batch_first=True)
    assert product_flops(deep) == 2 * step * (WIDTH + HIDDEN) + 2 * step * (2 * HIDDEN + HIDDEN)
    narrow = recurrent_step(nn.LSTM, proj_size=8)
    assert product_flops(narrow) == step * (WIDTH + 8) + 2 * STEPS * BATCH * 8 * HIDDEN


def test_what_the_backward_pass_needs_is_kept() -> None:
    kept = [t.nbytes for t in recurrent_step(nn.LSTM, "training").tensors if t.dtype == "uint8"]
    # Four gates, the state of the cell and its tanh, of every step.
    assert kept == [6 * STEPS * BATCH * HIDDEN * 4]
