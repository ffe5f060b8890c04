"""How long a deep-learning model takes on a GPU that you don't have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neusight.torchvision_import import watch_for_torchvision

__version__ = "0.1.0"
__all__ = ["DeviceSpec", "Estimate", "Predictor", "StepTimePredictor", "__version__", "load_device"]

if TYPE_CHECKING:
    from neusight.api import Predictor
    from neusight.devices import DeviceSpec, load_device
    from neusight.estimates import Estimate
    from neusight.serving import StepTimePredictor

_HOMES = {
    "DeviceSpec": "neusight.devices",
    "Estimate": "neusight.estimates",
    "Predictor": "neusight.api",
    "StepTimePredictor": "neusight.serving",
    "load_device": "neusight.devices",
}

watch_for_torchvision()


def __getattr__(name: str) -> Any:
    """Import the public names on first use: ``import neusight`` alone stays instant."""
    if name not in _HOMES:
        raise AttributeError(f"module 'neusight' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
