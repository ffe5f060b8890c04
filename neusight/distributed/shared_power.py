"""One power limit over all that a rank does in a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from neusight.executors.costs import Costs
from neusight.laws.power import PowerDemand, sustained_clock


def share_power(answers: Sequence[Costs], counts: Sequence[np.ndarray]) -> list[Costs]:
    """Costs of kernels that run in one stream under one power limit, from those of kernels that run alone.

    Alone, a power-hungry kernel settles at a low clock. In a step on many devices, cool kernels and the gaps in which
    a rank waits for others leave part of the budget to it; the clock settles where the average of all meets the limit:

        execution = alone * time(shared clock) / time(own clock)

    On one device, where no rank waits, measured steps say that next to nothing is lent: there every kernel keeps its
    own clock (``neusight.schedule.timeline``).

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


def _stretched(single: Costs, factor: np.ndarray) -> Costs:
    """Executions times ``factor``, never below the bound."""
    latency_s, low_s, high_s = (
        single.overhead_s + np.maximum((part - single.overhead_s) * factor, single.bound_s)
        for part in (single.latency_s, single.low_s, single.high_s)
    )
    share = single.bound_s / (latency_s - single.overhead_s)
    return replace(single, latency_s=latency_s, low_s=low_s, high_s=high_s, utilisation=share)
