"""``Operation``: a differentiable step of a decoder, as what a rank runs of it in each pass and what it keeps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from neusight.workloads.program import HeldWeights, Part, Phase, SavedActivation, Segment


@dataclass(frozen=True, kw_only=True)
class Operation:
    """Parts of each pass, in the order in which that pass runs them, whatever ``Part.phase`` says before they are
    joined.

    ``held`` are the parameters that the rank has of it, ``tied_parameters`` how many more count as another's.
    ``saved`` is what it keeps of a micro-batch for its backward pass. ``widest_bytes`` are those of what enters and
    leaves it, given of the widest operations alone, ``workspace_bytes`` those of a buffer of its own that stays,
    ``logits`` how many a loss is of. ``unbuilt`` says why it cannot run, where only what it keeps is known.
    """

    forward: tuple[Part, ...] = ()
    backward: tuple[Part, ...] = ()
    weights: tuple[Part, ...] = ()
    held: tuple[HeldWeights, ...] = ()
    saved: tuple[SavedActivation, ...] = ()
    widest_bytes: Any = 0.0
    workspace_bytes: float = 0.0
    logits: Any = 0.0
    tied_parameters: int = 0
    unbuilt: str = ""


def segment_of(name: str, layer: int, operations: Iterable[Operation], input_bytes: Any = 0.0) -> Segment:
    """A segment of operations in forward order; the backward pass goes through them from the last to the first.

    ``input_bytes`` are those of the residual stream that enters it: a number, or in serving one for each pass.
    """
    done = tuple(operations)
    back = done[::-1]
    return Segment(
        name=name,
        layer=layer,
        parts=(
            *(_of("forward", part) for operation in done for part in operation.forward),
            *(_of("backward", part) for operation in back for part in operation.backward),
            *(_of("weights", part) for operation in back for part in operation.weights),
        ),
        held=tuple(each for operation in done for each in operation.held),
        saved=tuple(activation for operation in done for activation in operation.saved),
        input_bytes=input_bytes,
        widest_bytes=reduce(np.maximum, (operation.widest_bytes for operation in done), 0.0),
        workspace_bytes=max((operation.workspace_bytes for operation in done), default=0.0),
        logits=sum(operation.logits for operation in done),
        tied_parameters=sum(operation.tied_parameters for operation in done),
        unbuilt=next((operation.unbuilt for operation in done if operation.unbuilt), ""),
    )


def _of(which: Phase, part: Part) -> Part:
    return part if part.phase == which else replace(part, phase=which)
