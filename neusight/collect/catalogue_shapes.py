"""Shapes of the ready workloads: the kernels that carry their time, those with the largest share first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from neusight.collect.sampling import stratum_of
from neusight.devices.spec import DeviceSpec
from neusight.kernels import Conv2d, Gemm, Kernel, group_by_family
from neusight.kernels.work import work_of
from neusight.workloads import list_workloads, shipped_graph
from neusight.workloads.graph import FoldedGraph

STEPS = (("inference", 1), ("inference", 8), ("training", 2), ("training", 8))
"""Mode and batch of the steps whose kernels are taken."""
_TRACED_AS = {"tf32": "float32", "float8": "bfloat16", "float16": "bfloat16"}
"""Dtypes that run another's steps: float16 all of it, the others its products."""


def workload_kernels(device: DeviceSpec, dtype: str) -> Mapping[str, tuple[Kernel, ...]]:
    """Kernels of all ready workloads by stratum, in falling order of their share of a workload's least time."""
    shares: dict[Kernel, float] = {}
    for graph in _graphs(dtype):
        for kernel, share in _shares(graph, device, dtype):
            shares[kernel] = shares.get(kernel, 0.0) + share
    ordered = sorted(shares, key=lambda kernel: (-shares[kernel], repr(kernel)))
    strata: dict[str, list[Kernel]] = {}
    for kernel in ordered:
        strata.setdefault(stratum_of(kernel), []).append(kernel)
    return {name: tuple(kernels) for name, kernels in strata.items()}


def _graphs(dtype: str) -> Iterator[FoldedGraph]:
    traced = _TRACED_AS.get(dtype, dtype)
    attention = "eager" if traced == "float32" else "flash"
    for workload in list_workloads():
        for mode, batch in STEPS:
            optimizer = "adamw" if mode == "training" else "none"
            graph = shipped_graph(
                workload.name, mode=mode, batch=batch, dtype=traced, optimizer=optimizer, attention=attention
            )
            if graph is not None:
                yield graph


def _shares(graph: FoldedGraph, device: DeviceSpec, dtype: str) -> Iterator[tuple[Kernel, float]]:
    """Each kernel as it is to be measured, with its share of the step's time by the datasheet's peaks."""
    kernels = [k.kernel for k in graph.kernels]
    least_s = [0.0] * len(kernels)
    for batch, positions in group_by_family(kernels):
        work = work_of(batch)
        for place, flops, size in zip(positions, work.least_flops, work.bytes, strict=True):
            rate = device.gemm_flops_per_s(_computed_in(kernels[place].dtype, device))
            least_s[place] = max(flops / rate, size / device.dram_bandwidth_bytes_per_s)
    total = sum(s * k.count for s, k in zip(least_s, graph.kernels, strict=True))
    for kernel, seconds, folded in zip(kernels, least_s, graph.kernels, strict=True):
        if (wanted := _in_dtype(kernel, dtype)) is not None:
            yield wanted, seconds * folded.count / total


def _computed_in(dtype: str, device: DeviceSpec) -> str:
    """Integers and what the device has no rate for count as float32: only shares of time hang on it."""
    return dtype if dtype in device.matrix_flops_per_s or dtype in device.vector_flops_per_s else "float32"


def _in_dtype(kernel: Kernel, dtype: str) -> Kernel | None:
    """The kernel itself where it has the dtype, or as it is in a step of that dtype; None for what keeps another."""
    if kernel.dtype == dtype:
        return kernel
    if kernel.dtype != _TRACED_AS.get(dtype):
        return None
    if dtype == "float16":
        return replace(kernel, dtype=dtype)
    if isinstance(kernel, Gemm) and dtype == "float8":
        # The products of 8-bit floats are those of a layer's forward pass, without a bias in the epilogue.
        return replace(kernel, dtype=dtype, bias=False) if kernel.op == "linear" and kernel.layout == "tn" else None
    if isinstance(kernel, Gemm):
        return replace(kernel, dtype=dtype)
    return replace(kernel, dtype=dtype) if isinstance(kernel, Conv2d) and dtype == "tf32" else None
