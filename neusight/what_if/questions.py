"""Questions of a what-if: a step of a module, a training run on a cluster, or a deployment under a load.

Each is a value whose fields determine the answer, so that the effect of a transform can be seen from the fields in
which two of them differ.
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
"""A training run is used without conversion."""
_NESTED = (Request, Engine, Setting, Plan, Setup)


def facts(question: Question) -> dict[str, Any]:
    """Every field with its value, those of nested dataclasses by prefixed names; for passes one for each part."""
    return dict(_facts(question, ""))


def _facts(value: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for f in (f for f in fields(value) if f.compare):
        part, name = getattr(value, f.name), f"{prefix}{f.name}"
        if f.name == "passes":
            yield from ((f"{prefix}{change.part}", change) for change in part)
        elif is_dataclass(part) and isinstance(part, _NESTED):
            yield from _facts(part, f"{name}.")
        else:
            yield name, part


def changed_facts(before: Question, after: Question) -> frozenset[str]:
    """Names of the facts in which two questions of one kind differ."""
    first, second = facts(before), facts(after)
    names = first.keys() | second.keys()
    return frozenset(name for name in names if first.get(name) != second.get(name))
