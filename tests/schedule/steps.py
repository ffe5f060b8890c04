"""Steps that tests of pipelines share: equal stages, and times drawn from a seed."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from neusight.schedule.pipeline import Pipeline
from neusight.schedule.times import PIECEWISE, StepTimes

ORDERS = (
    Pipeline(schedule="1f1b", pp=4, micro_batches=6),
    Pipeline(
        schedule="1f1b", pp=3, vp=2, micro_batches=6, sends="overlapped", pieces=2, gathers="step", reduces="last"
    ),
    Pipeline(schedule="gpipe", pp=2, vp=2, micro_batches=3, reduces="after", gathers="after"),
    Pipeline(schedule="zero-bubble", pp=3, micro_batches=5, pieces=3, reduces="each", sends="overlapped"),
    Pipeline(schedule="zero-bubble", pp=2, vp=2, micro_batches=4, reduces="last", offload=True, pieces=2),
    Pipeline(schedule="1f1b", micro_batches=2, pieces=4, gathers="each", reduces="each"),
    Pipeline(schedule="1f1b", pp=2, micro_batches=3, pieces=2, gathers="each", reduces="after", offload=True),
)
"""One of every kind of overlap."""
IDS = tuple(f"{of.schedule} {of.pp}x{of.vp} gathers {of.gathers} reduces {of.reduces}" for of in ORDERS)
NAMES = tuple(f.name for f in fields(StepTimes))


def drawn(pipeline: Pipeline, seed: int) -> StepTimes:
    """Uneven times of everything, sends and collectives about as long as passes."""
    draw = np.random.default_rng(seed)
    whole, parts = (pipeline.stages,), (pipeline.stages, pipeline.pieces)
    return StepTimes(**{name: draw.uniform(0.2, 2.0, parts if name in PIECEWISE else whole) for name in NAMES})
