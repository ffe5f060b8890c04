"""Measured data: schemas, loading, cleaning, verification, import.

``load_kernels(path=None, families=None) -> DataFrame``, ``load_models(path=None) -> DataFrame`` read checked parquet;
``to_batches(frame) -> [(KernelBatch, positions), …]`` gives the rows as kernels.
"""

from neusight.datasets.load import load_kernels, load_models, to_batches

__all__ = ["load_kernels", "load_models", "to_batches"]
