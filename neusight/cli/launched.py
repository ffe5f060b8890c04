"""``--from``: words of a question out of the line or script that starts an engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import typer

from neusight.cli.output import note
from neusight.questions.field import FieldSpec
from neusight.questions.parts import MODEL
from neusight.questions.question import NamedField, Question

FROM = NamedField(
    name="from_", default="", help="",
    field=FieldSpec(kind="text", help="", panel=MODEL, option="--from", metavar="LINE|FILE", complete="files"),
)  # fmt: skip
"""The option; each command documents the lines that it reads."""


def launched_words(
    nouns: Collection[type[Question]], source: str, given: Mapping[str, Any]
) -> tuple[type[Question], Mapping[str, Any]]:
    """The question that a launch line or plan describes, with words for its fields that are not given.

    The rest of the line is named on stderr.

    Raises:
        BadParameter: a line of another command. DataError, FieldError, ModelError: as ``read_launch``, ``read_plan``.
    """
    from neusight.questions import Training
    from neusight.questions.launch import read_launch

    depth = _depth(str(given.get("model", "")))
    if source.endswith((".toml", ".json")) and any(issubclass(noun, Training) for noun in nouns):
        return Training, _plan_words(source, depth, given)
    line = read_launch(source, depth)
    if not any(issubclass(noun, line.noun) for noun in nouns):
        raise typer.BadParameter(f"starts what `neusight {line.noun.KIND}` predicts", param_hint="--from")
    for text in line.notes():
        note(f"warning: {text}")
    return line.noun, line.words_beside(given)


def _plan_words(source: str, depth: int, given: Collection[str]) -> dict[str, Any]:
    """Fields of a plan that are not given; options that matter and have no field are named on stderr."""
    from neusight.plans.read import read_plan

    plan = read_plan(source, depth)
    if plan.unread:
        note(f"warning: options that matter and have no field are left out: {', '.join(plan.unread)}")
    counted_twice = {"micro_batches"} if {"global_batch_size", "batch"} & {*plan.fields, *given} else set()
    return {name: value for name, value in plan.fields.items() if name not in {*counted_twice, *given}}


def _depth(model: str) -> int:
    """Layers of a named model, in which plans may count; 0 without a name, or for a model that is no decoder."""
    from neusight.errors import NeusightError
    from neusight.workloads.decoders.known import known_decoder

    try:
        return known_decoder(model).depth if model else 0
    except (NeusightError, OSError):
        return 0
