"""Small configurations of every family of decoders, and their modules as transformers builds them."""

from __future__ import annotations

import warnings
from typing import Any

WIDE = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 128,
    "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
GROUPED = WIDE | {"num_key_value_heads": 2}
NARROW = GROUPED | {"head_dim": 16}
ROUTED = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
LOCAL = {"num_local_experts": 8, "num_experts_per_tok": 2}
DEEPSEEK = WIDE | {
    "num_key_value_heads": 4, "moe_intermediate_size": 48, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 24, "kv_lora_rank": 32,
    "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
}  # fmt: skip
INDEX = {"index_topk": 8, "index_n_heads": 2, "index_head_dim": 16}
LINEAR = {
    "shared_expert_intermediate_size": 80, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16,
}  # fmt: skip
OLD = {"n_embd": 64, "n_layer": 4, "n_head": 4, "vocab_size": 128, "n_positions": 64}
FALCON = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 128}
MAMBA = NARROW | {"mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 2}
BAMBA = {"mamba_n_heads": 4, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_d_head": 32}
MIXED = ["mamba", "attention", "mamba", "mamba"]
WINDOW = {"sliding_window": 16}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": NARROW,
    "llama biased": NARROW | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "mistral": GROUPED | WINDOW,
    "ministral3": NARROW,
    "arcee": NARROW,
    "mixtral": GROUPED | LOCAL,
    "qwen2": GROUPED,
    "qwen2 windowed": GROUPED | WINDOW | {"use_sliding_window": True, "max_window_layers": 2},
    "qwen3": NARROW,
    "qwen2_moe": GROUPED | ROUTED | {"shared_expert_intermediate_size": 80},
    "qwen3_moe": NARROW | ROUTED,
    "qwen3_moe mixed": NARROW | ROUTED | {"decoder_sparse_step": 2, "mlp_only_layers": [3]},
    "qwen3_next": NARROW | ROUTED | LINEAR,
    "qwen3_5_moe_text": NARROW | ROUTED | LINEAR,
    "gemma": NARROW,
    "gemma2": NARROW | WINDOW,
    "gemma3_text": NARROW | WINDOW | {"num_hidden_layers": 7},
    "phi": GROUPED,
    "phi3": GROUPED,
    "phimoe": GROUPED | {"num_local_experts": 8},
    "gpt_neox": WIDE,
    "gpt_neox serial": WIDE | {"use_parallel_residual": False, "attention_bias": False},
    "opt": WIDE | {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "opt narrow": WIDE | {"ffn_dim": 96, "word_embed_proj_dim": 32, "do_layer_norm_before": False},
    "gptj": OLD | {"rotary_dim": 8},
    "gpt2": OLD,
    "gpt_bigcode": OLD,
    "bloom": {"hidden_size": 64, "n_layer": 4, "n_head": 4, "vocab_size": 128},
    "falcon": FALCON,
    "falcon new": FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2, "multi_query": False},
    "falcon serial": FALCON | {"parallel_attn": False, "multi_query": False, "bias": True, "alibi": True},
    "gpt_oss": NARROW | LOCAL | WINDOW,
    "deepseek_v2": DEEPSEEK | {"q_lora_rank": None},
    "deepseek_v3": DEEPSEEK,
    "deepseek_v32": DEEPSEEK | INDEX,
    "glm_moe_dsa": DEEPSEEK | INDEX,
    "glm4_moe_lite": DEEPSEEK,
    "deepseek_v4": {key: value for key, value in WIDE.items() if key != "intermediate_size"} | INDEX | WINDOW | {
        "num_key_value_heads": 1, "head_dim": 32, "moe_intermediate_size": 48, "n_routed_experts": 8,
        "num_experts_per_tok": 2, "q_lora_rank": 24, "qk_rope_head_dim": 8, "o_groups": 2, "o_lora_rank": 12,
        "compress_ratios": [0, 4, 128, 4],
    },
    "llama4_text": NARROW | LOCAL | {
        "intermediate_size_mlp": 112, "interleave_moe_layer_step": 2, "num_experts_per_tok": 1,
    },
    "glm4": NARROW,
    "glm4_moe": NARROW | {
        "moe_intermediate_size": 48, "n_routed_experts": 8, "num_experts_per_tok": 2, "first_k_dense_replace": 1,
        "use_qk_norm": True, "attention_bias": True,
    },
    "minimax_m2": NARROW | LOCAL,
    "nemotron": GROUPED,
    "nemotron_h": MAMBA | {"hybrid_override_pattern": "M-M*"},
    "nemotron_h moe": MAMBA | {
        "hybrid_override_pattern": "ME*E", "n_routed_experts": 8, "moe_intermediate_size": 48, "n_shared_experts": 1,
        "num_experts_per_tok": 2, "moe_shared_expert_intermediate_size": 40,
    },
    "jamba": GROUPED | {
        "num_experts": 4, "num_experts_per_tok": 2, "attn_layer_period": 4, "attn_layer_offset": 1,
        "expert_layer_period": 2, "expert_layer_offset": 1, "mamba_d_state": 8, "mamba_dt_rank": 12,
    },
    "bamba": GROUPED | BAMBA | {"attn_layer_indices": [2]},
    "granitemoehybrid": GROUPED | BAMBA | LOCAL | {"shared_intermediate_size": 80, "layer_types": MIXED},
    "granitemoehybrid dense": GROUPED | BAMBA | {
        "num_local_experts": 0, "shared_intermediate_size": 80, "layer_types": ["attention"] * 4,
    },
    "falcon_h1": GROUPED | BAMBA | {"mamba_d_ssm": 96, "mamba_d_head": 24, "mamba_rms_norm": False},
    "mamba": {"hidden_size": 64, "num_hidden_layers": 4, "state_size": 8, "vocab_size": 128},
    "falcon_mamba": {"hidden_size": 64, "num_hidden_layers": 4, "state_size": 8, "vocab_size": 128},
    "olmoe": GROUPED | {"num_experts": 8, "num_experts_per_tok": 2},
    "olmo": GROUPED,
    "olmo2": GROUPED,
    "olmo3": GROUPED | WINDOW,
    "exaone4": GROUPED | WINDOW,
    "starcoder2": GROUPED,
    "cohere": GROUPED,
    "cohere normed": GROUPED | {"use_qk_norm": True},
    "cohere2": GROUPED | WINDOW,
    "granite": GROUPED,
    "granitemoe": GROUPED | LOCAL,
    "granitemoeshared": GROUPED | LOCAL | {"shared_intermediate_size": 80},
    "stablelm": GROUPED,
    "stablelm parallel": GROUPED | {"use_parallel_residual": True, "use_qkv_bias": True},
    "seed_oss": NARROW,
    "smollm3": GROUPED,
    "ernie4_5": NARROW,
}  # fmt: skip
"""By ``model_type`` and, behind a blank, what is special about it."""


def config_of(name: str) -> dict[str, Any]:
    return {"model_type": name.split()[0], **CONFIGS[name]}


def parsed(name: str) -> Any:
    from transformers import AutoConfig

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return AutoConfig.for_model(name.split()[0], **{**CONFIGS[name], "use_cache": False})


def module_class(name: str) -> Any:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    return MODEL_FOR_CAUSAL_LM_MAPPING[type(parsed(name))]
