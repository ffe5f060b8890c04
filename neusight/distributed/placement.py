"""Which ranks of a plan share a node, group by group, and so what their collectives pass."""

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

    def within(self, group: str) -> int:
        """Ranks of a group that share a node: of ``tp``, ``cp``, ``ep``, ``dp``, ``dp-cp``, ``edp`` or ``pp``."""
        plan = self.plan
        dense = {"tp": (plan.tp, 1), "cp": (plan.cp, plan.tp), "dp": (plan.dp, plan.tp * plan.cp)}
        dense["dp-cp"] = (plan.dp * plan.cp, plan.tp)
        dense["pp"] = (plan.pp, plan.dp * plan.tp * plan.cp)
        experts = {"ep": (plan.ep, plan.expert_tp), "edp": (plan.expert_dp, plan.ep * plan.expert_tp)}
        size, stride = (dense | experts)[group]
        return max(1, min(size, self.per_node // stride))

    def size(self, group: str) -> int:
        """Ranks of a group."""
        plan = self.plan
        sizes = {"tp": plan.tp, "cp": plan.cp, "dp": plan.dp, "dp-cp": plan.dp * plan.cp, "pp": plan.pp}
        return {**sizes, "ep": plan.ep, "edp": plan.expert_dp}[group]

    def placed(self, units: Program) -> Program:
        """The units with the nodes that their collectives stay in."""
        return replace(
            units,
            before=self._unit(units.before),
            layers=tuple(self._unit(unit) for unit in units.layers),
            after=self._unit(units.after),
        )

    def collective(self, op: str, group: str, size_bytes: float, dtype: str = "bfloat16") -> KernelBatch:
        """A collective of ``size_bytes`` among the ranks of a group."""
        return KernelBatch.from_columns(
            "collective",
            op=op,
            ranks=self.size(group),
            per_node=self.within(group),
            bytes=int(size_bytes),
            dtype=dtype,
        )

    def _unit(self, unit: Segment) -> Segment:
        return replace(unit, parts=tuple(self._part(part) for part in unit.parts))

    def _part(self, part: Part) -> Part:
        if not part.group:
            return part
        columns = {**part.batch.columns, "per_node": np.array([self.within(part.group)])}
        return replace(part, batch=KernelBatch(part.batch.family, columns))
