"""The energy law: a device cannot spend more than its power limit for long, so it lowers its clock.

Energy a FLOP falls with the process node, and with the voltage that a lower clock allows. At full speed a kernel
would draw ``P = energy / time``; when that exceeds what the limit leaves for switching and traffic, the clock, and so
the speed, falls by ``(P / budget) ** speed_exponent``. The numbers are those of ``Physics``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from neusight.devices.spec import DeviceSpec
from neusight.laws.dram import dram_family
from neusight.laws.physics import DEFAULT, Physics

LEAST_CLOCK = 0.1
SHARPNESS = 32.0
"""Of the smooth maximum(1, x) with which the limit sets in: at the limit itself it costs 2 %."""
_NODES_NM = np.array([3.0, 4.0, 5.0, 7.0, 12.0, 16.0])
_PJ_PER_FLOP = np.array([10.0, 11.5, 12.3, 14.2, 15.5, 17.7])
_USUAL_HZ = np.array([2.6e9, 2.52e9, 2.5e9, 1.8e9, 1.71e9, 1.73e9])
"""Boost clocks of desktop boards of the node (RTX 4090, RTX 2080, GTX 1080; 3, 5 and 7 nm are assumptions)."""
_SERVER_CLOCK = 0.77
"""Share of them at which server boards of the node run, and for which the energies hold."""

MATRIX_ENERGY = {"float16": 0.07, "bfloat16": 0.07, "tf32": 0.13, "float8": 0.04, "int8": 0.04, "float64": 1.5}
"""Energy a FLOP on matrix units against a float32 FMA (assumption: H100 SXM draws 700 W at about 700 dense bf16
TFLOP/s, half of it for arithmetic)."""


def flop_energy_j(device: DeviceSpec, physics: Physics = DEFAULT) -> float:
    """Energy of one float32 FLOP of an FMA at boost clock, all of the SM included, in joules.

    By process node, and by the voltage that the boost clock needs on it.
    """
    usual_hz = _SERVER_CLOCK * float(np.interp(device.process_nm, _NODES_NM, _USUAL_HZ))
    node_j = 1e-12 * float(np.interp(device.process_nm, _NODES_NM, _PJ_PER_FLOP))
    return physics.flop_energy_scale * node_j * (device.boost_clock_hz / usual_hz) ** physics.voltage_exponent


def budget_w(device: DeviceSpec, physics: Physics = DEFAULT) -> float:
    """Power that the limit leaves for switching and traffic, at least a quarter of it."""
    left = device.tdp_w * (1.0 - physics.static_share) - physics.static_w
    return max(left, 0.25 * device.tdp_w)


def slow_down(
    device: DeviceSpec, time_s: np.ndarray, energy_j: np.ndarray, rest_s: np.ndarray | float = 0.0,
    physics: Physics = DEFAULT,
) -> np.ndarray:  # fmt: skip
    """Factor of at least 1 by which the power limit stretches a kernel that would take ``time_s`` at full clock.

    Args:
        device: gives the limit.
        time_s: duration at boost clock.
        energy_j: spent at boost clock.
        rest_s: time for which the board may draw twice its limit, but no more, see ``Physics.rest_s``; 0 in the middle
            of work.
        physics: the exponent, and what the board draws on its own.
    """
    allowed = budget_w(device, physics) * (1.0 + np.minimum(rest_s / time_s, 1.0))
    excess = physics.speed_exponent * np.log(np.maximum(energy_j / time_s / allowed, 1e-9))
    return np.exp(np.logaddexp(0.0, SHARPNESS * excess) / SHARPNESS)


def traffic_energy_j(
    device: DeviceSpec, dram_bytes: np.ndarray, l2_bytes: np.ndarray, physics: Physics = DEFAULT
) -> np.ndarray:
    """Energy of moving bytes, which the core clock does not change."""
    hbm = dram_family(device) == "HBM"
    return 1e-12 * (
        (physics.hbm_pj_per_byte if hbm else physics.gddr_pj_per_byte) * dram_bytes + physics.l2_pj_per_byte * l2_bytes
    )


@dataclass(frozen=True, kw_only=True)
class PowerDemand:
    """What kernels need at full clock; columns of shape (n,).

    ``clocked_s`` is the time of what runs at the core clock (arithmetic and L2), ``dram_s`` of what does not;
    ``switching_j`` the energy of arithmetic at boost clock, ``traffic_j`` that of moving bytes, ``rest_s`` the
    time for which the kernel, measured alone, was allowed twice the limit. ``budget_w`` and ``speed_exponent`` are the
    device's, the same for all kernels.
    """

    clocked_s: np.ndarray
    dram_s: np.ndarray
    switching_j: np.ndarray
    traffic_j: np.ndarray
    rest_s: np.ndarray
    budget_w: float
    speed_exponent: float

    def time_s(self, clock: np.ndarray | float) -> np.ndarray:
        """Time at a share of the boost clock."""
        return np.maximum(self.clocked_s / clock, self.dram_s)

    def energy_j(self, clock: np.ndarray | float) -> np.ndarray:
        """Energy at a share of the boost clock: a lower clock needs less voltage."""
        return self.switching_j * clock ** (1 / self.speed_exponent - 1) + self.traffic_j

    def take(self, index: np.ndarray) -> PowerDemand:
        """The rows that ``index`` selects."""
        return replace(self, **{name: getattr(self, name)[index] for name in _COLUMNS})

    @staticmethod
    def joined(parts: list[PowerDemand]) -> PowerDemand:
        """Several batches as one."""
        columns: dict[str, Any] = {name: np.concatenate([getattr(p, name) for p in parts]) for name in _COLUMNS}
        return replace(parts[0], **columns)


_COLUMNS = ("clocked_s", "dram_s", "switching_j", "traffic_j", "rest_s")


def sustained_clock(demand: PowerDemand, counts: np.ndarray | None = None) -> np.ndarray:
    """Share of the boost clock at which average power meets the budget, by bisection.

    Args:
        demand: of the kernels.
        counts: how often each kernel runs in the stream that shares the budget; the limiter averages over many
            milliseconds, so that cool kernels lend their share to hot ones. Without counts each kernel is a stream
            of its own.

    Returns:
        One clock a kernel, shape (n,), or with counts one for all, shape ().
    """

    relief = 1.0 + np.minimum(demand.rest_s / demand.time_s(1.0), 1.0) if counts is None else 1.0

    def over(clock: np.ndarray) -> np.ndarray:
        excess = demand.energy_j(clock) - demand.budget_w * relief * demand.time_s(clock)
        return excess if counts is None else (counts * excess).sum()

    low = np.full(demand.dram_s.shape if counts is None else (), LEAST_CLOCK)
    high = np.ones_like(low)
    for _ in range(30):
        middle = (low + high) / 2
        hot = over(middle) > 0
        low, high = np.where(hot, low, middle), np.where(hot, middle, high)
    return np.where(over(np.ones_like(low)) > 0, (low + high) / 2, 1.0)
