"""Where programs come from: a model's description, or a trace of it. What follows asks neither which it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType

import numpy as np

from neusight.defaults import Defaults, default_seq_len
from neusight.devices.cluster import Cluster
from neusight.devices.spec import DeviceSpec
from neusight.distributed.exchanges import replica_groups
from neusight.distributed.training_run import TrainingRun
from neusight.errors import ModelError
from neusight.kernels.optimizers import optimizer_named
from neusight.kernels.precision import stored_bytes
from neusight.plans.memory import RankMemory, memory_of, program_memory, refused
from neusight.plans.shard_graph import tensor_parallel
from neusight.plans.stages import RankParameters, Stage, local_of, stage_weights, stages_of
from neusight.plans.states import States
from neusight.plans.traced import TracedProgram
from neusight.requests import Plan, Request
from neusight.transforms.passes import Pass
from neusight.transforms.tables import has_tables, split_among
from neusight.workloads.decoders.build import units_of
from neusight.workloads.decoders.decoder import Decoder
from neusight.workloads.decoders.layers import Experts, SelfAttention
from neusight.workloads.decoders.optimizer import Update, optimizer_parts, orthogonalise
from neusight.workloads.decoders.shares import Local
from neusight.workloads.program import Part, Program
from neusight.workloads.workload import Workload


@dataclass(frozen=True)
class DescribedModel:
    """A decoder by its description: what a step needs of a model."""

    decoder: Decoder

    @property
    def depth(self) -> int:
        """Layers that a pipeline can cut between."""
        return self.decoder.depth

    @property
    def experts(self) -> int:
        """Experts of a layer that has any, 0 where none has."""
        part = self.decoder.mixture
        return part.experts if part else 0

    def shares(self, tp: int) -> bool:
        """Whether so many ranks can share every layer."""
        try:
            for layer, _ in self.decoder.layers:
                if isinstance(layer.attention, SelfAttention):
                    layer.attention.projections(self.decoder.hidden, tp)
                if layer.feed_forward is not None and not isinstance(layer.feed_forward, Experts):
                    layer.feed_forward.projections(self.decoder.hidden, tp)
        except ModelError:
            return False
        return True

    def refused(self, plan: Plan) -> str:
        """Why the model's step is not estimated under a plan, "" where it is."""
        return refused(self.decoder, plan)

    def program(self, run: TrainingRun) -> Program:
        """A rank's program for its share of a micro-batch, its collectives not yet placed on nodes.

        Raises:
            ModelError: sizes that ranks cannot share, or a plan that is refused.
        """
        if reason := self.refused(run.plan):
            raise ModelError(reason)
        return units_of(self.decoder, run.local, run.engine)

    def stages(self, run: TrainingRun, layer_s: Sequence[float]) -> tuple[Stage, ...]:
        """Which layers each rank of a pipeline has; ``layer_s`` are seconds of each of ``Program.segments``, where they
        are known.

        Raises:
            ModelError: fewer layers than stages.
        """
        return _balanced(self.decoder.order, run, layer_s)

    def update(self, run: TrainingRun, stage: Stage) -> tuple[Part, ...]:
        """The optimizer's kernels of a rank; fully sharded weights are stepped in float32, narrowed where gathered."""
        if run.optimizer == "none":
            return ()
        held = tuple(stage_weights(stage, self.program(run)))
        parameters = RankParameters.of(held)
        dense, expert = (replica_groups(run, experts=experts)[0] for experts in (False, True))
        share = max(1, round(parameters.dense / dense.ranks + parameters.expert / expert.ranks))
        plan = run.plan
        whole = plan.shard in ("zero3", "hsdp")
        copied = run.engine.master_weights
        stepped = "float32" if copied else run.dtype
        update = Update(
            algorithm=run.optimizer,
            dtype=stepped if whole else run.dtype,
            master_dtype=stepped,
            state_dtype=run.moment_dtype or stepped,
            gradient_dtype=stepped if whole else plan.gradient_dtype,
            clips=copied,
            foreach=run.engine.foreach_optimizer,
            zeroes=copied,
            scales_loss=run.dtype == "float16",
            products="" if whole else run.products,
        )
        parts = optimizer_parts(share, share if whole else round(parameters.total), update)
        if not optimizer_named(run.optimizer).orthogonalises:
            return parts
        return (*orthogonalise(held, share / max(1.0, parameters.total), run.dtype), *parts)

    def sent_bytes(self, run: TrainingRun, stages: Sequence[Stage]) -> float:
        """Activations from a stage to the next for one micro-batch [B]; gradients on the way back are as many. Ranks
        that share the residual stream by tokens send their share (Korthikanti et al. 2022, section 4.2.3).
        """
        return float(run.local.resident_tokens * self.decoder.hidden * stored_bytes(run.dtype))

    def memory(self, run: TrainingRun, stages: Sequence[Stage]) -> tuple[RankMemory, ...]:
        """What each kind of rank needs."""
        chunks = tuple(len(stage.chunks[at]) for at in range(run.plan.vp) for stage in stages)
        return memory_of(self.decoder, run.plan, replace(run, chunk_layers=chunks), run.cluster.device)


