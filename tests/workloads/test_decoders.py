"""Decoders from configurations: published sizes, caches, schemes of quantisation, names and mistakes."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_decoders import CONFIGS, DEEPSEEK, INDEX, NARROW, config_of

from neusight.engines import server_named
from neusight.errors import ModelError
from neusight.kernels.precision import Precision
from neusight.kernels.schemes import NONE, scheme_named
from neusight.measured import read_table
from neusight.plans.stages import stage_weights, stages_of
from neusight.requests import Plan
from neusight.serving.memory import weight_bytes
from neusight.workloads.decoders.architecture import decoder_of
from neusight.workloads.decoders.build import step_program
from neusight.workloads.decoders.decoder import Decoder
from neusight.workloads.decoders.known import known_decoder, known_decoders
from neusight.workloads.decoders.quantisation import ServingPrecision, quantisation_of
from neusight.workloads.decoders.shares import Steps

PUBLISHED = {
    "meta-llama/Llama-3.1-8B": (8.03, 8.03), "meta-llama/Llama-3.1-70B": (70.6, 70.6),
    "meta-llama/Llama-3.1-405B": (405.9, 405.9), "Qwen/Qwen2.5-7B": (7.62, 7.62), "Qwen/Qwen3-32B": (32.8, 32.8),
    "mistralai/Mixtral-8x7B-v0.1": (46.7, 12.9), "mistralai/Mixtral-8x22B-v0.1": (140.6, 39.1),
    "Qwen/Qwen3-235B-A22B": (235.0, 22.2), "Qwen/Qwen3-30B-A3B": (30.5, 3.35),
    "deepseek-ai/DeepSeek-V3": (671.0, 37.5), "openai/gpt-oss-120b": (116.8, 5.71), "openai/gpt-oss-20b": (20.9, 4.19),
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": (107.8, 17.2),
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": (400.7, 17.2), "Qwen/Qwen3-Next-80B-A3B": (79.7, 3.87),
    "nvidia/NVIDIA-Nemotron-Nano-9B-v2": (8.89, 8.89), "nvidia/NVIDIA-Nemotron-Nano-12B-v2": (12.31, 12.31),
    "moonshotai/Kimi-K2.5": (1026.0, 32.9), "deepseek-ai/DeepSeek-V4-Flash": (284.0, 13.8),
}  # fmt: skip
"""Billions of parameters, all and those of a token, from model cards and from files on the hub; embeddings count."""
ON_THE_HUB: dict[str, float | tuple[float, float]] = {
    "01-ai/Yi-1.5-34B-Chat": 34.4, "ai21labs/Jamba-v0.1": (51.6, 12.1), "ai21labs/AI21-Jamba-1.5-Large": (398.5, 94.1),
    "allenai/OLMo-2-0425-1B-Instruct": 1.48, "allenai/OLMo-2-1124-7B-Instruct": 7.3,
    "allenai/OLMo-2-1124-13B-Instruct": 13.7, "allenai/OLMo-2-0325-32B-Instruct": 32.2,
    "allenai/OLMoE-1B-7B-0924-Instruct": (6.92, 1.28), "bigcode/starcoder2-7b": 7.17, "bigcode/starcoder2-15b": 15.96,
    "ByteDance-Seed/Seed-OSS-36B-Instruct": 36.2, "codellama/CodeLlama-34b-Instruct-hf": 33.7,
    "CohereLabs/aya-expanse-8b": 8.03, "CohereLabs/c4ai-command-a-03-2025": 111.0,
    "CohereLabs/c4ai-command-r-v01": 35.0, "CohereLabs/c4ai-command-r-08-2024": 32.3,
    "CohereLabs/c4ai-command-r-plus": 103.8, "CohereLabs/c4ai-command-r7b-12-2024": 8.03,
    "deepseek-ai/deepseek-coder-33b-instruct": 33.3, "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": 1.78,
    "deepseek-ai/DeepSeek-V2": (235.7, 21.4), "deepseek-ai/DeepSeek-V2-Lite": (15.7, 2.66),
    "google/gemma-2-2b-it": 2.61, "google/gemma-2-9b-it": 9.24, "google/gemma-2-27b-it": 27.2,
    "google/gemma-3-1b-it": 1.0, "google/gemma-3-4b-it": 3.88, "google/gemma-3-12b-it": 11.8,
    "google/gemma-3-27b-it": 27.0, "HuggingFaceTB/SmolLM2-135M-Instruct": 0.1345,
    "HuggingFaceTB/SmolLM2-360M-Instruct": 0.362, "HuggingFaceTB/SmolLM2-1.7B-Instruct": 1.71,
    "HuggingFaceTB/SmolLM3-3B": 3.08, "ibm-ai-platform/Bamba-9B-v1": 9.78,
    "ibm-granite/granite-3.3-2b-instruct": 2.53, "ibm-granite/granite-3.3-8b-instruct": 8.17,
    "ibm-granite/granite-3.1-1b-a400m-instruct": (1.33, 0.43),
    "ibm-granite/granite-3.1-3b-a800m-instruct": (3.3, 0.88), "ibm-granite/granite-4.0-h-small": (32.2, 8.8),
    "ibm-granite/granite-4.0-h-tiny": (6.94, 1.47), "ibm-granite/granite-4.0-h-micro": 3.19,
    "ibm-granite/granite-4.0-micro": 3.4, "internlm/internlm2_5-7b-chat": 7.74, "internlm/internlm3-8b-instruct": 8.8,
    "LGAI-EXAONE/EXAONE-4.0-32B": 32.0, "meta-llama/Llama-2-13b-hf": 13.0, "meta-llama/Llama-2-70b-hf": 69.0,
    "meta-llama/Llama-3.2-1B": 1.24, "meta-llama/Llama-3.2-3B": 3.21, "microsoft/Phi-3-mini-4k-instruct": 3.82,
    "microsoft/Phi-3-medium-4k-instruct": 14.0, "microsoft/Phi-3.5-MoE-instruct": (41.9, 6.64), "microsoft/phi-4": 14.7,
    "microsoft/Phi-4-mini-instruct": 3.84, "MiniMaxAI/MiniMax-M2": (228.7, 11.0),
    "mistralai/Ministral-8B-Instruct-2410": 8.02, "mistralai/Mistral-7B-v0.3": 7.25,
    "mistralai/Mistral-Large-Instruct-2407": 122.6, "mistralai/Mistral-Nemo-Instruct-2407": 12.2,
    "mistralai/Mistral-Small-24B-Instruct-2501": 23.6, "mistralai/Mistral-Small-Instruct-2409": 22.2,
    "moonshotai/Kimi-K2-Instruct": (1026.0, 32.9), "nvidia/Nemotron-H-8B-Base-8K": 8.1,
    "Qwen/Qwen2-7B": 7.62, "Qwen/Qwen2.5-VL-3B-Instruct": 3.09, "Qwen/Qwen2.5-VL-32B-Instruct": 32.8,
    "Qwen/Qwen2.5-VL-72B-Instruct": 72.7, "Qwen/Qwen3-0.6B": 0.596, "Qwen/Qwen3-1.7B": 1.72, "Qwen/Qwen3-4B": 4.02,
    "Qwen/QwQ-32B": 32.8, "tiiuae/Falcon3-7B-Instruct": 7.46,
    "tiiuae/Falcon-H1-0.5B-Instruct": 0.521, "tiiuae/Falcon-H1-7B-Instruct": 7.59,
    "tiiuae/Falcon-H1-34B-Instruct": 33.6,
    "zai-org/GLM-4-9B-0414": 9.4,
    "zai-org/GLM-4-32B-0414": 32.6, "zai-org/GLM-4.5": (352.8, 33.6), "zai-org/GLM-4.5-Air": (106.9, 13.4),
}  # fmt: skip
"""The same to the digits that cards and the hub show, without vision encoders and layers of multi-token prediction."""


def served_bytes(decoder: Decoder, precision: ServingPrecision, tp: int = 1) -> float:
    """Weights on a rank of an engine that does not pad vocabularies."""
    engine, plan = replace(server_named("vllm"), vocabulary_multiple=1), Plan(tp=tp)
    program = step_program(decoder, Steps.of(decodes=1), precision, plan, engine)
    return weight_bytes(stage_weights(stages_of(decoder.order, plan)[0], program), precision)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(name: str) -> None:
    decoder = known_decoder(name)
    assert (decoder.parameters / 1e9, decoder.active_parameters / 1e9) == pytest.approx(PUBLISHED[name], rel=3e-3)


@pytest.mark.parametrize("name", ON_THE_HUB)
def test_parameters_are_those_on_the_hub(name: str) -> None:
    decoder, published = known_decoder(name.lower()), ON_THE_HUB[name]
    both = published if isinstance(published, tuple) else (published, published)
    assert (decoder.parameters / 1e9, decoder.active_parameters / 1e9) == pytest.approx(both, rel=5e-3)


VISION_BILLIONS = {
    "Qwen/Qwen2.5-VL-7B-Instruct": 0.63, "Qwen/Qwen2.5-VL-72B-Instruct": 0.64, "google/gemma-3-27b-it": 0.41,
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": 0.40,
}  # fmt: skip
"""Layers of vision encoders: 32 of 1280 x 3420 gated, 27 of 1152 x 4304 (SigLIP), 24 of 1024 x 4096 gated."""


@pytest.mark.parametrize("name", VISION_BILLIONS)
def test_vision_encoders_are_those_of_the_cards(name: str) -> None:
    tower = known_decoder(name).vision_tower
    assert tower is not None
    assert tower.parameters / 1e9 == pytest.approx(VISION_BILLIONS[name], rel=0.02)


def test_weights_on_disk_are_the_published_ones() -> None:
    """Gigabytes of safetensors on the hub: 65.2 of gpt-oss-120b, 16.06 of Llama-3.1-8B."""
    for name, size in (("openai/gpt-oss-120b", 65.2e9), ("meta-llama/Llama-3.1-8B", 16.06e9)):
        decoder = known_decoder(name)
        own = ServingPrecision.named("", own=decoder.quantisation)
        assert served_bytes(decoder, own) == pytest.approx(size, rel=5e-3)


@pytest.mark.skipif("NEUSIGHT_DATA" not in os.environ, reason="NEUSIGHT_DATA is not set")
def test_every_measured_model_builds() -> None:
    tables = [read_table(file).frame for file in Path(os.environ["NEUSIGHT_DATA"]).glob("serving/*.parquet")]
    configs = {text for frame in tables if "config" in frame for text in frame["config"].dropna()}
    assert len(configs) > 10
    assert all(decoder_of(json.loads(text), "measured").parameters > 1e8 for text in configs)


def test_every_known_decoder_builds_and_is_found_in_any_case() -> None:
    for name in known_decoders():
        assert known_decoder(name.upper()).name == name
        assert sum(count for _, count in known_decoder(name).layers) == known_decoder(name).depth
    assert known_decoder("qwen3-32b").name == "Qwen/Qwen3-32B"
    assert known_decoder("gpt2").family == "gpt2"


def test_a_configuration_in_a_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_of("llama")), encoding="utf-8")
    found = known_decoder(str(tmp_path))
    assert found == known_decoder(str(tmp_path / "config.json"))
    assert (found.name, found.depth) == (tmp_path.name, 4)


def test_a_composed_model_is_its_text_part() -> None:
    outer = {"model_type": "qwen3_vl", "text_config": config_of("qwen3") | {"model_type": "qwen3_vl_text"}}
    described = decoder_of(outer | {"vision_config": {"depth": 2}, "audio_config": {"depth": 2}}, "x")
    assert described == replace(
        decoder_of(config_of("qwen3"), "x"), family="qwen3_vl_text",
        notes=("vision_config, audio_config of the configuration not counted: the text model alone",),
    )  # fmt: skip


WRONG = {
    "unknown family": ({"model_type": "perceiver_io", "d_model": 8}, "families are llama"),
    "no heads": ({**config_of("llama"), "num_attention_heads": None}, "states no num_attention_heads"),
    "uneven heads": ({**config_of("llama"), "num_key_value_heads": 3}, "is not a multiple of num_key_value_heads = 3"),
    "too many chosen": ({**config_of("mixtral"), "num_experts_per_tok": 9}, "num_experts_per_tok = 9 of 8 experts"),
    "short list": ({**config_of("gemma2"), "layer_types": ["full_attention"]}, "for each of 4 layers"),
    "text for a number": ({**config_of("llama"), "vocab_size": "many"}, "vocab_size = 'many' must be a whole number"),
    "encoder": ({"model_type": "bert", **NARROW}, "is no decoder"),
    "scheme": ({**config_of("llama"), "quantization_config": {"quant_method": "hqq"}}, "quant_method 'hqq'"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_configuration_is_refused_in_one_line(what: str) -> None:
    config, message = WRONG[what]
    with pytest.raises(ModelError) as caught:
        decoder_of(config, "mine")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_name_brings_the_nearest_and_the_remedy() -> None:
    with pytest.raises(ModelError, match=r"did you mean Qwen/Qwen3-32B.*give the path of its config\.json"):
        known_decoder("Qwen/Qwen3-33B")


@pytest.mark.parametrize("name", ["arctic-instruct", "dbrx-instruct", "h-small", "grok-1", "xlarge-7b"])
def test_an_unrelated_name_brings_no_suggestion(name: str) -> None:
    with pytest.raises(ModelError, match=r"not in the catalogue.*config\.json") as caught:
        known_decoder(name)
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize("name", ["anyone/Qwen3-8B", "qwen3_8b", "Qwen3 8B", "QWEN3-8BB"])
def test_a_suggestion_is_another_name_than_the_given_one(name: str) -> None:
    with pytest.raises(ModelError, match=r"did you mean Qwen/Qwen3-8B[,?]") as caught:
        known_decoder(name)
    assert f"did you mean {name.lower()}," not in str(caught.value).lower()


def test_an_unknown_family_with_the_keys_of_llama_is_built_as_one_and_says_so() -> None:
    found, llama = decoder_of(config_of("llama") | {"model_type": "newcomer"}), decoder_of(config_of("llama"))
    assert found.layers == llama.layers
    assert "newcomer" in found.notes[0]


SCALARS = {"rope_theta": 1e6, "attention_dropout": 0.1, "bos_token_id": 1, "rms_norm_eps": 1e-6, "logit_scale": 0.1}
OTHER_LAYERS = {
    "jamba": {"attn_layer_period": 8, "attn_layer_offset": 4, "mamba_d_state": 16},
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 8},
    "listed": {"layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    "blocks": {"layers_block_type": ["hybrid", "mamba", "hybrid", "mamba"]},
    "pattern": {"hybrid_override_pattern": "M*-M"},
    "linear": {"linear_num_key_heads": 4, "linear_attn_config": {"head_dim": 16}},
    "latent": {"kv_lora_rank": 16, "q_lora_rank": 8},
    "recurrent": {"lru_width": 64, "block_types": ["recurrent", "attention"]},
    "state": {"ssm_state_size": 16},
}


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen3", "newcomer"])
@pytest.mark.parametrize("what", OTHER_LAYERS)
def test_fields_of_other_layers_are_refused_by_name(kind: str, what: str) -> None:
    field = next(iter(OTHER_LAYERS[what]))
    with pytest.raises(ModelError, match=f"'{kind}'") as caught:
        decoder_of({**NARROW, "model_type": kind, **OTHER_LAYERS[what]}, "mine")
    assert field in str(caught.value) or "layers " in str(caught.value)
    assert decoder_of({**NARROW, "model_type": kind, **SCALARS}, "mine").depth == 4


@pytest.mark.parametrize(
    "more",
    [
        {"type_vocab_size": 2}, {"hidden_act": "xielu"}, {"num_codebooks": 8}, {"cross_attention_layers": [3]},
        {"num_kv_shared_layers": 2}, {"audio_encoder_config": {"depth": 2}}, {"v_head_dim": 8},
    ],
)  # fmt: skip
def test_an_unknown_family_is_no_llama_with_fields_that_llama_has_not(more: dict[str, object]) -> None:
    with pytest.raises(ModelError, match=f"'newcomer' is not known.*do not explain {next(iter(more))}"):
        decoder_of({**NARROW, "model_type": "newcomer", **more})


def test_listed_layers_that_all_attend_need_no_state_space() -> None:
    listed = {"layer_types": ["attention"] * 4, "mamba_d_state": 16, "mamba_n_heads": 4}
    assert decoder_of({**NARROW, "model_type": "granite", **listed}).layers == decoder_of(config_of("llama")).layers


def test_cache_of_grouped_queries() -> None:
    """2 tensors x 8 heads x 128 values x 80 layers, of 2 bytes or 1."""
    decoder = known_decoder("meta-llama/Llama-3.1-70B")
    assert decoder.kv_bytes_per_token("bfloat16") == 2 * 8 * 128 * 80 * 2
    assert decoder.kv_bytes_per_token("float8") == 2 * 8 * 128 * 80
    # Ranks beyond the number of key heads keep copies.
    shares = [decoder.kv_bytes_per_token("bfloat16", tp) / (2 * 128 * 80 * 2) for tp in (1, 2, 8, 16)]
    assert shares == [8, 4, 1, 1]


def test_hybrid_caches_only_where_it_attends() -> None:
    """Jamba: one layer of four, 2 heads of 16; each of the others a state of 128 channels x 8 and 3 inputs of those."""
    jamba = decoder_of(config_of("jamba"))
    assert jamba.kv_bytes_per_token("bfloat16") == 2 * 2 * 16 * 2
    assert jamba.state_bytes_per_sequence() == 3 * (128 * 8 * 4 + 128 * 3 * 2)
    assert jamba.active_parameters < jamba.parameters
    both = decoder_of(config_of("falcon_h1"))
    assert both.kv_bytes_per_token("bfloat16") == 4 * 2 * 2 * 16 * 2
    assert both.state_bytes_per_sequence() == 4 * (96 * 16 * 4 + (96 + 2 * 16) * 3 * 2)


def test_windows_bound_the_cache() -> None:
    """gpt-oss: half of the layers keep 128 tokens."""
    decoder = known_decoder("openai/gpt-oss-120b")
    token, lengths = 2 * 8 * 64 * 2, np.array([0, 100, 128, 1000])
    expected = 18 * token * (np.minimum(lengths, 128) + lengths)
    assert decoder.kv_bytes(lengths, "bfloat16").tolist() == expected.tolist()


def test_latent_cache_is_on_every_rank() -> None:
    decoder = known_decoder("deepseek-ai/DeepSeek-V3")
    assert {decoder.kv_bytes_per_token("bfloat16", tp) for tp in (1, 8)} == {61 * (512 + 64) * 2}


def test_recurrent_state_does_not_grow() -> None:
    decoder = known_decoder("Qwen/Qwen3-Next-80B-A3B")
    state, inputs = 32 * 128 * 128 * 4, (2 * 16 * 128 + 32 * 128) * 3 * 2
    assert decoder.state_bytes_per_sequence() == 36 * (state + inputs)
    assert decoder.kv_bytes_per_token("bfloat16") == 12 * 2 * 2 * 256 * 2
    assert decoder.state_bytes_per_sequence(2) == decoder.state_bytes_per_sequence() / 2


@pytest.mark.parametrize("name", CONFIGS)
def test_ranks_hold_all_weights_together(name: str) -> None:
    """Up to what each holds for itself: norms, latent projections, routers, and scales."""
    decoder = decoder_of(config_of(name))
    whole = served_bytes(decoder, ServingPrecision())
    assert whole == pytest.approx(2 * decoder.parameters, rel=1e-9)
    if name.split()[0] not in ("falcon", "gpt_bigcode", "nemotron_h"):
        half = served_bytes(decoder, ServingPrecision(), tp=2)
        assert 0.5 * whole <= half < whole


METHODS = {
    "fp8": ({"quant_method": "fp8"}, scheme_named("fp8")),
    "fp8 static": ({"quant_method": "fp8", "activation_scheme": "static"}, replace(scheme_named("fp8"), dynamic=False)),
    "fp8 block": ({"quant_method": "fp8", "weight_block_size": [128, 128]}, scheme_named("fp8_block")),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 64}, replace(scheme_named("w4a16"), group=64)),
    "gptq": ({"quant_method": "gptq", "bits": 8, "group_size": -1}, replace(scheme_named("w8a16"), group=0)),
    "mxfp4": ({"quant_method": "mxfp4"}, replace(scheme_named("mxfp4"), kinds=frozenset({"experts"}))),
    "nvfp4": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, scheme_named("nvfp4")),
    "w4a16": (
        {"quant_method": "compressed-tensors",
         "config_groups": {"a": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}}},
        replace(scheme_named("w4a16"), group=32),
    ),
    "w8a8": (
        {"quant_method": "compressed-tensors",
         "config_groups": {"a": {"weights": {"num_bits": 8, "type": "int"}, "input_activations": {"num_bits": 8}}}},
        scheme_named("w8a8"),
    ),
    "some kept": (
        {"quant_method": "fp8", "modules_to_not_convert": ["lm_head", "re:.*self_attn.*", "mlp.gate"]},
        replace(scheme_named("fp8"), kinds=frozenset({"feed_forward", "experts"})),
    ),
    "half of layers kept": (
        {"quant_method": "modelopt", "quant_algo": "NVFP4",
         "ignore": ["lm_head", *(f"model.layers.{n}.self_attn*" for n in range(4)), "model.layers.0.mlp*"]},
        replace(scheme_named("nvfp4"), kinds=frozenset({"feed_forward", "experts"})),
    ),
    "experts alone": (
        {"quant_method": "quark", "exclude": ["*self_attn*", "re:.*shared_experts.*"]},
        replace(scheme_named("mxfp4"), kinds=frozenset({"experts"})),
    ),
    "cache": (
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": {"num_bits": 8, "type": "float"}},
        replace(scheme_named("nvfp4"), cache="float8"),
    ),
    "single layers kept": ({"quant_method": "fp8", "ignore": ["model.layers.0.self_attn.q_proj"]}, scheme_named("fp8")),
}  # fmt: skip


@pytest.mark.parametrize(("kv", "cache"), [("", "float8"), ("bf16", "bfloat16")])
def test_serving_precision_caches_as_the_checkpoint_says_unless_told(kv: str, cache: str) -> None:
    own = replace(scheme_named("nvfp4"), cache="float8")
    assert ServingPrecision.named("", own=own, kv=kv).kv_cache == cache
    assert ServingPrecision.named("bf16", own=own).kv_cache == "bfloat16"


@pytest.mark.parametrize("what", METHODS)
def test_quantisation_is_read(what: str) -> None:
    said, expected = METHODS[what]
    assert quantisation_of({"num_hidden_layers": 8, "quantization_config": said}, "mine") == expected


def test_nothing_said_is_nothing_quantised() -> None:
    assert quantisation_of({}, "mine") == NONE
    assert not known_decoder("Qwen/Qwen3-32B").quantisation
    assert known_decoder("Qwen/Qwen3-32B-FP8").quantisation.scaling == "block"


def test_bytes_of_weights_with_their_scales() -> None:
    sizes = {name: scheme_named(name).weight_bytes("bfloat16") for name in ("none", "fp8", "w4a16", "mxfp4", "nvfp4")}
    assert sizes == {"none": 2, "fp8": 1, "w4a16": 0.5 + 2 / 128, "mxfp4": 4.25 / 8, "nvfp4": 4.5 / 8}


def test_precisions_become_schemes() -> None:
    assert ServingPrecision.of(Precision.named("float16")) == ServingPrecision(dtype="float16", kv_cache="float16")
    eight = ServingPrecision.of(Precision(weights="float8", activations="float8", kv_cache="float8"))
    assert eight == ServingPrecision(kv_cache="float8", quantisation=scheme_named("fp8"))
    narrow = ServingPrecision.of(Precision(weights="int4", activations="bfloat16", kv_cache="bfloat16"))
    assert narrow == ServingPrecision(quantisation=scheme_named("w4a16"))
    assert ServingPrecision.named("awq").quantisation == scheme_named("w4a16")
    with pytest.raises(ModelError, match="unknown precision 'fp9'; did you mean fp8"):
        ServingPrecision.named("fp9")


def test_indexers_add_their_own_cache() -> None:
    plain, sparse = (decoder_of({"model_type": "deepseek_v32", **DEEPSEEK, **more}) for more in ({}, INDEX))
    extra = sparse.kv_bytes_per_token("bfloat16") - plain.kv_bytes_per_token("bfloat16")
    assert extra == 4 * 16 * (128 + 4) / 128


@pytest.mark.parametrize(("name", "parameters"), [("t5-small", 60_506_624), ("t5-large", 737_668_096)])
def test_t5_is_an_encoder_and_layers_that_attend_to_it(name: str, parameters: int) -> None:
    decoder = known_decoder(name)
    assert decoder.parameters == parameters
    encoder, attends = (layer for layer, _ in decoder.layers)
    assert (encoder.encodes, encoder.cross, attends.encodes, attends.norms) == (True, None, False, 3)
    with pytest.raises(ModelError, match="has an encoder, which engines that are known here do not serve"):
        step_program(decoder, Steps.of(prompts=1, prompt_tokens=1), ServingPrecision(), Plan())


def test_gated_t5_has_two_products_up() -> None:
    config = {"model_type": "mt5", "num_layers": 2, "d_model": 64, "d_ff": 128, "d_kv": 16, "num_heads": 4}
    config |= {"vocab_size": 256, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    decoder = decoder_of(config, "mine")
    # Encoder: 4 h² and 3 h f and two norms; decoder: 8 h² and three; two tables, norms of both ends, biases.
    layers = 2 * (4 * 64**2 + 3 * 64 * 128 + 2 * 64) + 2 * (8 * 64**2 + 3 * 64 * 128 + 3 * 64)
    assert decoder.parameters == layers + 2 * 256 * 64 + 2 * 64 + 2 * 32 * 4
