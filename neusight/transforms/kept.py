"""Tensors that a step keeps for its backward pass, in another form or at another place: encoded (Jain et
al. 2018, "Gist"), or on the host (Rhu et al. 2016, "vDNN"; PyTorch, ``torch.autograd.graph.save_on_cpu``).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from neusight.errors import InapplicableError
from neusight.kernels.families import Collective, Kernel, Memory
from neusight.kernels.precision import stored_bytes
from neusight.transforms.unrolled import rebuild, unroll
from neusight.workloads.workload import KEPT, Node, Reference, Tensor, Workload

ZEROS = 0.5
"""Share of zeros in a ReLU's result: that of values spread evenly around zero (assumption; Jain et al. 2018, section
3.2, measure more)."""
_LEAST_BYTES = 2**20
"""Size of a tensor from which on a copy pays [B]: that of an activation, not of statistics of rows."""
_OF_SIGNS = ("threshold_backward", "max_pool2d_with_indices_backward")
"""Operators that need of a ReLU's result only where it is above zero; a pool saves its places separately."""


@dataclass(frozen=True, kw_only=True)
class Code:
    """A stand-in for a tensor until its backward pass: ``nbytes`` on the device, made by ``encode``; ``decode``
    restores the tensor, and None: kernels read the code itself.
    """

    nbytes: int
    encode: Kernel
    decode: Kernel | None = None


Choice = Callable[[Tensor, Node, Sequence[Node]], Code | None]
"""Code of a kept tensor, given the tensor, the node that wrote it last and the backward nodes that read it."""


def gist(workload: Workload, value_bytes: float) -> Workload:
    """The step with results of ReLUs that only ReLUs and pools take back as one bit a value, those that products take
    back without their zeros, each value with a place of 8 bits, places of pools in 4 bits, and all else in
    ``value_bytes`` (Jain et al. 2018, sections 3.1 to 3.3: Binarize, SSDC, DPR).

    Raises:
        InapplicableError: nothing is kept that this makes smaller.
    """

    def code(tensor: Tensor, writer: Node, readers: Sequence[Node]) -> Code | None:
        elements = tensor.nbytes / stored_bytes(tensor.dtype)
        narrow = min(value_bytes, stored_bytes(tensor.dtype))
        signs = _is_relu(writer) and all(any(name in node.operator for name in _OF_SIGNS) for node in readers)
        if signs:
            size = elements / 8
        elif _is_relu(writer):
            size = (1.0 - ZEROS) * elements * (narrow + 1.0)
        elif "float" in tensor.dtype:
            size = narrow * elements
        else:
            size = elements / 2 if "max_pool" in writer.operator else tensor.nbytes
        if size >= tensor.nbytes:
            return None
        encode, decode = _copy(tensor, tensor.nbytes, ceil(size)), _copy(tensor, ceil(size), tensor.nbytes)
        return Code(nbytes=ceil(size), encode=encode, decode=None if signs else decode)

    return with_codes(workload, code)


def on_host(workload: Workload) -> Workload:
    """The step with its kept tensors on the host: each crosses the link behind the last forward kernel that uses it,
    and again before the first backward kernel that reads it, and no kernel runs concurrently with its copies.

    Raises:
        InapplicableError: nothing is kept that is large enough.
    """

    def code(tensor: Tensor, _: Node, __: Sequence[Node]) -> Code:
        copy = Collective(op="host_copy", ranks=2, bytes=tensor.nbytes, dtype=tensor.dtype)
        return Code(nbytes=0, encode=copy, decode=copy)

    return with_codes(workload, code)


def with_codes(workload: Workload, choice: Choice) -> Workload:
    """The step with codes in place of the tensors it keeps.

    Raises:
        InapplicableError: inference, or no tensor has a code.
    """
    if workload.request.mode != "training":
        raise InapplicableError("inference keeps nothing for a backward pass")
    encoding = _Encoding(unroll(workload), choice)
    if not encoding.codes:
        raise InapplicableError("the step keeps nothing of the kind for its backward pass")
    return encoding.rebuild()


