"""One rank's share of a traced step under tensor parallelism: smaller kernels, and the collectives between them.

Activations between two shared products are parts, of features or of heads; norms and the residual stream are whole on
every rank. A product by rows leaves partial sums, and so does the gradient of the operand of products by columns: those
are all-reduced before anything but another sum reads them (Shoeybi et al. 2019, figures 3 and 4). Logits of a
shared vocabulary are gathered in inference, where they are the result; a loss is computed on parts.

Under sequence parallelism norms and the residual stream are shared by tokens: sums are scattered instead, and gathered
before products (Korthikanti et al. 2022, section 4.2.2). Gathered tensors are kept, as in DTensor. Sums over ranks of
the gradients of norms' weights are left out, which are small.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from math import ceil, prod
from typing import Any

from neusight.kernels.families import Collective, Kernel
from neusight.kernels.precision import stored_bytes
from neusight.plans.products import (
    VOCABULARY,
    WHOLE,
    Shared,
    is_embedding,
    operands,
    shared_products,
    tensors_of,
    weight_of,
)
from neusight.transforms.partition import SUMS
from neusight.workloads.workload import Node, Reference, Tensor, Workload

_SIZES = ("elements", "read_bytes", "write_bytes", "flops")
_SHOWN = 4
"""Layers that a warning names."""


def tensor_parallel(
    workload: Workload, tp: int, stated: Mapping[str, str] | None = None, *, by_tokens: bool = False
) -> Workload:
    """The workload of each of ``tp`` ranks; with one rank the same workload.

    The vocabulary is padded to a multiple of the ranks, every other size must divide.

    Args:
        workload: the whole step.
        tp: ranks.
        stated: styles of products, see ``shared_products``.
        by_tokens: True if ranks share the residual stream.

    Raises:
        ModelError: as ``shared_products``.
    """
    if tp == 1:
        return workload
    shared = shared_products(workload, tp, stated)
    return _Sharding(workload, tp, shared, by_tokens=by_tokens).shard()


def local_parameters(workload: Workload, tp: int, shared: Shared) -> int:
    """Number of a model's parameters on one rank."""
    held_bytes = 0.0
    for number, tensor in enumerate(workload.tensors):
        if tensor.kind == "weight":
            nbytes = ceil(tensor.nbytes / tp) if shared.weights.get(number, WHOLE) != WHOLE else tensor.nbytes
            held_bytes += nbytes * tensor.copies
    total = sum(tensor.nbytes * tensor.copies for tensor in workload.tensors if tensor.kind == "weight")
    return round(workload.parameters * held_bytes / total) if total else workload.parameters


