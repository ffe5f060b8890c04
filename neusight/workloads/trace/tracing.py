"""Trace one step of a model on fake tensors: forward, autograd backward and the optimizer, without weights or a GPU."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

from neusight.errors import ModelError, NeusightError, UndecidedError
from neusight.kernels.precision import OWN_PRECISION
from neusight.requests import Request
from neusight.workloads.inputs import tensors_of
from neusight.workloads.tensors import Known, TensorSpec
from neusight.workloads.workload import Workload

if TYPE_CHECKING:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from neusight.workloads.trace.building import ReusedModule
    from neusight.workloads.trace.recorder import Recorder
    from neusight.workloads.trace.values import Values

Inputs = Mapping[str, Any] | Sequence[Any]
FORMS = ("foreach", "fused")


def trace(
    model: torch.nn.Module | Callable[[], torch.nn.Module] | ReusedModule,
    inputs: Inputs,
    request: Request,
    *,
    optimizer_form: str = "foreach",
    loss: Callable[[Any], torch.Tensor] | None = None,
    time_loss: bool = True,
    allow_fallback: bool = False,
    zeros: bool = False,
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
        loss: from the model's result to a scalar. Unless given, the result's ``loss`` if it has one, else the sum of
            the cross-entropies of its logits over all positions, else the sum of its first floating tensor.
        time_loss: whether the forward kernels of the loss are part of the workload (phase forward, layer ``loss``).
            Without them, the backward pass still begins with its gradient.
        allow_fallback: replace operators without a rule by one pass over their tensors, listed in ``uncovered``.
        zeros: integers of inputs without values are zeros, for models whose shapes depend on them.

    Raises:
        CoverageError: an operator has no rule, and ``allow_fallback`` is False.
        ModelError: an option is unknown, the module cannot be built or run with these inputs, or the request gives a
            share of what does not depend on unknown values.
        UndecidedError: it cannot be run, after a value was asked for that there was not.
    """
    if optimizer_form not in FORMS:
        raise ModelError(f"unknown optimizer form '{optimizer_form}': one of {', '.join(FORMS)}")
    from neusight.workloads.trace.building import ReusedModule, channels_last, own_precision
    from neusight.workloads.trace.layers import layered
    from neusight.workloads.trace.memory import Ledger
    from neusight.workloads.trace.recorder import Recorder
    from neusight.workloads.trace.sizes import Shares

    shares = Shares(dict(request.shares))
    recorder = Recorder(Ledger(), allow_fallback=allow_fallback, shares=shares)
    source = model if isinstance(model, ReusedModule) else ReusedModule(model)
    with (
        _undecided(recorder),
        explained(request.model, "trace"),
        _environment(request.attention or "sdpa", request.mode, source.fake),
    ):
        module = source.module(request.precision.weights)
        if request.precision == OWN_PRECISION:
            request = replace(request, precision=own_precision(module, inputs))
        given = _traced_inputs(inputs, request.precision.weights, zeros, recorder.values)
        if request.engine.layout == "nhwc":
            module, given = channels_last(module, given)
        parameters = sum(p.numel() for p in module.parameters())
        options = _StepOptions(
            mode=request.mode,
            optimizer=(request.optimizer, optimizer_form),
            loss=loss,
            time_loss=time_loss,
            autocast=request.precision.autocast,
            grad_scaler=request.grad_scaler,
        )
        _step(recorder, module, given, options)
    shares.check()
    workload = layered(recorder.nodes, recorder.ledger.allocations, request, parameters, tuple(recorder.uncovered))
    return replace(workload, warnings=_in_short(tuple(recorder.assumed)))


_MOST_WARNINGS = 4
_SEED = 0
"""Of the numbers that a module draws at random while it is traced."""


def _in_short(lines: tuple[str, ...]) -> tuple[str, ...]:
    """The first lines, and how many more there are: equal layers say the same."""
    more = len(lines) - _MOST_WARNINGS
    if more <= 0:
        return lines
    return (*lines[:_MOST_WARNINGS], f"{more} more results depend on data that is not known, and were assumed likewise")


@dataclass(frozen=True, kw_only=True)
class _StepOptions:
    """What a step runs besides the module: optimizer by name and form, the loss, whether it is timed, the dtype of
    autocast around both, '' without, and whether gradients are scaled back.
    """

    mode: str
    optimizer: tuple[str, str]
    loss: Callable[[Any], Any] | None
    time_loss: bool
    autocast: str
    grad_scaler: bool


@contextmanager
def explained(name: str, doing: str) -> Iterator[None]:
    """Whatever a user's module raises becomes one line: which of its layers had been called with which shapes."""
    try:
        yield
    except NeusightError:
        raise
    except Exception as error:
        first = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else "no message"
        raise ModelError(
            f"cannot {doing} '{name}': {_failed_layer(error)}{type(error).__name__}: {first}; check that the inputs "
            "fit its forward()"
        ) from error


