"""One model by both front ends, a trace of its module and its description, as runs of one plan."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from neusight import Predictor
from neusight.devices import load_device
from neusight.devices.cluster import Cluster
from neusight.distributed.factors import PRIOR
from neusight.distributed.priced import PartTime, price_parts
from neusight.distributed.sources import TracedModel
from neusight.distributed.step import RankWork, programs_by_share
from neusight.distributed.training_run import TrainingRun
from neusight.engines import engine_named
from neusight.kernels.describe import describe
from neusight.kernels.families import KernelBatch
from neusight.plans.plan import Plan
from neusight.plans.shard_graph import tensor_parallel
from neusight.requests import Request
from neusight.transforms.fusion import fuse
from neusight.workloads import load_workload
from neusight.workloads.decoders.known import known_decoder
from neusight.workloads.decoders.shares import Local
from neusight.workloads.workload import Workload

FrontEnd = Literal["traced", "described"]
FRONT_ENDS: tuple[FrontEnd, ...] = ("traced", "described")
ENGINE = "torch-compiled"
LENGTH = 1024


@cache
def traced_step(model: str, mode: str, local: Local) -> Workload:
    """What one rank runs of a micro-batch, compiled."""
    request = Request.of(
        model, mode=mode, batch=local.batch, seq_len=local.seq_len, dtype=local.dtype, attention="sdpa",
        launch="compiled", optimizer="adamw" if mode == "training" else "none",
    )  # fmt: skip
    return fuse(tensor_parallel(load_workload(model, request), local.tp))


def run_of(front_end: FrontEnd, model: str, device: str, plan: Plan, mode: str = "training") -> TrainingRun:
    """A step of a model by one of its front ends."""
    decoder: Any = known_decoder(model)
    if front_end == "traced":
        usual = Local(batch=plan.micro_batch, seq_len=LENGTH)
        decoder = TracedModel(name=model, trace=lambda local: traced_step(model, mode, local), usual=usual)
    return TrainingRun(
        decoder=decoder,
        cluster=Cluster(id=device, name=device, device=load_device(device), per_node=plan.world),
        plan=replace(plan, gradient_dtype="bfloat16"),
        seq_len=LENGTH,
        engine=engine_named(ENGINE),
        optimizer="adamw",
    )


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """Runs and seconds of the kernels of one family, operator, shape and phase in a step."""

    runs: float
    seconds: float
    limiter: str


Key = tuple[str, str]
"""Phase, kernel."""


def shape_of(batch: KernelBatch) -> str:
    """A kernel in words; of generated ones what they loop over, since their names are those of what was joined."""
    kernel: Any = batch.kernel(0)
    if kernel.family == "row_reduction":
        return f"rows {kernel.rows}x{kernel.cols}"
    if kernel.family in ("elementwise", "memory"):
        return f"pointwise {kernel.elements}"
    return describe(kernel).partition(" in ")[0]


def priced(predictor: Predictor, run: TrainingRun, mode: str = "training") -> list[tuple[PartTime, float]]:
    """Every part of one rank of a plan without stages, with how often a step runs it."""
    program = programs_by_share([run])[run.local]
    work = RankWork.of(run, program)
    counts = [1, *(program.order.count(kind) for kind in range(len(program.layers))), 1]
    parts = [
        (part, run.plan.micro_batches * count * part.runs)
        for segment, count in zip(program.segments, counts, strict=True)
        for part in segment.parts
        if mode == "training" or part.phase == "forward"
    ]
    if mode == "training":
        parts += [(part, part.runs) for update in work.updates for part in update]
    times = price_parts(
        [part for part, _ in parts], run.cluster.device, predictor.on_cluster(run.cluster), run.engine, PRIOR
    )
    return [(time, runs) for time, (_, runs) in zip(times, parts, strict=True)]


def kernels(predictor: Predictor, run: TrainingRun, mode: str = "training") -> dict[Key, Kernels]:
    """Kernels of a step by phase and shape; gradients of weights count as the backward pass's."""
    found: dict[Key, list[Kernels]] = defaultdict(list)
    for time, runs in priced(predictor, run, mode):
        phase = "backward" if time.part.phase == "weights" else time.part.phase
        found[phase, shape_of(time.part.batch)].append(
            Kernels(runs=runs, seconds=runs * time.latency_s, limiter=time.limiter)
        )
    return {
        key: Kernels(runs=sum(k.runs for k in each), seconds=sum(k.seconds for k in each), limiter=each[0].limiter)
        for key, each in found.items()
    }
