"""Ready workloads, and the steps of any model that can be named."""

from __future__ import annotations

from neusight.workloads.catalogue import WorkloadInfo, list_workloads
from neusight.workloads.load import load_graph, shipped_graph, trace_workload
from neusight.workloads.resolve import WorkloadSource, resolve

__all__ = [
    "WorkloadInfo",
    "WorkloadSource",
    "list_workloads",
    "load_graph",
    "resolve",
    "shipped_graph",
    "trace_workload",
]
