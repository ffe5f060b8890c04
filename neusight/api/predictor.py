"""``Predictor``: what people call. It answers for kernels, models, served models, training steps and grids of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from neusight.api.sweeps import sweep_points, swept
from neusight.devices import DeviceSpec
from neusight.devices.chosen import Gpu, as_device, version_of
from neusight.errors import ModelError, shown
from neusight.estimates import Estimate, LoneKernel
from neusight.estimates.build import lone_kernels
from neusight.executors import Costs, Executor, Options, load_executor
from neusight.executors.gpu.predictor import KernelPredictor
from neusight.kernels import Kernel, KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.kernels.precision import OWN_PRECISION
from neusight.kernels.work import work_of
from neusight.laws.bounds import cold_s
from neusight.laws.routes import Place, device_of
from neusight.questions import KernelCall, Serving, Step, Training, WhatIfQuestion
from neusight.questions.kernel import LaunchedKernel
from neusight.requests import Request
from neusight.steps.answers import StepAnswers
from neusight.steps.questions import StepQuestion

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from neusight.api.given import Given
    from neusight.devices.cluster import Cluster
    from neusight.distributed.estimate import TrainingEstimate
    from neusight.distributed.factors import Factors
    from neusight.distributed.search import Found
    from neusight.distributed.space import Space
    from neusight.distributed.step import TimedStep
    from neusight.distributed.training_run import TrainingRun
    from neusight.engines import Engine
    from neusight.serving.deployment import Deployment
    from neusight.serving.estimate import ServingEstimate
    from neusight.serving.load import Load
    from neusight.serving.passes import ReplicaPricer
    from neusight.serving.planning import Choice, Demand
    from neusight.serving.question import DeploymentQuestion
    from neusight.serving.setup import Setup
    from neusight.what_if import Question, WhatIf
    from neusight.what_if.answers import Goal
    from neusight.what_if.gain import Answer
    from neusight.workloads.decoders.decoder import Decoder
    from neusight.workloads.workload import Workload

_DEPLOYMENTS = 64
"""Served models that a predictor keeps with the times of their passes: about a megabyte each."""


def _in_steps(engine: Engine) -> Options:
    """How executors answer for kernels of an engine's steps, see ``Predictor.on_cluster``."""
    return Options(learned=not engine.step_factors)


def found_by_search(estimate: ServingEstimate, question: Serving) -> ServingEstimate:
    """The answer to a question whose load a search has found, with the question that repeats it."""
    names = ("request_rate", "num_prompts") if "request_rate" in estimate.load else ("concurrency",)
    return _repeatable(estimate, question.changed(**{name: estimate.load[name] for name in names}))


def _repeatable(estimate: ServingEstimate, question: Serving) -> ServingEstimate:
    record = {} if question.objects else question.record()
    return replace(estimate, question=record, assumed={**question.assumed(), **estimate.assumed})


