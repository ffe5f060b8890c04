"""Tiles on SMs: how many fit at once, and what the last, partly filled round costs."""

from __future__ import annotations

import numpy as np

from neusight.devices.spec import GpuSpec
from neusight.laws.dram import sustained_dram_bytes_per_s
from neusight.laws.physics import Physics

FLOAT_BYTES = 4.0
"""Of an element in float32, or in TF32 as it lies in memory (definition)."""
FULL_TILE = 128 * 128
"""Accumulators that keep an SM's pipelines busy: two 64x128 blocks or one of 128x128 (assumption: the largest tiles
that BLAS libraries run at full rate; products in float32 by tile would tell)."""


def rounds(tiles: np.ndarray, sm_count: int, tail_share: float) -> np.ndarray:
    r"""Tiles [-] that the busiest SM works through.

    .. math:: r = \max(w + \tau (\lceil w \rceil - w), \min(\lceil w \rceil, 1)),\quad w = T / N

    Between the even share (τ = 0) and whole rounds (τ = 1), and no less than one tile.

    Args:
        tiles: T, blocks of the kernel [-].
        sm_count: N, SMs of the device [-].
        tail_share: τ [-].

    Source: whole rounds as in NVIDIA, Matrix Multiplication Background User's Guide (wave quantisation); τ fitted.
    Validity: blocks of equal work. With τ = 0 held-out GPUs come out 0.4 points worse (linear), with τ = 1 0.1.
    """
    share = tiles / sm_count
    whole = np.ceil(share)
    return np.maximum(share + tail_share * (whole - share), np.minimum(whole, 1.0))


def idle_factor(tile_elements: np.ndarray, resident: np.ndarray, idle_cost: float) -> np.ndarray:
    r"""Slow-down [-], at least 1, of an SM whose resident blocks hold too little work to hide latencies.

    .. math:: f = 1 + c \max(0, 1 - n E / E_{full})

    Args:
        tile_elements: E, accumulators of a block [-].
        resident: n, blocks that an SM holds at once [-].
        idle_cost: c [-].

    Source: fitted, form and constant. Validity: float32 tiles of 32x32 to 256x128.
    """
    return 1.0 + idle_cost * np.maximum(0.0, 1.0 - resident * tile_elements / FULL_TILE)


REGISTERS_PER_ACCUMULATOR = 1.9
"""Registers a block uses for each element of its tile, operands and addresses included (cited: float32 kernels of
cuBLAS: 128x128 has 256 threads of 122)."""


def resident_blocks(tile_elements: np.ndarray, device: GpuSpec) -> np.ndarray:
    r"""Blocks of products that an SM holds at once [-]: as many as its registers do, 1 to 16.

    .. math:: n = \lfloor G / (1.9 E) \rfloor

    Args:
        tile_elements: E, accumulators of a block [-].
        device: G, 32-bit registers of an SM.

    Source: CUTLASS, Efficient GEMM in CUDA. Validity: kernels whose accumulators lie in registers.
    """
    return np.clip(np.floor(device.registers_per_sm / (tile_elements * REGISTERS_PER_ACCUMULATOR)), 1.0, 16.0)


USUAL_LANES = 64.0
"""Float32 lanes of an SM for which ``shared_memory_half`` is stated (definition)."""


def operand_factor(
    tile_m: np.ndarray, tile_n: np.ndarray, sm_flops_per_s: np.ndarray | float, device: GpuSpec, physics: Physics
) -> np.ndarray:
    r"""Slow-down [-], at least 1, of products by the operands that come from shared memory.

    .. math:: f = \left(1 + (h / i)^s\right)^{1/s},\quad i = \frac{t_m t_n}{t_m + t_n},\quad h = h_{64} \frac{l}{64}

    A narrow tile needs more operands an operation, and shared memory brings as many bytes a clock to an SM of 128 lanes
    as to one of 64.

    Args:
        tile_m: t_m, rows of a tile [elements].
        tile_n: t_n, columns of a tile [elements].
        sm_flops_per_s: peak of an SM [FLOP/s], of which l FMAs a clock follow.
        device: its clock [Hz].
        physics: h_64 ``cuda_cores.shared_memory_half`` [-] and s ``cuda_cores.shared_memory_sharpness`` [-].

    Source: CUDA C++ Programming Guide, Shared Memory: 32 banks of 4 bytes on every SM; form and constants fitted.
    Validity: float32 tiles of 32x32 to 256x128. Left out, an SM of 128 lanes comes out 7 % too fast.
    """
    half = physics.cuda_cores.shared_memory_half * sm_flops_per_s / (2.0 * device.boost_clock_hz * USUAL_LANES)
    narrow = (half * (tile_m + tile_n) / (tile_m * tile_n)) ** physics.cuda_cores.shared_memory_sharpness
    return np.asarray((1.0 + narrow) ** (1.0 / physics.cuda_cores.shared_memory_sharpness))


def tile_overhead_s(tile_elements: np.ndarray, resident: np.ndarray, device: GpuSpec, physics: Physics) -> np.ndarray:
    r"""Time [s] that a float32 tile takes beside its main loop: until its first operands are there, and while its part
    of the result is written.

    .. math:: t = \frac{t_{fill}}{n} + w \frac{4 E N}{W}

    Other blocks of the SM compute while one waits. Writing is hidden in part alone: blocks that began together end
    together.

    Args:
        tile_elements: E, of the result [-].
        resident: n, blocks that the SM holds at once [-].
        device: N its SMs and W the bandwidth that its DRAM sustains [B/s].
        physics: t_fill ``cuda_cores.fill_s`` [s] and w ``cuda_cores.exposed_write`` [-].

    Source: form and constants fitted. Validity: float32 products of inner extents from 16 on.
    """
    written_s = FLOAT_BYTES * tile_elements * device.sm_count / sustained_dram_bytes_per_s(device, physics)
    return np.asarray(physics.cuda_cores.fill_s / resident + physics.cuda_cores.exposed_write * written_s)


DUAL = 100
"""Lanes of a compute unit of AMD from which its peak counts two operations a lane, dual-issued or packed
(definition)."""


def issue_share(device: GpuSpec, physics: Physics) -> float:
    """Share [-] of the peak of FMAs that an SM's schedulers can issue beside everything else that a loop holds.

    Args:
        device: cores of its SMs, as its peak rate and clock tell, and how its architecture issues FMAs.
        physics: ``cuda_cores.issue_contended`` and ``cuda_cores.issue_dual`` [-].

    Source: CUDA C++ Programming Guide, Arithmetic Instructions: from 8.6 on an SM has 128 float32 lanes and four
    schedulers of one instruction a clock, so that whatever is no FMA takes a slot from FMAs, whether or not half of the
    lanes serves integers as well; SMs of 64 lanes have slots to spare, and Pascal issues two. Validity: float32
    products; the shares are fitted.
    """
    if "float32" in device.matrix_flops_per_s:
        # CDNA multiplies float32 on matrix units, whose rate is not the cores'.
        return 1.0
    issue = device.facts.issue
    if issue == "paired" and device.cuda_cores_per_sm >= DUAL:
        return physics.cuda_cores.issue_dual
    return physics.cuda_cores.issue_contended if issue == "contended" else 1.0
