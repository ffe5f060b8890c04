"""Optimisations, a module a group; each is one function."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules


def load() -> None:
    """Read every module of this folder, once."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
