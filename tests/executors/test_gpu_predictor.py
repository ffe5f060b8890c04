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
from kernel_grids import EVERY, elementwise, gemms, grid

from neusight.devices import DeviceSpec, device_ids, load_device
from neusight.devices.kinship import Silicon
from neusight.errors import CoverageError, DeviceError
from neusight.executors import Costs
from neusight.executors.gpu.expected import laws
from neusight.executors.gpu.features import feature_matrix
from neusight.executors.gpu.predictor import (
    CHUNK,
    TRANSFER_WIDENING,
    KernelPredictor,
    answering_model,
)
from neusight.executors.gpu.tiling import decompose
from neusight.executors.pricing import sharing_power
from neusight.kernels import KernelBatch, work
from neusight.kernels.conditions import Conditions
from neusight.kernels.named import kernel_named
from neusight.laws.power import PowerDemand

CATALOGUE = {gpu: device for gpu in device_ids() if (device := load_device(gpu)).kind == "gpu"}
COLUMNS = [f.name for f in fields(Costs) if f.name not in ("demand", "energy")]


@pytest.fixture(scope="module")
def predictor() -> KernelPredictor:
    return KernelPredictor.load()


def test_every_dtype_is_answered_by_a_law_or_refused(predictor: KernelPredictor) -> None:
    wrong, refused = [], 0
    gpus = ("p100-pcie-16gb", "t4", "a100-pcie-40gb", "h100-sxm-80gb", "mi300x")
    dtypes = ("float16", "bfloat16", "tf32", "int8", "float8")
    for gpu, dtype, family in product(gpus, dtypes, ("gemm", "attention", "grouped_gemm", "moe")):
        device, batch = CATALOGUE[gpu], grid(family, n=12, dtype=dtype)
        if dtype not in {*device.matrix_flops_per_s, *device.vector_flops_per_s}:
            refused += 1
            with pytest.raises(DeviceError, match=f"{gpu} does not compute in {dtype}"):
                predictor.predict(batch, device)
            continue
        found = predictor.predict(batch, device)
        units = dtype in device.matrix_flops_per_s
        model = {"gemm": "matrix" if units else "gemm", "attention": "attention"}.get(family, "moe")
        if faults(found, batch) or {source.split(" ")[0] for source in found.source} != {model}:
            wrong.append((gpu, dtype, faults(found, batch), set(found.source)))
    assert wrong == []
    assert 0 < refused < len(gpus) * len(dtypes) * 4


def with_bandwidth(device: DeviceSpec, factor: float) -> DeviceSpec:
    return device.model_copy(update={"dram_bandwidth_bytes_per_s": device.dram_bandwidth_bytes_per_s * factor})


@settings(max_examples=60, deadline=None, derandomize=True)
@given(gpu=st.sampled_from(sorted(CATALOGUE)), seed=st.integers(0, 10**6), factor=st.floats(1.0, 8.0))
def test_more_dram_bandwidth_never_makes_pointwise_kernels_slower(
    gpu: str, seed: int, factor: float, predictor: KernelPredictor
) -> None:
    batch = elementwise(np.random.default_rng(seed), 20)
    before = predictor.situate(batch, CATALOGUE[gpu]).expected_s
    after = predictor.situate(batch, with_bandwidth(CATALOGUE[gpu], factor)).expected_s
    assert (after <= before * (1 + 1e-9)).all()


def test_large_pointwise_kernels_do_gain_from_bandwidth(predictor: KernelPredictor) -> None:
    moved = {"read_bytes": 2**30, "write_bytes": 2**30}
    batch = KernelBatch.from_columns("elementwise", op="relu", elements=2**28, flops=2**28, **moved)
    once, twice = (predictor.predict(batch, with_bandwidth(CATALOGUE["a100-pcie-40gb"], f)) for f in (1.0, 2.0))
    assert twice.latency_s < 0.75 * once.latency_s
    assert once.limiter == "dram"


