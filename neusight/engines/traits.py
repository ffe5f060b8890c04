"""Engines of which some traits differ, written as a JSON object."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf
from typing import Any, Literal, get_args, get_origin, get_type_hints

from neusight.engines.engine import LAUNCHES, LAYOUTS, AttentionForm, Engine
from neusight.errors import ModelError, nearest, shown

_DECIDED = ("name", "server")
"""Traits that no text gives."""
_WORDS = {"attention": get_args(AttentionForm), "launch": LAUNCHES, "layout": LAYOUTS}
"""Words of traits whose type is any text."""
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def with_traits(engine: Engine, text: str) -> Engine:
    """An engine with other traits.

    Args:
        engine: all others are its.
        text: fields of ``Engine`` as a JSON object, such as ``{"offloads_activations": true}``.

    Raises:
        ModelError: no JSON object, an unknown trait, or a value that it cannot have.
    """
    try:
        traits = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"engine_options {shown(text)} is no JSON: {error}: mend it") from None
    if not isinstance(traits, dict):
        raise ModelError(f'engine_options {shown(text)}: give a JSON object, such as {{"offloads_activations": true}}')
    hints = {name: hint for name, hint in get_type_hints(Engine).items() if name not in _DECIDED}
    if unknown := [name for name in traits if name not in hints]:
        raise ModelError(f"engine_options: unknown trait '{shown(unknown[0])}'{nearest(unknown[0], hints)}")
    return replace(engine, **{name: _checked(name, value, hints[name]) for name, value in traits.items()})


def _checked(name: str, value: Any, hint: Any) -> Any:
    if get_origin(hint) is tuple and isinstance(value, list) and all(isinstance(one, str) for one in value):
        value = tuple(value)
    choices = get_args(hint) if get_origin(hint) is Literal else _WORDS.get(name, ())
    kinds = str if choices else get_origin(hint) or ((int, float) if hint is float else hint)
    # Python counts truth values among whole numbers.
    fits = isinstance(value, kinds) and (hint is bool or not isinstance(value, bool))
    if not fits or (choices and value not in choices):
        words = f"one of {', '.join(choices)}" if choices else _KINDS.get(hint, "a list of texts")
        raise ModelError(f"engine_options: {name} = {shown(value)}: give {words}")
    usually_above_0 = hint is not bool and getattr(Engine(), name)
    if isinstance(value, int | float) and (not 0 <= value < inf or (value == 0 and usually_above_0)):
        raise ModelError(f"engine_options: {name} = {shown(value)}: give a number above 0")
    return value
