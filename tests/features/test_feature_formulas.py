"""Features: finite and dimensionless for whatever their contract serves."""

from collections.abc import Iterator, Sequence
from itertools import product
from operator import attrgetter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_grids import EVERY, grid

from neusight.devices import DeviceSpec, list_gpus, load_device
from neusight.errors import CoverageError, DeviceError
from neusight.executors.gpu.expected.laws import answering_model
from neusight.executors.gpu.features import FORMULAS, feature_matrix, load_contract, situate
from neusight.executors.gpu.features.situation import LawfulSituation, Situation
from neusight.executors.gpu.tiling.library import shipped_choice
from neusight.kernels import KernelBatch
from neusight.laws.constants import values, with_values
from neusight.laws.fitted import shipped_physics
from neusight.laws.physics import Physics
from neusight.learn.training_data import MODELS

PHYSICS = shipped_physics().physics

GPUS = ("p4", "t4", "a100-pcie-40gb", "l4", "b200-sxm-180gb", "mi300x", "arc-pro-b60")


def situation(batch: KernelBatch, device: DeviceSpec | str) -> Situation:
    return situate(batch, load_device(device) if isinstance(device, str) else device, shipped_choice(), physics=PHYSICS)


def served(batch: KernelBatch, device: DeviceSpec) -> list[tuple[str, KernelBatch]]:
    """The tile models that answer each part of a batch."""
    names = answering_model(batch, device)
    return [(str(name), batch.take(np.flatnonzero(names == name))) for name in np.unique(names)]


def served_grids(gpus: Sequence[str], n: int) -> Iterator[tuple[DeviceSpec, str, KernelBatch]]:
    """Kernels of every family in float32, and in 16 bits on ordinary pipelines or matrix units."""
    for family, gpu, dtype in product(EVERY, gpus, ("float32", "float16")):
        device = load_device(gpu)
        for name, batch in served(grid(family, n=n, dtype=dtype), device):
            yield device, name, batch


def test_every_feature_is_finite_for_what_its_contract_serves() -> None:
    met = set()
    for device, name, batch in served_grids(GPUS, 60):
        names = load_contract(name).features
        found = feature_matrix(situation(batch, device), names)
        assert found.shape == (len(batch), len(names))
        odd = [n for n, column in zip(names, found.T, strict=True) if not np.isfinite(column).all()]
        assert odd == [], (device.id, name, batch.family)
        met.add(name)
    assert met == {*MODELS}


def test_the_smallest_kernels_have_finite_features_too() -> None:
    moved = {"read_bytes": 0, "write_bytes": 0}
    for model, batch in (
        ("gemm", KernelBatch.from_columns("gemm", m=1, n=1, k=1)),
        ("stream", KernelBatch.from_columns("elementwise", op="add", elements=0, flops=0, **moved)),
        ("stream", KernelBatch.from_columns("row_reduction", op="sum", rows=1, cols=1, flops=0, **moved)),
    ):
        assert np.isfinite(feature_matrix(situation(batch, "l4"), load_contract(model).features)).all()


def faster(device: DeviceSpec, factor: float) -> DeviceSpec:
    """The same device with every rate scaled: clock, bandwidths, FLOP/s. What fits where does not change."""
    caches = ("l2_bandwidth_bytes_per_s", "memory_cache_bandwidth_bytes_per_s")
    rates = ("base_clock_hz", "boost_clock_hz", "dram_bandwidth_bytes_per_s", *caches)
    changes = {name: value * factor for name in rates if (value := getattr(device, name)) is not None}
    for name in ("matrix_flops_per_s", "vector_flops_per_s"):
        changes[name] = {dtype: rate * factor for dtype, rate in getattr(device, name).items()}
    return device.model_copy(update=changes)


def test_features_are_dimensionless() -> None:
    # No rate shortens the latency of memory that tiles wait for.
    physics = timeless(PHYSICS)
    for device, name, batch in served_grids(("t4", "a100-pcie-40gb", "mi300x"), 40):
        if name not in ("gemm", "conv2d"):
            continue
        # Which algorithm a convolution takes depends on launches between its steps, which no rate shortens.
        features = [feature for feature in load_contract(name).features if not feature.startswith("plan_")]
        slow, fast = (situate(batch, one, shipped_choice(), physics=physics) for one in (device, faster(device, 3.0)))
        assert feature_matrix(fast, features) == pytest.approx(feature_matrix(slow, features), abs=1e-9)
        # Times themselves have a unit: a device three times as fast takes a third.
        assert 3.0 * fast.bound_s == pytest.approx(slow.bound_s, rel=1e-9, abs=2.1e-12)
        if name != "conv2d":
            assert 3.0 * fast.unlimited_s == pytest.approx(slow.unlimited_s, rel=1e-9, abs=2.1e-12)


