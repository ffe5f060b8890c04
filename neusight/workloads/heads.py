"""Which class of transformers a configuration stands for: as it says, else by the tasks that its type has."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import Any

from neusight.errors import ModelError

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
            if (found := getattr(transformers, name, None)) is not None:
                return found
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
    """Those with images and text come first where the model has both, those of two sides where it has two."""
    if getattr(parsed, "is_encoder_decoder", False):
        return ("SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", *_IMAGES_AND_TEXT, *_TASKS)
    if any(hasattr(parsed, part) for part in ("vision_config", "audio_config")):
        return (*_IMAGES_AND_TEXT, "ZERO_SHOT_IMAGE_CLASSIFICATION", *_TASKS)
    return (*_TASKS, *_IMAGES_AND_TEXT)


def _first(found: Any) -> Any:
    """A type with several bare models, such as Funnel, lists the whole one first."""
    return found[0] if isinstance(found, tuple | list) else found
