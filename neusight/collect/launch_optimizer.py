"""Launches of optimizer steps: one pass of a foreach operator, or a whole fused update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from neusight.collect.launches import Launch, Operands, Source, launcher, size_of, unmeasurable
from neusight.kernels import Optimizer

aten = torch.ops.aten


def _fused_adamw(params: Any, grads: Any, averages: Any, squares: Any, steps: Any) -> Any:
    options = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.01, "eps": 1e-8}
    return aten._fused_adamw_(params, grads, averages, squares, [], steps, amsgrad=False, maximize=False, **options)


def _fused_sgd(params: Any, grads: Any, momenta: Any, steps: Any) -> Any:
    options = {"weight_decay": 0.0, "momentum": 0.9, "lr": 1e-3, "dampening": 0.0}
    return aten._fused_sgd_(params, grads, momenta, nesterov=False, maximize=False, is_first_step=False, **options)


# Lists that are read, and the operator; a fused step also takes the step's number, one a tensor.
_STEPS: dict[str, tuple[int, Callable[..., Any]]] = {
    "foreach_add": (1, lambda a, _: torch._foreach_add_(a, 1e-8)),
    "foreach_mul": (1, lambda a, _: torch._foreach_mul_(a, 0.999)),
    "foreach_div": (1, lambda a, _: torch._foreach_div_(a, 1.001)),
    "foreach_sqrt": (1, lambda a, _: torch._foreach_sqrt(a)),
    "foreach_lerp": (2, lambda a, b, _: torch._foreach_lerp_(a, b, 0.1)),
    # Adam squares the gradient: one list multiplied with itself.
    "foreach_addcmul": (2, lambda a, b, _: torch._foreach_addcmul_(a, b, b, value=1e-3)),
    "foreach_addcdiv": (3, lambda a, b, c, _: torch._foreach_addcdiv_(a, b, c, -1e-3)),
    "adamw_fused": (4, _fused_adamw),
    "sgd_fused": (3, _fused_sgd),
}


@launcher("optimizer")
def optimizer(kernel: Optimizer) -> Launch:
    """Parameters of equal size; every list of operands is as long as that of the parameters."""
    lists, run = _STEPS.get(kernel.op, (0, print))
    if kernel.elements < kernel.tensors or kernel.read_bytes != lists * kernel.elements * size_of(kernel):
        raise unmeasurable(kernel)
    size, longer = divmod(kernel.elements, kernel.tensors)
    sizes = [size + (i < longer) for i in range(kernel.tensors)]

    def operands(source: Source) -> Operands:
        made = tuple([source.positive(s, dtype=kernel.dtype) for s in sizes] for _ in range(lists))
        return (*made, [torch.ones((), device=source.device) for _ in sizes])

    return Launch(kernel=kernel, operands=operands, run=run)