def test_a_batch_is_its_kernels_one_by_one(predictor: KernelPredictor) -> None:
    # Convolutions with and without Winograd take different models, and keep their order.
    assert set(answering_model(grid("conv2d"), CATALOGUE["mi100"])) == {"conv2d", "gemm", "stream"}
    for gpu, family in product(("v100-pcie-32gb", "mi100"), EVERY):
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
    assert first.clock is second.clock is None
    for f in fields(PowerDemand):
        if f.name != "clock":
            # What was learned is computed in float32.
            rtol = 1e-5 if f.name == "lone" else 1e-9
            np.testing.assert_allclose(getattr(first, f.name), getattr(second, f.name), rtol=rtol)


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
    assert answering_model(batch, CATALOGUE["l4"]).tolist() == ["conv2d", "gemm", "gemm", "stream"]
    narrow = KernelBatch("conv2d", {**batch.columns, "dtype": np.full(4, "float16")})
    # A filter for each channel has no inner extent for a matrix unit.
    assert answering_model(narrow, CATALOGUE["l4"]).tolist() == ["matrix", "matrix", "matrix", "stream"]
    # Pascal has no matrix units.
    assert answering_model(narrow, CATALOGUE["p4"]).tolist() == ["conv2d", "gemm", "gemm", "stream"]


def test_each_family_is_answered_by_its_law_in_every_dtype() -> None:
    laws = {"attention": "attention", "grouped_gemm": "moe", "moe": "moe"}
    laws |= dict.fromkeys(("elementwise", "row_reduction", "memory", "optimizer"), "stream")
    for (family, law), dtype, gpu in product(laws.items(), ("float32", "float16"), ("p4", "l4")):
        assert set(answering_model(grid(family, dtype=dtype), CATALOGUE[gpu])) == {law}


def test_what_a_model_did_not_learn_from_is_marked(predictor: KernelPredictor) -> None:
    batch = KernelBatch.from_columns(
        "elementwise", op="poetry", elements=2**24, read_bytes=2**26, write_bytes=2**26, flops=2**24
    )
    found = predictor.predict(batch, CATALOGUE["l4"])
    assert (found.source, found.outside) == ("stream (transferred)", "operator poetry")


def test_what_was_learned_says_nothing_of_other_operators(predictor: KernelPredictor) -> None:
    # A training device, on which all that was learned counts, and its bias.
    for name, known, other in (("stream", "relu", "poetry"), ("matrix", "linear", "einsum")):
        device = CATALOGUE[predictor.artifacts[name].manifest.training_gpus[0]]
        if name == "stream":
            size = {"elements": 2**26, "read_bytes": 2**28, "write_bytes": 2**28, "flops": 2**26}
            batches = [KernelBatch.from_columns("elementwise", op=op, **size) for op in (known, other)]
        else:
            batches = [linear(op=op, dtype="float16") for op in (known, other)]
        shares = [predictor.predict(batch, device).utilisation for batch in batches]
        prior = predictor.situate(batches[1], device).prior
        assert shares[1] == pytest.approx(1 / (1 + np.exp(-prior)))
        assert shares[0] != pytest.approx(shares[1], rel=1e-6)


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
    known, other = (predictor.predict(linear(op=op), CATALOGUE["rtx-3090"]) for op in ("linear", "einsum"))
    assert (known.source, other.source) == ("gemm", "gemm (transferred)")
    assert (known.outside, other.outside) == ("", "operator einsum")
    assert (known.in_domain, other.in_domain) == (True, False)
    assert other.latency_s - other.overhead_s == pytest.approx(known.latency_s - known.overhead_s)
    manifest = predictor.artifacts["gemm"].manifest
    assert sides(known) == pytest.approx(tuple(manifest.doubt("linear", "stranger")[:2]))
    low, high, spread = manifest.doubt("einsum", "stranger")
    assert sides(other) == pytest.approx((low**TRANSFER_WIDENING, high**TRANSFER_WIDENING))
    assert other.spread == pytest.approx(TRANSFER_WIDENING * spread)


