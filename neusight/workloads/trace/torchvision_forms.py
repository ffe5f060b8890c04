"""Operators of torchvision's compiled library, as a trace sees them.

Builds for CUDA do not load that library beside PyTorch for the CPU, and then fail at the first operator that they name:
a trace needs no more of it than schemas and the shapes of results.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_ALIGN = "Tensor input, Tensor rois, float spatial_scale, int pooled_height, int pooled_width, int sampling_ratio"
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    f"roi_align({_ALIGN}, bool aligned) -> Tensor",
)
"""Of operators that torchvision names when it is imported, and that its models call."""
_KEPT: list[Any] = []
"""Definitions last as long as the library object."""


@cache
def settle_torchvision() -> None:
    """Make torchvision importable, where it is installed, before anything else imports it, as timm and transformers do.

    Where its compiled library does not load beside PyTorch, its schemas are defined here.
    """
    found = find_spec("torchvision") if "torchvision" not in sys.modules else None
    if found is not None and not _loads(Path(found.origin or "").parent):
        import torch

        library = torch.library.Library("torchvision", "FRAGMENT")
        for schema in _SCHEMAS:
            library.define(schema)
        library.impl("roi_align", _aligned, "Meta")
        _KEPT.append(library)


def _loads(package: Path) -> bool:
    """Whether a package's compiled operators load beside the installed PyTorch."""
    import torch

    try:
        for file in (*package.glob("_C*.so"), *package.glob("_C*.pyd")):
            torch.ops.load_library(file)
    except OSError:
        return False
    return hasattr(torch.ops.torchvision, "nms")


def _aligned(input: torch.Tensor, rois: torch.Tensor, _scale: float, height: int, width: int, *_: Any) -> torch.Tensor:
    """Each region of each channel at one size."""
    return input.new_empty(rois.shape[0], input.shape[1], height, width)


@contextmanager
def torchvision_forms() -> Iterator[None]:
    """What torchvision runs on a GPU: its own kernels, and one suppression for all classes together.

    Where values decide how many boxes there are, a loop over classes would be one over as many as there are boxes.
    """
    boxes = sys.modules.get("torchvision.ops.boxes")
    align = sys.modules.get("torchvision.ops.roi_align")
    if boxes is None or align is None:
        yield
        return
    together = getattr(boxes, "_batched_nms_coordinate_trick", None)
    forms = [
        (boxes, "_assert_has_ops", lambda: None),
        (align, "_assert_has_ops", lambda: None),
        (align, "_has_ops", lambda: True),
        (boxes, "_batched_nms_vanilla", together),
    ]
    present = [(module, name, form) for module, name, form in forms if form is not None and hasattr(module, name)]
    before = [(module, name, getattr(module, name)) for module, name, _ in present]
    try:
        for module, name, form in present:
            setattr(module, name, form)
        yield
    finally:
        for module, name, original in before:
            setattr(module, name, original)
