"""One decoder by both front ends, a trace of its module and its description, under one engine and plan."""

from __future__ import annotations

import tomllib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest

from neusight import Predictor
from neusight.devices import load_device
from neusight.distributed import estimate, search, sources, step
from neusight.distributed.estimate import TrainingEstimate
from neusight.distributed.factors import PRIOR
from neusight.distributed.priced import price_parts
from neusight.distributed.sources import DescribedModel, TracedModel, forward_plan, node_of
from neusight.distributed.step import StepParts, programs_by_share
from neusight.distributed.training_run import TrainingRun
from neusight.engines import engine_named
from neusight.kernels.describe import describe
from neusight.kernels.families import Collective, KernelBatch
from neusight.plans.memory import RankMemory, program_memory
from neusight.plans.shard_graph import tensor_parallel
from neusight.plans.stages import RankParameters, Stage, stage_weights
from neusight.plans.states import States
from neusight.requests import Plan, Request
from neusight.workloads import load_workload
from neusight.workloads.decoders.known import known_decoder
from neusight.workloads.decoders.shares import Local
from neusight.workloads.program import Part, Program, Segment
from neusight.workloads.workload import Workload

FrontEnd = Literal["traced", "described"]
FRONT_ENDS: tuple[FrontEnd, ...] = ("traced", "described")
ENGINE = "torch-compiled"
LENGTH = 1024
Key = tuple[str, str]
"""Pass, and what the kernel is of."""


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why one front end has a kernel that the other has not: what it is called there, in which pass, of which decoders
    (all unless told) and of which shape (any unless told).
    """

    front_end: FrontEnd
    phase: str
    name: str
    reason: str
    decoders: tuple[str, ...] = ()
    shape: str = ""

    def covers(self, front_end: FrontEnd, model: str, key: Key, name: str) -> bool:
        """Whether it is about a kernel."""
        mine = front_end == self.front_end and key[0] == self.phase and name == self.name
        return mine and (not self.decoders or model in self.decoders) and key[1].startswith(self.shape)


@cache
def reasons() -> tuple[Reason, ...]:
    """All of ``reasons.toml``."""
    rows = tomllib.loads((Path(__file__).parent / "reasons.toml").read_text(encoding="utf-8"))["kernel"]
    return tuple(Reason(**row | {"decoders": tuple(row.get("decoders", ()))}) for row in rows)


@cache
def traced_step(model: str, mode: str, local: Local) -> Workload:
    """What one rank runs of a micro-batch, compiled."""
    request = Request.of(
        model, mode=mode, batch=local.batch, seq_len=local.seq_len, dtype=local.dtype, attention="sdpa",
        launch="compiled", optimizer="adamw" if mode == "training" else "none",
    )  # fmt: skip
    return tensor_parallel(load_workload(model, request), local.tp, by_tokens=local.sequence_parallel)


@cache
def traced_model(model: str, mode: str) -> TracedModel:
    """The model by its traces."""
    usual = Local(batch=1, seq_len=LENGTH)
    return TracedModel(name=model, trace=lambda local: traced_step(model, mode, local), usual=usual)


def run_of(front_end: FrontEnd, model: str, device: str, plan: Plan, mode: str = "training") -> TrainingRun:
    """A step of a model by one of its front ends."""
    return TrainingRun(
        decoder=traced_model(model, mode) if front_end == "traced" else known_decoder(model),
        cluster=node_of(load_device(device), plan.world),
        plan=replace(plan, gradient_dtype="bfloat16"),
        seq_len=LENGTH,
        engine=engine_named(ENGINE),
        optimizer="adamw",
    )


def forward_of(program: Program) -> Program:
    """A training step's program without what its loss and its backward pass run and keep: logits are what comes out,
    gathered where ranks share the vocabulary.
    """

    def forward(segment: Segment) -> Segment:
        parts = tuple(part for part in segment.of("forward") if "loss" not in part.name)
        return replace(segment, parts=parts, dispatches=(), saved=(), logits=0.0)

    ranks = max((int(part.batch["ranks"][0]) for part in program.after.parts if part.group == "tp"), default=1)
    after = replace(forward(program.after), widest_bytes=2.0 * program.after.logits)
    if ranks > 1:
        size = round(2 * ranks * program.after.logits)
        batch = KernelBatch.of([Collective(op="all_gather", ranks=ranks, bytes=size, dtype="bfloat16")])
        after = replace(
            after, parts=(*after.parts, Part(name="gather logits", phase="forward", batch=batch, group="tp"))
        )
    return replace(program, before=forward(program.before), layers=tuple(map(forward, program.layers)), after=after)


@dataclass(frozen=True)
class ForwardOnly(DescribedModel):
    """A described decoder that is not trained."""

    def program(self, run: TrainingRun) -> Program:
        return forward_of(super().program(run))

    def update(self, run: TrainingRun, stage: Stage) -> tuple[Part, ...]:
        return ()

    def memory(self, run: TrainingRun, stages: Sequence[Stage]) -> tuple[RankMemory, ...]:
        program = self.program(run)
        weights = [2.0 * RankParameters.of(stage_weights(stage, program)).total for stage in stages]
        held = [
            (stage, States(weights=size, gradients=0.0, optimizer=0.0, cast=0.0))
            for stage, size in zip(stages, weights, strict=True)
        ]
        return program_memory(program, held, run.plan, run, run.cluster.device)


def forward_step(predictor: Predictor, front_end: FrontEnd, model: str, device: str, plan: Plan) -> TrainingEstimate:
    """Forward passes of one replica's micro-batches, as they follow each other."""
    run = run_of(front_end, model, device, forward_plan(plan), "inference")
    if front_end == "traced":
        return predictor.training(run)
    with pytest.MonkeyPatch.context() as patch:
        for module in (search, estimate, sources, step):
            patch.setattr(module, "source_of", lambda run: ForwardOnly(run.decoder), raising=False)
        return predictor.training(run)


