"""Every baseline against its published formula, worked out by hand."""

from math import log

import numpy as np
import pytest
from baselines_toys import SHORT, measured, planted, pointwise, row_wise, seconds, spec

from neusight.kernels import KernelBatch
from neusight.lab.baselines.published import NeusightPaper, PaperTiles, TileTable
from neusight.lab.baselines.roofline import Roofline, operator_types

ROUND = {"dram_bandwidth_bytes_per_s": 1e12, "vector_flops_per_s": {"float32": 1e13}, "matrix_flops_per_s": {}}


def gemm(m: int, n: int, k: int, op: str = "linear", batch: int = 1) -> KernelBatch:
    return KernelBatch.from_columns("gemm", op=op, batch=batch, m=m, n=n, k=k)


def test_the_roofline_is_the_longer_of_arithmetic_and_traffic() -> None:
    device, roofline = spec(**ROUND), Roofline()
    # 2·4096³ FLOP at 10 TFLOP/s; 1 + 1 FLOP an output against 12 bytes at 1 TB/s.
    assert seconds(roofline, gemm(4096, 4096, 4096), device) == pytest.approx(2 * 4096**3 / 1e13)
    assert seconds(roofline, pointwise([10**6]), device) == pytest.approx(12e6 / 1e12)


def test_operator_types_are_those_of_the_papers() -> None:
    assert operator_types(gemm(8, 8, 8, "bmm")).tolist() == ["bmm"]
    assert operator_types(row_wise([8], op="log_softmax_backward")).tolist() == ["softmax"]
    assert operator_types(row_wise([8], op="layer_norm_weight_backward")).tolist() == ["layer_norm"]
    assert operator_types(row_wise([8], op="sum")).tolist() == [""]
    assert operator_types(pointwise([8], "dropout")).tolist() == ["elementwise"]


def test_a_tile_against_one_sm_by_hand() -> None:
    device = spec(sm_count=80, l2_capacity_bytes=6 * 2**20, dram_capacity_bytes=32e9, **ROUND)
    cut = PaperTiles.of(gemm(1000, 500, 64, "bmm", batch=3), np.array([[128.0, 64.0]]), "bmm")
    assert cut.flops == pytest.approx(2 * 128 * 64 * 64)
    assert cut.bytes == pytest.approx(4 * (128 * 64 + 64 * 64 + 128 * 64))
    assert cut.blocks == pytest.approx(3 * 8 * 8)
    assert cut.intensity == pytest.approx(2 * 1024 * 512 * 64 / (4 * (1000 * 64 + 64 * 500 + 1000 * 500)))
    assert cut.waves(device) == pytest.approx(3.0)  # 192 blocks on 80 SMs
    peak = np.array([1e13])
    assert cut.wave_s(peak, device) == pytest.approx(cut.flops * 80 / min(1e13, cut.intensity[0] * 1e12))
    mib = cut.bytes[0] / 2**20
    ratios = [cut.flops[0] / 1e9 / (10 / 80), mib / (1000 / 80), 3 * mib / (32 * 1024 / 80), 3 * mib / (6 * 1024 / 80)]
    assert cut.inputs(peak, device) == pytest.approx(np.log2([ratios]))


def test_the_nearest_observed_row_gives_the_tile() -> None:
    rows = measured(KernelBatch.from_columns("gemm", op="linear", m=[100, 4000], n=[100, 4000], k=64), "t4")
    rows.observed_m[:], rows.observed_n[:] = [32.0, 128.0], [32.0, 256.0]
    table = TileTable.of([rows])
    asked = KernelBatch.from_columns("gemm", op="linear", m=[90, 5000], n=[120, 3000], k=64)
    assert table.tiles(asked, spec("l4")).tolist() == [[32.0, 32.0], [128.0, 256.0]]
    assert table.tiles(pointwise([64]), spec("l4")).tolist() == [[1.0, 512.0]]


def test_neusight_is_waves_over_gamma_less_alpha_a_wave() -> None:
    device, batch = spec(sm_count=80, **ROUND), gemm(1280, 1280, 512)
    paper = NeusightPaper()
    paper.tiles_ = TileTable.of([measured(batch, device)])
    alpha, gamma = 0.2, 0.8
    paper.networks_ = {"linear": planted(log(alpha / (1 - alpha)), log(gamma / (1 - gamma)))}
    # 10 x 20 tiles of 128 x 64 on 80 SMs: three waves of 80 tiles, compute-bound.
    wave_s = 2 * 128 * 64 * 512 * 80 / 1e13
    assert seconds(paper, batch, device) == pytest.approx([3 * wave_s / (gamma - alpha / 3)])


def test_neusight_learns_from_large_rows_of_memory_bound_operators() -> None:
    paper = NeusightPaper(recipes=dict.fromkeys(("elementwise", "linear"), SHORT))
    small, products = measured(pointwise(np.arange(1, 50) * 1000), "t4"), measured(gemm(512, 512, 64), "t4")
    assert paper.fit([small, products]).networks_.keys() == {"linear"}
