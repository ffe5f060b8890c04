"""Multi-tensor kernels of an optimizer: foreach passes over its lists at every operator, fused does so once."""

from __future__ import annotations

from neusight.kernels import Kernel, Optimizer
from neusight.kernels.operators import OPTIMIZER
from neusight.workloads.rules.registry import rule
from neusight.workloads.tensors import Call, TensorSpec

_OVERWRITES = {"zero", "copy"}


def _lists(call: Call) -> list[tuple[TensorSpec, ...]]:
    values = (*call.args, *call.kwargs.values())
    return [v for v in values if isinstance(v, tuple) and v and isinstance(v[0], TensorSpec)]


def _size(tensors: tuple[TensorSpec, ...]) -> int:
    return sum(t.nbytes for t in tensors)


def _on_host(call: Call, tensors: tuple[TensorSpec, ...]) -> bool:
    """Step counters: the foreach form keeps them on the host and adds a tensor to them, the fused form a number."""
    return call.overload == "Tensor" and all(not t.shape for t in tensors)


def _foreach(call: Call) -> tuple[Kernel, ...]:
    in_place = call.name.endswith("_")
    op = call.name.removeprefix("_foreach_").removesuffix("_")
    lists = _lists(call)
    if not lists or _on_host(call, lists[0]):
        return ()
    elements = sum(t.elements for t in lists[0])
    read = call.read_bytes - (_size(lists[0]) if op in _OVERWRITES else 0)
    written = _size(lists[0]) if in_place else sum(t.nbytes for t in call.outputs)
    return (
        Optimizer(
            op=f"foreach_{op}", elements=elements, tensors=len(lists[0]), read_bytes=read, write_bytes=written,
            flops=OPTIMIZER[f"foreach_{op}"].flops * elements, dtype=lists[0][0].dtype,
        ),
    )  # fmt: skip


rule(*(f"_{op}" for op in OPTIMIZER if op.startswith("foreach_")))(_foreach)


@rule("_amp_foreach_non_finite_check_and_unscale_")
def unscale(call: Call) -> tuple[Kernel, ...]:
    """What ``torch.amp.GradScaler`` does before a step: gradients are looked through and multiplied by one number."""
    gradients = _lists(call)[0]
    elements, size = sum(t.elements for t in gradients), _size(gradients)
    return (
        Optimizer(
            op="foreach_mul", elements=elements, tensors=len(gradients), read_bytes=size, write_bytes=size,
            flops=OPTIMIZER["foreach_mul"].flops * elements, dtype=gradients[0].dtype,
        ),
    )  # fmt: skip


def _fused(call: Call, name: str, written: int) -> tuple[Kernel, ...]:
    """Every list is read; the first ``written`` of those that a step changes are written back."""
    params, grads, *others = _lists(call)
    states = [s for s in others if tuple(t.shape for t in s) == tuple(t.shape for t in params)]
    changed, tensors = [params, *states][:written], [params, grads, *states]
    elements = sum(t.elements for t in params)
    return (
        Optimizer(
            op=name, elements=elements, tensors=len(params), read_bytes=sum(map(_size, tensors)),
            write_bytes=sum(map(_size, changed)), flops=OPTIMIZER[name].flops * elements, dtype=params[0].dtype,
        ),
    )  # fmt: skip


@rule("_fused_adamw_", "_fused_adam_")
def fused_adam(call: Call) -> tuple[Kernel, ...]:
    """Reads parameter, gradient and both moments, writes all but the gradient: 28 B a parameter in float32."""
    name = "adamw_fused" if "adamw" in call.name else "adam_fused"
    return _fused(call, name, 4 if call.kwargs.get("amsgrad") else 3)


@rule("_fused_sgd_")
def fused_sgd(call: Call) -> tuple[Kernel, ...]:
    """Reads parameter, gradient and momentum if there is one, writes all but the gradient: 12 or 20 B a parameter."""
    return _fused(call, "sgd_fused", 2)