@dataclass(frozen=True, eq=False, kw_only=True)
class TracedModel:
    """Any model by traces of it: what a rank runs of a micro-batch, sharded.

    ``trace`` makes that for a rank's share; ``usual`` is a share, of which names and numbers of layers are taken.
    """

    name: str
    trace: Callable[[Local], Workload]
    usual: Local
    _traced: dict[Local, TracedProgram] = field(default_factory=dict, repr=False)

    splits: bool = False
    """Whether replicas share tables of embeddings."""
    notes: tuple[str, ...] = ()
    has_experts = False
    experts = 0

    def changed_by(self, change: Pass) -> TracedModel:
        """With a pass over what each rank runs."""
        return replace(self, trace=lambda local: change(self.trace(local)), _traced={})

    @property
    def depth(self) -> int:
        """Layers that a pipeline can cut between."""
        return self.traced(self.usual).depth

    def shares(self, tp: int) -> bool:
        """As ``DescribedModel`` has it."""
        try:
            self.traced(replace(self.usual, tp=tp))
        except ModelError:
            return False
        return True

    def refused(self, plan: Plan) -> str:
        """As ``DescribedModel`` has it: ways to share a step that traces do not tell."""
        for name in ("cp", "ep", "offload"):
            if getattr(plan, name) != getattr(Plan(), name):
                return f"{name} {getattr(plan, name)} of a traced model is not estimated: leave it out"
        if plan.directions > 1:
            return "schedule dualpipe of a traced model is not estimated: 1f1b, gpipe or zero-bubble"
        if plan.shard == "hsdp":
            return "shard hsdp of a traced model is not estimated: none, zero1, zero2 or zero3"
        return ""

    def traced(self, local: Local) -> TracedProgram:
        """Traced once for each share."""
        if local not in self._traced:
            self._traced[local] = TracedProgram.of(self.trace(local))
        return self._traced[local]

    def program(self, run: TrainingRun) -> Program:
        """As ``DescribedModel`` has it."""
        if reason := self.refused(run.plan):
            raise ModelError(reason)
        return self.traced(run.local).program

    def stages(self, run: TrainingRun, layer_s: Sequence[float]) -> tuple[Stage, ...]:
        """As ``DescribedModel`` has it."""
        # Kinds of layers differ by the share of a rank: collectives keep apart what is fused elsewhere.
        return _balanced(self.traced(run.local).program.order, run, layer_s)

    def update(self, run: TrainingRun, stage: Stage) -> tuple[Part, ...]:
        """As ``DescribedModel`` has it: the traced update, of the stage's share of all parameters."""
        traced = self.traced(run.local)
        every = sum(traced.parameters) or 1
        held = sum(traced.parameters[at] for chunk in self._blocks(stage) for at in chunk)
        held += traced.tied_parameters if stage.last and not stage.first else 0
        return traced.update_of(held / every / replica_groups(run, experts=False)[0].ranks)

    def sent_bytes(self, run: TrainingRun, stages: Sequence[Stage]) -> float:
        """As ``DescribedModel`` has it, at the widest place that the pipeline is cut at."""
        begins = [chunk[0] for stage in stages for chunk in self._blocks(stage) if chunk[0]]
        return float(max((self.traced(run.local).sent_bytes[at - 1] for at in begins), default=0.0))

    def memory(self, run: TrainingRun, stages: Sequence[Stage]) -> tuple[RankMemory, ...]:
        """As ``DescribedModel`` has it."""
        traced = self.traced(run.local)

        def states(stage: Stage) -> States:
            blocks = [at for chunk in self._blocks(stage) for at in chunk]
            return traced.states(blocks, stage.last and not stage.first, run.plan)

        held = [(stage, states(stage)) for stage in stages]
        ranks = program_memory(traced.program, held, run.plan, run, run.cluster.device)
        if run.plan.world > 1 or run.plan.micro_batches > 1 or run.plan.recompute != "none":
            return ranks
        # One pass of one device is what its allocator can be replayed with.
        reserve = traced.reserve_bytes(run.cluster.device.usable_bytes)
        return tuple(replace(rank, reserve_bytes=reserve) for rank in ranks)

    def _blocks(self, stage: Stage) -> list[list[int]]:
        """Blocks of each chunk of a stage: layers by their places, with what stands before and after all layers."""
        chunks = [
            list(range(first + 1, first + 1 + len(chunk)))
            for first, chunk in zip(stage.begins, stage.chunks, strict=True)
        ]
        if stage.first:
            chunks[0] = [0, *chunks[0]]
        if stage.last:
            chunks[-1] = [*chunks[-1], self.depth + 1]
        return chunks


_NONE: Defaults = MappingProxyType({})
Source = DescribedModel | TracedModel
"""What a step needs of a model."""


