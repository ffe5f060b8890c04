"""Readers of tables in the words of their sources, which measured rows replace."""

from neusight.datasets.batches import to_batches
from neusight.datasets.conditions import conditions_of
from neusight.datasets.load import device_of, devices_beside, load_kernels, load_models

__all__ = ["conditions_of", "device_of", "devices_beside", "load_kernels", "load_models", "to_batches"]
