"""Values of keys of configuration files, checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from neusight.errors import ModelError, shown


def flat(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Keys of a table with their values, those of inner tables as ``outer.inner``."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def whole(name: str, value: Any, least: int = 1) -> int:
    """The whole number of a key.

    Raises:
        ModelError: the value is no whole number, or too small.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ModelError(f"{name} = {shown(value)}: give a whole number of at least {least}")
    return value


def word_of(name: str, value: Any, words: Mapping[str, Any]) -> Any:
    """The meaning of a key's word, regardless of capitals.

    Raises:
        ModelError: the word is none of ``words``.
    """
    meanings = {word.lower(): meaning for word, meaning in words.items()}
    if str(value).lower() not in meanings:
        raise ModelError(f"{name} = {shown(value)}: one of {', '.join(words)} is read")
    return meanings[str(value).lower()]
