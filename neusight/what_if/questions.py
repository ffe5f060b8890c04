"""What a what-if is asked of: a step of a module, a training run on a cluster, or a deployment under a load.

Each is a value whose fields say everything that decides the answer, so that what a transform changes can be seen from
the fields in which two of them differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from neusight.devices import DeviceSpec
from neusight.devices.chosen import Gpu, as_device
from neusight.distributed.training_run import TrainingRun
from neusight.engines import Engine
from neusight.requests import Plan, Request
from neusight.serving.deployment import EngineOptions, Setup
from neusight.serving.load import Load
from neusight.steps.questions import Setting, StepQuestion
from neusight.workloads.decoders.decoder import Decoder


@dataclass(frozen=True, kw_only=True)
class DeploymentQuestion:
    """A deployment under a load; as ``Predictor.serving`` takes it."""

    model: str | Path | Decoder
    gpu: Gpu
    load: Load
    setup: Setup = field(default_factory=Setup)
    options: EngineOptions = field(default_factory=EngineOptions)

    @property
    def device(self) -> DeviceSpec:
        """Of a replica."""
        return as_device(self.gpu)

    def deployed(self, **changes: Any) -> DeploymentQuestion:
        """With another setup."""
        return replace(self, setup=replace(self.setup, **changes))

    def started(self, **changes: Any) -> DeploymentQuestion:
        """With other options of the engine."""
        return replace(self, options=replace(self.options, **changes))


Question = StepQuestion | TrainingRun | DeploymentQuestion
"""A training run is one as it is."""
_NESTED = (Request, Engine, Setting, Plan, Setup, EngineOptions)


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
