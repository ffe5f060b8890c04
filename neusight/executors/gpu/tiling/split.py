"""Split-K: a product with too few tiles to fill a device is cut along its inner extent as well.

The parts are products of their own, whose results are summed in the end. BLAS libraries do so for single products; in
the measured kernels the third extent of the grid shows it.
"""

from __future__ import annotations

import numpy as np

from neusight.devices.spec import DeviceSpec
from neusight.laws.physics import Physics
from neusight.laws.waves import rounds

SPLITS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
"""Parts that are considered; those seen in the grids of measured kernels reach from 2 to about 16."""
LEAST_DEPTH = 256.0
"""Inner extent [elements] that is left to a part, at least (assumption)."""
WORTH_IT = 1.3
"""How much faster a cut must be for a library to make it; fitted, by leaving each GPU out."""
PARTIAL_BYTES = 4.0
"""Of an element of a partial result [B], which is kept in float32."""


def split_depth(
    tiles: np.ndarray,
    depth: np.ndarray,
    *,
    tile_elements: np.ndarray,
    result_elements: np.ndarray,
    flops_per_s: np.ndarray | float,
    device: DeviceSpec,
    physics: Physics,
) -> np.ndarray:
    r"""Into how many parts [-] the inner extent is cut: the number of least time, shape (n,).

    .. math::
        t(s) = r(s T) \frac{2 E (k / s + k_0)}{R / N} + \frac{8\, s\, C}{\eta W_2},\quad
        1.3\, t(s) < t(1),\quad k / s \ge 256

    Args:
        tiles: T, blocks of the product without a cut [-].
        depth: k, inner extent [elements].
        tile_elements: E, of the result, in each block.
        result_elements: C, of the whole result; each part writes it once, and all are read again to be summed.
        flops_per_s: R, peak of the device for these products [FLOP/s].
        device: N its SMs, and W_2 its L2 bandwidth [B/s], through which the partial results go.
        physics: k_0 ``lanes.prologue_depth`` and η ``memory.l2_share``.

    Source: split-K as in NVIDIA's CUTLASS; which cut a library makes is fitted (``WORTH_IT``).
    Validity: single products; batched ones are not cut.
    """
    parts = np.array(SPLITS, dtype=float)[:, None]
    rate = flops_per_s / device.sm_count
    work = 2.0 * tile_elements * (depth / parts + physics.cuda_cores.prologue_depth)
    summed_s = 2.0 * PARTIAL_BYTES * parts * result_elements / (device.l2_bytes_per_s * physics.memory.l2_share)
    time_s = rounds(tiles * parts, device.sm_count, physics.cuda_cores.tail_share) * work / rate
    time_s = np.where(parts > 1, WORTH_IT * (time_s + summed_s), time_s)
    possible = (parts == 1) | (depth / parts >= LEAST_DEPTH)
    return parts[np.argmin(np.where(possible, time_s, np.inf), axis=0), 0]


def filling_parts(tiles: np.ndarray, depth: np.ndarray, room: np.ndarray) -> np.ndarray:
    r"""Parts [-] into which the inner extent is cut where a library fills the device whatever that costs, shape (n,).

    .. math:: s = \max\left(1, \min\left(\lfloor B / T \rfloor, \lfloor k / 256 \rfloor\right)\right)

    Args:
        tiles: T, blocks of the product without a cut [-].
        depth: k, inner extent [elements].
        room: B, blocks that the device holds at a time [-].

    Source: the grids of cuDNN's kernels for gradients of filters, which grow with the device. Validity: products
    whose results are few beside their operands.
    """
    return np.maximum(1.0, np.minimum(np.floor(room / tiles), np.floor(depth / LEAST_DEPTH)))
