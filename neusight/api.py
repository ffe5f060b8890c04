"""What people call: ``Predictor`` answers for kernels, models and whole grids of both."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from inspect import signature
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import neusight
from neusight.devices import DeviceSpec, load_device
from neusight.errors import DeviceError, LoadError, ModelError, NeusightError, shown
from neusight.estimates import Estimate, KernelEstimate, Provenance
from neusight.estimates.build import estimate_of, lone_kernels
from neusight.executors import Costs, Executor, Options, load_executor
from neusight.executors.base import LINK
from neusight.executors.gpu.predictor import KernelPredictor
from neusight.executors.together import Together
from neusight.kernels import Kernel, KernelBatch
from neusight.kernels.conditions import COLD, MANY_LAUNCHES, Conditions
from neusight.kernels.named import requested
from neusight.kernels.precision import OWN_PRECISION
from neusight.kernels.work import work_of
from neusight.laws.bounds import cold_s
from neusight.plans import TracedStep, single
from neusight.plans.plan import Plan
from neusight.requests import Request
from neusight.schedule.timeline import one_stream
from neusight.transforms.compiled import compiled
from neusight.transforms.optimizer import fuse_optimizer
from neusight.transforms.precision import as_computed
from neusight.transforms.sparsity import Sparsity, as_profile, sparsify

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from neusight.devices.cluster import Cluster
    from neusight.distributed.estimate import TrainingEstimate
    from neusight.distributed.factors import Factors
    from neusight.distributed.search import Found
    from neusight.distributed.space import Space
    from neusight.distributed.step import TimedStep
    from neusight.distributed.training_run import TrainingRun
    from neusight.serving.deployment import Deployment, EngineOptions, Setup
    from neusight.serving.estimate import ServingEstimate
    from neusight.serving.load import Load, TokenCounts
    from neusight.serving.passes import ReplicaPricer
    from neusight.serving.planning import Choice, Demand
    from neusight.workloads.decoders.decoder import Decoder
    from neusight.workloads.workload import Workload

Gpu = str | Path | DeviceSpec
Price = Callable[[KernelBatch], Costs]
_REMEMBERED = 256
"""Programs that a predictor keeps: a few hundred kernels each."""
_TOGETHER = 200
"""Steps of a sweep whose kernels are priced at once; beyond that a call's own price no longer shows."""
_DEPLOYMENTS = 64
"""Served models that a predictor keeps with the times of their passes: about a megabyte each."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How a step is estimated, beside what it is.

    Args:
        overrides: ``key=value`` changes of the device; the estimate says that it is hypothetical.
        allow_fallback: estimate operators without a rule as data movement, visibly, instead of raising.
        sparsity: zeros of the layers' tensors, for devices that skip them: a ``SparsityProfile``, its file, or
            ``activations=0.6,gradients=0.5`` for all layers.
        simulate: on such a device, run its scheduler instead of the tile model that has learned from it.
        compression: on such a device, zeros don't travel to and from DRAM.
        fused_optimizer: the optimizer updates all parameters in one pass, as ``fused=True`` and Apex do.
        cache: read and write the user's cache of traces.
        plan: how several devices of one node share the step, whose batch is then the plan's ``global_batch``.
        layout: of images, for a line where it has no effect.
        tp_plan: how products are shared over ``tp`` ranks, module path with ``*`` to ``colwise``, ``rowwise`` or
            ``replicated``, as in PyTorch's ``parallelize_module`` and Hugging Face's ``base_model_tp_plan``; default as
            the model's structure tells.
    """

    overrides: Sequence[str] = ()
    allow_fallback: bool = False
    sparsity: Sparsity | None = None
    simulate: bool = False
    compression: bool = False
    fused_optimizer: bool = False
    cache: bool = True
    plan: Plan | None = None
    tp_plan: Mapping[str, str] | None = None
    layout: str = "nchw"

    @property
    def options(self) -> Options:
        """Those of the executor."""
        return Options(simulate=self.simulate, compression=self.compression)


