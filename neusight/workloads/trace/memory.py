"""What is alive when: storages with birth and death, and the breakdown of memory at the peak."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, Literal

from neusight.workloads.graph import MemoryProfile, Phase

Kind = Literal["weights", "gradients", "optimizer", "inputs", "intermediate"]


@dataclass(slots=True)
class Allocation:
    """One storage: its size, when it was born and died (node ids; -1 before the step, None never), and what it is."""

    nbytes: int
    born: int
    phase: Phase
    kind: Kind
    died: int | None = None
    writer: int = -1


class Ledger:
    """Storages seen during a step, found again by identity until they die.

    Weak references tell the death, as in PyTorch's own memory tracker: autograd's saved tensors keep a storage alive
    exactly as long as they do on a device.
    """

    def __init__(self) -> None:
        self.allocations: list[Allocation] = []
        self.live_bytes = 0
        self.now = -1
        self._alive: dict[int, Allocation] = {}
        self._references: dict[int, weakref.ref[Any]] = {}

    def find(self, tensor: Any) -> Allocation | None:
        """The living allocation behind a tensor, if it was seen."""
        return self._alive.get(tensor.untyped_storage()._cdata)

    def add(self, tensor: Any, phase: Phase, kind: Kind = "intermediate") -> Allocation:
        """The allocation behind a tensor, entered now if it is new."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self._alive.get(key)
        if known is not None:
            return known
        new = Allocation(storage.nbytes(), self.now, phase, kind)
        self.allocations.append(new)
        self._alive[key] = new
        self._references[key] = weakref.ref(storage, lambda _: self._bury(key))
        self.live_bytes += new.nbytes
        return new

    def _bury(self, key: int) -> None:
        dead = self._alive.pop(key)
        del self._references[key]
        dead.died = self.now
        self.live_bytes -= dead.nbytes

    def profile(self, forward_end: int | None) -> MemoryProfile:
        """The breakdown when most bytes were alive.

        Args:
            forward_end: the id of the last forward node of a training step. What was born until then and outlives it
                is an activation, saved for backward; None in inference, where every intermediate is temporary.
        """
        peak = self._peak_node()
        sums = dict.fromkeys(("weights", "gradients", "optimizer", "activations", "temporary"), 0)
        for one in self.allocations:
            if one.born <= peak and (one.died is None or one.died >= peak):
                sums[_part(one, forward_end)] += one.nbytes
        return MemoryProfile(**sums)

    def _peak_node(self) -> int:
        """The node during which most bytes were alive: a storage counts from the node that makes it to its last."""
        change: dict[int, int] = {}
        for one in self.allocations:
            change[one.born] = change.get(one.born, 0) + one.nbytes
            if one.died is not None:
                change[one.died + 1] = change.get(one.died + 1, 0) - one.nbytes
        best, best_node, level = -1, -1, 0
        for node in sorted(change):
            level += change[node]
            if level > best:
                best, best_node = level, node
        return best_node


def _part(one: Allocation, forward_end: int | None) -> str:
    if one.kind in ("weights", "gradients", "optimizer"):
        return one.kind
    saved = forward_end is not None and one.born <= forward_end and (one.died is None or one.died > forward_end)
    return "activations" if saved else "temporary"
