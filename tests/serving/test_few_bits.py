"""Schemes of few bits as engines run them: by device, version and rows, and what their files hold."""

import json
from typing import Any

import numpy as np
import pytest

from neusight.api import Predictor
from neusight.devices import load_device, load_devices
from neusight.engines import server_named
from neusight.engines.libraries import scheme_run
from neusight.errors import NeusightError
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.kernels.precision import CACHE_DTYPES, stored_bytes
from neusight.kernels.schemes import NONE, scheme_named, schemes_by_name, with_kernels_for
from neusight.serving import Setup, Static
from neusight.serving.passes import ReplicaPricer
from neusight.workloads.decoders.architecture import decoder_of
from neusight.workloads.decoders.known import known_decoder
from neusight.workloads.decoders.shares import Steps

CONFIG = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 4096, "num_hidden_layers": 4,
    "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 16384, "torch_dtype": "bfloat16",
}  # fmt: skip


def replica(predictor: Predictor, gpu: str, engine: str = "vllm", dtype: str = "", **setup: Any) -> ReplicaPricer:
    decoder = decoder_of(CONFIG, "small")
    return Setup(engine=engine, dtype=dtype, **setup).replica(decoder, load_device(gpu), predictor._priced)


def prompt_s(predictor: Predictor, gpu: str, engine: str, dtype: str, rows: int, version: str = "") -> float:
    pricer = replica(predictor, gpu, engine, dtype, engine_version=version)
    return float(pricer.predict(Steps.of(prompts=1, prompt_tokens=rows)).latency_s[0])


@pytest.mark.parametrize(
    ("gpu", "engine", "dtype"),
    [
        ("t4", "vllm", "awq"), ("rtx-2080-ti", "llama.cpp", "q4_k_m"), ("v100-sxm2-16gb", "exllamav2", "exl2_4"),
        ("t4", "vllm", "gptq"), ("v100-sxm2-32gb", "llama.cpp", "q8_0"), ("titan-rtx", "transformers", "nf4"),
        ("quadro-rtx-8000", "sglang", "w8a16"), ("t4", "gpt-fast", "int4_linear"), ("t4", "vllm", ""),
    ],
)  # fmt: skip
def test_replica_computes_in_float16_where_the_device_has_no_bfloat16(
    predictor: Predictor, gpu: str, engine: str, dtype: str
) -> None:
    pricer = replica(predictor, gpu, engine, dtype)
    assert pricer.precision.dtype == "float16"
    assert pricer.predict(Steps.of(decodes=1, decode_cached=64)).latency_s[0] > 0
    assert replica(predictor, "l4", engine, dtype).precision.dtype == "bfloat16"


def test_replica_refuses_a_named_dtype_that_the_device_lacks(predictor: Predictor) -> None:
    for dtype in ("bf16", "bfloat16"):
        with pytest.raises(NeusightError, match="t4 does not compute in bfloat16"):
            replica(predictor, "t4", "vllm", dtype)


def test_replica_serves_in_float32_by_each_of_its_names(predictor: Predictor) -> None:
    for name in ("fp32", "float32", "FLOAT"):
        for engine in ("vllm", "transformers", "llama.cpp"):
            pricer = replica(predictor, "h100-sxm-80gb", engine, name)
            assert (pricer.precision.dtype, pricer.precision.kv_cache) == ("float32", "float32")
            assert pricer.precision.quantisation == NONE
    single, half = (prompt_s(predictor, "h100-sxm-80gb", "vllm", name, 4096) for name in ("fp32", "fp16"))
    assert single > 3 * half


@pytest.mark.parametrize("gpu", ["rtx-3090", "rtx-4090", "t4", "a100-sxm-80gb", "h100-pcie-80gb"])
@pytest.mark.parametrize("dtype", ["q4_0", "q6_k"])
def test_prompts_of_llama_cpp_have_no_cliff_at_65_rows(predictor: Predictor, gpu: str, dtype: str) -> None:
    """Tiles of products hold 16 rows more, at most: 80 for 64."""
    few, more = (prompt_s(predictor, gpu, "llama.cpp", dtype, rows) for rows in (64, 65))
    assert 0.95 <= more / few <= 80 / 64
    times = [prompt_s(predictor, gpu, "llama.cpp", dtype, rows) / rows for rows in (64, 128, 512)]
    assert times == sorted(times, reverse=True)


