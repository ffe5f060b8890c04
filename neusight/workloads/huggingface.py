"""From a Hugging Face configuration to a module and the shapes of its inputs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from neusight.errors import ModelError, NeusightError, nearest, reason
from neusight.requests import Extents, Request
from neusight.workloads.catalogue import is_ready_type
from neusight.workloads.config_file import STATED_ATTENTION
from neusight.workloads.heads import model_class
from neusight.workloads.inputs import Asked, Fed, fed
from neusight.workloads.tensors import TensorSpec

if TYPE_CHECKING:
    import torch

_NOT_A_MODEL_OPTION = (
    *("model_type", "_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache"),
    *STATED_ATTENTION,
)


def build_model(config: dict[str, Any], mode: str, attention: str) -> torch.nn.Module:
    """The module that a configuration describes, with the head that the mode uses.

    Args:
        config: the contents of a ``config.json``.
        mode: ``inference`` or ``training``.
        attention: ``eager``, or ``sdpa`` or ``flash``, which both go through PyTorch's scaled-dot-product attention;
            '' for what transformers takes for the class, which is that where the class has it.

    Raises:
        ModelError: the type of the model is unknown, has no head for this, or its attention is eager only.
    """
    from neusight.workloads import vision

    if own := vision.ARCHITECTURES.get(config["model_type"]):
        return _constructed(config["model_type"], lambda: own(config))
    parsed = _parse(config)
    kind = model_class(config, parsed, mode)
    if not attention:
        return _constructed(kind.__name__, lambda: kind._from_config(parsed))
    implementation = "eager" if attention == "eager" or not _has_attention(config) else "sdpa"
    if implementation == "sdpa" and not getattr(kind, "_supports_sdpa", False):
        raise ModelError(f"{kind.__name__} has no fused attention in transformers: use --attention eager")
    return _constructed(kind.__name__, lambda: kind._from_config(parsed, attn_implementation=implementation))


def _constructed(name: str, build: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    try:
        # Some classes print what their own documentation lacks.
        with redirect_stdout(sys.stderr):
            return build()
    except NeusightError:
        raise
    except Exception as error:
        raise ModelError(
            f"{name} cannot be built from this configuration: {type(error).__name__}: {reason(error)}; correct what it "
            "names"
        ) from error


def input_specs(config: dict[str, Any], batch: int, seq_len: int | None, attention: str) -> dict[str, TensorSpec]:
    """Names, shapes and dtypes of what the module's ``forward`` takes.

    An eager encoder is given an additive mask, since batches of sentences are padded; encoder-decoders get both
    sides ``seq_len`` long; images are square unless ``image_size`` lists height and width.
    """
    if seq_len is None:
        size = config.get("image_size", 224)
        edges = tuple(size) if isinstance(size, list) else (size, size)
        return {"pixel_values": TensorSpec((batch, config.get("num_channels", 3), *edges))}
    tokens = TensorSpec((batch, seq_len), "int64")
    if config.get("is_encoder_decoder") or config["model_type"] in ("t5", "switch_transformers"):
        return {"input_ids": tokens, "decoder_input_ids": tokens}
    if config["model_type"] == "bert" and attention == "eager":
        return {"input_ids": tokens, "attention_mask": TensorSpec((batch, 1, 1, seq_len), "float32")}
    return {"input_ids": tokens}


def feedings(config: dict[str, Any], request: Request, asked: Asked | None = None) -> Fed:
    """How the module of a configuration can be fed: ready models as they ship, others as their class wants it.

    Args:
        config: the contents of a ``config.json``.
        request: the extents that were asked for.
        asked: what to give beside the usual inputs or to leave out.

    Raises:
        ModelError: as ``build_model``, or it needs an input that nobody knows how to make.
    """
    from neusight.workloads import vision

    other = replace(request.extents, image_size=None) != Extents()
    if other and config["model_type"] in vision.ARCHITECTURES:
        raise ModelError(f"{config['model_type']} reads images alone: leave out --frames, --seconds and --input")
    if not other and is_ready_type(config):
        if request.extents.image_size is not None and request.seq_len is not None:
            raise ModelError(f"{config['model_type']} reads text alone: leave out --image-size")
        return Fed((input_specs(config, request.batch, request.seq_len, request.attention),), request.seq_len)
    parsed = _parse(config)
    try:
        return fed(model_class(config, parsed, request.mode), parsed, request, asked or Asked())
    except ImportError as error:
        raise ModelError(f"{config['model_type']} needs a library that is not installed: {reason(error)}") from error


def resized(config: dict[str, Any], extents: Extents) -> dict[str, Any]:
    """The configuration with the image size and frames that were asked for: learnt positions are as many as patches."""
    from neusight.workloads import vision

    asked = {"image_size": extents.image_size, "num_frames": extents.frames}
    changes = {key: value for key, value in asked.items() if value is not None}
    if not changes:
        return config
    if config["model_type"] in vision.ARCHITECTURES:
        return config | changes
    parsed = _parse(config)
    seeing = getattr(parsed, "vision_config", None)
    inner = {key: value for key, value in changes.items() if hasattr(seeing, key)}
    outer = {key: value for key, value in changes.items() if hasattr(parsed, key)}
    nested = {"vision_config": {**(config.get("vision_config") or {}), **inner}} if inner else {}
    return {**config, **outer, **nested}


def _parse(config: dict[str, Any]) -> Any:
    from transformers import CONFIG_MAPPING, AutoConfig

    kind = config["model_type"]
    if kind not in CONFIG_MAPPING:
        hint = nearest(kind, CONFIG_MAPPING.keys())
        raise ModelError(f"model_type '{kind}' is not one that transformers knows{hint}")
    options = {key: value for key, value in config.items() if key not in _NOT_A_MODEL_OPTION}
    try:
        with _quiet():
            return _for_a_step(AutoConfig.for_model(kind, use_cache=False, **options))
    except Exception as error:
        raise ModelError(
            f"cannot read the configuration of '{kind}': {reason(error)}; correct what it names"
        ) from error


def _for_a_step(parsed: Any) -> Any:
    """With some id for the places of images and sounds in a text: which one changes no operator, none is an error.

    Parts keep no keys and values either, since a step is not continued.
    """
    for name in getattr(parsed, "sub_configs", ()):
        if (part := getattr(parsed, name, None)) is not None and hasattr(part, "use_cache"):
            part.use_cache = False
    for name in ("image_token_id", "audio_token_id", "video_token_id", "image_token_index", "audio_token_index"):
        if getattr(parsed, name, 0) is None:
            setattr(parsed, name, 0)
    return parsed


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what transformers says of ids of tokens and generation, which change no operator."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _has_attention(config: dict[str, Any]) -> bool:
    return any(key.endswith(("num_attention_heads", "n_head", "num_heads")) for key in config)
