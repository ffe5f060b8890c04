"""What a what-if is asked of: a step of a module, a training run on a cluster, or a deployment under a load.

Each is a value whose fields say everything that decides the answer, so that what a transform changes can be seen from
the fields in which two of them differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from neusight.distributed.training_run import TrainingRun
from neusight.engines import Engine
from neusight.requests import Plan, Request
from neusight.serving.question import DeploymentQuestion
from neusight.serving.setup import Setup
from neusight.steps.questions import Setting, StepQuestion

Question = StepQuestion | TrainingRun | DeploymentQuestion
"""A training run is one as it is."""
_NESTED = (Request, Engine, Setting, Plan, Setup)


def facts(question: Question) -> dict[str, Any]:
    """Every field with its value, those of nested nouns by their own names; of passes one for each part."""
    return dict(_facts(question, ""))


def _facts(value: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for one in (one for one in fields(value) if one.compare):
        held, name = getattr(value, one.name), f"{prefix}{one.name}"
        if one.name == "passes":
            yield from ((f"{prefix}{change.part}", change) for change in held)
        elif is_dataclass(held) and isinstance(held, _NESTED):
            yield from _facts(held, f"{name}.")
        else:
            yield name, held


def changed(before: Question, after: Question) -> frozenset[str]:
    """Names of the facts in which two questions of one kind differ."""
    first, second = facts(before), facts(after)
    names = first.keys() | second.keys()
    return frozenset(name for name in names if first.get(name) != second.get(name))
