"""Continuous batching as a simulation of events: what an engine runs, pass after pass, under a load.

Between two changes of who runs (a request starts, a prompt or an answer ends, the cache runs out), passes differ only
in how many tokens the cache holds, and are taken in one step: k passes take k times the pass of mean context, which is
exact where a pass takes linearly longer with its context.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import fields, replace
from heapq import heappop, heappush
from math import ceil, inf, nan, sqrt
from sys import maxsize
from typing import Any, Protocol

import numpy as np

from neusight.errors import LoadError
from neusight.serving.limits import EngineLimits
from neusight.serving.load import Closed, Load, Offline, Open, Requests
from neusight.serving.run import EnginePasses, ServingRun

GROWTH = 8
"""Passes that are taken in one step let the mean context grow by at most one in ``GROWTH``, or by ``STRIDE`` tokens:
within that, times that are not linear in it are nearly so."""
STRIDE = 32

Chunks = Sequence[tuple[int, int]]
"""Of each prompt in a pass its new tokens, and those that the cache holds before them."""


class PassTimes(Protocol):
    """What a pass takes, the host included."""

    def pass_s(self, new_tokens: int, chunks: Chunks, decodes: int, decode_cached_sum: float) -> float:
        """Time of one pass [s].

        Args:
            new_tokens: of all sequences: those of the chunks, and one of each decode, more where drafts are verified.
            chunks: of prompts.
            decodes: sequences that generate a token.
            decode_cached_sum: tokens that the cache holds of these before the pass, together.
        """


def simulate(load: Load, limits: EngineLimits, times: PassTimes, between_s: float = 0.0) -> ServingRun:
    """Serve a load with one engine until the last request is done.

    Args:
        load: what is served.
        limits: of the engine.
        times: of its passes.
        between_s: from the end of an answer until the next request of its client is there [s].

    Raises:
        LoadError: a load that makes no sense, or a request that the engine cannot run even alone.
    """
    requests = load.requests()
    limits.check(requests)
    engine = _Engine(requests, limits, times, between_s)
    while engine.advance():
        pass
    return engine.run(requests, limits, opened=requests.concurrency is None and requests.arrival_s[-1] > 0)


def replicate(load: Load, limits: EngineLimits, times: PassTimes, seeds: Sequence[int]) -> list[ServingRun]:
    """Serve a load once for each seed: how far the figures of the runs scatter is how much of one is chance.

    Raises:
        LoadError: fewer than two seeds, or a load without chance.
    """
    if not isinstance(load, Closed | Open | Offline):
        raise LoadError(f"a {type(load).__name__.lower()} load is the same for every seed: simulate it once")
    if len(seeds) < 2:
        raise LoadError("a spread takes at least two seeds")
    return [simulate(replace(load, seed=seed), limits, times) for seed in seeds]


_ROWS = {"start_s": "d", "end_s": "d", **{f.name: "q" for f in fields(EnginePasses)[2:]}}


class _Engine:
    """State of an engine between two passes.

    A request is known by its number. While it generates, it gains a token in every pass with decodes, of which
    ``clock`` counts all: what has joined at one reading has gained the difference by another, and nothing has to be
    touched for each token. It needs a new block when its tokens fill its last, whose reading, modulo the tokens of a
    block, is its ``phase`` and never changes.

    A pass that verifies drafts gives all that generate equally many tokens, so many that ``rounds`` passes have given
    ``gain`` each, rounded down: chance evens out over an answer.
    """

    def __init__(self, requests: Requests, limits: EngineLimits, times: PassTimes, between_s: float) -> None:
        self.pass_s, self.between_s = times.pass_s, between_s
        self.prompts_apart = limits.scheduler.prompts_apart
        self.reserved = limits.scheduler.reserved_output
        self.max_seqs, self.chunked = limits.max_num_seqs, limits.chunked_prefill
        self.max_tokens = limits.max_num_batched_tokens or maxsize
        self.block = limits.block_tokens
        self.queries, self.gain, self.overshoot = limits.queries, limits.gain, limits.overshoot
        self.prefix_blocks = limits.prefix_tokens // self.block
        self.capacity = maxsize if limits.kv_tokens is None else limits.kv_tokens // self.block - self.prefix_blocks
        self.columns(requests, limits.cached_tokens(requests.prompt_tokens))

        # Who waits, in the order of arrival and before them those that lost their place, and who was given a place.
        # Clients that wait for an answer send their next request then: what is known of arrivals grows as it goes.
        self.arrival_s: list[float] = requests.arrival_s[: requests.concurrency].tolist()
        self.next = 0
        self.preempted: list[int] = []
        self.places: list[int] = []

        # Who runs: one prompt at most is begun and not ended, and all that generate, with their tokens in the cache.
        self.time_s, self.clock, self.rounds = self.arrival_s[0], 0, 0
        self.partial, self.partial_done = -1, 0
        self.decodes, self.context = 0, 0
        self.blocks, self.blocks_at_end, self.blocks_of_decodes = 0, 0, 0
        self.phases = [0] * self.block
        self.ending: dict[int, list[int]] = {}
        self.end_clocks: list[int] = []
        self.rows = {name: array(kind) for name, kind in _ROWS.items()}

    def columns(self, requests: Requests, cached: np.ndarray) -> None:
        """Of each request: ``target`` are the tokens that its place begins with, more than its prompt after a loss."""
        self.prompt: list[int] = requests.prompt_tokens.tolist()
        self.output: list[int] = requests.output_tokens.tolist()
        self.cached: list[int] = cached.tolist()
        stored = requests.prompt_tokens + requests.output_tokens - 1 + self.overshoot - cached
        self.final_blocks: list[int] = (-(-stored // self.block)).tolist()
        self.target = self.prompt.copy()
        n = len(requests)
        self.joined, self.ends, self.losses = [-1] * n, [-1] * n, [0] * n
        self.admitted_s, self.first_s, self.finish_s = [nan] * n, [nan] * n, [nan] * n
        self.lost_s: dict[int, float] = {}
        self.interrupted_s: list[float] = []

    def advance(self) -> bool:
        """ServingRun the next pass, or the next passes that are alike; false when there is nothing left."""
        evicted, decodes = False, 0
        if not self.prompts_apart:
            evicted, decodes = self.make_room(), self.decodes
            self.blocks_of_decodes = self.next_blocks()
        chunks, done = ([], []) if evicted else self.compose(self.max_tokens - decodes * self.queries)
        if chunks:
            self.prompt_pass(chunks, done, decodes)
        elif self.decodes:
            if self.prompts_apart:
                evicted = self.make_room()
            # What made room for drafts may itself have room without them.
            self.decode_passes(most=1 if evicted and self.gain > 1 else maxsize)
        elif self.next < len(self.arrival_s):
            self.time_s = max(self.time_s, self.arrival_s[self.next])
        else:
            return False
        return True

    # Who runs

    def compose(self, budget: int) -> tuple[list[tuple[int, int]], list[int]]:
        """Chunks of prompts within a number of tokens, and the requests whose prompts they end."""
        chunks: list[tuple[int, int]] = []
        done: list[int] = []
        while budget > 0:
            if self.partial < 0 and not self.start(budget, len(done)):
                break
            cached = self.partial_done
            new = min(self.target[self.partial] - cached, budget)
            chunks.append((new, cached))
            budget -= new
            self.partial_done += new
            if self.partial_done == self.target[self.partial]:
                done.append(self.partial)
                self.partial = -1
        return chunks, done

    def start(self, budget: int, done: int) -> bool:
        """Give the first that waits a place, if it has a place, tokens and blocks."""
        request = self.first_waiting()
        if request < 0 or self.decodes + done >= self.max_seqs:
            return False
        cached, target = self.cached[request], self.target[request]
        if not self.chunked and target - cached > budget:
            return False
        blocks, final_blocks = self.blocks_of(target, request), self.blocks_at_end + self.final_blocks[request]
        allocated = self.blocks + self.blocks_of_decodes + blocks
        if allocated + self.reserved * (final_blocks - allocated) > self.capacity:
            return False
        self.blocks += blocks
        self.blocks_at_end = final_blocks
        self.partial, self.partial_done = request, cached
        self.places.append(request)
        if self.preempted:
            self.preempted.pop()
        else:
            self.next += 1
            self.admitted_s[request] = self.time_s
        return True

    def first_waiting(self) -> int:
        """The request that is to start next, -1 where none waits."""
        if self.preempted:
            return self.preempted[-1]
        waits = self.next < len(self.arrival_s) and self.arrival_s[self.next] <= self.time_s
        return self.next if waits else -1

    def make_room(self) -> bool:
        """Take places away, the last given first, until the cache has the blocks that the next decodes need."""
        evicted = False
        while self.blocks + self.next_blocks() > self.capacity:
            self.evict(self.last_place())
            evicted = True
        return evicted

    def last_place(self) -> int:
        while True:
            request = self.places.pop()
            if self.joined[request] >= 0 or self.partial == request:
                return request

    def evict(self, request: int) -> None:
        """Its prompt and what it has generated are to be computed anew, before all that wait."""
        if request == self.partial:
            self.partial = -1
            self.blocks -= self.blocks_of(self.target[request], request)
        else:
            self.lost_s[request] = self.time_s
            # The last token has been sampled, and is not in the cache yet.
            self.target[request] = self.leave(request) + 1
        self.blocks_at_end -= self.final_blocks[request]
        self.losses[request] += 1
        self.preempted.append(request)

    # What runs

    def prompt_pass(self, chunks: list[tuple[int, int]], done: list[int], decodes: int) -> None:
        """A pass with prompts, and with the decodes that share it."""
        new = sum(chunk[0] for chunk in chunks)
        context = self.context if decodes else 0
        start_s, running = self.time_s, self.decodes + len(done) + (self.partial >= 0)
        self.time_s = start_s + self.pass_s(new + decodes * self.queries, chunks, decodes, context)
        gained = self.gained(1) if decodes else 0
        if decodes:
            self.gain_tokens(gained, 1)
        going_on = sum(self.target[r] - self.prompt[r] + 1 < self.output[r] for r in done)
        shape = (1, len(chunks), new, len(done), going_on, decodes, gained, running)
        self.record((start_s, self.time_s, *shape, self.kv_tokens()))
        if decodes:
            self.finish_due()
        for request in done:
            self.join(request)

    def decode_passes(self, most: int) -> None:
        """Passes that only generate, as many as are alike, at most so many."""
        n, context, start_s = self.decodes, self.context, self.time_s
        passes = min(self.passes_until(self.end_clocks[0]), max(STRIDE, context // n // GROWTH))
        passes = self.until_full(min(passes, most))
        if not self.preempted and n < self.max_seqs and self.next < len(self.arrival_s):
            wait_s = self.arrival_s[self.next] - start_s
            passes = self.until_arrival(passes, wait_s) if wait_s > 0 else passes
        self.time_s = start_s + self.last_s(passes)
        gained = self.gained(passes)
        self.gain_tokens(gained, passes)
        self.record((start_s, self.time_s, passes, 0, 0, 0, 0, n, gained, n, self.kv_tokens()))
        self.finish_due()

    def decode_s(self, context: float) -> float:
        """Time of a pass of all that generate, with so many tokens in the cache."""
        return self.pass_s(self.decodes * self.queries, (), self.decodes, context)

    def last_s(self, passes: int) -> float:
        """Time of the next passes together, of the mean context."""
        before = (passes - 1) / 2 if self.gain == 1 else sum(map(self.gained, range(passes))) / passes
        return passes * self.decode_s(self.context + self.decodes * before)

    def gained(self, passes: int) -> int:
        """Tokens that each decode gains in the next passes."""
        return int((self.rounds + passes) * self.gain) - self.clock

    def passes_until(self, clock: int) -> int:
        """The fewest passes, at least one, until the clock reads that."""
        passes = max(1, ceil(clock / self.gain) - self.rounds)
        return passes if self.clock + self.gained(passes) >= clock else passes + 1

    def gain_tokens(self, tokens: int, passes: int) -> None:
        """All that generate gain so many tokens each, in so many passes."""
        self.blocks += self.blocks_for(tokens)
        self.context += self.decodes * tokens
        self.clock += tokens
        self.rounds += passes

    def next_blocks(self) -> int:
        """New blocks that all decodes need in the next pass."""
        return self.phases[self.clock % self.block] if self.gain == 1 else self.blocks_for(self.gained(1))

    def blocks_for(self, tokens: int) -> int:
        """New blocks that all decodes need for so many tokens each."""
        rounds, rest = divmod(tokens, self.block)
        return rounds * self.decodes + sum(self.phases[(self.clock + i) % self.block] for i in range(rest))

    def until_full(self, passes: int) -> int:
        """The passes, at most as many, for which the cache has blocks; there are blocks for one."""
        free, tokens = self.capacity - self.blocks, self.gained(passes)
        if self.decodes * (tokens // self.block + 1) <= free:
            return passes
        for i in range(tokens):
            free -= self.phases[(self.clock + i) % self.block]
            if free < 0:
                return max(1, self.passes_until(self.clock + i + 1) - 1)
        return passes

    def until_arrival(self, passes: int, wait_s: float) -> int:
        """The passes, at most as many, after which a request has arrived: the fewest that last as long as the wait.

        With a pass that grows by a step each time, k passes take ``k first + k (k - 1) / 2 step``.
        """
        context = self.context
        first_s = self.decode_s(context)
        if first_s >= wait_s or passes == 1:
            return 1
        last_s = self.decode_s(context + self.decodes * self.gain * (passes - 1))
        step_s = (last_s - first_s) / (passes - 1)
        linear_s = first_s - step_s / 2
        root_s = sqrt(max(0.0, linear_s * linear_s + 2 * step_s * wait_s))
        fewest = max(1, min(passes, ceil(2 * wait_s / (linear_s + root_s))))
        if self.gain == 1:
            return fewest
        # Drafts do not grow all passes alike.
        while fewest > 1 and self.last_s(fewest - 1) >= wait_s:
            fewest -= 1
        while fewest < passes and self.last_s(fewest) < wait_s:
            fewest += 1
        return fewest

    # Who comes and goes

    def join(self, request: int) -> None:
        """A prompt has ended, and with it the first token, or the next one after a loss, is there."""
        made = self.target[request] - self.prompt[request] + 1
        if made == 1:
            self.first_s[request] = self.time_s
        else:
            self.interrupted_s.append(self.time_s - self.lost_s[request])
        left = self.output[request] - made
        if not left:
            self.blocks -= self.blocks_of(self.target[request], request)
            self.finish(request)
            return
        end = self.clock + left
        self.joined[request], self.ends[request] = self.clock, end
        self.decodes += 1
        self.context += self.target[request]
        self.phases[self.phase(request)] += 1
        if end not in self.ending:
            self.ending[end] = []
            heappush(self.end_clocks, end)
        self.ending[end].append(request)

    def finish_due(self) -> None:
        """Those whose last token came with the last pass. A request that lost its place may stand in a list still."""
        while self.end_clocks and self.end_clocks[0] <= self.clock:
            end = heappop(self.end_clocks)
            for request in self.ending.pop(end):
                if self.ends[request] == end:
                    self.leave(request)
                    self.finish(request)

    def leave(self, request: int) -> int:
        """Take a request out of those that generate; its tokens in the cache."""
        stored = self.target[request] + self.clock - self.joined[request]
        self.decodes -= 1
        self.context -= stored
        self.phases[self.phase(request)] -= 1
        self.blocks -= self.blocks_of(stored, request)
        self.joined[request] = self.ends[request] = -1
        return stored

    def finish(self, request: int) -> None:
        self.blocks_at_end -= self.final_blocks[request]
        self.finish_s[request] = self.time_s
        if len(self.arrival_s) < len(self.prompt):
            self.arrival_s.append(self.time_s + self.between_s)

    def phase(self, request: int) -> int:
        return (self.joined[request] - self.target[request] + self.cached[request]) % self.block

    def blocks_of(self, tokens: int, request: int) -> int:
        return -((self.cached[request] - tokens) // self.block)

    def kv_tokens(self) -> int:
        return (self.blocks + self.prefix_blocks) * self.block

    def record(self, row: tuple[Any, ...]) -> None:
        for column, value in zip(self.rows.values(), row, strict=True):
            column.append(value)

    def run(self, requests: Requests, limits: EngineLimits, *, opened: bool) -> ServingRun:
        """What came of it."""
        return ServingRun(
            arrival_s=np.array(self.arrival_s),
            admitted_s=np.array(self.admitted_s),
            first_token_s=np.array(self.first_s),
            finish_s=np.array(self.finish_s),
            prompt_tokens=requests.prompt_tokens,
            output_tokens=requests.output_tokens,
            preempted=np.array(self.losses),
            interrupted_s=np.array(self.interrupted_s),
            passes=EnginePasses(**{name: np.array(column) for name, column in self.rows.items()}),
            opened=opened,
            kv_capacity_tokens=inf if limits.kv_tokens is None else float(limits.kv_tokens),
        )
