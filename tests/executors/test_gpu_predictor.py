"""The predictor with the models that ship: within physics for every family and device, whatever the batch."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from cost_faults import faults
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_grids import MAKERS, elementwise, gemms, grid

from neusight.devices import DeviceSpec, device_ids, load_device
from neusight.errors import CoverageError, DeviceError
from neusight.executors import Costs
from neusight.executors.gpu.predictor import CHUNK, KernelPredictor, answering_model
from neusight.kernels import KernelBatch, families, work
from neusight.laws.power import PowerDemand

CATALOGUE = {gpu: device for gpu in device_ids() if (device := load_device(gpu)).kind == "gpu"}
COLUMNS = [f.name for f in fields(Costs) if f.name not in ("demand", "energy")]


@pytest.fixture(scope="module")
def predictor() -> KernelPredictor:
    return KernelPredictor.load()


def test_other_dtypes_are_transferred_or_refused(predictor: KernelPredictor) -> None:
    wrong, refused = [], 0
    gpus = ("t4", "a100-pcie-40gb", "h100-sxm-80gb", "mi300x")
    dtypes = ("float16", "bfloat16", "tf32", "int8", "float8")
    for gpu, dtype in product(gpus, dtypes):
        device = CATALOGUE[gpu]
        if dtype not in {*device.matrix_flops_per_s, *device.vector_flops_per_s}:
            refused += 1
            with pytest.raises(DeviceError, match=f"{gpu} does not compute in {dtype}"):
                predictor.predict(grid("gemm", dtype=dtype), device)
            continue
        batch = grid("gemm", dtype=dtype)
        found = predictor.predict(batch, device)
        if faults(found, batch) or set(found.source) != {"gemm (transferred)"} or found.in_domain.any():
            wrong.append((gpu, dtype, faults(found, batch), set(found.source)))
    assert wrong == []
    assert 0 < refused < len(gpus) * len(dtypes)


def with_bandwidth(device: DeviceSpec, factor: float) -> DeviceSpec:
    return device.model_copy(update={"dram_bandwidth_bytes_per_s": device.dram_bandwidth_bytes_per_s * factor})


@settings(max_examples=60, deadline=None, derandomize=True)
@given(gpu=st.sampled_from(sorted(CATALOGUE)), seed=st.integers(0, 10**6), factor=st.floats(1.0, 8.0))
def test_more_dram_bandwidth_never_makes_pointwise_kernels_slower(
    gpu: str, seed: int, factor: float, predictor: KernelPredictor
) -> None:
    batch = elementwise(np.random.default_rng(seed), 20)
    before = predictor.predict(batch, CATALOGUE[gpu])
    after = predictor.predict(batch, with_bandwidth(CATALOGUE[gpu], factor))
    assert (after.latency_s <= before.latency_s * (1 + 1e-9)).all()


def test_large_pointwise_kernels_do_gain_from_bandwidth(predictor: KernelPredictor) -> None:
    moved = {"read_bytes": 2**30, "write_bytes": 2**30}
    batch = KernelBatch.from_columns("elementwise", op="relu", elements=2**28, flops=2**28, **moved)
    once, twice = (predictor.predict(batch, with_bandwidth(CATALOGUE["t4"], f)) for f in (1.0, 2.0))
    assert twice.latency_s < 0.75 * once.latency_s
    assert once.limiter == "dram"


def test_a_batch_is_its_kernels_one_by_one(predictor: KernelPredictor) -> None:
    # Convolutions with and without Winograd take different models, and keep their order.
    assert set(answering_model(grid("conv2d"))) == {"conv2d", "gemm"}
    for gpu, family in product(("v100-pcie-32gb", "mi100"), MAKERS):
        batch, device = grid(family), CATALOGUE[gpu]
        together = predictor.predict(batch, device)
        alone = [predictor.predict(batch.take(np.array([row])), device) for row in range(len(batch))]
        for name in COLUMNS:
            one_by_one = np.concatenate([getattr(a, name) for a in alone])
            if one_by_one.dtype.kind == "f":
                np.testing.assert_allclose(getattr(together, name), one_by_one, rtol=1e-5)
            else:
                assert getattr(together, name).tolist() == one_by_one.tolist()
        assert_same_demand(together.demand, PowerDemand.joined([a.demand for a in alone if a.demand is not None]))


def assert_same_demand(first: PowerDemand | None, second: PowerDemand) -> None:
    assert first is not None
    for f in fields(PowerDemand):
        np.testing.assert_allclose(getattr(first, f.name), getattr(second, f.name), rtol=1e-9)


def test_long_batches_are_cut_and_joined_in_order(predictor: KernelPredictor) -> None:
    rng = np.random.default_rng(3)
    short = gemms(rng, 50)
    rows = rng.integers(0, 50, CHUNK + 7)
    long, expected = predictor.predict(short.take(rows), CATALOGUE["l4"]), predictor.predict(short, CATALOGUE["l4"])
    np.testing.assert_allclose(long.latency_s, expected.latency_s[rows], rtol=1e-5)
    assert long.tile.tolist() == expected.tile[rows].tolist()
    assert expected.demand is not None
    assert_same_demand(long.demand, expected.demand.take(rows))


def test_convolutions_take_the_model_of_their_algorithm() -> None:
    shape = {"batch": 1, "in_channels": 8, "out_channels": 8, "height": 9, "width": 9, "padding": 1}
    columns = {"kernel_height": [3, 1, 3, 3], "kernel_width": [3, 1, 3, 3], "stride": [1, 1, 2, 1]}
    batch = KernelBatch.from_columns("conv2d", groups=[1, 1, 1, 8], **columns, **shape)
    for trained in ((), ("conv2d", "gemm")):
        assert answering_model(batch, trained).tolist() == ["conv2d", "gemm", "gemm", "gemm"]


def test_families_without_a_model_of_their_own_are_marked(predictor: KernelPredictor) -> None:
    homes = {"attention": "gemm", "grouped_gemm": "gemm", "memory": "elementwise", "optimizer": "elementwise"}
    for family, model in homes.items():
        found = predictor.predict(grid(family), CATALOGUE["l4"])
        assert set(found.source) == {f"{model} (transferred)"}
        assert set(found.outside) == {f"{family} kernels"}
        assert set(answering_model(grid(family), (model, family))) == {family}


def linear(**columns: Any) -> KernelBatch:
    return KernelBatch.from_columns("gemm", **{"m": 4096, "n": 4096, "k": 1024} | columns)


def sides(found: Costs) -> tuple[float, float]:
    """Ends of the interval on execution, as factors; the lower is no less than the bound's."""
    execution_s = found.latency_s - found.overhead_s
    ends = [(end - found.overhead_s) / execution_s for end in (found.low_s, found.high_s)]
    return float(ends[0][0]), float(ends[1][0])


