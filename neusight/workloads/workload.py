"""``Workload``: what one step of a model runs, operator by operator in order, with the tensors it reads and writes.

Equal layers are stored once. A node or a tensor may stand for a *series* of copies, one a layer, that follow each
other at a fixed distance; what a node reads is written as a tensor and which of its copies. So the workload of 96
equal layers is as small as that of one, loses nothing, and ``expanded`` gives every operator of every layer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from neusight.kernels.families import Kernel
from neusight.kernels.sparsity import LayerSparsity, Zeros
from neusight.requests import Request
from neusight.workloads.target import Facts

Phase = Literal["forward", "backward", "optimizer"]
PHASES: tuple[Phase, ...] = ("forward", "backward", "optimizer")
TensorKind = Literal["weight", "gradient", "state", "input", "intermediate"]
MEMORY_PARTS = ("weights", "gradients", "optimizer", "activations", "temporary")
KEPT = 2**31 - 1
"""Value of ``died`` of a tensor that outlives the step."""
DEPENDS_ON_DATA = "whose result depends on data"
"""Words in warnings of workloads with sizes that follow from unknown values."""


@dataclass(frozen=True, slots=True)
class ModulePath:
    """A module path with ``{}`` for each number in it: those of the first copy, and their steps from copy to copy."""

    pattern: str = ""
    numbers: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()

    def name(self, copy: int = 0) -> str:
        """The module path of one copy: ``h.{}.mlp`` with number 0 and step 1 is ``h.3.mlp`` for copy 3."""
        steps = self.steps or (0,) * len(self.numbers)
        return self.pattern.format(*(first + copy * step for first, step in zip(self.numbers, steps, strict=True)))


@dataclass(frozen=True, slots=True)
class Reference:
    """Which copy of a stored tensor a node reads or writes: ``first + step * copy of the node``. A lone node with
    ``first`` -1 takes all copies at once. ``tensor`` is the position in ``Workload.tensors``.

    ``edges`` are the copies of the node for which that does not hold, such as the first layer, which reads what stands
    before all layers: each is (copy of the node, tensor, copy of the tensor).
    """

    tensor: int
    first: int = 0
    step: int = 0
    edges: tuple[tuple[int, int, int], ...] = ()

    def at(self, copy: int, copies: int) -> Reference:
        """Reads of one copy of a node, as the reference of a lone node."""
        if self.first < 0 and copies == 1:
            return self
        for place, tensor, number in self.edges:
            if place == copy:
                return Reference(tensor, number)
        return Reference(self.tensor, self.first + self.step * copy)

    def each(self, copies: int) -> tuple[np.ndarray, np.ndarray]:
        """Tensor and its copy for every copy of a node, each of shape (copies,)."""
        tensor = np.full(copies, self.tensor)
        copy = self.first + self.step * np.arange(copies)
        for place, other, number in self.edges:
            tensor[place], copy[place] = other, number
        return tensor, copy


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One storage, or a series of ``copies`` storages.

    ``born`` and ``died`` are the first and the last node (by number in the expanded order) during which it is alive:
    -1 before the step, ``KEPT`` after it. Both move by their steps from copy to copy. ``touched_bytes`` is the most
    that any one node reads or writes of it, which for a table of embeddings may be less, or more, than all; an
    optimizer's update touches all and does not count here. ``split``: a share of a weight that ranks have no copies of.
    """

    shape: tuple[int, ...]
    dtype: str
    kind: TensorKind
    nbytes: int
    touched_bytes: int
    born: int
    died: int
    layer: ModulePath = ModulePath()
    copies: int = 1
    born_step: int = 0
    died_step: int = 0
    split: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One executed operator, or a series of ``copies``, each ``stride`` places after the one before.

    ``id`` is the place of the first copy in the expanded order. ``kernels`` is empty for views and host work, and has
    several entries where a GPU runs several kernels. ``iterations``: how often the part of the step that the node
    belongs to runs, one after the other on the same tensors, such as steps of denoising. ``zeros`` are those of the
    layer's operands where a sparsity profile gives them: one tensor may be read by several layers, each with different
    windows, so that they lie here.
    """

    id: int
    operator: str
    phase: Phase
    kernels: tuple[Kernel, ...] = ()
    reads: tuple[Reference, ...] = ()
    writes: tuple[Reference, ...] = ()
    layer: ModulePath = ModulePath()
    copies: int = 1
    stride: int = 0
    iterations: int = 1
    zeros: LayerSparsity | None = None

    @property
    def runs(self) -> int:
        """Number of runs of its kernels in the step."""
        return self.copies * self.iterations

    @property
    def sparse_kernels(self) -> Iterator[tuple[Kernel, Zeros | None]]:
        """Each kernel with the zeros of its operands, None where none are known."""
        for kernel in self.kernels:
            yield kernel, self.zeros.of_kernel(kernel, self.phase) if self.zeros else None


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """A stretch of stored nodes that stands for equal layers: ``count`` times ``length`` nodes from node ``start``."""

    start: int
    length: int
    count: int


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A kernel that occurs ``count`` times in one phase, on behalf of one operator, with the same zeros; ``modules``
    says how often in each, by the pattern of its path.
    """

    kernel: Kernel
    operator: str
    phase: Phase
    count: int
    zeros: Zeros | None = None
    modules: tuple[tuple[str, int], ...] = field(default=(), compare=False)


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
class Workload:
    """One step. ``nodes`` in the order of their first copies; ``parameters`` counts the model's.

    ``uncovered`` names operators without a rule that the caller allowed to be replaced by an analytic fallback;
    ``inputs`` says what the model was fed, as ``name=shape:dtype`` each. ``unit`` is the work that the step is of, in
    words, where a reader may take it for another, and ``parts`` are modules whose times are told apart, with their
    names. ``target``: facts of its device that the module has read, so that the step holds for devices of which they
    are true. ``launch``: how a wrapper of the module, such as ``torch.compile``, launches it; '' without one.
    ``values_decide``: inputs hold values on which the operators depend.
    """

    request: Request
    nodes: tuple[Node, ...]
    tensors: tuple[Tensor, ...]
    parameters: int
    uncovered: tuple[str, ...] = ()
    warnings: tuple[str, ...] = field(default=())
    inputs: tuple[str, ...] = ()
    unit: str = ""
    parts: tuple[tuple[str, str], ...] = ()
    target: Facts = field(default=(), compare=False)
    launch: str = ""
    values_decide: bool = field(default=False, compare=False)

    @property
    def length(self) -> int:
        """Operators of the whole step, views included: what the host of an eager engine dispatches."""
        return sum(node.copies for node in self.nodes)

    @cached_property
    def repeats(self) -> tuple[Repeat, ...]:
        """The stretches of equal layers, in order."""
        repeats: list[Repeat] = []
        for node in self.nodes:
            last = repeats[-1] if repeats else None
            if node.copies == 1 or (last and node.id < last.start + last.length):
                continue
            repeats.append(Repeat(start=node.id, length=node.stride, count=node.copies))
        return tuple(repeats)

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        """Unique (kernel, operator, phase, zeros) with counts, in order of first occurrence."""
        counts: dict[tuple[Kernel, str, Phase, Zeros | None], Counter[str]] = {}
        for node in self.nodes:
            for kernel, zeros in node.sparse_kernels:
                # What ranks exchange around an operator is told apart from it.
                operator = kernel.op if kernel.family == "collective" else node.operator
                modules = counts.setdefault((kernel, operator, node.phase, zeros), Counter())
                modules[node.layer.pattern] += node.runs
        return tuple(
            Launch(kernel=k, operator=o, phase=p, zeros=z, count=modules.total(), modules=tuple(modules.items()))
            for (k, o, p, z), modules in counts.items()
        )

    def expanded(self) -> Iterator[tuple[Node, int]]:
        """Every operator of every layer in the order of execution: a stored node and which of its copies."""
        places = np.concatenate([n.id + n.stride * np.arange(n.copies) for n in self.nodes])
        which = np.repeat(np.arange(len(self.nodes)), [n.copies for n in self.nodes])
        copy = np.concatenate([np.arange(n.copies) for n in self.nodes])
        order = np.argsort(places, kind="stable")
        for at, number in zip(which[order].tolist(), copy[order].tolist(), strict=True):
            yield self.nodes[at], number

    @cached_property
    def memory(self) -> MemoryProfile:
        """The breakdown at the first moment when most bytes are alive."""
        alive = self.alive
        return MemoryProfile(
            **dict(zip(MEMORY_PARTS, map(int, alive[alive.sum(axis=1).argmax()]), strict=True)),
        )

    @property
    def alive(self) -> np.ndarray:
        """Bytes alive by ``MEMORY_PARTS`` before the step and during each node, shape (length + 1, 5)."""
        tensors = self._each_tensor
        part = _parts(tensors, self._forward_end)
        change = np.zeros((self.length + 2, len(MEMORY_PARTS)), dtype=np.int64)
        np.add.at(change, (tensors["born"] + 1, part), tensors["nbytes"])
        ends = tensors["died"] < KEPT
        np.add.at(change, (tensors["died"][ends] + 2, part[ends]), -tensors["nbytes"][ends])
        return change.cumsum(axis=0)[:-1]

    @property
    def traffic_bytes(self) -> tuple[int, ...]:
        """Distinct bytes that no schedule can keep from crossing between device memory and caches, by occasion.

        Each occasion is a set of bytes that is in use at one moment, or not at all before: weights, states and inputs
        that the step reads; what it changes of them; what the forward pass keeps for the backward pass, written and
        read; gradients that wait for the optimizer, written and read. A cache saves at most its capacity of each.
        Parts that run several times meet theirs as often.
        """
        again = [n for n in self.nodes if n.iterations > 1]
        if not again:
            return self._occasions
        loop = replace(self, nodes=tuple(again))
        return (*self._occasions, *loop._occasions * (again[0].iterations - 1))

    @property
    def _occasions(self) -> tuple[int, ...]:
        """Sizes of ``traffic_bytes`` where each part runs once."""
        tensors = self._each_tensor
        read, written, used = self._uses
        born = tensors["born"]
        touched = np.minimum(tensors["touched"], tensors["nbytes"])
        size = np.where(used > self._backward_end, tensors["nbytes"], touched)
        before = (born < 0) | (tensors["kind"] == "input")
        end, last = self._forward_end, self._backward_end
        saved = ~before & (born <= end) & (used > end)
        waiting = ~before & (born > end) & (born <= last) & (used > last)
        left = written & (tensors["died"] >= KEPT) & ~saved & ~waiting
        crossing = (before & read, left, saved, saved, waiting, waiting)
        sizes = (int(size[mask].sum()) for mask in crossing)
        return tuple(total for total in sizes if total)

    @property
    def _forward_end(self) -> int:
        """The last forward node of a training step; in inference nothing comes after it."""
        return KEPT if self.request.mode == "inference" else self._last("forward")

    @property
    def _backward_end(self) -> int:
        """The last node before the optimizer's update."""
        return max(self._last("backward"), self._last("forward")) if self.request.mode == "training" else KEPT

    def _last(self, phase: Phase) -> int:
        return max((n.id + n.stride * (n.copies - 1) for n in self.nodes if n.phase == phase), default=-1)

    @property
    def lives(self) -> dict[str, np.ndarray]:
        """Columns over all copies of all tensors: ``nbytes``, and ``born`` and ``died`` as of ``Tensor``."""
        return {name: self._each_tensor[name] for name in ("nbytes", "born", "died")}

    @cached_property
    def _each_tensor(self) -> dict[str, np.ndarray]:
        """Columns over all copies of all tensors."""
        copies = np.array([t.copies for t in self.tensors], dtype=np.int64)
        number = np.concatenate([np.arange(n) for n in copies]) if len(copies) else np.zeros(0, dtype=np.int64)

        def column(name: str, step: str = "") -> np.ndarray:
            first = np.repeat(np.array([getattr(t, name) for t in self.tensors], dtype=np.int64), copies)
            if not step:
                return first
            return first + number * np.repeat(
                np.array([getattr(t, step) for t in self.tensors], dtype=np.int64), copies
            )

        return {
            "nbytes": column("nbytes"),
            "touched": column("touched_bytes"),
            "born": column("born", "born_step"),
            "died": column("died", "died_step"),
            "kind": np.repeat(np.array([t.kind for t in self.tensors]), copies),
        }

    @cached_property
    def _uses(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Masks of the copies of tensors that kernels read, and that they write, and the last node that does either;
        each shape (copies,).
        """
        copies = np.array([t.copies for t in self.tensors], dtype=np.int64)
        start, total = copies.cumsum() - copies, int(copies.sum())
        read, written = np.zeros(total, dtype=bool), np.zeros(total, dtype=bool)
        used = np.full(total, -1, dtype=np.int64)
        for node in self.nodes:
            if not node.kernels:
                continue
            places = node.id + node.stride * np.arange(node.copies)
            for mark, references in ((read, node.reads), (written, node.writes)):
                for r in references:
                    if r.first < 0 and node.copies == 1:
                        at: Any = slice(start[r.tensor], start[r.tensor] + copies[r.tensor])
                        used[at] = np.maximum(used[at], places[-1])
                    else:
                        tensor, copy = r.each(node.copies)
                        at = start[tensor] + copy
                        np.maximum.at(used, at, places)
                    mark[at] = True
        return read, written, used


def _parts(each: dict[str, np.ndarray], forward_end: int) -> np.ndarray:
    """Position in ``MEMORY_PARTS`` of each tensor: what is born until the end of a training step's forward pass and
    outlives it is an activation, saved for backward; every other intermediate is temporary.
    """
    kind, temporary = each["kind"], MEMORY_PARTS.index("temporary")
    part = np.full(len(kind), temporary)
    if forward_end < KEPT:
        part[(each["born"] <= forward_end) & (each["died"] > forward_end)] = MEMORY_PARTS.index("activations")
    for name, of in (("weight", "weights"), ("gradient", "gradients"), ("state", "optimizer")):
        part[kind == name] = MEMORY_PARTS.index(of)
    return part


def iterate_module(workload: Workload, module: str, times: int) -> Workload:
    """The workload whose ``module`` runs several times, one after the other; what lies in memory stays the same."""
    nodes = (
        replace(node, iterations=times) if f"{node.layer.pattern}.".startswith(f"{module}.") else node
        for node in workload.nodes
    )
    return replace(workload, nodes=tuple(nodes))


def rename_model(workload: Workload, name: str) -> Workload:
    """The same workload under another name of its model."""
    return replace(workload, request=replace(workload.request, model=name))
