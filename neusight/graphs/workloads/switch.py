"""Sparse layers of Switch Transformers with fixed shapes: every expert runs on a padded buffer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def pad_experts(module: torch.nn.Module) -> None:
    """Replace the forward of every sparse layer, which gathers as many tokens as the router happens to send.

    The expert's capacity bounds them: one expert after another takes ``batch * expert_capacity`` rows, as frameworks
    that pad (and the published measurements of this model) do.
    """
    for part in module.modules():
        if hasattr(part, "router") and hasattr(part, "experts"):
            part.forward = partial(_padded, part)  # type: ignore[method-assign,assignment]


def _padded(layer: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    """Route, run each expert on its buffer, scatter its rows back, weigh by the router's probability."""
    batch, seq_len, width = hidden_states.shape
    chosen, probability, _ = layer.router(hidden_states)
    tokens = hidden_states.reshape(-1, width)
    result = tokens.clone()
    capacity = batch * layer.router.expert_capacity
    for number, expert in enumerate(layer.experts.values()):
        rows = _rows_of(chosen[:, :, number], capacity)
        buffer = tokens.new_zeros(capacity, width)
        buffer[:] = tokens[rows]
        result[rows] = expert(buffer)
    return probability * result.view(batch, seq_len, width)


def _rows_of(chosen: torch.Tensor, capacity: int) -> torch.Tensor:
    """Where the expert's tokens lie: the mask is read, the rows stand for what it would hold."""
    import torch

    return chosen.bool().new_empty(capacity, dtype=torch.int64)
