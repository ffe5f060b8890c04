"""Parts that make a forward pass a training step: a loss, and an optimizer whose state exists."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from neusight.errors import ModelError
from neusight.workloads.trace.library_forms import exchange_forms
from neusight.workloads.trace.memory import Ledger

if TYPE_CHECKING:
    from neusight.workloads.trace.recorder import Recorder


def default_loss(result: Any) -> torch.Tensor:
    """The result's own ``loss``, or the cross-entropies of its logits over all positions, or a plain sum."""
    loss = getattr(result, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    logits = list(_logits(result))
    if logits:
        return sum(map(_cross_entropy, logits[1:]), start=_cross_entropy(logits[0]))
    return next(_floating(result)).sum()


def _logits(result: Any) -> Iterator[torch.Tensor]:
    """Every output named so, or a bare tensor of at least two dimensions."""
    if isinstance(result, torch.Tensor):
        if result.dim() >= 2:
            yield result
    elif isinstance(result, Mapping):
        yield from (v for k, v in result.items() if "logits" in k and isinstance(v, torch.Tensor))


def _cross_entropy(logits: torch.Tensor) -> torch.Tensor:
    """Over the last dimension, with a target for every position; logits of half precision are widened first."""
    flat = logits.reshape(-1, logits.shape[-1])
    flat = flat.float() if flat.dtype in (torch.float16, torch.bfloat16) else flat
    return functional.cross_entropy(flat, torch.empty(flat.shape[0], dtype=torch.long))


def _floating(result: Any) -> Iterator[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        if result.is_floating_point():
            yield result
        return
    values = result.values() if isinstance(result, Mapping) else result
    if not isinstance(values, list | tuple) and not isinstance(result, Mapping):
        raise ModelError(
            f"cannot form a loss from {type(result).__name__}: give step=, a function that runs one training step"
        )
    for value in values:
        if isinstance(value, torch.Tensor | list | tuple | Mapping):
            yield from _floating(value)


def check_trainable(module: torch.nn.Module, name: str) -> None:
    """Raises:
    ModelError: the module has no weights, or none that may be trained.
    """
    if not any(parameter.requires_grad for parameter in module.parameters()):
        frozen = "only frozen weights (requires_grad=False)" if any(True for _ in module.parameters()) else "no weights"
        raise ModelError(f"{name} has {frozen}, so there is nothing to train: ask for inference")


def prepared_optimizer(module: torch.nn.Module, name: str, form: str, ledger: Ledger) -> torch.optim.Optimizer | None:
    """The optimizer with its state made, as it is from the second step on, and entered as such; None for ``none``."""
    trainable = [p for p in module.parameters() if p.requires_grad]
    if name == "none" or not trainable:
        return None
    optimizer = _make(name, form, trainable)
    _make_state(optimizer, trainable, name)
    for state in optimizer.state.values():
        for tensor in state.values():
            if isinstance(tensor, torch.Tensor) and tensor.dim():
                ledger.add(tensor, "state")
    return optimizer


def enter_gradients(module: torch.nn.Module, ledger: Ledger) -> None:
    """Enter the gradients that parameters have after a backward pass."""
    for parameter in module.parameters():
        if parameter.grad is not None:
            ledger.add(parameter.grad).kind = "gradient"


@contextmanager
def phases_told(recorder: Recorder, module: torch.nn.Module) -> Iterator[None]:
    """Tell the recorder where a function is in its training step: what follows a backward pass is the optimizer's, up
    to the next call of the module.
    """

    def told(original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> None:
            with recorder.during("backward"):
                original(*args, **kwargs)
            enter_gradients(module, recorder.ledger)
            recorder.phase = "optimizer"

        return backward

    def on_call(*_: Any) -> None:
        recorder.phase = "backward" if recorder.phase == "backward" else "forward"

    handle = module.register_forward_pre_hook(on_call)
    try:
        with exchange_forms([(torch.autograd, "backward", told)]):
            yield
    finally:
        handle.remove()


def unscale(module: torch.nn.Module) -> None:
    """Before a step, what ``torch.amp.GradScaler`` does to gradients, those of one dtype at once, of sparse ones to the
    rows that they have; a trace has no overflow.
    """
    by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
    for parameter in module.parameters():
        if (gradient := parameter.grad) is not None:
            values = gradient._values() if gradient.is_sparse else gradient
            by_dtype.setdefault(values.dtype, []).append(values)
    for gradients in by_dtype.values():
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, torch.zeros(()), torch.ones(()))


def _make(name: str, form: str, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    if name == "bert_adam":
        return BertAdam(parameters)
    options: dict[str, Any] = {"foreach": form == "foreach", "fused": form == "fused", "lr": 1e-3}
    if name == "sgd":
        return torch.optim.SGD(parameters, momentum=0.9, **options)
    return {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name](parameters, **options)


def _make_state(optimizer: torch.optim.Optimizer, parameters: list[torch.nn.Parameter], name: str) -> None:
    """The state that the first step would make: moments of the parameters' shape, and Adam's step counters."""
    for parameter in parameters:
        state = optimizer.state[parameter]
        if name == "sgd":
            state["momentum_buffer"] = torch.empty_like(parameter, requires_grad=False)
            continue
        state["step"] = torch.zeros(())
        state["exp_avg"] = torch.empty_like(parameter, requires_grad=False)
        state["exp_avg_sq"] = torch.empty_like(parameter, requires_grad=False)


class BertAdam(torch.optim.Optimizer):
    """Adam as NVIDIA's BERT has it for float32 (DeepLearningExamples, ``optimization.py``): without correction of the
    bias, with decay of matrices and tables, one parameter after another and one operator at a time.

    The norm of all gradients is found first; where it exceeds the limit, which is what a step is taken to do, each
    parameter is scaled by both before its update.
    """

    _BETAS, _EPSILON, _DECAY, _RATE, _LIMIT = (0.9, 0.999), 1e-6, 0.01, 1e-3, 1.0

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        updated = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        torch._foreach_norm([p.grad for p in updated])
        for parameter in updated:
            self._update(parameter)

    def _update(self, parameter: torch.Tensor) -> None:
        first, second = (self.state[parameter][name] for name in ("exp_avg", "exp_avg_sq"))
        gradient, (slow, slower) = parameter.grad, self._BETAS
        assert gradient is not None
        scaled = parameter * self._LIMIT / self._LIMIT
        first.mul_(slow).add_(gradient, alpha=1.0 - slow)
        second.mul_(slower).addcmul_(gradient, gradient, value=1.0 - slower)
        update = first / (second.sqrt() + self._EPSILON)
        if parameter.dim() > 1:
            update += self._DECAY * scaled
        scaled.add_(-(self._RATE * update))
