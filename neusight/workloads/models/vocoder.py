"""HiFi-GAN: speech from spectrograms (Kong et al. 2020, "HiFi-GAN"), as in NVIDIA's example for PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from neusight.workloads.tensors import TensorSpec

SECONDS = 7.0
"""Length of a sentence of LJSpeech, whose clips last 6.6 s on average, at most 10 (Ito and Johnson 2017)."""
_SLOPE = 0.1


class HiFiGan(nn.Module):
    """Vocoder: in inference the generator alone; in training its discriminators as well, on real speech and on
    generated, once for their step and once for the generator's.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.generator = Generator(config)
        self.periods = nn.ModuleList(PeriodDiscriminator(period) for period in config["periods"])
        self.scales = nn.ModuleList(_Discriminator(_SCALE, nn.Conv1d, (3, 1)) for _ in range(config["scales"]))

    def forward(self, spectrogram: torch.Tensor, audio: torch.Tensor | None = None) -> Any:
        """Speech of shape (batch, 1, samples), or with ``audio`` of that shape all that the losses are of.

        Args:
            spectrogram: of shape (batch, mels, frames).
            audio: real speech.
        """
        made = self.generator(spectrogram)
        if audio is None:
            return made
        return (made, *self._judge(audio), *self._judge(made.detach()), *self._judge(audio), *self._judge(made))

    def _judge(self, audio: torch.Tensor) -> list[torch.Tensor]:
        results = [result for judge in self.periods for result in judge(audio)]
        for at, judge in enumerate(self.scales):
            audio = functional.avg_pool1d(audio, 4, 2, padding=2) if at else audio
            results += judge(audio)
        return results


class Generator(nn.Module):
    """Transposed convolutions up to the rate of samples, each followed by residual blocks of several widths, whose
    results are averaged.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width = config["width"]
        self.first = nn.Conv1d(config["mels"], width, 7, padding=3)
        self.up, self.blocks = nn.ModuleList(), nn.ModuleList()
        for rate in config["rates"]:
            self.up.append(nn.ConvTranspose1d(width, width // 2, 2 * rate, rate, padding=rate // 2))
            width //= 2
            self.blocks.append(nn.ModuleList(_Residual(width, kernel) for kernel in config["kernels"]))
        self.last = nn.Conv1d(width, 1, 7, padding=3)

    def forward(self, spectrogram: torch.Tensor) -> torch.Tensor:
        """Speech of shape (batch, 1, samples)."""
        hidden = self.first(spectrogram)
        for up, blocks in zip(self.up, self.blocks, strict=True):
            hidden = up(functional.leaky_relu(hidden, _SLOPE))
            results = [block(hidden) for block in blocks]  # type: ignore[attr-defined]
            hidden = sum(results[1:], results[0]) / len(results)
        return torch.tanh(self.last(functional.leaky_relu(hidden)))


class _Residual(nn.Module):
    """Three pairs of convolutions, the first of each dilated."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        around = kernel // 2
        self.dilated = nn.ModuleList(nn.Conv1d(width, width, kernel, padding=d * around, dilation=d) for d in (1, 3, 5))
        self.plain = nn.ModuleList(nn.Conv1d(width, width, kernel, padding=around) for _ in self.dilated)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for dilated, plain in zip(self.dilated, self.plain, strict=True):
            inner = dilated(functional.leaky_relu(hidden, _SLOPE))
            hidden = hidden + plain(functional.leaky_relu(inner, _SLOPE))
        return hidden


_PERIOD = (
    (1, 32, (5, 1), (3, 1), 1), (32, 128, (5, 1), (3, 1), 1), (128, 512, (5, 1), (3, 1), 1),
    (512, 1024, (5, 1), (3, 1), 1), (1024, 1024, (5, 1), (1, 1), 1),
)  # fmt: skip
_SCALE = (
    (1, 128, 15, 1, 1), (128, 128, 41, 2, 4), (128, 256, 41, 2, 16), (256, 512, 41, 4, 16), (512, 1024, 41, 4, 16),
    (1024, 1024, 41, 1, 16), (1024, 1024, 5, 1, 1),
)  # fmt: skip
"""Channels read and made, filters, strides and groups of the discriminators (Kong et al. 2020, appendix; MelGAN)."""


class _Discriminator(nn.Module):
    """Convolutions whose results all count."""

    def __init__(self, layers: Any, kind: Any, last: tuple[Any, Any]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            kind(width, made, kernel, stride, padding=_around(kernel), groups=groups)
            for width, made, kernel, stride, groups in layers
        )
        self.last = kind(layers[-1][1], 1, last[0], padding=last[1])

    def forward(self, audio: torch.Tensor) -> list[torch.Tensor]:
        results = [audio]
        for layer in self.layers:
            results.append(functional.leaky_relu(layer(results[-1]), _SLOPE))
        return [*results[1:], self.last(results[-1])]


class PeriodDiscriminator(_Discriminator):
    """Looks at samples a period apart."""

    def __init__(self, period: int) -> None:
        super().__init__(_PERIOD, nn.Conv2d, ((3, 1), (1, 0)))
        self.period = period

    def forward(self, audio: torch.Tensor) -> list[torch.Tensor]:
        """Results of all layers of speech of shape (batch, 1, samples)."""
        if missing := -audio.shape[2] % self.period:
            audio = functional.pad(audio, (0, missing), "reflect")
        return super().forward(audio.unflatten(2, (-1, self.period)))


def _around(kernel: Any) -> Any:
    return tuple(size // 2 for size in kernel) if isinstance(kernel, tuple) else kernel // 2


def vocoder_inputs(config: Mapping[str, Any], batch: int, seconds: float | None, mode: str) -> dict[str, TensorSpec]:
    """Inputs of ``HiFiGan.forward``: a sentence, or in training a segment with its speech."""
    if mode == "inference":
        frames = round((seconds or SECONDS) * config["sample_rate"] / config["hop"])
        return {"spectrogram": TensorSpec((batch, config["mels"], frames))}
    samples = config["segment"]
    return {
        "spectrogram": TensorSpec((batch, config["mels"], samples // config["hop"])),
        "audio": TensorSpec((batch, 1, samples)),
    }