def test_training_devices_use_their_level_and_narrower_intervals(predictor: KernelPredictor) -> None:
    v100 = CATALOGUE["v100-pcie-32gb"]
    twin = v100.model_copy(update={"id": "v100-twin"})
    artifact = predictor.artifacts["gemm"]
    effect = artifact.effect(v100, "linear")
    assert abs(effect) > 0.01
    # What was learned counts as much on the twin, a stranger by its silicon, so that the effect alone is between them.
    shares = artifact.manifest.shares | {"stranger": 1.0}
    trusted = replace(artifact, manifest=replace(artifact.manifest, shares=shares, silicon={}))
    predictor = replace(predictor, artifacts={**predictor.artifacts, "gemm": trusted})
    seen, unseen = (predictor.predict(linear(), device) for device in (v100, twin))
    logit = [float(np.log(u / (1 - u))[0]) for u in (seen.utilisation, unseen.utilisation)]
    assert logit[0] - logit[1] == pytest.approx(effect, abs=1e-6)
    manifest = predictor.artifacts["gemm"].manifest
    within, beyond = (manifest.doubt("linear", kinship) for kinship in ("own", "stranger"))
    assert within != beyond
    assert (sides(seen)[1], seen.spread) == pytest.approx((within[1], within[2]))
    assert (sides(unseen)[1], unseen.spread) == pytest.approx((beyond[1], beyond[2]))
    assert width(seen) < width(unseen)
    assert seen.bound_s == unseen.bound_s


def test_shapes_beyond_training_are_outside_the_domain(predictor: KernelPredictor) -> None:
    domain = predictor.artifacts["gemm"].manifest.domain
    deep = 2 ** int(domain["size_high"][0] - np.log2(2 * 4096 * 4096) + 3)
    inside, beyond = (predictor.predict(linear(k=k), CATALOGUE["l4"]) for k in (1024, deep))
    assert (inside.in_domain, beyond.in_domain) == (True, False)
    # The operator is known, so that its source is; the interval is not.
    assert inside.source == beyond.source == "gemm"
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


def test_kernels_of_a_step_on_a_small_board_share_its_power(predictor: KernelPredictor) -> None:
    l4, once = CATALOGUE["l4"], np.ones(1)
    copies = kernel_named("copy", {"elements": 2**28})
    alone = [predictor.predict(batch, l4) for batch in (linear(), copies)]
    linears, copy = sharing_power(alone, [once, once])
    assert linears.execution_s < alone[0].execution_s
    assert copy.execution_s >= alone[1].execution_s
    assert all((costs.execution_s >= costs.bound_s).all() for costs in (linears, copy))
    more = sharing_power(alone, [once, 10 * once])[0]
    assert more.execution_s < linears.execution_s
    # A kernel that runs by itself, however often, is at its own clock; a higher limit makes no step slower.
    lone = sharing_power(alone[:1], [5 * once])[0]
    assert lone.latency_s == pytest.approx(alone[0].latency_s, rel=1e-9)
    assert lone.drawn.total_j == pytest.approx(alone[0].drawn.total_j, rel=1e-9)
    generous = l4.model_copy(update={"tdp_w": 1.2 * l4.tdp_w})
    faster = sharing_power([predictor.predict(batch, generous) for batch in (linear(), copies)], [once, once])
    assert faster[0].execution_s < linears.execution_s
    assert faster[1].execution_s <= copy.execution_s


def test_what_a_board_adds_to_kernels_that_draw_all_power_alone_stays_with_them(predictor: KernelPredictor) -> None:
    l4, once = CATALOGUE["l4"], np.ones(1)
    gemm = predictor.artifacts["gemm"]
    manifest = replace(gemm.manifest, effects={"linear": {"l4": -0.5}}, limited=[])
    slow, hot = (
        replace(predictor, artifacts={**predictor.artifacts, "gemm": replace(gemm, manifest=known)})
        for known in (manifest, replace(manifest, limited=["l4/linear"]))
    )
    alone = [kernels.predict(linear(), l4) for kernels in (slow, hot)]
    assert alone[0].execution_s == alone[1].execution_s
    copies = predictor.predict(kernel_named("copy", {"elements": 2**32}), l4)
    often = [sharing_power([costs, copies], [once, once])[0] for costs in alone]
    assert often[1].execution_s < 0.9 * often[0].execution_s
    # By itself it takes what it took by itself, however often it runs.
    lone = sharing_power(alone[1:], [5 * once])[0]
    assert lone.latency_s == pytest.approx(alone[1].latency_s, rel=1e-9)


