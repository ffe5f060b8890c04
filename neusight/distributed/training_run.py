"""``TrainingRun``: one training step as a question: a model, how devices share it and its nodes, and what runs it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from neusight.devices.cluster import Cluster
from neusight.engines import Engine
from neusight.errors import DeviceError, ModelError
from neusight.kernels.families import KernelBatch
from neusight.plans.stages import Layered, local_of
from neusight.requests import Plan
from neusight.workloads.decoders.shares import Local
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

    def _unit(self, unit: Segment) -> Segment:
        return replace(unit, parts=tuple(self._part(part) for part in unit.parts))

    def _part(self, part: Part) -> Part:
        if not part.group:
            return part
        columns = {**part.batch.columns, "per_node": np.array([self.within(part.group)])}
        return replace(part, batch=KernelBatch(part.batch.family, columns))


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """A step of ``plan.global_batch`` sequences of ``seq_len`` tokens, or of samples, whose ``seq_len`` is 1.

    ``dtype`` is that of activations and of weights in products; ``products`` that of large products where it is
    narrower (``fp8``). ``optimizer``: adam, adamw, sgd or none.
    """

    decoder: Layered
    cluster: Cluster
    plan: Plan
    seq_len: int
    engine: Engine
    dtype: str = "bfloat16"
    products: str = ""
    optimizer: str = "adam"

    def checked(self) -> TrainingRun:
        """The run, if plan, model and cluster fit each other.

        Raises:
            DeviceError: a cluster of another size than the plan's. ModelError: layers that stages cannot share, no
                sequence, or experts that ranks cannot share out.
        """
        plan, devices = self.plan, self.cluster.devices
        if plan.world != devices:
            degrees = f"dp {plan.dp} x tp {plan.tp} x pp {plan.pp} x cp {plan.cp} = {plan.world} devices"
            others = plan.world // plan.dp
            fit = f"; dp {devices // others} would fit" if devices % others == 0 else ""
            raise DeviceError(f"a plan of {degrees} on a cluster of {devices}{fit}")
        if plan.pp * plan.vp > self.decoder.depth:
            raise ModelError(
                f"{plan.pp} stages of {plan.vp} chunks need as many layers: {self.decoder.name} has "
                f"{self.decoder.depth}, choose a pp x vp that divides it"
            )
        if self.seq_len < 1:
            raise ModelError(f"sequence length {self.seq_len}: give a whole number of at least 1")
        self._check_experts()
        return self

    def _check_experts(self) -> None:
        plan = self.plan
        if plan.ep > 1 and not self.decoder.has_experts:
            raise ModelError(
                f"{self.decoder.name} has no experts that ep {plan.ep} ranks could share out: leave ep at 1"
            )
        ranks, wanted = plan.dp * plan.cp * plan.tp, plan.ep * plan.expert_tp
        if plan.ep > 1 and ranks % wanted:
            raise ModelError(
                f"ep {plan.ep} x etp {plan.expert_tp} = {wanted} do not divide the dp x cp x tp = {ranks} ranks of a "
                "stage: choose degrees that do"
            )

    @property
    def local(self) -> Local:
        """What one rank has of a micro-batch."""
        return local_of(self.plan, self.seq_len, self.dtype, self.products)

    @property
    def placement(self) -> Placement:
        """Which ranks share a node."""
        return Placement(plan=self.plan, per_node=self.cluster.per_node)

    @property
    def unit(self) -> str:
        """What a step is counted in: ``tokens``, or ``samples`` of a model without sequences."""
        return "tokens" if self.seq_len > 1 else "samples"

    @property
    def work(self) -> str:
        """What a step works on, in words."""
        batch = f"{self.plan.global_batch:,}"
        return f"{batch} x {self.seq_len:,} tokens" if self.unit == "tokens" else f"{batch} samples"

    @property
    def tokens(self) -> int:
        """Of a step, on all devices."""
        return self.plan.global_batch * self.seq_len
