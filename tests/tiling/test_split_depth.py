"""Split-K: where a product is cut along its inner extent, and what the cut leaves as it was."""

import numpy as np
import pytest
from kernel_grids import gemms

from neusight.devices import load_device
from neusight.executors.gpu.features import situate
from neusight.executors.gpu.tiling import tile
from neusight.executors.gpu.tiling.library import (
    LEAST_DEPTH,
    SPLITS,
    Products,
    best_cut,
    filling_parts,
    shipped_choice,
)
from neusight.kernels import KernelBatch
from neusight.laws.fitted import shipped_physics

PHYSICS = shipped_physics().physics


def parts_of(gpu: str = "v100-pcie-32gb", **columns: int | str) -> float:
    batch = KernelBatch.from_columns("gemm", **{"op": "linear", "m": 512, "n": 1024, "k": 16384} | columns)
    found = tile(batch, load_device(gpu), shipped_choice(), PHYSICS)
    return float(np.broadcast_to(found.parts, 1)[0])


def test_deep_products_of_few_tiles_are_cut(subtests: pytest.Subtests) -> None:
    for gpu in ["v100-pcie-32gb", "a100-pcie-40gb", "l4", "h100-sxm-80gb"]:
        with subtests.test(gpu=gpu):
            assert parts_of(gpu, m=64, n=256) > 1
            assert parts_of(gpu, m=64, n=256, k=300) == 1  # too shallow to leave each part enough
            assert parts_of(gpu, m=16384, n=8192) == 1  # tiles enough
            assert parts_of(gpu, m=64, n=256, op="bmm") == 1


def test_the_cut_is_that_of_least_time_by_hand() -> None:
    device = load_device("v100-pcie-32gb")
    one = np.ones(1)

    def cut(tiles: float, depth: float) -> float:
        products = Products(tiles * 128.0 * one, 128.0 * one, depth * one, one)
        parts, _ = best_cut(products, (128.0 * one, 128.0 * one), 4.0 * one, 14e12, device=device, physics=PHYSICS)
        return float(parts[0])

    assert cut(80, 65536) == 1  # every SM has a tile
    assert cut(40, 65536) == 2  # two parts fill all SMs
    assert cut(5, 65536) == 16
    assert cut(5, 2 * LEAST_DEPTH) == 2  # no part below the least depth


@pytest.mark.parametrize("gpu", ["b200-sxm-180gb", "rtx-5090", "b300-sxm-288gb", "rtx-3090"])
@pytest.mark.parametrize("along", ["m", "n"])
@pytest.mark.parametrize("base", [(512, 640, 4096), (128, 4096, 1024), (64, 1024, 8192)])
def test_larger_products_are_not_faster_where_tiles_follow_from_cost(
    gpu: str, along: str, base: tuple[int, ...]
) -> None:
    extents = np.arange(64, 4097, 64)
    columns = dict(zip("mnk", base, strict=True)) | {along: extents}
    batch = KernelBatch.from_columns("gemm", **{name: np.broadcast_to(v, extents.shape) for name, v in columns.items()})
    device = load_device(gpu)
    assert not shipped_choice().seen("linear", device)
    time_s = situate(batch, device, shipped_choice(), physics=PHYSICS).expected_s
    assert (np.maximum.accumulate(time_s) <= time_s / 0.97).all()


def test_parts_are_products_that_share_the_work() -> None:
    device, batch = load_device("a100-pcie-40gb"), gemms(np.random.default_rng(3), 400)
    found = tile(batch, device, shipped_choice(), PHYSICS)
    parts = np.asarray(found.parts)
    assert set(np.unique(parts)) <= set(map(float, SPLITS)) and (parts > 1).any()
    np.testing.assert_allclose(found.depth * parts, batch["k"])
    np.testing.assert_allclose(found.batch, batch["batch"] * parts)


def test_a_cut_never_makes_the_arithmetic_slower() -> None:
    device, batch = load_device("a100-pcie-40gb"), gemms(np.random.default_rng(3), 400)
    cut = situate(batch, device, shipped_choice(), physics=PHYSICS)
    t = cut.tiling
    parts = np.asarray(t.parts)
    whole = situate(
        batch,
        device,
        shipped_choice(),
        t.__class__(**vars(t) | {"batch": t.batch / parts, "depth": t.depth * parts, "parts": 1.0}),
        physics=PHYSICS,
    )
    chosen = parts > 1
    assert (cut.times.compute_s[chosen] < whole.times.compute_s[chosen]).all()
    # Partial results are written and read through L2.
    assert (cut.times.l2_s[chosen] > whole.times.l2_s[chosen]).all()


def test_parts_that_fill_a_device_leave_no_part_too_shallow() -> None:
    tiles, depth, room = np.array([4.0, 500.0, 1.0]), np.array([1e6, 1e6, 1000.0]), np.full(3, 320.0)
    # As many as there is room for; none where tiles fill it; no part below the least depth.
    assert filling_parts(tiles, depth, room).tolist() == [80.0, 1.0, np.floor(1000 / LEAST_DEPTH)]


def test_a_gradient_of_filters_is_cut_until_it_fills_the_device() -> None:
    device = load_device("v100-pcie-32gb")
    shape = {"batch": 128, "in_channels": 64, "out_channels": 64, "height": 56, "width": 56}
    for op in ("forward", "weight_grad"):
        batch = KernelBatch.from_columns("conv2d", op=op, kernel_height=1, kernel_width=1, **shape)
        found = tile(batch, device, shipped_choice(), PHYSICS)
        assert (np.asarray(found.parts) > 1) == (op == "weight_grad")
        np.testing.assert_allclose(found.depth * found.parts, 128 * 56 * 56 if op == "weight_grad" else 64)
        if op == "weight_grad":
            assert 0.5 < found.tile_count / (found.resident * device.sm_count) <= 1
