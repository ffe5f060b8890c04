"""Models that something else than a Hugging Face configuration describes: a library's name, or a file of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from neusight.paths import read_json
from neusight.workloads.catalogue import hub_config, traced_config, traced_name
from neusight.workloads.sources.block_models import block_model
from neusight.workloads.sources.described import ModelSource
from neusight.workloads.sources.diffusion_models import CLASS, DiffusionModel, diffusion_model, from_path
from neusight.workloads.sources.diffusion_pipelines import PIPELINE, PipelineModel
from neusight.workloads.sources.files import (
    EXPORTED_SUFFIX,
    ONNX_SUFFIX,
    TFLITE_SUFFIX,
    ExportedModel,
    OnnxModel,
    TfliteModel,
)
from neusight.workloads.sources.image_models import image_model
from neusight.workloads.sources.plain_models import MODULE, plain_model

__all__ = ["ExportedModel", "ModelSource", "described", "described_file", "traced_model"]


def source_named(text: str) -> ModelSource | None:
    """The model that ``library:name`` stands for; None where it names no library.

    Raises:
        ModelError: the rest of the text cannot be read.
    """
    return image_model(text) or diffusion_model(text) or block_model(text)


def described_file(file: Path) -> ModelSource | None:
    """The model of a program or of a configuration of diffusers; None for any other file."""
    if file.suffix == EXPORTED_SUFFIX:
        return ExportedModel(file=file)
    if file.suffix == ONNX_SUFFIX:
        return OnnxModel(file=file)
    if file.suffix == TFLITE_SUFFIX:
        return TfliteModel(file=file)
    with suppress(OSError, ValueError):
        if file.suffix == ".json" and CLASS in (read_json(file) or ()):
            return from_path(file)
    return None


def traced_model(text: str) -> tuple[str, Mapping[str, Any] | ModelSource] | None:
    """The name of a model that is traced when it is asked for, with its configuration of transformers or its source.

    Raises:
        ModelError: an option after ``@`` that the model does not have.
    """
    before, _, option = text.partition("@")
    name = traced_name(before)
    if name is None:
        return hub_config(text)
    config = traced_config(name)
    if MODULE in config:
        model = plain_model(name, config, option)
        return model.name, model
    if option:
        return None
    if PIPELINE in config:
        return name, PipelineModel(name=name, config=config)
    return name, DiffusionModel(name=name, config=config) if CLASS in config else config
