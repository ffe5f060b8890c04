"""Values of a configuration by the names that its families use, and one line where they are missing or contradict."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from neusight.errors import ModelError, shown

ALIASES: dict[str, tuple[str, ...]] = {
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "num_attention_heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "num_key_value_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "intermediate_size": ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "d_ff"),
    "num_experts": ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"),
    "top_k": ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len"),
    "hidden_act": ("hidden_act", "hidden_activation", "activation_function", "activation", "mlp_hidden_act"),
    "dropout": ("resid_pdrop", "hidden_dropout", "dropout", "residual_dropout", "dropout_rate"),
    "mamba_num_heads": ("mamba_num_heads", "mamba_n_heads"),
    "mamba_head_dim": ("mamba_head_dim", "mamba_d_head"),
    "mamba_expand": ("mamba_expand", "expand"),
    "mamba_dt_rank": ("mamba_dt_rank", "time_step_rank"),
    "ssm_state_size": ("ssm_state_size", "mamba_d_state", "state_size"),
    "n_groups": ("n_groups", "mamba_n_groups"),
    "conv_kernel": ("conv_kernel", "mamba_d_conv"),
    "use_bias": ("use_bias", "mamba_proj_bias"),
    "use_conv_bias": ("use_conv_bias", "mamba_conv_bias"),
    "layer_types": ("layer_types", "layers_block_type"),
    "rotary_factor": ("partial_rotary_factor", "rotary_pct", "rope_pct"),
}
"""The first name is Llama's."""

_INERT = re.compile(
    r"(.*_)?(token_ids?|dropout(_prob)?|pdrop|eps|epsilon|loss_coef|loss_alpha|multipliers?|scale|scaling(_factor)?"
    r"|soft_?cap(ping)?|initializer_range|theta|scalar|std|in_fp32)"
    r"|rope_.*|output_.*|time_step_.*|tie_word_embeddings|quantization_config|model_max_length|max_window_layers"
    r"|original_max_position_embeddings|num_nextn_predict_layers|num_logits_to_keep|mtp_num_hidden_layers"
    r"|n_group|topk_group|topk_method|norm_topk_prob|scoring_func|seq_aux|ep_size|pretraining_tp|chunk_size_feed_forward"
    r"|architectures|auto_map|(torch_)?dtype|transformers_version|use_cache|use_return_dict|return_dict|id2label|label2id"
    r"|attn_implementation|problem_type|unsloth_version|name_or_path|note"
)
"""Keys that change no layer's size: values of scalars, ids of tokens, weights of losses, how a class behaves."""
_RECURRENT = re.compile(
    r"(mamba|ssm|lru|rwkv|hybrid|linear_(attn|num|key|value|conv)|conv_L|attn_layer|attn_type|block_type|kv_lora).*"
)
"""Keys that say that some layers do not attend as Llama's do."""


@dataclass(frozen=True)
class Keys:
    """A configuration with what its family takes where it says nothing."""

    config: Mapping[str, Any]
    where: str
    usual: Mapping[str, Any]
    read: set[str] = field(default_factory=set, compare=False)
    """Names that were looked for."""

    def get(self, key: str, default: Any = None) -> Any:
        """The value of the first of a key's names that has one, else the family's, else ``default``."""
        names = ALIASES.get(key, (key,))
        self.read.update(names)
        for keys in (self.config, self.usual):
            for name in names:
                if keys.get(name) is not None:
                    return keys[name]
        return default

    @property
    def unread(self) -> tuple[str, ...]:
        """Names of values that were not read and that may change what a layer is."""
        names = (name for name, value in self.config.items() if value not in (None, False, 0, "", [], {}))
        return tuple(name for name in names if name not in self.read and not _INERT.fullmatch(name))

    @property
    def unread_mixers(self) -> tuple[str, ...]:
        """Unread names that indicate layers without the usual attention."""
        return tuple(name for name in self.unread if _RECURRENT.fullmatch(name))

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number of at least 0.

        Raises:
            ModelError: missing without a default, or no such number.
        """
        value = self.get(key, default)
        if value is None:
            names = " or ".join(ALIASES.get(key, (key,)))
            raise ModelError(f"{self.where}: the configuration states no {names}: add it to its config.json")
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value % 1:
            raise ModelError(f"{self.where}: {key} = {shown(repr(value))} must be a whole number: write it like 16")
        return int(value)

    def sizes(self, **keys: str) -> dict[str, int]:
        """Whole numbers by the names of fields, each of its key; as ``size``."""
        return {field: self.size(key) for field, key in keys.items()}

    def flag(self, key: str, default: bool = False) -> bool:
        """Tell whether a setting is switched on."""
        return bool(self.get(key, default))

    def each(self, key: str, layers: int) -> Sequence[Any] | None:
        """A list with an entry a layer, cut to the number of layers (some have one more, of an extra head).

        Raises:
            ModelError: shorter than the model is deep.
        """
        listed = self.get(key)
        if listed is None:
            return None
        if not isinstance(listed, Sequence) or isinstance(listed, str) or len(listed) < layers:
            raise ModelError(f"{self.where}: {key} must list a value for each of {layers} layers: correct either")
        return listed[:layers]

    def head_dim(self, heads: int) -> int:
        """Width of a head: as recorded, else the hidden size over the heads.

        Raises:
            ModelError: that is no whole number.
        """
        recorded, hidden = self.size("head_dim", 0), self.size("hidden_size")
        if not recorded and hidden % heads:
            wrong = f"hidden_size = {hidden} is not a multiple of num_attention_heads = {heads}"
            raise ModelError(f"{self.where}: {wrong}: change one of them, or state head_dim")
        return recorded or hidden // heads