def timeless(physics: Physics) -> Physics:
    """Without the times that no rate of a device shortens, its latencies and further launches."""
    seconds = {name: 1e-30 for name in values(physics) if name.endswith("_s") and name != "power.burst_s"}
    # What these divide by is a time, or a rate, of its own.
    return with_values(physics, seconds | {"attention.stream_bytes_per_s": 1e30})


def test_laws_have_no_unit_but_in_what_they_call_seconds() -> None:
    """Shares of the time and shapes are ratios: all rates three times as fast leave them as they are."""
    physics = timeless(PHYSICS)
    for device, name, batch in served_grids(("t4", "a100-pcie-40gb", "h100-sxm-80gb"), 30):
        if name in ("gemm", "conv2d"):
            continue
        features = [f for f in load_contract(name).features if f != "log2_throttle"]
        cool, hot = (one.model_copy(update={"tdp_w": 1e9}) for one in (device, faster(device, 3.0)))
        slow, fast = (situate(batch, one, shipped_choice(), physics=physics) for one in (cool, hot))
        assert 3.0 * fast.expected_s == pytest.approx(slow.expected_s, rel=1e-6, abs=1e-11)
        assert feature_matrix(fast, features) == pytest.approx(feature_matrix(slow, features), abs=1e-5)


def test_a_row_does_not_depend_on_its_company(subtests: pytest.Subtests) -> None:
    # Depthwise convolutions have a law of their own, so that a family may have several.
    for family, (name, batch) in ((f, part) for f in EVERY for part in served(grid(f), load_device("l4"))):
        with subtests.test(family=family, model=name):
            together = situation(batch, "l4")
            alone = [situation(batch.take(np.array([row])), "l4") for row in range(len(batch))]
            for what in ("bound_s", "times.compute_s", "times.dram_s", "times.l2_s", "throttle", "expected_s", "prior"):
                one_by_one = np.concatenate([attrgetter(what)(s) for s in alone])
                np.testing.assert_allclose(attrgetter(what)(together), one_by_one, rtol=1e-9, err_msg=what)


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
        **{"aligned_m": 1, "aligned_n": 1, "aligned_k": 1, "aligned_k_32": 1},
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


def test_winograd_fill_is_the_useful_share_of_4x4_tiles() -> None:
    shape = {"batch": 1, "in_channels": 4, "out_channels": 4, "kernel_height": 3, "kernel_width": 3, "padding": 1}
    batch = KernelBatch.from_columns("conv2d", height=[8, 5, 1], width=[8, 8, 1], **shape)
    assert feature_matrix(situation(batch, "l4"), ["winograd_fill"])[:, 0].tolist() == [1.0, 40 / 64, 1 / 16]


def test_unknown_formulas_are_refused() -> None:
    with pytest.raises(CoverageError, match="unknown feature 'log2_wave'; did you mean log2_waves"):
        feature_matrix(situation(grid("gemm", 2), "l4"), ["log2_wave"])


def test_every_formula_serves_a_contract() -> None:
    assert FORMULAS.keys() == {name for model in MODELS for name in load_contract(model).features}


@settings(max_examples=80, deadline=None)
@given(
    gpu=st.sampled_from([gpu.id for gpu in list_gpus()]),
    family=st.sampled_from(sorted(EVERY)),
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
    if not isinstance(s, LawfulSituation):
        assert (s.times.dram_bytes >= s.work.bytes * (1 - 1e-12)).all()
    assert (s.throttle >= 1).all()


def test_expected_time_goes_up_when_power_goes_down(subtests: pytest.Subtests) -> None:
    for family in EVERY:
        with subtests.test(family=family):
            l4 = load_device("l4")
            full, half = (situation(grid(family), l4.model_copy(update={"tdp_w": l4.tdp_w * f})) for f in (1.0, 0.5))
            assert (half.expected_s >= full.expected_s).all()
            assert (half.expected_s > full.expected_s).any()


def test_given_tiles_replace_the_chosen_ones() -> None:
    batch = grid("gemm", 5)
    chosen = situation(batch, "l4")
    other = situate(
        batch, load_device("l4"), shipped_choice(), situation(batch, "h100-sxm-80gb").tiling, physics=PHYSICS
    )
    assert other.tiling.sm_count == 132
    assert chosen.tiling.sm_count == load_device("l4").sm_count
