"""``decoder_of``: from a Hugging Face configuration to a ``Decoder``, without building a module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from neusight.errors import ModelError, nearest, shown
from neusight.workloads.config_file import check_config, dtype_of
from neusight.workloads.decoders import variants
from neusight.workloads.decoders.decoder import Decoder
from neusight.workloads.decoders.families import FAMILIES, Family, plain_layers, says
from neusight.workloads.decoders.layers import Layer, count_equal
from neusight.workloads.decoders.quantisation import quantisation_of
from neusight.workloads.decoders.reading import Keys
from neusight.workloads.decoders.recurrent import attending_layers
from neusight.workloads.decoders.vision import vision_of

OTHERS = (*variants.ENCODER_DECODER, *variants.LATENT, *variants.COMPRESSED, *variants.STATE_SPACE)
_NESTED = ("text_config", "language_config", "llm_config")
_PLAIN_NAMES = {
    "deepseek_v3.2": "deepseek_v32", "deepseek_v3_2": "deepseek_v32", "kimi_k25": "kimi_k2", "kimi_k2_5": "kimi_k2",
    "gemma3_text": "gemma3", "llama4": "llama4_text", "qwen3_5_moe": "qwen3_5_moe_text", "qwen3_5": "qwen3_5_text",
    "qwen3_vl": "qwen3_vl_text", "qwen3_vl_moe": "qwen3_vl_moe_text", "mistral3": "mistral",
}  # fmt: skip
"""Spellings of configurations that mean the same text model."""
NO_DECODERS = frozenset({
    "bert", "roberta", "distilbert", "electra", "albert", "deberta", "deberta-v2", "modernbert", "xlm-roberta", "vit",
    "bart", "switch_transformers", "whisper", "resnet", "clip",
})  # fmt: skip
"""Types that have Llama's keys, some of them, and are something else."""
_NEEDED = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")


def decoder_of(config: Mapping[str, Any], name: str = "") -> Decoder:
    """The causal language model that a configuration describes; of a composed model its text part.

    Args:
        config: contents of a ``config.json``, or the keys of it that tell the architecture. Keys that begin with an
            underscore are left alone.
        name: what the model is called, in messages and results.

    Raises:
        ModelError: an unknown family without Llama's keys; values that are missing or contradict each other.
    """
    outer = {key: value for key, value in config.items() if not key.startswith("_")}
    text, vision = _text_part(outer), vision_of(outer)
    kind = str(text.get("model_type", ""))
    kind = _PLAIN_NAMES.get(kind, kind)
    where = name or kind or "the configuration"
    if not kind or kind in NO_DECODERS or (text.get("is_encoder_decoder") and kind not in variants.ENCODER_DECODER):
        raise no_decoder(where, f"model_type '{kind}'" if kind else "a model without model_type")
    check_config(text, where)
    keys = Keys({**text, "model_type": kind}, where, _family(kind).usual)
    in_order = _layers(keys, kind)
    decoder = Decoder(
        name=name or kind,
        family=kind,
        hidden=keys.size("hidden_size"),
        vocab=keys.size("vocab_size"),
        max_len=keys.size("max_position_embeddings", 0),
        layers=(layers := count_equal(in_order)),
        order=tuple([layer for layer, _ in layers].index(layer) for layer in in_order),
        dtype=dtype_of(text, where) or dtype_of(outer, where) or "",
        quantisation=quantisation_of({**outer, **text}, where),
        notes=(*_notes(keys, kind), *_parts_left_out(outer, vision is not None)),
        vision=vision,
        extra=_extra(keys, kind),
        **_outside(keys, _family(kind), outer),
    )
    _check_explained(keys, decoder)
    return decoder


def _text_part(config: Mapping[str, Any]) -> dict[str, Any]:
    """The nested configuration of a composed model's language model, or the whole."""
    inner = next((config[key] for key in _NESTED if isinstance(config.get(key), Mapping)), None)
    if inner is None:
        return dict(config)
    # What a text part leaves out, its model has: Kimi and Gemma state their type outside alone.
    return {"model_type": config.get("model_type", ""), **inner}


def no_decoder(where: str, what: str) -> ModelError:
    """The refusal of a model that engines for decoders do not run."""
    return ModelError(
        f"{where}: {what} is no decoder that engines serve: estimate its step by 'predict', or on many GPUs under "
        "--engine torch-eager"
    )


