"""Operators on fake tensors, with results for those that PyTorch runs on CUDA alone or refuses to think through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from neusight.workloads.trace.autocast import autocast_dtype, in_dtype
from neusight.workloads.trace.values import has_values

aten = torch.ops.aten
MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
"""Functions of ``torch`` that are recurrent layers, with cuDNN's numbers of their cells."""
_KEPT = {0: 1, 1: 1, 2: 6, 3: 5}
"""Vectors a step and state that the backward pass needs: gates, and beside them cell states and their tanh (LSTM), or
the state and its part of the candidate (GRU)."""
_WEIGHTS = 2
"""Matrices of a layer and direction: those of the input and of the state; as many biases, and perhaps a projection."""


def on_cudnn(name: str, *args: Any) -> tuple[torch.Tensor, ...]:
    """A layer called as ``torch.lstm``, ``torch.gru`` and so on are: padded, or packed with ``batch_sizes`` second.

    Returns:
        The output and the last state; of an LSTM also its cell's.
    """
    if isinstance(args[3], list | tuple):
        x, sizes, state, weights, *flags = args
        has_sizes = isinstance(sizes, torch.Tensor) and has_values(sizes)
        rows = sizes.tolist() if has_sizes else [x.shape[0] // len(sizes)] * len(sizes)
        return _call(name, x, (state, weights), (*flags, False), rows)
    x, state, weights, *flags = args
    return _call(name, x, (state, weights), tuple(flags), [])


def _call(
    name: str, x: torch.Tensor, tensors: tuple[Any, Any], flags: tuple[Any, ...], batch_sizes: list[int]
) -> tuple[torch.Tensor, ...]:
    """``given`` are state and weights, ``flags`` the arguments from ``has_biases`` to ``batch_first``; autocast narrows
    all three (PyTorch, ``autocast_RNN.cpp``).
    """
    if (dtype := autocast_dtype()) is not None:
        x, tensors = in_dtype((x, tensors), dtype)
    (state, weights), (biases, layers, dropout, train, both, batch_first) = tensors, flags
    hidden_state, cell_state = state if name == "lstm" else (state, None)
    hidden, returned = weights[1].shape[0] // _gates(name), hidden_state.shape[-1]
    projected = returned if returned != hidden else 0
    stride = _WEIGHTS * (1 + bool(biases)) + bool(projected)
    returned_tensors = aten._cudnn_rnn(
        x, list(weights), stride, x.new_empty(0), hidden_state, cell_state, MODES[name], hidden, projected, layers,
        batch_first, dropout, train, both, batch_sizes, None,
    )  # fmt: skip
    return tuple(returned_tensors[: 3 if name == "lstm" else 2])


def _gates(name: str) -> int:
    return {"lstm": 4, "gru": 3}.get(name, 1)


def results(*call: Any) -> tuple[torch.Tensor, ...]:
    """Results of ``_cudnn_rnn``: output, last states, the vectors of every step that the backward pass needs, and the
    packed weights.
    """
    x, _, _, buffer, state, cell, mode, hidden, projected, layers, _, _, train, both, *_ = call
    ways = 1 + bool(both)
    output = x.new_empty(*x.shape[:-1], ways * (projected or hidden))
    steps = x.numel() // x.shape[-1]
    saved = layers * ways * steps * hidden * _KEPT[mode] * x.element_size() if train else 0
    last = x.new_empty(0) if cell is None else torch.empty_like(cell)
    return output, torch.empty_like(state), last, x.new_empty(saved, dtype=torch.uint8), buffer


def gradients(*call: Any) -> tuple[Any, ...]:
    """Results of ``_cudnn_rnn_backward``: gradients of input, states and weights."""
    x, weights, _, _, state, cell, *_ = call
    of_cell = None if cell is None else torch.empty_like(cell)
    return torch.empty_like(x), torch.empty_like(state), of_cell, [torch.empty_like(w) for w in weights]


def run(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator and return its result.

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
    """Result of ``_grouped_mm``, whose fake form supports bfloat16 alone, where CUDA also runs float32 and float16.

    [t, k] x [g, k, n] gives [t, n], [g, m, k] x [k, t] gives [m, t], [m, t] x [t, n] gives [g, m, n].
    """
    if a.dim() == b.dim() == 2 and offs is not None:
        return a.new_empty(offs.shape[0], a.shape[0], b.shape[1])
    batch = a.shape[:1] if a.dim() == b.dim() == 3 else ()
    return a.new_empty(*batch, a.shape[-2], b.shape[-1])


_RESULTS: dict[Any, Callable[..., Any]] = {
    aten._grouped_mm.default: _grouped_product,
    aten._cudnn_rnn.default: results,
    aten.histc.default: lambda x, bins=100, *_, **__: x.new_empty(bins),
    aten._cudnn_rnn_backward.default: gradients,
}
