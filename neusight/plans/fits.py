"""Whether a plan of training fits a device, and what is the largest that does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from neusight.devices.spec import DeviceSpec
from neusight.plans.margins import MemoryFit
from neusight.plans.memory import RankMemory, fullest
from neusight.requests import Plan

LENGTH_STEP = 128
"""Tokens by which the longest sequence is given, on each context-parallel rank."""
MOST = 2**24
"""Of micro-batches and tokens: no search goes beyond."""


def verdict(ranks: Sequence[RankMemory], device: DeviceSpec) -> MemoryFit:
    """Whether all ranks fit the device: of the fullest, with its context and its allocator's slack."""
    return fullest(ranks).fit(device)


def largest_micro_batch(plan: Plan, fits: Callable[[Plan], bool]) -> int:
    """Most sequences of a micro-batch that fit, with as many micro-batches as the plan has; 0 where none does."""

    def changed(micro_batch: int) -> Plan:
        batch = micro_batch * plan.dp * plan.micro_batches
        return replace(plan, micro_batch=micro_batch, global_batch=batch)

    return _largest(lambda size: fits(changed(size)))


def longest_sequence(plan: Plan, fits: Callable[[int], bool]) -> int:
    """Most tokens of a sequence that fit, in steps of ``LENGTH_STEP`` a context-parallel rank; 0 where none does."""
    step = LENGTH_STEP * plan.cp
    return step * _largest(lambda steps: fits(steps * step))


def _largest(fits: Callable[[int], bool]) -> int:
    """The largest number that fits, given that all smaller ones do: doubled until one does not, then halved between."""
    low, high = 0, 1
    while high <= MOST and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
