"""SSD: boxes and their classes from feature maps of several sizes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from neusight.workloads.tensors import TensorSpec

_PADDED = 3
"""Feature maps after the first that halve the one before; others lose their border."""


class SingleShotDetector(nn.Module):
    """SSD (Liu et al. 2016) on the first stages of ResNet-50, the last of them without its stride, and smaller maps
    after it; as in NVIDIA's example for PyTorch, which has batch norms in the added layers.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.backbone = _stages()
        maps, between = config["maps"], config["between"]
        self.added = nn.ModuleList(
            _smaller(width, inner, made, at < _PADDED)
            for at, ((width, made), inner) in enumerate(zip(pairwise(maps), between, strict=True))
        )
        sizes = list(zip(maps, config["boxes"], strict=True))
        of_box = config["classes"]
        self.places = nn.ModuleList(nn.Conv2d(width, 4 * boxes, 3, padding=1) for width, boxes in sizes)
        self.scores = nn.ModuleList(nn.Conv2d(width, of_box * boxes, 3, padding=1) for width, boxes in sizes)
        self.of_box = of_box

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores of shape (batch, classes, boxes) and places (batch, 4, boxes) of images (batch, 3, edge, edge)."""
        maps = [self.backbone(image)]
        for layer in self.added:
            maps.append(layer(maps[-1]))
        return _flat(self.scores, maps, self.of_box), _flat(self.places, maps, 4)


def _flat(heads: nn.ModuleList, maps: list[torch.Tensor], values: int) -> torch.Tensor:
    """Values of each box of all maps, ``values`` of each, of shape (batch, values, boxes)."""
    return torch.cat([head(x).reshape(len(x), values, -1) for head, x in zip(heads, maps, strict=True)], 2)


def _stages() -> nn.Module:
    """ResNet-50 to its third stage, which keeps the extents of the second."""
    from neusight.workloads.sources.described import library

    whole = library("torchvision").models.resnet50(weights=None)
    first = whole.layer3[0]
    first.conv1.stride = first.conv2.stride = first.downsample[0].stride = (1, 1)
    return nn.Sequential(whole.conv1, whole.bn1, whole.relu, whole.maxpool, whole.layer1, whole.layer2, whole.layer3)


def _smaller(given: int, inner: int, made: int, padded: bool) -> nn.Sequential:
    stride, padding = (2, 1) if padded else (1, 0)
    return nn.Sequential(
        nn.Conv2d(given, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(inplace=True),
        nn.Conv2d(inner, made, 3, stride, padding, bias=False), nn.BatchNorm2d(made), nn.ReLU(inplace=True),
    )  # fmt: skip


def detector_inputs(config: Mapping[str, Any], batch: int) -> dict[str, TensorSpec]:
    """Inputs of ``SingleShotDetector.forward``."""
    return {"image": TensorSpec((batch, 3, config["image"], config["image"]))}
