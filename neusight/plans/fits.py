"""Check whether a training plan fits a device, and find the largest that does."""

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
"""Upper limit of micro-batches and tokens in a search."""
GROWTH = 64
"""Times the largest number that is known to fit, beyond which a search does not try next."""


def verdict(ranks: Sequence[RankMemory], device: DeviceSpec) -> MemoryFit:
    """Fit of the fullest rank, with its context and its allocator's slack, in the memory of the device."""
    return fullest(ranks).fit(device)


def largest_micro_batch(plan: Plan, spare_bytes: Callable[[Plan], float]) -> int:
    """Most sequences of a micro-batch that fit, with as many micro-batches as the plan has; 0 where none does.

    Args:
        plan: with the number of replicas and micro-batches.
        spare_bytes: memory that a plan leaves free [B], below 0 where it does not fit.
    """

    def spare(micro_batch_size: int) -> float:
        batch = micro_batch_size * plan.dp * plan.micro_batches
        return spare_bytes(replace(plan, micro_batch_size=micro_batch_size, global_batch_size=batch))

    return _largest(spare)


def longest_sequence(plan: Plan, spare_bytes: Callable[[int], float]) -> int:
    """Most tokens of a sequence that fit, in steps of ``LENGTH_STEP`` a context-parallel rank; 0 where none does.

    Args:
        plan: with the number of context-parallel ranks.
        spare_bytes: memory that a number of tokens leaves free [B], below 0 where they do not fit.
    """
    step = LENGTH_STEP * plan.cp
    return step * _largest(lambda steps: spare_bytes(steps * step))


def _largest(spare_bytes: Callable[[int], float]) -> int:
    """The largest number that leaves at least 0 bytes free, given that all smaller ones do.

    Memory is nearly linear in each size: the next guess is where a line through two known points has nothing to
    spare; every third guess halves the range, so that the search ends soon for any curve.
    """
    low, high, guess = 0, MOST + 1, 1
    spare_of: dict[int, float] = {}
    while high - low > 1:
        spare_of[guess] = spare_bytes(guess)
        low, high = (guess, high) if spare_of[guess] >= 0.0 else (low, guess)
        middle = (low + high) // 2 if high <= MOST else 2 * low
        guess = middle if len(spare_of) % 3 == 0 else _crossing(spare_of, low, high, middle)
        guess = min(max(guess, low + 1), high - 1, max(1, GROWTH * low))
    return low


def _crossing(known: Mapping[int, float], low: int, high: int, otherwise: int) -> int:
    """Number at which a line through known points around or before a place has nothing to spare."""
    first, second = (low, high) if high in known else (low // 2, low)
    if first not in known or second not in known or not known[first] > known[second] > -inf:
        return otherwise
    return int(first + (second - first) * known[first] / (known[first] - known[second]))
