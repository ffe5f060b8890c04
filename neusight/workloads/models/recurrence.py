"""Stacks of recurrent layers: a language model of LSTMs, and Deep Speech 2 of GRUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from neusight.workloads.tensors import TensorSpec

SEQ_LEN = 35
"""Words that the language model is unrolled for (Zaremba et al. 2014, section 4.1)."""
SPECTRUM = 161
"""Frequencies of a window of 20 ms at 16 kHz (Amodei et al. 2016, section 3)."""
WINDOWS = 1000
"""Windows of a sound of 10 s, 10 ms apart."""


class LanguageLstm(nn.Module):
    """Embeddings, LSTM layers with dropout between them, and logits (Zaremba et al. 2014, "Recurrent Neural Network
    Regularization").
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width, words = config["hidden_size"], config["vocab_size"]
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.LSTM(width, width, config["num_layers"], dropout=config["dropout"], batch_first=True)
        self.dropout = nn.Dropout(config["dropout"])
        self.head = nn.Linear(width, words)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Logits of shape (batch, length, words) of ids of shape (batch, length)."""
        found, _ = self.layers(self.dropout(self.embedding(input_ids)))
        return self.head(self.dropout(found))


class SpeechGru(nn.Module):
    """Two convolutions over a spectrogram, bidirectional GRU layers whose directions add up, and logits of characters
    (Amodei et al. 2016, "Deep Speech 2"; sizes of the reference of MLPerf Training 0.5).
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        channels, width = 32, config["hidden_size"]
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, channels, (41, 11), stride=2, padding=(20, 5)), nn.BatchNorm2d(channels), nn.Hardtanh(0, 20),
            nn.Conv2d(channels, channels, (21, 11), stride=(2, 1), padding=(10, 5)), nn.BatchNorm2d(channels),
            nn.Hardtanh(0, 20),
        )  # fmt: skip
        frequencies = (SPECTRUM + 3) // 4
        widths = [frequencies * channels, *[width] * (config["num_layers"] - 1)]
        self.layers = nn.ModuleList(nn.GRU(given, width, bidirectional=True) for given in widths)
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in widths)
        self.head = nn.Linear(width, config["characters"], bias=False)

    def forward(self, spectrogram: torch.Tensor) -> torch.Tensor:
        """Logits of shape (windows / 2, batch, characters) of a spectrogram (batch, 1, frequencies, windows)."""
        x = self.convolutions(spectrogram).flatten(1, 2).permute(2, 0, 1)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            both, _ = layer(x)
            x = both.unflatten(-1, (2, -1)).sum(-2)
            x = norm(x.flatten(0, 1)).view_as(x)
        return self.head(x)


def language_inputs(config: Mapping[str, Any], batch: int, seq_len: int | None) -> dict[str, TensorSpec]:
    """What ``LanguageLstm.forward`` takes."""
    return {"input_ids": TensorSpec((batch, seq_len or SEQ_LEN), "int64")}


def speech_inputs(config: Mapping[str, Any], batch: int, seq_len: int | None) -> dict[str, TensorSpec]:
    """What ``SpeechGru.forward`` takes; ``seq_len`` counts windows."""
    return {"spectrogram": TensorSpec((batch, 1, SPECTRUM, seq_len or WINDOWS))}
