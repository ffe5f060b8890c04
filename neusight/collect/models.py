"""Which whole models are measured: a grid of steps, checked before anything runs, the cheapest first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from neusight.collect.plan import counted_kernels
from neusight.collect.session import CollectionRequest, Progress, Report, run
from neusight.collect.steps import ModelTask
from neusight.errors import ModelError, nearest
from neusight.kernels import group_by_family, work_of
from neusight.workloads import Workload, load_workload, resolve
from neusight.workloads.catalogue import is_image_config

MODELS = ("bert-large", "gpt2-large", "gpt3-xl", "gpt3-2.7b", "opt-1.3b", "resnet-50")
"""Measured unless others are asked for, in every mode."""
INFERENCE_MODELS = ("llama-3-8b",)
"""Further models, only in inference: gradients and optimizer of larger models fill a device."""
DTYPES = ("float32", "tf32", "bfloat16", "float16")
_DATA_DEPENDENT = {"switch_transformers": "its experts run on the tokens that the router happens to send them"}
"""Types of models whose real step is not the traced one, and why."""


@dataclass(frozen=True, kw_only=True)
class ModelGrid:
    """Steps to measure: every combination.

    Attributes:
        modes: ``inference``, ``training``.
        dtypes: of ``DTYPES``.
        batches: samples a step.
        seq_lens: tokens a sample; None is the model's own. Images have none in any case.
        attention: ``eager``, ``sdpa`` or ``flash``.
        optimizer: whose step is timed in training; ``none``, ``sgd``, ``adam`` or ``adamw``.
        compiled: through ``torch.compile``.
    """

    modes: Sequence[str]
    dtypes: Sequence[str]
    batches: Sequence[int]
    seq_lens: Sequence[int | None] = (None,)
    attention: str = "eager"
    optimizer: str = "none"
    compiled: bool = False


def model_plan(models: Sequence[str], grid: ModelGrid) -> list[ModelTask]:
    """Every step of the grid as a task, each once, those of the least work first.

    Args:
        models: names of the catalogue, or Hugging Face configuration files.
        grid: which steps of them.

    Raises:
        ModelError: an unknown name or option, a batch or length that the model does not take, two models of one name,
            or a model whose real step no trace describes.
    """
    if unknown := [d for d in grid.dtypes if d not in DTYPES]:
        raise ModelError(f"unknown dtype '{unknown[0]}'{nearest(unknown[0], DTYPES)}: one of {', '.join(DTYPES)}")
    work_flops: dict[ModelTask, float] = {}
    steps = product(_configs(models).items(), grid.modes, grid.batches, grid.seq_lens)
    for (model, config), mode, batch, seq_len in steps:
        # Work is the same in every dtype; all traces of ready workloads ship in float32.
        step = load_workload(
            model, mode=mode, batch=batch, seq_len=None if is_image_config(config) else seq_len,
            optimizer="none" if mode == "inference" else grid.optimizer, attention=grid.attention, allow_fallback=True,
        )  # fmt: skip
        for dtype in grid.dtypes:
            work_flops.setdefault(_task(step, config, dtype, grid.compiled), _flops(step))
    return sorted(work_flops, key=work_flops.__getitem__)


def usual_plan(grid: ModelGrid) -> list[ModelTask]:
    """The ``model_plan`` of the usual models, the largest of them only in inference."""
    return [t for t in model_plan((*MODELS, *INFERENCE_MODELS), grid) if t.mode == "inference" or t.model in MODELS]


def _configs(models: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Configurations by what the user named."""
    named: dict[str, dict[str, Any]] = {}
    seen: dict[str, dict[str, Any]] = {}
    for model in models:
        source = resolve(model)
        if source.config is None:
            raise ModelError(f"{model} cannot be kept as a configuration: give a ready workload or a config.json")
        if reason := _DATA_DEPENDENT.get(source.config["model_type"]):
            raise ModelError(f"{source.name} has no fixed step to compare with a trace: {reason}; leave it out")
        if seen.setdefault(source.name, source.config) != source.config:
            raise ModelError(f"two models are called {source.name}: rename one of the configuration files")
        named[model] = source.config
    return named


def _task(step: Workload, config: dict[str, Any], dtype: str, compiled: bool) -> ModelTask:
    """The step as it was traced, with the defaults filled in."""
    names = ("model", "mode", "batch", "seq_len", "attention", "optimizer")
    words = {name: getattr(step.request, name) for name in names}
    return ModelTask(**words, config=json.dumps(config, sort_keys=True), dtype=dtype, compiled=compiled)


def _flops(step: Workload) -> float:
    kernels = counted_kernels(step)
    counts = np.array([*kernels.values()])
    return sum(float(work_of(batch).flops @ counts[places]) for batch, places in group_by_family(kernels))


def collect_models(request: CollectionRequest, tasks: Sequence[ModelTask], progress: Progress | None = None) -> Report:
    """Measure steps of models and leave a data set with its card.

    Rows name all their options, so that a folder may be gone on with by another plan.

    Args:
        request: where, how long, into which folder.
        tasks: in order.
        progress: called after every step.

    Raises:
        DataError: a folder that is not to be used. DeviceError: no such device.
    """
    return run(request, {"models": {"target": request.target}}, lambda _: tasks, progress)
