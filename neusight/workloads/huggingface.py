"""Conversion of a Hugging Face configuration to its class, to a module, and to the shapes of its inputs."""

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
from neusight.workloads.inputs import Changes, InputSets, input_sets
from neusight.workloads.tensors import TensorSpec

if TYPE_CHECKING:
    import torch

_BERT_HEADS = {"training": "BertForPreTraining", "inference": "BertForSequenceClassification"}
"""BERT is trained with its pre-training heads and used as a classifier."""

_TASKS = (
    *(
        "CAUSAL_LM",
        "MASKED_LM",
        "IMAGE_CLASSIFICATION",
        "SEQ_TO_SEQ_CAUSAL_LM",
        "SPEECH_SEQ_2_SEQ",
        "CTC",
        "RNNT",
        "TDT",
    ),
    *("TEXT_TO_SPECTROGRAM", "TEXT_TO_WAVEFORM", "AUDIO_CLASSIFICATION", "VIDEO_CLASSIFICATION", "OBJECT_DETECTION"),
    *("UNIVERSAL_SEGMENTATION", "INSTANCE_SEGMENTATION", "SEMANTIC_SEGMENTATION", "IMAGE_SEGMENTATION"),
    *("DEPTH_ESTIMATION", "ZERO_SHOT_OBJECT_DETECTION", "ZERO_SHOT_IMAGE_CLASSIFICATION", "KEYPOINT_DETECTION"),
    *("KEYPOINT_MATCHING", "POSE_ESTIMATION", "IMAGE_MATTING", "IMAGE_TO_IMAGE", "MASK_GENERATION"),
    *("TIME_SERIES_PREDICTION", "DOCUMENT_QUESTION_ANSWERING", "VISUAL_QUESTION_ANSWERING", "PRETRAINING"),
    *("TABLE_RECOGNITION", "TEXT_RECOGNITION", "MULTIMODAL_LM", "RETRIEVAL", "DECISION", "QUESTION_ANSWERING"),
    *("SEQUENCE_CLASSIFICATION", "BACKBONE"),
)
"""Tasks in the order in which a type's class is looked for; the bare model is the last."""
_IMAGES_AND_TEXT = ("IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM")


def model_class(config: dict[str, Any], parsed: Any, mode: str) -> Any:
    """The class with the right head.

    Args:
        config: the contents of a ``config.json``; its ``architectures`` come first.
        parsed: the same as transformers reads it.
        mode: ``inference`` or ``training``.

    Raises:
        ModelError: transformers has no class for this type.
    """
    import transformers

    kind = config["model_type"]
    # Some modules print what their own documentation lacks when they are imported.
    with redirect_stdout(sys.stderr):
        if kind == "bert":
            return getattr(transformers, _BERT_HEADS[mode])
        for name in config.get("architectures") or ():
            if (kind := getattr(transformers, name, None)) is not None:
                return kind
        return _class_by_task(parsed, kind)


def _class_by_task(parsed: Any, kind: str) -> Any:
    from transformers.models.auto import modeling_auto as auto

    mappings = [getattr(auto, f"MODEL_FOR_{task}_MAPPING", None) for task in _tasks(parsed)]
    for mapping in (*mappings, auto.MODEL_MAPPING):
        if mapping is None or type(parsed) not in mapping:
            continue
        try:
            return _first(mapping[type(parsed)])
        except ValueError:
            # Registered under a name that the package does not have.
            continue
    raise ModelError(
        f"model_type '{kind}' has no class of its own in transformers, as parts of other models have none: name a "
        "class in 'architectures', or pass package.module:function"
    )


def _tasks(parsed: Any) -> tuple[str, ...]:
    """Tasks in order of preference: those with images and text first where the model has both, those of two sides where
    it has two.
    """
    if getattr(parsed, "is_encoder_decoder", False):
        return ("SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", *_IMAGES_AND_TEXT, *_TASKS)
    if any(hasattr(parsed, part) for part in ("vision_config", "audio_config")):
        return (*_IMAGES_AND_TEXT, "ZERO_SHOT_IMAGE_CLASSIFICATION", *_TASKS)
    return (*_TASKS, *_IMAGES_AND_TEXT)


