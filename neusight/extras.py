"""Optional packages: the extra that installs each, and the error that names it where one is missing."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from neusight.errors import NeusightError

EXTRAS = {
    "torch": "trace",
    "transformers": "trace",
    **dict.fromkeys(("lightgbm", "pandas", "pyarrow", "scipy", "sklearn"), "learn"),
    "numba": "tensordash",
    "matplotlib": "figures",
    **dict.fromkeys(("nicegui", "fastapi", "starlette", "uvicorn"), "page"),
    "timm": "timm",
    "torchvision": "vision",
    "diffusers": "diffusers",
    "onnx": "onnx",
    "tflite": "tflite",
    "ray": "ray",
    "pynvml": "nvidia",
    "playwright": "dev",
}
"""Extra of this package by the name under which an optional package is imported."""
_TITLES = {"torch": "PyTorch", "sklearn": "scikit-learn", "pynvml": "nvidia-ml-py", "ray": "Ray"}
_PURPOSES = {
    "workloads": "tracing a module",
    "collect": "measuring a device",
    "learn": "fitting to measurements",
    "measured": "reading measurements",
    "evaluation": "comparing with measurements",
    "experiments": "an experiment",
    "datasets": "reading measurements",
    "figures": "a figure",
    "page": "the page",
    "workers": "work on a cluster",
    "executors": "this device",
    "serving": "a trace of requests",
    "schedule": "a timeline",
    "api": "a table",
}
"""Purpose of an import by the room of the module that imports."""
_IMPORT_MACHINERY = ("importlib", "importlib._bootstrap", "importlib._bootstrap_external", __name__)


class MissingExtraError(NeusightError, ModuleNotFoundError):
    """An optional package that is not installed; ``name`` is the name that was imported."""


def remedy(name: str | None) -> str:
    """The command that installs an optional package, after a colon; empty for any other package."""
    return f": pip install 'neusight[{EXTRAS[name]}]'" if name in EXTRAS else ""


class _AfterAllFinders:
    """Raises where a module of neusight imports an optional package that no finder has found."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        importer = _importer() if name in EXTRAS else ""
        if importer.startswith("neusight."):
            purpose = _PURPOSES.get(importer.split(".")[1], importer)
            message = f"{purpose} needs {_TITLES.get(name, name)}{remedy(name)}"
            raise MissingExtraError(message, name=name)
        return None


def _importer() -> str:
    """The name of the module that runs the innermost import statement."""
    frame = sys._getframe()
    while frame.f_back and frame.f_globals.get("__name__") in _IMPORT_MACHINERY:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__"))


def name_missing_extras() -> None:
    """Make missing optional packages raise ``MissingExtraError`` in this process."""
    if not any(isinstance(finder, _AfterAllFinders) for finder in sys.meta_path):
        sys.meta_path.append(_AfterAllFinders())
