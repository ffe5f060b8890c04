"""One price for the parts of all programs: each family of kernels is asked once, whoever runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from neusight.executors.costs import Costs
from neusight.kernels.distinct import distinct_rows
from neusight.kernels.families import KernelBatch
from neusight.laws.board_power import EnergyUse
from neusight.laws.power import PowerDemand, shared_clock
from neusight.workloads.program import Part


class PartCosts(NamedTuple):
    """What the kernels of one part take, columns of shape (n,) but for ``costs``, one row a row of ``Part.batch``.

    ``spread`` is the standard deviation of the log error that kernels of a ``cause`` share on the device,
    ``own_spread`` that of each by itself; ``energy`` what they add to what the board draws all the time, None where it
    was not asked for.
    """

    costs: Costs
    """Of all kernels of the part's family that were asked for together."""
    rows: np.ndarray
    """Where the part's kernels stand in ``costs``."""
    energy: EnergyUse | None
    latency_s: np.ndarray
    bound_s: np.ndarray
    spread: np.ndarray
    own_spread: np.ndarray
    cause: np.ndarray
    limiter: np.ndarray


_COLUMNS = ("latency_s", "bound_s", "spread", "own_spread", "cause", "limiter")
"""Columns of ``Costs`` that ``PartCosts`` ends with."""


def price(parts: Sequence[Part], cost: Callable[[KernelBatch], Costs], *, energy: bool = True) -> list[PartCosts]:
    """Costs of every part, in their order.

    Args:
        parts: of any programs. Rows of a part that are the same kernel (a head sees one row a sequence, whatever the
            pass) are priced once.
        cost: answers for a batch of one family, under the conditions that the engine's kernels run in.
        energy: whether energies are wanted.

    Raises:
        DeviceError: the device lacks a dtype. CoverageError: no rule for a kernel.
    """
    families: dict[str, list[int]] = {}
    for number, part in enumerate(parts):
        families.setdefault(part.batch.family, []).append(number)
    priced: dict[int, PartCosts] = {}
    for numbers in families.values():
        distinct = [distinct_rows(parts[number].batch) for number in numbers]
        batch = KernelBatch.joined([parts[n].batch.take(rows) for n, (rows, _) in zip(numbers, distinct, strict=True)])
        starts = np.cumsum([0, *(len(rows) for rows, _ in distinct)])
        costs = cost(batch)
        drawn = costs.drawn if energy else None
        columns = [getattr(costs, name) for name in _COLUMNS]
        for number, start, (_, places) in zip(numbers, starts.tolist(), distinct, strict=False):
            rows = start + places
            taken = (column[rows] for column in columns)
            priced[number] = PartCosts(costs, rows, drawn and drawn.take(rows), *taken)
    return [priced[number] for number in range(len(parts))]


def sharing_power(costs: Sequence[Costs], counts: Sequence[np.ndarray]) -> list[Costs]:
    """Kernels of a step at the one clock that their power allows together, see ``shared_clock``.

    Args:
        costs: as they follow each other in a stream, each at a clock of its own; those whose power is not known stay as
            they are.
        counts: runs of each in the step.
    """
    demands = [_in_step(c, n) for c, n in zip(costs, counts, strict=True) if c.demand is not None]
    if not demands:
        return list(costs)
    clock = shared_clock(PowerDemand.joined(demands))
    time_s = [n * c.execution_s for c, n in zip(costs, counts, strict=True)]
    whole_s = sum(float(each.sum()) for each in time_s)
    return [c.at_clock(clock, each / whole_s) for c, each in zip(costs, time_s, strict=True)]


def _in_step(costs: Costs, counts: np.ndarray) -> PowerDemand:
    """Of all runs, each as long as it takes: what waits for its launch takes that at any clock."""
    demand: PowerDemand = costs.demand  # type: ignore[assignment]
    waits = costs.limiter == "launch"
    longer = costs.execution_s / (demand.lone * demand.time_s(demand.running_clock))
    step = demand.scaled(counts * np.where(waits, 1.0, longer))
    held_s = np.where(waits, counts * costs.execution_s, step.dram_s)
    return replace(
        step, clocked_s=np.where(waits, 0.0, step.clocked_s), ports_s=np.where(waits, 0.0, step.ports_s), dram_s=held_s
    )
