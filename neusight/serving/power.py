"""What a board draws while it serves: a share of its limit whatever it does, and some of what its kernels ask for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from neusight.devices.spec import DeviceSpec
from neusight.paths import read_json, tile_models_dir
from neusight.serving.engines import FILE


@dataclass(frozen=True, kw_only=True)
class BoardPower:
    r"""Power of a board [W].

    .. math:: P = s P_{limit} + d E / t

    ``static_share`` s [-] and ``dynamic_share`` d [-] are fitted to boards that serve; E, energy of kernels as the
    power law has it [J], explains which clock a limit leaves and not what a meter shows. ``spread`` is the standard
    deviation of the logarithm of what they leave unexplained.
    """

    static_share: float
    dynamic_share: float
    spread: float

    def energy_j(self, device: DeviceSpec, kernels_j: np.ndarray, time_s: np.ndarray) -> np.ndarray:
        """Of one board in passes whose kernels take so much [J], shape (n,), never more than its limit allows."""
        demand_j = self.static_share * device.tdp_w * time_s + self.dynamic_share * kernels_j
        return np.asarray(np.minimum(demand_j, device.tdp_w * time_s))


@cache
def shipped_power(file: Path | None = None) -> BoardPower | None:
    """The constants that ``neusight fit --engines`` found, None where there are none."""
    path = file or tile_models_dir() / FILE
    constants = read_json(path).get("power") if path.is_file() else None
    return BoardPower(**constants) if constants else None
