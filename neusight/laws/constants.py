"""Constants of a law: each declared where its law stands, with what was known of it before any fit.

A number has one of four origins: it is ``fitted`` to measured rows, stands in a ``datasheet``, is ``cited`` from a
document, or stays at its ``prior``, with a word on the rows that would move it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, fields, is_dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np

from neusight.quick_dataclasses import dataclass

Scale = Literal["log", "linear", "share", "count"]
T = TypeVar("T")
UNITS = {
    "bytes_per_s": "B/s", "bytes_per_cycle": "B/cycle", "pj_per_byte": "pJ/B", "pj_per_flop": "pJ/FLOP",
    "flop_pj": "pJ/FLOP", "lane_pj": "pJ/FLOP", "cycles": "cycles", "instructions": "instructions", "ops": "operations",
    "flops": "FLOP", "bytes": "B", "s": "s", "w": "W",
}  # fmt: skip
"""Units by the last words of a constant's name; others are ratios."""


@dataclass(frozen=True)
class Prior:
    """What is known of a constant before any kernel is looked at: a normal distribution of it, of its logarithm, or of
    the logit of a share; a count is such a number rounded.

    ``spread`` is the standard deviation on ``scale``; ``why`` names the paper, the datasheet or the measurement that
    the value comes from, or says that it is a guess of the magnitude, which then is a wide one.
    """

    value: float
    spread: float
    why: str
    scale: Scale


def constant(value: float, spread: float, why: str, scale: Scale = "log", moved_by: str = "") -> Any:
    """A field of a group of constants, with its prior.

    Args:
        value: centre of the prior, and the value until it is fitted.
        spread: standard deviation of the prior: of the logarithm, or with ``scale`` "linear" of the value itself.
        why: where the prior comes from.
        scale: "log" for what is positive, "share" for a share of something, which never is above 1, "count" for a
            whole number, 1 or more, of which a fit tries its neighbours.
        moved_by: rows that would move it, where those that would move its group do not.
    """
    rows = {"moved_by": moved_by} if moved_by else {}
    return field(default=value, metadata={"prior": Prior(value, spread, why, scale), **rows})


def cited(value: float, source: str) -> Any:
    """A field of a group of constants that no fit changes, with the document that states it; "datasheet: …" of a
    vendor's figure of a device.
    """
    return field(default=value, metadata={"source": source})


def group(kind: Callable[[], Any], moved_by: str) -> Any:
    """A field of all constants of a law: one group of them, and the rows that would move those at their prior."""
    return field(default_factory=kind, metadata={"moved_by": moved_by})


def priors(physics: Any) -> dict[str, Prior]:
    """The prior of every constant by its name, ``group.constant``."""
    return {name: known["prior"] for name, known, _ in declarations(physics) if "prior" in known}


def values(physics: Any) -> dict[str, float]:
    """The value of every constant by its name, cited ones included."""
    return {name: value for name, _, value in declarations(physics)}


def unit_of(name: str) -> str:
    """The unit of a constant by the end of its name; "" for ratios, exponents and counts."""
    return next((unit for end, unit in UNITS.items() if f"_{name.rpartition('.')[2]}".endswith(f"_{end}")), "")


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
    if prior.scale == "count":
        return float(max(1.0, np.rint(place)))
    return float(np.exp(place)) if prior.scale == "log" else place


def declarations(physics: Any) -> Iterator[tuple[str, dict[str, Any], float]]:
    """Name, metadata (``prior`` or ``source``, ``moved_by``) and value of every constant."""
    for owner in fields(physics):
        content = getattr(physics, owner.name)
        if not is_dataclass(content):
            continue
        for item in fields(content):
            yield f"{owner.name}.{item.name}", {**owner.metadata, **item.metadata}, getattr(content, item.name)
