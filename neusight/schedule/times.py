"""``StepTimes``: the duration of each part of a training step, stage by stage."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from neusight.errors import ModelError
from neusight.schedule.pipeline import Pipeline
from neusight.schedule.tasks import KINDS

PIECEWISE = (
    "forward",
    "backward",
    "weights",
    "recompute",
    "gather_forward",
    "gather_backward",
    "reduce",
    "to_host",
)
"""Parts that have a time for each piece of a stage."""
Seconds = np.ndarray | float


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Seconds of one micro-batch, or of a step for what happens once in one.

    Arrays have an entry for each stage, in the order of the model; those of ``PIECEWISE`` have shape
    ``(stages, pieces)``, in the order of the forward pass, with zeros where a stage has fewer pieces, or ``(stages,)``
    where there is one piece. A number stands for all.

    Attributes:
        forward: of one micro-batch.
        backward: gradients of activations alone.
        weights: gradients of weights.
        recompute: forward passes that the backward pass runs again.
        send_forward: activations from a stage to the next.
        send_backward: gradients from a stage to the one before.
        gather_forward: weights of a piece before a forward pass, or all after an update.
        gather_backward: weights of a piece before a backward pass.
        reduce: gradients of a piece among replicas.
        optimizer: the update of a stage's weights.
        to_host: gradients of a piece, where the host updates weights.
        to_device: weights of a stage from the host.
    """

    forward: Seconds
    backward: Seconds
    weights: Seconds = 0.0
    recompute: Seconds = 0.0
    send_forward: Seconds = 0.0
    send_backward: Seconds = 0.0
    gather_forward: Seconds = 0.0
    gather_backward: Seconds = 0.0
    reduce: Seconds = 0.0
    optimizer: Seconds = 0.0
    to_host: Seconds = 0.0
    to_device: Seconds = 0.0

    def by_task(self, pipeline: Pipeline) -> np.ndarray:
        """Seconds of a task of each kind, stage and piece, the last for all pieces: (kinds, stages, pieces + 1).

        Raises:
            ModelError: an array of another shape, or times below zero.
        """
        seconds = {f.name: _by_piece(f.name, getattr(self, f.name), pipeline) for f in fields(self)}
        seconds["backward"] = seconds["backward"] + seconds.pop("recompute")
        if not pipeline.splits_weights:
            seconds["backward"] = seconds["backward"] + seconds["weights"]
        table = np.zeros((len(KINDS), pipeline.stages, pipeline.pieces + 1))
        for name, array in seconds.items():
            if name in PIECEWISE:
                table[KINDS.index(name), :, :-1] = array
            table[KINDS.index(name), :, -1] = array.sum(axis=1)
        return table

    @classmethod
    def slopes(cls, by_task: np.ndarray, pipeline: Pipeline) -> StepTimes:
        """Derivatives with each time from those with each task: (kinds, stages, pieces + 1)."""
        whole = {kind: by_task[KINDS.index(kind), :, -1] for kind in KINDS if kind != "barrier"}
        parts = {
            kind: by_task[number, :, :-1] + whole[kind][:, None]
            for number, kind in enumerate(KINDS)
            if kind in PIECEWISE
        }
        if not pipeline.splits_weights:
            parts["weights"] = parts["backward"]
        return cls(**whole | parts, recompute=parts["backward"])

    def seconds_along(self, slopes: StepTimes) -> dict[str, float]:
        """Seconds of each part that the critical path has: their sum is the step."""
        return {f.name: _dot(getattr(slopes, f.name), getattr(self, f.name)) for f in fields(self)}


def _dot(slopes: Seconds, seconds: Seconds) -> float:
    slopes, seconds = np.asarray(slopes), np.asarray(seconds)
    return float((slopes * (seconds.reshape(slopes.shape) if seconds.ndim else seconds)).sum())


def _by_piece(name: str, value: Seconds, pipeline: Pipeline) -> np.ndarray:
    """Seconds of a part with shape (stages, pieces); a part without pieces has one."""
    array = np.asarray(value, dtype=float)
    pieces = pipeline.pieces if name in PIECEWISE else 1
    shape = (pipeline.stages,) if pieces == 1 else (pipeline.stages, pieces)
    if not np.all(array >= 0.0) or np.any(np.isinf(array)):
        raise ModelError(f"{name} of a step: give finite seconds of at least 0")
    if array.ndim == 0:
        return np.full((pipeline.stages, pieces), float(array))
    if array.shape not in (shape, (pipeline.stages, pieces)):
        raise ModelError(f"{name} of a step has shape {array.shape}: give {shape}")
    return array.reshape(pipeline.stages, pieces)