class Predictor:
    """Latency of kernels and models on any device.

    >>> predictor = Predictor.load()
    >>> predictor.estimate("gpt2-large", "l4", mode="training").latency_s
    >>> predictor.kernel("gemm", "l4", m=4096, n=4096, k=4096).utilisation

    One predictor answers many questions: it keeps tile models, devices and the kernels of every model that it has seen.
    """

    def __init__(
        self, kernels: KernelPredictor, tile_models: Path | None = None, links: Executor | None = None
    ) -> None:
        self.kernel_predictor = kernels
        self._tile_models = tile_models
        self._programs = lru_cache(maxsize=_REMEMBERED)(_program)
        self._executors: dict[str, Executor] = {"gpu": kernels} | ({LINK: links} if links else {})
        self._replicas: OrderedDict[tuple[Any, ...], ReplicaPricer] = OrderedDict()

    @classmethod
    def load(cls, tile_models: str | Path | None = None, calibrations: str | Path | None = None) -> Predictor:
        """A predictor with the tile models that ship, or with those of a folder that ``neusight train`` wrote.

        Args:
            tile_models: that folder.
            calibrations: a file that ``neusight calibrate`` wrote, or a folder of them. The commands take
                ``neusight.paths.calibrations_dir()``.

        Raises:
            ArtifactError: the folder holds no tile models of this protocol, or they are damaged; a calibration that is
                none, or was fitted on other tile models.
        """
        paths = [None if path is None else Path(path) for path in (tile_models, calibrations)]
        executor = load_executor("gpu", *paths)
        assert isinstance(executor, KernelPredictor)
        return cls(executor, paths[0])

    def kernel(
        self,
        kernel: Kernel | str,
        gpu: Gpu,
        /,
        overrides: Sequence[str] = (),
        *,
        operands: str = "cold",
        timing: str = "stream",
        engine: str = "torch",
        **fields: Any,
    ) -> KernelEstimate:
        """One kernel by itself, its launch included.

        Args:
            kernel: a kernel, or the name of a family or operator, whose shape ``fields`` give.
            gpu: id of the catalogue, a device file, or a ``DeviceSpec``.
            overrides: ``key=value`` changes of the device.
            operands: ``cold``, all of them in device memory, or ``resident`` in L2 as far as they fit, as when the
                same launch is repeated. Bound and latency hold for what is asked.
            timing: ``stream``, launched alone; ``graph``, one of many in a CUDA graph; ``profiler``, without launch.
            engine: whose kernel runs: ``torch``, ``vllm``, ``sglang``, ``trtllm``.
            fields: of the kernel.

        Raises:
            CoverageError: unknown kernel or field, or a field is missing.
            DeviceError: unknown device, or it lacks the dtype, or the links of a collective.
        """
        if operands not in OPERANDS:
            raise ModelError(f"operands '{operands}': one of {', '.join(OPERANDS)}")
        batch = requested(kernel, fields) if isinstance(kernel, str) else KernelBatch.of([kernel])
        device = as_device(gpu, overrides)
        if batch.family == "collective":
            conditions = Conditions.of(1, timing=timing, engine=engine)
            return lone_kernels(batch, self.kernels(batch, device, conditions=conditions))[0]
        device.gemm_flops_per_s(str(batch["dtype"][0]))
        cycled = work_of(batch).bytes if operands == "resident" else COLD
        launches = MANY_LAUNCHES if timing == "graph" else 1.0
        conditions = Conditions.of(1, timing=timing, launches=launches, cycled_bytes=cycled, engine=engine)
        costs = self.kernels(batch, device, conditions=conditions)
        if operands == "cold":
            held = replace(conditions, cycled_bytes=work_of(batch).bytes)
            # What is learned does not know that operands in L2 are never slower.
            costs = max(costs, self.kernels(batch, device, conditions=held), key=lambda c: float(c.latency_s[0]))
            costs = costs.slower(cold_s(batch, device))
        return lone_kernels(batch, costs)[0]

    def kernels(
        self, batch: KernelBatch, gpu: Gpu, options: Options | None = None, conditions: Conditions | None = None
    ) -> Costs:
        """A batch of kernels of one family: arrays of shape (n,).

        Args:
            batch: the kernels.
            gpu: id of the catalogue, a device file, or a ``DeviceSpec``.
            options: of the device's executor.
            conditions: under which they run; default each launched alone, its operands in device memory.
        """
        device = as_device(gpu)
        return self._executor(device, batch.family).cost(batch, device, options or Options(), conditions)

    def estimate(
        self,
        model: str | Path | torch.nn.Module,
        gpu: Gpu,
        request: Request | None = None,
        *,
        inputs: Mapping[str, Any] | Sequence[Any] | None = None,
        mode: str = "inference",
        batch: int = 1,
        seq_len: int | None = None,
        image_size: int | None = None,
        frames: int | None = None,
        seconds: float | None = None,
        given: Sequence[str] = (),
        dtype: str | torch.dtype | None = None,
        attention: str | None = None,
        launch: str = "eager",
        layout: str = "nchw",
        optimizer: str = "none",
        fused_optimizer: bool = False,
        grad_scaler: bool = False,
        plan: Plan | None = None,
        tp_plan: Mapping[str, str] | None = None,
        overrides: Sequence[str] = (),
        sparsity: Sparsity | None = None,
        simulate: bool = False,
        compression: bool = False,
        allow_fallback: bool = False,
        cache: bool = True,
    ) -> Estimate:
        """One step of a model on one device, or on those of a node that share it.

        Args:
            model: a name of the catalogue, a Hugging Face ``config.json``, ``package.module:function``, or a module
                with its ``inputs``.
            gpu: id of the catalogue, a device file, or a ``DeviceSpec``.
            request: the step as a value, in place of the arguments from ``mode`` to ``grad_scaler``.
            inputs: example inputs of a module, named or positional; values do not matter, shapes do.
            mode: ``inference``, or ``training``: forward, backward and, if chosen, the optimizer.
            batch: samples a step.
            seq_len: tokens a sample; default the model's own.
            image_size, frames, seconds, given: other extents of inputs, see ``Extents``.
            dtype: of weights and activations, by any of its names or a ``torch.dtype``; default that of the module's
                parameters, or what the model's file states, else float32.
            attention: ``eager``, ``sdpa`` or ``flash``; default what the model does.
            launch: ``eager``, ``compiled`` by ``torch.compile``, or that as a CUDA ``graph``.
            layout: of images, ``nchw`` or ``nhwc``.
            optimizer: ``none``, ``sgd``, ``adam``, ``adamw`` or ``bert_adam``.
            fused_optimizer, plan, tp_plan, overrides, sparsity, simulate, compression, allow_fallback, cache: see
                ``Setting``.
            grad_scaler: gradients are scaled back before the optimizer, as float16 needs.

        Raises:
            ModelError: the model is unknown, or cannot run so.
            CoverageError: an operator has no rule.
            DeviceError: the device is unknown, malformed, or lacks the dtype.
            DataError: a sparsity profile is malformed, or of other layers than the model's.
        """
        step = {
            "mode": mode, "batch": batch, "seq_len": seq_len, "image_size": image_size, "frames": frames,
            "seconds": seconds, "given": tuple(given), "dtype": dtype, "attention": attention, "launch": launch,
            "layout": layout, "optimizer": optimizer, "grad_scaler": grad_scaler,
        }  # fmt: skip
        setting = Setting(
            overrides=overrides, allow_fallback=allow_fallback, sparsity=sparsity, simulate=simulate,
            compression=compression, fused_optimizer=fused_optimizer, cache=cache, plan=plan, tp_plan=tp_plan,
            layout=layout,
        )  # fmt: skip
        asked = _asked(model, request, step)
        if plan is not None and (plan.world > 1 or plan.micro_batches > 1):
            return self._shared(model, gpu, asked, setting, inputs)
        return self._estimate(self._ready(model, gpu, asked, setting, inputs))

    def _shared(self, model: Any, gpu: Gpu, asked: tuple[Request, str], setting: Setting, inputs: Any) -> Estimate:
        """A step of several micro-batches or devices: the way of every program on a cluster."""
        from neusight.distributed.shared import shared_estimate
        from neusight.distributed.sources import traced_run, traced_workload

        (request, message), plan = asked, setting.plan or Plan()
        device, request = _checked(gpu, request, setting)

        def trace(batch: int) -> Workload:
            return _workload(model, replace(request, batch=batch), setting, inputs)

        run = traced_run(trace, request, plan, device, setting.tp_plan)
        timed = self._timed(run, setting)
        workload = traced_workload(run)
        # The inputs of a module say how many samples there are, whatever was asked for.
        samples = workload.request.batch * plan.dp * plan.micro_batches
        estimate = shared_estimate(timed, workload, samples, plan.world, self._provenance(device, setting))
        return self._with_advice(estimate, device, setting, message)

    def _ready(self, model: Any, gpu: Gpu, asked: tuple[Request, str], setting: Setting, inputs: Any = None) -> _Ready:
        """A step as programs for a device.

        Args:
            model, gpu, inputs: as ``estimate`` takes them.
            asked: the request, and a line on what was taken for granted in it.
            setting: how it is estimated.
        """
        request, said = asked
        device, request = _checked(gpu, request, setting)
        return _Ready(program=self._step(model, inputs, request, setting), device=device, setting=setting, said=said)

    def _provenance(self, device: DeviceSpec, setting: Setting) -> Provenance:
        executor = self._executor(device)
        zeros = as_profile(setting.sparsity).source if setting.sparsity is not None else ""
        return Provenance(
            neusight=neusight.__version__,
            hypothetical=device.hypothetical,
            sparsity=zeros if "sparsity" in executor.takes else "",
            **executor.provenance(device),
        )

    def _estimate(self, ready: _Ready, price: Price | None = None) -> Estimate:
        """``price``: of the step's kernels where they are priced already."""
        device, setting, program = ready.device, ready.setting, ready.program
        price = price or (lambda batch: self._cost(batch, device, setting))
        costs = [price(batch) for batch, _ in program.batches]
        timeline = one_stream(program, costs, device, program.workload.request.engine)
        estimate = estimate_of(timeline, device, self._provenance(device, setting))
        reserve = program.reserve_bytes(device.usable_bytes)
        estimate = replace(estimate, memory=replace(estimate.memory, reserve=reserve))
        return self._with_advice(estimate, device, setting, ready.said)

    def _with_advice(self, estimate: Estimate, device: DeviceSpec, setting: Setting, message: str) -> Estimate:
        executor = self._executor(device)
        advice = executor.advice(device, setting.sparsity is not None)
        first = (message,) if message else ()
        ignored = _without_effect(executor, device, setting, estimate)
        return replace(estimate, warnings=(*first, *ignored, *advice, *estimate.warnings))

    def _cost(self, batch: KernelBatch, device: DeviceSpec, setting: Setting) -> Costs:
        return self._executor(device, batch.family).cost(batch, device, setting.options)

    def _step(self, model: Any, inputs: Any, request: Request, setting: Setting) -> TracedStep:
        """What a device runs; the step of a model that has a name is remembered."""
        if isinstance(model, str | Path) and inputs is not None:
            raise ModelError(f"inputs belong to a module in Python; those of '{model}' follow from batch and length")
        if not isinstance(model, str | Path):
            return single(compiled(_workload(model, request, setting, inputs)))
        zeros = as_profile(setting.sparsity) if setting.sparsity is not None else None
        remembered = Setting(
            allow_fallback=setting.allow_fallback,
            sparsity=None if zeros is None else _ByContent(zeros),  # type: ignore[arg-type]
            fused_optimizer=setting.fused_optimizer,
            cache=setting.cache,
        )
        return self._programs(str(model), _version(model), request, remembered)

    def _executor(self, device: DeviceSpec, family: str = "") -> Executor:
        kind = LINK if family == "collective" else device.kind
        return self._of_kind(kind)

    def _of_kind(self, kind: str) -> Executor:
        if kind not in self._executors:
            self._executors[kind] = load_executor(kind, self._tile_models if kind == LINK else None)
        return self._executors[kind]

    def deployment(
        self, model: str | Path | Decoder, gpu: Gpu, longest: int, options: EngineOptions | None = None, **setup: Any
    ) -> Deployment:
        """A language model on devices with a serving engine, to be loaded or asked for times of passes.

        >>> llama = predictor.deployment("meta-llama/Llama-3.1-70B", "h100", 8192, tp=4)
        >>> llama.replica.predict(Steps.of(decodes=[1, 16, 64], decode_cached=2048)).latency_s

        Args:
            model: a name of the hub that is known, a ``config.json``, its folder, or a ``Decoder``.
            gpu: id of the catalogue, a device file, or a ``DeviceSpec``.
            longest: tokens of the longest sequence, prompt and answer.
            options: what the engine is started with.
            setup: fields of ``neusight.serving.Setup``: ``engine``, ``dtype``, ``kv_dtype``, ``tp``, ``pp``, ``ep``,
                ``dp``, ``replicas``, ``engine_version``.

        Raises:
            ModelError: an unknown model, engine or precision; a sharding that does not divide it.
            DeviceError: an unknown device, or one that lacks the dtype.
        """
        from neusight.serving.deployment import Deployment, EngineOptions, Setup

        found = Setup.named(setup)
        replica = self._replica(model, as_device(gpu), found)
        return Deployment(replica=replica, options=options or EngineOptions(), longest=longest, replicas=found.replicas)

    def _replica(self, model: str | Path | Decoder, device: DeviceSpec, setup: Setup) -> ReplicaPricer:
        """What was priced for a deployment stays for the next that differs in load, limits or replicas alone."""
        from neusight.workloads.decoders.decoder import Decoder
        from neusight.workloads.decoders.known import known_decoder

        brought = model if isinstance(model, Decoder) else None
        version = _version(str(model)) if brought is None else id(brought)
        key = (str(model) if brought is None else "", version, id(device), replace(setup, replicas=1))
        replica = self._replicas.get(key)
        if replica is None or replica.device is not device or brought not in (None, replica.decoder):
            replica = setup.replica(brought or known_decoder(str(model)), device, self._priced)
            if len(self._replicas) >= _DEPLOYMENTS:
                self._replicas.popitem(last=False)
            self._replicas[key] = replica
        return replica

    def serving(
        self, model: str | Path | Decoder, gpu: Gpu, load: Load, options: EngineOptions | None = None, **setup: Any
    ) -> ServingEstimate:
        """How a served language model fares under a load: times to tokens, throughput, memory, cost.

        >>> predictor.serving("Qwen/Qwen3-32B", "h200", Closed(concurrency=64, number=640, isl=4096, osl=500), tp=2)

        Args:
            model, gpu, options, setup: as ``deployment`` takes them.
            load: ``Static``, ``Closed``, ``Open``, ``Offline`` or ``Trace`` of ``neusight.serving``.

        Raises:
            ModelError: as ``deployment``, or the model does not fit. DeviceError: as there.
            LoadError: a load that makes no sense, or a request that cannot run.
        """
        from neusight.serving.load import longest_of
        from neusight.serving.serve import serve

        return serve(self.deployment(model, gpu, longest_of(load), options, **setup), load)

    def frontier(
        self,
        model: str | Path | Decoder,
        gpu: Gpu,
        lengths: tuple[TokenCounts, TokenCounts],
        options: EngineOptions | None = None,
        *,
        concurrencies: Sequence[int] | None = None,
        **setup: Any,
    ) -> list[ServingEstimate]:
        """What throughput costs in latency: answers with 1, 2, 4, … clients until throughput stops growing.

        >>> points = predictor.frontier("Qwen/Qwen3-32B", "h200", (4096, 500), tp=2)
        >>> [(p.output_tokens_per_s_per_user, p.output_tokens_per_s_per_device) for p in points]

        Args:
            model, gpu, options, setup: as ``deployment`` takes them.
            lengths: of prompts and of answers [tokens].
            concurrencies: how many clients instead.

        Raises:
            As ``serving``.
        """
        from neusight.serving.load import most_tokens
        from neusight.serving.planning import frontier

        if not isinstance(lengths, tuple) or len(lengths) != 2:
            raise LoadError(f"lengths {shown(lengths)}: give those of prompts and of answers, such as (1024, 256)")
        longest = most_tokens(lengths[0]) + most_tokens(lengths[1])
        deployment = self.deployment(model, gpu, longest, options, **setup)
        return frontier(deployment, *lengths, concurrencies=concurrencies)

    def cheapest(
        self,
        model: str | Path | Decoder,
        gpus: Gpu | Sequence[Gpu] | None,
        demand: Demand,
        options: EngineOptions | None = None,
        *,
        tps: int | Sequence[int] = (1, 2, 4, 8),
        **setup: Any,
    ) -> list[Choice]:
        """Deployments that hold a service level, the cheapest first, then those that do not, with the reason.

        >>> demand = Demand(slo=Slo.named("ttft=500ms,tpot=30ms"), isl=4096, osl=500)
        >>> predictor.cheapest("Qwen/Qwen3-32B", None, demand, dtype="fp8")[0].estimate.usd_per_million_output_tokens

        Args:
            model, options, setup: as ``deployment`` takes them.
            gpus: ids, files or specs; None for those of the catalogue with a price.
            demand: what is to be served.
            tps: degrees of tensor parallelism.

        Raises:
            ModelError: an unknown model. LoadError: lengths that make no sense.
        """
        from neusight.devices import list_devices
        from neusight.serving.load import most_tokens
        from neusight.serving.planning import cheapest
        from neusight.workloads.decoders.known import known_decoder

        longest = most_tokens(demand.isl) + most_tokens(demand.osl)
        if isinstance(model, str | Path):
            known_decoder(str(model))  # An unknown model is no reason why each GPU fails, but an error.
        chosen = gpus if gpus is not None else [d.id for d in list_devices() if d.price_usd_per_hour]
        chosen = [chosen] if isinstance(chosen, str | Path | DeviceSpec) else chosen
        devices = {device.id: device for device in map(as_device, chosen)}

        def deploy(gpu: str, tp: int) -> Deployment:
            return self.deployment(model, devices[gpu], longest, options, tp=tp, **setup)

        return cheapest(deploy, devices, [tps] if isinstance(tps, int) else tps, demand)

    def training_run(
        self,
        model: str | Path | Decoder | torch.nn.Module,
        cluster: Cluster,
        options: Mapping[str, Any],
        engine: str = "megatron-te",
        *,
        inputs: Mapping[str, Any] | Sequence[Any] | None = None,
    ) -> TrainingRun:
        """A training step on a cluster with what is given of it; the rest is as the engine's users have it.

        >>> run = predictor.training_run("llama-3.1-8b", load_cluster("dgx-h100"), {"global_batch": 64, "tp": 2})
        >>> predictor.training(run).mfu

        Args:
            model: a decoder by its name, file or description; under PyTorch itself (``torch-eager``,
                ``torch-compiled``, ``torch-graph``) anything that ``estimate`` takes, by its trace.
            cluster: the devices.
            options: fields of ``Plan``, with ``seq_len``, ``dtype``, ``optimizer`` and ``micro_batches``, as
                ``neusight.distributed.usual.usual_run`` takes them.
            engine: name of the engine that runs it.
            inputs: of a module.

        Raises:
            ModelError: an unknown model, word or field, sizes that do not divide. DeviceError: a cluster that the plan
                does not fill.
        """
        from neusight.distributed.sources import traced_run
        from neusight.distributed.usual import USUAL_DTYPE, run_fields, usual_plan, usual_run
        from neusight.engines import engine_named
        from neusight.workloads.decoders.decoder import Decoder
        from neusight.workloads.decoders.known import known_decoder

        if engine_named(engine).kernel_timing == "graph" or isinstance(model, Decoder):
            decoder = model if isinstance(model, Decoder) else known_decoder(str(model))
            return usual_run(decoder, cluster, options, engine)
        step = run_fields(options)
        plan = usual_plan(options, cluster.devices, engine)
        request, _ = _asked(model, None, {
            "mode": "training", "batch": plan.micro_batch, "launch": engine_named(engine).launch,
            "dtype": USUAL_DTYPE, **step,
        })  # fmt: skip
        setting = Setting()
        cluster.device.gemm_flops_per_s(request.precision.of_products)

        def trace(batch: int) -> Workload:
            return _workload(model, replace(request, batch=batch), setting, inputs)

        return traced_run(trace, request, plan, cluster)

    def training(self, run: TrainingRun, factors: Factors | None = None) -> TrainingEstimate:
        """One training step of a model on the devices of a cluster: time, what it waits for, memory, utilisation.

        >>> llama = known_decoder("meta-llama/Llama-3.1-70B")
        >>> plan = Plan(dp=8, tp=8, pp=2, micro_batch=1, global_batch=256, sequence_parallel=True, shard="zero1")
        >>> run = TrainingRun(decoder=llama, cluster=load_cluster("dgx-h100", 16), plan=plan, seq_len=8192)
        >>> predictor.training(run).mfu

        Args:
            run: model, cluster, plan, sequence length, framework and precision.
            factors: what kernels take in steps; default those that ship.

        Raises:
            ModelError: a plan that does not divide the model or the batch. DeviceError: a cluster of another size than
                the plan's, or a device that lacks the dtype.
        """
        from neusight.distributed.estimate import estimated

        return estimated(self.timed(run, factors))

    def _timed(self, run: TrainingRun, setting: Setting) -> TimedStep:
        from neusight.distributed.step import timed

        def cost(batch: KernelBatch, device: DeviceSpec, conditions: Conditions) -> Costs:
            place: Any = run.cluster if batch.family == "collective" else device
            return self._executor(device, batch.family).cost(batch, place, setting.options, conditions)

        return timed([run], cost)[0]

    def timed(self, run: TrainingRun, factors: Factors | None = None) -> TimedStep:
        """The times that a training step is simulated with, stage by stage; arguments and errors as ``training``."""
        from neusight.distributed.step import timed

        return timed([run], self.on_cluster(run.cluster), factors)[0]

    def plans(self, run: TrainingRun, space: Space | None = None, count: int = 5, **options: Any) -> Found:
        """The fastest plans of a training step that fit the cluster, found among all there are.

        Args:
            run: the step; of its plan the global batch counts.
            space: which plans there are; default all that divide model, batch and cluster.
            count: how many of the best.
            options: ``reach`` and ``progress`` of ``neusight.distributed.search.search``.

        Raises:
            ModelError: no plan divides model and batch, or none fits.
        """
        from neusight.distributed.search import search

        return search(run, self.on_cluster(run.cluster), space, count, **options)

    def on_cluster(self, cluster: Cluster) -> Callable[[KernelBatch, DeviceSpec, Conditions], Costs]:
        """What answers for kernels on a cluster's devices and for collectives on its links and network."""

        def priced(batch: KernelBatch, device: DeviceSpec, conditions: Conditions) -> Costs:
            if batch.family == "collective":
                links: Any = self._of_kind(LINK)
                costs: Costs = links.cost(batch, cluster, Options(), conditions)
                return costs
            return self.kernels(batch, device, conditions=conditions)

        return priced

    def _priced(self, batch: KernelBatch, device: DeviceSpec, conditions: Conditions) -> Costs:
        return self.kernels(batch, device, conditions=conditions)

    def sweep(
        self,
        models: str | Iterable[str],
        gpus: Gpu | Iterable[Gpu],
        batches: int | Iterable[int] = 1,
        *,
        modes: str | Iterable[str] = "inference",
        seq_lens: int | Iterable[int | None] | None = None,
        dtypes: str | torch.dtype | Iterable[str | torch.dtype | None] | None = None,
        optimizer: str = "none",
        attention: str | None = None,
        launch: str = "eager",
        layout: str = "nchw",
        sparsity: Sparsity | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> pd.DataFrame:
        """Every combination as one row a step: latency, throughput, memory and cost, for capacity planning.

        A step that does not fit has ``fits`` False; one that cannot be estimated has its reason in ``error`` and no
        figures. Columns: model, gpu, mode, batch, seq_len, dtype, latency_s, low_s, high_s, bound_s, limiter,
        samples_per_s, tokens_per_s, peak_bytes, fits, usd_per_million_samples, error.

        >>> table = predictor.sweep("gpt2-large", ["l4", "a100-pcie-80gb"], [1, 2, 4, 8], modes="training")
        >>> table[table.fits].sort_values("samples_per_s").groupby("gpu").last()   # the best batch a GPU

        Args:
            models, gpus, batches, modes, seq_lens, dtypes: what to combine; each a list, or one value.
            optimizer: of the steps of training.
            attention, launch, layout, sparsity: of all steps, as ``estimate`` takes them.
            progress: called with (done, of) after each row.
        """
        import pandas as pd

        grid = list(product(*map(_several, (models, gpus, modes, batches, seq_lens, dtypes))))
        options = {"optimizer": optimizer, "attention": attention, "launch": launch, "layout": layout}
        setting = Setting(sparsity=sparsity)
        rows: list[dict[str, Any]] = []
        for start in range(0, len(grid), _TOGETHER):
            points = [_Point.of(*point) for point in grid[start : start + _TOGETHER]]
            found = [self._point(point, setting, options) for point in points]
            prices = self._prices([ready for ready in found if isinstance(ready, _Ready)])
            for point, ready in zip(points, found, strict=True):
                rows.append(point.asked | self._answer(ready, prices))
                if progress:
                    progress(len(rows), len(grid))
        return pd.DataFrame(rows, columns=list(SWEEP_COLUMNS))

    def _point(self, point: _Point, setting: Setting, options: dict[str, Any]) -> _Ready | NeusightError:
        stepless = {"optimizer": "none"} if point.step["mode"] == "inference" else {}
        try:
            asked = _asked(point.model, None, {**point.step, **options, **stepless})
            return self._ready(point.model, point.gpu, asked, setting)
        except NeusightError as error:
            return error

    def _prices(self, steps: Sequence[_Ready]) -> dict[int, Price]:
        """Prices of the kernels of all steps on each of their devices, by the identity of the device."""
        devices = {id(step.device): step for step in steps}
        return {
            key: Together(
                [batch for step in steps if step.device is one.device for batch, _ in step.program.batches],
                partial(self._cost, device=one.device, setting=one.setting),
            )
            for key, one in devices.items()
        }

    def _answer(self, ready: _Ready | NeusightError, prices: Mapping[int, Price]) -> dict[str, Any]:
        try:
            if isinstance(ready, NeusightError):
                raise ready
            return _figures(self._estimate(ready, prices[id(ready.device)])) | {"error": ""}
        except NeusightError as error:
            return {"fits": False, "error": str(error)}


@dataclass(frozen=True, kw_only=True)
class _Ready:
    """A step that waits for its prices; ``said`` is a line on what was asked, or ''."""

    program: TracedStep
    device: DeviceSpec
    setting: Setting
    said: str


@dataclass(frozen=True, kw_only=True)
class _Point:
    """One combination of a sweep."""

    model: str
    gpu: Gpu
    step: dict[str, Any]

    @classmethod
    def of(cls, model: str, gpu: Gpu, *step: Any) -> _Point:
        return cls(model=model, gpu=gpu, step=dict(zip(("mode", "batch", "seq_len", "dtype"), step, strict=True)))

    @property
    def asked(self) -> dict[str, Any]:
        name = self.gpu.id if isinstance(self.gpu, DeviceSpec) else str(self.gpu)
        return {"model": self.model, "gpu": name, **self.step}


OPERANDS = ("resident", "cold")


def _several(value: Any) -> list[Any]:
    """A list, or one value as a list of it: a name is no list of letters."""
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str | DeviceSpec) else [value]


