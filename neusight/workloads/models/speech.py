"""Convolutions over spectrograms that write characters: Jasper and QuartzNet, as in NVIDIA's examples for PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from neusight.workloads.tensors import TensorSpec

SECONDS = 16.7
"""Length of the longest utterance that training keeps (``max_duration`` of both examples)."""
_WINDOWS_PER_S = 100
_ALIGNED = 16
"""Multiple of windows that sounds are padded to (``pad_align``)."""


class ConvSpeech(nn.Module):
    """Blocks of one-dimensional convolutions, and logits of characters.

    Jasper (Li et al. 2019, "Jasper: An end-to-end convolutional neural acoustic model") adds to each block the results
    of all before; QuartzNet (Kriman et al. 2020) adds the one before and splits each convolution into one along time
    and one across channels. Before every convolution what is behind the end of a sound is set to zero.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width, made = config["features"], []
        blocks = []
        for filters, repeat, kernel, stride, dilation, dropout, residual in config["blocks"]:
            made += [width] if residual else []
            summed = [*made] if config["dense"] else made[-1:]
            how = {"dropout": dropout, "summed": summed if residual else [], "separable": config["separable"]}
            blocks.append(SpeechBlock(width, filters, repeat, (kernel, stride, dilation), **how))
            width = filters
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Conv1d(width, config["characters"], 1)

    def forward(self, spectrogram: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Log-probabilities of shape (batch, windows / 2, characters).

        Args:
            spectrogram: of shape (batch, features, windows).
            lengths: windows of each sound, of shape (batch,).
        """
        results = [spectrogram]
        for block in self.blocks:
            result, lengths = block(results, lengths)
            results = [*results, result] if block.residual else [result]
        return functional.log_softmax(self.head(results[-1]).transpose(1, 2), dim=2)


class SpeechBlock(nn.Module):
    """``repeat`` convolutions with batch norms, ReLU and dropout between, the sum with earlier results at its end."""

    def __init__(
        self, given: int, filters: int, repeat: int, sizes: tuple[int, int, int], *, dropout: float,
        summed: list[int], separable: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        widths = [given] + [filters] * (repeat - 1)
        self.layers = nn.ModuleList(_norm_layers(width, filters, sizes, separable and sizes[0] > 1) for width in widths)
        self.residual = nn.ModuleList(_norm_layers(width, filters, (1, 1, 1), False) for width in summed)
        self.dropout = nn.Dropout(dropout)

    def forward(self, results: list[torch.Tensor], lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The block's result, and how long the sounds are in it."""
        hidden, before = results[-1], lengths
        for at, layer in enumerate(self.layers):
            hidden = hidden if at == 0 else self.dropout(functional.relu(hidden, inplace=True))
            hidden, lengths = _mask(layer, hidden, lengths)
        for layer, result in zip(self.residual, results[-len(self.residual) :], strict=False):
            hidden = hidden + _mask(layer, result, before)[0]
        return self.dropout(functional.relu(hidden, inplace=True)), lengths


def _norm_layers(given: int, made: int, sizes: tuple[int, int, int], separable: bool) -> nn.ModuleList:
    """A convolution, or one along time and one across channels, and a batch norm."""
    kernel, stride, dilation = sizes
    how = {"stride": stride, "dilation": dilation, "padding": kernel // 2 * dilation, "bias": False}
    if separable:
        along = nn.Conv1d(given, given, kernel, groups=given, **how)  # type: ignore[arg-type]
        return nn.ModuleList([along, nn.Conv1d(given, made, 1, bias=False), nn.BatchNorm1d(made, eps=1e-3)])
    return nn.ModuleList([nn.Conv1d(given, made, kernel, **how), nn.BatchNorm1d(made, eps=1e-3)])  # type: ignore[arg-type]


def _mask(layer: Any, hidden: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    *convolutions, norm = layer
    for convolution in convolutions:
        beyond = torch.arange(hidden.shape[2], device=hidden.device).expand(len(hidden), -1) >= lengths.unsqueeze(1)
        hidden = convolution(hidden.masked_fill(beyond.unsqueeze(1), 0))
        reach = convolution.dilation[0] * (convolution.kernel_size[0] - 1)
        shortened = lengths + 2 * convolution.padding[0] - reach - 1
        lengths = torch.floor(shortened / convolution.stride[0]).long() + 1
    return norm(hidden), lengths


def speech_inputs(config: Mapping[str, Any], batch: int, seconds: float | None) -> dict[str, TensorSpec]:
    """Inputs of ``ConvSpeech.forward``."""
    windows = -(-round((seconds or SECONDS) * _WINDOWS_PER_S) // _ALIGNED) * _ALIGNED
    return {
        "spectrogram": TensorSpec((batch, config["features"], windows)),
        "lengths": TensorSpec((batch,), "int64"),
    }
