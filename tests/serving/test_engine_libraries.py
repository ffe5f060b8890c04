"""Whose kernels engines run: rules by family, GPU, era and operands, and no more than tile models tell apart."""

from dataclasses import replace
from typing import Any

import pytest

from neusight.api import Predictor
from neusight.devices import load_device
from neusight.engines import server_named
from neusight.engines.libraries import engine_run, slowdown, variant_of
from neusight.engines.limits import Site
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.kernels.schemes import Quantisation
from neusight.serving import Setup
from neusight.serving.passes import ReplicaPricer
from neusight.workloads.decoders.known import known_decoder
from neusight.workloads.decoders.shares import Steps

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
    ("gpu", "expected"),
    [("l40s", "triton"), ("a100-sxm-80gb", "triton"), ("h200-sxm-141gb", "fa3"), ("b200-sxm-180gb", "trtllm_gen")],
)
@pytest.mark.parametrize("cache", ["", "float8"])
def test_latent_attention(gpu: str, expected: str, cache: str) -> None:
    latent = {**ATTENTION, "head_dim": 576, "value_dim": 512, "kv_heads": 1, "shared_kv": True, "kv_dtype": cache}
    assert ran("vllm", gpu, KernelBatch.from_columns("attention", **latent)) == expected


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("gpu", ["h200-sxm-141gb", "b200-sxm-180gb"])
def test_sparse_attention(engine: str, gpu: str) -> None:
    scores = KernelBatch.from_columns("attention", **ATTENTION, op="indexer")
    chosen = KernelBatch.from_columns("attention", **ATTENTION, selected=2048, kv_dtype="float8")
    assert (ran(engine, gpu, scores), ran(engine, gpu, chosen)) == ("deepgemm", "flashmla")


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
    assert scheme("sglang", "b200-sxm-180gb") == scheme("trtllm", "b200-sxm-180gb")
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


@pytest.mark.parametrize(
    ("engine", "gpu", "columns", "expected"),
    [
        ("trtllm", "b200-sxm-180gb", {"dtype": "float4", "scaling": "micro"}, "trtllm_gen"),
        ("trtllm", "b200-sxm-180gb", {"dtype": "float8", "scaling": "block", "weight_dtype": "mxfp4"}, "trtllm_gen"),
        ("trtllm", "b200-sxm-180gb", {"dtype": "float8", "scaling": "tensor"}, "cutlass"),
        ("trtllm", "rtx-pro-6000-server", {"dtype": "float4", "scaling": "micro"}, "cutlass"),
        ("vllm", "b200-sxm-180gb", {"dtype": "float4", "scaling": "micro"}, "flashinfer"),
    ],
)
def test_variant_of_experts(engine: str, gpu: str, columns: dict[str, Any], expected: str) -> None:
    shape = {"tokens": 8, "hidden": 512, "ffn": 256, "experts": 8, "all_experts": 8, "top_k": 2}
    assert ran(engine, gpu, KernelBatch.from_columns("moe", **shape, **columns)) == expected


@pytest.mark.parametrize(
    ("engine", "version", "gpu", "shared", "routes", "norms"),
    [
        ("trtllm", "1.2", "b200-sxm-180gb", 1024, True, True),
        ("trtllm", "0.17", "h100-sxm-80gb", 0, False, False),
        ("sglang", "0.5.9", "h200-sxm-141gb", 1024, False, True),
        ("sglang", "0.5.2", "b200-sxm-180gb", 1024, True, False),
        ("vllm", "0.10.2", "h100-sxm-80gb", 0, False, False),
        ("vllm", "0.15.1", "b200-sxm-180gb", 256, True, False),
        ("vllm", "0.19", "h200-sxm-141gb", 256, False, True),
        ("vllm", "0.19", "a100-sxm-80gb", 256, False, False),
        ("vllm", "0.19", "mi300x", 0, False, False),
    ],
)
def test_engine_run_composes_passes_by_version_and_device(
    engine: str, version: str, gpu: str, shared: int, routes: bool, norms: bool
) -> None:
    found = engine_run(server_named(engine, version), load_device(gpu))
    assert (found.shared_tokens, found.routes_in_experts, found.reduced_norm_bytes > 0) == (shared, routes, norms)


def replica(engine: str, version: str, gpu: str, model: str = "deepseek-ai/DeepSeek-R1", **plan: int) -> ReplicaPricer:
    setup = Setup(engine=engine, engine_version=version, **{"tp": 8, **plan})
    return setup.replica(known_decoder(model), load_device(gpu), lambda *_: None)  # type: ignore[arg-type, return-value]