def _asked(model: Any, request: Request | None, step: Mapping[str, Any]) -> tuple[Request, str]:
    """The request that ``estimate`` was given, in the dtype that the model states where none is, and a line on that.

    Raises:
        ModelError: arguments beside a request, no request where one stands, or as ``Request.of``.
    """
    if request is not None and not isinstance(request, Request):
        raise ModelError(f"{request!r} is not a Request: give the step by name, such as mode='training', batch=4")
    if request is not None:
        defaults = signature(Predictor.estimate).parameters
        if beside := [name for name, value in step.items() if value != defaults[name].default]:
            raise ModelError(f"{', '.join(beside)} given as well as a request: leave one of them out")
        return request, ""
    dtype = None if step.get("dtype") is None else str(step["dtype"]).removeprefix("torch.")
    if not isinstance(model, str | Path):
        return Request.of(**{**step, "dtype": dtype}), ""
    from neusight.workloads.resolve import resolve, stated_dtype

    dtype, said = stated_dtype(resolve(model), dtype)
    return Request.of(str(model), **{**step, "dtype": dtype}), said


@dataclass(frozen=True)
class _ByContent:
    """A sparsity profile as a key: equal where its content is."""

    profile: Any

    def __hash__(self) -> int:
        return hash((self.profile.model, self.profile.source, tuple(self.profile.layers), self.profile.default))


