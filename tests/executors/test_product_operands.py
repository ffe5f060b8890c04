"""Products of 16-bit operands: what caches keep of each operand, and the tiles of each kind of matrix unit."""

from __future__ import annotations

import numpy as np
import pytest

from neusight.devices import load_device
from neusight.executors.gpu.expected.matrix import TILES, matrix_times, product_tiling, tile_shapes
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.kernels.work import work_of
from neusight.laws.physics import PRIOR


def dram_s(m: int, n: int, k: int, gpu: str, sets: float, *, one_input: bool = False) -> float:
    batch = KernelBatch.from_columns("gemm", m=np.array([m]), n=np.array([n]), k=np.array([k]), dtype="bfloat16")
    conditions = Conditions.of(1, cycled_bytes=sets * work_of(batch).bytes, one_input=one_input)
    device = load_device(gpu)
    return float(
        matrix_times(batch, device, conditions, PRIOR, product_tiling(batch, device, conditions, PRIOR)).dram_s[0]
    )


@pytest.mark.parametrize("gpu", ["l40s", "h100-sxm-80gb", "b200-sxm-180gb"])
def test_an_input_that_all_weights_meet_stays_in_cache(gpu: str) -> None:
    shape, inputs_bytes = (4096, 64, 1024, gpu), 2.0 * 4096 * 1024
    shared, own = (dram_s(*shape, 40.0, one_input=one) for one in (True, False))
    saved_bytes = (own - shared) * load_device(gpu).dram_bandwidth_bytes_per_s
    assert 0.5 * inputs_bytes < saved_bytes < 1.5 * inputs_bytes


@pytest.mark.parametrize("gpu", ["l40s", "rtx-pro-6000-server"])
def test_results_are_written_where_the_last_one_lay(gpu: str) -> None:
    written = (4096, 2048, 32, gpu)
    assert dram_s(*written, 20.0) < 0.5 * dram_s(*written, np.inf)
    assert dram_s(*written, 1.0) < dram_s(*written, 20.0)


@pytest.mark.parametrize(
    ("gpu", "menu"), [("h100-sxm-80gb", tile_shapes(32768)), ("a100-sxm-80gb", TILES), ("mi300x", tile_shapes(65536))]
)
def test_tiles_are_those_that_kernels_of_the_unit_come_for(gpu: str, menu: tuple[tuple[int, int], ...]) -> None:
    m, n = np.meshgrid([64, 320, 1280, 1792, 4096], [128, 1024, 4096])
    batch = KernelBatch.from_columns("gemm", m=m.ravel(), n=n.ravel(), k=np.full(m.size, 4096), dtype="bfloat16")
    tiling = product_tiling(batch, load_device(gpu), Conditions.of(m.size), PRIOR)
    assert {*zip(tiling.tile_m, tiling.tile_n, strict=True)} <= {*menu}
    assert (tiling.tile_m * tiling.down >= m.ravel()).all()
    assert (tiling.tile_n * tiling.across >= n.ravel()).all()


def test_finer_tiles_fill_rounds_that_powers_of_two_leave_half_empty() -> None:
    batch = KernelBatch.from_columns("gemm", m=[1280], n=[4096], k=[4096], dtype="bfloat16")
    device = load_device("h100-sxm-80gb")
    tiling = product_tiling(batch, device, Conditions.of(1), PRIOR)
    rounds = np.ceil(tiling.tile_count / device.sm_count)
    covered = rounds * device.sm_count * tiling.tile_m * tiling.tile_n * tiling.depth
    assert covered[0] < 1.1 * 1280 * 4096 * 4096
