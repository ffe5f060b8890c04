"""``Program``: a model as what one rank runs of it in a micro-batch or a pass, segment by segment, part by part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from neusight.kernels.families import KernelBatch
from neusight.quick_dataclasses import dataclass
from neusight.requests import modules_of

Phase = Literal["forward", "backward", "weights", "step"]
PHASES: tuple[Phase, ...] = ("forward", "backward", "weights")
"""Phases of a micro-batch. Gradients of weights are told apart from those of activations: schedules without bubbles run
them later. ``step`` runs once for all micro-batches."""
GROUPS = ("", "tp", "cp", "ulysses", "ep")
"""Ranks among which a part communicates; "" computes."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One kernel or collective, ``runs`` times, or that share of one.

    ``batch`` has one row; in the passes of a serving engine a row a pass, ``runs`` of shape (n,), and what does not run
    in a pass is a smallest kernel there.

    ``group`` says which ranks a collective joins, "" for kernels. ``overlapped`` collectives run beside the kernels
    of their segment where the framework overlaps them; others stand in the way. ``modules`` it belongs to are those
    of ``MODULES``, any of which may be computed again. ``further`` is launched by the operator of another part;
    ``python_calls`` functions of Python launch it beside what an operator takes.
    """

    name: str
    phase: Phase
    batch: KernelBatch
    runs: Any = 1
    group: str = ""
    overlapped: bool = False
    modules: tuple[str, ...] = ()
    further: bool = False
    python_calls: int = 0


class HeldWeights(NamedTuple):
    """So many parameters on a rank that are stored alike: in the scheme of a ``kind`` of projections or of a ``table``
    in which tokens are looked up, "" for the model's own dtype. ``routed`` ones are of experts among which tokens
    choose. ``shape``: (n, k) of each matrix. ``frozen`` ones are not trained.
    """

    number: int
    kind: str = ""
    routed: bool = False
    shape: tuple[int, int] = (0, 0)
    frozen: bool = False

    @property
    def is_matrix(self) -> bool:
        """Tell whether optimizers of matrices step it: it belongs to layers, and neither looks tokens up nor gives
        logits.
        """
        return self.kind not in ("", "head", "table")


@dataclass(frozen=True, kw_only=True)
class SavedActivation:
    """Activation saved of a micro-batch from the forward pass for the backward pass [B].

    ``modules``: those whose recomputation gives it again. ``selected_bytes`` is what selection by operators
    keeps of it; ``product``: of a product with weights, of which that keeps the first, third, fifth … of a segment.
    """

    name: str
    bytes: float
    modules: tuple[str, ...] = ()
    selected_bytes: float = 0.0
    product: bool = False


@dataclass(frozen=True, kw_only=True)
class Segment:
    """The embedding, a kind of layer, or norm, head and loss.

    ``held`` are the parameters that a rank has of it. ``layer`` is the place of its kind in the model's order of
    layers, -1 outside of layers. ``dispatches`` is what the host does in each pass (``workloads.dispatch``); empty
    where each part is an operator of its own. ``saved`` is what it keeps of a micro-batch for the backward pass,
    ``input_bytes`` what enters it, ``widest_bytes`` those of what enters and leaves its widest operation, of which
    gradients are as many, ``workspace_bytes`` a buffer of its own that stays, ``logits`` how many the loss is of.
    ``tied_parameters`` are the head's that count as the embedding's. ``unbuilt`` says why it cannot run, where only
    what it holds and keeps is known.
    """

    name: str
    layer: int
    parts: tuple[Part, ...]
    held: tuple[HeldWeights, ...] = ()
    dispatches: tuple[tuple[Phase, float], ...] = ()
    saved: tuple[SavedActivation, ...] = ()
    input_bytes: Any = 0.0
    widest_bytes: Any = 0.0
    workspace_bytes: float = 0.0
    logits: Any = 0.0
    tied_parameters: int = 0
    unbuilt: str = ""

    @property
    def parameters(self) -> int:
        """Number of parameters trained on the rank, without experts among which tokens choose."""
        return sum(weights.number for weights in self.held if not (weights.routed or weights.frozen))

    @property
    def expert_parameters(self) -> int:
        """Number of parameters trained on the rank, of such experts."""
        return sum(weights.number for weights in self.held if weights.routed and not weights.frozen)

    @property
    def frozen_parameters(self) -> int:
        """Number of parameters that are not trained."""
        return sum(weights.number for weights in self.held if weights.frozen)

    def kept_bytes(self, recompute: str) -> float:
        """Bytes kept of a micro-batch until its backward pass, where a part is computed again.

        Args:
            recompute: ``none``; ``full``: the input is kept (Chen et al. 2016); ``selective``: all but the core of
                attention (Korthikanti et al. 2022), or names of ``MODULES`` with "+" between: all but theirs;
                ``operators``: the input, what every second product gives, and the output of attention (torchtitan,
                ``_apply_ac_to_transformer_block``).
        """
        if recompute == "full":
            return self.input_bytes
        if recompute == "operators":
            products = [s for s in self.saved if s.product]
            others = sum(s.selected_bytes for s in self.saved if not s.product)
            return self.input_bytes + others + sum(s.selected_bytes for s in products[::2])
        again = modules_of(recompute)
        return sum(s.bytes for s in self.saved if again.isdisjoint(s.modules))

    def of(self, which: Phase) -> tuple[Part, ...]:
        """Parts of one pass, in order."""
        return tuple(part for part in self.parts if part.phase == which)


@dataclass(frozen=True, kw_only=True)
class Program:
    """A decoder on one rank: what stands before the layers, one segment a kind of layer, and what stands after them.

    ``order`` tells the kind of every layer from the input on.
    """

    before: Segment
    layers: Sequence[Segment]
    after: Segment
    order: tuple[int, ...]

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Before the layers, one for each kind of layer, and after them."""
        return (self.before, *self.layers, self.after)

    @property
    def parts(self) -> tuple[Part, ...]:
        """Parts of all segments, each once."""
        return tuple(part for segment in self.segments for part in segment.parts)

    @property
    def counted_parts(self) -> tuple[Part, ...]:
        """``parts`` with their runs in the whole model."""
        counts = (1, *(self.order.count(place) for place in range(len(self.layers))), 1)
        counted = zip(self.segments, counts, strict=True)
        return tuple(replace(part, runs=count * part.runs) for segment, count in counted for part in segment.parts)
