"""``WhatIfQuestion``: a question, and optimisations that are applied to it in their order."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from neusight.questions.field import FieldError
from neusight.questions.files import question_of
from neusight.questions.question import Question
from neusight.questions.serving import Serving
from neusight.quick_dataclasses import dataclass

MetricName = Literal["time", "memory", "peak", "throughput", "ttft", "tpot"]
METRICS: tuple[MetricName, ...] = ("time", "memory", "throughput", "ttft", "tpot")


@dataclass(frozen=True, kw_only=True)
class WhatIfQuestion:
    """A question about the gains of optimisations.

    Attributes:
        question: a step, a training step or a served model.
        apply: names of optimisations, in their order.
        upon: names of those that the question has already.
        instead_of: names of those that the question has, and has no more after the change.
        then: other words of the question after the change.
        metric: what is to become better.
    """

    question: Question
    apply: tuple[str, ...] = ()
    upon: tuple[str, ...] = ()
    instead_of: tuple[str, ...] = ()
    then: tuple[tuple[str, Any], ...] = ()
    metric: MetricName = "time"

    def __post_init__(self) -> None:
        """Raises:
        FieldError: a metric that is none, or that the answer does not have.
        """
        if self.metric not in METRICS:
            raise FieldError("metric", f"'{self.metric}' is unknown: one of {', '.join(METRICS)}")
        if self.metric in ("ttft", "tpot") and not isinstance(self.question, Serving):
            raise FieldError("metric", f"{self.metric} is of served models: give another")

    @classmethod
    def named(cls, row: Mapping[str, Any]) -> WhatIfQuestion:
        """The question of a row: words of the first question, names of optimisations with commas, ``then`` as JSON.

        Raises:
            FieldError: as ``question_of``, or ``then`` is no JSON object.
        """
        words = {name: value for name, value in row.items() if value is not None}
        listed = {name: words.pop(name, "") for name in ("apply", "upon", "instead_of")}
        names = {name: tuple(n.strip() for n in text.split(",") if n.strip()) for name, text in listed.items()}
        then, metric = words.pop("then", "{}"), words.pop("metric", "time")
        try:
            changes = dict(json.loads(then))
        except (ValueError, TypeError):
            raise FieldError("then", f"'{then}' is no JSON object of words") from None
        return cls(question=question_of(words, "predict"), then=tuple(changes.items()), metric=metric, **names)