def _without_effect(executor: Executor, device: DeviceSpec, setting: Setting, estimate: Estimate) -> tuple[str, ...]:
    """A line for each option that was given and changes nothing."""
    zeros = [name for name in setting.options.given if name not in executor.takes]
    lines = [f"--{name} has no effect on {device.id}: it is no machine that skips zeros" for name in zeros]
    shapes = [text.rpartition("=")[2].partition(":")[0] for text in estimate.inputs]
    if setting.layout != "nchw" and not any(shape.count("x") >= _IMAGE_EXTENTS for shape in shapes):
        lines.append(
            f"layout {setting.layout} has no effect on {estimate.model}: none of its inputs is a batch of images"
        )
    if plan := setting.plan:
        lines += plan.without_effect(experts=True, training=estimate.mode == "training")
    return tuple(lines)


_IMAGE_EXTENTS = 3
"""Signs between the four extents of images: batch, channels, height and width."""


SWEEP_COLUMNS = (
    *("model", "gpu", "mode", "batch", "seq_len", "dtype", "latency_s", "low_s", "high_s", "bound_s", "limiter"),
    *("samples_per_s", "tokens_per_s", "peak_bytes", "fits", "usd_per_million_samples", "error"),
)


def as_device(gpu: Gpu, overrides: Sequence[str] = ()) -> DeviceSpec:
    """The device that an id, a file or a spec stands for.

    Raises:
        DeviceError: unknown or malformed device, or changes of a spec, which ``model_copy`` makes.
    """
    if not isinstance(gpu, str | Path | DeviceSpec):
        raise DeviceError(f"{shown(gpu)} is no device: give one id, file or spec")
    if not isinstance(gpu, DeviceSpec):
        return _device(str(gpu), _version(gpu), tuple(overrides))
    if overrides:
        raise DeviceError(f"overrides need the id or file of a device, not the spec of {gpu.id}: use its model_copy()")
    return gpu


