"""Image models of timm and torchvision by name: ``timm:resnet50``, ``timm:vit_base_patch16_224@288``,
``torchvision:fasterrcnn_resnet50_fpn``. A number after ``@`` is the edge of the image in pixels.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from neusight.errors import ModelError, nearest, reason, shown
from neusight.quick_dataclasses import dataclass
from neusight.requests import Request
from neusight.workloads.inputs.sizes import FRAMES, IMAGE_SIZE
from neusight.workloads.sources.described import Inputs, ModelSource, library, refuse_others, version_of
from neusight.workloads.tensors import TensorSpec

if TYPE_CHECKING:
    import torch

LIBRARIES = ("timm", "torchvision")
Edges = tuple[int, int]
"""Height and width [pixels]."""
_LARGEST_SIZE = 100_000


@dataclass(frozen=True, kw_only=True)
class ImageModel(ModelSource):
    """A model of a library: ``size`` is the edge of its square images [pixels], None for its own."""

    library: str
    name: str
    size: int | None = None

    @property
    def content(self) -> str:
        """The model and the version of the library that builds it."""
        return f"{self.library} {version_of(self.library)} {self.name} {self.size}"

    def exact(self) -> str:
        """The name that the installed version knows the model by.

        Raises:
            ModelError: the library is missing, or has no such model.
        """
        names = model_names(self.library)
        exact = _current_name(self.library, self.name)
        if exact not in names:
            hint = nearest(self.name, names)
            raise ModelError(f"{self.library} {version_of(self.library)} has no model '{shown(self.name)}'{hint}")
        return exact

    def settled(self, request: Request) -> Request:
        """Images of a size and clips of a length may be asked for."""
        timm = self.library == "timm"
        return refuse_others(request, "image_size") if timm else torchvision_settled(self.exact, request)

    def _edges(self, request: Request) -> Edges | None:
        """Height and width of images [pixels]; None for the model's own."""
        return request.extents.edges or ((self.size, self.size) if self.size else None)

    def build(self, request: Request) -> torch.nn.Module:
        """The module, made for images of the size asked for.

        Raises:
            ModelError: the library is missing, has no such model, or cannot build it for images of this size.
        """
        name, size = self.exact(), self._edges(request)
        try:
            with warnings.catch_warnings():
                # Names of older versions are translated, with a warning.
                warnings.simplefilter("ignore")
                return _build_timm(name, size) if self.library == "timm" else _build_torchvision(name, size)
        except Exception as error:
            raise ModelError(
                f"{self.library} cannot build {name}: {type(error).__name__}: {reason(error)}; try another size"
            ) from error

    def inputs(self, request: Request) -> Inputs:
        """Images of shape (batch, channels, height, width), or what else a task of torchvision takes."""
        name, size = self.exact(), self._edges(request)
        if self.library == "torchvision":
            return torchvision_inputs(name, request.batch, size, request.extents.frames)
        preset = library("timm").get_pretrained_cfg(name)
        channels, *edges = tuple(preset.input_size) if preset is not None else (3, 224, 224)
        return (TensorSpec((request.batch, channels, *(size or edges))),)


def image_model(text: str) -> ImageModel | None:
    """The model that ``library:name`` or ``library:name@size`` stands for; None where it names none of the libraries.

    Nothing is imported: whether the library has the model shows when it is built.

    Raises:
        ModelError: the size is no number of pixels.
    """
    package, colon, rest = text.partition(":")
    if not colon or package not in LIBRARIES:
        return None
    name, at, size = rest.partition("@")
    if at and not (size.isascii() and size.isdigit() and 0 < int(size) <= _LARGEST_SIZE):
        raise ModelError(f"cannot read '{shown(size)}' in '{shown(text)}' as pixels: write {package}:NAME@224, say")
    return ImageModel(library=package, name=name, size=int(size) if at else None)


def model_names(package: str) -> list[str]:
    """Every model that a library can build; of torchvision without those of quantized weights.

    Raises:
        ModelError: the library cannot be imported.
    """
    module = library(package)
    if package == "timm":
        return list(module.list_models())
    return [name for name in module.models.list_models() if not name.startswith("quantized_")]


