"""``TracedStep``: the step of a workload on one device, with its kernels as columns."""

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
    """A step, ready for any device: the part that repeated estimates have in common.

    ``batches`` has one batch a family with the positions of its rows in ``launches``; ``counts`` the number of runs of
    each launch. ``traffic_bytes`` are the sets of distinct bytes of ``Workload.traffic_bytes``,
    ``dispatches`` the number of the host's dispatches, see ``workloads.dispatch``.
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
        """Memory of a process in addition to the tensors of its workload [B], see ``plans.allocator``; replayed once
        for each capacity [B].
        """
        if capacity_bytes not in self._reserves:
            self._reserves[capacity_bytes] = reserve_bytes(self.workload, capacity_bytes)
        return self._reserves[capacity_bytes]

    @property
    def moved_bytes(self) -> float:
        """Bytes that the step's kernels move: the upper limit between two uses of an operand of a repeated step."""
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
    """Columns of zeros where a transform has set any."""
    zeros = [launches[at].zeros for at in positions]
    return with_zeros(batch, zeros) if any(pair is not None for pair in zeros) else batch
