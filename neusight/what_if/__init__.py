"""Transforms of questions, and the gains of a step, a training run or a deployment by them."""

from neusight.what_if.answers import Ranking, Rung, WhatIf, laddered
from neusight.what_if.gain import Gain
from neusight.what_if.questions import DeploymentQuestion, Question, StepQuestion
from neusight.what_if.transforms import Transform, applied, known, transform

__all__ = [
    "DeploymentQuestion",
    "Gain",
    "Question",
    "Ranking",
    "Rung",
    "StepQuestion",
    "Transform",
    "WhatIf",
    "applied",
    "known",
    "laddered",
    "transform",
]  # fmt: skip
