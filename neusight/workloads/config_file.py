"""A user's ``config.json``: read, and refused in a line where its numbers cannot be those of a model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from neusight.errors import CoverageError, ModelError, shown
from neusight.kernels.precision import dtype_named
from neusight.paths import cache_dir, read_json
from neusight.units import decimal

_LAYERS = (
    *("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers"),
    "num_decoder_layers",
)
_HIDDEN = ("hidden_size", "n_embd", "d_model", "dim")
_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads", "encoder_attention_heads", "decoder_attention_heads")
_HEAD_SIZES = ("head_dim", "d_kv", "kv_channels", "qk_nope_head_dim", "attention_head_size")
_MOST = {
    **dict.fromkeys(_LAYERS, 10_000),
    **dict.fromkeys(_HIDDEN, 1_000_000),
    **dict.fromkeys(_HEADS, 10_000),
    **dict.fromkeys(_HEAD_SIZES, 100_000),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "d_ff", "hidden_dim"), 10_000_000),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "moe_intermediate_size"), 10_000_000),
    **dict.fromkeys(("vocab_size", "num_labels", "type_vocab_size"), 100_000_000),
    **dict.fromkeys(("n_positions", "max_position_embeddings", "n_ctx"), 1_000_000_000),
    **dict.fromkeys(("num_key_value_heads", "num_experts", "num_local_experts", "n_routed_experts"), 100_000),
    **dict.fromkeys(("image_size", "patch_size", "num_channels"), 100_000),
}
"""The largest number that a key may have: far beyond what is built, short of what runs for hours."""
_MOST_PARAMETERS = 1e14
_MAY_BE_ZERO = ("type_vocab_size", "head_dim", "num_experts", "num_local_experts", "n_routed_experts")


def read_config(file: Path) -> dict[str, Any]:
    """The contents of a Hugging Face ``config.json``.

    Raises:
        ModelError: unreadable, no JSON object, without a ``model_type``, or with numbers that no model has.
    """
    try:
        config = read_json(file)
    except OSError as error:
        raise ModelError(f"cannot read {file}: {error.strerror}; give the path of a config.json") from None
    except ValueError as error:
        raise ModelError(f"{file} is not JSON ({error}): give a Hugging Face config.json") from None
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ModelError(f"{file} states no model_type: give the config.json of a Hugging Face model")
    check_config(config, str(file))
    return config


def stored_config(text: str, name: str) -> str:
    """The path of a file of the user's cache with a configuration that is given as text, for a model of this name.

    Raises:
        ModelError: the file cannot be written.
    """
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    file = cache_dir() / "configs" / digest / (name.rpartition("/")[2] or "model") / "config.json"
    try:
        if not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ModelError(f"cannot write {file}: {error.strerror}; give the path of a config.json") from None
    return str(file)


def check_config(config: Mapping[str, Any], where: str) -> None:
    """Refuse sizes that are no positive whole numbers or absurdly large, and heads that do not divide.

    Args:
        config: contents of a ``config.json``; the parts of composed models are checked like wholes.
        where: name of the file, for messages.

    Raises:
        ModelError: with the key and the remedy.
    """
    for part in _parts(config):
        for key in _MOST.keys() & part.keys():
            _check_count(key, part[key], where)
        _check_heads(part, where)
        _check_parameters(part, where)


def dtype_of(config: Mapping[str, Any], where: str) -> str | None:
    """The dtype in which a configuration keeps its weights; None where it states none.

    Raises:
        ModelError: it is no dtype.
    """
    dtype = config.get("dtype") or config.get("torch_dtype")
    if dtype in (None, "auto"):
        return None
    try:
        return dtype_named(str(dtype))
    except CoverageError as error:
        raise ModelError(f"{where}: {error}") from None


STATED_ATTENTION = ("_attn_implementation", "attn_implementation")
"""Keys that name the form of attention in which transformers builds a model."""
_FORMS = {"eager": "eager", "flash_attention_2": "flash", "flash_attention_3": "flash"}


def attention_of(config: Mapping[str, Any]) -> str:
    """The form of attention that a configuration states; '' where it leaves that to the model's class, which takes
    fused attention wherever it has it.
    """
    form = next((config[key] for key in STATED_ATTENTION if isinstance(config.get(key), str)), "")
    return _FORMS.get(form, "")


def quantization_of(config: Mapping[str, Any]) -> str:
    """Quantization of a configuration's weights, such as ``gptq, 4 bit``; '' where there is none."""
    settings = config.get("quantization_config")
    if not settings:
        return ""
    if not isinstance(settings, Mapping):
        return "of an unknown kind"
    bits = next((f"{settings[key]} bit" for key in ("bits", "w_bit", "num_bits") if key in settings), "")
    loaded = next((f"{key[8:-3]} bit" for key in ("load_in_4bit", "load_in_8bit") if settings.get(key)), "")
    return ", ".join(text for text in (str(settings.get("quant_method") or ""), bits or loaded) if text) or "yes"


def _parts(config: Mapping[str, Any], depth: int = 4) -> Iterator[Mapping[str, Any]]:
    yield config
    for value in config.values():
        if isinstance(value, Mapping) and depth:
            yield from _parts(value, depth - 1)


def _check_count(key: str, value: Any, where: str) -> None:
    """Vision models list a number a stage; None and tables are for transformers to judge."""
    least, most = int(key not in _MAY_BE_ZERO), _MOST[key]
    for number in value if isinstance(value, list) else [value]:
        if number is None or isinstance(number, Mapping):
            continue
        if isinstance(number, bool) or not isinstance(number, int | float) or number % 1:
            raise ModelError(f'{where}: {key} = {shown(repr(value))} must be a whole number: write it like "{key}": 16')
        if not least <= number <= most:
            raise ModelError(f"{where}: {key} = {shown(value)} cannot be: give a number from {least} to {most:,}")


def _check_heads(config: Mapping[str, Any], where: str) -> None:
    hidden, heads = (next((k for k in keys if isinstance(config.get(k), int)), None) for keys in (_HIDDEN, _HEADS))
    if hidden and heads and not any(config.get(key) for key in _HEAD_SIZES) and config[hidden] % config[heads]:
        raise ModelError(
            f"{where}: {hidden} = {config[hidden]} is not a multiple of {heads} = {config[heads]}: change one of them, "
            "or state head_dim"
        )
    shared = config.get("num_key_value_heads")
    if heads and isinstance(shared, int) and config[heads] % shared:
        raise ModelError(
            f"{where}: {heads} = {config[heads]} is not a multiple of num_key_value_heads = {shared}: change one"
        )


def _check_parameters(config: Mapping[str, Any], where: str) -> None:
    """A lower bound from the sizes: 4 h² a layer of attention, 2 h i of each expert, v h of the vocabulary."""

    def size(*keys: str, default: int = 0) -> int:
        return next((config[key] for key in keys if isinstance(config.get(key), int)), default)

    hidden = size(*_HIDDEN)
    wide = size("intermediate_size", "ffn_dim", "n_inner", "d_ff", "moe_intermediate_size")
    experts = size("num_experts", "num_local_experts", "n_routed_experts", default=1)
    layers = sum(size(key) for key in _LAYERS)
    parameters = layers * hidden * (4 * hidden + 2 * wide * experts) + size("vocab_size") * hidden
    if parameters > _MOST_PARAMETERS:
        raise ModelError(f"{where}: its sizes make {decimal(parameters)} parameters: correct layers, widths or experts")