def test_a_missing_model_is_named(predictor: KernelPredictor) -> None:
    fewer = replace(predictor, artifacts={"gemm": predictor.artifacts["gemm"]})
    with pytest.raises(CoverageError, match="no tile model 'stream' for memory kernels among gemm: train it"):
        fewer.predict(grid("memory"), CATALOGUE["l4"])
    assert len(fewer.predict(grid("gemm"), CATALOGUE["l4"]).latency_s) == 40


def test_provenance_names_models_and_training_devices(predictor: KernelPredictor) -> None:
    provenance = predictor.provenance(CATALOGUE["l4"])
    assert provenance["tile_models"].keys() == predictor.artifacts.keys()
    for name, artifact in predictor.artifacts.items():
        assert artifact.manifest.weights_sha256.startswith(provenance["tile_models"][name].split(", ")[1])
    nvidia = {"a100-pcie-40gb", "a100-pcie-80gb", "l4", "p100-pcie-16gb", "p4", "t4", "v100-pcie-32gb"}
    assert {*nvidia, "mi100"} <= {*provenance["training_gpus"]} <= {*CATALOGUE}
    assert list(provenance["training_gpus"]) == sorted(provenance["training_gpus"])
    assert provenance["calibration"] == ""


def test_what_lies_outside_of_training_is_said(predictor: KernelPredictor) -> None:
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("l40s", {}, ""),
        ("l40s", {"dtype": "float64"}, "dtype float64"),
        ("l40s", {"op": "poetry"}, "operator poetry"),
        ("mi100", {}, ""),  # measured itself, the only one of its vendor
        ("mi300x", {}, "GPUs of amd"),
    ]
    for gpu, columns, outside in cases:
        assert predictor.predict(linear(**columns), CATALOGUE[gpu]).outside.tolist() == [outside]


