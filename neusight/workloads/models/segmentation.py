"""U-Nets: from images or volumes to a class for each of their points."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from neusight.workloads.tensors import TensorSpec

CONVOLUTIONS: Mapping[int, Any] = {2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED: Mapping[int, Any] = {2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
NORMS: Mapping[int, Any] = {2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}
POOLS: Mapping[int, Any] = {2: nn.MaxPool2d, 3: nn.MaxPool3d}


class UNet(nn.Module):
    """Two convolutions a level on the way down and on the way up, where a level's result of the way down joins them.

    Without norms as Ronneberger et al. 2015, "U-Net": convolutions lose their borders, and pools go down. With them as
    nnU-Net (Isensee et al. 2021): convolutions keep the extents, have instance norms, and go down by their stride.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        dims, widths, self.normed = len(config["image"]), config["widths"], config["normed"]
        self.pool = POOLS[dims](2)
        sizes = zip([config["channels"], *widths[:-1]], widths, strict=True)
        self.down = nn.ModuleList(
            self._level(dims, width, made, 2 if self.normed and at else 1) for at, (width, made) in enumerate(sizes)
        )
        steps = list(pairwise(reversed(widths)))
        self.up = nn.ModuleList(TRANSPOSED[dims](deep, shallow, 2, stride=2) for deep, shallow in steps)
        self.joined = nn.ModuleList(self._level(dims, 2 * shallow, shallow, 1) for _, shallow in steps)
        self.head = CONVOLUTIONS[dims](widths[0], config["classes"], 1)

    def _level(self, dims: int, given: int, made: int, stride: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for width, step in ((given, stride), (made, 1)):
            padding = 1 if self.normed else 0
            layers.append(CONVOLUTIONS[dims](width, made, 3, step, padding, bias=not self.normed))
            layers += [NORMS[dims](made, affine=True), nn.LeakyReLU(0.01, inplace=True)] if self.normed else [nn.ReLU()]
        return nn.Sequential(*layers)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Logits of shape (batch, classes, extents) of images of shape (batch, channels, extents)."""
        hidden, passed = image, []
        for at, level in enumerate(self.down):
            hidden = level(hidden if at == 0 or self.normed else self.pool(hidden))
            passed.append(hidden)
        for up, joined, skipped in zip(self.up, self.joined, reversed(passed[:-1]), strict=True):
            hidden = up(hidden)
            hidden = joined(torch.cat((hidden, _crop(skipped, hidden)), dim=1))
        return self.head(hidden)


def _crop(image: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The middle of an image, as large as another."""
    borders = [(a - b) // 2 for a, b in zip(image.shape[:1:-1], like.shape[:1:-1], strict=True)]
    cut = [-border for border in borders for _ in range(2)]
    return functional.pad(image, cut) if any(cut) else image


def unet_inputs(config: Mapping[str, Any], batch: int) -> dict[str, TensorSpec]:
    """Inputs of ``UNet.forward``."""
    return {"image": TensorSpec((batch, config["channels"], *config["image"]))}