def _current_name(package: str, name: str) -> str:
    """Current name of a model: of timm without the tag of its weights, which may have been part of its name in older
    versions.
    """
    if package != "timm":
        return name
    from timm.models import _registry

    renamed = _registry._deprecated_models.get(name) or name
    return str(renamed).partition(".")[0]


def _build_timm(name: str, size: Edges | None) -> Any:
    timm = library("timm")
    if size is None or size == tuple(timm.get_pretrained_cfg(name).input_size[1:]):
        return timm.create_model(name)
    with suppress(TypeError):
        # Models with positions or windows are built for a size; the others take any and refuse the word.
        return timm.create_model(name, img_size=size)
    return timm.create_model(name)


def _build_torchvision(name: str, size: Edges | None) -> Any:
    # Without weights of their own, backbones of detectors would be downloaded.
    without = {"weights": None, "weights_backbone": None}
    models = library("torchvision").models
    if name.startswith("vit_"):
        # The only ones with positions that are made for a size, of square images.
        edges = size or torchvision_edges(name)
        if len(set(edges)) > 1:
            raise ValueError("its images are square")
        return models.get_model(name, weights=None, image_size=edges[0])
    with suppress(TypeError):
        return models.get_model(name, **without)
    return models.get_model(name, weights=None)


PHOTOGRAPH = (480, 640)
"""Height and width [pixels] of most images of COCO, which detectors are trained on; they resize them themselves."""
VIDEO_FRAME = (520, 960)
"""Height and width [pixels] of a frame for optical flow, as in torchvision's own example of RAFT."""


def torchvision_settled(name: Callable[[], str], request: Request) -> Request:
    """The step, if the model has it.

    Args:
        name: the model's name, asked for where the request depends on it.
        request: images of any size; clips may have any length.

    Raises:
        ModelError: a length is asked of what is no video, or training of a detector.
    """
    if request.extents.frames is not None and torchvision_task(name()) != "video":
        raise ModelError(f"{request.model} reads single images: leave out --frames")
    if request.mode == "training" and torchvision_task(name()) == "detection":
        raise ModelError(
            f"{request.model} trains on lists of boxes, which differ from image to image: ask for inference, or pass "
            "package.module:function, whose function returns the module with images and targets"
        )
    return refuse_others(request, "image_size", "frames")


def torchvision_task(name: str) -> str:
    """``classification``, or the folder of torchvision.models that the model comes from, such as ``detection``."""
    module = library("torchvision").models.get_model_builder(name).__module__
    parts = module.removeprefix("torchvision.models.").split(".")
    return parts[0] if len(parts) > 1 else "classification"


def torchvision_inputs(name: str, batch: int, size: Edges | None, frames: int | None) -> Inputs:
    """Specs of what ``forward`` takes: images, a list of images, a clip, or two frames.

    Args:
        name: a model of torchvision.
        batch: samples.
        size: height and width of images [pixels]; None for the preset's.
        frames: images of a clip; None for as many as Kinetics models are customarily fed.
    """
    kind = torchvision_task(name)
    height, width = size or torchvision_edges(name)
    if kind == "detection":
        return ([TensorSpec((3, height, width)) for _ in range(batch)],)
    clip = (frames or FRAMES,) if kind == "video" else ()
    return (TensorSpec((batch, 3, *clip, height, width)),) * (2 if kind == "optical_flow" else 1)


def torchvision_edges(name: str) -> Edges:
    """Height and width of the preset's images [pixels]; of detectors and optical flow, whose presets state none, what
    they are customarily given.
    """
    kind = torchvision_task(name)
    if kind in ("detection", "optical_flow"):
        return PHOTOGRAPH if kind == "detection" else VIDEO_FRAME
    preset = _preset(name)
    edge = preset.get("crop_size") or preset.get("resize_size") or IMAGE_SIZE
    return (edge[0], edge[-1]) if isinstance(edge, tuple | list) else (edge, edge)


def _preset(name: str) -> dict[str, Any]:
    """Options of the transform that goes with a model's weights."""
    weights = library("torchvision").models.get_model_weights(name)
    exact = next(iter(weights), None)
    return dict(getattr(exact.transforms, "keywords", {})) if exact is not None else {}
