"""Conversion of recorded operators to a ``Workload``: equal layers become one, recognised by arithmetic progressions.

Storages are numbered in the order of their first use, so that in a step of equal layers every number (of a storage, of
the node where it is born or dies, of the layer in a module path) moves by a constant from layer to layer. Where it
does, copies are stored once; the layers at the ends, where something differs, are stored by themselves.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from neusight.requests import Request
from neusight.workloads.trace.memory import Allocation
from neusight.workloads.trace.recorder import RawNode
from neusight.workloads.trace.structure import find_repeats
from neusight.workloads.workload import KEPT, ModulePath, Node, Reference, Repeat, Tensor, Workload

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
_LEAST_COPIES = 3
"""Two layers alone are no progression: any two numbers are."""


@dataclass
class _Block:
    """A stretch of equal layers: ``count`` copies of ``length`` nodes from ``start``; ``slots`` has the numbers of the
    storages that each copy reads and writes, shape (count, slots).
    """

    start: int
    length: int
    count: int
    slots: np.ndarray


@dataclass
class _Numbers:
    """Storages by the order of their first use, each with the node of it, and the place that it has in a workload."""

    allocations: list[Allocation]
    first_use: np.ndarray
    by_id: dict[int, int]
    tensor: np.ndarray
    copy: np.ndarray
    tensors: list[Tensor] = field(default_factory=list)


def fold_layers(
    nodes: Sequence[RawNode],
    allocations: Sequence[Allocation],
    request: Request,
    parameters: int,
    uncovered: tuple[str, ...] = (),
) -> Workload:
    """The workload of a recorded step.

    Args:
        nodes: operators in order.
        allocations: every storage that was alive.
        request: what was recorded.
        parameters: of the model.
        uncovered: operators without a rule.
    """
    numbers = _number_storages(nodes, allocations)
    blocks = [b for r in find_repeats(nodes) if (b := _trim(nodes, _slots(nodes, r, numbers), numbers)) is not None]
    for block in blocks:
        _add_series(block, numbers)
    _add_others(numbers)
    _sort(numbers, len(nodes))
    return Workload(
        request=request,
        nodes=tuple(_nodes(nodes, blocks, numbers)),
        tensors=tuple(numbers.tensors),
        parameters=parameters,
        uncovered=uncovered,
    )


def _number_storages(nodes: Sequence[RawNode], allocations: Sequence[Allocation]) -> _Numbers:
    by_id: dict[int, int] = {}
    ordered: list[Allocation] = []
    first_use: list[int] = []
    for place, node in enumerate(nodes):
        for storage in (*node.reads, *node.writes):
            if id(storage) not in by_id:
                by_id[id(storage)] = len(ordered)
                ordered.append(storage)
                first_use.append(place)
    unused = [storage for storage in allocations if id(storage) not in by_id]
    by_id |= {id(storage): len(ordered) + i for i, storage in enumerate(unused)}
    count = len(ordered) + len(unused)
    uses = np.array([*first_use, *(len(nodes) for _ in unused)], dtype=np.int64)
    return _Numbers([*ordered, *unused], uses, by_id, np.full(count, -1), np.zeros(count, dtype=np.int64))


def _slots(nodes: Sequence[RawNode], repeat: Repeat, numbers: _Numbers) -> _Block:
    """A repeat with its storages; it ends before the first copy that reads another number of them."""
    rows: list[list[int]] = []
    for copy in range(repeat.count):
        first = repeat.start + copy * repeat.length
        of = nodes[first : first + repeat.length]
        rows.append([numbers.by_id[id(storage)] for node in of for storage in (*node.reads, *node.writes)])
        if len(rows[-1]) != len(rows[0]):
            rows.pop()
            break
    return _Block(repeat.start, repeat.length, len(rows), np.array(rows, dtype=np.int64))


def _trim(nodes: Sequence[RawNode], block: _Block, numbers: _Numbers) -> _Block | None:
    """The longest part of a block in which everything moves by a constant; None where it is too short."""
    same, moving = _describe(nodes, block, numbers)
    steps = np.diff(moving, axis=0)
    best, first = (0, 0), 0
    for copy in range(1, block.count + 1):
        if copy < block.count and (same[copy] == same[first]).all() and (steps[copy - 1] == steps[first]).all():
            continue
        best = max(best, (copy - first, -first))
        first = copy - 1 if copy < block.count and (same[copy] == same[copy - 1]).all() else copy
    count, start = best[0], -best[1]
    if count < _LEAST_COPIES:
        return None
    slots = block.slots[start : start + count]
    return _Block(block.start + start * block.length, block.length, count, slots)


def _describe(nodes: Sequence[RawNode], block: _Block, numbers: _Numbers) -> tuple[np.ndarray, np.ndarray]:
    """Values that must be the same in all copies, and values that must move by a constant, each of shape (count, …)."""
    codes: dict[object, int] = {}

    def code(key: object) -> int:
        return codes.setdefault(key, len(codes))

    same, moving = [], []
    for copy in range(block.count):
        first = block.start + copy * block.length
        constant: list[int] = []
        numeric: list[int] = []
        for node in nodes[first : first + block.length]:
            pattern, counted = _pattern(node.layer)
            constant.append(code((node.code, node.kernels, pattern)))
            numeric += counted
        for number in block.slots[copy].tolist():
            is_new = numbers.first_use[number] >= block.start
            store = numbers.allocations[number]
            if not is_new:
                # What other stretches made is told later, by exceptions where it must.
                constant.append(code(False))
                continue
            pattern, counted = _pattern(store.layer)
            constant.append(code((store.shape, store.dtype, store.kind, store.nbytes, store.touched_bytes, pattern)))
            died = KEPT if store.died is None else store.died
            moving_born = store.born if store.born >= 0 else -1
            numeric += [number, int(numbers.first_use[number]), moving_born, died, *counted]
            constant.append(code((store.born < 0, store.died is None)))
        same.append(constant)
        moving.append(numeric)
    width = min(map(len, moving))
    if any(len(row) != width for row in moving) or len({len(row) for row in same}) != 1:
        return _until_uneven(same, moving)
    return np.array(same), np.array(moving, dtype=np.int64).reshape(block.count, -1)


def _until_uneven(same: list[list[int]], moving: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Rows of different lengths padded so that they differ."""
    widest, longest = max(map(len, same)), max(map(len, moving))
    constant = np.full((len(same), widest), -1)
    numeric = np.zeros((len(moving), longest), dtype=np.int64)
    for row, (a, b) in enumerate(zip(same, moving, strict=True)):
        constant[row, : len(a)], numeric[row, : len(b)] = a, b
        if len(a) < widest or len(b) < longest:
            constant[row, 0] = -2 - row
    return constant, numeric


