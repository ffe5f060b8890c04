"""What denoisers and autoencoders of diffusers are fed: latents, timesteps and the encoded text, by names of inputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from neusight.errors import ModelError
from neusight.requests import Request
from neusight.workloads.tensors import TensorSpec

LATENT_PIXELS = 8
"""Pixels along an edge that one latent stands for (Rombach et al. 2022, f = 8; Esser et al. 2024)."""
PACKED = 2
"""Latents along an edge that one token of a packed image stands for, as ``_pack_latents`` of FLUX's pipeline has it."""
IMAGE_SIZE = 1024
"""Edge [pixels] of images of models whose configuration states no ``sample_size``: FLUX's pipeline makes these."""
FRAMES = 81
"""Images of a clip unless asked for, as Wan's pipeline makes them."""
CLIP_FRAMES = 4
"""Images that one latent of a clip stands for, after the first (Wan 2025, section 4.1)."""
TEXT_TOKENS = {
    "SD3Transformer2DModel": 333,
    "FluxTransformer2DModel": 512,
    "QwenImageTransformer2DModel": 512,
    "WanTransformer3DModel": 512,
    "SanaTransformer2DModel": 300,
    "PixArtTransformer2DModel": 120,
    "AuraFlowTransformer2DModel": 256,
}
"""Tokens of a prompt by the defaults of each model's pipeline: ``max_sequence_length``, with CLIP's 77 before T5's 256
in Stable Diffusion 3."""
CLIP_TOKENS = 77
"""Tokens of a prompt in all others (Radford et al. 2021, section 2.4)."""
_TEXT_WIDTHS = ("joint_attention_dim", "caption_channels", "text_dim", "text_embed_dim", "cross_attention_dim")
_COLOURS = 3
_CLIPS = ("3D", "Video", "AutoencoderKLWan")
"""Of the names of classes that take clips."""
_TIME_IDS = 6
"""Original size, crop and target size of an image, two numbers each (Podell et al. 2023, section 2.2)."""


