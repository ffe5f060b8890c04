"""Packages that build models, imported when one of theirs is asked for."""

from __future__ import annotations

import importlib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

from neusight.errors import ModelError, reason

EXTRAS = {"timm": "timm", "torchvision": "vision", "diffusers": "diffusers", "onnx": "onnx"}
"""Packages, and the extra of this one that installs each."""


def library(name: str) -> ModuleType:
    """The package, imported.

    Raises:
        ModelError: it is not installed, or does not fit the installed PyTorch.
    """
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise ModelError(
            f"{name} cannot be imported ({type(error).__name__}: {reason(error)}): "
            f"pip install 'neusight[{EXTRAS[name]}]'"
        ) from None


@cache
def installed(name: str) -> str:
    """The version of a package that is installed, or ``none``; nothing is imported."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"
