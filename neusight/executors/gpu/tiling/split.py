"""Split-K: a product with too few tiles to fill a device is cut along its inner extent as well.

The parts are products of their own, whose results are summed in the end. BLAS libraries do so for single products; in
the measured kernels the third extent of the grid shows it.
"""

from __future__ import annotations

import numpy as np

from neusight.devices.spec import DeviceSpec
from neusight.laws.bounds import l2_bytes_per_s
from neusight.laws.physics import DEFAULT
from neusight.laws.waves import rounds

SPLITS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
LEAST_DEPTH = 256.0
"""Inner extent that is left to a part, at least."""
WORTH_IT = 1.3
"""How much faster a cut must be for a library to make it; chosen by leaving each GPU out."""
PARTIAL_BYTES = 4.0
"""Of an element of a partial result, which is kept in float32."""


def split_depth(
    tiles: np.ndarray,
    tile_elements: np.ndarray,
    result_elements: np.ndarray,
    depth: np.ndarray,
    flops_per_s: np.ndarray | float,
    device: DeviceSpec,
) -> np.ndarray:
    """Into how many parts the inner extent is cut: the number of least time, shape (n,).

    Args:
        tiles: blocks of the product without a cut.
        tile_elements: of the result, in each.
        result_elements: of the whole result; each part writes it once, and all are read again to be summed.
        depth: inner extent.
        flops_per_s: peak of the device for these products.
        device: its SMs and its L2, through which the partial results go.
    """
    parts = np.array(SPLITS, dtype=float)[:, None]
    rate = flops_per_s / device.sm_count
    work = 2.0 * tile_elements * (depth / parts + DEFAULT.prologue_depth)
    summed_s = 2.0 * PARTIAL_BYTES * parts * result_elements / (l2_bytes_per_s(device) * DEFAULT.l2_share)
    time_s = rounds(tiles * parts, device.sm_count) * work / rate
    time_s = np.where(parts > 1, WORTH_IT * (time_s + summed_s), time_s)
    possible = (parts == 1) | (depth / parts >= LEAST_DEPTH)
    return parts[np.argmin(np.where(possible, time_s, np.inf), axis=0), 0]
