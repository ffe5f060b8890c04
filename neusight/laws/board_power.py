"""What a board's meter shows: what it draws whatever it does, and what its kernels add, up to its limit.

The power law (``laws.power``) says which clock a limit leaves, constants of this module what of its energies a meter
shows. One form holds for all kinds of boards, with constants of each kind.
"""

from __future__ import annotations

from dataclasses import fields
from math import exp, hypot

import numpy as np

from neusight.devices.spec import DeviceSpec, GpuSpec
from neusight.kernels.columns import ColumnRecord
from neusight.laws.constants import cited, constant, group
from neusight.laws.physics import Physics
from neusight.laws.power import REFERENCE_NM, PowerDemand, traffic_pj_per_byte
from neusight.quick_dataclasses import dataclass

METER = 1.05
"""By which a meter may read more than the limit (cited: NVML API reference, nvmlDeviceGetPowerUsage: within 5 %)."""
UNKNOWN_SPREAD = 0.3
"""Standard deviation of the log energy of kinds whose boards nobody measured (assumption: twice that of GPUs; meters of
such boards would tell)."""


@dataclass(frozen=True, kw_only=True)
class EnergyUse(ColumnRecord):
    """Energy of single launches [J], by where it goes, beside what the board draws all the time; shape (n,)."""

    compute_j: np.ndarray
    sram_j: np.ndarray
    dram_j: np.ndarray

    @property
    def total_j(self) -> np.ndarray:
        """All of it."""
        return self.compute_j + self.sram_j + self.dram_j

    @property
    def traffic_j(self) -> np.ndarray:
        """Of bytes, wherever they are."""
        return self.sram_j + self.dram_j

    def times(self, factor: np.ndarray | float) -> EnergyUse:
        """Of launches that take so much more."""
        return EnergyUse(**{f.name: factor * getattr(self, f.name) for f in fields(self)})

    def plus(self, other: EnergyUse, times: np.ndarray | float = 1.0) -> EnergyUse:
        """With other launches, each so often."""
        return EnergyUse(**{f.name: getattr(self, f.name) + times * getattr(other, f.name) for f in fields(self)})


@dataclass(frozen=True, kw_only=True)
class GpuBoard:
    """Boards of GPUs."""

    idle_share: float = constant(
        0.18, 0.4, "nvidia-smi with a context: A100 55 to 65 of 400 W, H100 70 to 120 of 700 W; fans and regulators"
    )
    """Of the power limit that a board draws at its clock whatever it does."""
    switching: float = constant(
        0.7, 0.4, "guess: operands stay in registers and are less random than where products meet the limit"
    )
    """Of the energy of arithmetic as the power law has it, what a meter shows."""
    traffic: float = constant(1.0, 0.2, "gpu-benches, power over bandwidth: A100 117 pJ/B, H200 124 pJ/B")
    """Of that of bytes from memory to the SMs."""


@dataclass(frozen=True, kw_only=True)
class SystolicBoard:
    """Chips with systolic arrays, whose meters nobody published beside kernels."""

    idle_share: float = cited(
        0.47, "datasheet: Google Cloud, TPU versions, min/mean/max power: 90/170/192 W of v4, 123/220/262 W of v3"
    )
    """As of GPUs."""
    flop_pj: float = cited(
        0.3, "Jouppi et al. 2021, Ten Lessons, table 2: bfloat16 multiply 0.21 pJ, float32 add 0.38 pJ"
    )
    """Energy of a FLOP of 16 bits at 7 nm [pJ]."""
    node_exponent: float = cited(
        0.55, "Jouppi et al. 2021, Ten Lessons, table 2, 45 to 7 nm: products 2.8 times, sums 2.4"
    )
    """By which it grows with the process node."""
    narrow_energy: float = constant(0.6, 0.3, "guess: as of matrix units")
    """Factor for half the bits."""
    sram_pj_per_byte: float = cited(
        5.0, "Jouppi et al. 2021, Ten Lessons, table 2: 14 pJ for 64 bits, each way, and wires"
    )
    """Written to and read from a megabyte of SRAM [pJ/B]."""
    dram_pj_per_byte: float = cited(44.0, "Jouppi et al. 2021, Ten Lessons, table 2: 250 to 450 pJ for 64 bits")
    """Of HBM [pJ/B]."""


@dataclass(frozen=True, kw_only=True)
class BoardPhysics:
    """Constants of all kinds of boards; other kinds have energies of their own, with all that they draw."""

    gpu: GpuBoard = group(GpuBoard, "what meters of boards show of kernels that last")
    systolic: SystolicBoard = group(SystolicBoard, "what meters of chips show of products in 16 and 8 bit")

    def of(self, device: DeviceSpec) -> GpuBoard | SystolicBoard | None:
        """Those of a device's kind."""
        boards: dict[str, GpuBoard | SystolicBoard] = {"gpu": self.gpu, "systolic": self.systolic}
        return boards.get(device.kind)


PRIOR = BoardPhysics()


