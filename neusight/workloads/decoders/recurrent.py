"""Mixers with a recurrent state, and which layers of a hybrid model have one, as configurations describe them."""

from __future__ import annotations

from typing import Any

from neusight.errors import ModelError, shown
from neusight.workloads.decoders.layers import STATE_BYTES, LinearAttention, Recurrent, SelectiveScan, StateSpace
from neusight.workloads.decoders.reading import Keys

_ATTENDING = ("attention", "full_attention", "sliding_attention", "chunked_attention", "compressed_sparse_attention")
"""Kinds of layers that ``layer_types`` lists and that attend to tokens."""


def attending_layers(keys: Keys, depth: int) -> list[bool]:
    """Flags of layers that attend, as a configuration lists them or by its rule; empty where it has neither.

    Raises:
        ModelError: a list that is shorter than the model is deep.
    """
    if kinds := keys.each("layer_types", depth):
        return [kind in _ATTENDING for kind in kinds]
    if isinstance(indices := keys.get("attn_layer_indices"), list):
        return [i in indices for i in range(depth)]
    if every := keys.size("full_attention_interval", 0):
        return [(i + 1) % every == 0 for i in range(depth)]
    if period := keys.size("attn_layer_period", 0):
        return [i % period == keys.size("attn_layer_offset", 0) for i in range(depth)]
    return []


def check_attending(keys: Keys, depth: int) -> None:
    """Refuse a model of which some layers do not attend, where its family has no other mixer.

    Raises:
        ModelError: with those kinds of layers.
    """
    if not all(attending_layers(keys, depth)):
        others = sorted({str(kind) for kind in keys.each("layer_types", depth) or ()} - set(_ATTENDING))
        words = f"layers of kind {shown(', '.join(others))}" if others else "layers without attention"
        raise ModelError(
            f"{keys.where}: {words} of model_type '{keys.get('model_type')}' are not known: estimate its step by "
            "'predict'"
        )


def recurrent_mixer(keys: Keys, kind: str) -> Recurrent:
    """The mixer of a configuration: ``delta`` (gated DeltaNet), ``mamba`` or ``mamba2``.

    Raises:
        ModelError: values that are missing.
    """
    return {"delta": _delta_net, "mamba": _mamba, "mamba2": _mamba2}[kind](keys)


def _delta_net(keys: Keys) -> LinearAttention:
    sizes = keys.sizes(
        key_heads="linear_num_key_heads", value_heads="linear_num_value_heads", key_dim="linear_key_head_dim",
        value_dim="linear_value_head_dim",
    )  # fmt: skip
    conv = keys.size("linear_conv_kernel_dim", 4)
    return LinearAttention(**sizes, conv=conv, state_dtype=_state_dtype(keys, "mamba_ssm_dtype"))


def _mamba(keys: Keys) -> SelectiveScan:
    hidden = keys.size("hidden_size")
    rank = keys.get("mamba_dt_rank", "auto")
    return SelectiveScan(
        inner=keys.size("mamba_expand", 2) * hidden, rank=-(-hidden // 16) if rank == "auto" else int(rank),
        normed=keys.flag("mamba_inner_layernorms"), **_mamba_fields(keys),
    )  # fmt: skip


def _mamba2(keys: Keys) -> StateSpace:
    heads = keys.size("mamba_num_heads", keys.get("num_heads"))
    inner = keys.size("mamba_d_ssm", 0) or keys.size("mamba_expand", 2) * keys.size("hidden_size")
    wide = inner // heads if keys.get("mamba_head_dim", "auto") == "auto" else keys.size("mamba_head_dim")
    normed = keys.flag("mamba_rms_norm", True)
    return StateSpace(heads=heads, head_dim=wide, groups=keys.size("n_groups", 1), normed=normed, **_mamba_fields(keys))


def _mamba_fields(keys: Keys) -> dict[str, Any]:
    """Fields that all kinds of Mamba have."""
    return {
        "state": keys.size("ssm_state_size"), "conv": keys.size("conv_kernel", 4), "bias": keys.flag("use_bias"),
        "conv_bias": keys.flag("use_conv_bias", True), "state_dtype": _state_dtype(keys, "mamba_ssm_cache_dtype"),
    }  # fmt: skip


def _state_dtype(keys: Keys, key: str) -> str:
    """Dtype of recurrent states: as recorded, else float32, in which their kernels accumulate."""
    dtype = str(keys.get(key, "float32")).removeprefix("torch.")
    return dtype if dtype in STATE_BYTES else "float32"
