"""Operators on fake tensors, with results for those that PyTorch runs on CUDA alone or refuses to think through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from neusight.workloads.trace import recurrent

aten = torch.ops.aten


def run(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What an operator returns.

    Multi-tensor operators change no shapes, so their results need no computation; the CPU would split them up.
    """
    special = _RESULTS.get(func)
    if special is not None:
        return special(*args, **kwargs)
    name = func.__name__
    if not name.startswith(("_foreach_", "_fused_")) or name.startswith("_foreach_norm"):
        return func(*args, **kwargs)
    if func._schema.is_mutable:  # type: ignore[attr-defined]
        return None
    return [torch.empty_like(t) for t in args[0]]


def _grouped_product(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None = None, *_: Any, **__: Any) -> Any:
    """Of ``_grouped_mm``, whose fake form takes bfloat16 alone, where CUDA also runs float32 and float16.

    [t, k] x [g, k, n] gives [t, n], [g, m, k] x [k, t] gives [m, t], [m, t] x [t, n] gives [g, m, n].
    """
    if a.dim() == b.dim() == 2 and offs is not None:
        return a.new_empty(offs.shape[0], a.shape[0], b.shape[1])
    batch = a.shape[:1] if a.dim() == b.dim() == 3 else ()
    return a.new_empty(*batch, a.shape[-2], b.shape[-1])


_RESULTS: dict[Any, Callable[..., Any]] = {
    aten._grouped_mm.default: _grouped_product,
    aten._cudnn_rnn.default: recurrent.results,
    aten._cudnn_rnn_backward.default: recurrent.gradients,
}