def _failed_layer(error: BaseException) -> str:
    """The innermost layer whose ``forward`` had begun, with the tensors that it was called with; '' without any."""
    import torch

    frames = [frame for frame, _ in walk_tb(error.__traceback__) if frame.f_code.co_name == "forward"]
    owners = [frame.f_locals.get(next(iter(frame.f_code.co_varnames), "")) for frame in frames]
    called = [(owner, f) for owner, f in zip(owners, frames, strict=True) if isinstance(owner, torch.nn.Module)]
    if not called:
        return ""
    module, frame = called[-1]
    path = next((path for path, part in called[0][0].named_modules() if part is module), "")
    arguments = {name: frame.f_locals.get(name) for name in frame.f_code.co_varnames[1 : frame.f_code.co_argcount]}
    shapes = [f"{name} {_extents(value)}" for name, value in arguments.items() if isinstance(value, torch.Tensor)]
    layer = f"layer '{path}' ({type(module).__name__})" if path else "its forward()"
    return f"{layer} called with {', '.join(shapes)}: " if shapes else f"{layer}: "


def _extents(tensor: torch.Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"


@contextmanager
def _undecided(recorder: Recorder) -> Iterator[None]:
    """A refusal after a value was taken for granted may be due to that."""
    try:
        yield
    except ModelError as error:
        if not recorder.undecided:
            raise
        raise UndecidedError(str(error)) from error.__cause__


@contextmanager
def _environment(attention: str, mode: str, fake: FakeTensorMode) -> Iterator[None]:
    """A mode of fake tensors, GPU forms of operators, no CPU fast paths, gradients as the mode wants them, and random
    numbers that are the same each time.
    """
    import torch

    from neusight.workloads.trace.gpu_forms import gpu_forms
    from neusight.workloads.trace.library_forms import torchvision_forms

    fast_path = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast_path)
        torch.backends.mha.set_fastpath_enabled(False)
        # Copying a module while it is built asks fake tensors for their address.
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
        # Shapes of torchvision's own fake operators ask for sizes by a name that PyTorch has changed.
        warnings.filterwarnings("ignore", message="`create_unbacked_symint` is deprecated")
        # Of a call that fails, PyTorch logs where it failed in its own code; what it says is in the error.
        log = logging.getLogger("torch._subclasses.fake_tensor")
        stack.callback(log.setLevel, log.level)
        log.setLevel(logging.CRITICAL)
        stack.enter_context(torch.random.fork_rng(devices=[]))
        torch.manual_seed(_SEED)
        stack.enter_context(fake)
        stack.enter_context(torch.set_grad_enabled(mode == "training"))
        stack.enter_context(gpu_forms(attention))
        stack.enter_context(torchvision_forms())
        yield


def _traced_inputs(inputs: Inputs, dtype: str, zeros: bool, values: Values) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named arguments with tensors in place of specs, fake where values are not known or too many."""
    import torch
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    from neusight.workloads.trace.values import copied

    def fake(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return copied(value, getattr(torch, dtype) if value.is_floating_point() else value.dtype)
        if isinstance(value, Known):
            with unset_fake_temporarily():
                known = torch.tensor(value.values, dtype=getattr(torch, value.dtype))
                return known.expand(value.shape).contiguous() if value.shape else known
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
    from torch.utils._python_dispatch import _disable_current_modes

    if type(value) is dict:
        return {key: fake(one) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(fake, value))
    copies = {id(tensor): fake(tensor) for tensor in tensors_of(value)}
    with _disable_current_modes():
        return copy.deepcopy(value, copies) if copies else value


def _step(
    recorder: Recorder, module: torch.nn.Module, given: tuple[tuple[Any, ...], dict[str, Any]], options: _StepOptions
) -> None:
    """Forward, and in training backward and the optimizer's step."""
    import torch

    from neusight.workloads.trace.autocast import gpu_autocast
    from neusight.workloads.trace.building import track_layers
    from neusight.workloads.trace.library_forms import unpadded_batches
    from neusight.workloads.trace.training import default_loss, prepared_optimizer

    ledger = recorder.ledger
    for tensor in (*module.parameters(), *module.buffers()):
        ledger.add(tensor, "weight")
    training = options.mode == "training"
    module.train(training)
    update = prepared_optimizer(module, *options.optimizer, ledger) if training else None
    args, kwargs = given
    with unpadded_batches(), track_layers(module, recorder), recorder:
        with gpu_autocast(getattr(torch, options.autocast)) if options.autocast else nullcontext():
            with recorder.during("forward"):
                result = module(*args, **kwargs)
            if training:
                with recorder.during("forward", record=options.time_loss, layer="loss"):
                    scalar = (options.loss or default_loss)(result)
        if training:
            del result
            _learn(recorder, module, scalar, update, options.grad_scaler)
        ledger.close()


def _learn(recorder: Recorder, module: torch.nn.Module, loss: torch.Tensor, update: Any, grad_scaler: bool) -> None:
    """Backward from the loss, then the optimizer's step if there is one."""
    from neusight.workloads.trace.training import unscale

    with recorder.during("backward"):
        loss.backward()
    for parameter in module.parameters():
        if parameter.grad is not None:
            recorder.ledger.add(parameter.grad).kind = "gradient"
    if update is not None:
        with recorder.during("optimizer"):
            if grad_scaler:
                unscale(module)
            update.step()
