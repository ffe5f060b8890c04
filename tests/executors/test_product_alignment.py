"""Products whose rows do not begin at multiples of 16 bytes: copies, instructions, waiting."""

from dataclasses import replace

import numpy as np
import pytest

from neusight.devices import DeviceSpec, load_device
from neusight.executors.gpu.expected.matrix import MatrixUnit, matrix_times, product_tiling
from neusight.executors.gpu.expected.products import WIDEST_COPY_BYTES, product_of
from neusight.executors.gpu.predictor import KernelPredictor
from neusight.executors.gpu.tiling import Tiling
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.laws.fitted import shipped_physics

PHYSICS = shipped_physics().physics


def tiling_of(batch: KernelBatch, device: DeviceSpec) -> Tiling:
    return product_tiling(batch, device, Conditions.of(len(batch)), PHYSICS)


COPIES = {"float16": (0.0, 0.375, 0.375, 0.875), "tf32": (0.0, 0.75, 0.75, 0.75)}
"""Of an element at multiples of 16, 8, 4 and 2 (or 4) bytes, beyond those of 16: e/b - e/16 for b of 16, 4, 4 and e."""


@pytest.mark.parametrize("gpu", ["a100-sxm-80gb", "h100-sxm-80gb"])
@pytest.mark.parametrize(("dtype", "extents"), [("float16", (64, 68, 66, 67)), ("tf32", (64, 66, 67, 67))])
@pytest.mark.parametrize(("of", "layout"), [("n", "tn"), ("k", "tn"), ("k", "nn"), ("m", "nt"), ("n", "nt")])
def test_narrow_copies_of_rows_cost_cycles_each(
    gpu: str, dtype: str, extents: tuple[int, ...], of: str, layout: str
) -> None:
    columns = {"m": [512] * 4, "n": [512] * 4, "k": [512] * 4, "dtype": [dtype] * 4, "layout": [layout] * 4}
    columns |= {of: [448 + n for n in extents]}
    batch, device = KernelBatch.from_columns("gemm", **columns), load_device(gpu)
    free = replace(PHYSICS, matrix=replace(PHYSICS.matrix, copy_cycles=0.0))
    tiling = tiling_of(batch, device)
    dear, cheap = (matrix_times(batch, device, Conditions.of(4), p, tiling).compute_s for p in (PHYSICS, free))
    rounds = np.ceil(tiling.tile_count / device.sm_count)
    edges = rounds * (tiling.tile_m + tiling.tile_n) * (tiling.depth + PHYSICS.matrix.prologue_depth)
    cycles = PHYSICS.matrix.copy_cycles * np.array(COPIES[dtype]) * edges
    assert dear - cheap == pytest.approx(cycles / device.boost_clock_hz, abs=1e-12)


@pytest.mark.parametrize("k", [150, 146, 149, 154])
@pytest.mark.parametrize("gpu", ["a100-sxm-80gb", "h100-sxm-80gb", "l40s", "v100-pcie-32gb"])
def test_products_of_odd_depth_take_longer_than_padded_ones(gpu: str, k: int) -> None:
    device = load_device(gpu)
    columns = {"batch": [32] * 2, "m": [4096] * 2, "n": [1024] * 2, "k": [k, k + 8 - k % 8], "dtype": ["float16"] * 2}
    batch = KernelBatch.from_columns("gemm", op="bmm", layout="tn", **columns)
    tiling = tiling_of(batch, device)
    odd, padded = matrix_times(batch, device, Conditions.of(2), PHYSICS, tiling).compute_s
    assert odd > 1.2 * padded


@pytest.mark.parametrize(("m", "n"), [(1, 501), (501, 1)])
def test_vectors_lie_in_one_piece(m: int, n: int) -> None:
    batch = KernelBatch.from_columns("gemm", m=[m], n=[n], k=[1080], dtype=["float16"])
    assert product_of(batch, load_device("h100-sxm-80gb"), PHYSICS).copy_bytes == WIDEST_COPY_BYTES


def test_units_that_read_shared_memory_fetch_aligned_rows_alone() -> None:
    columns = {"m": [4096] * 2, "n": [4096] * 2, "k": [4096, 4098], "dtype": ["float16"] * 2}
    batch, device = KernelBatch.from_columns("gemm", **columns), load_device("h100-sxm-80gb")
    unit, product = MatrixUnit(device, PHYSICS), product_of(batch, device, PHYSICS)
    whole, synchronous = unit.sustained(product)
    assert synchronous / whole == pytest.approx(unit.synchronous_share(product)[1])
    assert synchronous < 0.65 * whole


@pytest.mark.parametrize(("of", "layout"), [("m", "tn"), ("m", "nn"), ("k", "nt")])
def test_an_extent_along_which_nothing_lies_may_be_odd(of: str, layout: str) -> None:
    columns = {"m": [512], "n": [512], "k": [512], "dtype": ["float16"], "layout": [layout]} | {of: [511]}
    batch, device = KernelBatch.from_columns("gemm", **columns), load_device("a100-sxm-80gb")
    free = replace(PHYSICS, matrix=replace(PHYSICS.matrix, copy_cycles=0.0))
    tiling = tiling_of(batch, device)
    dear, cheap = (matrix_times(batch, device, Conditions.of(1), p, tiling).compute_s for p in (PHYSICS, free))
    assert dear == cheap


@pytest.mark.parametrize(("k", "learned"), [(4096, True), (4100, False), (4098, False), (4099, False)])
def test_products_of_odd_rows_are_as_physics_has_them(k: int, learned: bool) -> None:
    batch, device = KernelBatch.from_columns("gemm", m=[4096], n=[4096], k=[k], dtype=["bfloat16"]), "h100-sxm-80gb"
    predictor = KernelPredictor.load()
    expected_s = predictor.situate(batch, load_device(device)).expected_s
    found_s = predictor.predict(batch, load_device(device)).execution_s
    assert (abs(found_s / expected_s - 1.0) > 0.01) == learned
