"""What models of torchvision are fed, task by task: the sizes are those of the preset that comes with their weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neusight.errors import ModelError
from neusight.requests import Request
from neusight.workloads.inputs.sizes import FRAMES, IMAGE_SIZE
from neusight.workloads.sources.described import Inputs, refuse_others
from neusight.workloads.sources.libraries import library
from neusight.workloads.tensors import TensorSpec

PHOTOGRAPH = (480, 640)
"""Height and width [pixels] of most images of COCO, which detectors are trained on; they resize them themselves."""
VIDEO_FRAME = (520, 960)
"""Height and width [pixels] of a frame for optical flow, as in torchvision's own example of RAFT."""


def settled(name: Callable[[], str], request: Request) -> Request:
    """The step, if the model has it.

    Args:
        name: the model's name, asked for where the request depends on it.
        request: images of any size; clips may have any length.

    Raises:
        ModelError: a length is asked of what is no video, or training of a detector.
    """
    if request.extents.frames is not None and task(name()) != "video":
        raise ModelError(f"{request.model} reads single images: leave out --frames")
    if request.mode == "training" and task(name()) == "detection":
        raise ModelError(
            f"{request.model} trains on lists of boxes, which differ from image to image: ask for inference, or pass "
            "package.module:function, whose function returns the module with images and targets"
        )
    return refuse_others(request, "image_size", "frames")


def task(name: str) -> str:
    """``classification``, or the folder of torchvision.models that the model comes from, such as ``detection``."""
    module = library("torchvision").models.get_model_builder(name).__module__
    parts = module.removeprefix("torchvision.models.").split(".")
    return parts[0] if len(parts) > 1 else "classification"


def inputs(name: str, batch: int, size: int | None, frames: int | None) -> Inputs:
    """Specs of what ``forward`` takes: images, a list of images, a clip, or two frames.

    Args:
        name: a model of torchvision.
        batch: samples.
        size: edge of square images [pixels]; None for the preset's.
        frames: images of a clip; None for as many as Kinetics models are customarily fed.
    """
    kind = task(name)
    height, width = (size, size) if size else edges(name)
    if kind == "detection":
        return ([TensorSpec((3, height, width)) for _ in range(batch)],)
    if kind == "optical_flow":
        return (TensorSpec((batch, 3, height, width)), TensorSpec((batch, 3, height, width)))
    if kind == "video":
        return (TensorSpec((batch, 3, frames or FRAMES, height, width)),)
    return (TensorSpec((batch, 3, height, width)),)


def edges(name: str) -> tuple[int, int]:
    """Height and width of the preset's images [pixels]; of detectors and optical flow, whose presets state none, what
    they are customarily given.
    """
    kind = task(name)
    if kind in ("detection", "optical_flow"):
        return PHOTOGRAPH if kind == "detection" else VIDEO_FRAME
    stated = _preset(name)
    edge = stated.get("crop_size") or stated.get("resize_size") or IMAGE_SIZE
    return (edge[0], edge[-1]) if isinstance(edge, tuple | list) else (edge, edge)


def _preset(name: str) -> dict[str, Any]:
    """Options of the transform that goes with a model's weights."""
    weights = library("torchvision").models.get_model_weights(name)
    found = next(iter(weights), None)
    return dict(getattr(found.transforms, "keywords", {})) if found is not None else {}