@lru_cache(maxsize=_REMEMBERED)
def _device(name: str, _version: int, overrides: tuple[str, ...]) -> DeviceSpec:
    return load_device(name, overrides)


def _version(name: str | Path) -> int:
    """Changes when the file of that name does; 0 where there is none."""
    try:
        return Path(name).stat().st_mtime_ns
    except (OSError, ValueError):
        return 0


def _program(model: str, _version: int, request: Request, setting: Setting) -> TracedStep:
    return single(compiled(_workload(model, request, setting)))


def _checked(gpu: Gpu, request: Request, setting: Setting) -> tuple[DeviceSpec, Request]:
    """The device, and the request for one micro-batch.

    Raises:
        ModelError: options that contradict each other. DeviceError: an unknown device, or one that lacks the dtype.
    """
    if setting.fused_optimizer and request.optimizer == "bert_adam":
        raise ModelError("bert_adam has no fused form: leave out fused_optimizer")
    if setting.fused_optimizer and request.optimizer == "none":
        raise ModelError("fused_optimizer: there is no optimizer to fuse: name one, such as adam, or leave it out")
    device = as_device(gpu, setting.overrides)
    if request.precision != OWN_PRECISION:
        device.gemm_flops_per_s(request.precision.of_products)
    plan = setting.plan or Plan(micro_batch=request.batch, global_batch=request.batch)
    return device, _micro(request, plan)


