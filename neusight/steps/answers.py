"""How a step that was asked for is answered: on one device by its stream, on several as every program on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import neusight
from neusight.devices import DeviceSpec
from neusight.devices.chosen import version_of
from neusight.devices.slices import cores_of
from neusight.engines.torch import run_on
from neusight.errors import ModelError
from neusight.estimates import Estimate, Provenance
from neusight.estimates.build import estimate_of, wait_row
from neusight.executors import Costs, Executor, load_executor
from neusight.executors.base import LINK, Options
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.kernels.precision import OWN_PRECISION
from neusight.plans import TracedStep, single
from neusight.plans.states import workspace_bytes
from neusight.quick_dataclasses import dataclass
from neusight.requests import NOTHING_SELECTED, Plan, Request
from neusight.schedule.timeline import Wait, one_stream
from neusight.steps.questions import (
    ByContent,
    Setting,
    StepQuestion,
    checked,
    step_request,
    traces_of,
    unchanged,
    workload_of,
)
from neusight.transforms.compiled import compiled
from neusight.transforms.precision import as_computed
from neusight.transforms.sparsity import as_profile
from neusight.workloads.target import TargetDevice
from neusight.workloads.workload import DEPENDS_ON_DATA

if TYPE_CHECKING:
    from neusight.devices.cluster import Cluster
    from neusight.distributed.training_run import TrainingRun
    from neusight.workloads.workload import Workload

Price = Callable[[KernelBatch], Costs]
_REMEMBERED = 256
"""Programs that are kept: a few hundred kernels each."""
_SHARED = 16
"""Workloads that are kept for the passes that come upon them: some megabytes each."""


@dataclass(frozen=True, kw_only=True)
class ReadyStep:
    """A step that waits for its prices."""

    question: StepQuestion
    program: TracedStep
    device: DeviceSpec

    @property
    def setting(self) -> Setting:
        """Of the question."""
        return self.question.setting


class StepAnswers:
    """Answers for steps of models, by the executors of all kinds of devices.

    Args:
        executors: by kind of device, those that are loaded already.
        tile_models: folder that constants of links lie in; default: those that ship.
    """

    def __init__(self, executors: Mapping[str, Executor], tile_models: Path | None = None) -> None:
        self._executors = dict(executors)
        self._tile_models = tile_models
        self._programs = lru_cache(maxsize=_REMEMBERED)(self._compiled)
        self._workloads = lru_cache(maxsize=_SHARED)(self._changed)
        self._first_targets: dict[tuple[Any, ...], TargetDevice] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """To another process goes what answers, not what is remembered of answers."""
        return StepAnswers, (self._executors, self._tile_models)

    def executor(self, device: DeviceSpec, family: str = "") -> Executor:
        """What answers for kernels of a family on a device; collectives are those of links."""
        kind = LINK if family == "collective" else device.kind
        if kind not in self._executors:
            self._executors[kind] = load_executor(kind, self._tile_models if kind == LINK else None)
        return self._executors[kind]

    def cost(
        self, batch: KernelBatch, device: DeviceSpec, setting: Setting, conditions: Conditions | None = None
    ) -> Costs:
        """Kernels of a family, each launched alone; default under the conditions of ``Conditions.requested``."""
        return self.executor(device, batch.family).cost(batch, device, setting.options, conditions)

    def on_cluster(self, cluster: Cluster, options: Options) -> Callable[[KernelBatch, DeviceSpec, Conditions], Costs]:
        """What answers for kernels on a cluster's devices, and for collectives on its links and network."""

        def cost(batch: KernelBatch, device: DeviceSpec, conditions: Conditions) -> Costs:
            place: Any = cluster if batch.family == "collective" else device
            return self.executor(device, batch.family).cost(batch, place, options, conditions)

        return cost

    def answer(self, question: StepQuestion) -> Estimate:
        """The step on one device, or on those of its plan."""
        return self._shared(question) if question.shared else self.estimate(self.ready(question))

    def ready(self, question: StepQuestion) -> ReadyStep:
        """A step as a program for one device."""
        setting = question.setting
        device, request = checked(question.gpu, question.request, setting)
        program = self._program(question.model, question.inputs, request, setting, TargetDevice.of(device))
        return ReadyStep(question=question, program=program, device=device)

    def estimate(self, ready: ReadyStep, price: Price | None = None) -> Estimate:
        """The step on one device; ``price``: of its kernels where they are priced already."""
        device, setting, program = ready.device, ready.setting, ready.program
        price = price or self._price_of(ready)
        costs = [price(batch) for batch, _ in program.batches]
        engine = program.workload.request.engine
        libraries = setting.libraries or self.executor(device).libraries
        timeline = one_stream(program, costs, device, engine, setting.host, libraries=libraries)
        trains = program.workload.request.mode == "training"
        reserve = int(program.reserve_bytes(device.usable_bytes) + workspace_bytes(device, engine, backward=trains))
        reserve = reserve if device.has_driver else 0
        estimate = estimate_of(timeline, device, self._provenance(device, setting), reserve)
        estimate = self._from_nothing_selected(ready, estimate)
        return self._with_advice(estimate, device, ready.question)

    def _from_nothing_selected(self, ready: ReadyStep, estimate: Estimate) -> Estimate:
        """The estimate with an interval from that of a step in which nothing is selected by values that are not known,
        where sizes depend on those and no share of them is given; its bound is that step's as well.
        """
        question = ready.question
        if question.request.shares or not any(DEPENDS_ON_DATA in text for text in estimate.warnings):
            return estimate
        try:
            nothing = self.ready(replace(question, request=replace(question.request, shares=NOTHING_SELECTED)))
            least = self.estimate(nothing)
        except ModelError:
            return estimate
        released_s = min(0.0, least.bound_s - estimate.bound_s)
        wait = Wait(
            what="sizes that depend on data", limiter="host", latency_s=0.0, low_s=0.0, high_s=0.0, bound_s=released_s
        )
        rows = (*estimate.by_kernel, wait_row(wait)) if released_s else estimate.by_kernel
        return replace(estimate, by_kernel=rows, least_share=min(1.0, least.low_s / estimate.latency_s))

    def _price_of(self, ready: ReadyStep) -> Price:
        """Of kernels of a step whose operands are cold, or lie in L2 as far as what the step moves does."""
        device, setting = ready.device, ready.setting
        if setting.operands == "cold":
            return lambda batch: self.cost(batch, device, setting)
        cycled = ready.program.moved_bytes
        return lambda batch: self.cost(batch, device, setting, Conditions.of(len(batch), cycled_bytes=cycled))

    def _shared(self, question: StepQuestion) -> Estimate:
        """The step of a plan with several micro-batches or devices."""
        from neusight.distributed.shared import shared_estimate
        from neusight.distributed.sources import traced_run, traced_workload
        from neusight.distributed.step import timed

        setting, plan = question.setting, question.setting.plan or Plan()
        device, request = checked(question.gpu, question.request, setting)
        trace = traces_of(question.model, request, setting, device, question.inputs)
        run = traced_run(trace, request, plan, device, setting.tp_plan)
        step = timed([run], self.on_cluster(run.cluster, setting.options))[0]
        workload = traced_workload(run)
        # The inputs of a module say how many samples there are, whatever was asked for.
        samples = workload.request.batch * plan.dp * plan.micro_batches
        estimate = shared_estimate(step, workload, samples, plan.world, self._provenance(device, setting))
        return self._with_advice(estimate, device, question)

    def _program(self, model: Any, inputs: Any, request: Request, setting: Setting, target: TargetDevice) -> TracedStep:
        """What a device runs; the step of a model that has a name is remembered, once for all targets that agree with
        what its module has read of one.
        """
        if isinstance(model, str | Path) and inputs is not None:
            raise ModelError(f"inputs belong to a module in Python; those of '{model}' follow from batch and length")
        if not isinstance(model, str | Path):
            return single(compiled(workload_of(model, request, setting, target, inputs)))
        zeros = as_profile(setting.sparsity) if setting.sparsity is not None else None
        remembered = Setting(
            allow_fallback=setting.allow_fallback,
            sparsity=None if zeros is None else ByContent(zeros),  # type: ignore[arg-type]
            fused_optimizer=setting.fused_optimizer,
            cache=setting.cache,
            passes=setting.passes,
            step=setting.step,
        )
        asked = str(model), version_of(model), request, remembered
        first = self._first_targets.get((*asked, target.tf32), target)
        program = self._programs(*asked, first)
        self._first_targets.setdefault((*asked, target.tf32), first)
        agrees = target.agrees(program.workload.target)
        return program if agrees else self._programs(*asked, target)

    def _compiled(
        self, model: str, version: int, request: Request, setting: Setting, target: TargetDevice
    ) -> TracedStep:
        workload = self._workloads(model, version, request, setting, target)
        return single(compiled(as_computed(workload, target.tf32)))

    def _changed(self, model: str, version: int, request: Request, setting: Setting, target: TargetDevice) -> Workload:
        """A step with its passes: the last upon what those before it made, which many questions share."""
        if not setting.passes:
            return unchanged(model, request, setting, target)
        before = replace(setting, passes=setting.passes[:-1])
        return setting.passes[-1](self._workloads(model, version, request, before, target))

    def _provenance(self, device: DeviceSpec, setting: Setting) -> Provenance:
        executor = self.executor(device)
        zeros = as_profile(setting.sparsity).source if setting.sparsity is not None else ""
        return Provenance(
            neusight=neusight.__version__,
            hypothetical=device.hypothetical,
            sparsity=zeros if "sparsity" in executor.takes else "",
            **executor.provenance(device),
        )

    def _with_advice(self, estimate: Estimate, device: DeviceSpec, question: StepQuestion) -> Estimate:
        executor, setting = self.executor(device), question.setting
        advice = executor.advice(device, setting.sparsity is not None)
        ignored = _without_effect(executor, device, setting, question.request.engine.layout, estimate)
        warnings = (*device.likeness, *ignored, *advice, *estimate.warnings)
        return replace(estimate, assumed=question.assumed(estimate.seq_len), question=question.words, warnings=warnings)


