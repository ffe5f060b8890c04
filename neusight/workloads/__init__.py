"""Workloads of a step: ready ones, and the steps of any model that can be named."""

from neusight.workloads.catalogue import WorkloadInfo, list_traced, list_workloads
from neusight.workloads.load import load_workload, shipped_step
from neusight.workloads.resolve import WorkloadSource, resolve
from neusight.workloads.workload import Launch, MemoryProfile, Node, Tensor, Workload

__all__ = [
    "Launch",
    "MemoryProfile",
    "Node",
    "Tensor",
    "Workload",
    "WorkloadInfo",
    "WorkloadSource",
    "list_traced",
    "list_workloads",
    "load_workload",
    "resolve",
    "shipped_step",
]
