"""Cycles of matrix products in systolic arrays whose weights are loaded in the background."""

from __future__ import annotations

import numpy as np

HIDDEN_ROWS = 0.5
"""Of an array's rows, those that must stream past a stationary tile for the next one to be loaded meanwhile: a tile of
128 x 128 takes ``max(N, 64)`` cycles (cited: AWS Neuron documentation, NKI, cost of ``nc_matmul``)."""

BYTES_PER_RESULT = 16.0
"""Of a working set, for an element of the result's tile: a sum in float32, two results of up to four bytes that leave
in turn, and operands on their way in (assumption: as much as a sum; products by size of on-chip memory would tell)."""


def tiles_of(extent: np.ndarray, side: int) -> np.ndarray:
    """Tiles of a side that cover an extent: ``ceil(extent / side)``."""
    return np.ceil(extent / side)


def padded(extent: np.ndarray, multiple: int) -> np.ndarray:
    """An extent as it lies in memory: ``multiple ceil(extent / multiple)``."""
    return tiles_of(extent, multiple) * multiple


def overlapped_cycles(
    m: np.ndarray, n: np.ndarray, k: np.ndarray, *, rows: int, columns: int, multiple: int = 1
) -> np.ndarray:
    r"""Cycles of one array that loads the next stationary tile while rows stream past this one.

    .. math:: \lceil K/R \rceil \min_{S \in \{M, N\}} \lceil S'/C \rceil \max(S, R/2) + R + C - 2

    where S streams and S' stays, as the compiler chooses; one fill and drain are left.

    Args:
        m, n, k: extents of the product.
        rows, columns: R and C of the array.
        multiple: to which streamed rows are padded.

    Source: AWS Neuron documentation, NKI (``HIDDEN_ROWS``); Jouppi et al. 2017, section 2 (double buffers).
    Validity: operands that lie in on-chip memory.
    """
    streams = [
        np.maximum(padded(streamed, multiple), HIDDEN_ROWS * rows) * tiles_of(still, columns)
        for streamed, still in ((m, n), (n, m))
    ]
    return tiles_of(k, rows) * np.minimum(*streams) + rows + columns - 2


def reread_bytes(
    m: np.ndarray, n: np.ndarray, k: np.ndarray, *, width: np.ndarray, on_chip_bytes: float, working_set_bytes: float
) -> np.ndarray:
    r"""Bytes of operands that a product reads from memory beyond once each, tile after tile of the result.

    .. math:: w (m k (n / T - 1)^+ + k n (m / T - 1)^+), \quad T = \sqrt{W / 16}

    with a working set of W bytes, and none where the smaller operand fits on the chip beside the working set.

    Args:
        m, n, k: extents of the product.
        width: bytes of an element of the operands.
        on_chip_bytes: capacity of the memories that software fills.
        working_set_bytes: of them, for tiles that are worked on.

    Source: Hong and Kung 1981, I/O complexity of matrix multiplication (tiles). Validity: square tiles.
    """
    left, right = m * k * width, k * n * width
    tile = np.sqrt(working_set_bytes / BYTES_PER_RESULT)
    again = left * np.maximum(n / tile - 1.0, 0.0) + right * np.maximum(m / tile - 1.0, 0.0)
    return np.where(np.minimum(left, right) + working_set_bytes < on_chip_bytes, 0.0, again)
