"""What people call: one object, and what it takes."""

from neusight.api.predictor import Predictor
from neusight.steps.questions import Gpu, Setting, as_device

__all__ = ["Gpu", "Predictor", "Setting", "as_device"]
