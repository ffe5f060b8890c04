"""``Placement``: which ranks of a plan share a node."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from neusight.kernels.families import KernelBatch
from neusight.requests import Plan
from neusight.workloads.program import Part, Program, Segment


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Ranks in Megatron's order: tensor-parallel ones are neighbours, then those of a context, then replicas; stages
    are farthest apart (``parallel_state.py``, order "tp-cp-ep-dp-pp"; Narayanan et al. 2021, section 3).

    ``per_node`` devices share a node.
    """

    plan: Plan
    per_node: int

    @property
    def _groups(self) -> dict[str, tuple[int, int]]:
        """Size and stride of each group of ranks."""
        plan = self.plan
        dense = {"tp": (plan.tp, 1), "dp": (plan.dp, plan.tp * plan.cp)}
        # Those that exchange heads are neighbours (Megatron Core, ``hierarchical_context_parallel_sizes``).
        by = plan.ulysses
        context = {"ulysses": (by, plan.tp), "cp": (plan.cp // by, plan.tp * by)}
        replicas = {"dp-cp": (plan.dp * plan.cp, plan.tp), "pp": (plan.pp, plan.dp * plan.tp * plan.cp)}
        experts = {"ep": (plan.ep, plan.expert_tp), "edp": (plan.expert_dp, plan.ep * plan.expert_tp)}
        return dense | context | replicas | experts

    def within(self, group: str) -> int:
        """Number of ranks of a group that share a node."""
        size, stride = self._groups[group]
        return max(1, min(size, self.per_node // stride))

    def size(self, group: str) -> int:
        """Ranks of a group."""
        return self._groups[group][0]

    def placed(self, units: Program) -> Program:
        """The program whose collectives have the number of their ranks in a node."""
        return replace(
            units,
            before=self._unit(units.before),
            layers=tuple(self._unit(unit) for unit in units.layers),
            after=self._unit(units.after),
        )

    def _unit(self, unit: Segment) -> Segment:
        return replace(unit, parts=tuple(self._part(part) for part in unit.parts))

    def _part(self, part: Part) -> Part:
        if not part.group:
            return part
        columns = {**part.batch.columns, "per_node": np.full(len(part.batch), self.within(part.group))}
        return replace(part, batch=KernelBatch(part.batch.family, columns))