def test_a_new_family_takes_a_law_and_blocks_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its work, its blocks and the name of its law are all that a family needs to be answered."""
    batch = KernelBatch.from_columns(
        "memory", op="scan", elements=2**20, read_bytes=2**22, write_bytes=2**22, dtype="float32"
    )
    new = KernelBatch("scan", batch.columns)
    monkeypatch.setitem(laws.BY_FAMILY, "scan", "stream")
    monkeypatch.setitem(decompose._DECOMPOSERS, "scan", decompose._DECOMPOSERS["memory"])
    monkeypatch.setitem(work._FAMILIES, "scan", work._FAMILIES["memory"])
    found, known = (KernelPredictor.load().predict(one, load_device("l4")) for one in (new, batch))
    assert found.source[0] == "stream (transferred)"
    assert found.latency_s[0] == pytest.approx(known.latency_s[0])


def timed(predictor: KernelPredictor, batch: KernelBatch, gpu: str, **conditions: Any) -> Costs:
    return predictor.predict(batch, CATALOGUE[gpu], Conditions.of(len(batch), **conditions))


@pytest.mark.parametrize("family", ["gemm", "attention", "moe", "elementwise", "row_reduction"])
def test_a_launch_counts_by_how_it_was_timed(predictor: KernelPredictor, family: str) -> None:
    batch = grid(family, dtype="float16")
    alone, one, many, profiled = (
        timed(predictor, batch, "a100-sxm-80gb", **conditions)
        for conditions in (
            {"timing": "stream"},
            {"timing": "graph", "launches": 1.0},
            {"timing": "graph", "launches": 6.0},
            {"timing": "profiler"},
        )
    )
    # A profiler sees no launch; operators of one graph share its launch.
    assert (profiled.overhead_s == 0).all()
    assert one.overhead_s == pytest.approx(6.0 * many.overhead_s)
    assert (one.overhead_s > 0).all()
    # A launch by itself costs what long kernels hide only in part.
    assert (alone.overhead_s > 0).all()
    short = alone.overhead_s > alone.latency_s / 2
    assert (alone.overhead_s[short] > one.overhead_s[short]).all()


@pytest.mark.parametrize("family", ["gemm", "attention", "grouped_gemm", "moe", "elementwise", "memory"])
def test_physics_expects_resident_operands_never_later_than_cold_ones(predictor: KernelPredictor, family: str) -> None:
    for gpu, dtype in product(("t4", "a100-sxm-80gb", "l40s", "h100-sxm-80gb"), ("float16", "float32")):
        batch = grid(family, dtype=dtype)
        cold, cool, hot = (
            predictor.situate(batch, CATALOGUE[gpu], Conditions.of(len(batch), cycled_bytes=size)).expected_s
            for size in (np.inf, CATALOGUE[gpu].l2_capacity_bytes, 1e5)
        )
        assert (hot <= cool * (1 + 1e-9)).all(), (gpu, dtype)
        assert (cool <= cold * (1 + 1e-9)).all(), (gpu, dtype)
        if (family, dtype) != ("gemm", "float32"):
            assert (hot < cold).any(), (gpu, dtype)


def test_devices_in_training_get_all_that_was_learned_and_their_kin_and_others_a_share(
    predictor: KernelPredictor,
) -> None:
    artifact = predictor.artifacts["gemm"]
    known, kin, other = (CATALOGUE[gpu] for gpu in ("v100-pcie-32gb", "v100-sxm2-16gb", "rtx-3090"))
    silicon = {known.id: list(vars(Silicon.of(known)).values())}
    measured = {known.id: ["linear, torch  stream", "bmm, torch  stream"]}
    shares = {"own": 1.0, "sibling": 0.5, "stranger": 0.25}
    learned_from = replace(artifact.manifest, shares=shares, silicon=silicon, measured=measured)
    shared = replace(artifact, manifest=learned_from)
    batch = grid("gemm")
    for device, share in ((known, 1.0), (kin, 0.5), (other, 0.25)):
        kinship = shared.kinship(device, batch, Conditions.of(len(batch)))
        assert (shared.learned_share(kinship) == share).all()
        own = shared.effect(known, "linear")
        assert shared.effect(device, "linear") == pytest.approx({1.0: own, 0.5: 0.5 * own, 0.25: 0.0}[share])
        s = predictor.situate(batch, device)
        inputs = feature_matrix(s, artifact.manifest.contract.features)
        learned = artifact.model.logits(inputs, s.prior) - s.prior
        assert np.abs(learned).max() > 0.01
        np.testing.assert_allclose(
            shared.logits(inputs, s.prior, shared.learned_share(kinship)) - s.prior, share * learned, atol=1e-9
        )


@pytest.mark.parametrize("gpu", ["t4", "l4", "a100-sxm-80gb", "h100-sxm-80gb", "mi300x"])
def test_a_lone_launch_costs_the_same_whatever_the_dtype(gpu: str, predictor: KernelPredictor) -> None:
    device = CATALOGUE[gpu]
    batches = [
        linear(m=64, n=64, k=64, dtype=d) for d in ("float32", "tf32", "float16", "bfloat16") if device.multiplies(d)
    ]
    costs = [predictor.predict(batch, device) for batch in batches]
    launches = [float(c.overhead_s[0]) for c in costs]
    start_s = predictor.physics.start.cycles / device.boost_clock_hz
    # Float32 kernels of the ordinary pipelines have their start in the launch, others in the execution.
    assert min(launches) >= device.launch_overhead_s
    assert max(launches) <= device.launch_overhead_s + start_s * (1 + 1e-9)
    latencies = [float(c.latency_s[0]) for c in costs]
    assert max(latencies) < 1.5 * min(latencies)
    recorded = predictor.predict(batches[0], device, Conditions.of(1, recorded=True))
    assert device.vendor != "nvidia" or recorded.overhead_s[0] > 30e-6
