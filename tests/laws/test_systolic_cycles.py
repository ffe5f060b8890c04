"""Cycles of systolic arrays: NKI's published cost, and what no array can do."""

import numpy as np
import pytest

from neusight.laws.systolic import overlapped_cycles, reread_bytes

EXTENTS = np.array([1, 7, 8, 33, 64, 127, 128, 129, 500, 1024], dtype=float)
M, N, K = (axis.ravel() for axis in np.meshgrid(EXTENTS, EXTENTS, EXTENTS))


def test_a_stationary_tile_takes_the_rows_that_stream_past_or_half_its_own() -> None:
    # NKI: max(N, 64) cycles for 128 x 128 stationary values.
    fill = 128 + 128 - 2
    side = np.full(3, 128.0)
    tiles = overlapped_cycles(np.array([512.0, 64.0, 16.0]), side, side, rows=128, columns=128)
    assert (tiles - fill).tolist() == [512.0, 64.0, 64.0]


@pytest.mark.parametrize(("rows", "columns"), [(128, 128), (256, 256), (16, 64)])
def test_no_array_is_faster_than_its_multipliers(rows: int, columns: int) -> None:
    least = M * N * K / (rows * columns)
    assert (overlapped_cycles(M, N, K, rows=rows, columns=columns) >= least).all()


def test_larger_products_are_never_faster() -> None:
    array = {"rows": 128, "columns": 128}
    for grown in ((M + 1, N, K), (M, N + 1, K), (M, N, K + 1)):
        assert (overlapped_cycles(*grown, **array) >= overlapped_cycles(M, N, K, **array)).all()


def test_operands_that_fit_on_the_chip_are_read_once() -> None:
    # 16 MiB make tiles of 1024 x 1024, whose row of four reads the right operand again for each of four rows of tiles.
    side, memory = np.array([1024.0, 4096.0]), {"on_chip_bytes": 24.0 * 2**20, "working_set_bytes": 16.0 * 2**20}
    again = reread_bytes(side, side, side, width=np.array([2.0]), **memory)
    assert again.tolist() == [0.0, 2 * 4096**2 * 2 * 3.0]
    assert reread_bytes(side, side, side, width=np.array([2.0]), **memory | {"on_chip_bytes": 64e6}).tolist() == [0, 0]


def test_larger_products_and_less_memory_never_read_less() -> None:
    memory = {"width": np.array([2.0]), "on_chip_bytes": 3e6, "working_set_bytes": 1e6}
    once = reread_bytes(8 * M, 8 * N, 8 * K, **memory)
    for grown in ((8 * M + 1, 8 * N, 8 * K), (8 * M, 8 * N + 1, 8 * K), (8 * M, 8 * N, 8 * K + 1)):
        assert (reread_bytes(*grown, **memory) >= once).all()
    assert (reread_bytes(8 * M, 8 * N, 8 * K, **memory | {"on_chip_bytes": 1.5e6}) >= once).all()
    assert (once >= 0).all()
    assert (once > 0).any()
