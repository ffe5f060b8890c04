"""Image models of timm and torchvision by name: ``timm:resnet50``, ``timm:vit_base_patch16_224@288``,
``torchvision:resnet50``. A number after ``@`` is the edge of the image in pixels.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import TYPE_CHECKING, Any

from neusight.errors import ModelError, nearest, reason, shown
from neusight.workloads.tensors import TensorSpec

if TYPE_CHECKING:
    import torch

LIBRARIES = {"timm": "timm", "torchvision": "vision"}
"""Packages, and the extra of this one that installs each."""
TORCHVISION_SIZE = 224
"""Edge [pixels] that torchvision's classifiers are trained at, unless their name is in ``_LARGER``."""
_LARGER = {"inception_v3": 299}
_LARGEST_SIZE = 100_000


@dataclass(frozen=True, kw_only=True)
class ImageModel:
    """A classifier of a library: ``size`` is the edge of its square images [pixels], None for its own."""

    library: str
    name: str
    size: int | None = None

    @property
    def content(self) -> str:
        """What a stored trace depends on: the model and the version of the library that builds it."""
        return f"{self.library} {_installed(self.library)} {self.name} {self.size}"

    def build(self) -> torch.nn.Module:
        """The module with weights that nobody has trained.

        Raises:
            ModelError: the library is missing, has no such model, or cannot build it for images of this size.
        """
        build = _build_timm if self.library == "timm" else _build_torchvision
        try:
            with warnings.catch_warnings():
                # Names of older versions are translated, with a warning.
                warnings.simplefilter("ignore")
                return build(self)
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(
                f"{self.library} cannot build {self.name}: {type(error).__name__}: {reason(error)}; try another size"
            ) from error

    def at(self, size: int | None) -> ImageModel:
        """The model for images of ``size`` by ``size`` pixels; unchanged where none is given."""
        return replace(self, size=size) if size else self

    def inputs(self, batch: int) -> tuple[TensorSpec, ...]:
        """What ``forward`` takes: images of shape (batch, channels, height, width)."""
        channels, *edges = self._input_shape()
        return (TensorSpec((batch, channels, *((self.size, self.size) if self.size else edges))),)

    def _input_shape(self) -> Sequence[int]:
        """Channels, height and width that the model is made for."""
        if self.library == "torchvision":
            edge = _LARGER.get(self.name, TORCHVISION_SIZE)
            return 3, edge, edge
        stated = _library("timm").get_pretrained_cfg(self.name)
        return tuple(stated.input_size) if stated is not None else (3, 224, 224)


def image_model(text: str) -> ImageModel | None:
    """The model that ``library:name`` or ``library:name@size`` stands for; None where it names none of the libraries.

    Raises:
        ModelError: the library is not installed, has no such model, or the size is no number of pixels.
    """
    library, colon, rest = text.partition(":")
    if not colon or library not in LIBRARIES:
        return None
    name, at, size = rest.partition("@")
    if at and not (size.isascii() and size.isdigit() and 0 < int(size) <= _LARGEST_SIZE):
        raise ModelError(f"cannot read '{shown(size)}' in '{shown(text)}' as pixels: write {library}:NAME@224, say")
    known = _names(library)
    found = _current_name(library, name)
    if found not in known:
        raise ModelError(f"{library} {_installed(library)} has no model '{shown(name)}'{nearest(name, known)}")
    return ImageModel(library=library, name=found, size=int(size) if at else None)


def _names(library: str) -> list[str]:
    module = _library(library)
    return list(module.list_models() if library == "timm" else module.models.list_models(module=module.models))


def _current_name(library: str, name: str) -> str:
    """Of a model of timm without the tag of its weights, which may have been part of its name in older versions."""
    if library != "timm":
        return name
    from timm.models import _registry

    renamed = _registry._deprecated_models.get(name) or name
    return str(renamed).partition(".")[0]


def _build_timm(model: ImageModel) -> Any:
    timm = _library("timm")
    if model.size is None or model.size == timm.get_pretrained_cfg(model.name).input_size[-1]:
        return timm.create_model(model.name)
    with suppress(TypeError):
        # Models with positions or windows are built for a size; the others take any and refuse the word.
        return timm.create_model(model.name, img_size=model.size)
    return timm.create_model(model.name)


def _build_torchvision(model: ImageModel) -> Any:
    return _library("torchvision").models.get_model(model.name, weights=None)


def _library(name: str) -> ModuleType:
    """The package, imported.

    Raises:
        ModelError: it is not installed, or does not fit the installed PyTorch.
    """
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise ModelError(
            f"{name} cannot be imported ({type(error).__name__}: {reason(error)}): "
            f"pip install 'neusight[{LIBRARIES[name]}]'"
        ) from None


def _installed(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "none"
