"""Tilings cover the output exactly, and launch the blocks that the libraries launch."""

from itertools import product

import numpy as np
import pytest
from kernel_grids import MAKERS, grid

from neusight.devices import list_gpus, load_device
from neusight.errors import CoverageError
from neusight.executors.gpu.features import situate
from neusight.executors.gpu.features.situation import LawfulSituation
from neusight.executors.gpu.tiling import TileChoice, Tiling, tile
from neusight.executors.gpu.tiling.decompose import product_tiling
from neusight.executors.gpu.tiling.library import TILES, Products, shipped_choice
from neusight.kernels import KernelBatch
from neusight.kernels.work import conv_gemm
from neusight.laws.bounds import cold_s
from neusight.laws.fitted import shipped_physics

PHYSICS = shipped_physics().physics

GPUS = ("p4", "t4", "a100-pcie-40gb", "h100-sxm-80gb", "mi300x", "arc-pro-b60")


@pytest.fixture(scope="module")
def choice() -> TileChoice:
    return shipped_choice()


def extents(batch: KernelBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(batch, m, n) of the output that the blocks of a product or a row-wise kernel share out."""
    if batch.family == "gemm":
        return batch["batch"], batch["m"], batch["n"]
    if batch.family == "conv2d":
        return conv_gemm(batch)[:3]
    if batch.family == "attention":
        return batch["batch"] * batch["heads"], batch["q_len"], batch["head_dim"]
    if batch.family == "row_reduction":
        return np.ones(len(batch)), batch["rows"], batch["cols"]
    return np.ones(len(batch)), np.ones(len(batch)), batch["elements"]


# The groups of a grouped product differ in height: see tests/laws/test_grouped_gemm.py.
def test_tiles_cover_the_output_and_none_lies_outside(choice: TileChoice, subtests: pytest.Subtests) -> None:
    for family, gpu in product([family for family in MAKERS if family != "grouped_gemm"], GPUS):
        with subtests.test(family=family, gpu=gpu):
            batch = grid(family, n=200)
            tiles = tile(batch, load_device(gpu), choice, PHYSICS)
            b, m, n = extents(batch)
            assert np.array_equal(tiles.batch, b * tiles.parts)
            for extent, size, count in ((m, tiles.tile_m, tiles.down), (n, tiles.tile_n, tiles.across)):
                assert (count * size >= extent).all()
                assert ((count - 1) * size < extent).all()
            assert np.array_equal(tiles.tile_count, tiles.batch * tiles.down * tiles.across)
            assert np.array_equal(tiles.waves, tiles.tile_count / load_device(gpu).sm_count)
            assert (tiles.resident >= 1).all()
            assert (tiles.resident <= load_device(gpu).max_blocks_per_sm).all()


def test_products_take_tiles_that_the_library_has(choice: TileChoice, subtests: pytest.Subtests) -> None:
    for gpu in [gpu.id for gpu in list_gpus()]:
        with subtests.test(gpu=gpu):
            tiles = tile(grid("gemm"), load_device(gpu), choice, PHYSICS)
            assert set(zip(tiles.tile_m.tolist(), tiles.tile_n.tolist(), strict=True)) <= set(TILES)
            assert tiles.label.tolist() == [f"{m:.0f}x{n:.0f}" for m, n in zip(tiles.tile_m, tiles.tile_n, strict=True)]


def test_a_batch_is_tiled_like_its_kernels_one_by_one(choice: TileChoice) -> None:
    batch, device = grid("gemm", n=30), load_device("t4")
    together = tile(batch, device, choice, PHYSICS)
    for row in range(len(batch)):
        alone = tile(batch.take(np.array([row])), device, choice, PHYSICS)
        assert (alone.tile_m, alone.tile_n, alone.tile_count) == (
            together.tile_m[row],
            together.tile_n[row],
            together.tile_count[row],
        )


def products(tile_m: float, tile_n: float, gpu: str = "a100-pcie-40gb") -> Tiling:
    extents = Products(*(np.array([float(v)]) for v in (1000, 500, 64, 3)))
    return product_tiling(extents, np.array([float(tile_m)]), np.array([float(tile_n)]), load_device(gpu))


def test_product_tiling_by_hand() -> None:
    tiles = products(128, 64)
    assert (tiles.down, tiles.across) == (8, 8)  # ceil(1000 / 128), ceil(500 / 64)
    assert tiles.tile_count == 3 * 64
    assert tiles.waves == pytest.approx(192 / 108)
    assert tiles.label.tolist() == ["128x64"]


def test_registers_decide_how_many_blocks_stay() -> None:
    # 65,536 registers; 128x128 accumulators with operands take 31,130: two blocks, and one of 256x128.
    assert [float(products(m, n).resident[0]) for m, n in ((256, 128), (128, 128), (128, 64), (32, 32))] == [
        1,
        2,
        4,
        16,
    ]


def rows(op: str, count: int, cols: int) -> Tiling:
    batch = KernelBatch.from_columns(
        "row_reduction", op=op, rows=count, cols=cols, read_bytes=1, write_bytes=1, flops=1
    )
    return tile(batch, load_device("v100-pcie-32gb"), shipped_choice(), PHYSICS)


def test_row_kernels_launch_pytorch_s_blocks(subtests: pytest.Subtests) -> None:
    for op, count, cols, blocks in [
        # PyTorch's softmax_warp_forward: 128 threads, a warp for one row, or for two of up to 128 columns.
        ("softmax", 1536, 357, 384),
        ("softmax", 1536, 1024, 384),
        ("softmax", 1536, 128, 192),
        ("log_softmax", 1537, 129, 385),
        # cunn_SoftMaxForward and vectorized_layer_norm: a block a row.
        ("softmax", 1536, 1025, 1536),
        ("layer_norm", 1536, 357, 1536),
    ]:
        with subtests.test(op=op, count=count, cols=cols, blocks=blocks):
            assert rows(op, count, cols).tile_count == blocks


def test_blocks_of_long_softmax_rows_grow_to_1024_threads() -> None:
    # 2,048 threads an SM: 16 blocks of 128, 8 of 256, 2 of 1024.
    assert [float(rows("softmax", 9, cols).resident[0]) for cols in (1025, 2048, 100_000)] == [8, 4, 2]
    assert rows("layer_norm", 9, 100_000).resident == 16


def test_sums_share_a_long_row_out_over_the_device() -> None:
    # V100: 80 SMs of 2,048 threads hold 320 blocks of 512. A thread has 16 values at least, 256 at most.
    one_block = 512 * 256 - 512
    for op, count, cols, blocks in [
        ("sum", 1, one_block, 1),
        ("sum", 1, one_block + 1, 16),
        ("amax", 1, 10_000_000, 320),
        ("mean", 1, 100_000_000, 763),
        ("norm", 40, 1_000_000, 40 * 8),
        ("sum", 321, 1_000_000, 321),
        # These write what they normalise, or keep its order.
        ("softmax", 1, 10_000_000, 1),
        ("layer_norm", 1, 10_000_000, 1),
        ("cumsum", 1, 10_000_000, 1),
    ]:
        found = rows(op, count, cols)
        assert found.tile_count == blocks, (op, count, cols)
        assert found.tile_n * found.across >= cols > found.tile_n * (found.across - 1)
    assert rows("sum", 1, 10_000_000).resident == 4


def test_a_full_sum_keeps_every_gpu_busy(choice: TileChoice) -> None:
    batch = KernelBatch.from_columns(
        "row_reduction", op="sum", rows=1, cols=10**8, read_bytes=4 * 10**8, write_bytes=4, flops=10**8
    )
    for device in list_gpus():
        if device.kind == "gpu":
            found = situate(batch, device, choice, physics=PHYSICS)
            assert isinstance(found, LawfulSituation)
            # Memory, instructions or the bytes under way take the time, not a chain of accesses of a few blocks.
            threads = device.sm_count * device.max_threads_per_sm
            flight_s = 1e8 * PHYSICS.stream.latency_s / (threads * device.facts.elements_per_thread)
            t = found.times
            assert max(t.dram_s, t.compute_s, flight_s * (1 + 1e-6)) > t.serial_s, device.id
            assert found.expected_s < 2.5 * cold_s(batch, device), device.id


def test_a_convolution_in_16_bits_has_the_tiles_of_its_product() -> None:
    h100, shape = load_device("h100-sxm-80gb"), {"m": 8 * 56 * 56, "n": 512, "k": 256}
    for dtype in ("bfloat16", "float16", "tf32"):
        conv = KernelBatch.from_columns(
            "conv2d", batch=8, in_channels=256, out_channels=512, height=56, width=56, kernel_height=1,
            kernel_width=1, dtype=dtype, image_layout="nhwc",
        )  # fmt: skip
        product = KernelBatch.from_columns("gemm", dtype=dtype, **shape)
        found, expected = (situate(b, h100, shipped_choice(), physics=PHYSICS) for b in (conv, product))
        assert found.tiling.label == expected.tiling.label
        assert found.expected_s == pytest.approx(expected.expected_s)


def test_pointwise_blocks_hold_512_elements(subtests: pytest.Subtests) -> None:
    for family, (elements, blocks) in product(
        ["elementwise", "memory", "optimizer"], [(51300, 101), (512, 1), (513, 2), (1, 1), (0, 1)]
    ):
        with subtests.test(family=family, elements=elements, blocks=blocks):
            # 128 threads of PyTorch's vectorised kernel with four elements each.
            columns = {"op": "x", "elements": elements, "read_bytes": 4, "write_bytes": 4}
            columns |= {"flops": 1} if family != "memory" else {}
            columns |= {"tensors": 1} if family == "optimizer" else {}
            batch = KernelBatch.from_columns(family, **columns)
            assert tile(batch, load_device("l4"), shipped_choice(), PHYSICS).tile_count == blocks


def test_attention_blocks_hold_128_queries_or_64_of_wide_heads(subtests: pytest.Subtests) -> None:
    for head_dim, blocks in [(32, 8), (64, 8), (80, 16), (128, 16)]:
        with subtests.test(head_dim=head_dim, blocks=blocks):
            batch = KernelBatch.from_columns(
                "attention", batch=1, heads=1, kv_heads=1, q_len=1000, kv_len=1000, head_dim=head_dim
            )
            tiles = tile(batch, load_device("l4"), shipped_choice(), PHYSICS)
            assert (tiles.tile_count, tiles.across, tiles.depth) == (blocks, 1, 1000)


def test_a_family_without_decomposer_is_named(choice: TileChoice) -> None:
    with pytest.raises(CoverageError, match="no tiling for kernel family 'scan': one of gemm"):
        tile(KernelBatch("scan", {"elements": np.ones(1)}), load_device("l4"), choice, PHYSICS)
