"""The energy law: a device cannot spend more than its power limit for long, so it lowers its clock.

Energy a FLOP falls with the process node, and with the voltage that a lower clock allows. At full speed a kernel
would draw ``P = energy / time``; when that exceeds what the limit leaves for switching, the clock, and so the speed,
falls by ``(P / budget) ** SPEED_EXPONENT``: power goes with clock times voltage squared, which is clock to the power
of about 1.5 between the minimum and the boost voltage (Guerreiro et al. 2018 measure 1.3 to 2).
"""

from __future__ import annotations

import numpy as np

from neusight.devices.spec import DeviceSpec

SPEED_EXPONENT = 0.66
STATIC_SHARE = 0.12
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
    energy = flop_energy_j(device) * flops + _DRAM_J_PER_BYTE[dram_family(device)] * dram_bytes
    drawn = (energy + L2_J_PER_BYTE * l2_bytes) / time_s
    budget = device.tdp_w * (1.0 - STATIC_SHARE)
    # A smooth maximum(1, x): limits act a little before the average reaches them.
    return np.exp(np.logaddexp(0.0, 8.0 * SPEED_EXPONENT * np.log(np.maximum(drawn / budget, 1e-9))) / 8.0)
