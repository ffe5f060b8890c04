"""Whose kernels engines run: rules by family, GPU, era and operands, and no more than tile models tell apart."""

from typing import Any

import pytest

from neusight.api import Predictor
from neusight.devices import load_device
from neusight.engines import server_named
from neusight.engines.libraries import variant_of
from neusight.engines.limits import Site
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.kernels.schemes import Quantisation
from neusight.serving import Setup
from neusight.workloads.decoders.known import known_decoder

ATTENTION = {
    "batch": 4, "heads": 8, "kv_heads": 2, "q_len": 1, "kv_len": 64, "head_dim": 128, "causal": True,
    "dtype": "bfloat16",
}  # fmt: skip


def ran(engine: str, gpu: str, batch: KernelBatch, version: str = "") -> str:
    device = load_device(gpu)
    return variant_of(server_named(engine, version).started_on(Site(device=device)), device, batch)


@pytest.mark.parametrize(
    ("engine", "version", "gpu", "cache", "expected"),
    [
        ("trtllm", "", "h100-sxm-80gb", "", "trtllm"),
        ("vllm", "", "a100-sxm-80gb", "", "fa2"),
        ("vllm", "", "l40s", "float8", "flashinfer"),
        ("vllm", "", "h100-sxm-80gb", "", "fa3"),
        ("vllm", "", "h100-sxm-80gb", "float8", "fa3"),
        ("vllm", "0.6", "h100-sxm-80gb", "", "fa2"),
        ("vllm", "0.6", "h100-sxm-80gb", "float8", ""),
        ("vllm", "", "b200-sxm-180gb", "", "trtllm_gen"),
        ("vllm", "", "rtx-pro-6000-server", "", "fa2"),
        ("vllm", "", "v100-pcie-32gb", "", ""),
        ("vllm", "", "mi300x", "", ""),
        ("sglang", "", "a100-sxm-80gb", "", "fa2"),
        ("sglang", "", "l40s", "", "flashinfer"),
        ("sglang", "", "b300-sxm-288gb", "", "trtllm_gen"),
    ],
)
def test_attention(engine: str, version: str, gpu: str, cache: str, expected: str) -> None:
    assert ran(engine, gpu, KernelBatch.from_columns("attention", **ATTENTION, kv_dtype=cache), version) == expected


@pytest.mark.parametrize(
    ("engine", "gpu", "columns", "expected"),
    [
        ("vllm", "h100-sxm-80gb", {"dtype": "bfloat16"}, "torch"),
        ("vllm", "h100-sxm-80gb", {"dtype": "float8", "scaling": "row"}, "cutlass"),
        ("sglang", "h200-sxm-141gb", {"dtype": "float8", "scaling": "block"}, "deepgemm"),
        ("vllm", "l40s", {"dtype": "float8", "scaling": "block"}, "triton"),
        ("vllm", "b200-sxm-180gb", {"dtype": "float4", "scaling": "micro"}, "flashinfer"),
        ("vllm", "rtx-pro-6000-server", {"dtype": "float4", "scaling": "micro"}, "cutlass"),
        ("trtllm", "a100-sxm-80gb", {"dtype": "bfloat16", "weight_dtype": "int4"}, "weight_only"),
        ("trtllm", "b200-sxm-180gb", {"dtype": "float8", "scaling": "block"}, "deepgemm"),
    ],
)
def test_products(engine: str, gpu: str, columns: dict[str, Any], expected: str) -> None:
    assert ran(engine, gpu, KernelBatch.from_columns("gemm", m=8, n=512, k=512, **columns)) == expected


def test_mxfp4_experts_take_mxfp8_where_units_apply_scales_of_blocks() -> None:
    decoder = known_decoder("openai/gpt-oss-20b")

    def scheme(engine: str, gpu: str) -> Quantisation:
        device = load_device(gpu)
        replica = Setup(engine=engine).replica(decoder, device, lambda *_: None)  # type: ignore[arg-type, return-value]
        return replica.precision.quantisation.of("experts")

    assert (scheme("trtllm", "b200-sxm-180gb").activations, scheme("trtllm", "b200-sxm-180gb").weights) == (
        "float8",
        "mxfp4",
    )
    for engine, gpu in (("trtllm", "h100-sxm-80gb"), ("vllm", "b200-sxm-180gb"), ("trtllm", "rtx-pro-6000-server")):
        assert scheme(engine, gpu).activations == ""


@pytest.mark.parametrize(("engine", "version", "shares"), [("vllm", "0.6", 1), ("vllm", "", 0.6), ("sglang", "", 0.6)])
def test_kernels_that_load_vectors_come_closer_to_the_memory(
    predictor: Predictor, engine: str, version: str, shares: float
) -> None:
    """Those that take an element at a time are held up by their instructions where memory is fast."""
    device = load_device("b200-sxm-180gb")
    elements = 2**27
    batch = KernelBatch.from_columns(
        "elementwise", op="silu_and_mul", elements=elements, dtype="bfloat16", read_bytes=4 * elements,
        write_bytes=2 * elements, flops=5 * elements,
    )  # fmt: skip
    ran = server_named(engine, version).started_on(Site(device=device))
    who = {"engine": ran.library, "variant": variant_of(ran, device, batch)}
    first, own = (
        predictor._priced(batch, device, Conditions.of(1, timing="graph", launches=1e3, **names)).latency_s[0]
        for names in ({"engine": "vllm"}, who)
    )
    assert own <= shares * first * (1 + 1e-9)


def test_of_other_families_nobody_needs_to_know() -> None:
    batch = KernelBatch.from_columns("collective", op="all_reduce", ranks=2, bytes=1024, dtype="bfloat16")
    assert ran("vllm", "h100-sxm-80gb", batch) == ""