def idle_w(device: DeviceSpec, boards: BoardPhysics) -> float:
    """Power [W] of a board that waits: it keeps its clocks between two kernels. Another limit leaves that as it is, as
    long as it is not below it.
    """
    board = boards.of(device)
    return min(board.idle_share * (device.original or device).tdp_w, device.tdp_w) if board else 0.0


def board_j(device: DeviceSpec, kernels_j: np.ndarray, time_s: np.ndarray, boards: BoardPhysics) -> np.ndarray:
    r"""Energy [J] of one board, never more than its limit allows.

    .. math:: E = \min(P_{limit} t, s P_{limit} t + E_{kernels})

    Args:
        device: P, its power limit [W].
        kernels_j: what kernels add, ``EnergyUse.total_j`` [J], shape (n,).
        time_s: t [s], shape (n,).
        boards: s ``idle_share`` [-].

    Source: form of Hong and Kim 2010 (An integrated GPU power and performance model, equation 3: idle, and dynamic
    power by component); constants fitted. Validity: boards whose limiter holds the average.
    """
    drawn_j = idle_w(device, boards) * time_s + kernels_j
    return np.asarray(drawn_j if boards.of(device) is None else np.minimum(drawn_j, device.tdp_w * time_s))


def energy_interval_j(
    device: DeviceSpec, energy_j: float, time_s: tuple[float, float, float], boards: BoardPhysics, doubt: float
) -> tuple[float, float]:
    """90 % interval of a board's energy [J]: longer steps draw idle power for longer, kernels' energy stays, but for
    kinds with energies of their own, which draw all of their power for longer.

    Args:
        device: its limits hold at both ends.
        energy_j: expected.
        time_s: low end, expected and high end of the time [s].
        boards: constants.
        doubt: half of the interval of the log energy at a given time.
    """
    low_s, expected_s, high_s = time_s
    waiting_w, own = idle_w(device, boards), boards.of(device) is None
    share = 1.0 if own else waiting_w * expected_s / energy_j if energy_j else 0.0
    late, early = (share * np.log(end_s / expected_s) if expected_s else 0.0 for end_s in (high_s, low_s))
    low_j, high_j = energy_j * exp(-hypot(early, doubt)), energy_j * exp(hypot(late, doubt))
    most_j = np.inf if own else METER * device.tdp_w * high_s
    return min(max(low_j, waiting_w * low_s), energy_j), max(min(high_j, most_j), energy_j)


def metered(demand: PowerDemand, board: GpuBoard) -> EnergyUse:
    """What kernels add to a GPU's meter: the power that they ask for at full clock, for as long as they run.

    Where the limit lowers the clock the meter reads the limit, which is for ``board_j`` to say of all kernels together.
    """
    stretch = demand.time_s(demand.running_clock) / demand.time_s(1.0)
    traffic = board.traffic * stretch
    return EnergyUse(
        compute_j=board.switching * stretch * demand.compute_j,
        sram_j=traffic * demand.sram_j,
        dram_j=traffic * demand.dram_j,
    )


def array_energy(
    flops: np.ndarray, moved_bytes: np.ndarray, width_bytes: np.ndarray, device: DeviceSpec, board: SystolicBoard
) -> EnergyUse:
    r"""What kernels add on systolic arrays.

    .. math:: E = F E_7 \left(\frac{l}{7}\right)^a e^{\log_2(2 / w)} + B (E_{SRAM} + E_{DRAM})

    Args:
        flops: F [FLOP], shape (n,).
        moved_bytes: B [B], shape (n,).
        width_bytes: w, of an element [B], shape (n,).
        device: l, process node [nm].
        board: E_7 ``flop_pj`` [pJ], a ``node_exponent``, e ``narrow_energy``, energies of a byte [pJ/B].

    Source: Jouppi et al. 2021, Ten Lessons from Three Generations, table 2. Validity: assumptions, held against the
    mean and largest power of TPU v3 and v4 alone.
    """
    node = (device.process_nm / REFERENCE_NM) ** board.node_exponent
    flop_pj = board.flop_pj * node * board.narrow_energy ** np.log2(2.0 / width_bytes)
    return EnergyUse(
        compute_j=1e-12 * flop_pj * flops,
        sram_j=1e-12 * board.sram_pj_per_byte * moved_bytes,
        dram_j=1e-12 * board.dram_pj_per_byte * moved_bytes,
    )


def stream_energy(moved_bytes: np.ndarray, device: DeviceSpec, boards: BoardPhysics, physics: Physics) -> EnergyUse:
    """What bytes add that kernels stream from memory, and nothing else."""
    none = np.zeros(len(moved_bytes))
    if isinstance(device, GpuSpec) and device.kind == "gpu":
        core_pj, memory_pj = (1e-12 * boards.gpu.traffic * pj for pj in traffic_pj_per_byte(device, physics))
        return EnergyUse(compute_j=none, sram_j=core_pj * moved_bytes, dram_j=memory_pj * moved_bytes)
    return array_energy(none, moved_bytes, np.full(len(none), 2.0), device, boards.systolic)
