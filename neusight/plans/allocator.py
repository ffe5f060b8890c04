"""PyTorch's caching allocator of device memory, as far as it decides the memory that a process reserves.

Memory comes from the driver in segments and goes back only when it runs out: a freed block stays, is joined with free
neighbours of its segment, and serves the smallest request that it is large enough for. Reserved memory exceeds
allocated memory, the more the more sizes differ (PyTorch, ``c10/cuda/CUDACachingAllocator.cpp``).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

import numpy as np

from neusight.workloads.workload import KEPT, Workload

CONTEXT_BYTES = 500 * 2**20
"""Size of the CUDA context with the modules of PyTorch and its libraries, outside of the allocator (assumption: 300 to
600 MiB from Pascal to Hopper)."""
ALLOCATOR_SHARE = 0.02
"""Share of the peak that a caching allocator loses to rounding and fragments (assumption)."""
ROUND = 512
"""Bytes that sizes are rounded up to (``kMinBlockSize``)."""
SMALL, SMALL_SEGMENT = 2**20, 2**21
"""Requests up to this many bytes share segments of that many (``kSmallSize``, ``kSmallBuffer``)."""
MIDDLE, MIDDLE_SEGMENT = 10 * 2**20, 20 * 2**20
"""Requests up to this many bytes have segments of that many (``kMinLargeAlloc``, ``kLargeBuffer``)."""
LARGE_ROUND = 2**21
"""Bytes that larger segments are rounded up to (``kRoundLarge``)."""
CONTESTED = 0.4
"""Share of a device's memory above which fragments may decide whether a step fits: the largest seen are 1.5 times the
allocated bytes (assumption)."""
STEPS = 2
"""Steps that are replayed: the second one starts with the free blocks of the first."""


@dataclass(eq=False)
class Block:
    """A piece of a segment, with its neighbours there; ``number`` orders blocks of one size."""

    size: int
    small: bool
    number: int
    free: bool = True
    before: Block | None = None
    after: Block | None = None

    @property
    def key(self) -> tuple[int, int]:
        """Sort key of free blocks."""
        return self.size, self.number


@dataclass
class CachingAllocator:
    """Segments of a device that has ``limit_bytes`` for tensors."""

    limit_bytes: float
    reserved_bytes: int = 0
    most_reserved_bytes: int = 0
    _blocks: int = 0
    _free: dict[bool, list[tuple[int, int]]] = field(default_factory=lambda: {True: [], False: []})
    _by_key: dict[tuple[int, int], Block] = field(default_factory=dict)

    def allocate(self, nbytes: int) -> Block | None:
        """The block of a tensor; None where the device has no room even after free segments are given back."""
        size = max(ROUND, -(-nbytes // ROUND) * ROUND)
        small = size <= SMALL
        block = self._find(size, small) or self._segment(size, small)
        if block is None:
            return None
        block.free = False
        if block.size - size >= (ROUND if small else SMALL + 1):
            self._split(block, size)
        return block

    def release(self, block: Block) -> None:
        """Give a tensor's block back: to the allocator, not to the driver."""
        block.free = True
        if (after := block.after) is not None and after.free:
            self._take(after)
            block.size, block.after = block.size + after.size, after.after
            if after.after is not None:
                after.after.before = block
        if (before := block.before) is not None and before.free:
            self._take(before)
            before.size, before.after = before.size + block.size, block.after
            if block.after is not None:
                block.after.before = before
            block = before
        self._keep(block)

    def _find(self, size: int, small: bool) -> Block | None:
        free = self._free[small]
        at = bisect_left(free, (size, -1))
        if at == len(free):
            return None
        block = self._by_key[free[at]]
        self._take(block)
        return block

    def _segment(self, size: int, small: bool) -> Block | None:
        """A block of a new segment from the driver; before that fails, every segment without a tensor is given back."""
        nbytes = SMALL_SEGMENT if small else MIDDLE_SEGMENT if size < MIDDLE else -(-size // LARGE_ROUND) * LARGE_ROUND
        if self.reserved_bytes + nbytes > self.limit_bytes:
            self._give_back()
        if self.reserved_bytes + nbytes > self.limit_bytes:
            return None
        self.reserved_bytes += nbytes
        self.most_reserved_bytes = max(self.most_reserved_bytes, self.reserved_bytes)
        self._blocks += 1
        return Block(size=nbytes, small=small, number=self._blocks)

    def _give_back(self) -> None:
        for block in list(self._by_key.values()):
            if block.before is None and block.after is None:
                self._take(block)
                self.reserved_bytes -= block.size

    def _split(self, block: Block, size: int) -> None:
        self._blocks += 1
        rest = Block(block.size - size, block.small, self._blocks, before=block, after=block.after)
        if block.after is not None:
            block.after.before = rest
        block.size, block.after = size, rest
        self._keep(rest)

    def _keep(self, block: Block) -> None:
        insort(self._free[block.small], block.key)
        self._by_key[block.key] = block

    def _take(self, block: Block) -> None:
        free = self._free[block.small]
        del free[bisect_left(free, block.key)], self._by_key[block.key]


def reserved_bytes(workload: Workload, limit_bytes: float = float("inf")) -> int | None:
    """Most that a process reserves for the tensors of a step that is repeated [B]; None where they do not fit.

    Args:
        workload: the step.
        limit_bytes: bytes that the driver gives out for tensors.
    """
    allocator = CachingAllocator(limit_bytes)
    lives = workload.lives
    lasting = lives["born"] < 0
    if not all(allocator.allocate(size) for size in lives["nbytes"][lasting].tolist() if size):
        return None
    events = _events(lives, np.flatnonzero(~lasting & (lives["nbytes"] > 0)))
    for _ in range(STEPS):
        if not _replay(allocator, lives["nbytes"], events):
            return None
    return allocator.most_reserved_bytes


def reserve_bytes(workload: Workload, capacity_bytes: float) -> int:
    """Memory of a process in addition to its tensors at their peak [B]: its context and its allocator's fragments.

    A step that leaves much of a device free needs no replay: its allocator never runs out of memory.

    Args:
        workload: the step.
        capacity_bytes: bytes that a process may allocate on the device.
    """
    peak = workload.memory.peak
    usual = int(CONTEXT_BYTES + ALLOCATOR_SHARE * peak)
    if not CONTESTED * capacity_bytes < peak + usual <= capacity_bytes:
        return usual
    reserved = reserved_bytes(workload, capacity_bytes - CONTEXT_BYTES) or reserved_bytes(workload)
    return max(usual, int(CONTEXT_BYTES + (reserved or peak) - peak))


def _events(lives: dict[str, np.ndarray], rows: np.ndarray) -> list[tuple[int, int, int]]:
    """(node, 0 for a birth or 1 for a death, row) in order: a node's deaths follow its births. Tensors
    that outlive the step, such as gradients, are freed when the next one begins.
    """
    born, died = lives["born"][rows], lives["died"][rows]
    births = zip(born.tolist(), [0] * len(rows), rows.tolist(), strict=True)
    deaths = zip(np.minimum(died, KEPT).tolist(), [1] * len(rows), rows.tolist(), strict=True)
    return sorted([*births, *deaths])


def _replay(allocator: CachingAllocator, nbytes: np.ndarray, events: list[tuple[int, int, int]]) -> bool:
    """True if every tensor of a step finds room."""
    blocks: dict[int, Block] = {}
    for _, dies, row in events:
        if dies:
            allocator.release(blocks.pop(row))
        elif (block := allocator.allocate(int(nbytes[row]))) is not None:
            blocks[row] = block
        else:
            return False
    return True
