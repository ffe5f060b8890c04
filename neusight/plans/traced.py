"""A traced step as the program of one rank: its layers as segments, so that it is treated like any other program.

Layers are recognised by their module paths. Nodes before the first and after the last make the ends; equal layers are
stored once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from neusight.kernels.families import Kernel, KernelBatch
from neusight.kernels.precision import stored_bytes
from neusight.kernels.sparsity import MAPPED, Zeros, with_zeros
from neusight.plans.allocator import reserve_bytes
from neusight.plans.shard_graph import scale
from neusight.plans.states import States
from neusight.plans.trace_layers import attention_core, blocks_of, crossing_bytes, layer_names
from neusight.requests import Plan
from neusight.transforms.compiled import compiled
from neusight.transforms.recompute import is_product
from neusight.transforms.unrolled import unroll
from neusight.workloads.decoders.cores import CORE_MODULE
from neusight.workloads.dispatch import node_dispatches
from neusight.workloads.program import HeldWeights, Part, Phase, Program, SavedActivation, Segment
from neusight.workloads.workload import KEPT, Workload

_PHASES: dict[str, Phase] = {"forward": "forward", "backward": "backward", "optimizer": "step"}


def _group(kernel: Kernel) -> str:
    """Ranks that a kernel external with: replicas that split tables, else those that share layers."""
    if kernel.family != "collective":
        return ""
    return "edp" if kernel.op == "all_to_all" else "tp"


class _Run(NamedTuple):
    """A kernel with the operator and the phase that run it, and zeros of its operands.

    ``core``: of attention, see ``Part``. ``product`` numbers the forward products with weights of a block from 1 on, of
    which selection by operators keeps every second; 0 for all else.
    """

    kernel: Kernel
    operator: str
    phase: str
    zeros: Zeros | None
    core: bool = False
    product: int = 0


@dataclass(frozen=True)
class TracedProgram:
    """One micro-batch of a traced step on one rank.

    Attributes:
        workload: the step as its engine launches it, with every operator by itself, see ``transforms.unrolled``.
        block: block of each node: before (0), layers (1 … depth) or after (depth + 1); -1 in the update.
        sent_bytes: bytes that enter each layer in a forward pass, shape (depth + 1,), the end after the last included.
    """

    workload: Workload
    block: np.ndarray
    sent_bytes: np.ndarray

    @classmethod
    def of(cls, workload: Workload) -> TracedProgram:
        """The program of a rank's sharded workload, which is compiled here; tensors between layers are found before
        that.
        """
        eager = unroll(workload)
        step = compiled(eager)
        crossing = crossing_bytes(eager)
        sent = np.array([crossing[name] for name in (*layer_names(step), "")])
        return cls(workload=step, block=blocks_of(step), sent_bytes=sent)

    def reserve_bytes(self, capacity_bytes: float) -> int:
        """Memory of a process in addition to the tensors of its workload [B], see ``plans.allocator``."""
        return reserve_bytes(self.workload, capacity_bytes)

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.sent_bytes) - 1

    @cached_property
    def program(self) -> Program:
        """Segments of kernels; gradients of weights are part of the backward pass, as PyTorch's autograd runs them."""
        runs, of_host, parameters = self._runs(), self._dispatches(), self.parameters

        def segment(name: str, kind: int, *blocks: int) -> Segment:
            at, saved = blocks[0], zip(*(self._memory[block][0] for block in blocks), strict=True)
            return Segment(
                name=name,
                layer=kind,
                parts=tuple(self._part(run, count) for run, count in runs[at].items()),
                held=(HeldWeights(parameters[at]),),
                dispatches=of_host[at],
                saved=tuple(_mean(saved_of_each) for saved_of_each in saved),
                input_bytes=float(self.sent_bytes[at - 1 if kind >= 0 else -1]),
                widest_bytes=max(self._memory[block][1] for block in blocks),
            )

        keys = [(frozenset(runs[at].items()), of_host[at], parameters[at]) for at in range(1, self.depth + 1)]
        kinds = list(dict.fromkeys(keys))
        order = tuple(kinds.index(key) for key in keys)
        alike = [[at + 1 for at, number in enumerate(order) if number == kind] for kind in range(len(kinds))]
        return Program(
            before=segment("before layers", -1, 0),
            layers=tuple(segment("layer", kind, *blocks) for kind, blocks in enumerate(alike)),
            after=replace(segment("after layers", -1, self.depth + 1), tied_parameters=self.tied_parameters),
            order=order,
        )

    @cached_property
    def update(self) -> tuple[Part, ...]:
        """The optimizer's kernels for all parameters of the rank's program."""
        counts: Counter[_Run] = Counter()
        for node in self.workload.nodes:
            if node.phase == "optimizer":
                for kernel, zeros in node.sparse_kernels:
                    counts[_Run(kernel, node.operator, node.phase, zeros)] += 1
        return tuple(self._part(run, count) for run, count in counts.items())

    def update_of(self, share: float) -> tuple[Part, ...]:
        """The update of a share of the parameters."""
        if share == 1.0:
            return self.update
        return tuple(replace(part, batch=KernelBatch.of([scale(part.batch.kernel(0), share)])) for part in self.update)

    @cached_property
    def tied_parameters(self) -> int:
        """Number of parameters that the nodes after the layers share with earlier ones, such as a table of words that
        also makes the logits.
        """
        return round(sum(self._elements(number) for number in self._tied_weights))

    @cached_property
    def tied_bytes(self) -> float:
        """Size of the tied parameters [B]."""
        return float(sum(self.workload.tensors[number].nbytes for number in self._tied_weights))

    @cached_property
    def _tied_weights(self) -> set[int]:
        *before, last = self._weights
        return last.intersection(set().union(*before))

    def states(self, blocks: Sequence[int], tied: bool, plan: Plan) -> States:
        """Persistent states of a rank with some blocks, in the dtypes of the module.

        Args:
            blocks: blocks of the rank.
            tied: True if it has a copy of the weights that the last block shares with others.
            plan: decides the states that replicas share.
        """
        shared = plan.shard != "none"
        share = 1.0 / plan.dp if shared else 1.0
        weights = self._bytes("weight")
        held_bytes = sum(weights[at] for at in blocks) + (self.tied_bytes if tied else 0.0)
        part = share * held_bytes / (weights.sum() or 1.0)
        gradients = held_bytes / (weights.sum() or 1.0) * self._bytes("gradient").sum()
        return States(
            weights=held_bytes * share if plan.shard == "zero3" else held_bytes,
            gradients=gradients * share if plan.shard in ("zero2", "zero3") else gradients,
            optimizer=part * self._bytes("state").sum(),
            cast=part * float(self._alive(self._columns["born"] >= self._passes).max(initial=0.0)),
        )

    @property
    def _passes(self) -> int:
        """Number of nodes of both passes."""
        return sum(node.phase != "optimizer" for node in self.workload.nodes)

    @cached_property
    def _columns(self) -> dict[str, np.ndarray]:
        """Columns of all tensors: ``nbytes``, ``born``, ``died`` and ``kind`` of ``Tensor``."""
        names = ("nbytes", "born", "died", "kind")
        return {name: np.array([getattr(tensor, name) for tensor in self.workload.tensors]) for name in names}

    def _bytes(self, kind: str) -> np.ndarray:
        """Bytes of all tensors of a kind by the block that touches them first, those of the update at the end, shape
        (depth + 3,).
        """
        chosen = self._columns["kind"] == kind
        blocks = np.where(self._touching_blocks[0] < 0, self.depth + 2, self._touching_blocks[0])[chosen]
        return np.bincount(blocks, self._columns["nbytes"][chosen], minlength=self.depth + 3)

    def _alive(self, chosen: np.ndarray) -> np.ndarray:
        """Bytes of some tensors that nodes make or are given while each node runs, shape (nodes,)."""
        columns, length = self._columns, len(self.workload.nodes)
        mine = chosen & np.isin(columns["kind"], ("intermediate", "input"))
        change = np.zeros(length + 2)
        np.add.at(change, np.maximum(columns["born"][mine], 0), columns["nbytes"][mine])
        np.add.at(change, np.minimum(columns["died"][mine], length) + 1, -columns["nbytes"][mine])
        return change.cumsum()[:length]

    @cached_property
    def _is_saved(self) -> np.ndarray:
        """Mask of tensors that live from the forward into the backward pass, shape (tensors,)."""
        columns, end = self._columns, self._forward_end
        passes_tensor = np.isin(columns["kind"], ("intermediate", "input"))
        return passes_tensor & (columns["born"] <= end) & (columns["died"] > end)

    @property
    def _forward_end(self) -> int:
        """The last forward node of a training step; in inference nothing comes after it."""
        forward = [at for at, node in enumerate(self.workload.nodes) if node.phase == "forward"]
        return forward[-1] if self.workload.request.mode == "training" and forward else KEPT

    @cached_property
    def _memory(self) -> list[tuple[tuple[SavedActivation, ...], float]]:
        """Activations that each block keeps for the backward pass, and the most bytes that its nodes need in addition
        to those and to the stream which enters the last block, whose gradient is passed along.

        A gradient that waits for a block beyond the next, such as a head's for that of the tied embedding, is kept too.
        """
        columns, stream, (first, last) = self._columns, self.sent_bytes[-1], self._touching_blocks
        # What no node touches is of a loss that is computed where its gradient is.
        passing = ~self._is_saved & (columns["born"] < self._passes) & (first >= 0)
        waits = passing & (columns["born"] > self._forward_end) & (first - last > 1)
        dropped, memory = self._alive(passing & ~waits), []
        for at in range(self.depth + 2):
            first_here, nodes = first == at, self.block == at
            is_kept = first_here & (self._is_saved | waits)
            saved = tuple(self._activation(is_kept & (self._within_core == core), core=core) for core in (False, True))
            total = sum(activation.bytes for activation in saved)
            most = float((dropped + self._alive(is_kept))[nodes].max(initial=total))
            memory.append((saved, max(0.0, most - total - stream)))
        return memory

    def _activation(self, mine: np.ndarray, *, core: bool) -> SavedActivation:
        sizes = self._columns["nbytes"]
        return SavedActivation(
            name="core of attention" if core else "of the trace",
            bytes=float(sizes[mine].sum()),
            modules=CORE_MODULE if core else (),
            selected_bytes=float(sizes[mine & self._is_selected].sum()),
        )

    @cached_property
    def _is_selected(self) -> np.ndarray:
        """Mask of tensors that selection by operators keeps: of the first, third, fifth … product, or attention's
        output.
        """
        selected = ~self._within_core
        made = {w.tensor for place in self._core for w in self.workload.nodes[place].writes}
        made |= {w.tensor for at, n in self._product_numbers.items() if n % 2 for w in self.workload.nodes[at].writes}
        return selected & np.isin(np.arange(len(selected)), list(made))

    @cached_property
    def _within_core(self) -> np.ndarray:
        """Mask of tensors that are made in the core of attention and read by no forward node outside of it."""
        within = np.zeros(len(self.workload.tensors), dtype=bool)
        for place, node in enumerate(self.workload.nodes):
            if node.phase == "forward" and place in self._core:
                within[[w.tensor for w in node.writes]] = True
        for place, node in enumerate(self.workload.nodes):
            if node.phase == "forward" and place not in self._core and node.kernels:
                within[[r.tensor for r in node.reads]] = False
        return within

    def _runs(self) -> list[Counter[_Run]]:
        """Kernels of both passes in each block, with counts."""
        runs: list[Counter[_Run]] = [Counter() for _ in range(self.depth + 2)]
        products = self._product_numbers
        for place, (node, at) in enumerate(zip(self.workload.nodes, self.block.tolist(), strict=True)):
            if at < 0:
                continue
            core, product = place in self._core, products.get(place, 0)
            for kernel, zeros in node.sparse_kernels:
                # Exchanges between ranks around an operator are counted separately.
                external = kernel.family == "collective"
                operator = kernel.op if external else node.operator
                runs[at][_Run(kernel, operator, node.phase, zeros, core, 0 if external else product)] += node.iterations
        return runs

    @cached_property
    def _product_numbers(self) -> dict[int, int]:
        """Number, from 1 on, of each forward product with weights in its layer, by its place."""
        numbers: dict[int, int] = {}
        count: Counter[int] = Counter()
        for place, (node, at) in enumerate(zip(self.workload.nodes, self.block.tolist(), strict=True)):
            if node.phase == "forward" and 0 < at <= self.depth and any(map(is_product, node.kernels)):
                count[at] += 1
                numbers[place] = count[at]
        return numbers

    @cached_property
    def _core(self) -> frozenset[int]:
        """Places of the forward nodes from queries, keys and values to outputs."""
        return attention_core(self.workload)

    def _dispatches(self) -> list[tuple[tuple[Phase, float], ...]]:
        """Number of the host's dispatches for each block in each pass; only the launch where they are a graph."""
        counts: list[dict[Phase, float]] = [{} for _ in range(self.depth + 2)]
        for node, at in zip(self.workload.nodes, self.block.tolist(), strict=True):
            if at >= 0:
                phase = _PHASES[node.phase]
                count = node.iterations * node_dispatches(node, self.workload.request.engine.launch)
                counts[at][phase] = counts[at].get(phase, 0.0) + count
        return [tuple(sorted(phases.items())) for phases in counts]

    def _part(self, run: _Run, count: int) -> Part:
        batch = KernelBatch.of([run.kernel])
        return Part(
            name=run.operator,
            phase=_PHASES[run.phase],
            batch=with_zeros(batch, [run.zeros]) if self._has_zeros and batch.family in MAPPED else batch,
            runs=count,
            group=_group(run.kernel),
            modules=CORE_MODULE if run.core else (),
        )

    @cached_property
    def _has_zeros(self) -> bool:
        return any(node.zeros for node in self.workload.nodes)

    @cached_property
    def _weights(self) -> list[set[int]]:
        """Weights that the forward pass of each block reads."""
        weights: list[set[int]] = [set() for _ in range(self.depth + 2)]
        for node, at in zip(self.workload.nodes, self.block.tolist(), strict=True):
            if node.phase == "forward":
                read = {reference.tensor for reference in node.reads}
                weights[at] |= {number for number in read if self.workload.tensors[number].kind == "weight"}
        return weights

    @cached_property
    def parameters(self) -> list[int]:
        """Number of parameters of each block; weights that several blocks read count for the first."""
        counted: set[int] = set()
        parameters = []
        for weights in self._weights:
            first_read = weights - counted
            counted |= first_read
            parameters.append(round(sum(self._elements(number) for number in first_read)))
        return parameters

    def _elements(self, number: int) -> float:
        """Values of a weight that replicas have copies of; tables of whole numbers are no parameters."""
        tensor = self.workload.tensors[number]
        whole_numbers = tensor.dtype.startswith(("int", "uint", "bool"))
        return 0.0 if tensor.split or whole_numbers else tensor.nbytes / stored_bytes(tensor.dtype)

    @cached_property
    def _touching_blocks(self) -> tuple[np.ndarray, np.ndarray]:
        """Blocks of the first and of the last node that touch each tensor, -1 for tensors that only the update touches.
        The first makes the tensor, unless it is a weight, a gradient or a state.
        """
        first, last = np.full((2, len(self.workload.tensors)), -1)
        for node, at in zip(self.workload.nodes, self.block.tolist(), strict=True):
            for reference in (*node.reads, *node.writes) if at >= 0 else ():
                last[reference.tensor] = at
                if first[reference.tensor] < 0:
                    first[reference.tensor] = at
        return first, last


def _mean(saved: Sequence[SavedActivation]) -> SavedActivation:
    """Mean of the saved activations of equal layers."""
    sizes = {name: sum(getattr(a, name) for a in saved) / len(saved) for name in ("bytes", "selected_bytes")}
    return replace(saved[0], **sizes)
