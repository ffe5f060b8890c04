"""One decoder by both front ends, a trace of its module and its description, under one engine and plan."""

from __future__ import annotations

import tomllib
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from neusight import Predictor
from neusight.devices import load_device
from neusight.distributed.factors import PRIOR
from neusight.distributed.priced import PartTime, price_parts
from neusight.distributed.sources import TracedModel, node_of
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
REASONS: dict[FrontEnd, dict[str, str]] = tomllib.loads(
    (Path(__file__).parent / "reasons.toml").read_text(encoding="utf-8")
)  # type: ignore[assignment]
"""By front end, what kernels that the other has not are called there, and why."""


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
        cluster=node_of(load_device(device), plan.world),
        plan=replace(plan, gradient_dtype="bfloat16"),
        seq_len=LENGTH,
        engine=engine_named(ENGINE),
        optimizer="adamw",
    )


@dataclass
class Kernels:
    """Of one shape in one pass: runs by what they are called, and seconds of all."""

    runs: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


Key = tuple[str, str]
"""Pass, and what the kernel is of."""


def shape_of(batch: KernelBatch) -> str:
    """A kernel in words; of generated ones what they loop over, since their names are those of what was joined."""
    kernel: Any = batch.kernel(0)
    if kernel.family == "row_reduction":
        return f"rows {kernel.rows}x{kernel.cols}"
    if kernel.family in ("elementwise", "memory"):
        return f"pointwise {kernel.elements}"
    if kernel.family == "optimizer":
        return f"{kernel.op} {kernel.elements:.4g}"
    return describe(kernel)


def parts_of(predictor: Predictor, run: TrainingRun, mode: str = "training") -> list[tuple[PartTime, float]]:
    """Every part of one rank of a plan without stages, with how often a micro-batch and the update run it.

    A forward pass is that of a training step without its loss: what is asked of a model in inference.
    """
    program = programs_by_share([run])[run.local]
    counts = [1, *(program.order.count(kind) for kind in range(len(program.layers))), 1]
    parts = [
        (part, count * part.runs)
        for segment, count in zip(program.segments, counts, strict=True)
        for part in segment.parts
        if mode == "training" or (part.phase == "forward" and "loss" not in part.what)
    ]
    if mode == "training":
        parts += [(part, part.runs) for update in RankWork.of(run, program).updates for part in update]
    pricer = predictor.on_cluster(run.cluster)
    times = price_parts([part for part, _ in parts], run.cluster.device, pricer, run.engine, PRIOR)
    return [(time, runs) for time, (_, runs) in zip(times, parts, strict=True)]


def kernels(predictor: Predictor, run: TrainingRun, mode: str = "training") -> dict[Key, Kernels]:
    """Kernels by pass and shape; gradients of weights count as the backward pass's."""
    found: dict[Key, Kernels] = defaultdict(Kernels)
    for time, runs in parts_of(predictor, run, mode):
        phase = "backward" if time.part.phase == "weights" else time.part.phase
        same = found[phase, shape_of(time.part.batch)]
        same.runs[time.part.what] += round(runs)
        same.seconds += runs * time.latency_s
    return found


@dataclass(frozen=True)
class Difference:
    """A kernel that one front end runs more often than the other, reasons set aside."""

    key: Key
    traced: Mapping[str, int]
    described: Mapping[str, int]


def differences(traced: Mapping[Key, Kernels], described: Mapping[Key, Kernels]) -> list[Difference]:
    """Kernels of which one front end has more, beside those of ``REASONS``."""
    found = []
    for key in sorted({*traced, *described}):
        left = [
            {what: runs for what, runs in kernels.get(key, Kernels()).runs.items() if what not in REASONS[name]}
            for name, kernels in (("traced", traced), ("described", described))
        ]  # type: ignore[index]
        if sum(left[0].values()) != sum(left[1].values()):
            found.append(Difference(key, *left))
    return found


def reasons_used(front_end: FrontEnd, of: Mapping[Key, Kernels]) -> set[str]:
    """Of ``REASONS``, those that some kernel has."""
    return {what for kernels in of.values() for what in kernels.runs if what in REASONS[front_end]}