def runs(pricer: ReplicaPricer, name: str, tokens: int) -> float:
    """Of parts whose names begin so, in all layers of a pass that decodes."""
    parts = pricer._parts(Steps.of(decodes=tokens, decode_cached=64), ("products", "experts", "rest", "collectives"))
    return float(sum(part.runs.sum() for part in parts if part.name.startswith(name)))


@pytest.mark.parametrize(
    ("engine", "version", "most"), [("trtllm", "1.2", 1024), ("sglang", "0.5.9", 1024), ("vllm", "0.16", 256)]
)
def test_shared_experts_run_with_routed_ones_up_to_some_tokens(engine: str, version: str, most: int) -> None:
    pricer = replica(engine, version, "h200-sxm-141gb")
    assert runs(pricer, "shared", most) == 0.0
    assert runs(pricer, "shared", most + 1) == 4 * 58
    (few,), (many,) = (
        {
            int(part.batch["top_k"][0])
            for part in pricer._parts(Steps.of(decodes=tokens, decode_cached=64), ("experts",))
        }
        for tokens in (most, most + 1)
    )
    assert (few, many) == (9, 8)


def test_shared_experts_of_another_precision_run_alone() -> None:
    """Experts alone are narrow: products of shared ones cannot be groups of theirs."""
    pricer = replica("vllm", "0.19", "h200-sxm-141gb", "meta-llama/Llama-4-Scout-17B-16E-Instruct")
    assert runs(pricer, "shared up", 8) == 0.0 and runs(pricer, "shared gate up", 8) == 0.0
    scheme = pricer.precision.quantisation
    narrow = replace(scheme, method="fp8", weights="float8", activations="float8", kinds=frozenset({"experts"}))
    apart = replace(pricer, precision=replace(pricer.precision, quantisation=narrow))
    assert runs(apart, "shared", 8) > 0.0


def test_norms_run_within_reductions_of_few_bytes_alone() -> None:
    """vLLM on Hopper: 512 KiB, 36 rows of 7,168 values in 16 bits."""
    pricer = replica("vllm", "0.19", "h200-sxm-141gb")
    assert runs(pricer, "add and norm", 36) == 0.0
    assert runs(pricer, "add and norm", 37) == 2 * 61
    assert runs(replica("vllm", "0.19", "h200-sxm-141gb", tp=1, dp=8, ep=8), "add and norm", 36) == 2 * 61


def test_routing_is_a_kernel_where_experts_do_not_route() -> None:
    assert runs(replica("trtllm", "1.2", "h200-sxm-141gb"), "routing", 8) == 0.0
    assert runs(replica("sglang", "0.5.9", "h200-sxm-141gb"), "routing", 8) == 58
    assert runs(replica("sglang", "0.5.9", "b200-sxm-180gb"), "routing", 8) == 0.0


@pytest.mark.parametrize(
    ("engine", "version", "gpu", "expected"),
    [
        ("sglang", "0.5.9", "h200-sxm-141gb", "vllm"),
        ("sglang", "0.5.13", "b200-sxm-180gb", "vllm"),
        ("sglang", "0.5.14", "h200-sxm-141gb", ""),
        ("sglang", "", "h200-sxm-141gb", ""),
        ("vllm", "0.15", "h200-sxm-141gb", ""),
    ],
)
def test_all_reduce_is_of_its_version(engine: str, version: str, gpu: str, expected: str) -> None:
    batch = KernelBatch.from_columns("collective", op="all_reduce", ranks=8, bytes=65536)
    assert ran(engine, gpu, batch, version) == expected


def test_older_all_reduce_of_sglang_takes_what_that_of_vllm_takes(predictor: Predictor) -> None:
    """One kernel; short messages, which pass no switch."""
    batch = KernelBatch.from_columns("collective", op="all_reduce", ranks=8, bytes=[4096, 65536])
    device = load_device("h100-sxm-80gb")
    older, vllm, newer = (
        predictor._priced(batch, device, Conditions.of(2, timing="graph", engine=engine, variant=variant)).latency_s
        for engine, variant in (("sglang", "vllm"), ("vllm", ""), ("sglang", ""))
    )
    assert older.tolist() == pytest.approx(vllm.tolist())
    assert (older > 1.2 * newer).all()


