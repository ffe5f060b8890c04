"""Reference models of MLPerf Tiny (Banbury et al. 2021, arXiv 2106.07597, table 1), as they are trained.

Their sizes and layers are those of the benchmark's code (github.com/mlcommons/tiny, ``benchmark/training``).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from neusight.workloads.tensors import TensorSpec


class SeparableClassifier(nn.Module):
    """A convolution, depthwise separable ones, the mean over space, and a softmax over classes: the DS-CNN of keyword
    spotting (Zhang et al. 2017, arXiv 1711.07128) and MobileNet of visual wake words (Howard et al. 2017, arXiv
    1704.04861). ``blocks`` lists width and stride of each separable convolution.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width, (channels, *extents) = config["width"], config["image"]
        padding: Any = [_same(size, kernel) for size, kernel in zip(extents, config["kernel"], strict=True)]
        layers: list[nn.Module] = [_norm(nn.Conv2d(channels, width, config["kernel"], 2, padding=padding))]
        for made, step in config["blocks"]:
            layers.append(_norm(nn.Conv2d(width, width, 3, step, padding=1, groups=width)))
            layers.append(_norm(nn.Conv2d(width, made, 1)))
            width = made
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(width, config["classes"])

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Probabilities of shape (batch, classes) of images of shape (batch, channels, height, width)."""
        hidden = self.features(image)
        pooled = functional.avg_pool2d(hidden, hidden.shape[2:])
        return self.classifier(pooled.flatten(1)).softmax(-1)


class SmallResNet(nn.Module):
    """The residual network of image classification (He et al. 2016, section 4.2, in three stages of one block each),
    whose first convolution of a block has the stride and whose shortcut is a convolution where extents change.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        widths = config["widths"]
        self.stem = _norm(nn.Conv2d(config["image"][0], widths[0], 3, padding=1))
        self.blocks = nn.ModuleList(
            ResidualBlock(width, made, 2 if at else 1)
            for at, (width, made) in enumerate(pairwise([widths[0], *widths]))
        )
        self.classifier = nn.Linear(widths[-1], config["classes"])

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Probabilities of shape (batch, classes) of images of shape (batch, channels, height, width)."""
        hidden = self.stem(image)
        for block in self.blocks:
            hidden = block(hidden)
        pooled = functional.avg_pool2d(hidden, hidden.shape[2:])
        return self.classifier(pooled.flatten(1)).softmax(-1)


class ResidualBlock(nn.Module):
    """Two convolutions and a shortcut, which is a convolution where the width changes."""

    def __init__(self, given: int, made: int, stride: int) -> None:
        super().__init__()
        first, last = nn.Conv2d(given, made, 3, stride, padding=1), nn.Conv2d(made, made, 3, padding=1)
        self.body = nn.Sequential(*_norm(first), last, nn.BatchNorm2d(made))
        self.shortcut = nn.Identity() if given == made else nn.Conv2d(given, made, 1, stride)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Result for an image of shape (batch, given, height, width)."""
        return functional.relu(self.body(image) + self.shortcut(image))


class Autoencoder(nn.Sequential):
    """Dense layers to a bottleneck and back (anomaly detection; Koizumi et al. 2020, DCASE challenge, task 2)."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        widths = config["widths"]
        layers: list[nn.Module] = []
        for width, made in pairwise(widths):
            layers += [nn.Linear(width, made), nn.BatchNorm1d(made), nn.ReLU()]
        super().__init__(*layers[:-2])


def _same(size: int, kernel: int, stride: int = 2) -> int:
    """Padding that leaves as many results as TensorFlow's "same", which pads the ends unevenly."""
    return -(-((-(-size // stride) - 1) * stride + kernel - size) // 2)


def _norm(layer: nn.Conv2d) -> nn.Sequential:
    return nn.Sequential(layer, nn.BatchNorm2d(layer.out_channels), nn.ReLU())


def image_inputs(config: Mapping[str, Any], batch: int) -> dict[str, TensorSpec]:
    """Inputs of ``forward`` of the classifiers."""
    return {"image": TensorSpec((batch, *config["image"]))}


def window_inputs(config: Mapping[str, Any], batch: int) -> dict[str, TensorSpec]:
    """Inputs of ``Autoencoder.forward``: frames of a spectrogram, one after another."""
    return {"input": TensorSpec((batch, config["widths"][0]))}
