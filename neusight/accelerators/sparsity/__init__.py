"""Zeros of a network's operands, layer by layer: measured on real training steps, put there by pruning, or assumed.

``profile`` holds them, ``measure`` reads them (``steps`` trains, ``operands`` lays tensors out as streams, ``readings``
counts), ``prune`` makes weights zero.
"""

from neusight.accelerators.sparsity.measure import measure
from neusight.accelerators.sparsity.profile import LayerSparsity, OperandSparsity, SparsityProfile
from neusight.accelerators.sparsity.prune import prune_module, prune_profile, pruning

__all__ = [
    "LayerSparsity",
    "OperandSparsity",
    "SparsityProfile",
    "measure",
    "prune_module",
    "prune_profile",
    "pruning",
]
