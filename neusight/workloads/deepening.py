"""The step of a deep model from the steps of two shallow ones: tracing few layers is faster than tracing all.

Layers are series (``neusight.workloads.workload``), so that every number of a workload is affine in how many there
are: it is read off two depths one layer apart. Whether that gives a real depth is for the caller to check.
"""

from __future__ import annotations

from typing import Any

from neusight.errors import ModelError

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


def deepened(shallow: Any, deeper: Any, times: int) -> Any:
    """The content of a step with as much more as ``deeper`` has over ``shallow``, ``times`` more.

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
        return {key: deepened(shallow[key], deeper[key], times) for key in deeper}
    if isinstance(deeper, list) and isinstance(shallow, list) and len(deeper) == len(shallow):
        return [deepened(a, b, times) for a, b in zip(shallow, deeper, strict=True)]
    raise NotAlikeError(f"depth changes more than numbers: {str(shallow)[:60]} becomes {str(deeper)[:60]}")
