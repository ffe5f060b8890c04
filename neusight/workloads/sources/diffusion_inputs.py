"""Inputs of denoisers and autoencoders of diffusers: latents, timesteps and the encoded text, by their names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from math import ceil, prod
from typing import Any

from neusight.errors import ModelError
from neusight.quick_dataclasses import dataclass
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
"""Parts of the names of classes whose models read clips."""
_TIME_IDS = 6
"""Original size, crop and target size of an image, two numbers each (Podell et al. 2023, section 2.2)."""


@dataclass(frozen=True, kw_only=True)
class DenoiserStep:
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
        if edges := self.request.extents.edges:
            return max(1, edges[0] // self.pixels), max(1, edges[1] // self.pixels)
        size = self.config.get("sample_size") or IMAGE_SIZE // self.pixels
        height, width = (size[0], size[-1]) if isinstance(size, list | tuple) else (size, size)
        return int(self.config.get("sample_height") or height), int(self.config.get("sample_width") or width)

    @property
    def pixels(self) -> int:
        """Along the edge of one place that the model reads: one of autoencoders and of models of three channels."""
        in_pixels = self.kind.startswith(("Autoencoder", "VQ")) or self.channels == _COLOURS
        return 1 if in_pixels else LATENT_PIXELS

    @property
    def channels(self) -> int:
        """Channels of a latent, or of a token where several latents are packed into one.

        Raises:
            ModelError: the configuration states none.
        """
        if not isinstance(self.config.get("in_channels"), int):
            raise ModelError(f"the configuration of {self.kind} states no in_channels: add it, as its class takes it")
        return int(self.config["in_channels"])

    @property
    def tokens(self) -> int:
        """Tokens of the prompt."""
        limit = self.config.get("max_text_seq_length")
        return int(self.request.seq_len or limit or TEXT_TOKENS.get(self.kind, CLIP_TOKENS))

    @property
    def packs_latents(self) -> bool:
        """Tell whether the model takes tokens in place of images."""
        return "axes_dims_rope" in self.config

    @property
    def clip(self) -> bool:
        """Tell whether the model takes clips."""
        return isinstance(self.config.get("patch_size"), list | tuple) or any(word in self.kind for word in _CLIPS)

    @property
    def frames(self) -> int:
        """Latents of a clip along its time."""
        frames = self.request.extents.frames or self.config.get("sample_frames") or FRAMES
        latents = 1 + (frames - 1) // (self.config.get("temporal_compression_ratio") or CLIP_FRAMES)
        return ceil(latents / self.frames_per_token) * self.frames_per_token

    @property
    def frames_per_token(self) -> int:
        """Latents along the time of a clip that one token stands for: pipelines lengthen clips to a multiple of them
        (diffusers, ``CogVideoXPipeline.__call__``, ``patch_size_t``).
        """
        return int(self.config.get("patch_size_t") or 1)

    @property
    def text_width(self) -> int:
        """Features of an encoded token."""
        inputs = next((self.config[key] for key in _TEXT_WIDTHS if self.config.get(key)), None)
        if inputs is None:
            raise ModelError(f"{self.kind} states no width of its text: one of {', '.join(_TEXT_WIDTHS)}")
        return int(inputs[0] if isinstance(inputs, list | tuple) else inputs)


def inputs_of(forward: Callable[..., Any], step: DenoiserStep) -> dict[str, Any]:
    """Inputs by name: all that ``forward`` requires, and the optional ones that the model's pipeline gives.

    Raises:
        ModelError: a required input has no maker.
    """
    inputs = {}
    for parameter in list(inspect.signature(forward).parameters.values()):
        needed = parameter.default is parameter.empty and parameter.name not in ("self", "kwargs")
        make = _MAKERS.get(parameter.name) or (_IF_NEEDED.get(parameter.name) if needed else None)
        if make is None and needed:
            raise ModelError(
                f"{step.kind} needs '{parameter.name}', which does not follow from its configuration: pass "
                "package.module:function, whose function returns the module and its inputs"
            )
        value = make(step) if make is not None else None
        if value is not None:
            inputs[parameter.name] = value
    return inputs


def _latents(step: DenoiserStep) -> TensorSpec:
    if step.packs_latents:
        return TensorSpec((step.batch, prod(_packed_edges(step)), step.channels))
    if step.kind.startswith("CogVideoX"):
        return TensorSpec((step.batch, step.frames, step.channels, *step.edges))
    return TensorSpec((step.batch, step.channels, *((step.frames,) if step.clip else ()), *step.edges))


def _packed_edges(step: DenoiserStep) -> list[int]:
    """Tokens of a packed image along its height and width."""
    return [max(1, edge // PACKED) for edge in step.edges]


def _text(step: DenoiserStep) -> TensorSpec | None:
    return TensorSpec((step.batch, step.tokens, step.text_width))


def _pool(step: DenoiserStep) -> TensorSpec | None:
    width = step.config.get("pooled_projection_dim")
    return TensorSpec((step.batch, width)) if width else None


def _class_labels(step: DenoiserStep) -> TensorSpec | None:
    classes = step.config.get("num_class_embeds") or step.kind.startswith("DiT")
    return TensorSpec((step.batch,), "int64") if classes else None


def _conditions(step: DenoiserStep) -> dict[str, Any] | None:
    """Inputs that SDXL and PixArt get with the prompt; PixArt needs the names even where nothing is given."""
    if step.config.get("addition_embed_type") == "text_time":
        times = _TIME_IDS * step.config["addition_time_embed_dim"]
        pooled = step.config["projection_class_embeddings_input_dim"] - times
        return {"text_embeds": TensorSpec((step.batch, pooled)), "time_ids": TensorSpec((step.batch, _TIME_IDS))}
    if not step.kind.startswith("PixArt"):
        return None
    flag = step.config.get("use_additional_conditions")
    used = step.config.get("sample_size") == 128 if flag is None else flag
    if not used:
        return {"resolution": None, "aspect_ratio": None}
    return {"resolution": TensorSpec((step.batch, 2)), "aspect_ratio": TensorSpec((step.batch, 1))}


def _places(count: Callable[[DenoiserStep], int]) -> Callable[[DenoiserStep], TensorSpec | None]:
    return lambda step: TensorSpec((count(step), len(step.config["axes_dims_rope"]))) if step.packs_latents else None


def _guidance(step: DenoiserStep) -> TensorSpec | None:
    return TensorSpec((step.batch,)) if step.config.get("guidance_embeds") else None


def _condition(step: DenoiserStep) -> TensorSpec:
    """The image that steers a ControlNet, in pixels."""
    pixels = (LATENT_PIXELS * edge for edge in step.edges)
    return TensorSpec((step.batch, int(step.config.get("conditioning_channels", 3)), *pixels))


def _image_grid(step: DenoiserStep) -> list[Any] | None:
    return [[(1, *_packed_edges(step))]] * step.batch


def _rotation(step: DenoiserStep) -> tuple[TensorSpec, TensorSpec] | None:
    """Cosines and sines of the places of a clip's tokens, as CogVideoX' pipeline makes them."""
    if not step.config.get("use_rotary_positional_embeddings"):
        return None
    patch = int(step.config["patch_size"])
    places = step.frames // step.frames_per_token * (step.edges[0] // patch) * (step.edges[1] // patch)
    table = TensorSpec((places, int(step.config["attention_head_dim"])), "float32")
    return table, table


_MAKERS: dict[str, Callable[[DenoiserStep], Any]] = {
    "sample": _latents,
    "hidden_states": _latents,
    "timestep": lambda step: TensorSpec((step.batch,), "int64"),
    "encoder_hidden_states": _text,
    "pooled_projections": _pool,
    "class_labels": _class_labels,
    "added_cond_kwargs": _conditions,
    "img_ids": _places(lambda step: prod(_packed_edges(step))),
    "txt_ids": _places(lambda step: step.tokens),
    "guidance": _guidance,
    "controlnet_cond": _condition,
    "img_shapes": _image_grid,
    "image_rotary_emb": _rotation,
}
"""Makers by the name of a parameter of ``forward``; None where the model is given nothing."""
_IF_NEEDED = {"encoder_attention_mask": lambda step: TensorSpec((step.batch, step.tokens), "bool")}
"""The same of inputs that a model is given only where it cannot do without."""
