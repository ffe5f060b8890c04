"""One traced step as rows of numbers: its operators in order, and the bytes alive at every moment by what they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from neusight.kernels import Kernel
from neusight.workloads.graph import FoldedGraph, FoldedKernel, Graph, MemoryProfile
from neusight.workloads.load import Step, trace_source
from neusight.workloads.parametric import MEMORY_PARTS
from neusight.workloads.resolve import WorkloadSource
from neusight.workloads.trace.memory import Ledger

Launch = tuple[Kernel, str, str]
"""A kernel, its operator and its phase."""
Operator = tuple[str, str, tuple[Kernel, ...]]
"""A phase, an operator's name and the kernels it runs."""


@dataclass(frozen=True)
class Sample:
    """A step at one batch and sequence length.

    ``alive`` has shape (operators + 1, 5): bytes by ``MEMORY_PARTS`` before the step and during each operator.
    """

    name: str
    step: Step
    operators: tuple[Operator, ...]
    alive: np.ndarray
    parameters: int

    @property
    def point(self) -> tuple[int, int | None]:
        """Batch and sequence length."""
        return self.step.batch, self.step.seq_len

    @cached_property
    def launches(self) -> list[Launch]:
        """Every kernel in order."""
        return [(kernel, name, phase) for phase, name, kernels in self.operators for kernel in kernels]

    @cached_property
    def folded(self) -> FoldedGraph:
        """The graph as ``load_graph`` gives it."""
        counts = Counter(self.launches)
        peak = self.alive[self.alive.sum(axis=1).argmax()]
        return FoldedGraph(
            model=self.name,
            **asdict(self.step),
            parameters=self.parameters,
            kernels=tuple(FoldedKernel(kernel=k, operator=o, phase=p, count=c) for (k, o, p), c in counts.items()),  # type: ignore[arg-type]
            memory=MemoryProfile(**dict(zip(MEMORY_PARTS, map(int, peak), strict=True))),
            host_operators=len(self.operators),
        )

    def same_as(self, other: Sample) -> bool:
        """Whether every operator and every moment of memory agree."""
        mine, theirs = (self.operators, self.parameters), (other.operators, other.parameters)
        return mine == theirs and np.array_equal(self.alive, other.alive)


def sample(name: str, config: dict[str, Any], step: Step) -> Sample:
    """Trace the step of a configuration."""
    with _ledgers() as seen:
        graph = trace_source(WorkloadSource(name=name, config=config), step)
    ledger, forward_end = seen[-1]
    return Sample(
        name=name,
        step=step,
        operators=tuple((n.phase, n.operator, n.kernels) for n in graph.nodes),
        alive=_alive(ledger, forward_end, graph),
        parameters=graph.parameters,
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
    from neusight.workloads.trace.memory import _part

    change = np.zeros((len(graph.nodes) + 2, len(MEMORY_PARTS)), dtype=np.int64)
    for one in ledger.allocations:
        part = MEMORY_PARTS.index(_part(one, forward_end))
        change[one.born + 1, part] += one.nbytes
        if one.died is not None:
            change[one.died + 2, part] -= one.nbytes
    return change.cumsum(axis=0)[:-1]
