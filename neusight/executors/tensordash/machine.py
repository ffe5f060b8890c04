"""The whole machine: tiles of PEs, its clock, what an operation or a byte costs in energy, and the cycles of kernels.

Cycle counts are those of the scheduler. What else the machine is comes from the paper's abstract and, where that is
silent, from memory of the paper or from the general literature: every such figure is an assumption, and says so.

Kernels with known zeros become streams, streams become passes over the tiles. A pass is ``rows`` streams of the
scheduled operand against ``columns`` of the other one. How long it takes comes from the simulator, the tile model, or
the dense schedule. All passes of a line are alike, so that a few of them tell the mean of all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256

import numpy as np

from neusight.devices.spec import GpuSpec
from neusight.errors import DeviceError
from neusight.executors.tensordash.masks import filled_slots, random_mask
from neusight.executors.tensordash.schedule import DEPTH, LANES, schedule_passes
from neusight.executors.tensordash.streams import COLUMNS, ROWS, Streams, dense_cycles, scheduled, streams_of
from neusight.kernels import KernelBatch

KIND = "tensordash"
"""``GpuSpec.kind`` of the machine and of its dense twin."""
DENSE = "TensorDash dense twin"
"""``GpuSpec.architecture`` of the same machine without scheduler and multiplexers."""
POWER_OVERHEAD = {"float32": 0.02, "bfloat16": 0.05}
"""What scheduling adds to the power of the compute (cited: the paper for float32; bfloat16 is an assumption, smaller
multipliers beside the same multiplexers)."""
MAC_J = {"float32": 10e-12, "bfloat16": 3.5e-12}
"""Energy of a multiplication, an addition and their registers at 65 nm (cited: Horowitz 2014 for 45 nm, 4.6 pJ, or 1.5
pJ in half precision, doubled for the node, with a little for registers and control)."""
SRAM_J_PER_BYTE = 1.5e-12
"""Wide reads of banks of 256 KB at 65 nm (assumption: the magnitude; CACTI for such a bank would tell)."""
DRAM_J_PER_BYTE = 32e-12
"""LPDDR4, interface included (assumption: 4 pJ a bit; power of its chips under streams would tell)."""
DRAM_SHARE = 0.9
"""Of the peak bandwidth that long streams sustain (assumption: as of GPUs; copies in LPDDR4 would tell)."""


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


def machine_of(device: GpuSpec) -> Machine:
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


Columns = Mapping[str, np.ndarray]
PassCycles = Callable[[Columns, Machine], np.ndarray]
"""Mean cycles of a pass of each line, shape (lines,), from columns ``taps``, ``channels``, ``length``, ``rows``,
``columns``, ``row_streams``, ``column_streams``, ``sparsity``, ``clustering`` and ``cluster``."""
LIKE_ALL = 16
"""Streams of the scheduled operand that stand for all in a draw: a multiple of every usual number of rows
(numerics)."""
AT_ONCE = 2**21
"""Values of a mask at a time: what a core's memory takes without a pause (numerics)."""
DRAWS, STEPS = 8, 32768
"""Draws of a line at least, and steps of all streams together: short streams scatter, and so do clustered zeros
(numerics)."""


@dataclass(frozen=True)
class Cycles:
    """Columns of shape (n,): of the whole machine, of its dense twin, the least by the sparse law, and passes."""

    cycles: np.ndarray
    dense: np.ndarray
    bound: np.ndarray
    passes: np.ndarray


def kernel_cycles(batch: KernelBatch, machine: Machine, pass_cycles: PassCycles) -> Cycles:
    """Cycles of each kernel of a batch that ``with_zeros`` has completed.

    Passes are shared out evenly over the tiles; the tile with the most decides.

    Raises:
        CoverageError: a family or direction that has no reduction streams.
    """
    lines = streams_of(batch, machine.lanes)
    columns = line_columns(batch, lines, machine)
    streams = columns["row_streams"], columns["column_streams"]
    passes = dense_cycles(*streams, np.ones(len(lines)), machine.rows, machine.columns) * lines.repeats
    fullest = np.ceil(passes / machine.tiles)
    each = pass_cycles(columns, machine) if machine.skips else lines.length
    filled = lines.channels / (machine.lanes * np.ceil(lines.channels / machine.lanes))
    least = np.maximum(1.0 / machine.depth, (1.0 - columns["sparsity"]) * filled) if machine.skips else 1.0
    dense = fullest * lines.length
    # Never slower than dense, never faster than the zeros and the depth allow, whoever says so.
    cycles = np.clip(fullest * each, dense * least, dense)

    def by_kernel(values: np.ndarray) -> np.ndarray:
        return np.bincount(lines.kernel, weights=values, minlength=len(batch))

    return Cycles(
        *(by_kernel(values) for values in (cycles, dense, passes * lines.length * least / machine.tiles, passes))
    )


def line_columns(batch: KernelBatch, lines: Streams, machine: Machine) -> dict[str, np.ndarray]:
    """What a pass of each line depends on."""
    first, second = (
        {name: batch[f"{side}_{name}"][lines.kernel] for name in ("sparsity", "clustering", "cluster")}
        for side in ("first", "second")
    )
    return {
        "taps": lines.taps,
        "channels": lines.channels,
        "length": lines.length,
        "rows": np.full(len(lines), machine.rows),
        "columns": np.full(len(lines), machine.columns),
        **scheduled(lines, first, second),
    }


def simulated(columns: Columns, machine: Machine) -> np.ndarray:
    """Mean cycles of a pass by the scheduler itself, over draws of up to ``LIKE_ALL`` streams of each line.

    Equal lines get equal masks: the seed is made of what a line says.
    """
    count = len(columns["length"])
    lines = [{name: column[i].item() for name, column in columns.items()} for i in range(count)]
    for line in lines:
        line["row_streams"] = min(int(line["row_streams"]), max(LIKE_ALL, machine.rows))
        line.pop("column_streams")
    return np.array([_simulated(tuple(sorted(line.items())), machine) for line in lines])


@lru_cache(maxsize=2**16)
def _simulated(items: tuple[tuple[str, object], ...], machine: Machine) -> float:
    line, seed = dict(items), int.from_bytes(sha256(repr(list(items)).encode()).digest()[:8], "big")
    taps, channels, streams = (int(str(line[name])) for name in ("taps", "channels", "row_streams"))
    filled = filled_slots(taps, channels, machine.lanes)
    sparsity, clustering = (float(str(line[name])) for name in ("sparsity", "clustering"))
    rng, cluster = np.random.default_rng(seed), str(line["cluster"])
    draws = max(DRAWS, -(-STEPS // (streams * len(filled))))
    # Streams know nothing of each other unless their zeros lie in the same slots: then each draw has slots of its own.
    whole = streams % machine.rows == 0 and (clustering == 0 or cluster != "slot")
    together = min(draws, max(1, AT_ONCE // (streams * filled.size))) if whole else 1
    per_pass = []
    for _ in range(-(-draws // together)):
        mask = random_mask(rng, (together * streams, *filled.shape), sparsity, clustering, cluster)
        per_pass.append(schedule_passes(mask & filled, machine.rows, machine.depth).mean())
    return float(np.mean(per_pass))
