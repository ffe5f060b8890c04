"""A step as its engine launches it."""

from __future__ import annotations

from neusight.workloads.workload import Workload


def compiled(workload: Workload) -> Workload:
    """Fused where the engine of its request compiles models, else the same workload."""
    if workload.request.engine.launch == "eager":
        return workload
    from neusight.transforms.fusion import fuse

    return fuse(workload)
