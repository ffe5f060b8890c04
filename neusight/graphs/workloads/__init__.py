"""Ready workloads, and graphs of any model that can be named: the way in to ``neusight.graphs`` from a model's name."""

from __future__ import annotations

from neusight.graphs.workloads.catalogue import WorkloadInfo, list_workloads
from neusight.graphs.workloads.load import load_graph, shipped_graph, trace_workload
from neusight.graphs.workloads.resolve import WorkloadSource, resolve

__all__ = [
    "WorkloadInfo",
    "WorkloadSource",
    "list_workloads",
    "load_graph",
    "resolve",
    "shipped_graph",
    "trace_workload",
]
