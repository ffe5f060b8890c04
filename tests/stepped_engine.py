"""An engine that goes token by token and keeps lists of everything: slow, and plain enough to be believed."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

import numpy as np

from neusight.serving import EngineLimits, Load, PassTimes
from neusight.serving.batching import Chunks


class LinearTimes:
    """A pass that takes linearly longer with its tokens, its context and its pairs of new and earlier tokens."""

    def __init__(
        self, floor_s: float = 6e-3, token_s: float = 3e-5, cached_s: float = 4e-7, pair_s: float = 1e-9
    ) -> None:
        self.floor_s, self.token_s, self.cached_s, self.pair_s = floor_s, token_s, cached_s, pair_s

    def pass_s(self, new_tokens: int, chunks: Chunks, decodes: int, decode_cached_sum: float) -> float:
        pairs = sum(new * (cached + new / 2) for new, cached in chunks)
        return self.floor_s + self.token_s * new_tokens + self.cached_s * decode_cached_sum + self.pair_s * pairs


@dataclass
class Sequence:
    """One request. ``computed`` of its ``known`` tokens are in the cache; one that ``generates`` lacks but the last."""

    number: int
    arrival_s: float
    prompt: int
    output: int
    prefix: int
    computed: int = 0
    made: int = 0
    losses: int = 0
    generates: bool = False
    times_s: list[float] = field(default_factory=list)

    @property
    def known(self) -> int:
        return self.prompt + self.made

    def blocks(self, tokens: int, block: int) -> int:
        return max(0, ceil((tokens - self.prefix) / block))


class SteppedEngine:
    def __init__(self, load: Load, limits: EngineLimits, times: PassTimes) -> None:
        drawn = load.requests()
        cached = limits.cached_tokens(drawn.prompt_tokens)
        columns = (drawn.arrival_s, drawn.prompt_tokens, drawn.output_tokens, cached)
        rows = zip(*(c.tolist() for c in columns), strict=True)
        self.all = [Sequence(i, *row) for i, row in enumerate(rows)]
        self.limits, self.times, self.block = limits, times, limits.block_tokens
        known = drawn.concurrency or len(self.all)
        self.waiting, self.later = self.all[:known], self.all[known:]
        self.running: list[Sequence] = []
        self.reserved_for: dict[int, int] = {}
        self.time_s = self.all[0].arrival_s
        self.passes: list[tuple[float, list[tuple[int, int]], int, int]] = []
        self.kv_blocks: list[int] = []
        self.rounds = 0
        self.begun_s = self.looked_s = -np.inf
        self.unlooked = 0

    def gained(self) -> int:
        """Tokens that the next pass gives each sequence that generates: their mean, carried over."""
        gain = self.limits.gain
        return int((self.rounds + 1) * gain) - int(self.rounds * gain)

    def serve(self) -> list[Sequence]:
        while self.running or self.waiting:
            self.step()
        return self.all

    def held(self, s: Sequence) -> int:
        """Blocks of a running sequence: of its whole prompt from the start, then of what it has."""
        return max(s.blocks(s.computed, self.block), self.reserved_for[s.number])

    def capacity(self) -> float:
        tokens = self.limits.kv_tokens
        return np.inf if tokens is None else tokens // self.block - self.limits.prefix_tokens // self.block

    def step(self) -> None:
        if self.unlooked >= self.limits.recv_interval:
            self.looked_s, self.unlooked = self.begun_s if self.limits.overlapped else self.time_s, 0
        apart = self.limits.scheduler.prompts_apart
        evicted = False if apart else self.make_room()
        beside = [] if apart else [s for s in self.running if s.generates]
        chunks = [] if evicted else self.compose(beside)
        if apart and not chunks:
            self.make_room()
            beside = [s for s in self.running if s.generates]
        if not chunks and not beside:
            self.time_s = self.looked_s = max(self.time_s, self.waiting[0].arrival_s)
            self.unlooked = 0
            return
        self.run(chunks, beside)

    def run(self, chunks: list[tuple[Sequence, int]], decodes: list[Sequence]) -> None:
        shapes = [(new, s.computed) for s, new in chunks]
        context = sum(s.computed for s in decodes)
        new = sum(n for n, _ in shapes) + len(decodes) * self.limits.queries
        gained = self.gained()
        self.rounds += bool(decodes)
        self.unlooked += self.limits.recv_interval if chunks else 1
        self.begun_s = self.time_s
        self.time_s += self.times.pass_s(new, shapes, len(decodes), context)
        self.passes.append((self.time_s, shapes, len(decodes), context))
        for s in decodes:
            s.computed += gained
            s.made += min(gained, s.output - s.made)
            s.times_s.append(self.time_s)
        for s, n in chunks:
            s.computed += n
            if s.computed == s.known:
                s.made, s.generates = s.made + 1, True
                s.times_s.append(self.time_s)
        self.kv_blocks.append(sum(self.held(s) for s in self.running))
        done = [s for s in self.running if s.made == s.output]
        self.running = [s for s in self.running if s.made < s.output]
        for _ in done[: len(self.later)]:
            self.later[0].arrival_s = self.time_s
            self.waiting.append(self.later.pop(0))

    def needed(self, s: Sequence) -> int:
        """New blocks for the tokens that a generating sequence stores next."""
        return s.blocks(s.computed + self.gained(), self.block) - s.blocks(s.computed, self.block) if s.generates else 0

    def make_room(self) -> bool:
        evicted = False
        while sum(self.held(s) + self.needed(s) for s in self.running) > self.capacity():
            last = self.running.pop()
            last.computed, last.generates, last.losses = 0, False, last.losses + 1
            self.waiting.insert(0, last)
            evicted = True
        return evicted

    def compose(self, beside: list[Sequence]) -> list[tuple[Sequence, int]]:
        budget = (self.limits.max_num_batched_tokens or 10**12) - len(beside) * self.limits.queries
        chunks = []
        for s in [s for s in self.running if not s.generates]:
            new = min(budget, s.known - s.computed)
            chunks.append((s, new))
            budget -= new
        while budget > 0 and self.waiting and self.fits(self.waiting[0], budget, beside):
            s = self.waiting.pop(0)
            s.computed = s.prefix
            self.reserved_for[s.number] = s.blocks(s.known, self.block)
            self.running.append(s)
            new = min(budget, s.known - s.computed)
            chunks.append((s, new))
            budget -= new
        return chunks

    def fits(self, s: Sequence, budget: int, beside: list[Sequence]) -> bool:
        if s.arrival_s > self.looked_s or len(self.running) >= self.limits.max_num_seqs:
            return False
        if not self.limits.chunked_prefill and s.known - s.prefix > budget:
            return False
        now = sum(self.held(r) for r in self.running) + sum(self.needed(r) for r in beside)
        now += s.blocks(s.known, self.block)
        last = self.limits.overshoot - 1
        final = sum(r.blocks(r.prompt + r.output + last, self.block) for r in [*self.running, s])
        share = self.limits.scheduler.reserved_output
        return now + share * (final - now) <= self.capacity()