@dataclass
class Kernels:
    """Of one shape in one pass: runs by what they are called, and seconds of all."""

    runs: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


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


def kernels(predictor: Predictor, run: TrainingRun, mode: str = "training") -> dict[Key, Kernels]:
    """Kernels by pass and shape, with how often a micro-batch and the update of a plan without stages run them;
    gradients of weights count as the backward pass's.

    A forward pass is that of a training step without its loss: what is asked of a model in inference.
    """
    program = programs_by_share([run])[run.local]
    parts = list(program.counted_parts)
    if mode == "training":
        step = StepParts.of(run, program)
        parts += [part for part in step.once if part.phase == "step"]
    else:
        parts = [part for part in parts if part.phase == "forward" and "loss" not in part.name]
    pricer = predictor.on_cluster(run.cluster, run.engine)
    times = price_parts(parts, run.cluster.device, pricer, run.engine, PRIOR)
    found: dict[Key, Kernels] = defaultdict(Kernels)
    for part, total_s in zip(parts, times.total_s.tolist(), strict=True):
        phase = "backward" if part.phase == "weights" else part.phase
        same = found[phase, shape_of(part.batch)]
        same.runs[part.name] += round(part.runs)
        same.seconds += total_s
    return found


@dataclass(frozen=True)
class Comparison:
    """Kernels of a decoder by both front ends."""

    model: str
    traced: Mapping[Key, Kernels]
    described: Mapping[Key, Kernels]

    @property
    def differences(self) -> list[str]:
        """Kernels of which one front end runs more than the other, those of ``reasons`` set aside."""
        lines = []
        for key in sorted({*self.traced, *self.described}):
            traced, described = (self._unexplained(name, key) for name in FRONT_ENDS)
            if sum(traced.values()) != sum(described.values()):
                lines.append(f"{key[0]} {key[1]}: traced {dict(traced)}, described {dict(described)}")
        return lines

    def seconds(self, front_end: FrontEnd) -> float:
        """Of kernels that both have."""
        kernels = getattr(self, front_end)
        return sum(k.seconds * self._unexplained(front_end, key).total() / k.runs.total() for key, k in kernels.items())

    @property
    def reasons(self) -> set[Reason]:
        """Those that were needed."""
        return {
            reason
            for name in FRONT_ENDS
            for key, kernels in getattr(self, name).items()
            for kernel in kernels.runs
            for reason in reasons()
            if reason.covers(name, self.model, key, kernel)
        }

    def _unexplained(self, front_end: FrontEnd, key: Key) -> Counter[str]:
        runs = getattr(self, front_end).get(key, Kernels()).runs
        return Counter({
            name: count
            for name, count in runs.items()
            if not any(reason.covers(front_end, self.model, key, name) for reason in reasons())
        })  # fmt: skip


def compared(predictor: Predictor, model: str, device: str, plan: Plan, mode: str) -> Comparison:
    """Kernels of one rank by both front ends."""
    return Comparison(
        model, *(kernels(predictor, run_of(name, model, device, plan, mode), mode) for name in FRONT_ENDS)
    )