def _balanced(order: Sequence[int], run: TrainingRun, layer_s: Sequence[float]) -> tuple[Stage, ...]:
    """Stages whose slowest chunk is as fast as can be, or with as many layers each.

    Args:
        order: kind of each layer.
        run: whose plan has chunks, and whose engine says whether they are balanced.
        layer_s: seconds of each of ``Program.segments``, where they are known.
    """
    count = run.plan.pp * run.plan.vp
    if run.chunk_layers:
        return stages_of(order, run.plan, run.chunk_layers)
    if count == 1 or not len(layer_s) or not run.engine.balanced_stages:
        return stages_of(order, run.plan)
    seconds = np.array(layer_s)[[1 + kind for kind in order]]
    seconds[0], seconds[-1] = seconds[0] + layer_s[0], seconds[-1] + layer_s[-1]
    return stages_of(order, run.plan, np.diff(balanced(seconds, count)).tolist())


def balanced(costs: np.ndarray, parts: int) -> np.ndarray:
    """Bounds of ``parts`` stretches, none empty, whose largest sum is the least: shape (parts + 1,)."""
    total = np.concatenate(([0.0], np.cumsum(costs)))
    n = len(costs)
    best = np.full((parts + 1, n + 1), np.inf)
    cut = np.zeros((parts + 1, n + 1), dtype=int)
    best[0, 0] = 0.0
    for part in range(1, parts + 1):
        for end in range(part, n + 1):
            ends = np.maximum(best[part - 1, :end], total[end] - total[:end])
            cut[part, end] = int(ends.argmin())
            best[part, end] = ends[cut[part, end]]
    bounds = [n]
    for part in range(parts, 0, -1):
        bounds.append(int(cut[part, bounds[-1]]))
    return np.array(bounds[::-1])


def source_of(run: TrainingRun) -> Source:
    """Of the run's model."""
    if isinstance(run.decoder, TracedModel):
        return run.decoder
    assert isinstance(run.decoder, Decoder)
    return DescribedModel(run.decoder)


def memory(run: TrainingRun) -> tuple[RankMemory, ...]:
    """What each kind of rank of a run needs, its layers shared out evenly."""
    source = source_of(run)
    return source.memory(run, source.stages(run, ()))


def traced_run(
    trace: Callable[[int], Workload],
    request: Request,
    plan: Plan,
    place: DeviceSpec | Cluster,
    tp_plan: Mapping[str, str] | None = None,
    *,
    defaults: Defaults = _NONE,
    embedding_shard: str = "",
) -> TrainingRun:
    """A step of a model by its traces.

    Args:
        trace: the whole model's step for a micro-batch of so many samples.
        request: the step of one micro-batch.
        plan: how it is shared.
        place: the devices: a cluster, or one device, as many of which as the plan has make a node.
        tp_plan: how products are shared, as ``tensor_parallel`` takes it.
        defaults: values that were chosen for fields of the request and the plan.
        embedding_shard: ``none`` where each replica has all tables of embeddings, which they share else.

    Raises:
        ModelError: a plan that the model does not allow, or that is not estimated. DeviceError: devices without links.
    """

    def local_step(local: Local) -> Workload:
        local.check()
        step = trace(local.batch)
        step = split_among(step, own.dp) if splits else step
        return tensor_parallel(step, local.tp, tp_plan, by_tokens=local.sequence_parallel)

    trace = cache(trace)
    dtype = request.precision.weights or _weight_dtype(trace(plan.micro_batch_size))
    length = request.seq_len or trace(plan.micro_batch_size).request.seq_len
    if request.seq_len is None and length is not None:
        defaults = {**defaults, "seq_len": default_seq_len(length)}
    # Gradients have the dtype of the module's weights, also on their way between replicas.
    own = replace(plan if request.mode == "training" else forward_plan(plan), gradient_dtype=dtype)
    usual = local_of(own, length or 1, dtype, "")
    splits = own.dp > 1 and embedding_shard != "none" and has_tables(trace(own.micro_batch_size))
    return TrainingRun(
        decoder=TracedModel(name=request.model or "the module", trace=local_step, usual=usual, splits=splits),
        cluster=place if isinstance(place, Cluster) else node_of(place, own.world),
        plan=own,
        defaults=defaults,
        seq_len=length or 1,
        engine=request.engine,
        dtype=dtype,
        traced_in=str(request.precision) if request.precision.weights else "",
        optimizer=request.optimizer,
    ).checked()


def _weight_dtype(workload: Workload) -> str:
    """The dtype of most weights of a module, which decides it itself."""
    sizes: Counter[str] = Counter()
    for tensor in workload.tensors:
        if tensor.kind == "weight":
            sizes[tensor.dtype] += tensor.nbytes
    return max(sizes, key=lambda dtype: sizes[dtype], default="float32")


def forward_plan(plan: Plan) -> Plan:
    """Of one replica, since replicas exchange nothing in inference: micro-batches follow each other."""
    return replace(plan, dp=1, global_batch_size=plan.global_batch_size // plan.dp, schedule="gpipe", shard="none")


def node_of(device: DeviceSpec, devices: int) -> Cluster:
    """A node of so many devices, joined by their own links."""
    return Cluster(id=device.id, name=device.name, device=device, per_node=devices)


def traced_workload(run: TrainingRun) -> Workload:
    """What one rank runs of such a step for a micro-batch."""
    assert isinstance(run.decoder, TracedModel)
    return run.decoder.traced(run.local).workload