@dataclass(frozen=True, kw_only=True)
class Fed:
    """A model's configuration and the step that it runs."""

    kind: str
    config: Mapping[str, Any]
    request: Request

    @property
    def batch(self) -> int:
        """Samples."""
        return self.request.batch

    @property
    def edges(self) -> tuple[int, int]:
        """Latents, or pixels of a model without latents, along the height and the width of the image."""
        asked = self.request.extents.image_size
        if asked:
            return (max(1, asked // self.pixels),) * 2
        size = self.config.get("sample_size") or IMAGE_SIZE // self.pixels
        height, width = (size[0], size[-1]) if isinstance(size, list | tuple) else (size, size)
        return int(self.config.get("sample_height") or height), int(self.config.get("sample_width") or width)

    @property
    def edge(self) -> int:
        """Latents along the height."""
        return self.edges[0]

    @property
    def pixels(self) -> int:
        """Along the edge of one place that the model reads: one of autoencoders and of models of three channels."""
        in_pixels = self.kind.startswith(("Autoencoder", "VQ")) or self.channels == _COLOURS
        return 1 if in_pixels else LATENT_PIXELS

    @property
    def channels(self) -> int:
        """Of a latent, or of a token where several latents are packed into one.

        Raises:
            ModelError: the configuration states none.
        """
        if not isinstance(self.config.get("in_channels"), int):
            raise ModelError(f"the configuration of {self.kind} states no in_channels: add it, as its class takes it")
        return int(self.config["in_channels"])

    @property
    def tokens(self) -> int:
        """Of the prompt."""
        stated = self.config.get("max_text_seq_length")
        return int(self.request.seq_len or stated or TEXT_TOKENS.get(self.kind, CLIP_TOKENS))

    @property
    def packed(self) -> bool:
        """Whether the model takes tokens in place of images."""
        return "axes_dims_rope" in self.config

    @property
    def clip(self) -> bool:
        """Whether the model takes clips."""
        return isinstance(self.config.get("patch_size"), list | tuple) or any(word in self.kind for word in _CLIPS)

    @property
    def frames(self) -> int:
        """Latents of a clip along its time."""
        asked = self.request.extents.frames or self.config.get("sample_frames") or FRAMES
        return 1 + (asked - 1) // (self.config.get("temporal_compression_ratio") or CLIP_FRAMES)

    @property
    def text_width(self) -> int:
        """Features of an encoded token."""
        found = next((self.config[key] for key in _TEXT_WIDTHS if self.config.get(key)), None)
        if found is None:
            raise ModelError(f"{self.kind} states no width of its text: one of {', '.join(_TEXT_WIDTHS)}")
        return int(found[0] if isinstance(found, list | tuple) else found)


def inputs_of(forward: Callable[..., Any], fed: Fed) -> dict[str, Any]:
    """Inputs by name: all that ``forward`` must have, and those of what it may have that the model's pipeline gives.

    Raises:
        ModelError: an input is needed that nobody knows how to make.
    """
    found = {}
    for parameter in list(inspect.signature(forward).parameters.values()):
        needed = parameter.default is parameter.empty and parameter.name not in ("self", "kwargs")
        make = _MAKERS.get(parameter.name) or (_IF_NEEDED.get(parameter.name) if needed else None)
        if make is None and needed:
            raise ModelError(
                f"{fed.kind} needs '{parameter.name}', which does not follow from its configuration: pass "
                "package.module:function, whose function returns the module and its inputs"
            )
        value = make(fed) if make is not None else None
        if value is not None:
            found[parameter.name] = value
    return found


def _latents(fed: Fed) -> TensorSpec:
    if fed.packed:
        return TensorSpec((fed.batch, _image_tokens(fed), fed.channels))
    if fed.kind.startswith("CogVideoX"):
        return TensorSpec((fed.batch, fed.frames, fed.channels, *fed.edges))
    return TensorSpec((fed.batch, fed.channels, *((fed.frames,) if fed.clip else ()), *fed.edges))


def _image_tokens(fed: Fed) -> int:
    return max(1, fed.edge // PACKED) ** 2


def _text(fed: Fed) -> TensorSpec | None:
    return TensorSpec((fed.batch, fed.tokens, fed.text_width))


def _pooled(fed: Fed) -> TensorSpec | None:
    width = fed.config.get("pooled_projection_dim")
    return TensorSpec((fed.batch, width)) if width else None


def _class_labels(fed: Fed) -> TensorSpec | None:
    classes = fed.config.get("num_class_embeds") or fed.kind.startswith("DiT")
    return TensorSpec((fed.batch,), "int64") if classes else None


def _added(fed: Fed) -> dict[str, Any] | None:
    """What SDXL and PixArt are told beside the prompt; PixArt wants the names even where nothing is told."""
    if fed.config.get("addition_embed_type") == "text_time":
        times = _TIME_IDS * fed.config["addition_time_embed_dim"]
        pooled = fed.config["projection_class_embeddings_input_dim"] - times
        return {"text_embeds": TensorSpec((fed.batch, pooled)), "time_ids": TensorSpec((fed.batch, _TIME_IDS))}
    if not fed.kind.startswith("PixArt"):
        return None
    stated = fed.config.get("use_additional_conditions")
    used = fed.config.get("sample_size") == 128 if stated is None else stated
    if not used:
        return {"resolution": None, "aspect_ratio": None}
    return {"resolution": TensorSpec((fed.batch, 2)), "aspect_ratio": TensorSpec((fed.batch, 1))}


def _places(count: Callable[[Fed], int]) -> Callable[[Fed], TensorSpec | None]:
    return lambda fed: TensorSpec((count(fed), len(fed.config["axes_dims_rope"]))) if fed.packed else None


def _guidance(fed: Fed) -> TensorSpec | None:
    return TensorSpec((fed.batch,)) if fed.config.get("guidance_embeds") else None


def _condition(fed: Fed) -> TensorSpec:
    """The image that steers a ControlNet, in pixels."""
    size = LATENT_PIXELS * fed.edge
    return TensorSpec((fed.batch, int(fed.config.get("conditioning_channels", 3)), size, size))


def _image_grid(fed: Fed) -> list[Any] | None:
    side = max(1, fed.edge // PACKED)
    return [[(1, side, side)]] * fed.batch


_MAKERS: dict[str, Callable[[Fed], Any]] = {
    "sample": _latents,
    "hidden_states": _latents,
    "timestep": lambda fed: TensorSpec((fed.batch,), "int64"),
    "encoder_hidden_states": _text,
    "pooled_projections": _pooled,
    "class_labels": _class_labels,
    "added_cond_kwargs": _added,
    "img_ids": _places(_image_tokens),
    "txt_ids": _places(lambda fed: fed.tokens),
    "guidance": _guidance,
    "controlnet_cond": _condition,
    "img_shapes": _image_grid,
}
"""Makers by the name of a parameter of ``forward``; None where the model is told nothing of it."""
_IF_NEEDED = {"encoder_attention_mask": lambda fed: TensorSpec((fed.batch, fed.tokens), "bool")}
"""The same of inputs that a model is given only where it cannot do without."""
