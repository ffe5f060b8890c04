"""Traits of engines and kernel libraries by kernel family, engine and variant, from one file.

Laws ask for a trait, such as whether heads that share keys share a block, and never who has it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from neusight.errors import CoverageError
from neusight.kernels.conditions import Conditions
from neusight.quick_dataclasses import dataclass

_FILE = Path(__file__).resolve().parent / "implementations.toml"
Value = bool | float | str


@dataclass(frozen=True)
class Traits:
    """Traits of the implementations of n kernels: those of each distinct one, and which each kernel has."""

    distinct: tuple[Mapping[str, Value], ...]
    numbers: np.ndarray

    def __getitem__(self, name: str) -> np.ndarray:
        """A trait of each kernel, shape (n,)."""
        return np.array([traits[name] for traits in self.distinct])[self.numbers]

    def constants(self, name: str, law: Any, otherwise: float = 1.0) -> np.ndarray:
        """The constant of a law that a trait names for each kernel, shape (n,)."""
        named = [str(traits[name]) for traits in self.distinct]
        return np.array([float(getattr(law, constant)) if constant else otherwise for constant in named])[self.numbers]


def traits_of(family: str, conditions: Conditions) -> Traits:
    """Traits of the implementations that ``conditions`` name, for one of the families of ``implementations.toml``."""
    engine, variant = conditions.engine, conditions.variant
    if _is_one(engine) and _is_one(variant):
        return Traits((_traits(family, str(engine[0]), str(variant[0])),), np.zeros(len(engine), dtype=int))
    engines, of_engine = np.unique(engine, return_inverse=True)
    variants, of_variant = np.unique(variant, return_inverse=True)
    pairs, numbers = np.unique(of_engine * len(variants) + of_variant, return_inverse=True)
    names = [(str(engines[pair // len(variants)]), str(variants[pair % len(variants)])) for pair in pairs]
    return Traits(tuple(_traits(family, *pair) for pair in names), numbers)


def trait_names(family: str) -> tuple[str, ...]:
    """Traits that a family has."""
    return tuple(name for name in _table()[family] if name != "rules")


def _is_one(column: np.ndarray) -> bool:
    return len(column) > 0 and (column.strides == (0,) or bool((column == column[0]).all()))


@cache
def _traits(family: str, engine: str, variant: str) -> Mapping[str, Value]:
    entry = _table()[family]
    traits = {name: value for name, value in entry.items() if name != "rules"}
    for rule in entry["rules"]:
        if engine in rule.get("engine", (engine,)) and variant in rule.get("variant", (variant,)):
            traits |= {name: value for name, value in rule.items() if name not in ("engine", "variant")}
    return traits


@cache
def _table() -> dict[str, Any]:
    """Raises:
    CoverageError: a rule changes what its family has no trait of.
    """
    table = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    for family, entry in table.items():
        for rule in entry["rules"]:
            if unknown := rule.keys() - entry.keys() - {"engine", "variant"}:
                raise CoverageError(f"{_FILE.name}: {family} has no {', '.join(sorted(unknown))}: add its default")
    return table