def test_older_builds_of_llama_cpp_widen_weights_of_long_prompts(predictor: Predictor) -> None:
    device = load_device("rtx-3090")
    for version, rows, activations in (("b2900", 64, ""), ("b3216", 64, "int8"), ("", 64, "int8")):
        run = scheme_run(scheme_named("q4_0"), server_named("llama.cpp", version), device)
        assert (run.fused_rows, run.activations) == (rows, activations)
    few, more = (prompt_s(predictor, "rtx-3090", "llama.cpp", "q4_0", rows, "b2900") for rows in (64, 65))
    assert more > 1.5 * few


@pytest.mark.parametrize(
    ("gpu", "engine", "dtype", "expected"),
    [
        ("v100-sxm2-16gb", "llama.cpp", "q4_0", ("", 64)),
        ("t4", "llama.cpp", "q4_0", ("int8", 64)),
        ("t4", "vllm", "awq", ("", 255)),
        ("rtx-3090", "vllm", "awq", ("", np.inf)),
        ("t4", "sglang", "w8a16", ("", 24)),
        ("a100-sxm-80gb", "vllm", "fp8", ("", np.inf)),
        ("h100-sxm-80gb", "vllm", "fp8_block", ("float8", np.inf)),
        ("h100-sxm-80gb", "vllm", "nvfp4", ("", np.inf)),
        ("b200-sxm-180gb", "vllm", "nvfp4", ("float4", np.inf)),
    ],
)
def test_scheme_run_follows_the_device(gpu: str, engine: str, dtype: str, expected: tuple[str, float]) -> None:
    run = scheme_run(scheme_named(dtype), server_named(engine), load_device(gpu))
    assert (run.activations, run.fused_rows) == expected


def test_gguf_of_mxfp4_keeps_the_rest_in_eight_bits(predictor: Predictor) -> None:
    """Experts take 4.25 bits, attention, embedding and head 8.5, router and norms 16."""
    for name in ("openai/gpt-oss-20b", "openai/gpt-oss-120b"):
        decoder, device = known_decoder(name), load_device("b200-sxm-180gb")
        held = {
            engine: Setup(engine=engine).replica(decoder, device, predictor._priced).precision.quantisation
            for engine in ("llama.cpp", "vllm")
        }
        rest, experts = (held["llama.cpp"].of(kind).weights for kind in ("attention", "experts"))
        assert (rest, experts) == ("q8_0", "mxfp4")
        assert [held["llama.cpp"].of(kind).weights for kind in ("head", "table", "router")] == ["q8_0", "q8_0", ""]
        assert not held["vllm"].of("attention") and held["vllm"].of("experts").weights == "mxfp4"
    load = Static(batch=1, isl=16, osl=16)
    answer = predictor.serving("openai/gpt-oss-20b", "rtx-3060", load, engine="llama.cpp")
    decoder = known_decoder("openai/gpt-oss-20b")
    assert 11.6e9 < answer.memory.weights < 12.6e9
    assert answer.memory.on_host == pytest.approx(decoder.vocab * decoder.hidden * stored_bytes("q8_0"))


def test_gguf_files_hold_the_table_of_tokens_in_few_bits(predictor: Predictor) -> None:
    load = Static(batch=1, isl=16, osl=16)
    decoder = decoder_of(CONFIG, "small")
    for dtype in ("q4_0", "q8_0", "q4_k_m"):
        weights = predictor.serving(decoder, "l4", load, engine="llama.cpp", dtype=dtype).memory.weights
        assert weights == pytest.approx(decoder.parameters * stored_bytes(dtype), rel=0.01)


@pytest.mark.parametrize("gpu", ["rtx-3090-ti", "rtx-3090", "rtx-4090", "rtx-a6000", "l4", "rtx-2080-ti", "t4"])
@pytest.mark.parametrize(("engine", "dtype"), [("vllm", "awq"), ("llama.cpp", "q4_0"), ("exllamav2", "exl2_4")])
def test_one_row_of_narrow_weights_is_limited_by_memory(
    predictor: Predictor, gpu: str, engine: str, dtype: str
) -> None:
    costs = replica(predictor, gpu, engine, dtype).predict(Steps.of(decodes=1, decode_cached=64))
    assert costs.limiters["gate up"][0] == "dram"


