"""The time that physics expects of kernels, family by family, under the conditions in which they run."""

from neusight.executors.gpu.expected.times import Times

__all__ = ["Times"]
