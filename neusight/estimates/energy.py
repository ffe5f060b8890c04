"""``BoardEnergy``: what boards draw in a step or an answer, with its interval. Their hosts are not among it."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from neusight.devices.spec import DeviceSpec
from neusight.laws.board_power import board_j, energy_interval_j, idle_w
from neusight.laws.doubts import NORMAL_90
from neusight.laws.fitted import shipped_boards
from neusight.quick_dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class BoardEnergy:
    """Of all boards [J]: ``low_j <= expected_j <= high_j`` enclose 90 %; ``idle_j`` of it they draw whatever runs."""

    expected_j: float
    low_j: float
    high_j: float
    idle_j: float

    def __add__(self, other: BoardEnergy) -> BoardEnergy:
        return BoardEnergy(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    def __mul__(self, times: float) -> BoardEnergy:
        return BoardEnergy(**{f.name: times * getattr(self, f.name) for f in fields(self)})


def board_energy(device: DeviceSpec, kernels_j: float, times_s: tuple[float, float, float]) -> BoardEnergy:
    """What one board draws in a step.

    Args:
        device: the board.
        kernels_j: what its kernels add, ``EnergyUse.total_j`` [J].
        times_s: low end, expected and high end of the step's time [s].
    """
    boards, time_s = shipped_boards(), np.array([times_s[1]])
    expected_j = float(board_j(device, np.array([kernels_j]), time_s, boards.physics)[0])
    return around(device, expected_j, times_s)


def around(device: DeviceSpec, expected_j: float, times_s: tuple[float, float, float]) -> BoardEnergy:
    """An expected energy of one board with its interval; arguments as of ``board_energy``."""
    boards = shipped_boards()
    doubt = NORMAL_90 * boards.spread_of(device.kind)
    low_j, high_j = energy_interval_j(device, expected_j, times_s, boards.physics, doubt)
    waiting_j = idle_w(device, boards.physics) * times_s[1]
    return BoardEnergy(expected_j=expected_j, low_j=low_j, high_j=high_j, idle_j=waiting_j)
