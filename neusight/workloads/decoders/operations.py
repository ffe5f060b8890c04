"""``Operation``: a step of a decoder as what a rank runs of it in each pass and what it keeps.

Operations are written as their forward pass; what runs backward follows from the operator. A product has one of its
inputs' gradient and one of its weights' (``product_gradients``), a pointwise operator or a norm those of ``GRADIENTS``,
data movement moves back, and collectives have their adjoints (``ADJOINTS``). Only what none of this describes says its
own: attention in one kernel, tables of embeddings, losses, sums of experts' results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from neusight.workloads.decoders.rank import Count, Rank
from neusight.workloads.program import HeldWeights, Part, Phase, SavedActivation, Segment

GRADIENTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("add", "bias_add"), ()),  # each operand's gradient is the result's
    "mul": ("mul", "mul"),
    "glu": ("mul", "mul", "sigmoid_backward"),
    **dict.fromkeys(("dropout", "dropout_add", "bias_dropout_add"), ("dropout_backward",)),
    "masked_fill": ("masked_fill",),
    **{op: (op,) for op in ("rotary", "rotary_complex")},  # turned back by the opposite angle
    "add_rms_norm": ("rms_norm_backward",),  # the sum's gradients meet beside it
}
"""Operators that run backward; of an operator that is not here, the one of its name with ``_backward``."""
ADJOINTS = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather", "all_to_all": "all_to_all"}
"""Collectives that run backward; a sum that every rank gets has a gradient that every rank has."""

Shape = tuple[Any, Any, Any]


@dataclass(frozen=True, kw_only=True)
class Operation:
    """Parts of each pass, in the order in which that pass runs them; ``Part.phase`` is set when they are joined.

    ``held`` are the parameters that the rank has of it, ``tied_parameters`` how many more count as another's.
    ``saved`` is what it keeps of a micro-batch for its backward pass. ``widest_bytes`` are those of what enters and
    leaves it, given of the widest operations alone, ``workspace_bytes`` those of a buffer of its own that stays,
    ``logits`` how many a loss is of. ``adapts``: it belongs to adapters, which are trained where all else is frozen.
    ``unbuilt`` says why it cannot run, where only what it keeps is known.
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
    adapts: bool = False
    unbuilt: str = ""


def segment_of(name: str, layer: int, operations: Iterable[Operation], input_bytes: Any = 0.0) -> Segment:
    """A segment of operations in forward order; the backward pass goes through them from the last to the first.

    ``input_bytes`` are those of the residual stream that enters it: a number, or in serving one for each pass.
    """
    done = tuple(operations)
    back = done[::-1]
    widest = reduce(np.maximum, (operation.widest_bytes for operation in done), 0.0)
    return Segment(
        name=name,
        layer=layer,
        parts=(
            *(_of("forward", part) for operation in done for part in operation.forward),
            *(_of("backward", part) for operation in back for part in operation.backward),
            *(_of("weights", part) for operation in back for part in operation.weights),
        ),
        held=tuple(weights for operation in done for weights in operation.held),
        saved=tuple(activation for operation in done for activation in operation.saved),
        input_bytes=input_bytes,
        widest_bytes=widest if np.ndim(widest) else float(widest),
        workspace_bytes=max((operation.workspace_bytes for operation in done), default=0.0),
        logits=sum(operation.logits for operation in done),
        tied_parameters=sum(operation.tied_parameters for operation in done),
        unbuilt=next((operation.unbuilt for operation in done if operation.unbuilt), ""),
    )


def _of(which: Phase, part: Part) -> Part:
    return part if part.phase == which else replace(part, phase=which)


def within(module: str, operations: Iterable[Operation]) -> Iterator[Operation]:
    """The same as parts of a module that may be computed again, with what its recomputation need not keep."""
    for done in operations:
        parts = tuple(replace(part, modules=(*part.modules, module)) for part in done.forward)
        saved = tuple(replace(activation, modules=(*activation.modules, module)) for activation in done.saved)
        yield replace(done, forward=parts, saved=saved)


def pointwise(rank: Rank, name: str, op: str, rows: Count, cols: int) -> Operation:
    """A pointwise pass with ``rows`` x ``cols`` results, and those of its gradients."""
    gradients = {} if rank.serves else Counter(_gradients(op))
    return Operation(
        forward=(rank.pointwise(name, op, rows, cols),),
        backward=tuple(rank.pointwise(f"{name} gradient", back, rows, cols, runs) for back, runs in gradients.items()),
    )


def over_rows(
    rank: Rank,
    name: str,
    op: str,
    rows: Count,
    cols: int,
    *,
    more: tuple[Any, Any] = (0, 0),
    more_back: tuple[Any, Any] = (0, 0),
) -> Operation:
    """A softmax or norm of rows, and its gradient; ``more`` and ``more_back`` are [B] that each reads and writes beside
    what the table of operators has.
    """
    gradients = () if rank.serves else _gradients(op)
    return Operation(
        forward=(rank.rows(name, op, rows, cols, more_read=more[0], more_written=more[1]),),
        backward=tuple(
            rank.rows(f"{name} gradient", back, rows, cols, more_read=more_back[0], more_written=more_back[1])
            for back in gradients
        ),
    )


def _gradients(op: str) -> tuple[str, ...]:
    return GRADIENTS.get(op, (f"{op}_backward",))


def move(part: Part) -> Operation:
    """Data movement with its gradient, which moves data the other way."""
    return Operation(forward=(part,), backward=(replace(part, name=f"{part.name} gradient"),))


def exchange(
    rank: Rank, name: str, op: str, group: str, size: Any, *, back: Any = None, overlapped: bool = False
) -> Operation:
    """Collective of ``size`` [B] and its adjoint, of ``back`` [B] where that differs, concurrent with kernels where it
    is ``overlapped``.
    """
    adjoint = ADJOINTS.get(op)
    size_back = size if back is None else back
    gradient = rank.exchange(f"{name} gradient", adjoint, group, size_back, overlapped=overlapped) if adjoint else ()
    return Operation(forward=rank.exchange(name, op, group, size), backward=gradient)


def product_gradients(shape: Shape, layout: str) -> tuple[tuple[Shape, str], tuple[Shape, str]]:
    """Shape (m, n, k) and layout of the products that give the gradients of a product's left and right operand.

    Y = X W^T, W of n rows ("tn"): dX = dY W and dW = dY^T X; Y = X W, W of k rows ("nn"): dX = dY W^T, dW = X^T dY.
    """
    m, n, k = shape
    right = (n, k, m) if layout == "tn" else (k, n, m)
    return ((m, k, n), "nn" if layout == "tn" else "tn"), (right, "nt")
