"""``BatchingEngine``: what an engine runs, pass after pass, under continuous batching.

Between two changes of who runs (a request starts, a prompt or an answer ends, the cache runs out), passes differ only
in how many tokens the cache holds, and are taken in one step: k passes take k times the pass of mean context, which is
exact where a pass takes linearly longer with its context.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import fields
from heapq import heappop, heappush
from math import ceil, inf, nan, sqrt
from sys import maxsize
from typing import Protocol

import numpy as np

from neusight.serving.limits import EngineLimits
from neusight.serving.load import Requests
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


_COLUMNS = {f.name: float if f.name.endswith("_s") else np.int64 for f in fields(EnginePasses)[:-1]}
"""Of a row that is recorded: whole numbers below 2⁵³, which doubles hold exactly."""
_FARED = ("admitted_s", "first_token_s", "finish_s", "cached_tokens", "preempted", "interrupted_s")
"""Columns of a ``ServingRun`` that a ledger has lists of."""
DecodePasses = int
PromptPass = tuple[list[tuple[int, int]], list[int], int, int]
"""Chunks, the requests whose prompts they end, the sequences that generate beside them, and the chunks' tokens."""


class RequestLedger:
    """How each request of a load fares with the engine that it gets, lists by its number.

    ``cached`` tokens of its prompt are in the prefix that all share, ``hits`` behind them in blocks of its own, and
    ``target`` are those that its place begins with: more than its prompt after a loss. ``sessions`` are -1 for none.
    """

    def __init__(self, requests: Requests, limits: EngineLimits) -> None:
        cached, block, n = limits.cached_tokens(requests.prompt_tokens), limits.block_tokens, len(requests)
        self.requests, self.kv_tokens = requests, inf if limits.kv_tokens is None else float(limits.kv_tokens)
        self.prompt: list[int] = requests.prompt_tokens.tolist()
        self.output: list[int] = requests.output_tokens.tolist()
        self.cached: list[int] = cached.tolist()
        self.hits: list[int] = (limits.hit_tokens(requests) - cached).tolist()
        self.sessions: list[int] = [-1] * n if requests.sessions is None else requests.sessions.tolist()
        stored = requests.prompt_tokens + requests.output_tokens - 1 + limits.overshoot - cached
        self.final_blocks: list[int] = (-(-stored // block)).tolist()
        self.target = self.prompt.copy()
        self.joined, self.ends = [-1] * n, [-1] * n
        self.admitted_s, self.first_token_s, self.finish_s = [nan] * n, [nan] * n, [nan] * n
        self.cached_tokens, self.preempted = self.cached.copy(), [0] * n
        self.lost_s: dict[int, float] = {}
        self.interrupted_s: list[float] = []

    def run(self, arrival_s: Sequence[float], engines: Sequence[BatchingEngine]) -> ServingRun:
        """What came of it."""
        columns = {name: np.array(getattr(self, name)) for name in _FARED}
        return ServingRun(
            **columns,
            arrival_s=np.array(arrival_s),
            prompt_tokens=self.requests.prompt_tokens,
            output_tokens=self.requests.output_tokens,
            passes=EnginePasses.together([engine.passes() for engine in engines]),
            schedulers=len(engines),
            opened=self.requests.concurrency is None and arrival_s[-1] > 0,
            kv_capacity_tokens=self.kv_tokens,
        )


class BatchingEngine:
    """State of an engine between two passes. ``plan`` says when what it runs next ends, ``commit`` runs it; what
    arrives in between is told by ``enqueue``.

    A request is known by its number. While it generates, it gains a token in every pass with decodes, of which
    ``clock`` counts all: what has joined at one reading has gained the difference by another, and nothing has to be
    touched for each token. It needs a new block when its tokens fill its last, whose reading, modulo the tokens of a
    block, is its ``phase`` and never changes.

    A pass that verifies drafts gives all that generate equally many tokens, so many that ``rounds`` passes have given
    ``gain`` each, rounded down: chance evens out over an answer.

    What a session has in the cache stays there when its answer ends, as long as nobody needs the room: of the session
    that was used least recently the last blocks go first. The host has a copy where it has room, in the same order.
    """

    def __init__(self, ledger: RequestLedger, limits: EngineLimits, times: PassTimes) -> None:
        self.pass_s, self.ledger = times.pass_s, ledger
        self.prompts_apart = limits.scheduler.prompts_apart
        self.reserved = limits.scheduler.reserved_output
        self.max_seqs, self.chunked = limits.max_num_seqs, limits.chunked_prefill
        self.max_tokens = limits.max_num_batched_tokens or maxsize
        self.block = limits.block_tokens
        self.queries, self.gain, self.overshoot = limits.queries, limits.gain, limits.overshoot
        self.ahead, self.interval, self.wait = int(limits.overlapped), limits.recv_interval, limits.batch_wait
        if self.wait and limits.groups > 1:
            self.interval, self.wait = limits.passes_until_all_wait(ledger.requests), 0
        self.waited, self.waits = 0, False
        self.prefix_blocks = limits.prefix_tokens // self.block
        self.capacity = maxsize if limits.kv_tokens is None else limits.kv_tokens // self.block - self.prefix_blocks
        self.prompt, self.output, self.cached, self.target = ledger.prompt, ledger.output, ledger.cached, ledger.target
        self.hits, self.has_sessions = ledger.hits, any(session >= 0 for session in ledger.sessions)
        self.joined, self.ends, self.final_blocks = ledger.joined, ledger.ends, ledger.final_blocks

        # Who waits, in the order of arrival and before them those that lost their place, and who was given a place.
        self.queue: list[int] = []
        self.arrival_s: list[float] = []
        self.next = 0
        self.planned: DecodePasses | PromptPass = 0
        self.end_s = inf
        self.finished: list[int] = []
        self.preempted: list[int] = []
        self.places: list[int] = []
        # When the queue was looked at last for a pass that is not composed yet, and the passes since, less than
        # ``interval`` of them.
        self.looked_s, self.unlooked = 0.0, 0

        # Who runs: one prompt at most is begun and not ended, and all that generate, with their tokens in the cache.
        self.time_s, self.clock, self.rounds = 0.0, 0, 0
        self.partial, self.partial_done = -1, 0
        self.decodes, self.context = 0, 0
        self.blocks, self.blocks_at_end, self.blocks_of_decodes = 0, 0, 0
        self.phases = [0] * self.block
        self.ending: dict[int, list[int]] = {}
        self.end_clocks: list[int] = []
        self.rows = array("d")

        # Blocks that sessions left in the cache and in the host's memory, the least recently used first.
        self.kept: OrderedDict[int, int] = OrderedDict()
        self.kept_blocks = 0
        self.host: OrderedDict[int, int] = OrderedDict()
        self.host_free, self.restore_s, self.restored = limits.host_tokens // self.block, limits.restore_s, 0

    def enqueue(self, request: int, arrival_s: float) -> None:
        """A request arrives, no earlier than those before it."""
        self.queue.append(request)
        self.arrival_s.append(arrival_s)

    def plan(self) -> float:
        """When the next pass ends, or the next passes that are alike; infinity when there is nothing left.

        Where a request arrives before they end, passes that only generate have to be planned again.
        """
        evicted, decodes = False, 0
        if not self.prompts_apart:
            self.blocks_of_decodes = self.next_blocks()
            if self.blocks + self.blocks_of_decodes > self.capacity:
                evicted = self.make_room()
                self.blocks_of_decodes = self.next_blocks()
            decodes = self.decodes
        wait = self.left_to_wait() if self.wait else 0
        self.waits = wait > 0
        chunks, done = ([], []) if evicted or wait else self.compose(self.max_tokens - decodes * self.queries)
        if chunks:
            new, context = sum(chunk[0] for chunk in chunks), self.context if decodes else 0
            lasts_s = self.pass_s(new + decodes * self.queries, chunks, decodes, context)
            self.planned = chunks, done, decodes, new
            self.end_s = self.time_s + max(lasts_s, self.restored * self.restore_s)
        elif self.decodes:
            if self.prompts_apart:
                evicted = self.make_room()
            # What made room for drafts may itself have room without them.
            self.planned = self.alike(most=1 if evicted and self.gain > 1 else wait or maxsize)
            self.end_s = self.time_s + self.last_s(self.planned)
        elif self.next < len(self.queue):
            self.time_s = self.looked_s = max(self.time_s, self.arrival_s[self.next])
            self.unlooked = 0
            return self.plan()
        else:
            self.end_s = inf
        return self.end_s

    def commit(self) -> None:
        """Run what was planned; ``finished`` are the requests that it ends."""
        self.finished = []
        if isinstance(self.planned, int):
            self.decode_passes(self.planned)
        else:
            self.prompt_pass(*self.planned)

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
        if self.decodes + done >= self.max_seqs or (request := self.first_waiting()) < 0:
            return False
        target = self.target[request]
        if not self.chunked and target - self.cached[request] - self.hits[request] > budget:
            return False
        blocks, final_blocks = self.blocks_of(target, request), self.blocks_at_end + self.final_blocks[request]
        allocated = self.blocks + self.blocks_of_decodes + blocks
        if allocated + self.reserved * (final_blocks - allocated) > self.capacity:
            return False
        self.blocks += blocks
        self.blocks_at_end = final_blocks
        self.partial = request
        self.partial_done = self.find(request) if self.has_sessions else self.cached[request] + self.hits[request]
        self.places.append(request)
        if self.preempted:
            self.preempted.pop()
        else:
            self.next += 1
            self.ledger.admitted_s[request], self.ledger.cached_tokens[request] = self.time_s, self.partial_done
        if self.kept_blocks:
            self.trim()
        return True

    def first_waiting(self) -> int:
        """The request that is to start next, -1 where none waits."""
        if self.preempted:
            return self.preempted[-1]
        waits = self.next < len(self.queue) and self.arrival_s[self.next] <= self.looked_s
        return self.queue[self.next] if waits else -1

    def left_to_wait(self) -> int:
        """Passes that prompts still wait, while others generate, for as many of them as fill a pass."""
        if not self.decodes or self.partial >= 0 or self.waited >= self.wait or self.first_waiting() < 0:
            return 0
        seen = bisect_right(self.arrival_s, self.looked_s, self.next)
        tokens = self.decodes * self.queries + sum(self.target[request] for request in self.queue[self.next : seen])
        return self.wait - self.waited if tokens < self.max_tokens else 0

    def make_room(self) -> bool:
        """Take places away, the last given first, until the cache has the blocks that the next decodes need."""
        evicted = False
        while self.blocks + self.next_blocks() > self.capacity:
            self.evict(self.last_place())
            evicted = True
        return evicted

    def last_place(self) -> int:
        """The request that was given a place last, of those that have one."""
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
            self.ledger.lost_s[request] = self.time_s
            # The last token has been sampled, and is not in the cache yet.
            self.target[request] = self.leave(request) + 1
        self.blocks_at_end -= self.final_blocks[request]
        self.ledger.preempted[request] += 1
        self.hits[request] = 0
        self.preempted.append(request)

    # What runs

    def prompt_pass(self, chunks: list[tuple[int, int]], done: list[int], decodes: int, new: int) -> None:
        """A pass with prompts, and with the decodes that share it."""
        start_s = self.time_s
        running = self.decodes + len(done) + (self.partial >= 0)
        self.time_s, self.restored, self.waited = self.end_s, 0, 0
        self.looked_s, self.unlooked = start_s if self.ahead else self.end_s, self.ahead % self.interval
        gained = 0
        if decodes:
            gained = 1 if self.gain == 1 else self.gained(1)
            self.gain_tokens(gained, 1)
        going_on = sum(self.target[r] - self.prompt[r] + 1 < self.output[r] for r in done)
        shape = (1, len(chunks), new, len(done), going_on, decodes, gained, running)
        self.rows.extend((start_s, self.time_s, *shape, self.kv_tokens()))
        if decodes:
            self.finish_due()
        for request in done:
            self.join(request)

    def decode_passes(self, passes: int) -> None:
        """Passes that only generate."""
        n, start_s, gained = self.decodes, self.time_s, self.gained(passes)
        self.time_s = self.end_s
        self.waited += passes * self.waits
        self.look(start_s, passes)
        self.gain_tokens(gained, passes)
        self.rows.extend((start_s, self.time_s, passes, 0, 0, 0, 0, n, gained, n, self.kv_tokens()))
        self.finish_due()

    def alike(self, most: int) -> int:
        """Passes that only generate and are alike, at most so many."""
        n, context = self.decodes, self.context
        passes = min(self.passes_until(self.end_clocks[0]), max(STRIDE, context // n // GROWTH))
        passes = self.until_full(min(passes, most))
        if not self.preempted and n < self.max_seqs and self.next < len(self.queue):
            passes = self.until_seen(passes, self.arrival_s[self.next])
        return passes

    def until_seen(self, passes: int, arrival_s: float) -> int:
        """The passes, at most as many, after which one is composed from what was there when a request arrived."""
        if arrival_s <= self.looked_s:
            return passes
        wait_s = arrival_s - self.time_s
        arrived = self.until_arrival(passes, wait_s) if wait_s > 0 else 0
        return max(1, min(passes, arrived + -(self.unlooked + arrived) % self.interval + self.ahead))

    def look(self, start_s: float, passes: int) -> None:
        """Note the last look at the queue, each ``interval`` passes, that was for a pass after some that ran."""
        seen = passes - self.ahead
        last = seen - (self.unlooked + seen) % self.interval
        if last >= 0:
            self.looked_s = self.time_s if last == passes else start_s + (self.last_s(last) if last else 0.0)
        self.unlooked = (self.unlooked + passes) % self.interval

    def decode_s(self, context: float) -> float:
        """Time of a pass of all that generate, with so many tokens in the cache."""
        return self.pass_s(self.decodes * self.queries, (), self.decodes, context)

    def last_s(self, passes: int) -> float:
        """Time of the next passes together, of the mean context."""
        before = (passes - 1) / 2 if self.gain == 1 else sum(map(self.gained, range(passes))) / passes
        n = self.decodes
        return passes * self.pass_s(n * self.queries, (), n, self.context + n * before)

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
        if self.kept_blocks:
            self.trim()

    def next_blocks(self) -> int:
        """New blocks that all decodes need in the next pass."""
        return self.blocks_for(1 if self.gain == 1 else self.gained(1))

    def blocks_for(self, tokens: int) -> int:
        """New blocks that all decodes need for so many tokens each."""
        if tokens == 1:
            return self.phases[self.clock % self.block]
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
            self.ledger.first_token_s[request] = self.time_s
        else:
            self.ledger.interrupted_s.append(self.time_s - self.ledger.lost_s[request])
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
        """A request has its last token."""
        self.blocks_at_end -= self.final_blocks[request]
        self.ledger.finish_s[request] = self.time_s
        self.finished.append(request)
        if self.has_sessions:
            self.keep(request)

    def phase(self, request: int) -> int:
        """Reading of the clock, modulo the tokens of a block, at which its last block is full."""
        return (self.joined[request] - self.target[request] + self.cached[request]) % self.block

    def blocks_of(self, tokens: int, request: int) -> int:
        """Its own for so many tokens."""
        return -((self.cached[request] - tokens) // self.block)

    def kv_tokens(self) -> int:
        """Those of blocks that are given out."""
        return (self.blocks + self.prefix_blocks) * self.block

    def passes(self) -> EnginePasses:
        """All that it ran."""
        rows = np.array(self.rows).reshape(-1, len(_COLUMNS)).T
        columns = {name: row.astype(kind) for (name, kind), row in zip(_COLUMNS.items(), rows, strict=True)}
        return EnginePasses(**columns, scheduler=np.zeros(rows.shape[1], dtype=np.int64))

    # What sessions leave

    def find(self, request: int) -> int:
        """Tokens of a prompt that the cache holds, those of its session with what the host brings back."""
        session, room = self.ledger.sessions[request], self.prompt[request] - 1 - self.cached[request]
        if session < 0:
            return self.cached[request] + self.hits[request]
        kept = self.kept.pop(session, 0)
        self.kept_blocks -= kept
        here, both = (min(blocks, room // self.block) for blocks in (kept, max(kept, self.host.get(session, 0))))
        self.restored += (both - here) * self.block
        return self.cached[request] + both * self.block

    def keep(self, request: int) -> None:
        """What a session has in the cache stays when an answer ends, in whole blocks."""
        session = self.ledger.sessions[request]
        if session < 0:
            return
        blocks = (self.prompt[request] + self.output[request] - 1 - self.cached[request]) // self.block
        self.kept_blocks += blocks - self.kept.pop(session, 0)
        self.kept[session] = blocks
        self.trim()
        self.host_free += self.host.pop(session, 0) - blocks
        self.host[session] = blocks
        while self.host_free < 0:
            oldest, held = next(iter(self.host.items()))
            self.host_free += held
            del self.host[oldest]

    def trim(self) -> None:
        """Give up what sessions left, until all has room."""
        while self.kept_blocks and (more := self.blocks + self.kept_blocks - self.capacity) > 0:
            oldest, held = next(iter(self.kept.items()))
            given = min(held, more)
            self.kept_blocks -= given
            if given == held:
                del self.kept[oldest]
            else:
                self.kept[oldest] = held - given
