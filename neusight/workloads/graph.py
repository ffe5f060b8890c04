"""The graph of one step of a model: operators in execution order, the kernels each runs, and what memory they need."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from neusight.kernels import Kernel

Phase = Literal["forward", "backward", "optimizer"]
PHASES: tuple[Phase, ...] = ("forward", "backward", "optimizer")


@dataclass(frozen=True, kw_only=True)
class Node:
    """One executed operator.

    ``inputs`` are the ids of the nodes whose results it reads. ``kernels`` is empty for views and host work, and has
    several entries where a GPU runs several kernels. ``layer`` is the module path (``transformer.h.0.attn``) or "".
    ``live_bytes`` counts the tensors alive while the node runs, weights and gradients included.
    """

    id: int
    operator: str
    phase: Phase
    kernels: tuple[Kernel, ...] = ()
    inputs: tuple[int, ...] = ()
    layer: str = ""
    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    strides: tuple[tuple[int, ...], ...] = ()
    live_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class MemoryProfile:
    """Device memory at the moment of the peak, in bytes."""

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    temporary: int = 0

    @property
    def peak(self) -> int:
        """Sum of all parts."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.temporary


@dataclass(frozen=True, kw_only=True)
class FoldedKernel:
    """A kernel that occurs ``count`` times in one phase, on behalf of one operator."""

    kernel: Kernel
    operator: str
    phase: Phase
    count: int


@dataclass(frozen=True, kw_only=True)
class RepeatedLayer:
    """A stretch of nodes found to repeat: ``count`` times ``length`` nodes, the first at ``start``."""

    start: int
    length: int
    count: int


@dataclass(frozen=True, kw_only=True)
class FoldedGraph:
    """What a prediction needs of a graph: unique kernels with counts, memory, and what the step was."""

    model: str
    mode: Literal["inference", "training"]
    batch: int
    seq_len: int | None
    dtype: str
    optimizer: str
    attention: str
    parameters: int
    kernels: tuple[FoldedKernel, ...]
    memory: MemoryProfile
    host_operators: int = 0
    """Operators dispatched by the host in one step, views included: the floor of an eager, host-bound step."""
    uncovered: tuple[str, ...] = ()
    """Operators without a rule that the caller allowed to be replaced by an analytic fallback."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Graph:
    """One traced step. ``repeats`` are the layers found by structure; ``nodes`` holds every one of them in full."""

    model: str
    mode: Literal["inference", "training"]
    batch: int
    seq_len: int | None
    dtype: str
    optimizer: str
    attention: str
    parameters: int
    nodes: tuple[Node, ...]
    memory: MemoryProfile
    repeats: tuple[RepeatedLayer, ...] = ()
    uncovered: tuple[str, ...] = ()
    warnings: tuple[str, ...] = field(default=())

    def fold(self) -> FoldedGraph:
        """Unique (kernel, operator, phase) with counts, in order of first occurrence."""
        counts = Counter((k, n.operator, n.phase) for n in self.nodes for k in n.kernels)
        return FoldedGraph(
            model=self.model,
            mode=self.mode,
            batch=self.batch,
            seq_len=self.seq_len,
            dtype=self.dtype,
            optimizer=self.optimizer,
            attention=self.attention,
            parameters=self.parameters,
            kernels=tuple(FoldedKernel(kernel=k, operator=o, phase=p, count=c) for (k, o, p), c in counts.items()),
            memory=self.memory,
            host_operators=len(self.nodes),
            uncovered=self.uncovered,
            warnings=self.warnings,
        )
