"""Whether a plan of training fits a device, and what is the largest that does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf

from neusight.devices.spec import DeviceSpec
from neusight.plans.margins import MemoryFit
from neusight.plans.memory import RankMemory, fullest
from neusight.requests import Plan

LENGTH_STEP = 128
"""Tokens by which the longest sequence is given, on each context-parallel rank."""
MOST = 2**24
"""Of micro-batches and tokens: no search goes beyond."""
GROWTH = 64
"""Times the largest number that is known to fit, beyond which a search does not try next."""


def verdict(ranks: Sequence[RankMemory], device: DeviceSpec) -> MemoryFit:
    """Whether all ranks fit the device: of the fullest, with its context and its allocator's slack."""
    return fullest(ranks).fit(device)


def largest_micro_batch(plan: Plan, spare_bytes: Callable[[Plan], float]) -> int:
    """Most sequences of a micro-batch that fit, with as many micro-batches as the plan has; 0 where none does.

    Args:
        plan: with the number of replicas and micro-batches.
        spare_bytes: of a plan, below 0 where it does not fit.
    """

    def spare(micro_batch_size: int) -> float:
        batch = micro_batch_size * plan.dp * plan.micro_batches
        return spare_bytes(replace(plan, micro_batch_size=micro_batch_size, global_batch_size=batch))

    return _largest(spare)


def longest_sequence(plan: Plan, spare_bytes: Callable[[int], float]) -> int:
    """Most tokens of a sequence that fit, in steps of ``LENGTH_STEP`` a context-parallel rank; 0 where none does.

    Args:
        plan: with the number of context-parallel ranks.
        spare_bytes: of a number of tokens, below 0 where it does not fit.
    """
    step = LENGTH_STEP * plan.cp
    return step * _largest(lambda steps: spare_bytes(steps * step))


def _largest(spare_bytes: Callable[[int], float]) -> int:
    """The largest number that leaves no less than nothing, given that all smaller ones do.

    Memory is nearly a line in each size: the next guess lies where a line through two known points has nothing to
    spare; every third halves what is left, so that the search ends soon whatever the curve is.
    """
    low, high, guess = 0, MOST + 1, 1
    known: dict[int, float] = {}
    while high - low > 1:
        known[guess] = spare_bytes(guess)
        low, high = (guess, high) if known[guess] >= 0.0 else (low, guess)
        middle = (low + high) // 2 if high <= MOST else 2 * low
        guess = middle if len(known) % 3 == 0 else _crossing(known, low, high, middle)
        guess = min(max(guess, low + 1), high - 1, max(1, GROWTH * low))
    return low


def _crossing(known: Mapping[int, float], low: int, high: int, otherwise: int) -> int:
    """Where a line through known points around a place, or before it, has nothing to spare."""
    first, second = (low, high) if high in known else (low // 2, low)
    if first not in known or second not in known or not known[first] > known[second] > -inf:
        return otherwise
    return int(first + (second - first) * known[first] / (known[first] - known[second]))
