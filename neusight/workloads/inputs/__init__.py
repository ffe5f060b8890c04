"""Inputs of a model's ``forward``: names from its signature, shapes from its configuration and the request."""

from neusight.workloads.inputs.forward import Changes, InputSets, input_sets, missing_input
from neusight.workloads.inputs.given import as_inputs, described, tensors_of

__all__ = ["Changes", "InputSets", "as_inputs", "described", "input_sets", "missing_input", "tensors_of"]
