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
from neusight.laws.physics import Physics

LEAST_CLOCK = 0.1
"""Share of the boost clock below which no limiter goes (assumption: idle clocks of about 200 MHz)."""
SHARPNESS = 32.0
"""Of the smooth maximum(1, x) with which the limit sets in: at the limit itself it costs 2 % (assumption)."""
_NODES_NM = np.array([4.0, 5.0, 8.0, 12.0, 16.0, 28.0])
_USUAL_HZ = np.array([2.52e9, 2.5e9, 1.8e9, 1.71e9, 1.73e9, 1.1e9])
"""Boost clocks [Hz] of desktop boards of these process nodes [nm] (datasheets of RTX 4090, RX 7900 XTX, RTX 3080, RTX
2080, GTX 1080, GTX TITAN X)."""
REFERENCE_NM = 7.0
"""Process node on which energies are stated."""


def flop_energy_j(device: DeviceSpec, physics: Physics) -> float:
    r"""Energy [J] of one float32 FLOP of an FMA at boost clock, all of the SM included.

    .. math:: E = E_7 \left(\frac{l}{7}\right)^a \left(\frac{f_0}{f_{usual}}\right)^v
              \left(\frac{f}{f_0}\right)^{1 / x - 1}

    Energy goes with the square of the voltage, which a board that runs below its node's usual clock needs less of. A
    variant of a board is the same silicon at another clock: from the board's own clock f_0 on its voltage moves as
    under a power limit, so that a higher clock that the limit does not allow changes nothing.

    Args:
        device: l, process node [nm], and f, boost clock [Hz], of a variant also that of the original, f_0.
        physics: E_7 ``lane_pj`` [pJ], a ``lane_node_exponent``, v ``voltage_exponent`` and x ``speed_exponent`` [-].

    Source: form of CMOS switching energy; constants fitted. Validity: boards of 4 to 28 nm. Without voltages held-out
    GPUs come out 2.1 points worse (linear).
    """
    power = physics.power
    usual_hz = float(np.interp(device.process_nm, _NODES_NM, _USUAL_HZ))
    node = (device.process_nm / REFERENCE_NM) ** power.lane_node_exponent
    energy_j = 1e-12 * power.lane_pj * node * (_own_clock_hz(device) / usual_hz) ** power.voltage_exponent
    return energy_j * (device.boost_clock_hz / _own_clock_hz(device)) ** (1.0 / power.speed_exponent - 1.0)


def _own_clock_hz(device: DeviceSpec) -> float:
    """Boost clock [Hz] that the board was built for."""
    return (device.original or device).boost_clock_hz


def budget_w(device: DeviceSpec, physics: Physics) -> float:
    r"""Power [W] that the limit leaves for switching and traffic, at least a quarter of it.

    .. math:: P_{left} = \max(P (1 - a) - b, P / 4)

    Args:
        device: P, its power limit [W].
        physics: a ``static_share`` [-] and b ``static_w`` [W].

    Source: fitted. Validity: boards of 70 to 300 W; without the law held-out GPUs come out 4.6 points worse (linear).
    """
    left = device.tdp_w * (1.0 - physics.power.static_share) - physics.power.static_w
    return max(left, 0.25 * device.tdp_w)


def slow_down(
    device: DeviceSpec,
    time_s: np.ndarray,
    energy_j: np.ndarray,
    physics: Physics,
    burst: np.ndarray | float = np.inf,
) -> np.ndarray:
    r"""Factor of at least 1 by which the power limit stretches kernels that would take ``time_s`` at full clock.

    .. math:: k = 1 + (k_\infty - 1) \frac{n t}{n t + b},\quad
              k_\infty = \max\left(1, \left(\frac{E / t}{P_{left}}\right)^x\right)

    Power goes with clock times voltage squared, so that speed falls slower than the power that is saved. The limiter
    averages over milliseconds, so that a burst of n kernels after a rest does not feel all of it.

    Args:
        device: gives what its limit leaves, see ``budget_w`` [W].
        time_s: t, duration at boost clock [s].
        energy_j: E, spent at boost clock [J].
        burst: n, kernels that run back to back before the board rests; infinite in the middle of work.
        physics: x ``power.speed_exponent`` [-], b ``power.burst_s`` [s], and what the board draws on its own.

    Source: dynamic power of CMOS, P ~ f V²; constants fitted.
    Validity: products on boards of 70 to 1400 W; without the law held-out GPUs come out 15 points worse (linear).
    """
    excess = physics.power.speed_exponent * np.log(np.maximum(energy_j / time_s / budget_w(device, physics), 1e-9))
    whole = np.exp(np.logaddexp(0.0, SHARPNESS * excess) / SHARPNESS)
    length_s = np.minimum(burst, 1e12) * time_s
    return np.asarray(1.0 + (whole - 1.0) * length_s / (length_s + physics.power.burst_s))


