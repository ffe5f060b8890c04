"""Values of a configuration by the names that its families use, and one line where they are missing or contradict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    "rotary_factor": ("partial_rotary_factor", "rotary_pct", "rope_pct"),
}
"""The first name is Llama's."""


@dataclass(frozen=True)
class Keys:
    """A configuration with what its family takes where it says nothing."""

    config: Mapping[str, Any]
    where: str
    usual: Mapping[str, Any]

    def get(self, key: str, default: Any = None) -> Any:
        """The value of the first of a key's names that has one, else the family's, else ``default``."""
        names = ALIASES.get(key, (key,))
        for keys in (self.config, self.usual):
            for name in names:
                if keys.get(name) is not None:
                    return keys[name]
        return default

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
        """Whether something is switched on."""
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
        """What is stated, else the hidden size over the heads.

        Raises:
            ModelError: that is no whole number.
        """
        stated, hidden = self.size("head_dim", 0), self.size("hidden_size")
        if not stated and hidden % heads:
            wrong = f"hidden_size = {hidden} is not a multiple of num_attention_heads = {heads}"
            raise ModelError(f"{self.where}: {wrong}: change one of them, or state head_dim")
        return stated or hidden // heads
