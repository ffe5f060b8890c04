"""What people call: one object, and what it takes."""

from neusight.api.predictor import Predictor
from neusight.devices.chosen import Gpu, as_device
from neusight.steps.questions import Setting

__all__ = ["Gpu", "Predictor", "Setting", "as_device"]
