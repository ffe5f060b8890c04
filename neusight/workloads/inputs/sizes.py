"""Sizes of inputs: as requested, as a configuration states, and customary ones where neither says.

Shapes of inputs are made of these by functions that register for names of inputs. Models of one name differ, so that a
maker returns several shapes: what is right is what the model runs with, and they are tried in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Any

from neusight.defaults import default_seq_len
from neusight.quick_dataclasses import dataclass
from neusight.requests import Extents
from neusight.workloads.tensors import TensorSpec

STEPPED_SEQ_LEN = 512
"""Tokens a sample, unless asked for more, of models with a state, which may take one token after the other."""
IMAGE_SIZE = 224
"""Edge in pixels where a configuration states none: ImageNet's customary crop."""
SCENE_SIZE = 640
"""Edge in pixels for models that look for several objects, and state none: the longer edge of COCO's images."""
LARGER_IMAGES = (640, 1536)
"""Edges in pixels for models to which that is too small: that of COCO, and four tiles of 384."""
TEXT_LINE = (48, 320)
"""Height and width in pixels of a line of text that is to be read, as PaddleOCR cuts it out."""
FRAMES = 16
"""Images a clip where a configuration states none, as Kinetics models are customarily fed."""
SECONDS = 10.0
"""Sound a sample, in seconds, where a configuration sets no length."""
SAMPLING_RATE = 16_000
"""Samples a second where a configuration states none, as speech models are customarily fed."""
FRAMES_PER_SECOND = 100
"""Windows of a spectrogram a second: they are customarily 10 ms apart."""

_PARTS = (
    *("text_config", "decoder", "decoder_config", "generator", "backbone_config", "vision_config", "image_config"),
    *("audio_config", "encoder_config", "encoder", "speech_config", "thinker_config"),
    "semantic_model_config",
)
_STATES = (
    "mamba_d_state",
    "state_size",
    "ssm_state_size",
    "mamba_d_conv",
    "conv_L_cache",
    "lru_width",
    "linear_key_head_dim",
)
"""Keys of layers with a state."""
_EDGES = ("image_size", "input_size", "img_size", "max_img_size")
_LIMITS = (
    *("max_position_embeddings", "n_positions", "max_target_positions", "max_seq_len", "seq_length"),
    "max_sequence_length",
)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """A model's configuration together with what was asked for, which comes first.

    ``used`` notes which of the extents any input has taken, so that one without a meaning can be refused.
    """

    config: Any
    parameters: frozenset[str] = frozenset()
    batch: int = 1
    tokens: int | None = None
    extents: Extents = field(default_factory=Extents)
    used: set[str] = field(default_factory=set)

    @property
    def seq_len(self) -> int:
        """Tokens a sample: asked for, else the model's limit or less."""
        self.used.add("seq_len")
        limit = self.of("whole", "max_text_len") or self.of("text", *_LIMITS)
        longest: int = default_seq_len(limit if isinstance(limit, int) and limit > 0 else None).value
        stepped = self.of("text", *_STATES) is not None
        return self.tokens or (min(longest, STEPPED_SEQ_LEN) if stepped else longest)

    @property
    def edges(self) -> tuple[int, int]:
        """Height and width of an image [pixels]."""
        self.used.add("image_size")
        usual = IMAGE_SIZE if self.of("whole", "num_queries") is None else SCENE_SIZE
        size = self.extents.edges or self._stated_edges() or usual
        if isinstance(size, dict):
            size = [size.get("height", IMAGE_SIZE), size.get("width", IMAGE_SIZE)]
        height, width = (size[0], size[-1]) if isinstance(size, list | tuple) else (size, size)
        return int(height), int(width)

    @property
    def larger_edges(self) -> tuple[int, ...]:
        """Edges of square images for a model to which the usual ones may be too small, since it states none."""
        if self.extents.image_size is not None or self._stated_edges() is not None:
            return ()
        return tuple(edge for edge in LARGER_IMAGES if edge > max(self.edges))

    def _stated_edges(self) -> Any:
        """The size of a backbone is what it was taught with, before it looked for objects."""
        if self.of("whole", "num_queries") is None:
            return self.of("vision", *_EDGES)
        parts = [self.config, *(part for name, part in _parts(self.config) if not name.startswith("backbone"))]
        sizes = (getattr(part, key, None) for part in parts for key in _EDGES)
        return next((size for size in sizes if size is not None), None)

    @property
    def channels(self) -> int:
        """Channels of an image."""
        return int(self.of("vision", "num_channels", "in_channels", "in_chans", "num_image_channels") or 3)

    @property
    def patch(self) -> int:
        """Edge of a patch [pixels]."""
        size = self.of("vision", "patch_size", "encoder_stride") or 16
        return int(size[-1]) if isinstance(size, list | tuple) else int(size)

    @property
    def frames(self) -> int:
        """Images of a clip."""
        self.used.add("frames")
        return int(
            self.extents.frames or self.of("vision", "num_frames", "frames_per_clip", "max_num_frames") or FRAMES
        )

    @property
    def seconds(self) -> float:
        """Length of a sound."""
        self.used.add("seconds")
        return self.extents.seconds or SECONDS

    @property
    def samples(self) -> int:
        """Samples of a wave."""
        rate = self.of("audio", "sampling_rate", "sample_rate") or SAMPLING_RATE
        return int(self.seconds * rate)

    def of(self, kind: str, *names: str) -> Any:
        """The first of these keys that is stated, in the part of that kind first, then in the whole, then anywhere."""
        for part in _parts_for(self.config, kind):
            for name in names:
                if (value := getattr(part, name, None)) is not None:
                    return value
        return None


def _parts_for(config: Any, kind: str) -> Iterator[Any]:
    """The configuration's parts, those of a kind first, then the whole, then the rest."""
    parts = list(_parts(config))
    yield from (part for name, part in parts if name.startswith(kind))
    if kind == "text":
        yield from (part for name, part in parts if name.startswith(("decoder", "generator")))
    yield config
    if kind != "text":
        yield from (part for _, part in parts)


def _parts(config: Any, depth: int = 3) -> Iterator[tuple[str, Any]]:
    for name in _PARTS:
        part = getattr(config, name, None)
        if part is not None and hasattr(part, "to_dict") and depth:
            yield name, part
            yield from _parts(part, depth - 1)


Ways = Sequence[Any]
"""Alternatives for one input: a ``TensorSpec``, ``Known`` values, or anything that is passed on."""


Layouts = dict[tuple[str, ...], Callable[[Sizes], Ways]]
"""Makers of inputs, by the names of these."""


def floats(*shape: int) -> TensorSpec:
    """A floating input, in the dtype of the request."""
    return TensorSpec(tuple(int(size) for size in shape))


def integers(*shape: int) -> TensorSpec:
    """Ids or positions."""
    return TensorSpec(tuple(int(size) for size in shape), "int64")