@lru_cache(maxsize=4096)
def _pattern(layer: str) -> tuple[str, tuple[int, ...]]:
    """A module path with ``{}`` for each number in it, and the numbers."""
    return _NUMBER.sub("{}", layer), tuple(int(number) for number in _NUMBER.findall(layer))


def _layer(first: str, second: str = "") -> ModulePath:
    """The layer of a lone node or tensor, or the layers of a series from those of its first two copies."""
    pattern, numbers = _pattern(first)
    later = _pattern(second)[1] if second else numbers
    steps = tuple(b - a for a, b in zip(numbers, later, strict=True))
    return ModulePath(pattern, numbers, steps if any(steps) else ())


def _add_others(numbers: _Numbers) -> None:
    """Enter what no layer is the first to use; equal storages that one operator is the first to use are one series,
    such as the moments of all parameters of one shape.
    """
    alike: dict[tuple[int, Tensor], list[int]] = {}
    for number in np.flatnonzero(numbers.tensor < 0).tolist():
        key = int(numbers.first_use[number]), _single(numbers.allocations[number])
        alike.setdefault(key, []).append(number)
    for (_, tensor), members in alike.items():
        numbers.tensor[members], numbers.copy[members] = len(numbers.tensors), np.arange(len(members))
        numbers.tensors.append(replace(tensor, copies=len(members)))