def training_run(
    model: Any, cluster: Cluster, options: Mapping[str, Any], engine: str = "", inputs: Any = None
) -> TrainingRun:
    """A training step on a cluster: by a description of the model, or by traces of it where PyTorch itself runs it.

    Args:
        model, cluster, options, engine, inputs: as ``Predictor.training_run`` takes them.

    Raises:
        As there.
    """
    from neusight.distributed.training_run import usual_run
    from neusight.engines import engine_named, usual_trainer
    from neusight.workloads.decoders.decoder import Decoder
    from neusight.workloads.decoders.known import known_decoder

    trains = engine_named(engine or usual_trainer(cluster.device))
    if not isinstance(model, Decoder) and trains.traces_modules:
        return traced_training(model, cluster, options, trains.name, inputs)
    return usual_run(model if isinstance(model, Decoder) else known_decoder(str(model)), cluster, options, engine)


def traced_training(
    model: Any, cluster: Cluster, options: Mapping[str, Any], engine: str, inputs: Any = None
) -> TrainingRun:
    """A training step on a cluster by traces of a model, as PyTorch itself runs it.

    Args:
        model, inputs: as ``Predictor.estimate`` takes them.
        cluster, options, engine: as ``Predictor.training_run`` takes them.
    """
    from neusight.distributed.sources import traced_run
    from neusight.distributed.training_run import adapters_of, plan_defaults, run_fields, usual_plan
    from neusight.engines import engine_named

    cluster = cores_of(cluster) if engine_named(engine).ranks == "core" else cluster
    # Gradients have the dtype of the module's weights, whatever it is asked in.
    given = {name: value for name, value in options.items() if name != "dtype"}
    plan = usual_plan(given, cluster.devices, engine, cluster.size_words)
    step = {"mode": "training", "batch": plan.micro_batch_size, "launch": engine_named(engine).launch}
    if unread := [name for name in ("source_len", "mtp_layers", "moment_dtype") if options.get(name)]:
        raise ModelError(f"{unread[0]} of a traced model is not estimated: name an engine that runs decoders")
    if adapters_of(options):
        raise ModelError("adapters of a traced model are not estimated: name an engine that runs decoders")
    request, defaults = step_request(model, step | run_fields(options))
    if request.precision != OWN_PRECISION:
        cluster.device.gemm_flops_per_s(request.precision.of_products)
    request = replace(request, engine=run_on(cluster.device, request.engine))
    trace = traces_of(model, request, Setting(), cluster.device, inputs)
    defaults = {**defaults, **plan_defaults(options, plan, request.engine)}
    split = str(options.get("embedding_shard") or "")
    return traced_run(trace, request, plan, cluster, defaults=defaults, embedding_shard=split)


def _without_effect(
    executor: Executor, device: DeviceSpec, setting: Setting, layout: str, estimate: Estimate
) -> tuple[str, ...]:
    """A line for each option that was given and changes nothing."""
    zeros = [name for name in setting.options.given if name not in executor.takes]
    lines = [f"--{name} has no effect on {device.id}: it is no machine that skips zeros" for name in zeros]
    shapes = [text.rpartition("=")[2].partition(":")[0] for text in estimate.inputs]
    if layout != "nchw" and not any(shape.count("x") >= _IMAGE_EXTENTS for shape in shapes):
        lines.append(f"layout {layout} has no effect on {estimate.model}: none of its inputs is a batch of images")
    if plan := setting.plan:
        lines += plan.without_effect(experts=True, training=estimate.mode == "training")
    return tuple(lines)


_IMAGE_EXTENTS = 3
"""Signs between the four extents of images: batch, channels, height and width."""
