"""What a model's ``forward`` is fed: names from its signature, shapes from its configuration and what was asked for."""

from neusight.workloads.inputs.forward import Asked, Fed, fed
from neusight.workloads.inputs.given import described, tensors_of
from neusight.workloads.inputs.refusals import missed

__all__ = ["Asked", "Fed", "described", "fed", "missed", "tensors_of"]
