"""Decoders as JSON: the classes of a description by ``is``, with fields that differ from their defaults."""

from __future__ import annotations

import json
from dataclasses import is_dataclass
from functools import cache
from typing import Any

from neusight.errors import ModelError, shown
from neusight.workloads.decoders import decoder, layers, quantisation, vision
from neusight.workloads.decoders.decoder import Decoder


def decoder_of_text(text: str) -> Decoder:
    """The decoder of a description: ``{"is": "Decoder", "hidden": 512, "layers": [[{"is": "Layer", …}, 12]], …}``.

    Lists stand for tuples, and ``{"set": […]}`` for sets.

    Raises:
        ModelError: no JSON, an unknown class or field, or no decoder.
    """
    try:
        built = _built(json.loads(text))
        if not isinstance(built, Decoder):
            raise TypeError('begin it with {"is": "Decoder"')
        parts = [part for layer, _ in built.layers for part in (layer.attention, layer.feed_forward)]
        if not all(part is None or is_dataclass(part) for part in parts):
            raise TypeError('write attention and feed_forward as {"is": …}')
        _ = built.parameters, [built.layers[kind] for kind in (*built.order, built.order[0])]
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ModelError(f"decoder {shown(text)} is no description: {error}: mend it") from None
    return built


@cache
def _classes() -> dict[str, Any]:
    modules = (decoder, layers, quantisation, vision)
    return {name: kind for module in modules for name, kind in vars(module).items() if is_dataclass(kind)}


def _built(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_built, value))
    if not isinstance(value, dict):
        return value
    if "set" in value:
        return frozenset(value["set"])
    return _classes()[value["is"]](**{name: _built(part) for name, part in value.items() if name != "is"})