@pytest.mark.parametrize(
    ("engine", "gpu", "model", "expected"),
    [
        ("sglang", "h200-sxm-141gb", "deepseek-ai/DeepSeek-R1", ("float8", "tensor")),
        ("trtllm", "h200-sxm-141gb", "deepseek-ai/DeepSeek-R1", ("float8", "block")),
        ("trtllm", "b200-sxm-180gb", "deepseek-ai/DeepSeek-R1", ("bfloat16", "")),
        ("vllm", "h200-sxm-141gb", "deepseek-ai/DeepSeek-R1", ("bfloat16", "")),
        ("sglang", "a100-sxm-80gb", "deepseek-ai/DeepSeek-V2", ("bfloat16", "")),
    ],
)
def test_products_around_absorbed_attention_are_narrow_by_engine(
    engine: str, gpu: str, model: str, expected: tuple[str, str]
) -> None:
    pricer = replica(engine, "", gpu, model)
    parts = pricer._parts(Steps.of(decodes=8, decode_cached=64), ("products",))
    found = {
        (str(p.batch["dtype"][0]), str(p.batch["scaling"][0]))
        for p in parts
        if p.name in ("query into latent", "value out of latent")
    }
    assert found == {expected}


@pytest.mark.parametrize(
    ("gpu", "expected"), [("h200-sxm-141gb", "triton"), ("l40s", "marlin"), ("b200-sxm-180gb", "flashinfer")]
)
def test_variant_of_mxfp4_experts(gpu: str, expected: str) -> None:
    shape = {"tokens": 8, "hidden": 512, "ffn": 256, "experts": 8, "all_experts": 8, "top_k": 2}
    batch = KernelBatch.from_columns("moe", **shape, dtype="bfloat16", weight_dtype="mxfp4")
    assert {ran(engine, gpu, batch) for engine in ("vllm", "sglang")} == {expected}


@pytest.mark.parametrize(
    ("engine", "gpu", "aiter", "times"),
    [
        ("vllm", "mi300x", False, (2.0, 3.0)),
        ("sglang", "mi355x", False, (2.0, 3.0)),
        ("vllm", "mi300x", True, (1.0, 1.0)),
        ("sglang", "mi300x", True, (1.0, 1.0)),
        ("vllm", "h100-sxm-80gb", False, (1.0, 1.0)),
        ("trtllm", "b200-sxm-180gb", True, (1.0, 1.0)),
    ],
)
def test_engine_run_without_the_kernels_of_a_vendor_takes_longer_for_scaled_blocks(
    engine: str, gpu: str, aiter: bool, times: tuple[float, float]
) -> None:
    device = load_device(gpu)
    run = engine_run(server_named(engine).started_on(Site(device=device)), device, aiter=aiter)
    columns = {"m": 64, "n": 512, "k": 512, "dtype": "float8"}
    experts = {"tokens": 64, "hidden": 512, "ffn": 256, "experts": 8, "all_experts": 8, "top_k": 2, "dtype": "float8"}
    assert slowdown(run, KernelBatch.from_columns("gemm", **columns, scaling="block")) == times[0]
    assert slowdown(run, KernelBatch.from_columns("moe", **experts, scaling="block")) == times[1]
    assert slowdown(run, KernelBatch.from_columns("gemm", **columns, scaling="tensor")) == 1.0
    assert slowdown(run, KernelBatch.from_columns("attention", **ATTENTION)) == 1.0


def test_block_scaled_mixtures_answer_faster_with_the_kernels_of_a_vendor() -> None:
    load = {"gpu": "mi300x", "batch": 8, "isl": 512, "osl": 64}
    slow, fast, wide = (
        Predictor.load().serving("Qwen/Qwen3-30B-A3B", dtype=dtype, aiter=aiter, **load).tpot_s.mean
        for dtype, aiter in (("fp8_block", False), ("fp8_block", True), ("bf16", False))
    )
    assert 1.2 * fast < slow < 3.0 * fast and fast < 1.5 * wide


def test_norms_over_all_heads_add_up_squares_of_ranks() -> None:
    """One exchange a layer for queries and keys; ranks that have all heads, and norms of single heads, need none."""
    assert runs(replica("vllm", "0.19", "h200-sxm-141gb", "MiniMaxAI/MiniMax-M2.5"), "reduce squares", 8) == 62
    assert runs(replica("vllm", "0.19", "h200-sxm-141gb", "MiniMaxAI/MiniMax-M2.5", tp=1), "reduce squares", 8) == 0
    assert runs(replica("vllm", "0.19", "h200-sxm-141gb", "Qwen/Qwen3-235B-A22B"), "reduce squares", 8) == 0