def width(found: Costs) -> float:
    """Of the interval on execution, as a factor."""
    return float(((found.high_s - found.overhead_s) / (found.low_s - found.overhead_s))[0])


def test_transferred_kernels_have_wider_intervals(predictor: KernelPredictor) -> None:
    # An operator that was never measured, on a device and shape that are otherwise the same.
    known, other = (predictor.predict(linear(op=op), CATALOGUE["l40s"]) for op in ("linear", "einsum"))
    assert (known.source, other.source) == ("gemm", "gemm (transferred)")
    assert (known.outside, other.outside) == ("", "operator einsum")
    assert (known.in_domain, other.in_domain) == (True, False)
    assert other.latency_s - other.overhead_s == pytest.approx(known.latency_s - known.overhead_s)
    manifest = predictor.artifacts["gemm"].manifest
    assert sides(known) == pytest.approx(tuple(manifest.intervals["linear"]))
    low, high = manifest.interval
    assert sides(other) == pytest.approx((low**1.5, high**1.5))
    assert other.spread == pytest.approx(1.5 * max(manifest.spread.values()))


def test_training_devices_use_their_level_and_narrower_intervals(predictor: KernelPredictor) -> None:
    v100 = CATALOGUE["v100-pcie-32gb"]
    twin = v100.model_copy(update={"id": "v100-twin"})
    level = predictor.artifacts["gemm"].level(v100.id, "linear")
    assert level is not None
    assert abs(level) > 0.01
    seen, unseen = (predictor.predict(linear(), device) for device in (v100, twin))
    logit = [float(np.log(u / (1 - u))[0]) for u in (seen.utilisation, unseen.utilisation)]
    assert logit[0] - logit[1] == pytest.approx(level, abs=1e-6)
    manifest = predictor.artifacts["gemm"].manifest
    assert manifest.interval_seen != manifest.interval
    assert sides(seen)[1] == pytest.approx(manifest.interval_seen[1])
    assert sides(unseen)[1] == pytest.approx(manifest.intervals["linear"][1])
    assert (unseen.spread, seen.spread) == (manifest.spread["linear"], manifest.spread["linear"] / 2)
    assert width(seen) < width(unseen)
    assert seen.bound_s == unseen.bound_s


