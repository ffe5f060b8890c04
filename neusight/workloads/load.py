"""A model and the options of a step, to its workload: from a shipped file, the cache, or a trace run now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from neusight.defaults import default_seq_len
from neusight.engines.torch import torch_engine
from neusight.errors import ModelError, UndecidedError
from neusight.kernels.precision import OWN_PRECISION, Precision
from neusight.requests import Extents, Request
from neusight.workloads.catalogue import own_attention
from neusight.workloads.config_file import attention_of
from neusight.workloads.inputs import Changes, InputSets, as_inputs, described, missing_input, tensors_of
from neusight.workloads.resolve import WorkloadSource, resolve, step_dtype
from neusight.workloads.serialise import read_trace, trace_key, write_trace
from neusight.workloads.target import PARTLY_COMPILED, TargetDevice, TargetReader
from neusight.workloads.tensors import Known, TensorSpec
from neusight.workloads.workload import Workload, iterate_module, rename_model

if TYPE_CHECKING:
    from neusight.workloads.trace.tracing import StepFunction

_LONG = 4000
"""Operators of a step that is not traced again: it loops over time or experts, and no value that it reads is known."""


def load_workload(
    model: Any,
    request: Request | None = None,
    *,
    inputs: Any = None,
    step: StepFunction | None = None,
    allow_fallback: bool = False,
    cache: bool = True,
    target: TargetDevice | None = None,
    **options: Any,
) -> Workload:
    """Operators and kernels of one step of a model.

    A training step is the forward pass to the logits, the backward pass from the gradient of the cross-entropy over
    all positions, and the optimizer's update; the forward kernels of the loss itself are left out, as in published
    measurements. BERT has its pre-training heads in training and is a sequence classifier in inference.

    Ready workloads come from files that ship, which hold for any batch and sequence length; other models are traced
    once and kept in the user's cache.

    Args:
        model: whatever ``resolve`` takes.
        request: the step; or its fields as ``options``, as ``Request.of`` takes them. The sequence length is that of
            ``default_seq_len`` unless given.
        inputs: what ``forward`` takes, where ``model`` is a module.
        step: what a training step is, see ``trace``, in place of forward, cross-entropy, backward and update.
        allow_fallback: go on where an operator has no rule; the workload names it in ``uncovered``.
        cache: read and write the user's cache of traces.
        target: the device that the module meets; default a GPU of which nothing more is known.
        options: see ``request``.

    Raises:
        ModelError: unknown model or option, batch below 1, a sequence longer than the model's limit.
        CoverageError: an operator without a rule, unless ``allow_fallback``.
    """
    source = resolve(model, inputs)
    request = settled_request(source, request or Request.of(source.name, **options))
    once = replace(request, steps=None)
    workload = _load(source, once, step, allow_fallback, target or TargetDevice(), cache=cache)
    return _as_run(workload, source, request)


def _load(
    source: WorkloadSource, request: Request, step: StepFunction | None, allow_fallback: bool,
    target: TargetDevice, *, cache: bool,
) -> Workload:  # fmt: skip
    """Workload from a file that ships, the cache, or a trace, which is then stored; a function is not part of any
    key.
    """
    caches = cache and step is None
    if caches and (shipped := _shipped_workload(source, request)) is not None:
        return shipped
    if not caches or source.digest is None:
        return trace_source(source, request, step, allow_fallback, target)
    options = request.to_dict() | {"fallback": allow_fallback}
    # The first trace of a model is kept for all targets that agree with what it read, others for their own.
    keys = [trace_key(source.digest, options | of_target) for of_target in ({}, asdict(target))]
    stored = [read_trace(key) for key in keys]
    for kept_step in stored:
        if kept_step is not None and target.agrees(kept_step.target):
            return rename_model(kept_step, source.name)
    workload = trace_source(source, request, None, allow_fallback, target)
    # The key has a function's text, not the values that it returns, which may come from anywhere.
    if not (source.function and workload.values_decide):
        write_trace(keys[stored[0] is not None], workload)
    return workload


def _as_run(workload: Workload, source: WorkloadSource, request: Request) -> Workload:
    """Workload with the requested engine, the form of attention that runs where it was left to the model, the part of
    each step as often as there are steps, and the unit of work.
    """
    fused = any(kernel.family == "attention" for node in workload.nodes for kernel in node.kernels)
    attention = request.attention or ("sdpa" if fused else "eager")
    engine = request.engine
    if workload.launch and engine.launch == "eager":
        engine = torch_engine(launch=workload.launch, layout=engine.layout)
    whole = engine.launch != "eager"
    warnings = tuple(line for line in workload.warnings if not (whole and line.endswith(PARTLY_COMPILED)))
    names, steps = [], request.steps or 1
    for part in source.parts:
        workload = iterate_module(workload, part.module, steps) if part.repeats and steps > 1 else workload
        names.append((part.module, f"{part.name} x {steps}" if part.repeats else part.name))
    final = replace(workload.request, engine=replace(engine, attention=attention), steps=request.steps)
    return replace(workload, request=final, warnings=warnings, unit=source.unit(request), parts=tuple(names))


def shipped_step(model: str, request: Request | None = None, **options: Any) -> Workload | None:
    """Workload of ``load_workload`` for a ready model, at once or not at all: None where no such step ships."""
    source = resolve(model)
    request = settled_request(source, request or Request.of(source.name, **options))
    step = _shipped_workload(source, request)
    return None if step is None else _as_run(step, source, request)


def settled_request(source: WorkloadSource, request: Request) -> Request:
    """The request with the model's name, the sequence length asked for or the default (None for images), and what
    its file states where dtype and attention are left to the model.
    """
    settled = request.resolved(source.name, _seq_len(source, request))
    if source.described is not None:
        settled = source.described.settled(settled)
    if settled.precision == OWN_PRECISION and (dtype := step_dtype(source, settled.engine)[0]):
        settled = replace(settled, precision=Precision.named(dtype))
    if settled.steps and not any(part.repeats for part in source.parts):
        raise ModelError(f"{settled.model or 'the module'} is no pipeline with steps of denoising: leave out --steps")
    if source.config is not None and not settled.attention:
        settled = replace(settled, engine=replace(settled.engine, attention=attention_of(source.config)))
    return settled


def _seq_len(source: WorkloadSource, request: Request) -> int | None:
    """The length that is asked for or the model's own; None where inputs or the class tell, or there is none."""
    limit, seq_len = source.max_seq_len, request.seq_len
    if source.ready_type and not source.takes_seq_len:
        if seq_len is not None:
            raise ModelError(f"{source.name} reads images, which have no sequence: leave out --seq-len")
        return None
    if seq_len is None:
        is_usual = source.ready_type and not request.extents.given
        return default_seq_len(limit).value if is_usual else None
    if limit is not None and seq_len > limit:
        raise ModelError(f"sequence length {seq_len} is longer than {source.name} allows: at most {limit}")
    return seq_len


