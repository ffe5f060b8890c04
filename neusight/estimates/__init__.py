"""Estimates: what a step takes, with everything that makes it up; they add and multiply."""

from neusight.estimates.estimate import Estimate
from neusight.estimates.records import KernelEstimate, LoneKernel, MemoryEstimate, OperatorEstimate, Provenance

__all__ = ["Estimate", "KernelEstimate", "LoneKernel", "MemoryEstimate", "OperatorEstimate", "Provenance"]