def _sort(numbers: _Numbers, length: int) -> None:
    """Tensors in the order of their first use, those without any before them: what a step's beginning uses then does
    not depend on what comes after it.
    """
    first = np.full(len(numbers.tensors), length)
    np.minimum.at(first, numbers.tensor, np.where(numbers.first_use < length, numbers.first_use, -1))
    order = np.argsort(first, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    numbers.tensor = place[numbers.tensor]
    numbers.tensors = [numbers.tensors[i] for i in order.tolist()]


def _single(one: Allocation, later: Allocation | None = None, copies: int = 1) -> Tensor:
    """A storage, or a series of copies by its first two."""
    later = later or one
    died, died_later = (KEPT if storage.died is None else storage.died for storage in (one, later))
    return Tensor(
        shape=one.shape,
        dtype=one.dtype,
        kind=one.kind,
        nbytes=one.nbytes,
        touched_bytes=one.touched_bytes,
        born=one.born,
        died=died,
        layer=_layer(one.layer, later.layer),
        copies=copies,
        born_step=later.born - one.born,
        died_step=died_later - died,
    )


def _add_series(block: _Block, numbers: _Numbers) -> None:
    """Enter the storages that a block's copies are the first to use, one series for each."""
    stop = block.start + block.length
    for slot, number in enumerate(block.slots[0].tolist()):
        if not block.start <= numbers.first_use[number] < stop or numbers.tensor[number] >= 0:
            continue
        members = block.slots[:, slot]
        numbers.tensor[members], numbers.copy[members] = len(numbers.tensors), np.arange(block.count)
        first, second = (numbers.allocations[i] for i in members[:2].tolist())
        numbers.tensors.append(_single(first, second, block.count))


def _nodes(nodes: Sequence[RawNode], blocks: Sequence[_Block], numbers: _Numbers) -> Iterator[Node]:
    at, place = {b.start: b for b in blocks}, 0
    while place < len(nodes):
        block = at.get(place)
        if block is None:
            yield _node(nodes[place], place, numbers)
            place += 1
            continue
        yield from _series_nodes(nodes, block, numbers)
        place += block.length * block.count


def _node(raw: RawNode, place: int, numbers: _Numbers) -> Node:
    reads, writes = (_references([numbers.by_id[id(o)] for o in of], numbers) for of in (raw.reads, raw.writes))
    return _with_references(raw, place, reads, writes)


def _with_references(raw: RawNode, place: int, reads: Sequence[Reference], writes: Sequence[Reference]) -> Node:
    return Node(
        id=place,
        operator=raw.operator,
        phase=raw.phase,
        kernels=raw.kernels,
        reads=tuple(reads),
        writes=tuple(writes),
        layer=_layer(raw.layer),
    )


def _references(given: Sequence[int], numbers: _Numbers) -> tuple[Reference, ...]:
    """Storages of a lone node; a series of which all copies are there is one reference."""
    counts = Counter(numbers.tensor[list(given)].tolist())
    references: dict[Reference, None] = {}
    for number in given:
        tensor = int(numbers.tensor[number])
        whole = counts[tensor] == numbers.tensors[tensor].copies > 1
        references[Reference(tensor, -1 if whole else int(numbers.copy[number]))] = None
    return tuple(references)


def _series_nodes(nodes: Sequence[RawNode], block: _Block, numbers: _Numbers) -> Iterator[Node]:
    slot = 0
    for offset in range(block.length):
        raw, later = nodes[block.start + offset], nodes[block.start + block.length + offset]
        reads, writes = len(raw.reads), len(raw.writes)
        references = [_moving(block.slots[:, slot + i], numbers) for i in range(reads + writes)]
        slot += reads + writes
        node = _with_references(raw, block.start + offset, references[:reads], references[reads:])
        yield replace(node, layer=_layer(raw.layer, later.layer), copies=block.count, stride=block.length)


def _moving(members: np.ndarray, numbers: _Numbers) -> Reference:
    """The storages that the copies of a node have in one place: a progression within a series, but for exceptions."""
    tensors, copies = numbers.tensor[members], numbers.copy[members]
    choices = {(int(tensors[i]), int(copies[i]), int(copies[i + 1] - copies[i]), i)
               for i in range(len(members) - 1) if tensors[i] == tensors[i + 1]}  # fmt: skip
    series = [_progression(tensor, copy - i * step, step, tensors, copies) for tensor, copy, step, i in choices]
    lone = _progression(int(tensors[0]), int(copies[0]), 0, tensors, copies)
    return min([*series, lone], key=lambda r: (len(r.edges), r.tensor, r.first, r.step))


def _progression(tensor: int, first: int, step: int, tensors: np.ndarray, copies: np.ndarray) -> Reference:
    """A progression with what does not follow it as exceptions."""
    odd = np.flatnonzero((tensors != tensor) | (copies != first + step * np.arange(len(copies))))
    return Reference(tensor, first, step, tuple((int(i), int(tensors[i]), int(copies[i])) for i in odd))
