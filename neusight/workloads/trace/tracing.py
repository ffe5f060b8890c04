"""Trace one step of a model on fake tensors: forward, autograd backward and the optimizer, without weights or a GPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Literal

from neusight.errors import ModelError, NeusightError, nearest
from neusight.workloads.graph import Graph
from neusight.workloads.tensors import TensorSpec
from neusight.workloads.trace.structure import find_repeats

if TYPE_CHECKING:
    import torch

    from neusight.workloads.trace.recorder import Recorder

Inputs = Mapping[str, Any] | Sequence[Any]
Mode = Literal["inference", "training"]
OPTIMIZERS = ("none", "sgd", "adam", "adamw")
ATTENTIONS = ("eager", "sdpa", "flash")
FORMS = ("foreach", "fused")


def trace(
    model: torch.nn.Module | Callable[[], torch.nn.Module],
    inputs: Inputs,
    *,
    name: str,
    mode: Mode = "inference",
    batch: int = 1,
    seq_len: int | None = None,
    dtype: str = "float32",
    optimizer: str = "none",
    optimizer_form: str = "foreach",
    attention: str = "eager",
    loss: Callable[[Any], torch.Tensor] | None = None,
    time_loss: bool = True,
    allow_fallback: bool = False,
) -> Graph:
    """Run one step on fake tensors and record what a GPU would run.

    A training step is the steady state: gradients start as None (``zero_grad()``), the optimizer's state exists
    already. Forward is timed from inputs to the model's result.

    Args:
        model: a function that builds the module (called on fake tensors, so no weight is ever allocated), or a module
            (left as it is; the trace works on a fake copy of it).
        inputs: by name or in order, what ``forward`` takes: a TensorSpec or tensor (only its shape and dtype count;
            floating ones take ``dtype``), anything else is passed on.
        name: what the graph calls the model.
        mode: ``inference`` (evaluation mode, no autograd) or ``training``.
        batch: samples in a step, for the record.
        seq_len: tokens in a sample, for the record; None where it means nothing.
        dtype: floating dtype of weights and inputs.
        optimizer: ``none``, ``sgd`` (with momentum 0.9), ``adam`` or ``adamw``; only in training.
        optimizer_form: ``foreach`` (PyTorch's choice on CUDA) or ``fused``.
        attention: what ``torch.nn.functional.scaled_dot_product_attention`` becomes: ``eager``, ``sdpa`` or ``flash``.
            Modules that write attention out are not changed.
        loss: from the model's result to a scalar. Unless given, the result's ``loss`` if it has one, else the sum of
            the cross-entropies of its logits over all positions, else the sum of its first floating tensor.
        time_loss: whether the forward kernels of the loss are part of the graph (phase forward, layer ``loss``).
            Without them, the backward pass still begins with its gradient.
        allow_fallback: replace operators without a rule by one pass over their tensors, listed in ``Graph.uncovered``.

    Raises:
        CoverageError: an operator has no rule, and ``allow_fallback`` is False.
        ModelError: an option is unknown, or the module cannot be built or run with these inputs.
    """
    _check(mode, dtype, optimizer, optimizer_form, attention)
    from neusight.workloads.trace.memory import Ledger
    from neusight.workloads.trace.recorder import Recorder

    recorder = Recorder(Ledger(), allow_fallback=allow_fallback)
    with explained(name, "trace"), _environment(attention, mode):
        module = _fake_module(model, dtype)
        given = _fake_inputs(inputs, dtype)
        parameters = sum(p.numel() for p in module.parameters())
        forward_end = _step(recorder, module, given, mode, (optimizer, optimizer_form), loss, time_loss)
    return Graph(
        model=name,
        mode=mode,
        batch=batch,
        seq_len=seq_len,
        dtype=dtype,
        optimizer=optimizer if mode == "training" else "none",
        attention=attention,
        parameters=parameters,
        nodes=tuple(recorder.nodes),
        memory=recorder.ledger.profile(forward_end),
        repeats=find_repeats(recorder.nodes),
        uncovered=tuple(recorder.uncovered),
    )


def _check(mode: str, dtype: str, optimizer: str, form: str, attention: str) -> None:
    options = {
        "mode": (mode, ("inference", "training")),
        "dtype": (dtype, ("float32", "float16", "bfloat16", "float64")),
        "optimizer": (optimizer, OPTIMIZERS),
        "optimizer form": (form, FORMS),
        "attention": (attention, ATTENTIONS),
    }
    for what, (value, known) in options.items():
        if value not in known:
            raise ModelError(f"unknown {what} '{value}': one of {', '.join(known)}{nearest(value, known)}")


@contextmanager
def explained(name: str, doing: str) -> Iterator[None]:
    """Whatever a user's module raises becomes one line that names it, and what was being done to it."""
    try:
        yield
    except NeusightError:
        raise
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else "no message"
        raise ModelError(
            f"cannot {doing} '{name}': {type(error).__name__}: {first}; check that the inputs fit its forward()"
        ) from error


@contextmanager
def _environment(attention: str, mode: str) -> Iterator[None]:
    """Fake tensors, GPU forms of operators, no CPU fast paths, gradients as the mode wants them."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from neusight.workloads.trace.gpu_forms import gpu_forms

    fast_path = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast_path)
        torch.backends.mha.set_fastpath_enabled(False)
        # Copying a module while it is built asks fake tensors for their address.
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(torch.set_grad_enabled(mode == "training"))
        stack.enter_context(gpu_forms(attention))
        yield


def _fake_module(model: Any, dtype: str) -> torch.nn.Module:
    """The module on fake tensors: built without initialising anything, or a copy without the weights."""
    import torch

    from neusight.workloads.trace.building import built, copy_as_fake
    from neusight.workloads.trace.transformers_forms import settle_routers

    floating = getattr(torch, dtype)
    module = copy_as_fake(model, floating) if isinstance(model, torch.nn.Module) else built(model, floating)
    settle_routers(module)
    return module


def _fake_inputs(inputs: Inputs, dtype: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named arguments with fake tensors in place of specs and tensors."""
    import torch

    def fake(value: Any) -> Any:
        if isinstance(value, TensorSpec):
            floating, own = value.floating, getattr(torch, value.dtype)
        elif isinstance(value, torch.Tensor):
            floating, own = value.is_floating_point(), value.dtype
        else:
            return value
        return torch.empty(value.shape, dtype=getattr(torch, dtype) if floating else own)

    if isinstance(inputs, Mapping):
        return (), {key: fake(value) for key, value in inputs.items()}
    return tuple(fake(value) for value in inputs), {}


def _step(
    recorder: Recorder, module: torch.nn.Module, given: tuple[tuple[Any, ...], dict[str, Any]], mode: Mode,
    optimizer: tuple[str, str], loss: Callable[[Any], Any] | None, time_loss: bool,
) -> int | None:  # fmt: skip
    """Forward, and in training backward and the optimizer's step; the id of the last forward node in training."""
    from neusight.workloads.trace.building import track_layers
    from neusight.workloads.trace.training import default_loss, prepared_optimizer
    from neusight.workloads.trace.transformers_forms import unpadded_batches

    ledger = recorder.ledger
    for tensor in (*module.parameters(), *module.buffers()):
        ledger.add(tensor, "forward", "weights")
    module.train(mode == "training")
    update = prepared_optimizer(module, *optimizer, ledger) if mode == "training" else None
    args, kwargs = given
    with unpadded_batches(), track_layers(module, recorder), recorder:
        with recorder.during("forward"):
            result = module(*args, **kwargs)
        if mode == "inference":
            return None
        with recorder.during("forward", record=time_loss, layer="loss"):
            scalar = (loss or default_loss)(result)
        del result
        forward_end = len(recorder.nodes) - 1
        _learn(recorder, module, scalar, update)
    return forward_end


def _learn(recorder: Recorder, module: torch.nn.Module, loss: torch.Tensor, update: Any) -> None:
    """Backward from the loss, then the optimizer's step if there is one."""
    with recorder.during("backward"):
        loss.backward()
    for parameter in module.parameters():
        if parameter.grad is not None:
            recorder.ledger.add(parameter.grad, "backward").kind = "gradients"
    if update is not None:
        with recorder.during("optimizer"):
            update.step()
