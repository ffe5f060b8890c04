"""Graphs of executed steps: traced from real modules on fake tensors, folded to the kernels that a GPU runs.

``trace`` needs PyTorch and loads it when first used; everything else here does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neusight.graphs.graph import FoldedGraph, FoldedKernel, Graph, MemoryProfile, Node, Phase, RepeatedLayer
from neusight.graphs.tensors import TensorSpec

if TYPE_CHECKING:
    from neusight.graphs.tracing import trace

__all__ = [
    "FoldedGraph",
    "FoldedKernel",
    "Graph",
    "MemoryProfile",
    "Node",
    "Phase",
    "RepeatedLayer",
    "TensorSpec",
    "trace",
]


def __getattr__(name: str) -> Any:
    if name == "trace":
        from neusight.graphs.tracing import trace

        return trace
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
