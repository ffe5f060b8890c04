"""Models of other depths: architectures of transformers cut to two layers, and deep steps from two shallow ones.

Tracing few layers is faster than tracing all. Layers are series (``neusight.workloads.workload``), so that every number
of a workload is affine in how many there are: it is read off two depths one layer apart. Whether that gives a real
depth is for the caller to check.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from typing import Any

from neusight.errors import ModelError, nearest, reason

LAYERS = 2
_COUNTS = frozenset(
    (
        *("num_hidden_layers", "num_layers", "n_layer", "n_layers", "layers", "depth", "depths", "num_blocks"),
        *("encoder_layers", "decoder_layers", "num_encoder_layers", "num_decoder_layers", "decoder_num_layers"),
        *("encoder_num_hidden_layers", "decoder_num_hidden_layers", "decoder_depth", "speech_encoder_layers"),
        *("t2u_encoder_layers", "t2u_decoder_layers", "pred_num_hidden_layers", "num_mel_attn_blocks"),
        *("l_layers", "x_layers", "r_layers", "num_spatial_layers", "num_temporal_layers", "resampler_depth"),
        *("num_self_attends_per_block", "memory_attention_num_layers", "text_encoder_num_layers", "query_dec_layers"),
        *("blocks_per_stage", "n_attn_blocks", "block_sizes", "num_block_repeats", "aligner_num_add_layers"),
        *("num_global_layers", "num_attention_layers", "posterior_encoder_num_wavenet_layers"),
    )
)
"""Keys that say how many equal blocks follow each other; of lists, one number a stage."""
_SHARING = "num_kv_shared_layers"
"""Key of the number of last layers that use keys and values of earlier ones: with as few as are left, none do."""


def architectures() -> list[str]:
    """Model types with a class of their own in transformers, by name; parts that only others build are none."""
    from transformers import CONFIG_MAPPING

    return sorted(kind for kind in CONFIG_MAPPING if kind in _with_class())


@cache
def _with_class() -> frozenset[str]:
    from transformers.models.auto import modeling_auto as auto

    tables = [v for name, v in vars(auto).items() if name.startswith("MODEL_") and name.endswith("_MAPPING_NAMES")]
    return frozenset(kind for table in tables for kind in table)


def shallow_config(kind: str) -> dict[str, Any]:
    """The contents of a ``config.json`` that states the type and as few layers as can be: all else is its default.

    Args:
        kind: a ``model_type``.

    Raises:
        ModelError: transformers knows no such type, or its default configuration cannot be made.
    """
    from transformers import CONFIG_MAPPING

    try:
        default = CONFIG_MAPPING[default_config(kind)["model_type"]]().to_dict()
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"the default configuration of '{kind}' cannot be made: {reason(error)}") from error
    cut = _cut(default)
    return {"model_type": kind, **(cut if _fits(kind, cut) else _fitting(kind, cut))}


def _fitting(kind: str, cut: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of a cut configuration that the type takes together: some keys name layers that others count."""
    keys: dict[str, Any] = {}
    for key, value in cut.items():
        if _fits(kind, {**keys, key: value}):
            keys[key] = value
    return keys


def _fits(kind: str, options: Mapping[str, Any]) -> bool:
    from transformers import CONFIG_MAPPING

    try:
        CONFIG_MAPPING[kind](**deepcopy(dict(options)))
    except Exception:
        return False
    return True


def default_config(kind: str) -> dict[str, Any]:
    """The contents of a ``config.json`` that states the type alone, as deep as its default is.

    Raises:
        ModelError: transformers knows no such type.
    """
    from transformers import CONFIG_MAPPING

    if kind not in CONFIG_MAPPING:
        raise ModelError(f"model_type '{kind}' is not one that transformers knows{nearest(kind, CONFIG_MAPPING)}")
    return {"model_type": kind}


def _cut(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that count layers, cut; nested configurations with their type, so that transformers knows them."""
    cut: dict[str, Any] = {}
    for key, value in config.items():
        if key in _COUNTS:
            cut[key] = _at_most(value)
        elif key == _SHARING and value:
            cut[key] = 0
        elif isinstance(value, Mapping) and key.endswith("config") and (inner := _cut(value)):
            cut[key] = {"model_type": value["model_type"], **inner} if value.get("model_type") else inner
    return {key: value for key, value in cut.items() if value is not None}


def _at_most(count: Any) -> Any:
    if isinstance(count, list):
        return [_at_most(part) for part in count]
    return min(count, LAYERS) if isinstance(count, int) and not isinstance(count, bool) else None


_DEPTHS = ("n_layer", "num_hidden_layers", "num_layers", "num_decoder_layers")
_SPARSE = ("num_sparse_encoder_layers", "num_sparse_decoder_layers")


class NotAlikeError(ModelError):
    """Two workloads that differ in more than numbers."""


def depth(config: dict[str, Any]) -> int:
    """Repeating units of a configuration: layers, or pairs of a dense and a sparse layer; 0 if it has none."""
    layers = {config[key] for key in _DEPTHS if key in config}
    if len(layers) != 1:
        return 0
    return layers.pop() // (2 if _SPARSE[0] in config else 1)


def at_depth(config: dict[str, Any], units: int) -> dict[str, Any]:
    """The configuration with another number of repeating units."""
    layers = units * (2 if _SPARSE[0] in config else 1)
    changed = {key: layers for key in _DEPTHS if key in config} | {key: units for key in _SPARSE if key in config}
    return config | changed


def deepen(shallow: Any, deeper: Any, times: int) -> Any:
    """Extrapolate the content of a step: ``deeper`` with ``times`` more of its difference from ``shallow``.

    Args:
        shallow: content of a workload, as ``serialise.content_of`` gives it.
        deeper: the same one unit deeper.
        times: how many units more.

    Raises:
        NotAlikeError: the two differ in more than numbers.
    """
    if shallow == deeper:
        return deeper
    if type(deeper) is int and type(shallow) is int:
        return deeper + times * (deeper - shallow)
    if isinstance(deeper, dict) and isinstance(shallow, dict) and deeper.keys() == shallow.keys():
        return {key: deepen(shallow[key], deeper[key], times) for key in deeper}
    if isinstance(deeper, list) and isinstance(shallow, list) and len(deeper) == len(shallow):
        return [deepen(a, b, times) for a, b in zip(shallow, deeper, strict=True)]
    raise NotAlikeError(f"depth changes more than numbers: {str(shallow)[:60]} becomes {str(deeper)[:60]}")
