"""Repeated layers, found by structure: the same operators on the same shapes, wired in the same way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from neusight.workloads.trace.recorder import RawNode
from neusight.workloads.workload import Repeat

_MIN_KERNELS = 4
"""A stretch with fewer kernels is no layer: chains of equal pointwise operators would otherwise be found."""
_CANDIDATES = 64
"""Number of the most frequent distances between equal nodes that are tried as the length of a layer."""


def find_repeats(nodes: Sequence[RawNode]) -> tuple[Repeat, ...]:
    """Stretches of nodes that follow one another several times, within a phase; the widest coverage wins.

    Two stretches are equal when their nodes have the same operators, shapes, dtypes and strides, one by one, and read
    from the same places inside the stretch; what comes from outside of it may come from anywhere.
    """
    codes = _codes(nodes)
    return tuple(
        sorted(
            (repeat for start, stop in _phases(nodes) for repeat in _search(nodes, codes, start, stop)),
            key=lambda repeat: repeat.start,
        )
    )


def _codes(nodes: Sequence[RawNode]) -> np.ndarray:
    """One integer a node: equal for equal operators on equal tensors."""
    return np.array([node.code for node in nodes], dtype=np.int64)


def _phases(nodes: Sequence[RawNode]) -> Iterator[tuple[int, int]]:
    """First and last-but-one index of every phase."""
    bounds = [i for i in range(1, len(nodes)) if nodes[i].phase != nodes[i - 1].phase]
    yield from zip([0, *bounds], [*bounds, len(nodes)], strict=True)


def _search(nodes: Sequence[RawNode], codes: np.ndarray, start: int, stop: int) -> Iterator[Repeat]:
    """The best repeat between two nodes, then those before and after it."""
    best = _best(nodes, codes, start, stop)
    if best is None:
        return
    yield best
    yield from _search(nodes, codes, start, best.start)
    yield from _search(nodes, codes, best.start + best.length * best.count, stop)


def _best(nodes: Sequence[RawNode], codes: np.ndarray, start: int, stop: int) -> Repeat | None:
    part = codes[start:stop]
    best: Repeat | None = None
    for length in _lengths(part):
        for first, run in _runs(part, length):
            count = run // length + 1
            covered = best.length * best.count if best else 0
            if count < 2 or count * length <= covered:
                continue
            repeat = _align(nodes, start + first, length, run)
            if repeat and repeat.length * repeat.count > covered:
                best = repeat
    return best


def _lengths(codes: np.ndarray) -> list[int]:
    """Candidate layer lengths, shortest first: the commonest distances from a node to the next one equal to it."""
    order = np.argsort(codes, kind="stable")
    same = codes[order[1:]] == codes[order[:-1]]
    distances = Counter((order[1:] - order[:-1])[same].tolist())
    return sorted(d for d, _ in distances.most_common(_CANDIDATES) if d >= _MIN_KERNELS)


def _runs(codes: np.ndarray, length: int) -> Iterator[tuple[int, int]]:
    """Runs of at least ``length`` nodes that equal the node ``length`` later: start and extent."""
    equal = np.concatenate(([0], (codes[:-length] == codes[length:]).astype(np.int8), [0]))
    edges = np.flatnonzero(np.diff(equal))
    for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if last - first >= length:
            yield first, last - first


def _align(nodes: Sequence[RawNode], first: int, length: int, run: int) -> Repeat | None:
    """The repeat in a run of equal nodes at the earliest start from which most stretches are also wired equally."""
    if sum(len(n.kernels) for n in nodes[first : first + length]) < _MIN_KERNELS:
        return None
    full = run // length + 1
    count, start = 1, first
    for candidate in range(first, first + run % length + 1):
        wired = _equally_wired(nodes, candidate, length, full)
        if wired > count:
            count, start = wired, candidate
        if count == full:
            break
    return Repeat(start=start, length=length, count=count) if count > 1 else None


def _equally_wired(nodes: Sequence[RawNode], start: int, length: int, count: int) -> int:
    """Number of stretches from ``start`` on that are wired as the first."""
    first = _wiring(nodes, start, length)
    for number in range(1, count):
        if _wiring(nodes, start + number * length, length) != first:
            return number
    return count


def _wiring(nodes: Sequence[RawNode], start: int, length: int) -> list[tuple[int, ...]]:
    """Nodes of the same stretch that each node of a stretch reads, by place."""
    return [tuple(i - start for i in node.inputs if i >= start) for node in nodes[start : start + length]]