class _Sharding:
    """One pass over a step, which tracks the tensors that are parts and partial sums so far."""

    def __init__(self, workload: Workload, tp: int, shared: Shared, *, by_tokens: bool) -> None:
        self.workload, self.tp, self.shared, self.by_tokens = workload, tp, shared, by_tokens
        self.stream: set[int] = set()
        """Tensors of which a rank has only its share of the tokens."""
        self.gathered: set[int] = set()
        """Of these, those that every rank has for all tokens by now."""
        self.parts = set(shared.parts) | _logits(workload, shared)
        self.parts |= {number for number, style in shared.weights.items() if style != WHOLE}
        self.partial: set[int] = set()
        self.held = local_parameters(workload, tp, shared)
        self.words = _shared_words(workload, shared)
        self.positions = len({n.reads[0].tensor for n in workload.nodes if is_embedding(n)}) > 1
        shard = (w.tensor for node in workload.nodes if node.phase == "optimizer" for w in node.writes)
        self.stepped = {number for number in shard if workload.tensors[number].kind == "intermediate"}

    def shard(self) -> Workload:
        nodes = tuple(self._shard_node(node) for node in self.workload.nodes)
        tensors = tuple(self._tensor(number, tensor) for number, tensor in enumerate(self.workload.tensors))
        return replace(
            self.workload,
            nodes=nodes,
            tensors=tensors,
            parameters=self.held,
            warnings=(*self.workload.warnings, *self._warnings()),
        )

    def _warnings(self) -> tuple[str, ...]:
        names = list(dict.fromkeys(self.shared.left))
        if not names:
            return ()
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        return (f"tp {self.tp} leaves whole on each rank: {', '.join(names[:_SHOWN])}{more}",)

    def _shard_node(self, node: Node) -> Node:
        if not node.kernels:
            return node
        if node.phase == "optimizer":
            share = self.held / self.workload.parameters
            return replace(node, kernels=tuple(scale(kernel, share) for kernel in node.kernels))
        sums = self._sums(node)
        stream = {t for r in node.reads for t in tensors_of(r) if t in self.stream}
        if stream and self._takes_tokens(node, stream):
            return replace(node, kernels=(*sums, *self._of_tokens(node)))
        gathers = self._gathers(stream)
        kernels, after = self._kernels(node)
        return replace(node, kernels=(*sums, *gathers, *kernels, *after))

    def _sums(self, node: Node) -> tuple[Kernel, ...]:
        """All-reduces of partial sums that a node reads; a sum of partial sums is one itself."""
        waiting = {t for r in node.reads for t in tensors_of(r) if t in self.partial}
        if not waiting:
            return ()
        activations = {t for r in node.reads for t in tensors_of(r) if self.workload.tensors[t].kind == "intermediate"}
        if waiting == activations and getattr(node.kernels[0], "op", "") == "add":
            self.partial |= {w.tensor for w in node.writes}
            self.partial -= waiting
            return ()
        self.partial -= waiting
        return tuple(self._sum(t) for t in sorted(waiting))

    def _sum(self, number: int, *, everywhere: bool = False) -> Kernel:
        """The sum over ranks of a partial tensor; under sequence parallelism a rank continues with its tokens, also
        where it has the sum ``everywhere``.
        """
        if not self.by_tokens or self._tokens(number) % self.tp:
            return self._collective("all_reduce", number)
        self.stream.add(number)
        return self._collective("all_reduce" if everywhere else "reduce_scatter", number)

    def _gathers(self, stream: set[int]) -> tuple[Kernel, ...]:
        """All-gathers of tensors of the stream that ranks do not have of all tokens yet."""
        new = sorted(stream - self.gathered)
        self.gathered |= stream
        return tuple(self._collective("all_gather", number) for number in new)

    def _takes_tokens(self, node: Node, read: set[int]) -> bool:
        """True if a node treats each token independently, or adds up over tokens that are not gathered."""
        kernel: Any = node.kernels[0]
        if any(self._is_part(r) for r in node.reads):
            return False
        if kernel.family not in ("elementwise", "memory", "row_reduction"):
            return self._is_whole_product(node)
        if any(k.op.startswith("embedding") for k in node.kernels):
            return False
        tokens = {self._tokens(number) for number in read}
        written = [w.tensor for w in node.writes]
        if any(tokens & {self._tokens(number), round(_elements(self.workload.tensors[number]))} for number in written):
            return True
        return kernel.family == "row_reduction" and not read <= self.gathered

    def _is_whole_product(self, node: Node) -> bool:
        """True if a node is one of the products that ranks do not share, or the gradient of its weight."""
        kernel: Any = node.kernels[0]
        if kernel.family != "gemm" or kernel.op == "bmm":
            return False
        weight = weight_of(self.workload, node)
        if weight is None:
            return all(r is not None and r.tensor in self.stream for r in operands(node))
        return self.shared.weights.get(weight, WHOLE) == WHOLE

    def _of_tokens(self, node: Node) -> tuple[Kernel, ...]:
        """A node's kernels on the rank's tokens."""
        self.stream |= {w.tensor for w in node.writes if self.workload.tensors[w.tensor].kind == "intermediate"}
        return tuple(self._shared_tokens(node, kernel) for kernel in node.kernels)

    def _shared_tokens(self, node: Node, kernel: Any) -> Kernel:
        if kernel.family == "gemm":
            side = "k" if weight_of(self.workload, node) is None else "m"
            return replace(kernel, **{side: ceil(getattr(kernel, side) / self.tp)})
        part = scale(kernel, 1 / self.tp)
        if kernel.family != "row_reduction":
            return part
        last = {self.workload.tensors[w.tensor].shape[-1:] for w in node.writes}
        across = kernel.op in SUMS and bool(last & {self.workload.tensors[r.tensor].shape[-1:] for r in node.reads})
        side = "cols" if (across and last != {(1,)}) or kernel.op.endswith("weight_backward") else "rows"
        return replace(part, **{side: ceil(getattr(kernel, side) / self.tp)})

    def _tokens(self, number: int) -> int:
        """Rows of a tensor, which are tokens of the residual stream."""
        return prod(self.workload.tensors[number].shape[:-1])

    def _collective(self, op: str, number: int) -> Kernel:
        tensor = self.workload.tensors[number]
        return Collective(op=op, ranks=self.tp, bytes=tensor.nbytes, dtype=tensor.dtype)

    def _kernels(self, node: Node) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
        """A rank's kernels of a node, and the collective after them; marks the node's results."""
        weight, first = weight_of(self.workload, node), node.kernels[0]
        if weight is not None:
            return self._product(node, self.shared.weights.get(weight, WHOLE))
        if self.shared.layers.get(node.layer.pattern) == VOCABULARY and first.family == "memory":
            return self._table(node)
        if first.family == "gemm" and first.op != "bmm":
            return self._weight_gradient(node), ()
        if not any(self._is_part(r) for r in node.reads):
            return node.kernels, ()
        self._mark(node)
        return tuple(self._part(node, kernel) for kernel in node.kernels), ()

    def _product(self, node: Node, style: str) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
        """A product with a weight: columns make parts of whole operands and partial sums of parts; rows the reverse,
        seen from the gradient.
        """
        kernel: Any = node.kernels[0]
        first = operands(node)[0]
        assert first is not None
        if style == WHOLE:
            return node.kernels, ()
        if not self._is_part(first):
            self._mark(node)
            asked_for = style == VOCABULARY and self.workload.request.mode == "inference"
            gathered = tuple(self._collective("all_gather", w.tensor) for w in node.writes) if asked_for else ()
            return (replace(kernel, n=ceil(kernel.n / self.tp)), *node.kernels[1:]), gathered
        summed = (replace(kernel, k=ceil(kernel.k / self.tp)), *node.kernels[1:])
        if node.phase == "forward":
            return summed, tuple(self._sum(w.tensor) for w in node.writes)
        self.partial |= {w.tensor for w in node.writes}
        return summed, ()

    def _table(self, node: Node) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
        """A lookup: each rank reads the words that it has, and has its rows of the gradient. Learned positions are
        added to all tokens before ranks take theirs.
        """
        if node.phase == "forward":
            return node.kernels, tuple(self._sum(w.tensor, everywhere=self.positions) for w in node.writes)
        self._mark(node)
        kernels: tuple[Any, ...] = node.kernels
        fills = (scale(k, self._share(k.elements)) if k.op == "fill" else k for k in kernels)
        return tuple(fills), ()

    def _weight_gradient(self, node: Node) -> tuple[Kernel, ...]:
        """The gradient of a weight, divided along the dimension of the operand that is a part."""
        kernel: Any = node.kernels[0]
        first, second = operands(node)
        if first is not None and self._is_part(first):
            kernel = replace(kernel, m=ceil(kernel.m / self.tp))
        elif second is not None and self._is_part(second):
            kernel = replace(kernel, n=ceil(kernel.n / self.tp))
        else:
            return node.kernels
        self._mark(node)
        return (kernel, *node.kernels[1:])

    def _part(self, node: Node, kernel: Any) -> Kernel:
        """A kernel on parts: of heads, of rows, of the vocabulary's columns, or of elements."""
        tp = self.tp
        if kernel.family == "gemm":
            return replace(kernel, batch=kernel.batch // tp)
        if kernel.family == "attention":
            return replace(kernel, heads=kernel.heads // tp, kv_heads=max(1, kernel.kv_heads // tp))
        if kernel.family not in ("elementwise", "row_reduction", "memory"):
            return kernel
        part = scale(kernel, self._share(getattr(kernel, "elements", 0) or kernel.rows * kernel.cols))
        if kernel.family == "row_reduction":
            side = "cols" if "log_softmax" in kernel.op or kernel.op.endswith("weight_backward") else "rows"
            part = replace(part, **{side: ceil(getattr(kernel, side) / tp)})
        return replace(part, read_bytes=self._read(node, kernel.read_bytes))

    def _read(self, node: Node, total: int) -> int:
        """Bytes that are read where some operands are whole, such as a mask."""
        sizes = {r: self.workload.tensors[r.tensor].nbytes for r in node.reads}
        whole = sum(sizes.values()) or 1
        local = sum(size / (self.tp if self._is_part(r) else 1) for r, size in sizes.items())
        return round(total * local / whole)

    def _share(self, elements: float) -> float:
        """A rank's share of ``elements``: of logits, its part of the vocabulary is padded."""
        if self.words and elements % self.words == 0:
            return ceil(self.words / self.tp) / self.words
        return 1 / self.tp

    def _mark(self, node: Node) -> None:
        self.parts |= {w.tensor for w in node.writes}

    def _is_part(self, reference: Reference) -> bool:
        return any(t in self.parts for t in tensors_of(reference))

    def _tensor(self, number: int, tensor: Tensor) -> Tensor:
        share = self._share(_elements(tensor)) if number in self.parts else 1.0
        if number in self.stream - self.gathered:
            share = 1 / self.tp
        if tensor.kind == "state" or number in self.stepped:
            share = self.held / self.workload.parameters
        return replace(tensor, nbytes=ceil(tensor.nbytes * share), touched_bytes=ceil(tensor.touched_bytes * share))


def _heads(workload: Workload, shared: Shared) -> list[Node]:
    """Forward products that make the logits of a shared vocabulary."""
    weights = {number for number, style in shared.weights.items() if style == VOCABULARY}
    return [n for n in workload.nodes if n.phase == "forward" and weight_of(workload, n) in weights]


def _shared_words(workload: Workload, shared: Shared) -> int:
    """Size of a vocabulary that a head shares, 0 where none does."""
    kernels: Iterator[Any] = (node.kernels[0] for node in _heads(workload, shared))
    return next((kernel.n for kernel in kernels), 0)


def _logits(workload: Workload, shared: Shared) -> set[int]:
    """Tensors that the loss, outside of a step's forward kernels, makes of the logits of a shared vocabulary."""
    sizes = {_elements(workload.tensors[w.tensor]) for node in _heads(workload, shared) for w in node.writes}
    shard = {w.tensor for node in workload.nodes for w in node.writes}
    read = {r.tensor for node in workload.nodes if node.phase == "backward" for r in node.reads}
    return {t for t in read - shard if workload.tensors[t].kind != "weight" and _elements(workload.tensors[t]) in sizes}


def _elements(tensor: Tensor) -> float:
    """Values of a tensor: a loss widens logits of 16 bits."""
    return tensor.nbytes / stored_bytes(tensor.dtype)


def scale(kernel: Any, share: float) -> Any:
    """The kernel over a share of its elements."""
    names = {field.name for field in fields(kernel)}
    return replace(kernel, **{name: ceil(getattr(kernel, name) * share) for name in _SIZES if name in names})
