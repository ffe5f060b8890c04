"""Attention to only the tokens of a window."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeGuard

from neusight.errors import InapplicableError
from neusight.kernels.families import Attention, Kernel
from neusight.workloads.workload import Workload


def with_window(workload: Workload, window: int) -> Workload:
    """The step with fused causal attention to the last ``window`` tokens, whose kernels skip tiles beyond.

    Raises:
        InapplicableError: no fused causal attention is of longer sequences.
    """

    def narrow(kernel: Kernel) -> Kernel:
        return replace(kernel, window=window) if _is_wider(kernel, window) else kernel

    if not any(_is_wider(kernel, window) for node in workload.nodes for kernel in node.kernels):
        raise InapplicableError(f"no fused causal attention is of more than {window} tokens: ask for sdpa, or longer")
    nodes = (replace(node, kernels=tuple(map(narrow, node.kernels))) for node in workload.nodes)
    return replace(workload, nodes=tuple(nodes))


def _is_wider(kernel: Kernel, window: int) -> TypeGuard[Attention]:
    return (
        isinstance(kernel, Attention) and kernel.causal and kernel.kv_len > window and not 0 < kernel.window <= window
    )
