"""All that can be asked, in words: each field is declared once, and front ends follow from the declaration."""

from neusight.questions.field import FieldError, FieldSpec, Usual
from neusight.questions.kernel import KernelCall
from neusight.questions.question import Question
from neusight.questions.serving import Serving
from neusight.questions.step import Step
from neusight.questions.training import Training
from neusight.questions.what_if import WhatIfQuestion

__all__ = [
    "FieldError", "FieldSpec", "KernelCall", "Question", "Serving", "Step", "Training", "Usual", "WhatIfQuestion",
]  # fmt: skip
