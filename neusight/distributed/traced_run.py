"""A traced step that devices share, as the same question that a described model's training step is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from neusight.devices.cluster import Cluster
from neusight.devices.spec import DeviceSpec
from neusight.distributed.sources import TracedModel
from neusight.distributed.training_run import TrainingRun
from neusight.plans.plan import Plan
from neusight.plans.shard_graph import tensor_parallel
from neusight.plans.stages import local_of
from neusight.requests import Request
from neusight.transforms.compiled import compiled
from neusight.workloads.training.local import Local
from neusight.workloads.workload import Workload


def traced_run(
    trace: Callable[[int], Workload],
    request: Request,
    plan: Plan,
    place: DeviceSpec | Cluster,
    tp_plan: Mapping[str, str] | None = None,
) -> TrainingRun:
    """A step of a model by its traces.

    Args:
        trace: the whole model's step for a micro-batch of so many samples.
        request: the step of one micro-batch.
        plan: how it is shared.
        place: the devices: a cluster, or one device, as many of which as the plan has make a node.
        tp_plan: how products are shared, as ``tensor_parallel`` takes it.

    Raises:
        ModelError: a plan that the model does not allow, or that is not estimated. DeviceError: devices without links.
    """

    def local_step(local: Local) -> Workload:
        return compiled(tensor_parallel(trace(local.batch), local.tp, tp_plan))

    seq_len, dtype = request.seq_len or 1, request.precision.weights
    own = plan if request.mode == "training" else forward_plan(plan)
    usual = local_of(own, seq_len, dtype, "")
    return TrainingRun(
        decoder=TracedModel(name=request.model or "the module", trace=local_step, usual=usual),
        cluster=place if isinstance(place, Cluster) else node_of(place, own.world),
        plan=own,
        seq_len=seq_len,
        engine=request.engine,
        dtype=dtype,
        optimizer=request.optimizer,
    ).checked()


def forward_plan(plan: Plan) -> Plan:
    """Of one replica, since replicas exchange nothing in inference: micro-batches follow each other."""
    return replace(plan, dp=1, global_batch=plan.global_batch // plan.dp, schedule="gpipe", shard="none")


def node_of(device: DeviceSpec, devices: int) -> Cluster:
    """A node of so many devices, joined by their own links."""
    return Cluster(id=device.id, name=device.name, device=device, per_node=devices)


def traced_workload(run: TrainingRun) -> Workload:
    """What one rank runs of such a step for a micro-batch."""
    assert isinstance(run.decoder, TracedModel)
    return run.decoder.traced(run.local).workload
