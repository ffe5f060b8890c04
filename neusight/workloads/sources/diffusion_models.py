"""Parts of diffusion pipelines by diffusers' configuration: ``diffusers:FOLDER/unet``, or a path to its config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neusight.errors import ModelError, nearest, reason, shown
from neusight.paths import read_json, user_path
from neusight.quick_dataclasses import dataclass
from neusight.requests import Request
from neusight.workloads.sources.described import Inputs, ModelSource, library, refuse_others, version_of
from neusight.workloads.sources.diffusion_inputs import DenoiserStep, inputs_of

if TYPE_CHECKING:
    import torch

CLASS = "_class_name"
"""The key of a configuration that names its class in diffusers."""
DENOISERS = ("unet", "transformer", "prior")
"""Parts of a pipeline that run once a step of denoising: meant where a pipeline is named as a whole."""


@dataclass(frozen=True, kw_only=True)
class DiffusionModel(ModelSource):
    """A model of diffusers with the contents of its ``config.json``."""

    name: str
    config: Mapping[str, Any]

    @property
    def content(self) -> str:
        """The configuration and the version of diffusers."""
        return f"diffusers {version_of('diffusers')} {json.dumps(self.config, sort_keys=True)}"

    @property
    def kind(self) -> str:
        """The class in diffusers."""
        return str(self.config[CLASS])

    def unit(self, request: Request) -> str:
        """A denoiser runs many times for an image; an autoencoder once."""
        denoises = any(word in self.kind for word in ("UNet", "Transformer"))
        return "1 denoising step: an image or clip has many" if denoises else ""

    def settled(self, request: Request) -> Request:
        """Images of a size, prompts and clips of a length may be asked for."""
        return refuse_others(request, "image_size", "seq_len", "frames")

    def build(self, request: Request) -> torch.nn.Module:
        """The module of the configuration; attention is written out by diffusers itself where it has that.

        Raises:
            ModelError: diffusers is missing, does not know the class, or cannot build it.
        """
        kind = self._class()
        sized = "sample_size" in self.config and request.extents.image_size and not self._any_size()
        # Positions are made for a square, of which an image takes a part.
        changes = {"sample_size": max(self.step(request).edges)} if sized else {}
        try:
            model = kind.from_config({**self.config, **changes})
        except Exception as error:
            raise ModelError(
                f"{self.kind} cannot be built from {self.name}: {type(error).__name__}: {reason(error)}; correct what "
                "it names"
            ) from error
        if request.attention == "eager" and hasattr(model, "set_default_attn_processor"):
            model.set_default_attn_processor()
        return model

    def inputs(self, request: Request) -> Inputs:
        """Latents, timesteps and encoded text, as the pipeline of the model feeds it."""
        return inputs_of(self._class().forward, self.step(request))

    def step(self, request: Request) -> DenoiserStep:
        """The step, by the configuration with the defaults of its class.

        Raises:
            ModelError: as ``build``.
        """
        parameters = signature(self._class().__init__).parameters.values()
        defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        return DenoiserStep(kind=self.kind, config={**defaults, **self.config}, request=request)

    def _class(self) -> Any:
        kind = getattr(library("diffusers"), self.kind, None)
        if kind is None or not hasattr(kind, "from_config") or not hasattr(kind, "forward"):
            names = [name for name in dir(library("diffusers")) if name.endswith(("Model", "KL"))]
            raise ModelError(
                f"diffusers {version_of('diffusers')} has no model '{shown(self.kind)}'{nearest(self.kind, names)}: "
                f"correct {CLASS} of {self.name}, or install another version"
            )
        return kind

    def _any_size(self) -> bool:
        """UNets and autoencoders are the same for images of every size; positions of transformers are not."""
        return not self.kind.endswith(("Transformer2DModel", "Transformer3DModel"))


def diffusion_model(text: str) -> DiffusionModel | None:
    """The model that ``diffusers:PATH`` stands for; None for any other text.

    Raises:
        ModelError: nothing lies there, or it is neither a configuration of diffusers nor a pipeline with a denoiser.
    """
    prefix, colon, rest = text.partition(":")
    if not colon or prefix != "diffusers":
        return None
    path = user_path(rest)
    if not path.exists():
        raise ModelError(f"no file or folder {shown(path)} for '{shown(text)}': write diffusers:FOLDER/unet")
    return replace(from_path(path), name=text)


def from_path(path: Path) -> DiffusionModel:
    """The model of a ``config.json``, of the folder that holds it, or the denoiser of a pipeline's folder.

    Raises:
        ModelError: as ``diffusion_model``.
    """
    file = path / "config.json" if path.is_dir() else path
    if path.is_dir() and not file.exists():
        return _denoiser(path)
    config = _read(file)
    if not isinstance(config.get(CLASS), str):
        raise ModelError(f"{file} states no {CLASS}: give the config.json of a model of diffusers")
    return DiffusionModel(name=file.resolve().parent.name if file.name == "config.json" else file.stem, config=config)


def _denoiser(pipeline: Path) -> DiffusionModel:
    parts = sorted(file.parent.name for file in pipeline.glob("*/config.json"))
    for part in DENOISERS:
        if part in parts:
            return from_path(pipeline / part)
    has = f"it has {', '.join(parts)}: name one as FOLDER/PART" if parts else "give the folder of a pipeline"
    raise ModelError(f"{pipeline} holds no config.json and no {' or '.join(DENOISERS)}; {has}")


def _read(file: Path) -> dict[str, Any]:
    try:
        config = read_json(file)
    except OSError as error:
        raise ModelError(f"cannot read {file}: {error.strerror}; give the path of a config.json") from None
    except ValueError as error:
        raise ModelError(f"{file} is not JSON ({error}): give the config.json of a model of diffusers") from None
    if not isinstance(config, dict):
        raise ModelError(f"{file} is no JSON object: give the config.json of a model of diffusers")
    return config
