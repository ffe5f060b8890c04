"""``WhatIfQuestion``: a question, and optimisations that are applied to it in their order."""

from __future__ import annotations

from typing import Any

from neusight.questions.question import Question
from neusight.quick_dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class WhatIfQuestion:
    """What optimisations would gain.

    Attributes:
        question: a step, a training step or a served model.
        apply: names of optimisations, in their order.
        upon: names of those that the question has already.
        instead_of: names of those that the question has, and has no more after the change.
        then: other words of the question after the change.
    """

    question: Question
    apply: tuple[str, ...] = ()
    upon: tuple[str, ...] = ()
    instead_of: tuple[str, ...] = ()
    then: tuple[tuple[str, Any], ...] = ()
