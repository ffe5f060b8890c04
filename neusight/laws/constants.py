"""Constants of a law that data estimate: each declared where its law stands, with what was known of it beforehand.

A field beside them without a prior is an assumption: its docstring tells where it comes from, and no fit changes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import Field, field, fields, is_dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np

from neusight.quick_dataclasses import dataclass

Scale = Literal["log", "linear", "share"]
T = TypeVar("T")


@dataclass(frozen=True)
class Prior:
    """What is known of a constant before any kernel is looked at: a normal distribution of it, of its logarithm, or of
    the logit of a share.

    ``spread`` is the standard deviation on ``scale``; ``why`` names the paper, the datasheet or the measurement that
    the value comes from, or says that it is a guess of the magnitude, which then is a wide one.
    """

    value: float
    spread: float
    why: str
    scale: Scale


def constant(value: float, spread: float, why: str, scale: Scale = "log") -> Any:
    """A field of a group of constants, with its prior.

    Args:
        value: centre of the prior, and the value until it is fitted.
        spread: standard deviation of the prior: of the logarithm, or with ``scale`` "linear" of the value itself.
        why: where the prior comes from.
        scale: "log" for what is positive, "share" for a share of something, which never is above 1.
    """
    return field(default=value, metadata={"prior": Prior(value, spread, why, scale)})


def priors(physics: Any) -> dict[str, Prior]:
    """The prior of every constant by its name, ``group.constant``."""
    return {name: item.metadata["prior"] for name, item, _ in _walk(physics) if "prior" in item.metadata}


def values(physics: Any) -> dict[str, float]:
    """The value of every constant by its name, assumptions included."""
    return {name: value for name, _, value in _walk(physics)}


def with_values(physics: T, new: Mapping[str, float]) -> T:
    """The same constants with others' values where ``new`` has their name.

    Raises:
        KeyError: a name that no constant has.
    """
    groups: dict[str, dict[str, float]] = {}
    for name, value in new.items():
        group, _, constant_name = name.partition(".")
        content = getattr(physics, group, None)
        if not is_dataclass(content) or constant_name not in {f.name for f in fields(content)}:
            raise KeyError(name)
        groups.setdefault(group, {})[constant_name] = float(value)
    changed: Any = {group: replace(getattr(physics, group), **changes) for group, changes in groups.items()}
    return replace(physics, **changed)  # type: ignore[type-var]


def encode(prior: Prior, value: float) -> float:
    """A constant on the scale on which it is estimated."""
    if prior.scale == "share":
        return float(np.log(value) - np.log1p(-value))
    return float(np.log(value)) if prior.scale == "log" else value


def decode(prior: Prior, place: float) -> float:
    """The inverse of ``encode``."""
    if prior.scale == "share":
        return float(1.0 / (1.0 + np.exp(-place)))
    return float(np.exp(place)) if prior.scale == "log" else place


def _walk(physics: Any) -> Iterator[tuple[str, Field[Any], float]]:
    for group in fields(physics):
        content = getattr(physics, group.name)
        if not is_dataclass(content):
            continue
        for item in fields(content):
            yield f"{group.name}.{item.name}", item, getattr(content, item.name)
