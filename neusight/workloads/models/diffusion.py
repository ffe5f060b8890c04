"""Diffusion pipelines as one module: what lies on the device beside the denoiser, and when it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch


class DiffusionPipeline(torch.nn.Module):
    """Encodes prompts, denoises once, decodes the latents; all parts stay where they are (Rombach et al. 2022, figure
    3; diffusers, ``DiffusionPipeline`` without offload).
    """

    def __init__(
        self, encoders: Sequence[torch.nn.Module], denoiser: torch.nn.Module, decoder: torch.nn.Module
    ) -> None:
        super().__init__()
        self.encoders = torch.nn.ModuleList(encoders)
        self.denoiser = denoiser
        self.autoencoder: Any = decoder

    def forward(self, prompts: Sequence[torch.Tensor], step: Mapping[str, Any], latents: torch.Tensor) -> Any:
        """Images of latents [samples, channels, (clip latents,) height, width].

        ``prompts`` are token ids [samples, tokens], of each encoder its own; ``step`` what the denoiser takes, with
        encoded prompts of the same sizes.
        """
        for encoder, ids in zip(self.encoders, prompts, strict=True):
            encoder(ids)
        self.denoiser(**step)
        return self.autoencoder.decode(latents, return_dict=False)
