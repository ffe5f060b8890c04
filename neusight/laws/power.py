"""The energy law: a device cannot spend more than its power limit for long, so it lowers its clock.

Energy a FLOP falls with the process node, and with the voltage that a lower clock allows; so does that of a byte on its
way to an SM. Memories have a clock and voltage of their own. Where kernels at full clock would draw more than the
limit leaves, the core clock falls until they do not: what waits for DRAM takes as long as before. The numbers are those
of ``Physics``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from neusight.devices.spec import GpuSpec
from neusight.kernels.columns import ColumnRecord
from neusight.laws.bounds import overlapped_s
from neusight.laws.physics import Physics
from neusight.quick_dataclasses import dataclass

LEAST_CLOCK = 0.1
"""Share of the boost clock below which no limiter goes (assumption: idle clocks of about 200 MHz; clocks under the
lowest limits would tell)."""
ROOT_STEPS = 14
"""Of false position: no clock of 20,000 random demands lay further than 2e-12 from that of bisection (numerics)."""
_NODES_NM = np.array([4.0, 5.0, 8.0, 12.0, 16.0, 28.0])
"""Process nodes of ``_USUAL_HZ`` [nm] (datasheet: of the same boards)."""
_USUAL_HZ = np.array([2.52e9, 2.5e9, 1.8e9, 1.71e9, 1.73e9, 1.1e9])
"""Boost clocks [Hz] of desktop boards of these process nodes [nm] (datasheet: RTX 4090, RX 7900 XTX, RTX 3080, RTX
2080, GTX 1080, GTX TITAN X)."""
REFERENCE_NM = 7.0
"""Process node on which energies are stated (definition)."""


def flop_energy_j(device: GpuSpec, physics: Physics) -> float:
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


def _own_clock_hz(device: GpuSpec) -> float:
    """Boost clock [Hz] that the board was built for."""
    return (device.original or device).boost_clock_hz


def budget_w(device: GpuSpec, physics: Physics) -> float:
    r"""Power [W] that the limit leaves for clocks, switching and traffic, at least half of it.

    .. math:: P_{left} = \max(P - b, P / 2)

    Args:
        device: P, its power limit [W].
        physics: b ``static_w`` [W].

    Source: fitted. Validity: boards of 70 W and more.
    """
    return max(device.tdp_w - physics.power.static_w, 0.5 * device.tdp_w)


def clock_w(device: GpuSpec, physics: Physics) -> float:
    r"""Power [W] at boost clock of SMs that hold kernels and wait: clocks, registers, schedulers.

    .. math:: P_{clock} = k N f E_{FLOP}

    Args:
        device: N SMs and f, boost clock [Hz]; gives E, see ``flop_energy_j`` [J].
        physics: k ``idle_flops``, of an SM in a cycle [FLOP].

    Source: form of CMOS switching energy; fitted. Validity: boards whose idle SMs keep their clock.
    """
    switched = physics.power.idle_flops * device.sm_count * device.boost_clock_hz
    return switched * flop_energy_j(device, physics)


@dataclass(frozen=True, kw_only=True)
class PowerDemand(ColumnRecord):
    """What kernels need at full clock; columns of shape (n,).

    ``clocked_s`` is the time of what runs at the core clock (arithmetic, L2, chains of accesses) [s], ``dram_s`` of
    what does not [s], ``ports_s`` of the same bytes on their way through L2, of which and DRAM the longer counts [s];
    ``overlap`` the exponent of the norm in which clocked work and memory join. Energies ``compute_j`` of arithmetic and
    ``sram_j`` of bytes between memory and SMs fall with the core clock and are stated at boost clock [J], ``dram_j`` is
    that of memories, which run at a clock of their own [J];
    ``lone`` the factor [-] by which each was measured to take longer at its ``sustained_clock``, all by itself, beyond
    what it takes longer at a clock that others have a part in.
    ``clock_w`` at boost clock, ``budget_w`` [W] and ``speed_exponent`` are the device's, the same for all kernels;
    ``clock`` is the share of the boost clock at which all run, None where each runs at its ``sustained_clock``.
    """

    clocked_s: np.ndarray
    ports_s: np.ndarray
    dram_s: np.ndarray
    overlap: np.ndarray
    compute_j: np.ndarray
    sram_j: np.ndarray
    dram_j: np.ndarray
    lone: np.ndarray
    clock_w: float
    budget_w: float
    speed_exponent: float
    clock: float | None = None

    @property
    def running_clock(self) -> np.ndarray | float:
        """Share of the boost clock [-] at which the kernels run."""
        return sustained_clock(self) if self.clock is None else self.clock

    def time_s(self, clock: np.ndarray | float) -> np.ndarray:
        """Time [s] at a share of the boost clock: memory takes what it takes."""
        memory_s = np.maximum(self.dram_s, self.ports_s / clock)
        return overlapped_s((self.clocked_s / clock, memory_s), self.overlap)

    def energy_j(self, clock: np.ndarray | float) -> np.ndarray:
        """Energy [J] at a share of the boost clock: what is switched needs ``clock^(1/x - 1)`` of its energy, since a
        lower clock needs less voltage.
        """
        return self._energy_j(clock, self.time_s(clock))

    def over_j(self, clock: np.ndarray | float) -> np.ndarray:
        """Energy beyond the budget [J] at a share of the boost clock."""
        time_s = self.time_s(clock)
        return self._energy_j(clock, time_s) - self.budget_w * time_s

    def _energy_j(self, clock: np.ndarray | float, time_s: np.ndarray) -> np.ndarray:
        clocks_j = self.clock_w * clock * time_s
        core_j = self.compute_j + self.sram_j + clocks_j
        return core_j * clock ** (1 / self.speed_exponent - 1) + self.dram_j

    def scaled(self, factor: np.ndarray | float) -> PowerDemand:
        """Of kernels that take so many times as long at the same power."""
        return replace(self, **{name: getattr(self, name) * factor for name in _AMOUNTS})


_AMOUNTS = ("clocked_s", "ports_s", "dram_s", "compute_j", "sram_j", "dram_j")


def sustained_clock(demand: PowerDemand) -> np.ndarray:
    r"""Share of the boost clock [-] at which each kernel's power meets the budget, shape (n,), of kernels that run
    again and again by themselves.

    .. math:: E(c) = P_{left} t(c)

    Args:
        demand: of the kernels.

    Source: the limiter's own rule, average power at most the limit. Validity: streams longer than the limiter's
    window of some ten milliseconds.
    """
    clock = np.ones(demand.dram_s.shape)
    hot = np.flatnonzero(demand.over_j(clock) > 0.0)
    if len(hot):
        clock[hot] = _root(demand.take(hot).over_j, len(hot))
    return clock


def shared_clock(demand: PowerDemand) -> float:
    r"""Share of the boost clock [-] at which kernels that follow each other meet the budget together.

    .. math:: \sum_i E_i(c) = P_{left} \sum_i t_i(c)

    The limiter sees the average over its window, in which a step's kernels of all kinds run: those that wait for memory
    lend power to those that multiply.

    Args:
        demand: of the kernels, each with all its runs.

    Source: as of ``sustained_clock``. Validity: steps whose kinds of kernels change faster than the limiter's window.
    """

    def over(clock: np.ndarray) -> np.ndarray:
        return demand.over_j(clock).sum(keepdims=True)

    return 1.0 if over(np.ones(1)) <= 0.0 else float(_root(over, 1)[0])


def _root(over: Callable[[np.ndarray], np.ndarray], n: int) -> np.ndarray:
    """Clocks of shape (n,) at which energies meet their budgets, by false position (Illinois); ``LEAST_CLOCK`` where
    none does.
    """
    low, high = np.full(n, LEAST_CLOCK), np.ones(n)
    below, above = over(low), over(high)
    never, before = below >= 0.0, np.zeros(n)
    for _ in range(ROOT_STEPS):
        middle = np.clip(high - above * (high - low) / np.maximum(above - below, 1e-300), low, high)
        found = over(middle)
        side = np.where(found > 0.0, 1.0, -1.0)
        below = np.where(side < 0.0, found, np.where(before > 0.0, below / 2.0, below))
        above = np.where(side > 0.0, found, np.where(before < 0.0, above / 2.0, above))
        low, high, before = np.where(side < 0.0, middle, low), np.where(side > 0.0, middle, high), side
    return np.where(never, LEAST_CLOCK, middle)


def slow_down(demand: PowerDemand, burst_s: float, burst: np.ndarray | float = np.inf) -> np.ndarray:
    r"""Factor of at least 1 by which the power limit stretches kernels.

    .. math:: k = 1 + \left(\frac{t(c)}{t(1)} - 1\right) \frac{n t(1)}{n t(1) + b}

    The limiter averages over milliseconds, so that a burst of n kernels after a rest does not feel all of it.

    Args:
        demand: gives t, durations by clock [s], and c, the ``sustained_clock``.
        burst_s: b, ``power.burst_s`` [s].
        burst: n, kernels that run back to back before the board rests; infinite in the middle of work.

    Source: dynamic power of CMOS, P ~ f V²; constants fitted.
    Validity: products on boards of 70 to 1400 W; without the law held-out GPUs come out 15 points worse (linear).
    """
    time_s = demand.time_s(1.0)
    length_s = np.minimum(burst, 1e12) * time_s
    return np.asarray(1.0 + (demand.time_s(sustained_clock(demand)) / time_s - 1.0) * length_s / (length_s + burst_s))


def traffic_pj_per_byte(device: GpuSpec, physics: Physics) -> tuple[float, float]:
    """Energy [pJ] of a byte from DRAM: (on its way from the controller to the SMs, at boost clock; of the memory).

    Args:
        device: its kind of memory.
        physics: ``core_pj_per_byte``, and ``hbm_memory_pj_per_byte`` or ``gddr_memory_pj_per_byte``.

    Source: figures of the constants. Validity: HBM2 and later, GDDR5 and later; LPDDR counts as GDDR.
    """
    power = physics.power
    return (
        power.core_pj_per_byte,
        power.hbm_memory_pj_per_byte if device.dram_family == "HBM" else power.gddr_memory_pj_per_byte,
    )
