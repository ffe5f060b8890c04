"""AlexNet and VGG as plain modules: the two classic image classifiers that Hugging Face Transformers does not have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from neusight.errors import ModelError


class ConvClassifier(nn.Module):
    """Convolutional features, an average pool to a fixed grid, and a classifier on its flattened cells."""

    def __init__(self, features: nn.Module, grid: int, classifier: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.pool = nn.AdaptiveAvgPool2d((grid, grid))
        self.classifier = classifier

    def forward(self, pixel_values: Any) -> Any:
        """Logits of shape (batch, classes) from images of shape (batch, channels, height, width)."""
        return self.classifier(self.pool(self.features(pixel_values)).flatten(1))


def alexnet(config: dict[str, Any]) -> nn.Module:
    """AlexNet in its one-tower form (Krizhevsky 2014, "One weird trick for parallelizing CNNs")."""
    channels, classes, dropout = _sizes(config)
    features = nn.Sequential(
        *_conv_relu(channels, 64, 11, stride=4, padding=2),
        nn.MaxPool2d(3, 2),
        *_conv_relu(64, 192, 5, padding=2),
        nn.MaxPool2d(3, 2),
        *_conv_relu(192, 384, 3, padding=1),
        *_conv_relu(384, 256, 3, padding=1),
        *_conv_relu(256, 256, 3, padding=1),
        nn.MaxPool2d(3, 2),
    )
    classifier = nn.Sequential(
        nn.Dropout(dropout),
        *_linear_relu(256 * 6 * 6, 4096),
        nn.Dropout(dropout),
        *_linear_relu(4096, 4096),
        nn.Linear(4096, classes),
    )
    return ConvClassifier(features, 6, classifier)


def vgg(config: dict[str, Any]) -> nn.Module:
    """VGG without batch norm (Simonyan and Zisserman 2015, table 1); ``stages`` lists the channels between pools."""
    channels, classes, dropout = _sizes(config)
    stages = _stages(config)
    features: list[nn.Module] = []
    for stage in stages:
        for width in stage:
            features += _conv_relu(channels, width, 3, padding=1)
            channels = width
        features.append(nn.MaxPool2d(2, 2))
    classifier = nn.Sequential(
        *_linear_relu(channels * 7 * 7, 4096),
        nn.Dropout(dropout),
        *_linear_relu(4096, 4096),
        nn.Dropout(dropout),
        nn.Linear(4096, classes),
    )
    return _drawn(ConvClassifier(nn.Sequential(*features), 7, classifier))


def _sizes(config: dict[str, Any]) -> tuple[int, int, float]:
    """Channels of the image, classes, and the share that is dropped between linear layers."""
    return config.get("num_channels", 3), config.get("num_labels", 1000), config.get("dropout", 0.5)


def _stages(config: dict[str, Any]) -> Sequence[Sequence[int]]:
    stages = config.get("stages")
    lists = stages if isinstance(stages, list) else []
    widths = [width for stage in lists for width in (stage if isinstance(stage, list) else [stage, None])]
    if not widths or not all(isinstance(width, int) and 0 < width < 100_000 for width in widths):
        raise ModelError("stages of a vgg lists the channels between pools: write it like [[64, 64], [128, 128]]")
    return lists


def _drawn(model: nn.Module) -> nn.Module:
    """Convolutions start as He et al. 2015 draw them for ReLU, linear layers small: PyTorch's own start would shrink
    what deep layers see until their biases alone decided which units are ever active.
    """
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, 0.0, 0.01)
        if isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return model


def _conv_relu(channels: int, width: int, kernel: int, stride: int = 1, padding: int = 0) -> Iterable[nn.Module]:
    return [nn.Conv2d(channels, width, kernel, stride=stride, padding=padding), nn.ReLU(inplace=True)]


def _linear_relu(inputs: int, outputs: int) -> Iterable[nn.Module]:
    return [nn.Linear(inputs, outputs), nn.ReLU(inplace=True)]


ARCHITECTURES = {"alexnet": alexnet, "vgg": vgg}
