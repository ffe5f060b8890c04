"""Storages that are alive during a step, with birth and death."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

from neusight.workloads.workload import TensorKind


@dataclass(slots=True)
class Allocation:
    """One storage: its size, when it was born and died (node ids; -1 before the step, None never), and what it is.

    ``shape``, ``dtype`` and ``layer`` are those of the tensor that was seen first; ``touched_bytes`` is the most that
    one kernel's operator reads or writes of it, ``writer`` the node that wrote it last.
    """

    nbytes: int
    born: int
    kind: TensorKind
    shape: tuple[int, ...]
    dtype: str
    layer: str = ""
    died: int | None = None
    writer: int = -1
    touched_bytes: int = 0


class Ledger:
    """Storages seen during a step, found again by identity until they die.

    Weak references tell the death, as in PyTorch's own memory tracker: autograd's saved tensors keep a storage alive
    exactly as long as they do on a device.
    """

    def __init__(self) -> None:
        self.allocations: list[Allocation] = []
        self.now = -1
        self._alive: dict[int, Allocation] = {}
        self._references: dict[int, weakref.ref[Any]] = {}

    def add(self, tensor: Any, kind: TensorKind = "intermediate", layer: str = "") -> Allocation:
        """The allocation behind a tensor, entered now if it is new.

        A sparse one is its own: how many values it has, a trace does not know, and it counts as none.
        """
        storage = tensor if tensor.is_sparse else tensor.untyped_storage()
        key = storage._cdata
        entered = self._alive.get(key)
        if entered is not None:
            return entered
        dtype = str(tensor.dtype).removeprefix("torch.")
        nbytes = 0 if tensor.is_sparse else storage.nbytes()
        new = Allocation(nbytes, self.now, kind, tuple(tensor.shape), dtype, layer)
        self.allocations.append(new)
        self._alive[key] = new
        self._references[key] = weakref.ref(storage, lambda _: self._bury(key))
        return new

    def close(self) -> None:
        """Stop watching: what is alive now outlives the step."""
        self._references.clear()

    def _bury(self, key: int) -> None:
        dead = self._alive.pop(key)
        del self._references[key]
        dead.died = self.now
