"""What libraries of inference make of layers: bytes, FLOP and launches against what is written out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neusight.engines import ENGINES
from neusight.errors import InapplicableError
from neusight.kernels.families import Gemm, KernelBatch, Memory
from neusight.kernels.work import work_of
from neusight.requests import Request
from neusight.transforms.compiled import compiled
from neusight.transforms.layers import (
    as_library_layers,
    joined_products,
    product_biases_apart,
    reductions_apart,
    with_search_of_one_kernel,
)
from neusight.transforms.narrowed import in_int8, with_sparse_weights
from neusight.workloads import load_workload
from neusight.workloads.workload import Workload

BATCH, LENGTH, WIDTH, LAYERS = 4, 64, 768, 12


@pytest.fixture(scope="module")
def bert() -> Workload:
    return load_workload(
        "bert-base", Request.of("bert-base", batch=BATCH, seq_len=LENGTH, dtype="float16", attention="eager")
    )


def flops(workload: Workload) -> float:
    return sum(
        launch.count * float(work_of(KernelBatch.of([launch.kernel])).flops[0])
        for launch in workload.launches
        if launch.kernel.family == "gemm"
    )


def products(workload: Workload) -> list[Gemm]:
    return [k for node in workload.nodes for k in node.kernels for _ in range(node.copies) if isinstance(k, Gemm)]


def kernels(workload: Workload) -> int:
    return sum(node.copies * len(node.kernels) for node in workload.nodes)


def test_biases_apart_read_and_write_each_result_once(bert: Workload) -> None:
    apart = product_biases_apart(bert)
    biased = [product for product in products(bert) if product.bias]
    assert kernels(apart) - kernels(bert) == len(biased)
    assert not any(product.bias for product in products(apart))
    added = sum(k.write_bytes for node in apart.nodes if node.operator == "aten.add_.Tensor" for k in node.kernels)
    assert added == sum(2 * product.m * product.n for product in biased)


def test_joined_products_do_the_same_work_in_fewer_kernels(bert: Workload) -> None:
    joined = joined_products(bert)
    assert flops(joined) == flops(bert)
    assert kernels(bert) - kernels(joined) == 2 * LAYERS
    assert sum(product.n == 3 * WIDTH for product in products(joined)) == LAYERS


def test_a_layer_of_a_library_is_one_operator_that_computes_the_same(bert: Workload) -> None:
    fused = as_library_layers(bert)
    layers = [node for node in fused.nodes if node.operator == "library.layer"]
    assert len(layers) == LAYERS
    assert flops(fused) == flops(bert)
    assert kernels(fused) < kernels(bert)
    assert fused.memory.weights == bert.memory.weights


def test_a_model_without_layers_has_none_to_replace() -> None:
    alexnet = load_workload("alexnet", Request.of("alexnet"))
    with pytest.raises(InapplicableError, match="no stack"):
        as_library_layers(replace(alexnet, nodes=tuple(n for n in alexnet.nodes if not n.layer.numbers)))


def test_loops_of_reductions_apart_read_thrice_and_write_once(bert: Workload) -> None:
    before = [k for node in bert.nodes for k in node.kernels if getattr(k, "op", "") == "softmax"]
    after = [k for node in reductions_apart(bert).nodes for k in node.kernels if getattr(k, "op", "") == "softmax"]
    for one, other in zip(before, after, strict=True):
        assert (other.passes, other.read_bytes, other.write_bytes) == (3, 3 * one.read_bytes, one.write_bytes)


def test_epilogues_leave_no_kernel_between_products_but_norms_and_attention() -> None:
    engine = replace(ENGINES["torch-static"], attention="sdpa")
    request = replace(Request.of("bert-base", batch=BATCH, seq_len=LENGTH, dtype="float16"), engine=engine)
    static = compiled(load_workload("bert-base", request))
    without = compiled(load_workload("bert-base", replace(request, engine=replace(engine, epilogues=False))))
    # Each layer's activation is the epilogue of its first product.
    assert kernels(without) - kernels(static) >= LAYERS
    assert flops(static) == flops(without)


def test_int8_halves_or_widens_what_lies_between_products(bert: Workload) -> None:
    narrow, wide = in_int8(bert, False), in_int8(bert, True)
    for step in (narrow, wide):
        assert flops(step) == flops(bert)
        assert sum(product.dtype == "int8" for product in products(step)) >= 6 * LAYERS

    def gelu(step: Workload) -> tuple[int, int]:
        found = next(k for node in step.nodes for k in node.kernels if getattr(k, "op", "") == "gelu")
        return found.read_bytes, found.write_bytes

    values = BATCH * LENGTH * 4 * WIDTH
    assert gelu(bert) == (2 * values, 2 * values)
    assert gelu(narrow) == (values, values)
    # Sums of 32 bits, and the 16 of each that the product wrote beyond those of its own work.
    assert gelu(wide) == ((4 + 2) * values, values)


def test_sparse_weights_halve_the_work_of_products_that_compute_bounds_alone(bert: Workload) -> None:
    weights = [p for p in products(bert) if p.batch == 1 and p.n % 32 == 0]
    everywhere, nowhere = with_sparse_weights(bert, 0.0), with_sparse_weights(bert, 1e9)
    assert flops(bert) - flops(everywhere) == sum(p.m * p.n * p.k for p in weights)
    assert flops(nowhere) == flops(bert)


def test_a_search_of_one_kernel_reads_the_logits_once_and_moves_no_cache() -> None:
    step = load_workload("translation-decoder@4", Request.of("translation-decoder@4", batch=2, dtype="float16"))
    one = with_search_of_one_kernel(step)
    (search,) = one.nodes[-1].kernels
    assert search.read_bytes == 2 * 2 * 4 * 31538  # type: ignore[union-attr]
    assert not any(isinstance(k, Memory) and k.op == "gather" for node in one.nodes for k in node.kernels)
    layers = as_library_layers(one)
    of_layers = [node for node in layers.nodes if node.operator == "library.layer"]
    written = [k for n in of_layers for k in n.kernels if isinstance(k, Memory) and k.op == "cat"]
    assert {k.write_bytes for k in written} == {2 * 2 * 8 * 512}


def test_a_model_that_chooses_nothing_has_no_search(bert: Workload) -> None:
    with pytest.raises(InapplicableError, match="no search"):
        with_search_of_one_kernel(bert)