def traffic_energy_j(device: DeviceSpec, dram_bytes: np.ndarray, l2_bytes: np.ndarray, physics: Physics) -> np.ndarray:
    r"""Energy [J] of moving bytes, which the core clock does not change.

    .. math:: E = e_{DRAM} D + e_{L2} L

    Args:
        device: its kind of memory.
        dram_bytes: D, between DRAM and L2 [B].
        l2_bytes: L, between L2 and the SMs [B].
        physics: the energies of a byte [pJ/B].

    Source: order of magnitude from O'Connor et al. 2017 (HBM2: 4 pJ/bit); fitted.
    Validity: HBM2 and later, GDDR5 and later; LPDDR counts as GDDR.
    """
    hbm = device.dram_family == "HBM"
    return 1e-12 * (
        (physics.power.hbm_pj_per_byte if hbm else physics.power.gddr_pj_per_byte) * dram_bytes
        + physics.power.l2_pj_per_byte * l2_bytes
    )


@dataclass(frozen=True, kw_only=True)
class PowerDemand:
    """What kernels need at full clock; columns of shape (n,).

    ``clocked_s`` is the time of what runs at the core clock (arithmetic and L2) [s], ``dram_s`` of what does not [s];
    ``switching_j`` the energy of arithmetic at boost clock [J], ``traffic_j`` that of moving bytes [J]. ``budget_w``
    [W] and ``speed_exponent`` [-] are the device's, the same for all kernels.
    """

    clocked_s: np.ndarray
    dram_s: np.ndarray
    switching_j: np.ndarray
    traffic_j: np.ndarray
    budget_w: float
    speed_exponent: float

    def time_s(self, clock: np.ndarray | float) -> np.ndarray:
        """Time [s] at a share of the boost clock: ``max(clocked / clock, dram)``."""
        return np.maximum(self.clocked_s / clock, self.dram_s)

    def energy_j(self, clock: np.ndarray | float) -> np.ndarray:
        """Energy [J] at a share of the boost clock: ``switching · clock^(1/x - 1) + traffic``, since a lower clock
        needs less voltage.
        """
        return self.switching_j * clock ** (1 / self.speed_exponent - 1) + self.traffic_j

    def take(self, index: np.ndarray) -> PowerDemand:
        """The rows that ``index`` selects."""
        return replace(self, **{name: getattr(self, name)[index] for name in _COLUMNS})

    @staticmethod
    def joined(parts: list[PowerDemand]) -> PowerDemand:
        """Several batches as one."""
        columns: dict[str, Any] = {name: np.concatenate([getattr(p, name) for p in parts]) for name in _COLUMNS}
        return replace(parts[0], **columns)


_COLUMNS = ("clocked_s", "dram_s", "switching_j", "traffic_j")


def sustained_clock(demand: PowerDemand) -> np.ndarray:
    r"""Share of the boost clock [-] at which each kernel's power meets the budget, shape (n,), by bisection.

    .. math:: E(c) = P_{left} t(c)

    Kernels lend nothing to each other, as if those that wait for memory drew what arithmetic draws. Were each step's
    kernels to share its power, A100s of 300 W would be told as fast in training as those of 400 W, which were measured
    to be faster (``neusight evaluate steps lambda_training.parquet``).

    Args:
        demand: of the kernels.

    Source: the limiter's own rule, average power at most the limit. Validity: streams longer than the limiter's
    window of some ten milliseconds.
    """
    high = np.ones(demand.dram_s.shape)
    low = np.full_like(high, LEAST_CLOCK)
    above = _over(demand, high) > 0
    if not above.any():
        return high
    for _ in range(30):
        middle = (low + high) / 2
        hot = _over(demand, middle) > 0
        low, high = np.where(hot, low, middle), np.where(hot, middle, high)
    return np.where(above, (low + high) / 2, 1.0)


def _over(demand: PowerDemand, clock: np.ndarray) -> np.ndarray:
    """Energy beyond the budget [J]."""
    return demand.energy_j(clock) - demand.budget_w * demand.time_s(clock)
