"""Grouped products: work and tiles against a count group by group."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_grids import grouped_gemms

from neusight.devices import load_device
from neusight.executors.gpu.features import situate
from neusight.executors.gpu.tiling import Tiling, tile
from neusight.executors.gpu.tiling.library import TILES, shipped_choice
from neusight.kernels import KernelBatch, work_of
from neusight.kernels.work import filled_groups
from neusight.laws.bounds import bound_of
from neusight.laws.fitted import shipped_physics

PHYSICS = shipped_physics().physics

H100 = load_device("h100-sxm-80gb")


def grouped(**columns: object) -> KernelBatch:
    return KernelBatch.from_columns("grouped_gemm", **{"n": 7, "k": 11, "dtype": "bfloat16"} | columns)


def tiled(batch: KernelBatch) -> Tiling:
    return tile(batch, H100, shipped_choice(), PHYSICS)


def spread(tokens: int, groups: int, largest: int) -> list[int]:
    """Rows of each group: the fullest, then the others one token after another."""
    fullest = largest or -(-tokens // groups)
    heights = [fullest] + [0] * (groups - 1)
    for token in range(tokens - fullest):
        heights[1 + token % (groups - 1)] += 1
    return heights


SPREADS = [
    *[(tokens, groups, 0) for tokens in (1, 7, 8, 9, 300, 4096) for groups in (1, 3, 8)],
    *[(300, 8, 300), (300, 8, 299), (300, 8, 297), (300, 8, 150), (300, 8, 38), (4096, 3, 2000), (9, 8, 2)],
]


def test_work_is_that_of_the_groups(subtests: pytest.Subtests) -> None:
    for tokens, groups, largest in SPREADS:
        with subtests.test(tokens=tokens, groups=groups, largest=largest):
            heights = [m for m in spread(tokens, groups, largest) if m]
            assert sum(heights) == tokens
            work = work_of(grouped(tokens=tokens, groups=groups, largest=largest))
            assert work.flops == work.least_flops == sum(2 * m * 7 * 11 for m in heights)
            # Each group that has rows reads its own B, two bytes an element.
            assert work.read_bytes == sum(2 * (m * 11 + 11 * 7) for m in heights)
            assert work.write_bytes == sum(2 * m * 7 for m in heights)


def test_tokens_spread_evenly_fill_as_many_groups_as_there_are(subtests: pytest.Subtests) -> None:
    for tokens, groups in [(5, 8), (8, 8), (9, 8), (4096, 64)]:
        with subtests.test(tokens=tokens, groups=groups):
            batch = grouped(tokens=tokens, groups=groups)
            assert [float(v[0]) for v in filled_groups(batch)] == [min(tokens, groups), -(-tokens // groups)]
            assert work_of(batch).bytes == 2 * (tokens * 11 + min(tokens, groups) * 11 * 7 + tokens * 7)


def test_zero_stands_for_the_even_spread_and_less_is_not_possible(subtests: pytest.Subtests) -> None:
    for largest in [1, 12, 13]:
        with subtests.test(largest=largest):
            even, named = (grouped(tokens=100, groups=8, largest=value) for value in (0, largest))
            assert work_of(named) == work_of(even)
            assert tiled(named).tile_count == tiled(even).tile_count


def test_every_group_has_whole_tiles_of_its_own(subtests: pytest.Subtests) -> None:
    for tokens, groups, largest in SPREADS:
        with subtests.test(tokens=tokens, groups=groups, largest=largest):
            tiles = tiled(grouped(tokens=tokens, groups=groups, largest=largest, n=1000))
            down = sum(-(-m // int(tiles.tile_m[0])) for m in spread(tokens, groups, largest))
            assert tiles.tile_count == down * np.ceil(1000 / tiles.tile_n)
            assert tiles.depth == 11


def test_one_group_is_one_product() -> None:
    batch = grouped(tokens=4096, groups=1, n=4096, k=1024)
    single = KernelBatch.from_columns("gemm", m=4096, n=4096, k=1024, dtype="bfloat16")
    ours, theirs = (situate(b, H100, shipped_choice(), physics=PHYSICS) for b in (batch, single))
    # Kernels for groups reach a share of the rate of their own, so that one group takes up to as much longer.
    assert theirs.expected_s <= ours.expected_s <= theirs.expected_s / PHYSICS.moe.cutlass_rate
    assert ours.bound_s == theirs.bound_s


def test_groups_of_equal_height_are_a_batch_of_products() -> None:
    batch = grouped(tokens=8 * 512, groups=8, n=4096, k=1024)
    products = KernelBatch.from_columns("gemm", op="bmm", batch=8, m=512, n=4096, k=1024, dtype="bfloat16")
    ours, theirs = (situate(b, H100, shipped_choice(), physics=PHYSICS) for b in (batch, products))
    assert ours.expected_s == pytest.approx(theirs.expected_s, rel=0.1)
    assert ours.bound_s == theirs.bound_s


def test_the_rate_is_that_of_matrix_units() -> None:
    batch = grouped(tokens=65536, groups=4, n=8192, k=8192)
    bound = bound_of(batch, work_of(batch), H100)
    assert bound.compute_s == 2 * 65536 * 8192 * 8192 / H100.gemm_flops_per_s("bfloat16")
    assert bound.limiter == "compute"


def test_tiles_are_the_library_s_and_cover_all_rows(subtests: pytest.Subtests) -> None:
    for dtype in ["float32", "bfloat16", "float8"]:
        with subtests.test(dtype=dtype):
            batch = grouped_gemms(np.random.default_rng(0), 120, dtype)
            tiles = tiled(batch)
            assert set(zip(tiles.tile_m.tolist(), tiles.tile_n.tolist(), strict=True)) <= set(TILES)
            assert (tiles.tile_count == np.floor(tiles.tile_count)).all()
            outputs = batch["tokens"].astype(float) * batch["n"]
            assert (tiles.tile_count * tiles.tile_m * tiles.tile_n >= outputs).all()
            assert (tiles.tile_count >= filled_groups(batch)[0]).all()
            # The most that whole tiles can waste: one row of tiles less a row, in each group.
            most = (batch["tokens"] / tiles.tile_m + filled_groups(batch)[0]) * tiles.across
            assert (tiles.tile_count <= most).all()
