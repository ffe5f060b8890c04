"""``Operation``: a differentiable step of a model, as what a rank runs of it forward, backward and for its weights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from neusight.workloads.program import Part, Phase, Segment


@dataclass(frozen=True, kw_only=True)
class Operation:
    """Parts of each pass, in the order in which that pass runs them, whatever ``Part.of`` says before they are joined.

    ``parameters`` are those that the rank holds of it, ``expert_parameters`` those of its experts.
    """

    forward: tuple[Part, ...] = ()
    backward: tuple[Part, ...] = ()
    weights: tuple[Part, ...] = ()
    parameters: int = 0
    expert_parameters: int = 0


def unit_of(what: str, layer: int, operations: Iterable[Operation]) -> Segment:
    """A unit of operations in forward order; the backward pass goes through them from the last to the first."""
    done = tuple(operations)
    back = done[::-1]
    return Segment(
        what=what,
        layer=layer,
        parts=(
            *(_of("forward", part) for operation in done for part in operation.forward),
            *(_of("backward", part) for operation in back for part in operation.backward),
            *(_of("weights", part) for operation in back for part in operation.weights),
        ),
        parameters=sum(operation.parameters for operation in done),
        expert_parameters=sum(operation.expert_parameters for operation in done),
    )


def _of(which: Phase, part: Part) -> Part:
    return part if part.phase == which else replace(part, phase=which)
