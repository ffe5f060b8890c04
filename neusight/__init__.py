"""How long a deep-learning model takes on a GPU that you don't have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neusight.extras import name_missing_extras
from neusight.torchvision_import import watch_for_torchvision

__version__ = "0.1.0"

if TYPE_CHECKING:
    from neusight.api import Predictor
    from neusight.check.given import read_given
    from neusight.devices import Cluster, DeviceSpec, cluster_of, list_devices, load_cluster, load_device
    from neusight.distributed.training_run import usual_run
    from neusight.errors import NeusightError
    from neusight.estimates import Estimate, KernelEstimate
    from neusight.requests import Plan, Request
    from neusight.serving import StepTimePredictor
    from neusight.workloads.decoders.known import known_decoder

__all__ = [
    "Cluster",
    "DeviceSpec",
    "Estimate",
    "KernelEstimate",
    "NeusightError",
    "Plan",
    "Predictor",
    "Request",
    "StepTimePredictor",
    "__version__",
    "cluster_of",
    "known_decoder",
    "list_devices",
    "load_cluster",
    "load_device",
    "read_given",
    "usual_run",
]
_ROOMS = {
    "Predictor": "api",
    "Request": "requests",
    "Plan": "requests",
    "NeusightError": "errors",
    "StepTimePredictor": "serving",
    "known_decoder": "workloads.decoders.known",
    "usual_run": "distributed.training_run",
    "read_given": "check.given",
    **dict.fromkeys(("Estimate", "KernelEstimate"), "estimates"),
    **dict.fromkeys(("Cluster", "DeviceSpec", "cluster_of", "list_devices", "load_cluster", "load_device"), "devices"),
}

name_missing_extras()
watch_for_torchvision()


def __getattr__(name: str) -> Any:
    """Import the public names on first use: ``import neusight`` alone stays instant."""
    if name not in _ROOMS:
        raise AttributeError(f"module 'neusight' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(f"neusight.{_ROOMS[name]}"), name)


def __dir__() -> list[str]:
    """What people use; rooms that happen to be imported are not among it."""
    return __all__
