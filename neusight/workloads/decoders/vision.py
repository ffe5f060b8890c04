"""Vision encoders of models that read images: a transformer over patches, whose results become tokens of the prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from neusight.errors import ModelError, shown
from neusight.workloads.decoders.layers import FeedForward, Layer, Norm, SelfAttention

LARGEST = 1 << 14
"""Pixels a side of an image, and images of a prompt: more are a slip of the keyboard."""


@dataclass(frozen=True, kw_only=True)
class Images:
    """Images of each prompt: ``number``, of ``width`` x ``height`` pixels."""

    number: int
    width: int = 1024
    height: int = 1024

    @classmethod
    def parse(cls, text: str) -> Images:
        """Parse text such as ``2`` or ``2,size=1280x720``.

        Raises:
            ModelError: something else, or a number out of range.
        """
        number, _, size = (part.strip() for part in text.partition(","))
        key, _, sides = (part.strip() for part in (size or "size=1024x1024").partition("="))
        numbers = [number, *sides.lower().split("x")]
        if key != "size" or len(numbers) != 3 or not all(number.strip().isdecimal() for number in numbers):
            raise ModelError(f"images '{shown(text)}': write how many and their size like 2,size=1280x720")
        if wrong := [size for size in map(int, numbers) if not 1 <= size <= LARGEST]:
            raise ModelError(f"images '{shown(text)}': {wrong[0]} is not from 1 to {LARGEST:,}")
        return cls(number=int(number), width=int(numbers[1]), height=int(numbers[2]))


@dataclass(frozen=True, kw_only=True)
class VisionEncoder:
    """``depth`` layers that see all patches of an image, of ``patch`` pixels a side; ``merge`` patches a side become
    one token. Encoders with an ``image_size`` scale every image to it; ``image_tokens`` are then its tokens. What turns
    patches into tokens (a product or two, a few percent of the whole) is not counted.
    """

    depth: int
    hidden: int
    ffn: int
    heads: int
    patch: int
    merge: int = 1
    gated: bool = False
    image_size: int = 0
    image_tokens: int = 0

    def patches(self, images: Images) -> int:
        """Number of patches of an image."""
        return self.merge**2 * self._merged_patches(images)

    def tokens(self, images: Images) -> int:
        """Number of tokens of the prompt for an image."""
        return self.image_tokens or self._merged_patches(images)

    def _merged_patches(self, images: Images) -> int:
        width, height = (self.image_size,) * 2 if self.image_size else (images.width, images.height)
        return ceil(width / (self.patch * self.merge)) * ceil(height / (self.patch * self.merge))

    @property
    def layer(self) -> Layer:
        """One of its equal layers (ViT, Dosovitskiy et al. 2021)."""
        head_dim = self.hidden // self.heads
        attention = SelfAttention(
            heads=self.heads, kv_heads=self.heads, head_dim=head_dim, causal=False, rotary=head_dim * (self.merge > 1),
            qkv_bias=True, out_bias=True,
        )  # fmt: skip
        activation = "silu" if self.gated else "gelu"
        feed_forward = FeedForward(ffn=self.ffn, gated=self.gated, bias=True, activation=activation)
        norm = Norm() if self.gated else Norm(op="layer_norm", weights=2)
        return Layer(attention=attention, feed_forward=feed_forward, norm=norm)


_KEYS = {
    "depth": ("depth", "num_hidden_layers", "num_layers"),
    "hidden": ("embed_dim", "hidden_size"),
    "heads": ("num_heads", "num_attention_heads"),
    "patch": ("patch_size",),
}
"""Keys of configurations for sizes of vision encoders; where both are present, ``hidden_size`` is that of the
results."""


def vision_of(config: Mapping[str, Any]) -> VisionEncoder | None:
    """The encoder that a model's ``vision_config`` describes, None where there is none or it does not tell."""
    settings = config.get("vision_config")
    if not isinstance(settings, Mapping):
        return None
    sizes = {what: next((settings[key] for key in keys if settings.get(key)), 0) for what, keys in _KEYS.items()}
    ffn = settings.get("intermediate_size") or int(sizes["hidden"] * (settings.get("mlp_ratio") or 0))
    if not (ffn and all(isinstance(size, int) and size > 0 for size in sizes.values())):
        return None
    merge = int(settings.get("spatial_merge_size") or config.get("spatial_merge_size") or 1)
    fixed = 0 if merge > 1 else int(settings.get("image_size") or 0)
    if merge == 1 and not fixed:
        return None
    gated, tokens = settings.get("hidden_act") == "silu", int(config.get("mm_tokens_per_image") or 0)
    return VisionEncoder(**sizes, ffn=int(ffn), merge=merge, gated=gated, image_size=fixed, image_tokens=tokens)