def _shipped_workload(source: WorkloadSource, request: Request) -> Workload | None:
    if source.catalogue is None:
        return None
    from neusight.workloads.huggingface import input_specs
    from neusight.workloads.shipped import shipped_workload

    file = shipped_workload(source.catalogue)
    # A text has no layout.
    nchw = request.engine.layout == "nchw" or request.seq_len is not None
    as_shipped = request.extents == Extents() and nchw and not (request.grad_scaler or request.shares)
    if file is None or source.config is None or not as_shipped:
        return None
    attention = request.attention or own_attention(source.config)
    engine = replace(request.engine, attention=attention)
    # Weights in float32 run the same operators in every dtype of products.
    step = file.evaluate(
        replace(request, engine=engine, precision=replace(request.precision, products="", convolutions="tf32"))
    )
    if step is None:
        return None
    specs = input_specs(source.config, request.batch, request.seq_len, attention)
    return replace(step, request=request, inputs=described(specs, request.precision.weights))


def trace_source(
    source: WorkloadSource, request: Request, step: StepFunction | None = None, allow_fallback: bool = False,
    target: TargetDevice | None = None,
) -> Workload:  # fmt: skip
    """Trace now; arguments are those of ``load_workload``, resolved and checked."""
    from neusight.workloads.trace.tracing import trace

    reader = TargetReader(target or TargetDevice())

    def trace_with(model: Any, inputs: Any, request: Request) -> Workload:
        options: dict[str, Any] = {"step": step, "time_loss": False, "allow_fallback": allow_fallback, "reader": reader}
        values = list(inputs.values() if isinstance(inputs, Mapping) else inputs)
        first = any(isinstance(value, Known) for value in values)
        if not any(isinstance(value, TensorSpec) and not value.floating for value in values):
            workload = trace(model, inputs, request, **options)
        else:
            again = source.config is not None or source.described is not None
            workload = _as_values_decide(
                lambda zeros: trace(model, inputs, request, zeros=zeros, **options), first, again
            )
        return replace(workload, inputs=described(inputs, workload.request.precision.weights))

    if source.config is not None:
        return _with_notes(_first_that_runs(source.config, request, trace_with), reader)
    if source.described is None and request.extents != Extents():
        raise ModelError(f"the inputs of {source.name} are its own: leave out --image-size, --frames and --input")
    return _with_notes(trace_with(*_built(source, request, reader)), reader)


