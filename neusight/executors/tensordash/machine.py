"""The whole machine: tiles of PEs, its clock, and what an operation or a byte costs in energy.

Cycle counts are those of the scheduler. What else the machine is comes from the paper's abstract and, where that is
silent, from memory of the paper or from the general literature: every such figure is an assumption, and says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from neusight.devices.spec import DeviceSpec
from neusight.errors import DeviceError
from neusight.executors.tensordash.options import DEPTH, LANES
from neusight.executors.tensordash.streams import COLUMNS, ROWS

KIND = "tensordash"
"""``DeviceSpec.kind`` of the machine and of its dense twin."""
DENSE = "TensorDash dense twin"
"""``DeviceSpec.architecture`` of the same machine without scheduler and multiplexers."""
POWER_OVERHEAD = {"float32": 0.02, "bfloat16": 0.05}
"""What scheduling adds to the power of the compute (float32: the paper; bfloat16: an assumption, smaller multipliers
beside the same multiplexers)."""
AREA_OVERHEAD = 0.09
"""Of the float32 machine against its dense twin (the paper)."""
MAC_J = {"float32": 10e-12, "bfloat16": 3.5e-12}
"""Energy of a multiplication, an addition and their registers at 65 nm: assumption, the figures of Horowitz 2014 for
45 nm (4.6 pJ; 1.5 pJ in half precision) doubled for the node, with a little for registers and control."""
SRAM_J_PER_BYTE = 1.5e-12
"""Wide reads of banks of 256 KB at 65 nm: assumption."""
DRAM_J_PER_BYTE = 32e-12
"""LPDDR4, interface included: assumption, 4 pJ a bit."""
DRAM_SHARE = 0.9
"""Of the peak bandwidth that long streams sustain: assumption."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Tiles of ``rows`` x ``columns`` PEs of ``lanes`` multipliers each; ``depth`` rows of the dense schedule are in
    sight. ``skips`` is False for the dense twin.
    """

    tiles: int = 16
    rows: int = ROWS
    columns: int = COLUMNS
    lanes: int = LANES
    depth: int = DEPTH
    options: str = "oldest-row"
    clock_hz: float = 500e6
    skips: bool = True

    @property
    def macs_per_cycle(self) -> int:
        """Of all lanes."""
        return self.tiles * self.rows * self.columns * self.lanes

    def compute_w(self, dtype: str) -> float:
        """Power of the compute while it works, without memories.

        Raises:
            DeviceError: a dtype that the machine lacks.
        """
        if dtype not in MAC_J:
            raise DeviceError(f"TensorDash does not compute in {dtype}: it has {', '.join(MAC_J)}")
        overhead = POWER_OVERHEAD[dtype] if self.skips else 0.0
        return self.macs_per_cycle * self.clock_hz * MAC_J[dtype] * (1.0 + overhead)


def machine_of(device: DeviceSpec) -> Machine:
    """The machine that a device of the catalogue describes: tiles are its SMs, lanes its warp.

    Raises:
        DeviceError: another device, or peak, tiles, lanes and clock that do not fit together.
    """
    if device.kind != KIND:
        raise DeviceError(f"{device.id} is a {device.architecture}, no TensorDash: take tensordash or tensordash-dense")
    machine = Machine(
        tiles=device.sm_count,
        lanes=device.warp_size,
        clock_hz=device.boost_clock_hz,
        skips=device.architecture != DENSE,
    )
    peak, stated = 2.0 * machine.macs_per_cycle * machine.clock_hz, device.gemm_flops_per_s("float32")
    if abs(stated / peak - 1.0) > 0.01:
        raise DeviceError(
            f"{device.id}: {stated / 1e12:g} TFLOP/s are not {machine.tiles} tiles of {ROWS}x{COLUMNS} PEs with "
            f"{machine.lanes} lanes at {machine.clock_hz / 1e6:g} MHz, which do {peak / 1e12:g}: correct one of them"
        )
    return machine
