"""Predictions as rows of a table into which measurements are filled, for ``neusight evaluate``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from neusight.questions import Serving
from neusight.questions.question import Question

_SERVED = ("ttft_ms", "tpot_ms", "tokens_per_s")
"""Measured columns of served models; steps have ``latency_ms``."""


def fillable_rows(questions: Sequence[Question], figures: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Words of each question, empty cells of measured columns, and its predicted figures as ``predicted_`` columns."""
    rows = []
    for question, own in zip(questions, figures, strict=True):
        words = cells_of(question)
        measured = _SERVED if isinstance(question, Serving) else ("latency_ms",)
        predicted = {f"predicted_{name}": value for name, value in own.items() if name not in words}
        rows.append({"command": question.KIND, **words, **dict.fromkeys(measured), **predicted})
    return rows


def cells_of(question: Question) -> dict[str, str]:
    """Words as cells of a table."""
    fields = {name: question.fields()[name].field for name in question.words()}
    return {
        name: json.dumps(list(value)) if fields[name].kind == "texts" else fields[name].write(value)
        for name, value in question.words().items()
    }