def _with_notes(workload: Workload, reader: TargetReader) -> Workload:
    return replace(workload, target=reader.read_facts, warnings=(*reader.notes, *workload.warnings))


def _as_values_decide(traced: Callable[[bool], Workload], first: bool, again: bool) -> Workload:
    """A trace; where values decide that are not known, one in which integers of inputs are zeros, if that runs.

    Args:
        traced: a trace, whose argument says whether integers without values are zeros.
        first: whether to try so at once, since other inputs have values.
        again: whether to try so after a trace that runs as well.

    Raises:
        ModelError: it runs neither way; what it says of the first.
    """
    try:
        workload = traced(first)
    except ModelError as error:
        if not first and not isinstance(error, UndecidedError):
            raise
        refused = error
    else:
        if first or not again or not workload.warnings or sum(node.copies for node in workload.nodes) > _LONG:
            return workload
        try:
            return traced(True)
        except ModelError:
            return workload
    try:
        return traced(not first)
    except ModelError:
        # Not from the second refusal: the cause of the first says what the model missed.
        raise refused from refused.__cause__


def _first_that_runs(
    config: dict[str, Any], request: Request, traced: Callable[[Any, Any, Request], Workload]
) -> Workload:
    """The trace with the first set of inputs that a model runs with.

    What refusals name is given as well; a model that then runs with none is run without its sounds, then without its
    images, which a warning says.

    Raises:
        ModelError: it runs with none; what it says of the first. CoverageError: an operator has no rule.
    """
    from neusight.workloads.huggingface import build_model, input_sets_of, resize
    from neusight.workloads.trace.building import ReusedModule

    config = resize(config, request.extents)
    model = ReusedModule(lambda: build_model(config, request.mode, request.attention))
    changes, refused = Changes(), None
    while True:
        choices = input_sets_of(config, request, changes)
        outcome = _with_any(choices, request, lambda inputs, step: traced(model, inputs, step))
        if isinstance(outcome, Workload):
            return replace(outcome, warnings=(*_omission(changes), *outcome.warnings))
        refused = refused or outcome[0]
        name = next((name for error in outcome if (name := missing_input(error, choices.addable))), None)
        if name is not None:
            changes = Changes((*changes.added, name), changes.omitted)
        elif choices.optional:
            changes = Changes(changes.added, (*changes.omitted, choices.optional[0]))
        else:
            raise refused


def _with_any(
    choices: InputSets, request: Request, traced: Callable[[Any, Request], Workload]
) -> Workload | list[ModelError]:
    """The trace of the first way that runs, else what the model says of each."""
    refusals = []
    for inputs in choices.sets:
        batch = _batch_of(inputs, request) if request.extents.given else request.batch
        try:
            return traced(inputs, replace(request, batch=batch, seq_len=choices.seq_len))
        except ModelError as error:
            refusals.append(error)
    return refusals


def _omission(changes: Changes) -> tuple[str, ...]:
    names = " and ".join(changes.omitted)
    return (f"runs without {names}, with which it fails: the step is of what is left",) if names else ()


def _built(source: WorkloadSource, request: Request, reader: TargetReader) -> tuple[Any, Any, Request]:
    """Arguments of ``trace``: a module or its builder, inputs, and the request with the batch of the inputs."""
    if source.described is not None:
        described = source.described
        values = described.inputs(request)
        return lambda: described.build(request), values, replace(request, batch=_batch_of(values, request))
    if source.function is None:
        return source.module, source.inputs, replace(request, batch=_batch_of(source.inputs, request))
    from neusight.workloads.functions import call_function

    module, inputs = call_function(source.function, request.batch, request.seq_len, reader)
    values = as_inputs(inputs)
    return module, values, replace(request, batch=_batch_of(values, request))


def _batch_of(inputs: Any, request: Request) -> int:
    """Samples that the inputs hold, by the first extent that all tensors among them share, those of one dimension
    aside where there are others, and those in lists, which may have a tensor a sample; else those asked for.

    Raises:
        ModelError: another batch than these was asked for.
    """
    values = inputs.values() if isinstance(inputs, Mapping) else inputs
    tensors = [t for value in values for t in tensors_of(value, in_lists=False) if len(t.shape)]
    extents = {int(t.shape[0]) for t in tensors if len(t.shape) > 1} or {int(t.shape[0]) for t in tensors}
    if len(extents) != 1:
        return request.batch
    samples = extents.pop()
    if request.batch not in (1, samples):
        raise ModelError(
            f"the inputs of {request.model} hold {samples} samples where a batch of {request.batch} was asked for: "
            "leave out the batch, or make inputs of that batch"
        )
    return samples
