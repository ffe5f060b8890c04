"""PyTorch as it runs the steps of a module, by how it launches and on which device."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from neusight.engines.catalogue import ENGINES, WHOLE_PROGRAMS
from neusight.engines.engine import Engine

if TYPE_CHECKING:
    from neusight.devices.spec import DeviceSpec

TORCH = ENGINES["torch-eager"]


def torch_engine(attention: str = "", launch: str = "eager", layout: str = "nchw") -> Engine:
    """PyTorch, by its forms of attention and of launching, and the layout of images."""
    return replace(ENGINES[f"torch-{launch}"], attention=attention, layout=layout)


def run_on(device: DeviceSpec, engine: Engine) -> Engine:
    """An engine as it runs steps on a device: through the compiler of one that runs whole programs alone."""
    if not device.runs_programs or engine.server is not None or engine.launch not in ("eager", "compiled", "graph"):
        return engine
    return replace(WHOLE_PROGRAMS, attention=engine.attention, layout=engine.layout)
