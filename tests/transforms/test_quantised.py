"""Quantised products: bytes of weights, kernels beside the products, and what a compiler leaves of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from torch import Tensor, nn, randn

from neusight.errors import InapplicableError, ModelError
from neusight.kernels.families import Elementwise, Gemm, RowReduction
from neusight.requests import Request
from neusight.transforms.compiled import compiled
from neusight.transforms.quantised import quantise
from neusight.workloads import load_workload
from neusight.workloads.workload import Workload

ROWS, K, N = 512, 256, 1024


class TwoProducts(nn.Module):
    """Products of a matrix with two weights, an activation between them."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(K, N), nn.Linear(N, K, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(nn.functional.gelu(self.up(x)))


def step(rows: int = ROWS, launch: str = "eager", mode: str = "inference") -> Workload:
    request = Request.of(dtype="bfloat16", launch=launch, mode=mode)
    return load_workload(TwoProducts().bfloat16(), request, inputs=[randn(rows, K).bfloat16()])


def of(workload: Workload, family: type) -> list:
    return [k for node in workload.nodes for k in node.kernels if isinstance(k, family)]


def moved(workload: Workload, family: type) -> int:
    return sum(k.read_bytes + k.write_bytes for k in of(workload, family))


def test_int8_weights_are_made_wide_before_each_product_and_results_scaled_after_it() -> None:
    before, after = step(), quantise(step(), "int8wo")
    assert [replace(k, bias=False) for k in of(before, Gemm)] == of(after, Gemm)
    casts = 2 * K * N * (1 + 2)
    scaled, biased = ROWS * (N + K) * (2 + 2), ROWS * N * (2 + 2)
    assert moved(after, Elementwise) - moved(before, Elementwise) == casts + scaled + biased
    assert before.memory.weights - after.memory.weights == 2 * K * N


def test_int4_weights_lie_in_half_a_byte_with_a_scale_and_a_zero_for_64() -> None:
    before, after = step(), quantise(step(), "int4wo")
    assert before.memory.weights - after.memory.weights == 2 * K * N * (2 - 0.5 - 4 / 64)
    blocks = {(k.batch, k.m, k.weight_dtype) for k in of(after, Gemm)}
    assert blocks == {(ROWS // 16, 16, "int4")}
    assert moved(after, Elementwise) == moved(before, Elementwise)


def test_six_bits_are_made_wide_by_blocks_of_64_rows() -> None:
    before, after = step(), quantise(step(), "fp6wo")
    assert before.memory.weights - after.memory.weights == 2 * K * N * (2 - 0.75)
    assert {(k.batch, k.m, k.weight_dtype) for k in of(after, Gemm)} == {(ROWS // 64, 64, "fp6")}


def test_two_of_four_integers_are_kept_with_a_bit_for_each_and_halve_the_depth() -> None:
    before, after = step(rows=16), quantise(step(rows=16), "int8dq-2:4")
    assert before.memory.weights - after.memory.weights == 2 * K * N * (2 - 5 / 8)
    assert [2 * k.k for k in of(after, Gemm)] == [k.k for k in of(before, Gemm)]


def test_one_part_is_quantised_where_it_lies() -> None:
    before, after = step(), quantise(step(), "int8wo", "up", True)
    assert before.memory.weights - after.memory.weights == K * N
    assert [k.n for k in of(after, Gemm) if not k.bias] == [N, K]
    freed = after.tensors[-1]
    assert (freed.nbytes, freed.born, freed.died) == (K * N, -1, 0)


def test_tensors_are_held_as_long_as_before() -> None:
    class Holding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(K, N), nn.Linear(N, K)

        def forward(self, x: Tensor) -> Tensor:
            wide = self.up(x)
            narrow = self.down(nn.functional.gelu(wide))
            return narrow + (0 if wide is None else 1)

    request = Request.of(dtype="bfloat16", mode="inference")
    before = load_workload(Holding().bfloat16(), request, inputs=[randn(ROWS, K).bfloat16()])
    after = quantise(before, "fp6wo")
    assert after.memory.peak - after.memory.weights == before.memory.peak - before.memory.weights


def test_compiled_products_of_few_rows_read_narrow_weights_themselves() -> None:
    few, many = (compiled(quantise(step(rows, "compiled"), "int8wo")) for rows in (16, ROWS))
    assert {k.weight_dtype for k in of(few, Gemm)} == {"int8"}
    assert {k.weight_dtype for k in of(many, Gemm)} == {""}
    assert moved(many, Elementwise) - moved(few, Elementwise) > 2 * K * N * (1 + 2)


@pytest.mark.parametrize(("name", "dtype", "scaling"), [("int8dq", "int8", "row"), ("fp8dq", "float8", "tensor")])
def test_dynamic_products_are_narrow_on_both_sides(name: str, dtype: str, scaling: str) -> None:
    after = quantise(step(), name)
    assert {(k.dtype, k.scaling) for k in of(after, Gemm)} == {(dtype, scaling)}
    searches = of(after, RowReduction)
    assert {(k.rows, k.cols) for k in searches} == {(ROWS, K), (ROWS, N)}
    assert all(k.read_bytes == 2 * k.rows * k.cols for k in searches)


def test_simulated_products_stay_in_sixteen_bits() -> None:
    before, after = step(), quantise(step(), "int4dq")
    assert of(after, Gemm) == of(before, Gemm)
    assert len(of(after, Elementwise)) > len(of(before, Elementwise)) + 2 * 8


def test_a_compiler_makes_activations_narrow_by_rows_in_one_kernel() -> None:
    eager, generated = quantise(step(), "int8dq"), compiled(quantise(step(launch="compiled"), "int8dq"))
    assert len(of(generated, RowReduction)) == 2
    assert len(of(generated, Elementwise) + of(generated, RowReduction)) < len(of(eager, Elementwise)) / 2


@pytest.mark.parametrize(
    ("refused", "error", "words"),
    [
        (lambda: quantise(step(), "int3wo"), ModelError, "unknown quantisation 'int3wo'.*int4wo"),
        (lambda: quantise(step(rows=16), "int8dq"), InapplicableError, "16 rows or fewer run on the host"),
        (lambda: quantise(step(mode="training"), "int8wo"), InapplicableError, "no gradients"),
        (lambda: quantise(quantise(step(), "int4wo"), "int8wo"), InapplicableError, "no product"),
    ],
)
def test_what_cannot_be_quantised_is_refused(refused: Callable[[], Workload], error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        refused()