class Predictor:
    """Latency of kernels and models on any device.

    >>> predictor = Predictor.load()
    >>> predictor.estimate("gpt2-large", "l4", mode="training").latency_s
    >>> predictor.kernel("gemm", "l4", m=4096, n=4096, k=4096).utilisation

    One predictor answers many questions: it keeps tile models, devices and the kernels of every model that it has seen.
    """

    def __init__(
        self,
        kernels: KernelPredictor,
        tile_models: Path | None = None,
        executors: Mapping[str, Executor] = MappingProxyType({}),
    ) -> None:
        self.kernel_predictor = kernels
        self._steps = StepAnswers({"gpu": kernels, **executors}, tile_models)
        self._replicas: OrderedDict[tuple[Any, ...], ReplicaPricer] = OrderedDict()
        self._sharing: dict[str, Any] = {}
        self._given: Given | None = None

    @classmethod
    def load(
        cls, tile_models: str | Path | None = None, calibrations: str | Path | None = None, given: Any = None
    ) -> Predictor:
        """A predictor with the tile models that ship, or with those of a folder that ``neusight train`` wrote.

        Args:
            tile_models: that folder.
            calibrations: a file that ``neusight calibrate`` wrote, or a folder of them. The commands take
                ``neusight.paths.calibrations_dir()``.
            given: measured rows of one's own, which correct every answer as far as they share its doubts, see
                ``neusight.read_given``.

        Raises:
            ArtifactError: the folder holds no tile models of this protocol, or they are damaged; a calibration that is
                none, or was fitted on other tile models.
            DataError: no prediction can learn from the given rows.
        """
        paths = [None if path is None else Path(path) for path in (tile_models, calibrations)]
        executor = load_executor("gpu", *paths)
        assert isinstance(executor, KernelPredictor)
        predictor = cls(executor, paths[0])
        return predictor if given is None else predictor.given(given)

    def given(self, rows: Any) -> Predictor:
        """The same predictor, whose answers are corrected by measurements as far as these share their doubts.

        >>> predictor.given(read_given("a100-runs.csv")).estimate("llama-2-7b", "h100").given["words"]

        Args:
            rows: of ``neusight.read_given``.

        Raises:
            DataError: no prediction can learn from the rows.
        """
        other = copy(self)
        other._given = rows.predicted_by(self)
        return other

    def _corrected(self, answer: Any) -> Any:
        """The answer, corrected by given measurements."""
        return answer if self._given is None else self._given.applied(answer)

    def _check_ungiven(self, what: str) -> None:
        if self._given is not None:
            raise ModelError(f"given measurements correct single answers: ask {what} of a predictor without them")

    def ask(self, question: Any, device: DeviceSpec | None = None) -> Any:
        """The answer to a question in words.

        >>> predictor.ask(KernelCall(name="gemm", gpu="l4", shape=("m=4096", "n=4096", "k=4096"))).utilisation

        Args:
            question: a noun of ``neusight.questions``.
            device: that of its ``gpu``, where it is loaded already.

        Raises:
            FieldError: words that exclude each other. NeusightError: whatever else is wrong with the question.
        """
        if isinstance(question, KernelCall):
            return self._corrected(self._kernel(question, device))
        if isinstance(question, Training):
            return self._training(question, device)
        if isinstance(question, Step) and question.cluster:
            return self.ask(Training.named(question.training_words(question.words())), device)
        if isinstance(question, Step):
            return self._corrected(self._steps.answer(question.resolve(device or question.device())))
        if isinstance(question, Serving):
            return self._served_words(question, device)
        if isinstance(question, WhatIfQuestion):
            from neusight.what_if.answers import changed_answers

            return changed_answers(question, self.answer)
        raise ModelError(f"{shown(question)} is no question of neusight.questions: give one of its nouns")

    def kernel(self, kernel: Kernel | str, gpu: Gpu = "", overrides: Sequence[str] = (), /, **words: Any) -> LoneKernel:
        """One kernel by itself, its launch included.

        >>> predictor.kernel("gemm", "h100", m=16, n=14336, k=4096, dtype="bf16", backend="vllm", timer="cuda_graph")

        Args:
            kernel: a kernel, or the name of a family or operator, whose shape ``words`` give.
            gpu: id of the catalogue, a device file, or a ``DeviceSpec``; "" where ``words`` name a cluster.
            overrides: ``key=value`` changes of the device.
            words: the shape, and fields of ``KernelCall``: ``backend``, ``timer``, ``operands``, …

        Raises:
            CoverageError: unknown kernel or field, or a field is missing. ModelError: unknown backend or word.
            DeviceError: unknown device, or it lacks the dtype, or the links of a collective.
        """
        return self.ask(KernelCall.named({"name": kernel, "gpu": gpu, "overrides": tuple(overrides), **words}))

    def _kernel(self, question: KernelCall, device: DeviceSpec | None = None) -> LoneKernel:
        asked = question.resolve(device)
        estimate = self._launched(asked, question)
        given = (*device_of(asked.place).likeness, *question.not_estimated(), *question.without_effect(asked))
        estimate = replace(estimate, warnings=(*given, *estimate.warnings))
        if asked.batch.family == "collective" and int(asked.batch["ranks"][0]) == 1:
            nothing = (*estimate.warnings, "one rank has no other to exchange with, which takes no time")
            return replace(estimate, latency_s=0.0, low_s=0.0, high_s=0.0, bound_s=0.0, warnings=nothing)
        if not asked.network_is_unknown:
            return estimate
        usual = KernelCall.fields()["network"].field.if_unset(question)
        each = [self._launched(question.with_network(asked, one.value), question) for one in usual]
        unknown = (
            "the network between nodes is unknown: the interval spans those that people have, from "
            f"{usual[0].value} to {usual[-1].value}; give network, such as '8 x 400Gb/s'"
        )
        return replace(
            estimate, low_s=min(one.low_s for one in (estimate, *each)),
            high_s=max(one.high_s for one in (estimate, *each)), warnings=(*estimate.warnings, unknown),
            assumed={"network": asked.usual_network},
        )  # fmt: skip

    def _launched(self, asked: LaunchedKernel, question: KernelCall) -> LoneKernel:
        batch, conditions = asked.batch, asked.conditions
        costs = self._priced_at(asked)
        if batch.family != "collective" and question.operands == "cold" and question.cycled_bytes is None:
            held = replace(asked, conditions=replace(conditions, cycled_bytes=work_of(batch).bytes))
            # What is learned does not know that operands in L2 are never slower.
            costs = max(costs, self._priced_at(held), key=lambda c: float(c.latency_s[0]))
            costs = costs.slower(cold_s(batch, device_of(asked.place)))
        return lone_kernels(batch, costs, question.record())[0]

    def _priced_at(self, asked: LaunchedKernel) -> Costs:
        device: Any = device_of(asked.place)
        if asked.batch.family != "collective":
            device.gemm_flops_per_s(str(asked.batch["dtype"][0]))
            return self.kernels(asked.batch, device, conditions=asked.conditions)
        place: Any = asked.place
        return self._steps.executor(device, "collective").cost(asked.batch, place, Options(), asked.conditions)

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
        return self._steps.executor(device, batch.family).cost(batch, device, options or Options(), conditions)

    def estimate(self, model: Any, gpu: Gpu, request: Request | None = None, **words: Any) -> Estimate:
        """One step of a model on one device, or on those of a node that share it.

        >>> predictor.estimate("gpt2-large", "a100", mode="training", optimizer="adam", tp=4, batch=8).latency_s

        Args:
            model: whatever ``neusight predict`` takes, or a module with its ``inputs``, named or positional, or its
                only one. Values that the module reads are read from them, as far as they are few.
            gpu: id of the catalogue, a device file, or a ``DeviceSpec``.
            request: the step as a value, in place of words.
            words: fields of ``neusight.questions.Step``, by today's names or former ones; ``share`` and ``tp_plan``
                also as mappings, ``dtype`` as a ``torch.dtype``, ``sparsity`` as a profile. Objects that no words
                stand for: ``plan``, ``host``, ``libraries``, ``passes``, ``step``, a function that runs a training
                step of one's own, and ``cache``, whether the user's cache of traces is read and written.

        Raises:
            ModelError: the model is unknown, or cannot run so. CoverageError: an operator has no rule.
            DeviceError: the device is unknown, malformed, or lacks the dtype.
            DataError: a sparsity profile is malformed, or of other layers than the model's.
        """
        return self._corrected(self._steps.answer(Step.of(model, gpu, request=request, **words).resolve()))

    def workload(self, question: StepQuestion) -> Workload:
        """What a step runs on its device: operators in their order, with the memory that they hold.

        Raises:
            As ``estimate``.
        """
        return self._steps.ready(question).program.workload

    def deployment(
        self, model: str | Path | Decoder, gpu: Gpu, longest: int, setup: Setup | None = None, **words: Any
    ) -> Deployment:
        """A language model on devices with a serving engine, to be loaded or asked for times of passes.

        >>> llama = predictor.deployment("meta-llama/Llama-3.1-70B", "h100", 8192, tp=4)
        >>> llama.replica.predict(Steps.of(decodes=[1, 16, 64], decode_cached=2048)).latency_s

        Args:
            model: a name of the hub that is known, a ``config.json``, its folder, or a ``Decoder``.
            gpu: id of the catalogue, a device file, or a ``DeviceSpec``.
            longest: tokens of the longest sequence, prompt and answer.
            setup: what is deployed, in place of words.
            words: those of ``neusight.questions.Serving`` about the deployment: ``engine``, ``dtype``, ``tp``, …

        Raises:
            ModelError: an unknown model, engine, precision or word; a sharding that does not divide it.
            DeviceError: an unknown device, or one that lacks the dtype.
        """
        from neusight.serving.deployment import Deployment

        device = as_device(gpu)
        setup = setup or Serving.setup_of(words, device)
        replica = self._replica(model, device, setup)
        if self._observed(replica, device):  # A server that was observed has one version.
            setup = replace(setup, versions=())
        deployment = Deployment(replica=replica, setup=setup, longest=longest)
        if not setup.prefill:
            return deployment
        prompts_gpu, prompts = setup.of_prompts()
        return replace(deployment, prefill=self.deployment(model, prompts_gpu or device, longest, prompts))

    def _replica(self, model: str | Path | Decoder, device: DeviceSpec, setup: Setup) -> ReplicaPricer:
        """What was priced for a deployment stays for the next that differs in load, limits or replicas alone."""
        from neusight.workloads.decoders.decoder import Decoder
        from neusight.workloads.decoders.known import known_decoder

        brought = model if isinstance(model, Decoder) else None
        version = version_of(str(model)) if brought is None else id(brought)
        key = (str(model) if brought is None else "", version, id(device), setup.priced)
        replica = self._replicas.get(key)
        if replica is None or replica.device is not device or brought not in (None, replica.decoder):
            replica = setup.replica(brought or known_decoder(str(model)), device, self._priced)
            replica = replica.with_constants(self._observed(replica, device))
            if len(self._replicas) >= _DEPLOYMENTS:
                self._replicas.popitem(last=False)
            self._replicas[key] = replica
        return replica

    def _observed(self, replica: ReplicaPricer, device: DeviceSpec) -> Mapping[str, float]:
        """Constants of the engine that logs of a server on the device gave."""
        correction = self.kernel_predictor.correction(device)
        return correction.engines.get(replica.engine.serving.era, {}) if correction else {}

    def serving(self, model: str | Path | Decoder, gpu: Gpu, load: Load | None = None, **words: Any) -> ServingEstimate:
        """How a served language model fares under a load: times to tokens, throughput, memory, cost.

        >>> predictor.serving("Qwen/Qwen3-32B", "h200", tp=2, isl=4096, osl=500, concurrency=64)

        Args:
            model, gpu: as ``deployment`` takes them.
            load: ``Static``, ``Closed``, ``Open``, ``Offline`` or ``Trace`` of ``neusight.serving``, in place of words.
            words: fields of ``neusight.questions.Serving``.

        Raises:
            FieldError: words that exclude each other, or an unknown one. ModelError: as ``deployment``, or the model
                does not fit. DeviceError: as there. LoadError: a request that cannot run.
        """
        device = as_device(gpu, words.get("overrides", ()))
        question = Serving.named({"model": model, "gpu": gpu, **words})
        if load is None:
            return self._served_words(question, device)
        return self._corrected(self._served(question.resolve(device, load=load)))

    def _served_words(self, question: Serving, device: DeviceSpec | None) -> ServingEstimate:
        estimate = self._served(question.resolve(device))
        warnings = (*question.without_effect(), *estimate.warnings)
        return self._corrected(_repeatable(replace(estimate, warnings=warnings), question))

    def _served(self, question: DeploymentQuestion) -> ServingEstimate:
        from neusight.serving.load import longest_of
        from neusight.serving.serve import serve

        longest = longest_of(question.load)
        deployment = self.deployment(question.model, question.device, longest, question.setup)
        return serve(deployment.with_prices(question.prices), question.load)

    def frontier(
        self, model: Any, gpu: Gpu = "", *, concurrencies: Sequence[int] | None = None, **words: Any
    ) -> list[ServingEstimate]:
        """What throughput costs in latency: answers with 1, 2, 4, … clients until throughput stops growing.

        >>> points = predictor.frontier("Qwen/Qwen3-32B", "h200", isl=4096, osl=500, tp=2)
        >>> [(p.output_tokens_per_s_per_user, p.output_tokens_per_s_per_device) for p in points]

        Args:
            model, gpu, words: as ``serving`` takes them, without a load; or a question, and its device where that is
                loaded already.
            concurrencies: how many clients instead.

        Raises:
            As ``serving``.
        """
        from neusight.serving.load import most_tokens
        from neusight.serving.planning import frontier

        question = model if isinstance(model, Serving) else Serving.named({"model": model, "gpu": gpu, **words})
        question.check_load(searched=True)
        device = as_device(gpu) if isinstance(model, Serving) and gpu else question.device()
        lengths = question.lengths()
        deployment = self.deployment(question.model_or_name(), device, sum(map(most_tokens, lengths)), question.setup())
        deployment = deployment.with_prices(question.prices)
        estimates = frontier(deployment, *lengths, concurrencies=concurrencies, seed=question.seed)
        return [self._corrected(found_by_search(estimate, question)) for estimate in estimates]

    def cheapest(
        self,
        model: str | Path | Decoder,
        gpus: Gpu | Sequence[Gpu] | None,
        demand: Demand,
        *,
        usual: bool = False,
        prefer: str = "cost",
        progress: Callable[[int, int, str], None] | None = None,
        **setup: Any,
    ) -> list[Choice]:
        """Deployments that hold a service level, the cheapest first, then those that do not, with the reason.

        >>> demand = Demand(slo=Slo.named("ttft=500ms,tpot=30ms"), isl=4096, osl=500, request_rate=20)
        >>> predictor.cheapest("Qwen/Qwen3-32B", None, demand, usual=True)[0].estimate.launch

        Args:
            model: as ``deployment`` takes it.
            setup: words as there, each field one value or a list; tp is 1, 2, 4 and 8 where it is left out.
            gpus: ids, files or specs, with prices of one list where one has all; None for all GPUs of the first
                price list.
            demand: what is to be served.
            usual: whether fields that are left out take all usual values, as do the sizes of passes.
            prefer: ``cost``, or ``gpus`` for the fewest devices.
            progress: called with (done, of, the best so far in words) before each deployment.

        Raises:
            ModelError: an unknown model. LoadError: lengths that make no sense.
        """
        from neusight.devices import listed_gpus, with_prices
        from neusight.serving.load import most_tokens
        from neusight.serving.planning import cheapest
        from neusight.serving.space import setups, with_pass_sizes
        from neusight.workloads.decoders.decoder import Decoder
        from neusight.workloads.decoders.known import known_decoder

        self._check_ungiven("deployments")
        longest = most_tokens(demand.isl) + most_tokens(demand.osl)
        decoder = model if isinstance(model, Decoder) else known_decoder(str(model))
        chosen = listed_gpus() if gpus is None else gpus
        chosen = [chosen] if isinstance(chosen, str | Path | DeviceSpec) else chosen
        devices = {device.id: device for device in with_prices([*map(as_device, chosen)])}

        def deploy(device: DeviceSpec, one: Setup) -> Deployment:
            return self.deployment(model, device, longest, one)

        find = partial(setups, decoder, stated=setup, usual=usual)
        each = [
            (device, with_pass_sizes(one) if usual else [one])
            for device in devices.values()
            for one in find(device, make=partial(Serving.setup_of, device=device))
        ]
        return cheapest(deploy, each, demand, prefer=prefer, progress=progress)

    def training(
        self,
        model: TrainingRun | str | Path | Decoder | torch.nn.Module,
        factors: Factors | None = None,
        *,
        inputs: Mapping[str, Any] | Sequence[Any] | None = None,
        **words: Any,
    ) -> TrainingEstimate:
        """One training step of a model on the devices of a cluster: time, what it waits for, memory, utilisation.

        >>> predictor.training("llama-3.1-70b", cluster="dgx-h100", nodes=16, tp=8, pp=2, global_batch_size=256).mfu

        Args:
            model: a decoder by its name, file or description; under PyTorch itself (``torch-eager``,
                ``torch-compiled``, ``torch-graph``) anything that ``estimate`` takes, by its trace; or a whole step.
            factors: what kernels take in steps; default those that ship.
            inputs: of a module.
            words: fields of ``neusight.questions.Training``; those that are left open are as the engine's users have
                them. ``cluster`` may be a ``Cluster``, ``gpu`` a ``DeviceSpec``.

        Raises:
            FieldError: an unknown field, or a value that it cannot take. ModelError: an unknown model, or a plan that
                does not divide the model or the batch. DeviceError: a cluster of another size than the plan's, or a
                device that lacks the dtype.
        """
        from neusight.distributed.training_run import TrainingRun

        if isinstance(model, TrainingRun):
            return self._corrected(self._trained(model, factors))
        return self._training(Training.named({"model": model, **words}), factors=factors, inputs=inputs)

    def _training(
        self, question: Training, device: DeviceSpec | None = None, factors: Factors | None = None, inputs: Any = None
    ) -> TrainingEstimate:
        run = question.resolve(device, inputs)
        estimate = self._trained(run, factors)
        warnings = (*estimate.warnings, *question.without_effect(run))
        return self._corrected(replace(estimate, question=question.record(), warnings=warnings))

    def _trained(self, run: TrainingRun, factors: Factors | None = None) -> TrainingEstimate:
        from neusight.distributed.estimate import estimated

        return estimated(self.timed(run, factors))

    def timed(self, run: TrainingRun, factors: Factors | None = None) -> TimedStep:
        """The times that a training step is simulated with, stage by stage; arguments and errors as ``training``."""
        from neusight.distributed.step import timed

        return timed([run], self.on_cluster(run.cluster, run.engine), factors)[0]

    def plans(self, run: TrainingRun, space: Space | None = None, count: int = 5, **options: Any) -> Found:
        """The fastest plans of a training step that fit the cluster, found among all there are.

        Args:
            run: the step; of its plan the global batch counts.
            space: which plans there are; default all that divide model, batch and cluster.
            count: how many of the best.
            options: ``reach``, ``must_fit`` and ``progress`` of ``neusight.distributed.search.search``.

        Raises:
            ModelError: no plan divides model and batch, or none fits.
        """
        from neusight.distributed.search import begin, search
        from neusight.workers import hired

        self._check_ungiven("plans")
        jobs, ray = self._sharing.get("jobs", 1), self._sharing.get("ray", "")
        pricer = self.on_cluster(run.cluster, run.engine)
        if jobs == 1 and not ray:
            return search(run, pricer, space, count, **options)
        pricer_of = partial(self._steps.on_cluster, run.cluster, _in_steps(run.engine))
        with hired(jobs, ray, begin, run, pricer_of) as workers:
            return search(run, pricer, space, count, workers=workers, **options)

    def answer(self, question: Question) -> Answer:
        """The answer to a question as a value, whatever is asked.

        Raises:
            As ``estimate``, ``training`` or ``serving``.
        """
        from neusight.distributed.training_run import TrainingRun

        if isinstance(question, TrainingRun):
            return self.training(question)
        if isinstance(question, StepQuestion):
            return self._corrected(self._steps.answer(question))
        return self._corrected(self._served(question))

    def what_if(self, question: Question, apply: Sequence[str]) -> WhatIf:
        """What optimisations make of a question, one upon the other, with the interval of each gain.

        >>> step = Step.of("gpt2-large", "l4", mode="training", optimizer="adam").resolve()
        >>> predictor.what_if(step, ["amp", "compile"]).gain().ratio

        Args:
            question: a ``StepQuestion``, a training run (``Training.resolve``) or a ``DeploymentQuestion``.
            apply: names of ``neusight.what_if.known()``.

        Raises:
            ModelError: an unknown name. InapplicableError: an optimisation does not apply, or excludes another.
        """
        from neusight.what_if import laddered

        return laddered(self._with_precision(question), apply, self.answer)

    def what_ifs(self, question: Question, goal: Goal = "time", target: float = 0.0) -> WhatIf:
        """Every optimisation that applies: each by itself, the best first, and greedily one upon the other.

        Args:
            question: as ``what_if`` takes it.
            goal: ``time`` or ``memory``: what is to become less.
            target: where that is enough [s or B]; 0: as far as it goes.
        """
        from neusight.what_if import Ranking

        return Ranking(question=self._with_precision(question), ask=self.answer, goal=goal, target=target).ranked()

    def _with_precision(self, question: Question) -> Question:
        """The question with the precision of its model, where the request leaves it to that."""
        if not isinstance(question, StepQuestion) or question.precision != OWN_PRECISION:
            return question
        return replace(question, traced_precision=self.workload(question).request.precision)

    def on_cluster(self, cluster: Cluster, engine: Engine) -> Callable[[KernelBatch, DeviceSpec, Conditions], Costs]:
        """What answers for an engine's kernels on a cluster's devices and for collectives on its links and network.

        Where factors of kernels in steps are fitted, they are so over what laws say: corrections that were learned from
        kernels by themselves, in bursts, do not carry over to steps.
        """
        return self._steps.on_cluster(cluster, _in_steps(engine))

    def _priced(self, batch: KernelBatch, place: Place, conditions: Conditions) -> Costs:
        """Kernels of passes, for whose factors the same holds as for those of ``on_cluster``."""
        executor: Any = self._steps.executor(device_of(place), batch.family)
        costs: Costs = executor.cost(batch, place, Options(learned=False), conditions)
        return costs

    def shared(self, jobs: int = 1, ray: str = "") -> Predictor:
        """The same predictor, whose sweeps and searches for plans are shared.

        >>> predictor.shared(jobs=8).sweep(models, gpus, range(1, 65))

        Args:
            jobs: processes that share the work.
            ray: address of a Ray cluster whose cores do, at most ``jobs`` of them, 0 for all; "" for this host.
        """
        other = copy(self)
        other._sharing = {"jobs": jobs, "ray": ray}
        return other

    def sweep(
        self, models: str | Iterable[str], gpus: Gpu | Iterable[Gpu], batches: int | Iterable[int] = 1, **words: Any
    ) -> pd.DataFrame:
        """Every combination as one row a step: latency, throughput, memory and cost, for capacity planning.

        A step that does not fit has ``fits`` False; one that cannot be estimated has its reason in ``error`` and no
        figures. Columns: model, gpu, mode, batch, seq_len, dtype, latency_s, low_s, high_s, bound_s, limiter,
        samples_per_s, tokens_per_s, needed_bytes, peak_bytes, fits, board_energy_j, usd_per_million_samples,
        price_source, unit, assumed, error.

        >>> table = predictor.sweep("gpt2-large", ["l4", "a100-pcie-80gb"], [1, 2, 4, 8], modes="training")
        >>> table[table.fits].sort_values("samples_per_s").groupby("gpu").last()   # the best batch a GPU

        Args:
            models, gpus, batches: what to combine; each a list, or one value.
            words: as ``sweep_rows`` takes them.

        Raises:
            DeviceError: of a predictor that is shared, no such cluster.
        """
        import pandas as pd

        return pd.DataFrame(self.sweep_rows(models, gpus, batches, **words))

    def sweep_rows(
        self,
        models: str | Iterable[str],
        gpus: Gpu | Iterable[Gpu],
        batches: int | Iterable[int] = 1,
        *,
        modes: str | Iterable[str] = "inference",
        seq_lens: int | Iterable[int | None] | None = None,
        dtypes: str | torch.dtype | Iterable[str | torch.dtype | None] | None = None,
        progress: Callable[[int, int], None] | None = None,
        **words: Any,
    ) -> list[dict[str, Any]]:
        """The rows of ``sweep``, without pandas: a missing figure is None.

        Args:
            models, gpus, batches, modes, seq_lens, dtypes: what to combine; each a list, or one value.
            progress: called with (done, of) after each row.
            words: of all steps, as ``estimate`` takes them; an optimizer is that of steps of training.
        """
        self._check_ungiven("sweeps")
        grid = {"model": models, "gpu": gpus, "mode": modes, "batch": batches, "seq_len": seq_lens, "dtype": dtypes}
        return self.rows(sweep_points(grid, words), progress)

    def rows(
        self, points: Sequence[Mapping[str, Any]], progress: Callable[[int, int], None] | None = None
    ) -> list[dict[str, Any]]:
        """A row of ``sweep`` for each step, whose keywords are those of ``estimate``: a missing figure is None."""
        return swept(self._steps, points, progress=progress, **self._sharing)
