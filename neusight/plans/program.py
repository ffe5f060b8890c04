"""``TracedStep``: what one device runs of a workload, with its kernels as columns."""

from __future__ import annotations

from dataclasses import field

import numpy as np

from neusight.kernels.describe import describe
from neusight.kernels.families import KernelBatch, group_by_family
from neusight.kernels.sparsity import with_zeros
from neusight.kernels.work import work_of
from neusight.plans.allocator import reserve_bytes
from neusight.quick_dataclasses import dataclass
from neusight.workloads.dispatch import dispatches, step_kinds
from neusight.workloads.workload import Launch, MemoryProfile, Workload


@dataclass(frozen=True)
class TracedStep:
    """A step, ready for any device: what repeated estimates have in common.

    ``batches`` holds one batch a family with the positions that its rows have in ``launches``; ``counts`` how often
    each launch runs. ``traffic_bytes`` are the sets of distinct bytes of ``Workload.traffic_bytes``,
    ``dispatches`` what the host does, see ``workloads.dispatch``.
    """

    workload: Workload
    launches: tuple[Launch, ...]
    batches: tuple[tuple[KernelBatch, np.ndarray], ...]
    descriptions: tuple[str, ...]
    memory: MemoryProfile
    traffic_bytes: tuple[int, ...]
    dispatches: float
    _reserves: dict[float, int] = field(default_factory=dict, repr=False, compare=False)

    def reserve_bytes(self, capacity_bytes: float) -> int:
        """What a process takes beside the tensors of its workload [B], see ``plans.allocator``; replayed once for each
        capacity [B].
        """
        if capacity_bytes not in self._reserves:
            self._reserves[capacity_bytes] = reserve_bytes(self.workload, capacity_bytes)
        return self._reserves[capacity_bytes]

    @property
    def moved_bytes(self) -> float:
        """What the kernels of the step move [B]: between two uses of an operand of a repeated step at most that."""
        return sum(float((work_of(batch).bytes * self.counts[at]).sum()) for batch, at in self.batches)

    @property
    def counts(self) -> np.ndarray:
        """Runs of each launch in a step, shape (launches,)."""
        return np.array([launch.count for launch in self.launches])


def single(workload: Workload) -> TracedStep:
    """The whole step on one device."""
    launches = workload.launches
    return TracedStep(
        workload=workload,
        launches=launches,
        batches=tuple(
            (_with_zeros(batch, at, launches), at)
            for batch, at in group_by_family(launch.kernel for launch in launches)
        ),
        descriptions=tuple(describe(launch.kernel) for launch in launches),
        memory=workload.memory,
        traffic_bytes=workload.traffic_bytes,
        dispatches=dispatches(step_kinds(workload)),
    )


def _with_zeros(batch: KernelBatch, positions: np.ndarray, launches: tuple[Launch, ...]) -> KernelBatch:
    """Columns of zeros where a transform has told any."""
    zeros = [launches[at].zeros for at in positions]
    return with_zeros(batch, zeros) if any(pair is not None for pair in zeros) else batch
