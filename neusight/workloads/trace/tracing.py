"""Trace one step of a model on fake tensors: forward, autograd backward and the optimizer, without weights or a GPU."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from neusight.errors import ModelError, UndecidedError
from neusight.kernels.precision import OWN_PRECISION
from neusight.requests import Request
from neusight.workloads.inputs import tensors_of
from neusight.workloads.target import TargetReader
from neusight.workloads.tensors import Known, TensorSpec
from neusight.workloads.trace.failures import explain_failures
from neusight.workloads.workload import Workload

if TYPE_CHECKING:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from neusight.workloads.trace.building import ReusedModule
    from neusight.workloads.trace.recorder import Recorder
    from neusight.workloads.trace.values import Values

Inputs = Mapping[str, Any] | Sequence[Any]
StepFunction = Callable[..., Any]
"""Function of a module, its optimizer (None for ``none``) and the inputs that runs one training step."""
FORMS = ("foreach", "fused")


def trace(
    model: torch.nn.Module | Callable[[], torch.nn.Module] | ReusedModule,
    inputs: Inputs,
    request: Request,
    *,
    optimizer_form: str = "foreach",
    step: StepFunction | None = None,
    time_loss: bool = True,
    allow_fallback: bool = False,
    zeros: bool = False,
    reader: TargetReader | None = None,
) -> Workload:
    """Run one step on fake tensors and record what a GPU would run.

    A training step is the steady state: gradients start as None (``zero_grad()``), the optimizer's state exists
    already. Forward is timed from inputs to the model's result.

    Args:
        model: a function that builds the module (called on fake tensors, so no weight is ever allocated), the same to
            be kept for other inputs, or a module (left as it is; the trace works on a fake copy of it).
        inputs: by name or in order, what ``forward`` takes: a TensorSpec, of which shape and dtype are known; a tensor,
            whose values are known as well if they are few, see ``values``; anything else is passed on. Floating ones
            take the request's dtype.
        request: mode (``inference``: evaluation mode, no autograd), dtype (the module's own unless stated), optimizer
            (``sgd`` has momentum 0.9), and what ``torch.nn.functional.scaled_dot_product_attention`` becomes (modules
            that write attention out are not changed); batch and sequence length for the record, since the inputs have
            them.
        optimizer_form: ``foreach`` (PyTorch's choice on CUDA) or ``fused``.
        step: runs one training step, such as one that accumulates gradients, clips them, or averages weights. Unless
            given, forward, loss, backward and update, where the loss is the result's ``loss`` if it has one, else the
            sum of the cross-entropies of its logits over all positions, else the sum of its first floating tensor.
        time_loss: whether the forward kernels of the loss are part of the workload (phase forward, layer ``loss``).
            Without them, the backward pass still begins with its gradient.
        allow_fallback: replace operators without a rule by one pass over their tensors, listed in ``uncovered``.
        zeros: integers of inputs without values are zeros, for models whose shapes depend on them.
        reader: of the device that the module meets; default a GPU of which nothing more is known.

    Raises:
        CoverageError: an operator has no rule, and ``allow_fallback`` is False.
        ModelError: an option is unknown, the module cannot be built or run with these inputs, or the request gives a
            share of what does not depend on unknown values.
        UndecidedError: it cannot be run, after a value was asked for that there was not.
    """
    if optimizer_form not in FORMS:
        raise ModelError(f"unknown optimizer form '{optimizer_form}': one of {', '.join(FORMS)}")
    from neusight.workloads.trace.building import ReusedModule
    from neusight.workloads.trace.library_forms import LateImportError
    from neusight.workloads.trace.memory import Ledger
    from neusight.workloads.trace.recorder import Recorder
    from neusight.workloads.trace.sizes import Shares

    source = model if isinstance(model, ReusedModule) else ReusedModule(model)
    options = _StepOptions(
        optimizer=(request.optimizer, optimizer_form),
        step=step,
        time_loss=time_loss,
        zeros=zeros,
        reader=reader or TargetReader(),
    )
    while True:
        shares = Shares(dict(request.shares))
        recorder = Recorder(Ledger(), allow_fallback=allow_fallback, shares=shares)
        try:
            workload = _trace_step(source, inputs, request, recorder, options)
        except LateImportError:
            continue
        shares.check()
        return workload


def _trace_step(
    source: ReusedModule, inputs: Inputs, request: Request, recorder: Recorder, options: _StepOptions
) -> Workload:
    from neusight.workloads.trace.building import channels_last, own_precision
    from neusight.workloads.trace.layers import fold_layers

    with (
        _mark_undecided(recorder),
        explain_failures(request.model, "trace"),
        _environment(request.attention or "sdpa", request.mode, source.fake, options.reader),
    ):
        module = source.module(request.precision.weights)
        options.reader.notes.update(source.notes)
        if request.precision == OWN_PRECISION:
            request = replace(request, precision=own_precision(module, inputs))
        arguments = _traced_inputs(inputs, request.precision.weights, options.zeros, recorder.values)
        if request.engine.layout == "nhwc":
            module, arguments = channels_last(module, arguments)
        parameters = sum(p.numel() for p in module.parameters())
        _step(recorder, module, arguments, request, options)
    workload = fold_layers(recorder.nodes, recorder.ledger.allocations, request, parameters, tuple(recorder.uncovered))
    lines, decided = _in_short(tuple(recorder.assumed)), recorder.values_decide
    return replace(workload, warnings=lines, launch=source.launch, values_decide=decided)


_MOST_WARNINGS = 4
_SEED = 0
"""Seed of the numbers that a module draws at random while it is traced."""


def _in_short(lines: tuple[str, ...]) -> tuple[str, ...]:
    """The first lines, and how many more there are: equal layers say the same."""
    more = len(lines) - _MOST_WARNINGS
    if more <= 0:
        return lines
    return (*lines[:_MOST_WARNINGS], f"{more} more results depend on data that is not known, and were assumed likewise")


@dataclass(frozen=True, kw_only=True)
class _StepOptions:
    """Options of a trace, see ``trace``: the optimizer by its name and form, the training step where a function runs
    it, whether the loss is timed, whether integers without values are zeros, and the reader of the target.
    """

    optimizer: tuple[str, str]
    step: StepFunction | None
    time_loss: bool
    zeros: bool
    reader: TargetReader


@contextmanager
def _mark_undecided(recorder: Recorder) -> Iterator[None]:
    """Raise a refusal after a value was assumed as ``UndecidedError``, since it may be due to that."""
    try:
        yield
    except ModelError as error:
        if not recorder.undecided:
            raise
        raise UndecidedError(str(error)) from error.__cause__


@contextmanager
def _environment(attention: str, mode: str, fake: FakeTensorMode, reader: TargetReader) -> Iterator[None]:
    """A mode of fake tensors, GPU forms of operators, no CPU fast paths, gradients as the mode wants them, and random
    numbers that are the same each time.
    """
    import torch

    from neusight.workloads.trace.gpu_forms import gpu_forms
    from neusight.workloads.trace.target_device import on_target

    fast_path = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast_path)
        torch.backends.mha.set_fastpath_enabled(False)
        stack.enter_context(torch.random.fork_rng(devices=[]))
        torch.manual_seed(_SEED)
        stack.enter_context(on_target(reader))
        stack.enter_context(fake)
        stack.enter_context(torch.set_grad_enabled(mode == "training"))
        stack.enter_context(gpu_forms(attention, reader))
        yield


def _traced_inputs(inputs: Inputs, dtype: str, zeros: bool, values: Values) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named arguments with tensors in place of specs, fake where values are not known or too many."""
    import torch
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    from neusight.workloads.trace.target_device import refuse_nested
    from neusight.workloads.trace.values import copy_of

    def fake(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if value.is_nested:
                refuse_nested()
            return copy_of(value, getattr(torch, dtype) if value.is_floating_point() else value.dtype)
        if isinstance(value, Known):
            with unset_fake_temporarily():
                constant = torch.tensor(value.values, dtype=getattr(torch, value.dtype))
                return constant.expand(value.shape).contiguous() if value.shape else constant
        if not isinstance(value, TensorSpec):
            return _held(fake, value)
        if value.floating or not zeros:
            return torch.empty(value.shape, dtype=getattr(torch, dtype if value.floating else value.dtype))
        return values.zeros(value.shape, getattr(torch, value.dtype))

    if isinstance(inputs, Mapping):
        return (), {key: fake(value) for key, value in inputs.items()}
    return tuple(fake(value) for value in inputs), {}


def _held(fake: Callable[[Any], Any], value: Any) -> Any:
    """A list or dictionary of fake tensors; of another object that holds tensors, such as a cache of keys and values,
    a copy that holds fake ones; anything else as it is.
    """
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    if type(value) is dict:
        return {key: fake(part) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(fake, value))
    copies = {id(part): fake(part) for part in tensors_of(value) if isinstance(part, torch.Tensor | TensorSpec | Known)}
    with _disable_current_modes():
        return copy.deepcopy(value, copies) if copies else value


def _autocast(dtype: str, reader: TargetReader) -> AbstractContextManager[Any]:
    """Autocast to a dtype as the target runs it; none for ''."""
    import torch

    return torch.autocast("cuda" if reader.target.cuda else "cpu", getattr(torch, dtype)) if dtype else nullcontext()


def _step(
    recorder: Recorder,
    module: torch.nn.Module,
    given: tuple[tuple[Any, ...], dict[str, Any]],
    request: Request,
    options: _StepOptions,
) -> None:
    """Forward, and in training backward and the optimizer's step."""
    from neusight.workloads.trace.building import track_layers, watched_reads
    from neusight.workloads.trace.fused_kernels import kernel_forms
    from neusight.workloads.trace.library_forms import library_forms
    from neusight.workloads.trace.training import check_trainable, default_loss, phases_told, prepared_optimizer
    from neusight.workloads.trace.wrappers import compiler_forms

    ledger = recorder.ledger
    for tensor in (*module.parameters(), *module.buffers()):
        ledger.add(tensor, "weight")
    training = request.mode == "training"
    module.train(training)
    if training:
        check_trainable(module, request.model)
    update = prepared_optimizer(module, *options.optimizer, ledger) if training else None
    args, kwargs = given
    forms = [*compiler_forms(options.reader), *kernel_forms(options.reader)]
    with library_forms(forms), track_layers(module, recorder), watched_reads(recorder), recorder:
        with _autocast(request.precision.autocast, options.reader):
            if options.step is not None:
                with phases_told(recorder, module), recorder.during("forward"):
                    options.step(module, update, *args, **kwargs)
                ledger.close()
                return
            with recorder.during("forward"):
                result = module(*args, **kwargs)
            if training:
                with recorder.during("forward", record=options.time_loss, layer="loss"):
                    scalar = default_loss(result)
        if training:
            del result
            _learn(recorder, module, scalar, update, request.grad_scaler)
        ledger.close()


def _learn(recorder: Recorder, module: torch.nn.Module, loss: torch.Tensor, update: Any, grad_scaler: bool) -> None:
    """Backward from the loss, then the optimizer's step if there is one."""
    from neusight.workloads.trace.training import enter_gradients, unscale

    with recorder.during("backward"):
        loss.backward()
    enter_gradients(module, recorder.ledger)
    if update is not None:
        with recorder.during("optimizer"):
            if grad_scaler:
                unscale(module)
            update.step()
