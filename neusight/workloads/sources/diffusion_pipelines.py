"""Whole diffusion pipelines: text encoders, one step of the denoiser or many, the decoder of images."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from neusight.quick_dataclasses import dataclass
from neusight.requests import Request
from neusight.workloads.catalogue import traced_config
from neusight.workloads.huggingface import build_model
from neusight.workloads.sources.described import Inputs, ModelSource, ModulePart
from neusight.workloads.sources.diffusion_models import DiffusionModel
from neusight.workloads.tensors import TensorSpec

if TYPE_CHECKING:
    import torch

PIPELINE = "denoiser"
"""The key of a configuration that names the denoiser of a pipeline in the catalogue."""
_TEXTS = 2
"""Prompts of a sample that is guided: its own, and none (Ho and Salimans 2022, section 3.2)."""


@dataclass(frozen=True, kw_only=True)
class PipelineModel(ModelSource):
    """A pipeline by its parts: ``denoiser`` by name, whether it is ``guided``, configurations of its ``autoencoder``
    and of its ``text_encoders``; what it ``makes``, in how many denoising ``steps`` where nobody asks for others.
    """

    name: str
    config: Mapping[str, Any]

    @property
    def parts(self) -> tuple[ModulePart, ...]:
        """The denoiser runs once a step, all else once."""
        return (
            ModulePart("encoders", "text encoder"),
            ModulePart("denoiser", "denoiser", repeats=True),
            ModulePart("autoencoder", "decoder"),
        )

    def unit(self, request: Request) -> str:
        """One step with all that comes before and after it, or a whole image or clip."""
        made, usual = self.config["makes"], self.config["steps"]
        guided = ", each with and without the prompt" if self.config["guided"] else ""
        if request.steps is None:
            rest = f"of the {usual} that are usual{guided}, with text encoder and decoder"
            return f"1 denoising step {rest}: --steps {usual} is a whole {made}"
        return f"a whole {made} in {request.steps} denoising step{'s' if request.steps > 1 else ''}{guided}"

    @property
    def content(self) -> str:
        """All parts, and the version of diffusers."""
        return f"{self._denoiser.content} {json.dumps(self.config, sort_keys=True)}"

    def settled(self, request: Request) -> Request:
        """As the denoiser's."""
        return self._denoiser.settled(request)

    def build(self, request: Request) -> torch.nn.Module:
        """The module of all parts.

        Raises:
            ModelError: as ``DiffusionModel.build``.
        """
        from neusight.workloads.models.diffusion import DiffusionPipeline

        encoders = [build_model(dict(config), "inference", "") for config in self.config["text_encoders"]]
        return DiffusionPipeline(encoders, self._denoiser.build(request), self._autoencoder.build(request))

    def inputs(self, request: Request) -> Inputs:
        """Prompts, what the denoiser takes, and latents; guided pipelines encode and denoise each sample twice."""
        texts = request.batch * (_TEXTS if self.config["guided"] else 1)
        step = self._denoiser.step(replace(request, batch=texts))
        frames = (step.frames,) if step.clip else ()
        channels = int(self.config["autoencoder"]["latent_channels"])
        prompts = [
            TensorSpec((texts, min(step.tokens, encoder.get("max_position_embeddings", step.tokens))), "int64")
            for encoder in self.config["text_encoders"]
        ]
        return {
            "prompts": prompts,
            "step": self._denoiser.inputs(replace(request, batch=texts)),
            "latents": TensorSpec((request.batch, channels, *frames, *step.edges)),
        }

    @property
    def _denoiser(self) -> DiffusionModel:
        name = self.config[PIPELINE]
        return DiffusionModel(name=name, config=traced_config(name))

    @property
    def _autoencoder(self) -> DiffusionModel:
        return DiffusionModel(name=f"{self.name} autoencoder", config=self.config["autoencoder"])
