"""``ServingRun``: how an engine served a load, request by request and pass by pass, and what a planner asks of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from neusight.units import decimal
from neusight.workloads.decoders.shares import Steps

NOISE = 3.0
"""Standard deviations of a Poisson count by which what waits must grow in the second half of a load to count as growing
without limit: 1 stable load in 700 is flagged in error."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Mean and percentiles of one quantity, in its unit; NaN where there is nothing to look at."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float

    @classmethod
    def of(cls, values: np.ndarray, weights: np.ndarray | None = None) -> Spread:
        """Of values of shape (n,), each ``weights`` times: the smallest that this share of all does not exceed."""
        if not len(values):
            return cls(mean=np.nan, p50=np.nan, p90=np.nan, p95=np.nan, p99=np.nan)
        order = np.argsort(values, kind="stable")
        each = np.ones(len(values)) if weights is None else weights[order].astype(np.float64)
        upto = np.cumsum(each)
        at = np.searchsorted(upto, np.array([0.5, 0.9, 0.95, 0.99]) * upto[-1])
        p50, p90, p95, p99 = values[order][np.minimum(at, len(values) - 1)].tolist()
        return cls(mean=float(values[order] @ each / upto[-1]), p50=p50, p90=p90, p95=p95, p99=p99)


@dataclass(frozen=True, kw_only=True)
class EnginePasses:
    """What the engine ran, one row for ``count`` passes of the same composition; columns of shape (m,), in order.

    ``prompts`` sequences brought ``prompt_tokens`` new tokens; ``ended`` of them ended their prompt, each with a token,
    and ``joined`` of these went on to generate, together with ``decodes`` that generated ``gained`` tokens each in all
    passes: one a pass, or more where drafts are verified. ``running`` are all that have a place, ``kv_tokens`` are
    given out at the end, the shared prefix among them. ``scheduler`` numbers who ran them, whose rows are in order.
    """

    start_s: np.ndarray
    end_s: np.ndarray
    count: np.ndarray
    prompts: np.ndarray
    prompt_tokens: np.ndarray
    ended: np.ndarray
    joined: np.ndarray
    decodes: np.ndarray
    gained: np.ndarray
    running: np.ndarray
    kv_tokens: np.ndarray
    scheduler: np.ndarray

    @classmethod
    def together(cls, each: Sequence[EnginePasses]) -> EnginePasses:
        """Those of several schedulers, one behind the other."""
        columns = {f.name: np.concatenate([getattr(passes, f.name) for passes in each]) for f in fields(cls)[:-1]}
        first = np.cumsum([0] + [passes.schedulers for passes in each[:-1]])
        numbers = [passes.scheduler + begin for passes, begin in zip(each, first, strict=True)]
        return cls(**columns, scheduler=np.concatenate(numbers))

    @property
    def schedulers(self) -> int:
        """Up to the last that ran anything, one at least."""
        return int(self.scheduler.max(initial=0)) + 1

    def of(self, scheduler: int) -> EnginePasses:
        """Those of one of them."""
        rows = self.scheduler == scheduler
        return EnginePasses(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    def __len__(self) -> int:
        return len(self.start_s)

    @property
    def lasts_s(self) -> np.ndarray:
        """How long a row takes, all of its passes [s]."""
        return np.asarray(self.end_s - self.start_s)

    def steps(self, picked: np.ndarray) -> Steps:
        """The composition of some rows, means where sequences differ.

        Args:
            picked: numbers of rows, shape (k,).
        """
        prompts, running = self.prompts[picked], self.running[picked]
        return Steps.of(
            prompts=prompts,
            # Rounded down: a token more than the pass has may begin another tile.
            prompt_tokens=self.prompt_tokens[picked] // np.maximum(prompts, 1),
            decodes=self.decodes[picked],
            decode_cached=self.kv_tokens[picked] // np.maximum(running, 1),
        )

    def intervals(self) -> tuple[np.ndarray, np.ndarray]:
        """Those of all schedulers, see ``_intervals``."""
        each = [self.of(number)._intervals() for number in np.unique(self.scheduler)]
        times_s, seen = zip(*each, strict=True)
        return np.concatenate(times_s), np.concatenate(seen)

    def _intervals(self) -> tuple[np.ndarray, np.ndarray]:
        """Times between two tokens of a sequence, or tokens that come together [s], and how many sequences saw each.

        Passes of one row count as equally long. A sequence waits through passes for prompts alone that come between
        two of its tokens; one that just finished its prompt in such a pass waits from there on.
        """
        rows = np.flatnonzero(self.decodes)
        pass_s = self.lasts_s[rows] / self.count[rows]
        alone = np.flatnonzero((self.decodes == 0) & (self.joined > 0))
        nexts = np.searchsorted(rows, alone)
        alone, nexts = alone[nexts < len(rows)], nexts[nexts < len(rows)]
        new = np.bincount(nexts, weights=self.joined[alone], minlength=len(rows))
        last_end_s = np.concatenate([self.start_s[rows[:1]], self.end_s[rows[:-1]]])
        paused_s = pass_s + self.start_s[rows] - last_end_s
        firsts_s = pass_s[nexts] + self.start_s[rows[nexts]] - self.end_s[alone]
        later = (self.count[rows] - 1) * self.decodes[rows]
        old = np.maximum(self.decodes[rows] - new, 0)
        times_s, seen = np.concatenate([paused_s, firsts_s, pass_s]), np.concatenate([old, self.joined[alone], later])
        return times_s[seen > 0], seen[seen > 0]


@dataclass(frozen=True, kw_only=True)
class ServingRun:
    """How each request fared, columns of shape (n,) in the order of arrival, and what the engine ran.

    ``cached_tokens`` of each prompt were in the cache when it started. ``preempted`` counts how often a request lost
    its place, ``interrupted_s`` are the times between two tokens across such losses. ``opened`` says that requests
    arrived by themselves, ``kv_capacity_tokens`` of each of ``schedulers`` is infinite where the cache has no limit.
    """

    arrival_s: np.ndarray
    admitted_s: np.ndarray
    first_token_s: np.ndarray
    finish_s: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    cached_tokens: np.ndarray
    preempted: np.ndarray
    interrupted_s: np.ndarray
    passes: EnginePasses
    schedulers: int
    opened: bool
    kv_capacity_tokens: float

    def __len__(self) -> int:
        return len(self.arrival_s)

    @cached_property
    def ttft_s(self) -> Spread:
        """Time to first token, from arrival."""
        return Spread.of(self.first_token_s - self.arrival_s)

    @cached_property
    def tpot_s(self) -> Spread:
        """Time per output token after the first, a mean for each request of more than one."""
        more = self.output_tokens > 1
        return Spread.of((self.finish_s - self.first_token_s)[more] / (self.output_tokens[more] - 1))

    @cached_property
    def itl_s(self) -> Spread:
        """Inter-token latency: times between two tokens, over all tokens of all requests."""
        times_s, weights = self.passes.intervals()
        ones = np.ones(len(self.interrupted_s))
        return Spread.of(np.concatenate([times_s, self.interrupted_s]), np.concatenate([weights, ones]))

    @cached_property
    def e2e_s(self) -> Spread:
        """From arrival to the last token."""
        return Spread.of(self.finish_s - self.arrival_s)

    @cached_property
    def queue_s(self) -> Spread:
        """From arrival until a request is started."""
        return Spread.of(self.admitted_s - self.arrival_s)

    @property
    def makespan_s(self) -> float:
        """From the first arrival to the last token."""
        return float(self.finish_s.max() - self.arrival_s[0])

    @property
    def busy_s(self) -> float:
        """Time that a scheduler is in passes on average."""
        return float(self.passes.lasts_s.sum()) / self.schedulers

    @property
    def output_tokens_per_s(self) -> float:
        """Over the makespan, ramps at both ends included."""
        return float(self.output_tokens.sum() / self.makespan_s)

    @property
    def requests_per_s(self) -> float:
        """Over the makespan."""
        return len(self) / self.makespan_s

    @property
    def steady_output_tokens_per_s(self) -> float:
        """Of the middle half of all output tokens: neither while the engine fills nor while it empties."""
        passes = self.passes
        order = np.argsort(passes.end_s, kind="stable")
        made = np.concatenate([[0.0], np.cumsum((passes.decodes * passes.gained + passes.ended)[order])])
        times_s = np.concatenate([[passes.start_s.min()], passes.end_s[order]])
        begin_s, end_s = np.interp([0.25 * made[-1], 0.75 * made[-1]], made, times_s)
        return float(0.5 * made[-1] / (end_s - begin_s))

    @property
    def mean_batch(self) -> float:
        """Sequences that generate in a pass, over all passes that generate; NaN where answers have one token."""
        passes = self.passes
        count = passes.count * (passes.decodes > 0)
        return float(passes.decodes @ count / count.sum()) if count.any() else np.nan

    @property
    def kv_use(self) -> float:
        """Highest share of the KV cache that is given out; 0 without a limit."""
        return float((self.passes.kv_tokens / self.kv_capacity_tokens).max())

    @property
    def time_shares(self) -> dict[str, float]:
        """Of the makespan in passes with prompts, in passes that only generate, and idle; their sum is 1."""
        lasts_s, prompts = self.passes.lasts_s, self.passes.prompts > 0
        shares = {"prompt": float(lasts_s[prompts].sum()), "decode": float(lasts_s[~prompts].sum())}
        shares = {name: part_s / (self.makespan_s * self.schedulers) for name, part_s in shares.items()}
        return shares | {"idle": max(0.0, 1.0 - sum(shares.values()))}

    def waiting(self, times_s: np.ndarray) -> np.ndarray:
        """Requests that have arrived and not been started at these times, shape as given."""
        return np.asarray(_upto(self.arrival_s, times_s) - _upto(self.admitted_s, times_s))

    def present(self, times_s: np.ndarray) -> np.ndarray:
        """Requests that have arrived and are not finished at these times, shape as given."""
        return np.asarray(_upto(self.arrival_s, times_s) - _upto(self.finish_s, times_s))

    @property
    def diverges(self) -> str:
        """In words, that requests arrive faster than they are served, so that they wait the longer the longer the load
        lasts; "" where they do not, or where the load is too short to tell.
        """
        halfway, end = self._halves()
        then, now = self.waiting(np.array([halfway, end]))
        if not self.opened or now - then <= NOISE * self._chance():
            return ""
        arrived = np.sum(self.arrival_s > halfway) / (end - halfway)
        served = self.steady_output_tokens_per_s / self.output_tokens.mean()
        return (
            f"the queue grows without limit: {decimal(arrived / self.schedulers)} requests/s arrive at each scheduler "
            f"and {decimal(served / self.schedulers)}/s are served, "
            f"{int(then)} waited half-way and {int(now)} at the last arrival"
        )

    @property
    def settled(self) -> bool:
        """Whether as many requests were present at the last arrival as half-way, but for chance. Where not, the load
        outgrows the engine or was too short for it to fill, and all means lean on how long the load lasts.
        """
        then, now = self.present(np.array(self._halves()))
        return not self.opened or bool(now - then <= NOISE * self._chance())

    def _halves(self) -> tuple[float, float]:
        begin, end = float(self.arrival_s[0]), float(self.arrival_s[-1])
        return (begin + end) / 2, end

    def _chance(self) -> float:
        """Standard deviation of how many arrive in half of the load, were they Poisson's."""
        return float((len(self) / 2) ** 0.5)


def _upto(events_s: np.ndarray, times_s: np.ndarray) -> np.ndarray:
    return np.searchsorted(np.sort(events_s), times_s, side="right")