def _first(kind: Any) -> Any:
    """A type with several bare models, such as Funnel, lists the whole one first."""
    return kind[0] if isinstance(kind, tuple | list) else kind


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
    from neusight.workloads.models import vision

    if plain := vision.ARCHITECTURES.get(config["model_type"]):
        return _construct(config["model_type"], lambda: plain(config))
    parsed = _parse(config)
    kind = model_class(config, parsed, mode)
    if not attention:
        return _construct(kind.__name__, lambda: kind._from_config(parsed))
    implementation = "eager" if attention == "eager" or not _has_attention(parsed) else "sdpa"
    if implementation == "sdpa" and not getattr(kind, "_supports_sdpa", False):
        raise ModelError(f"{kind.__name__} has no fused attention in transformers: use --attention eager")
    # Flash attention takes no bias of scores, such as T5's of positions.
    if implementation == "sdpa" and attention == "flash" and not getattr(kind, "_supports_flash_attn", False):
        raise ModelError(f"{kind.__name__} has no flash attention in transformers: use --attention sdpa")
    return _construct(kind.__name__, lambda: kind._from_config(parsed, attn_implementation=implementation))


def _construct(name: str, build: Callable[[], torch.nn.Module]) -> torch.nn.Module:
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


def input_sets_of(config: dict[str, Any], request: Request, changes: Changes | None = None) -> InputSets:
    """Sets of inputs with which the module of a configuration may run: those of ready models as they ship, others by
    their class.

    Args:
        config: the contents of a ``config.json``.
        request: the extents that were asked for.
        changes: what to give besides the usual inputs or to leave out.

    Raises:
        ModelError: as ``build_model``, or it requires an input that has no maker.
    """
    from neusight.workloads.models import vision

    other = replace(request.extents, image_size=None) != Extents()
    if other and config["model_type"] in vision.ARCHITECTURES:
        raise ModelError(f"{config['model_type']} reads images alone: leave out --frames, --seconds and --input")
    if not other and is_ready_type(config):
        if request.extents.image_size is not None and request.seq_len is not None:
            raise ModelError(f"{config['model_type']} reads text alone: leave out --image-size")
        return InputSets((input_specs(config, request.batch, request.seq_len, request.attention),), request.seq_len)
    parsed = _parse(config)
    try:
        return input_sets(model_class(config, parsed, request.mode), parsed, request, changes or Changes())
    except ImportError as error:
        raise ModelError(f"{config['model_type']} needs a library that is not installed: {reason(error)}") from error


def resize(config: dict[str, Any], extents: Extents) -> dict[str, Any]:
    """The configuration with the image size and frames that were asked for: learnt positions are as many as patches."""
    from neusight.workloads.models import vision

    edges = list(extents.edges) if isinstance(extents.image_size, str) and extents.edges else extents.image_size
    requested = {"image_size": edges, "num_frames": extents.frames}
    changes = {key: value for key, value in requested.items() if value is not None}
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


def complete(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration with what transformers takes for its type where it states nothing.

    Raises:
        ModelError: a type or value that transformers does not know.
    """
    values: dict[str, Any] = _parse(config).to_dict()
    return values


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
    """Prepare a parsed configuration for one step: with some id for the places of images and sounds in a text, where it
    has none; which one changes no operator, and a missing one is an error.

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


def _has_attention(parsed: Any) -> bool:
    """Tell whether a configuration, or one of its parts, has heads; missing values default to those of its type."""
    parts = (getattr(parsed, name, None) for name in getattr(parsed, "sub_configs", ()))
    return any(hasattr(part, "num_attention_heads") or hasattr(part, "num_heads") for part in (parsed, *parts) if part)
