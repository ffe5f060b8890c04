"""What a model's ``forward`` is given: names from its signature, shapes from its configuration and what was asked for.

Importing the package registers the makers of all inputs.
"""

from neusight.workloads.inputs import images, series, text
from neusight.workloads.inputs.forward import Changes, InputSets, input_sets, missing_input
from neusight.workloads.inputs.given import described, tensors_of

__all__ = [
    "Changes",
    "InputSets",
    "described",
    "images",
    "input_sets",
    "missing_input",
    "series",
    "tensors_of",
    "text",
]
