"""Whether a plan of training fits a device, and what is the largest that does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from neusight.devices.spec import DeviceSpec
from neusight.plans.margins import MemoryFit, reserved
from neusight.plans.memory import RankMemory, fullest, memory_of
from neusight.plans.states import TrainingStep
from neusight.requests import Plan
from neusight.workloads.decoders.decoder import Decoder

LENGTH_STEP = 128
"""Tokens by which the longest sequence is given, on each context-parallel rank."""
MOST = 2**24
"""Of micro-batches and tokens: no search goes beyond."""


def verdict(ranks: tuple[RankMemory, ...], device: DeviceSpec) -> MemoryFit:
    """Whether all ranks fit the device: of the fullest, with its context and its allocator's slack."""
    rank = fullest(ranks)
    return MemoryFit(terms=reserved(rank.parts), usable_bytes=device.usable_bytes, rank=rank.rank)


def largest_micro_batch(decoder: Decoder, plan: Plan, training: TrainingStep, device: DeviceSpec) -> int:
    """Most sequences of a micro-batch that fit, with as many micro-batches as the plan has; 0 where none does.

    Raises:
        ModelError: as ``memory_of``.
    """

    def changed(micro_batch: int) -> tuple[Plan, TrainingStep]:
        batch = micro_batch * plan.dp * plan.micro_batches
        return replace(plan, micro_batch=micro_batch, global_batch=batch), training

    return _largest(decoder, device, changed)


def longest_sequence(decoder: Decoder, plan: Plan, training: TrainingStep, device: DeviceSpec) -> int:
    """Most tokens of a sequence that fit, in steps of ``LENGTH_STEP`` a context-parallel rank; 0 where none does.

    Raises:
        ModelError: as ``memory_of``.
    """
    step = LENGTH_STEP * plan.cp
    return step * _largest(decoder, device, lambda steps: (plan, replace(training, seq_len=steps * step)))


def _largest(decoder: Decoder, device: DeviceSpec, changed: Callable[[int], tuple[Plan, TrainingStep]]) -> int:
    """The largest number that fits, given that all smaller ones do: doubled until one does not, then halved between."""

    def fits(number: int) -> bool:
        return verdict(memory_of(decoder, *changed(number), device), device).fits

    low, high = 0, 1
    while high <= MOST and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
