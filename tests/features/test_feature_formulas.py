"""Features: finite and dimensionless for whatever their contract serves."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_grids import MAKERS, grid

from neusight.devices import DeviceSpec, device_ids, load_device
from neusight.errors import CoverageError, DeviceError
from neusight.executors.gpu.features import FORMULAS, feature_matrix, load_contract, situate
from neusight.executors.gpu.features.formulas import formula
from neusight.executors.gpu.features.situation import Situation, reread_bytes
from neusight.executors.gpu.predictor import answering_model
from neusight.executors.gpu.tiling.library import shipped_choice
from neusight.kernels import KernelBatch
from neusight.learn.training_data import FAMILIES

GPUS = ("p4", "t4", "a100-pcie-40gb", "l4", "b200-sxm-180gb", "mi300x", "arc-pro-b60")


def situation(batch: KernelBatch, device: DeviceSpec | str) -> Situation:
    return situate(batch, load_device(device) if isinstance(device, str) else device, shipped_choice())


def served(batch: KernelBatch) -> list[tuple[str, KernelBatch]]:
    """The contracts that each part of a batch is predicted with: where its family was trained, and where it was not."""
    pairs = []
    for trained in (FAMILIES, ()):
        names = answering_model(batch, trained)
        pairs += [(str(name), batch.take(np.flatnonzero(names == name))) for name in np.unique(names)]
    return pairs


def test_every_feature_is_finite_for_what_its_contract_serves(subtests: pytest.Subtests) -> None:
    for family, gpu in product(MAKERS, GPUS):
        with subtests.test(family=family, gpu=gpu):
            for name, batch in served(grid(family, n=100)):
                names = load_contract(name).features
                found = feature_matrix(situation(batch, gpu), names)
                assert found.shape == (len(batch), len(names))
                assert np.isfinite(found).all(), [
                    n for n, c in zip(names, np.isfinite(found).all(axis=0), strict=True) if not c
                ]


def test_the_smallest_kernels_have_finite_features_too() -> None:
    moved = {"read_bytes": 0, "write_bytes": 0}
    for family, batch in (
        ("gemm", KernelBatch.from_columns("gemm", m=1, n=1, k=1)),
        ("elementwise", KernelBatch.from_columns("elementwise", op="add", elements=0, flops=0, **moved)),
        ("row_reduction", KernelBatch.from_columns("row_reduction", op="sum", rows=1, cols=1, flops=0, **moved)),
    ):
        assert np.isfinite(feature_matrix(situation(batch, "l4"), load_contract(family).features)).all()


def faster(device: DeviceSpec, factor: float) -> DeviceSpec:
    """The same device with every rate scaled: clock, bandwidths, FLOP/s. What fits where does not change."""
    rates = ("base_clock_hz", "boost_clock_hz", "dram_bandwidth_bytes_per_s", "l2_bandwidth_bytes_per_s")
    changes = {name: value * factor for name in rates if (value := getattr(device, name)) is not None}
    for name in ("matrix_flops_per_s", "vector_flops_per_s"):
        changes[name] = {dtype: rate * factor for dtype, rate in getattr(device, name).items()}
    return device.model_copy(update=changes)


def test_features_are_dimensionless(subtests: pytest.Subtests) -> None:
    for family, gpu in product(MAKERS, ["t4", "a100-pcie-40gb", "mi300x"]):
        with subtests.test(family=family, gpu=gpu):
            device = load_device(gpu)
            for name, batch in served(grid(family, n=60)):
                # Which algorithm a convolution takes depends on launches between its steps, which no rate shortens.
                features = [
                    feature for feature in load_contract(name).features if not feature.startswith(("runs_", "plan_"))
                ]
                slow, fast = situation(batch, device), situation(batch, faster(device, 3.0))
                assert feature_matrix(fast, features) == pytest.approx(feature_matrix(slow, features), abs=1e-9)
                # Times themselves have a unit: a device three times as fast takes a third.
                assert 3.0 * fast.bound_s == pytest.approx(slow.bound_s, rel=1e-9, abs=2.1e-12)
                if name != "conv2d":
                    assert 3.0 * fast.unlimited_s == pytest.approx(slow.unlimited_s, rel=1e-9, abs=2.1e-12)


def test_a_row_does_not_depend_on_its_company(subtests: pytest.Subtests) -> None:
    for family in MAKERS:
        with subtests.test(family=family):
            batch = grid(family)
            together = situation(batch, "l4")
            alone = [situation(batch.take(np.array([row])), "l4") for row in range(len(batch))]
            for name in ("bound_s", "compute_s", "dram_s", "l2_s", "throttle", "expected_s", "prior"):
                one_by_one = np.concatenate([getattr(s, name) for s in alone])
                np.testing.assert_allclose(getattr(together, name), one_by_one, rtol=1e-9, err_msg=name)


def test_features_by_hand() -> None:
    a100 = load_device("a100-pcie-40gb")
    s = situation(KernelBatch.from_columns("gemm", m=1000, n=500, k=96, op="linear"), a100)
    t = s.tiling
    blocks = np.ceil(1000 / t.tile_m) * np.ceil(500 / t.tile_n)
    expected = {
        "log2_waves": np.log2(blocks / 108),
        "wave_efficiency": blocks / 108 / np.ceil(blocks / 108),
        "padding_efficiency": 1000 * 500 / (blocks * t.tile_m * t.tile_n),
        "log2_depth": np.log2(96),
        "log2_tile_m": np.log2(t.tile_m),
        "log2_tile_n": np.log2(t.tile_n),
        **{"aligned_m": 1, "aligned_n": 1, "aligned_k": 1, "aligned_k_32": 1, "is_single_product": 1},
        "write_share": 500_000 / (500_000 + 1500 * 96),
        "log2_bytes_over_l2": np.log2(4 * (500_000 + 1500 * 96) / (40 * 2**20)),
    }
    found = feature_matrix(s, list(expected))[0]
    assert dict(zip(expected, found, strict=True)) == {
        k: pytest.approx(float(np.ravel(v)[0])) for k, v in expected.items()
    }


def test_alignment_sees_each_extent() -> None:
    batch = KernelBatch.from_columns("gemm", m=[6, 8, 8, 8], n=[8, 6, 8, 8], k=[32, 32, 6, 36])
    names = ["aligned_m", "aligned_n", "aligned_k", "aligned_k_32"]
    expected = [[0, 1, 1, 1], [1, 0, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]]
    assert feature_matrix(situation(batch, "l4"), names).tolist() == expected


def test_row_features_know_the_kernels_apart() -> None:
    ops, cols = ["softmax", "log_softmax", "softmax", "layer_norm"], [1024, 100, 1026, 512]
    batch = KernelBatch.from_columns("row_reduction", op=ops, rows=64, cols=cols, read_bytes=4, write_bytes=4, flops=1)
    names = ["is_softmax", "keeps_row_in_registers", "vector_loads"]
    expected = [[1, 1, 1], [1, 1, 1], [1, 0, 0], [0, 0, 1]]
    assert feature_matrix(situation(batch, "l4"), names).tolist() == expected


def test_rows_are_read_again_by_block_kernels_only(subtests: pytest.Subtests) -> None:
    for op, cols, passes in [
        ("softmax", 1024, 0),
        ("softmax", 1025, 2),
        ("layer_norm", 99, 1),
        ("softmax_backward", 2048, 1),
        ("sum", 9, 0),
    ]:
        with subtests.test(op=op, cols=cols, passes=passes):
            batch = KernelBatch.from_columns(
                "row_reduction", op=op, rows=8, cols=cols, read_bytes=32 * cols, write_bytes=32 * cols, flops=1
            )
            assert reread_bytes(situation(batch, "l4")) == passes * 32 * cols


def test_winograd_fill_is_the_useful_share_of_4x4_tiles() -> None:
    shape = {"batch": 1, "in_channels": 4, "out_channels": 4, "kernel_height": 3, "kernel_width": 3, "padding": 1}
    batch = KernelBatch.from_columns("conv2d", height=[8, 5, 1], width=[8, 8, 1], **shape)
    assert feature_matrix(situation(batch, "l4"), ["winograd_fill"])[:, 0].tolist() == [1.0, 40 / 64, 1 / 16]


def test_attention_by_hand() -> None:
    shape = {"batch": 1, "heads": 1, "kv_heads": 1, "q_len": 4, "kv_len": 4, "head_dim": 64}
    columns = {"op": ["forward", "backward", "forward"], "causal": [False, True, True], "window": [0, 0, 2]}
    batch = KernelBatch.from_columns("attention", **columns, **shape)
    # Of 16 pairs a causal mask leaves 1 + 2 + 3 + 4, and a window of two 1 + 2 + 2 + 2.
    expected = [[1, 0], [10 / 16, 1], [7 / 16, 0]]
    assert feature_matrix(situation(batch, "l4"), ["unmasked_share", "is_backward"]).tolist() == expected


def test_unknown_and_second_formulas_are_refused() -> None:
    batch = grid("gemm", 2)
    with pytest.raises(CoverageError, match="unknown feature 'log2_wave'; did you mean log2_waves"):
        feature_matrix(situation(batch, "l4"), ["log2_wave"])
    before = FORMULAS["log2_waves"]

    def log2_waves(s: Situation) -> np.ndarray:
        return np.zeros(1)

    with pytest.raises(CoverageError, match="feature 'log2_waves' is defined twice"):
        formula(log2_waves)
    assert FORMULAS["log2_waves"] is before


def test_every_formula_is_documented_and_serves_or_can_serve_a_contract() -> None:
    assert all(function.__doc__ for function in FORMULAS.values())
    assert {name for family in FAMILIES for name in load_contract(family).features} <= FORMULAS.keys()


@settings(max_examples=80, deadline=None)
@given(
    gpu=st.sampled_from(device_ids()),
    family=st.sampled_from(sorted(MAKERS)),
    dtype=st.sampled_from(["float32", "float16", "bfloat16", "tf32"]),
    seed=st.integers(0, 10**6),
)
def test_physics_always_expects_more_than_the_bound(gpu: str, family: str, dtype: str, seed: int) -> None:
    try:
        s = situation(grid(family, n=12, dtype=dtype, seed=seed), gpu)
    except DeviceError:
        assert dtype not in load_device(gpu).matrix_flops_per_s
        return
    assert (s.expected_s > s.bound_s).all()
    assert np.isfinite(s.prior).all()
    # The prior is the logit of bound over expected, for whoever applies the sigmoid.
    share = np.maximum(s.bound_s / s.expected_s, 1e-6)
    assert 1 / (1 + np.exp(-s.prior)) == pytest.approx(share, rel=1e-6)
    assert (s.dram_bytes >= s.work.bytes * (1 - 1e-12)).all()
    assert (s.throttle >= 1).all()


def test_expected_time_goes_up_when_power_goes_down(subtests: pytest.Subtests) -> None:
    for family in MAKERS:
        with subtests.test(family=family):
            l4 = load_device("l4")
            full, half = (situation(grid(family), l4.model_copy(update={"tdp_w": l4.tdp_w * f})) for f in (1.0, 0.5))
            assert (half.expected_s >= full.expected_s).all()
            assert (half.expected_s > full.expected_s).any()


def test_given_tiles_replace_the_chosen_ones() -> None:
    batch = grid("gemm", 5)
    chosen = situation(batch, "l4")
    other = situate(batch, load_device("l4"), shipped_choice(), situation(batch, "h100-sxm-80gb").tiling)
    assert other.tiling.sm_count == 132
    assert chosen.tiling.sm_count == load_device("l4").sm_count
