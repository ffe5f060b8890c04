"""``DeploymentQuestion``: a deployment under a load, as ``Predictor.answer`` takes it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from neusight.devices.chosen import Gpu, as_device
from neusight.devices.spec import DeviceSpec
from neusight.serving.load import Load
from neusight.serving.setup import Setup
from neusight.workloads.decoders.decoder import Decoder


@dataclass(frozen=True, kw_only=True)
class DeploymentQuestion:
    """A deployment under a load; ``prices`` is a table that comes before those that ship."""

    model: str | Path | Decoder
    gpu: Gpu
    load: Load
    setup: Setup = field(default_factory=Setup)
    prices: str = ""

    @property
    def device(self) -> DeviceSpec:
        """The device of a replica."""
        return as_device(self.gpu)

    def deployed(self, **changes: Any) -> DeploymentQuestion:
        """The question with another setup."""
        return replace(self, setup=replace(self.setup, **changes))
