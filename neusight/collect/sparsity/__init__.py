"""Zeros of a network's operands, layer by layer: measured on real training steps, put there by pruning, or assumed.

``measure`` trains and reads, ``streams`` lays operands out and counts, ``prune`` makes weights zero, ``inputs`` is what
networks train on.
"""

from neusight.collect.sparsity.measure import measure, measure_course
from neusight.collect.sparsity.prune import prune_module, pruning
from neusight.kernels.sparsity import LayerSparsity, OperandSparsity
from neusight.transforms.sparsity import SparsityProfile

__all__ = [
    "LayerSparsity",
    "OperandSparsity",
    "SparsityProfile",
    "measure",
    "measure_course",
    "prune_module",
    "pruning",
]