def _workload(model: Any, asked: Request, setting: Setting, inputs: Any = None) -> Workload:
    """The step on one device, with the zeros and the optimizer that are asked for."""
    from neusight.workloads import load_workload

    workload = load_workload(model, asked, inputs=inputs, allow_fallback=setting.allow_fallback, cache=setting.cache)
    if (zeros := setting.sparsity) is not None:
        workload = sparsify(workload, zeros.profile if isinstance(zeros, _ByContent) else as_profile(zeros))
    if setting.fused_optimizer:
        workload = fuse_optimizer(workload)
    return as_computed(workload)


def _micro(asked: Request, plan: Plan) -> Request:
    """The request for one micro-batch of a plan.

    Raises:
        ModelError: another batch was asked for than the plan's.
    """
    if asked.batch not in (1, plan.global_batch):
        raise ModelError(
            f"batch {asked.batch}, but the plan has {plan.global_batch} samples a step: leave out one of them"
        )
    return replace(asked, batch=plan.micro_batch)


def _figures(estimate: Estimate) -> dict[str, Any]:
    named = ("seq_len", "dtype", "latency_s", "low_s", "high_s", "bound_s", "limiter", "samples_per_s", "tokens_per_s")
    return {
        **{name: getattr(estimate, name) for name in (*named, "fits")},
        "peak_bytes": estimate.memory.peak_bytes,
        "usd_per_million_samples": None if estimate.usd_per_hour is None else estimate.cost_usd(1e6),
    }
