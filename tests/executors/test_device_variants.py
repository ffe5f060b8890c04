"""A variant of a device is priced as that device: what changes the answer is the figure that was changed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_grids import MAKERS, grid

from neusight.devices import DeviceSpec, load_device, to_toml
from neusight.devices.load import read_file
from neusight.executors import Costs
from neusight.executors.gpu.predictor import KernelPredictor
from neusight.executors.gpu.tile_models.artifact import kernel_kinds

GPUS = (
    "p4",
    "t4",
    "v100-pcie-32gb",
    "a100-sxm-80gb",
    "l4",
    "l40s",
    "h100-sxm-80gb",
    "rtx-4090",
    "b200-sxm-180gb",
    "mi100",
)
FIGURES: dict[str, Callable[[DeviceSpec, float], str]] = {
    "boost_clock": lambda d, factor: f"{max(d.boost_clock_hz * factor, d.base_clock_hz) / 1e6!r} MHz",
    "dram_bandwidth": lambda d, factor: f"{d.dram_bandwidth_bytes_per_s * factor / 1e9!r} GB/s",
    "l2_capacity": lambda d, factor: f"{d.l2_capacity_bytes * factor / 2**20!r} MiB",
    "l2_bandwidth": lambda d, factor: f"{d.l2_bytes_per_s * factor / 1e9!r} GB/s",
    "sm_count": lambda d, factor: str(max(1, round(d.sm_count * factor))),
    "tdp": lambda d, factor: f"{d.tdp_w * factor!r} W",
}
FAMILIES = tuple(name for name in MAKERS if name != "collective")


@pytest.fixture(scope="module")
def predictor() -> KernelPredictor:
    return KernelPredictor.load()


def varied(gpu: str, figure: str, factor: float) -> DeviceSpec:
    return load_device(gpu, [f"{figure}={FIGURES[figure](load_device(gpu), factor)}"])


def width(costs: Costs) -> np.ndarray:
    return (costs.high_s - costs.overhead_s) / (costs.low_s - costs.overhead_s)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    gpu=st.sampled_from(GPUS),
    family=st.sampled_from(FAMILIES),
    dtype=st.sampled_from(["float32", "float16"]),
    figure=st.sampled_from(sorted(FIGURES)),
    factor=st.floats(0.5, 4.0),
    seed=st.integers(0, 10**6),
)
def test_more_of_a_figure_is_never_slower_and_less_never_faster(
    gpu: str, family: str, dtype: str, figure: str, factor: float, seed: int, predictor: KernelPredictor
) -> None:
    batch = grid(family, n=12, seed=seed, dtype=dtype)
    before, after = (predictor.predict(batch, d) for d in (load_device(gpu), varied(gpu, figure, factor)))
    better, worse = (after, before) if factor >= 1.0 else (before, after)
    assert (better.execution_s <= worse.execution_s * (1 + 1e-9)).all()
    assert (better.bound_s <= worse.bound_s * (1 + 1e-9)).all()
    assert (after.low_s <= after.latency_s).all() and (after.latency_s <= after.high_s).all()
    assert (after.execution_s >= after.bound_s * (1 - 1e-9)).all()


@pytest.mark.parametrize("figure", [*FIGURES])
def test_each_figure_moves_kernels_that_depend_on_it(figure: str, predictor: KernelPredictor) -> None:
    moved = {}
    for gpu in ("l4", "a100-sxm-80gb"):
        for family in FAMILIES:
            batch = grid(family, n=40)
            before, after = (
                predictor.predict(batch, d).execution_s for d in (load_device(gpu), varied(gpu, figure, 2.0))
            )
            moved[gpu, family] = float((after < 0.98 * before).mean())
    assert max(moved.values()) > 0.2, moved


@pytest.mark.parametrize("gpu", GPUS)
def test_more_memory_changes_no_time(gpu: str, predictor: KernelPredictor) -> None:
    for family in FAMILIES:
        batch = grid(family)
        before, after = (
            predictor.predict(batch, d) for d in (load_device(gpu), load_device(gpu, ["dram_capacity=999GB"]))
        )
        for column in ("latency_s", "low_s", "high_s", "spread", "overhead_s"):
            assert getattr(after, column) == pytest.approx(getattr(before, column), rel=1e-12), (family, column)


def test_a_variant_keeps_the_effect_of_its_board_under_a_wider_interval(predictor: KernelPredictor) -> None:
    batch, board = grid("elementwise"), load_device("l4")
    effects = [predictor.artifacts["stream"].effect(board, str(kind)) for kind in kernel_kinds(batch)]
    assert all(effects)
    costs = [predictor.predict(batch, d) for d in (board, *(varied("l4", "tdp", f) for f in (1.001, 1.5, 4.0)))]
    assert costs[1].execution_s == pytest.approx(costs[0].execution_s, rel=1e-3)
    widths = np.stack([width(c) for c in costs])
    assert (np.diff(widths, axis=0) > -1e-9).all() and (widths[3] > 1.05 * widths[0]).any()
    assert (np.diff(np.stack([c.spread for c in costs]), axis=0) >= 0.0).all()


def test_a_variant_read_from_its_file_is_priced_as_the_one_that_was_set(
    predictor: KernelPredictor, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("variants") / "faster.toml"
    variant = varied("l4", "dram_bandwidth", 2.0)
    path.write_text(to_toml(variant))
    read, batch = read_file(path), grid("elementwise")
    assert read.original == load_device("l4") and read.distance == pytest.approx(np.log(2.0))
    assert predictor.predict(batch, read).latency_s == pytest.approx(predictor.predict(batch, variant).latency_s)


def test_a_dtype_that_the_board_lacks_is_priced_as_on_a_stranger(predictor: KernelPredictor) -> None:
    variant = load_device("t4", ["matrix_flops.bfloat16=65TFLOP/s"])
    batch = grid("gemm", n=4, dtype="bfloat16")
    stranger = variant.model_copy(update={"original": None, "id": "stranger", "hypothetical": ()})
    assert predictor.predict(batch, variant).latency_s == pytest.approx(predictor.predict(batch, stranger).latency_s)


def test_a_clock_that_the_power_limit_does_not_allow_gains_nothing(predictor: KernelPredictor) -> None:
    # Large float32 products draw twice what a T4 may: they run at the same sustained clock whatever the highest one is.
    batch = grid("gemm", n=1, seed=1)
    batch = type(batch)("gemm", {**batch.columns, **{k: np.array([8192]) for k in "mnk"}, "op": np.array(["linear"])})
    one, two = (predictor.predict(batch, d).execution_s for d in (load_device("t4"), varied("t4", "boost_clock", 1.5)))
    assert one == pytest.approx(two, rel=0.01)
    assert (two <= one).all()