def _parts_left_out(config: Mapping[str, Any], with_vision: bool) -> tuple[str, ...]:
    """Note on the parts of a composed model that are not built; empty where there are none."""
    if not any(isinstance(config.get(key), Mapping) for key in _NESTED):
        return ()
    built = {*_NESTED, "quantization_config", *(["vision_config"] if with_vision else [])}
    parts = [key for key in config if key.endswith("_config") and isinstance(config[key], Mapping) and key not in built]
    return (f"{', '.join(parts)} of the configuration not counted: the text model alone",) if parts else ()


_V4 = (
    "DeepSeek-V4 from its configuration alone: compressed keys count as selected ones behind the window, and its "
    "hyper-connections as parameters without kernels"
)


def _layers(keys: Keys, kind: str) -> list[Layer]:
    builders = {
        variants.LATENT: variants.latent_layers, variants.COMPRESSED: variants.compressed_layers,
        variants.STATE_SPACE: variants.state_space_layers,
        variants.ENCODER_DECODER: variants.encoder_decoder_layers,
    }  # fmt: skip
    if builder := next((builder for kinds, builder in builders.items() if kind in kinds), None):
        return builder(keys)
    return plain_layers(keys, FAMILIES[kind]) if kind in FAMILIES else _as_llama(keys, kind)


def _as_llama(keys: Keys, kind: str) -> list[Layer]:
    if missing := [key for key in _NEEDED if keys.get(key) is None]:
        families = (*FAMILIES, *OTHERS)
        raise ModelError(
            f"unknown model_type '{shown(kind)}' without {', '.join(missing)}{nearest(kind, families)}: families are "
            f"{', '.join(families)}"
        )
    return plain_layers(keys, FAMILIES["llama"])


def _check_explained(keys: Keys, decoder: Decoder) -> None:
    """Refuse a configuration that tells of other layers than those which were built of it.

    Raises:
        ModelError: with the keys that nothing was built of.
    """
    kind, names, recurrences = decoder.family, keys.unread, keys.unread_mixers
    if keys.get("hidden_act", "silu") not in ("silu", "swish", "swiglu"):
        names = ("hidden_act", *names)
    if kind not in FAMILIES and kind not in OTHERS and names:
        raise ModelError(
            f"{keys.where}: model_type '{kind}' is not known, and Llama's layers do not explain {_some(names)}: remove "
            "from its config.json what changes no layer, or estimate its step by 'predict'"
        )
    attends = attending_layers(keys, decoder.depth)
    if not _family(kind).recurrent and not (attends and all(attends)) and recurrences:
        raise ModelError(
            f"{keys.where}: layers of model_type '{kind}' do not explain {_some(recurrences)}: correct model_type, or "
            "remove them from its config.json"
        )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return ", ".join(names[:6]) + more


def _extra(keys: Keys, kind: str) -> int:
    """Parameters in no layer."""
    if kind in variants.ENCODER_DECODER:
        return variants.relative_extra(keys)
    return variants.compressed_extra(keys) if kind in variants.COMPRESSED else 0


def _notes(keys: Keys, kind: str) -> tuple[str, ...]:
    """Notes on assumptions and approximations of a decoder."""
    if kind not in FAMILIES and kind not in OTHERS:
        return (f"model_type '{kind}' is not known: built as Llama's",)
    if kind in variants.COMPRESSED:
        return (_V4,)
    if kind in variants.ENCODER_DECODER:
        return ("biases of relative positions count as parameters without kernels",)
    if kind == "llama4_text":
        return ("chunks of Llama 4's attention count as windows of the same length",)
    if kind == "deci" and not keys.get("num_key_value_heads_per_layer"):
        return ("DeciLM's key heads differ by layer, which the configuration does not list: all have the most",)
    return ()


def _family(kind: str) -> Family:
    if kind in variants.ENCODER_DECODER:
        return Family(usual={"tie_word_embeddings": True, "max_position_embeddings": 512})
    if kind in variants.SHARED:
        return Family(usual={"n_shared_experts": variants.SHARED[kind]})
    return FAMILIES.get(kind, Family())


def _outside(keys: Keys, family: Family, outer: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a decoder outside of its layers. Whether embeddings are tied, a composed model may say outside
    alone.
    """
    wide = keys.size("word_embed_proj_dim", 0)
    last = None if keys.get("do_layer_norm_before") is False else family.norm
    tied = keys.config.get("tie_word_embeddings", outer.get("tie_word_embeddings"))
    return {
        "norm": last,
        "tied": family.usual.get("tie_word_embeddings", False) if tied is None else bool(tied),
        "positions": keys.size("max_position_embeddings") + family.positions if family.positions >= 0 else 0,
        "embedding": wide if wide and wide != keys.size("hidden_size") else 0,
        "embedding_norm": family.embedding_norm,
        "head_bias": says(keys, family.head_bias),
        "dropout": bool(keys.get("dropout")),
    }
