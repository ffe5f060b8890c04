"""Every baseline against its published formula, worked out by hand."""

from math import log

import numpy as np
import pytest
from baselines_toys import SHORT, corpus, measured, planted, pointwise, row_wise, seconds, spec

from neusight.kernels import KernelBatch
from neusight.lab.baselines.habitat import Habitat, Shaped, boundedness, scaling_factor
from neusight.lab.baselines.lines import LinearRegression, Roofline, line, operator_types
from neusight.lab.baselines.published import NeusightPaper, PaperTiles, TileTable

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


def test_a_line_recovers_slope_and_intercept() -> None:
    x = np.array([1.0, 2.0, 5.0, 9.0])
    assert line(x, 3e-12 * x + 4e-6) == pytest.approx((3e-12, 4e-6))
    assert line(np.array([2.0, 2.0]), np.array([5.0, 7.0])) == pytest.approx((3.0, 0.0))


def test_li_takes_the_line_of_a_gpu_that_was_measured() -> None:
    batch = pointwise(np.arange(1, 40) * 10**5)
    bytes_moved = 12.0 * batch["elements"]
    slow = spec(id="slow", dram_bandwidth_bytes_per_s=2e11)
    li = LinearRegression().fit([measured(batch, slow, 6e-12 * bytes_moved + 2e-5)])
    assert seconds(li, pointwise([3 * 10**6]), slow) == pytest.approx(6e-12 * 36e6 + 2e-5)


def test_li_carries_rates_over_bandwidth_and_drops_the_intercept() -> None:
    batch = KernelBatch.from_columns("gemm", op="linear", m=512, n=512, k=np.arange(1, 30) * 64)
    flops = 2.0 * 512 * 512 * batch["k"]
    devices = {
        bandwidth: spec(id=f"bw{bandwidth}", dram_bandwidth_bytes_per_s=bandwidth * 1e11) for bandwidth in (2, 4)
    }
    # 1 TFLOP/s for each 100 GB/s, less one.
    rows = [measured(batch, d, flops / ((bw - 1) * 1e12) + 1e-3) for bw, d in devices.items()]
    li = LinearRegression().fit(rows)
    unseen = spec(id="unseen", dram_bandwidth_bytes_per_s=6e11)
    assert seconds(li, batch, unseen) == pytest.approx(flops / 5e12)


def test_boundedness_falls_from_one_to_zero_through_a_half_at_the_ridge() -> None:
    device = spec(**ROUND)
    ridge = 10.0
    flops = np.array([0, ridge / 2, ridge, 4 * ridge]) * 1200
    kernels = KernelBatch.from_columns(
        "elementwise", op="add", elements=100, read_bytes=800, write_bytes=400, flops=flops.astype(int)
    )
    assert boundedness(kernels, device) == pytest.approx([1.0, 0.75, 0.5, 0.125])


def test_wave_scaling_by_hand() -> None:
    shared = {"max_threads_per_sm": 2048, "max_blocks_per_sm": 32, **ROUND}
    origin = spec(sm_count=80, base_clock_hz=1.2e9, **shared)
    wide = {**shared, "dram_bandwidth_bytes_per_s": 2e12}
    destination = spec(sm_count=40, base_clock_hz=1.5e9, **wide)
    # 1 FLOP for 12 bytes against a ridge of 5 FLOP a byte.
    gamma = 1 - 0.5 * (1 / 12) / 5
    large = (1e12 / 2e12) ** gamma * (80 * 1.2 / (40 * 1.5)) ** (1 - gamma)
    # 100 blocks of 512 elements: two on the busiest of 80 SMs, three on that of 40.
    small = (1.2 / 1.5 * 3 / 2) ** (1 - gamma)
    found = scaling_factor(pointwise([10**8, 100 * 512]), origin, destination)
    assert found == pytest.approx([large, small])
    assert scaling_factor(row_wise([4096]), origin, origin) == pytest.approx([1.0])


def test_habitat_scales_what_the_origin_measured() -> None:
    sizes = pointwise(2 ** np.arange(16, 28))
    origin, target = spec("v100-pcie-32gb"), spec("t4")
    rows = [measured(sizes, origin, 2e-11 * sizes["elements"]), measured(sizes, "p100-pcie-16gb", 1.0)]
    habitat = Habitat(recipe=SHORT).fit(rows)
    asked = pointwise([2**20, 2**22, 2**29])
    factor = scaling_factor(asked, origin, target)
    assert seconds(habitat, asked, target) == pytest.approx(2e-11 * asked["elements"] * factor)
    # The V100 itself is scaled from the P100, and an operator that was not measured is traffic alone.
    assert seconds(habitat, asked.take(np.array([0])), origin)[0] > 0.5
    unknown = pointwise([2**24], "where")
    assert seconds(habitat, unknown, target) == pytest.approx(seconds(Roofline(), unknown, target))


def test_habitat_networks_see_standardised_inputs_and_give_no_negative_time() -> None:
    asked = KernelBatch.from_columns("gemm", op="linear", m=np.array([64, 128]), n=64, k=64)
    for output, expected_s in ((-1.0, 0.0), (7.0, 7e-3)):
        network = Shaped(planted(output, inputs=8), np.zeros(8), np.ones(8))
        assert network.seconds(asked, spec()) == pytest.approx([expected_s, expected_s])
    habitat = Habitat(recipe=SHORT).fit(corpus())
    assert habitat.networks_.keys() == {"linear", "bmm", "conv2d"}
    assert habitat.networks_["linear"].scale[0] == 1.0  # batch is always one
    assert habitat.networks_["bmm"].mean[-1] == pytest.approx(np.mean([9.3e3, 8.1e3, 14e3]), rel=0.05)  # GFLOP/s


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
