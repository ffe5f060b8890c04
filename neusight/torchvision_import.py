"""Makes torchvision importable beside a PyTorch that its compiled library does not fit.

torchvision's builds for CUDA do not load that library beside PyTorch for the CPU, and importing the package then fails
at the first operator of it that it names; transformers' and timm's image models fail with it. A trace needs no more of
it than schemas and the shapes of results.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_ALIGN = "Tensor input, Tensor rois, float spatial_scale, int pooled_height, int pooled_width, int sampling_ratio"
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    f"roi_align({_ALIGN}, bool aligned) -> Tensor",
)
"""Of operators of the compiled library that torchvision names when it is imported, and that its models call."""
_KEPT: list[Any] = []
"""Definitions last as long as the library object."""


class _BeforeTorchvision:
    """Finds nothing: it sees to the schemas when torchvision is first looked for, by whomever."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == "torchvision":
            sys.meta_path.remove(self)
            found = find_spec(name)
            if found is not None and not _loads(Path(found.origin or "").parent):
                _define()
        return None


def watch_for_torchvision() -> None:
    """Once a process, before anything imports torchvision."""
    if not any(isinstance(finder, _BeforeTorchvision) for finder in sys.meta_path):
        sys.meta_path.insert(0, _BeforeTorchvision())


def _define() -> None:
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _SCHEMAS:
        library.define(schema)
    library.impl("roi_align", _aligned, "Meta")
    _KEPT.append(library)


def _aligned(input: torch.Tensor, rois: torch.Tensor, _scale: float, height: int, width: int, *_: Any) -> torch.Tensor:
    """Each region of each channel at one size."""
    return input.new_empty(rois.shape[0], input.shape[1], height, width)


def _loads(package: Path) -> bool:
    """Whether a package's compiled operators load beside the installed PyTorch."""
    import torch

    try:
        for file in (*package.glob("_C*.so"), *package.glob("_C*.pyd")):
            torch.ops.load_library(file)
    except OSError:
        return False
    return hasattr(torch.ops.torchvision, "nms")