def test_shapes_beyond_training_are_outside_the_domain(predictor: KernelPredictor) -> None:
    artifact = predictor.artifacts["row_reduction"]
    cols = {"inside": 2**10, "beyond": 2**17}
    reach = artifact.manifest.domain["high"][artifact.manifest.contract.features.index("log2_cols")]
    assert np.log2(cols["inside"]) < reach < np.log2(cols["beyond"])
    inside, beyond = (
        predictor.predict(
            KernelBatch.from_columns(
                "row_reduction", op="softmax", rows=512, cols=c, read_bytes=2048 * c, write_bytes=2048 * c, flops=c
            ),
            CATALOGUE["l4"],
        )
        for c in cols.values()
    )
    assert (inside.in_domain, beyond.in_domain) == (True, False)
    # The operator is known, so that its source is; the interval is not.
    assert inside.source == beyond.source == "row_reduction"
    assert width(beyond) > width(inside)


def test_tiny_kernels_are_limited_by_their_launch(predictor: KernelPredictor) -> None:
    found = predictor.predict(linear(m=8, n=8, k=8), CATALOGUE["h100-sxm-80gb"])
    assert found.limiter == "launch"
    assert found.overhead_s > 0.5 * found.latency_s


def test_power_limits_large_products_on_small_boards(predictor: KernelPredictor) -> None:
    l4 = CATALOGUE["l4"]
    generous = l4.model_copy(update={"tdp_w": 10 * l4.tdp_w})
    assert predictor.predict(linear(), l4).limiter == "power"
    assert predictor.predict(linear(), generous).limiter == "compute"


def test_a_missing_model_is_named(predictor: KernelPredictor) -> None:
    fewer = replace(predictor, artifacts={"gemm": predictor.artifacts["gemm"]})
    with pytest.raises(CoverageError, match="no tile model 'elementwise' for memory kernels among gemm: train it"):
        fewer.predict(grid("memory"), CATALOGUE["l4"])
    assert len(fewer.predict(grid("attention"), CATALOGUE["l4"]).latency_s) == 40


def test_provenance_names_models_and_training_devices(predictor: KernelPredictor) -> None:
    provenance = predictor.provenance(CATALOGUE["l4"])
    assert provenance["tile_models"].keys() == predictor.artifacts.keys()
    for name, artifact in predictor.artifacts.items():
        assert artifact.manifest.weights_sha256.startswith(provenance["tile_models"][name].split(", ")[1])
    nvidia = ["a100-pcie-40gb", "a100-pcie-80gb", "l4", "p100-pcie-16gb", "p4", "t4", "v100-pcie-32gb"]
    assert provenance["training_gpus"] == tuple(sorted([*nvidia, "mi100"]))
    assert provenance["calibration"] == ""


def test_what_lies_outside_of_training_is_said(predictor: KernelPredictor) -> None:
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("l40s", {}, ""),
        ("l40s", {"dtype": "bfloat16"}, "dtype bfloat16"),
        ("l40s", {"k": 2**23}, "log2_flops above all in training"),
        ("mi100", {}, ""),  # measured itself, the only one of its vendor
        ("mi300x", {}, "GPUs of amd"),
    ]
    for gpu, columns, outside in cases:
        assert predictor.predict(linear(**columns), CATALOGUE[gpu]).outside.tolist() == [outside]


def test_a_new_family_is_answered_by_its_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ``kernels`` alone has to say of a family is enough for tiles, bound and an answer marked as transferred."""
    batch = KernelBatch.from_columns(
        "memory", op="scan", elements=2**20, read_bytes=2**22, write_bytes=2**22, dtype="float32"
    )
    new = KernelBatch("scan", batch.columns)
    monkeypatch.setitem(families.HOMES, "scan", "elementwise")
    monkeypatch.setitem(work._FAMILIES, "scan", work._FAMILIES["memory"])
    found, known = (KernelPredictor.load().predict(one, load_device("l4")) for one in (new, batch))
    assert found.source[0] == "elementwise (transferred)"
    assert found.latency_s[0] == pytest.approx(known.latency_s[0])
