"""Interface of every source of models: the step it can run, its module and inputs; and the packages that build models,
imported when one of theirs is requested.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from neusight.errors import ModelError, reason
from neusight.extras import MissingExtraError, remedy
from neusight.requests import Request

if TYPE_CHECKING:
    import torch

Inputs = Mapping[str, Any] | Sequence[Any]
_OPTIONS = {
    "seq_len": "--seq-len",
    "image_size": "--image-size",
    "frames": "--frames",
    "seconds": "--seconds",
    "given": "--input",
}


class ModulePart(NamedTuple):
    """A module of a model by its path, how its time is called, and whether it runs once a step of ``Request.steps``."""

    module: str
    name: str
    repeats: bool = False


class ModelSource(Protocol):
    """A model that can be built, and given inputs, for any step that it has."""

    @property
    def parts(self) -> Sequence[ModulePart]:
        """Modules whose times are told apart."""
        return ()

    def unit(self, request: Request) -> str:
        """The work that a step is of, in words, where a reader may take it for another."""
        return ""

    @property
    def content(self) -> str:
        """Content that a stored trace depends on: the model, and the version of the package that builds it."""

    def settled(self, request: Request) -> Request:
        """The step with what it leaves open.

        Raises:
            ModelError: the model has no such step, or no input depends on what was asked for.
        """

    def build(self, request: Request) -> torch.nn.Module:
        """The module, with untrained weights.

        Raises:
            ModelError: something is not installed, or there is no such model.
        """

    def inputs(self, request: Request) -> Inputs:
        """Inputs of the module's ``forward`` in a settled step."""


def refuse_others(request: Request, *known: str) -> Request:
    """The request, if all that it says of inputs beside the batch is among ``known``.

    Raises:
        ModelError: something else was asked for, on which no input depends.
    """
    requested = {"seq_len": request.seq_len, **request.extents.to_dict()}
    if "seq_len" not in known and request.seq_len is not None:
        raise ModelError(f"{request.model} has no sequence: leave out --seq-len")
    for name, value in requested.items():
        if value is not None and name not in known:
            raise ModelError(f"no input of {request.model} depends on {_OPTIONS[name]}: leave it out")
    return request


def library(name: str) -> ModuleType:
    """The package, imported.

    Raises:
        MissingExtraError: it is not installed.
        ModelError: it does not fit the installed PyTorch.
    """
    try:
        return importlib.import_module(name)
    except MissingExtraError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {reason(error)}"
        raise ModelError(f"{name} cannot be imported ({why}){remedy(name)}") from None


@cache
def version_of(name: str) -> str:
    """The version of a package that is installed, or ``none``; nothing is imported."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"
