"""One traced step as rows of numbers: its kernels in order, and the bytes alive at every moment by what they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from neusight.graphs.graph import FoldedGraph, Graph
from neusight.graphs.memory import Ledger
from neusight.graphs.workloads.load import trace_workload
from neusight.graphs.workloads.parametric import MEMORY_PARTS
from neusight.kernels import Kernel

Launch = tuple[Kernel, str, str]
"""A kernel, its operator and its phase."""


@dataclass(frozen=True)
class Sample:
    """A step at one batch and sequence length.

    ``alive`` has shape (nodes + 1, 5): bytes by ``MEMORY_PARTS`` before the step and during each node.
    """

    batch: int
    seq_len: int | None
    launches: tuple[Launch, ...]
    phases: tuple[str, ...]
    alive: np.ndarray
    folded: FoldedGraph


def sample(name: str, point: tuple[int, int | None], **options: Any) -> Sample:
    """Trace a ready workload at (batch, sequence length); options are those of ``trace_workload``."""
    batch, seq_len = point
    with _ledgers() as seen:
        graph = trace_workload(name, batch=batch, seq_len=seq_len, **options)
    ledger, forward_end = seen[-1]
    return Sample(
        batch=batch,
        seq_len=seq_len,
        launches=tuple((k, n.operator, n.phase) for n in graph.nodes for k in n.kernels),
        phases=tuple(n.phase for n in graph.nodes),
        alive=_alive(ledger, forward_end, graph),
        folded=graph.fold(),
    )


@contextmanager
def _ledgers() -> Iterator[list[tuple[Ledger, int | None]]]:
    """Keep the ledgers of the traces run inside: a graph only holds the peak, a fit needs every moment."""
    seen: list[tuple[Ledger, int | None]] = []
    original = Ledger.profile

    def profile(self: Ledger, forward_end: int | None) -> Any:
        seen.append((self, forward_end))
        return original(self, forward_end)

    Ledger.profile = profile  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        Ledger.profile = original  # type: ignore[method-assign]


def _alive(ledger: Ledger, forward_end: int | None, graph: Graph) -> np.ndarray:
    """Bytes by part at each moment; a storage counts from the node that makes it to its last, both included."""
    from neusight.graphs.memory import _part

    change = np.zeros((len(graph.nodes) + 2, len(MEMORY_PARTS)), dtype=np.int64)
    for one in ledger.allocations:
        part = MEMORY_PARTS.index(_part(one, forward_end))
        change[one.born + 1, part] += one.nbytes
        if one.died is not None:
            change[one.died + 2, part] -= one.nbytes
    return change.cumsum(axis=0)[:-1]
