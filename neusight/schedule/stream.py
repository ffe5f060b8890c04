"""Kernels in a stream: launches overlap with execution, and the host cannot be outrun."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from neusight.executors.gpu.predictor import KernelEstimates
from neusight.laws.power import PowerDemand, sustained_clock

HOST_DISPATCH_S = 7e-6
"""Host time of one eager operator (assumption). In the operator timings of the float32 data set, operators without a
kernel, such as views, take 6 to 12 µs by the median of each host; this is near the fast end, as befits a floor."""


def in_stream(single: KernelEstimates, interval_s: float) -> KernelEstimates:
    """Estimates of kernels that follow each other in a stream, from those of single launches.

    A kernel timed alone pays its launch, ``single = overhead + execution``. In a stream the host launches the next
    kernel while this one executes, so that a launch costs nothing until execution is shorter than the interval between
    launches, which then limits:

        stream = max(single - overhead, interval)

    Args:
        single: estimates of single launches.
        interval_s: time between two launches from one host thread.
    """
    latency_s, low_s, high_s = (
        np.maximum(part - single.overhead_s, interval_s) for part in (single.latency_s, single.low_s, single.high_s)
    )
    limiter = np.where(single.latency_s - single.overhead_s < interval_s, "launch", single.limiter)
    return replace(
        single,
        latency_s=latency_s,
        low_s=low_s,
        high_s=high_s,
        overhead_s=np.zeros_like(latency_s),
        limiter=limiter,
    )


def share_power(answers: Sequence[KernelEstimates], counts: Sequence[np.ndarray]) -> list[KernelEstimates]:
    """Estimates of kernels that run in one stream under one power limit, from those of kernels that run alone.

    Alone, a power-hungry kernel settles at a low clock. In a step, cool kernels (copies, normalisations) leave part of
    the budget to it, and the clock settles where the average of all meets the limit:

        execution = alone * time(shared clock) / time(own clock)

    Args:
        answers: one entry a family; unchanged when any of them knows no power.
        counts: how often each kernel runs, as the answers.
    """
    demands = [answer.demand for answer in answers if answer.demand is not None]
    if not demands or len(demands) < len(answers):
        return list(answers)
    shared = sustained_clock(PowerDemand.joined(demands), np.concatenate(list(counts)))
    out = []
    for answer, demand in zip(answers, demands, strict=True):
        factor = demand.time_s(shared) / demand.time_s(sustained_clock(demand))
        out.append(_stretched(answer, factor))
    return out


def _stretched(single: KernelEstimates, factor: np.ndarray) -> KernelEstimates:
    """Executions times ``factor``, never below the bound."""
    latency_s, low_s, high_s = (
        single.overhead_s + np.maximum((part - single.overhead_s) * factor, single.bound_s)
        for part in (single.latency_s, single.low_s, single.high_s)
    )
    share = single.bound_s / (latency_s - single.overhead_s)
    return replace(single, latency_s=latency_s, low_s=low_s, high_s=high_s, utilisation=share)


def host_gap_s(device_s: float, operators: int) -> float:
    """Time the device waits for the host in an eager step: the host dispatches ``operators`` operators, views included,
    at ``HOST_DISPATCH_S`` each, and the step cannot end before the last one is dispatched.
    """
    return max(0.0, operators * HOST_DISPATCH_S - device_s)
