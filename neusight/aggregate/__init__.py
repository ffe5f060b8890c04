"""From kernels to steps: serial composition, memory verdict, and ``Estimate``, which adds and multiplies."""

from neusight.aggregate.estimate import Estimate
from neusight.aggregate.records import KernelEstimate, MemoryEstimate, OperatorEstimate, Provenance
from neusight.aggregate.serial import PreparedGraph, kernel_rows, prepare, serial

__all__ = [
    "Estimate",
    "KernelEstimate",
    "MemoryEstimate",
    "OperatorEstimate",
    "PreparedGraph",
    "Provenance",
    "kernel_rows",
    "prepare",
    "serial",
]
