"""What a model's ``forward`` is given: names from its signature, shapes from its configuration and what was asked for.

Importing the package registers the makers of all inputs.
"""

from neusight.workloads.inputs import images, series, text
from neusight.workloads.inputs.forward import Asked, Fed, fed, missed
from neusight.workloads.inputs.given import described, tensors_of

__all__ = ["Asked", "Fed", "described", "fed", "images", "missed", "series", "tensors_of", "text"]