class _Encoding:
    """Codes of tensors of an unrolled step, and their places in it."""

    def __init__(self, step: Workload, choice: Choice) -> None:
        self.step, self.tensors = step, list(step.tensors)
        self.last: dict[int, Node] = {}
        writers: dict[int, Node] = {}
        readers: dict[int, list[Node]] = {}
        for node in step.nodes:
            if node.phase == "forward":
                self.last |= {r.tensor: node for r in (*node.reads, *node.writes)}
                writers |= {w.tensor: node for w in node.writes if node.kernels}
            for r in node.reads if node.phase == "backward" and node.kernels else ():
                readers.setdefault(r.tensor, []).append(node)
        made = {at: choice(step.tensors[at], writers[at], readers[at]) for at in readers if self._is_kept(at, writers)}
        self.codes = {at: code for at, code in made.items() if code is not None}

    def _is_kept(self, at: int, writers: dict[int, Node]) -> bool:
        tensor = self.tensors[at]
        temporary = tensor.kind == "intermediate" and at in writers and tensor.born >= 0 and tensor.died < KEPT
        return temporary and tensor.nbytes >= _LEAST_BYTES

    def rebuild(self) -> Workload:
        """The step with the codes' kernels."""
        nodes = list(self._nodes())
        return rebuild(replace(self.step, tensors=tuple(self.tensors)), nodes)

    def _nodes(self) -> Iterator[Node]:
        encoded: dict[int, int] = {}
        back: dict[int, int] = {}
        done = {at: self.last[at].id for at in self.codes}
        for node in self.step.nodes:
            if node.phase == "backward":
                for at in [r.tensor for r in node.reads if r.tensor in self.codes and r.tensor not in back]:
                    back[at] = yield from self._decode(at, encoded[at], node)
                node = self._reading(node, back)
            yield node
            touched = (r.tensor for r in (*node.reads, *node.writes) if done.get(r.tensor) == node.id)
            for at in [at for at in dict.fromkeys(touched) if at not in encoded]:
                encoded[at] = self._new(at, self.codes[at].nbytes)
                yield _node("encode", node, self.codes[at].encode, at, encoded[at])

    def _decode(self, at: int, code: int, node: Node) -> Generator[Node, None, int]:
        """Yield the node that restores a tensor, if any, and return the tensor that replaces it."""
        decode = self.codes[at].decode
        if decode is None:
            return code
        again = self._new(at, self.tensors[at].nbytes)
        yield _node("decode", node, decode, code, again)
        return again

    def _reading(self, node: Node, back: dict[int, int]) -> Node:
        """A node that reads replacements of tensors, fewer bytes where those are their codes."""
        less = sum(self.tensors[at].nbytes - self.codes[at].nbytes
                   for at in {r.tensor for r in node.reads} & back.keys() if self.codes[at].decode is None)  # fmt: skip
        kernels = tuple(_reading_less(kernel, less) for kernel in node.kernels) if less else node.kernels
        return replace(node, kernels=kernels, reads=tuple(Reference(back.get(r.tensor, r.tensor)) for r in node.reads))

    def _new(self, like: int, size: int) -> int:
        self.tensors.append(replace(self.tensors[like], nbytes=size, touched_bytes=size, born=0, died=0))
        return len(self.tensors) - 1


def _node(name: str, beside: Node, kernel: Kernel, read: int, written: int) -> Node:
    return Node(
        id=beside.id, operator=f"kept.{name}", phase=beside.phase, kernels=(kernel,), reads=(Reference(read),),
        writes=(Reference(written),), layer=beside.layer,
    )  # fmt: skip


def _reading_less(kernel: Any, less: int) -> Kernel:
    fewer: Kernel = replace(kernel, read_bytes=max(1, kernel.read_bytes - less))
    return fewer


def _is_relu(node: Node) -> bool:
    return "relu" in node.operator


def _copy(tensor: Tensor, read: int, written: int) -> Memory:
    elements = round(tensor.nbytes / stored_bytes(tensor.dtype))
    return Memory(op="copy", elements=elements, read_bytes=read, write_bytes=written, dtype=tensor.dtype)
