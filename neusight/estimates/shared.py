"""The estimate of a traced step that several devices of one node share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from neusight.devices.spec import DeviceSpec
from neusight.estimates.build import estimate_of
from neusight.estimates.estimate import Estimate
from neusight.estimates.records import MemoryEstimate, Provenance
from neusight.executors.costs import Costs
from neusight.kernels.families import Kernel, KernelBatch, group_by_family
from neusight.plans.cut import pipeline_stages
from neusight.plans.plan import Plan
from neusight.plans.program import TracedStep, replica
from neusight.plans.shard_graph import tensor_parallel
from neusight.schedule.overlap import gradient_wait
from neusight.schedule.staged import staged
from neusight.schedule.timeline import Timeline, Wait, one_stream
from neusight.transforms.compiled import compiled
from neusight.workloads.workload import Node, Workload

Price = Callable[[KernelBatch], Costs]


def programs_of(
    workload: Workload, plan: Plan, price: Price, tp_plan: Mapping[str, str] | None = None
) -> list[TracedStep]:
    """What one rank of each pipeline stage runs, the first stage first.

    Args:
        workload: the whole model's step for one micro-batch.
        plan: how it is shared.
        price: costs of kernels, by which stages are balanced.
        tp_plan: how products are shared, as ``tensor_parallel`` takes it.

    Raises:
        ModelError: a plan that the model does not allow, or that is not estimated.
    """
    local = compiled(tensor_parallel(workload, plan.tp, tp_plan))
    stages = pipeline_stages(local, plan.pp, _seconds(local, price)) if plan.pp > 1 else [local]
    return [replica(stage, plan, number) for number, stage in enumerate(stages)]


def estimate_shared(
    programs: Sequence[TracedStep], plan: Plan, device: DeviceSpec, price: Price, provenance: Provenance
) -> Estimate:
    """The step of all ranks: the rows of one rank of the slowest stage, and the memory of the fullest."""
    asked = programs[0].workload.request
    # The inputs of a module say how many samples there are, whatever was asked for.
    samples = asked.batch * plan.dp * plan.micro_batches
    alone = [one_stream(one, [price(batch) for batch, _ in one.batches], device, asked.engine) for one in programs]
    timelines = [_with(one, gradient_wait(one, plan, price)) for one in alone]
    estimate = estimate_of(staged(timelines, plan.micro_batches), device, provenance)
    fullest = max((_in_flight(one, plan) for one in programs), key=lambda memory: memory.peak_bytes)
    if plan.world == 1:
        fullest = replace(fullest, reserve=programs[0].reserve_bytes(device.usable_bytes))
    return replace(
        estimate,
        batch=samples,
        samples=samples,
        devices=plan.world,
        memory=replace(fullest, capacity_bytes=device.usable_bytes),
    )


def _with(timeline: Timeline, wait: Wait | None) -> Timeline:
    return timeline if wait is None else replace(timeline, waits=(*timeline.waits, wait))


def _in_flight(program: TracedStep, plan: Plan) -> MemoryEstimate:
    """Under 1F1B a stage keeps activations of as many micro-batches as stages follow, and its own (Narayanan et al.
    2021, section 2.2).
    """
    kept = min(plan.micro_batches, plan.pp - program.rank)
    memory = replace(program.memory, activations=kept * program.memory.activations)
    return MemoryEstimate.of(memory, 0.0)


def _seconds(workload: Workload, price: Price) -> Callable[[Node], float]:
    """What the kernels of a node take, each launched alone, without what it exchanges: where stages begin does not
    depend on links.
    """
    all_kernels = {kernel for node in workload.nodes for kernel in node.kernels}
    kernels: list[Kernel] = [kernel for kernel in all_kernels if kernel.family != "collective"]
    each = np.zeros(len(kernels))
    for batch, at in group_by_family(kernels):
        each[at] = price(batch).execution_s
    known = dict(zip(kernels, each.tolist(), strict=True))
    return lambda node: sum(known.get(kernel, 0.0) for kernel in node.kernels)
