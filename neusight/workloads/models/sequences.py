"""Stacks of recurrent layers (a language model of LSTMs, Deep Speech 2 of GRUs), and WaveGlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        states, _ = self.layers(self.dropout(self.embedding(input_ids)))
        return self.head(self.dropout(states))


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
        self.layers = nn.ModuleList(nn.GRU(inner, width, bidirectional=True) for inner in widths)
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
    """Inputs of ``LanguageLstm.forward``."""
    return {"input_ids": TensorSpec((batch, seq_len or SEQ_LEN), "int64")}


def speech_inputs(config: Mapping[str, Any], batch: int, seq_len: int | None) -> dict[str, TensorSpec]:
    """Inputs of ``SpeechGru.forward``; ``seq_len`` counts windows."""
    return {"spectrogram": TensorSpec((batch, 1, SPECTRUM, seq_len or WINDOWS))}


class WaveGlow(nn.Module):
    """Flows of an invertible 1x1 convolution and a coupling whose scales come from dilated convolutions.

    Samples are taken in groups; every few flows some channels leave early. As in NVIDIA's example for PyTorch.
    """

    mixings: Sequence[nn.Conv1d]

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.group, self.every, self.early = config["group"], config["early_every"], config["early_size"]
        mels, window, hop = config["mels"], config["window"], config["hop"]
        self.upsample = nn.ConvTranspose1d(mels, mels, window, stride=hop)
        channels = [self.group - self.early * (flow // self.every) for flow in range(config["flows"])]
        self.mixings = nn.ModuleList(  # type: ignore[assignment]
            nn.Conv1d(c, c, 1, bias=False) for c in channels
        )
        self.couplings = nn.ModuleList(Coupling(c // 2, mels * self.group, config) for c in channels)

    def forward(self, spectrogram: torch.Tensor, audio: torch.Tensor) -> torch.Tensor:
        """Negative log-likelihood.

        Args:
            spectrogram: of shape (batch, mels, frames).
            audio: of shape (batch, samples).
        """
        condition = self.upsample(spectrogram)[:, :, : audio.shape[1]]
        condition = condition.unfold(2, self.group, self.group).permute(0, 2, 1, 3).flatten(2).transpose(1, 2)
        audio = audio.unfold(1, self.group, self.group).permute(0, 2, 1)
        left, logs = [], audio.new_zeros(())
        for flow, (mixing, coupling) in enumerate(zip(self.mixings, self.couplings, strict=True)):
            if flow and flow % self.every == 0:
                left.append(audio[:, : self.early])
                audio = audio[:, self.early :]
            scale = audio.shape[0] * audio.shape[2]
            logs = logs + scale * torch.logdet(mixing.weight.squeeze(-1).float())
            first, second = mixing(audio).chunk(2, dim=1)
            shift, log_scale = coupling(first, condition).chunk(2, dim=1)
            audio = torch.cat([first, log_scale.exp() * second + shift], dim=1)
            logs = logs + log_scale.sum()
        hidden = torch.cat([*left, audio], dim=1)
        return ((hidden * hidden).sum() / 2 - logs) / hidden.numel()


class Coupling(nn.Module):
    """Dilated convolutions, each gated and conditioned on the spectrogram (van den Oord et al. 2016)."""

    def __init__(self, given: int, condition: int, config: Mapping[str, Any]) -> None:
        super().__init__()
        width, layers, kernel = config["channels"], config["layers"], config["kernel"]
        self.start, self.end = nn.Conv1d(given, width, 1), nn.Conv1d(width, 2 * given, 1)
        self.dilated = nn.ModuleList(
            nn.Conv1d(width, 2 * width, kernel, dilation=2**at, padding=2**at * (kernel // 2)) for at in range(layers)
        )
        self.conditions = nn.ModuleList(nn.Conv1d(condition, 2 * width, 1) for _ in range(layers))
        self.passed = nn.ModuleList(nn.Conv1d(width, (2 if at < layers - 1 else 1) * width, 1) for at in range(layers))

    def forward(self, audio: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        """Shifts and log-scales, (batch, 2 given, time), of audio (batch, given, time)."""
        hidden, skipped = self.start(audio), None
        for dilated, conditioned, passed in zip(self.dilated, self.conditions, self.passed, strict=True):
            both = dilated(hidden) + conditioned(condition)
            gate, value = both.chunk(2, dim=1)
            *on, skip = passed(gate.tanh() * value.sigmoid()).split(hidden.shape[1], dim=1)
            hidden = hidden + on[0] if on else hidden
            skipped = skip if skipped is None else skipped + skip
        assert skipped is not None
        return self.end(skipped)


def waveglow_inputs(config: Mapping[str, Any], batch: int) -> dict[str, TensorSpec]:
    """Inputs of ``WaveGlow.forward``: segments of ``samples``, and their spectrograms."""
    frames = config["samples"] // config["hop"] + 1
    return {
        "spectrogram": TensorSpec((batch, config["mels"], frames)),
        "audio": TensorSpec((batch, config["samples"])),
    }
