"""The energy law: a device cannot spend more than its power limit for long, so it lowers its clock.

Energy a FLOP falls with the process node, and with the voltage that a lower clock allows. At full speed a kernel
would draw ``P = energy / time``; when that exceeds what the limit leaves for switching, the clock, and so the speed,
falls by ``(P / budget) ** SPEED_EXPONENT``: power goes with clock times voltage squared, taken as clock to the power
of 1.5, since voltage falls more slowly than the clock (assumption, near the joint fit on the training GPUs).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from neusight.devices.spec import DeviceSpec

SPEED_EXPONENT = 0.66
STATIC_SHARE = 0.12
LEAST_CLOCK = 0.1
SHARPNESS = 32.0
"""Of the smooth maximum(1, x) with which the limit sets in: at the limit itself it costs 2 %."""
_NODES_NM = np.array([3.0, 4.0, 7.0, 12.0, 16.0])
_PJ_PER_FLOP = np.array([10.0, 11.5, 14.2, 15.5, 17.7])
L2_J_PER_BYTE = 3e-12

_DRAM_J_PER_BYTE = {"HBM": 33e-12, "GDDR": 65e-12, "LPDDR": 40e-12}
"""Device and interface together: about 4 pJ/bit for HBM2 (O'Connor et al. 2017); 8 pJ/bit for GDDR is an assumption."""

MATRIX_ENERGY = {"float16": 0.07, "bfloat16": 0.07, "tf32": 0.13, "float8": 0.04, "int8": 0.04, "float64": 1.5}
"""Energy a FLOP on matrix units against a float32 FMA (assumption: H100 SXM draws 700 W at about 700 dense bf16
TFLOP/s, half of it for arithmetic)."""


def dram_family(device: DeviceSpec) -> str:
    """``HBM``, ``GDDR`` or ``LPDDR``; other kinds count as GDDR."""
    kind = device.dram_kind.upper()
    return next((name for name in ("LPDDR", "HBM") if name in kind), "GDDR")


def flop_energy_j(device: DeviceSpec) -> float:
    """Energy of one float32 FLOP of an FMA at boost clock, all of the SM included, in joules.

    Around 20, 17.5, 16 and 13 pJ at 16, 12, 7 and 4 nm, scaled by 0.89 in a joint fit on the five training GPUs.
    """
    return float(np.interp(device.process_nm, _NODES_NM, _PJ_PER_FLOP)) * 1e-12


def budget_w(device: DeviceSpec) -> float:
    """Power that the limit leaves for switching and traffic."""
    return device.tdp_w * (1.0 - STATIC_SHARE)


def slow_down(
    device: DeviceSpec, time_s: np.ndarray, flops: np.ndarray, dram_bytes: np.ndarray, l2_bytes: np.ndarray
) -> np.ndarray:
    """Factor of at least 1 by which the power limit stretches a kernel that would take ``time_s`` at full clock.

    Args:
        device: gives power limit, node and kind of memory.
        time_s: duration at boost clock.
        flops: float32-equivalent operations (scaled by the energy of the dtype).
        dram_bytes: bytes to and from DRAM.
        l2_bytes: bytes between L2 and the SMs.
    """
    drawn = (flop_energy_j(device) * flops + traffic_energy_j(device, dram_bytes, l2_bytes)) / time_s
    excess = SPEED_EXPONENT * np.log(np.maximum(drawn / budget_w(device), 1e-9))
    return np.exp(np.logaddexp(0.0, SHARPNESS * excess) / SHARPNESS)


def traffic_energy_j(device: DeviceSpec, dram_bytes: np.ndarray, l2_bytes: np.ndarray) -> np.ndarray:
    """Energy of moving bytes, which the core clock does not change."""
    return _DRAM_J_PER_BYTE[dram_family(device)] * dram_bytes + L2_J_PER_BYTE * l2_bytes


@dataclass(frozen=True, kw_only=True)
class PowerDemand:
    """What kernels need at full clock; columns of shape (n,).

    ``clocked_s`` is the time of what runs at the core clock (arithmetic and L2), ``dram_s`` of what does not;
    ``switching_j`` the energy of arithmetic at boost clock, ``traffic_j`` that of moving bytes.
    """

    clocked_s: np.ndarray
    dram_s: np.ndarray
    switching_j: np.ndarray
    traffic_j: np.ndarray

    def time_s(self, clock: np.ndarray | float) -> np.ndarray:
        """Time at a share of the boost clock."""
        return np.maximum(self.clocked_s / clock, self.dram_s)

    def energy_j(self, clock: np.ndarray | float) -> np.ndarray:
        """Energy at a share of the boost clock: a lower clock needs less voltage."""
        return self.switching_j * clock ** (1 / SPEED_EXPONENT - 1) + self.traffic_j

    def take(self, index: np.ndarray) -> PowerDemand:
        """The rows that ``index`` selects."""
        return PowerDemand(**{f.name: getattr(self, f.name)[index] for f in fields(PowerDemand)})

    @staticmethod
    def joined(parts: list[PowerDemand]) -> PowerDemand:
        """Several batches as one."""
        columns = {f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(PowerDemand)}
        return PowerDemand(**columns)


def sustained_clock(demand: PowerDemand, budget: float, counts: np.ndarray | None = None) -> np.ndarray:
    """Share of the boost clock at which average power meets the budget, by bisection.

    Args:
        demand: of the kernels.
        budget: watts, see ``budget_w``.
        counts: how often each kernel runs in the stream that shares the budget; the limiter averages over many
            milliseconds, so that cool kernels lend their share to hot ones. Without counts each kernel is a stream
            of its own.

    Returns:
        One clock a kernel, shape (n,), or with counts one for all, shape ().
    """

    def over(clock: np.ndarray) -> np.ndarray:
        excess = demand.energy_j(clock) - budget * demand.time_s(clock)
        return excess if counts is None else (counts * excess).sum()

    low = np.full(demand.dram_s.shape if counts is None else (), LEAST_CLOCK)
    high = np.ones_like(low)
    for _ in range(30):
        middle = (low + high) / 2
        hot = over(middle) > 0
        low, high = np.where(hot, low, middle), np.where(hot, middle, high)
    return np.where(over(np.ones_like(low)) > 0, (low + high) / 2, 1.0)