@pytest.mark.parametrize(
    ("name", "other"),
    [("uint1", "exl2_2"), ("uint2", "exl2_2"), ("uint3", "exl2_3"), ("uint5", "exl2_5"), ("w4a16", ""), ("q4_0", "")],
)
def test_with_kernels_for_names_the_nearest_width(name: str, other: str) -> None:
    assert with_kernels_for(scheme_named(name)) == other


def test_answers_of_unpacked_weights_name_a_scheme_with_kernels(predictor: Predictor) -> None:
    load = Static(batch=1, isl=16, osl=16)
    for dtype, said in (("uint3", True), ("uint6", True), ("exl2_3", False), ("awq", False)):
        answer = predictor.serving(decoder_of(CONFIG, "small"), "rtx-3090", load, dtype=dtype)
        assert any("unpacked before each product" in text for text in answer.warnings) == said


@pytest.mark.parametrize("gpu", ["a100-sxm-80gb", "h100-sxm-80gb", "l40s", "t4", "v100-sxm2-32gb", "rtx-3090"])
@pytest.mark.parametrize("narrow", ["int8", "int4", "q8_0", "q4_0"])
def test_narrow_cache_never_slows_decoding(predictor: Predictor, gpu: str, narrow: str) -> None:
    device, shape = load_device(gpu), {"batch": 64, "heads": 32, "kv_heads": 32, "q_len": 1, "kv_len": 2048}
    wide, less = (
        predictor._priced(
            KernelBatch.from_columns("attention", head_dim=128, dtype="float16", kv_dtype=kv, **shape),
            device, Conditions.of(1, timing="graph", launches=1e3, engine="vllm"),
        ).latency_s[0]
        for kv in ("", narrow)
    )  # fmt: skip
    assert less < 0.95 * wide


def test_replica_keeps_its_cache_in_four_bits(predictor: Predictor) -> None:
    load = Static(batch=4, isl=512, osl=64)
    kept = {
        kv: predictor.serving(
            decoder_of(CONFIG, "small"), "b200-sxm-180gb", load, kv_dtype=kv
        ).memory.kv_bytes_per_token
        for kv in CACHE_DTYPES
    }
    for kv, size in kept.items():
        assert size == pytest.approx(kept["float16"] * stored_bytes(kv) / 2)


def test_idle_power_stays_under_a_limit_that_is_not_reached(predictor: Predictor) -> None:
    load = Static(batch=1, isl=16, osl=32)
    for gpu in ("rtx-4090", "h100-sxm-80gb"):
        own = load_device(gpu).tdp_w
        devices = [load_devices([gpu], [f"tdp={share * own:g}W"])[0] for share in (1.0, 0.8, 1.3)]
        drawn = [predictor.serving(decoder_of(CONFIG, "small"), one, load, dtype="awq").power_w for one in devices]
        assert drawn == pytest.approx([drawn[0]] * 3, rel=0.02)
        (low,) = load_devices([gpu], [f"tdp={0.1 * own:g}W"])
        assert predictor.serving(decoder_of(CONFIG, "small"), low, load, dtype="awq").power_w < drawn[0]


def test_every_scheme_runs_under_each_plan(predictor: Predictor) -> None:
    """Dense under tensor parallelism, experts under data-parallel attention."""
    step = Steps.of(decodes=[1, 64], decode_cached=127)
    mixture = decoder_of(
        CONFIG | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}, "experts"
    )
    device = load_device("b200-sxm-180gb")
    plans: tuple[dict[str, int], ...] = ({"tp": 2}, {"dp": 2, "ep": 2}, {"dp": 4, "ep": 4})
    for number, name in enumerate(schemes_by_name()):
        for engine in ("vllm", "tensorrt-llm")[: 1 + (number < 11)]:
            run = Setup(engine=engine, dtype=name, **plans[number % 3]).replica(mixture, device, predictor._priced)
            assert (run.predict(step).latency_s > 0).all(), (name, engine)


def test_schemes_are_named_once_and_json_has_them() -> None:
    """A scheme is a value: its weights have a size, and each alias leads to one."""
    for name, scheme in schemes_by_name().items():
        assert scheme.method == ("" if name == "none" else name)
        assert scheme.weight_bytes("bfloat16") <= 2.0
        json.dumps(sorted(scheme.kinds))
    for alias, name in (
        ("awq", "w4a16"),
        ("int8wo", "int8_linear"),
        ("EXL2", "exl2_4"),
        ("int8dq-2:4", "int8_two_of_four"),
    ):
        assert scheme_named(alias) is scheme_named(name)
