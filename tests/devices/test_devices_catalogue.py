"""The catalogue: complete, sourced, and consistent with the physics its figures describe."""

from __future__ import annotations

import re

import pytest

from neusight.devices import DeviceSpec, device_ids, list_devices, load_device, to_toml
from neusight.devices.schema import DTYPES, FIGURES, RATES

REQUIRED = """
p4 p100-pcie-16gb p100-sxm2-16gb v100-pcie-16gb v100-pcie-32gb v100-sxm2-16gb v100-sxm2-32gb v100-sxm3-32gb t4
gtx-1080-ti rtx-2080-ti quadro-rtx-8000 a100-pcie-40gb a100-pcie-80gb a100-sxm-40gb a100-sxm-80gb a10 a30 a40
rtx-a6000 rtx-3090 rtx-4090 rtx-6000-ada l4 l20 l40 l40s h100-pcie-80gb h100-sxm-80gb h100-nvl-94gb h20
h800-sxm-80gb h200-sxm-141gb h200-nvl-141gb gh200-96gb b200-sxm-180gb b300-sxm-288gb gb200-186gb gb300-288gb
rtx-5090 rtx-pro-6000-server mi100 mi210 mi250 mi300x mi325x mi355x arc-pro-b60 tensordash tensordash-dense
"""

DEVICES = list_devices()
GPUS = [spec for spec in DEVICES if spec.vendor != "other"]
NVIDIA = [spec for spec in DEVICES if spec.vendor == "nvidia"]

# float32 lanes a multiprocessor: 64 on the large chips up to GA100 and on Turing, 128 on all others.
LANES = {"6.0": 64, "7.0": 64, "7.5": 64, "8.0": 64}

# Bandwidth that memory of a kind can have on one device, GB/s: slowest to fastest board built with it.
BANDWIDTH_GB_PER_S = {
    "GDDR5": (100, 400),
    "GDDR5X": (300, 600),
    "GDDR6": (200, 1000),
    "GDDR6X": (700, 1100),
    "GDDR7": (800, 2000),
    "LPDDR4": (10, 140),
    "HBM2": (700, 1700),
    "HBM2e": (900, 3300),
    "HBM3": (2500, 6000),
    "HBM3e": (4000, 9000),
}


def by_id(spec: DeviceSpec) -> str:
    return spec.id


def test_every_required_device_is_there() -> None:
    missing = set(REQUIRED.split()) - set(device_ids())
    assert not missing


@pytest.mark.parametrize("spec", DEVICES, ids=by_id)
def test_the_file_is_named_after_its_id(spec: DeviceSpec) -> None:
    assert load_device(spec.id) == spec
    assert spec.id == spec.id.lower()


@pytest.mark.parametrize("spec", DEVICES, ids=by_id)
def test_every_figure_has_a_source(spec: DeviceSpec) -> None:
    for key, figure in FIGURES.items():
        value = getattr(spec, figure.field)
        if value in (None, {}, ()):
            continue
        names = [figure.field, *(f"{figure.field}.{dtype}" for dtype in (value if key in RATES else ()))]
        sourced = [name for name in names if spec.sources.get(name)]
        assert figure.field in sourced or (key in RATES and len(sourced) == len(value)), f"{spec.id}: {key}"


@pytest.mark.parametrize("spec", DEVICES, ids=by_id)
def test_sources_name_documents_and_no_addresses(spec: DeviceSpec) -> None:
    for field, document in spec.sources.items():
        assert len(document) >= 10 and not re.search(r"https?:|www\.", document), f"{spec.id}: {field}"


def test_names_and_aliases_belong_to_one_device_each() -> None:
    owner: dict[str, str] = {}
    for spec in DEVICES:
        for name in {spec.id, spec.name.lower(), *(alias.lower() for alias in spec.aliases)}:
            assert owner.setdefault(name, spec.id) == spec.id, name
            assert load_device(name).id == spec.id
            assert load_device(name.upper()).id == spec.id


@pytest.mark.parametrize("spec", DEVICES, ids=by_id)
def test_the_name_that_the_driver_reports_is_an_alias(spec: DeviceSpec) -> None:
    assert spec.aliases


@pytest.mark.parametrize("spec", NVIDIA, ids=by_id)
def test_float32_peak_is_two_operations_a_lane_and_clock(spec: DeviceSpec) -> None:
    lanes = LANES.get(spec.compute_capability or "", 128)
    peak = 2 * lanes * spec.sm_count * spec.boost_clock_hz
    assert spec.vector_flops_per_s["float32"] == pytest.approx(peak, rel=0.02)


@pytest.mark.parametrize("spec", [s for s in DEVICES if s.vendor == "amd"], ids=by_id)
def test_float32_peak_of_amd_is_two_operations_a_lane_and_clock(spec: DeviceSpec) -> None:
    # CDNA 3 and later are rated with packed float32: two products a lane and clock.
    packed = 2 if spec.architecture in ("CDNA 3", "CDNA 4") else 1
    peak = 2 * 64 * packed * spec.sm_count * spec.boost_clock_hz
    assert spec.vector_flops_per_s["float32"] == pytest.approx(peak, rel=0.02)


@pytest.mark.parametrize("spec", DEVICES, ids=by_id)
def test_matrix_units_are_no_slower_than_vectors(spec: DeviceSpec) -> None:
    for dtype, rate in spec.matrix_flops_per_s.items():
        assert rate >= spec.vector_flops_per_s.get(dtype, 0.0), dtype


@pytest.mark.parametrize("spec", DEVICES, ids=by_id)
def test_narrower_dtypes_are_no_slower_on_matrix_units(spec: DeviceSpec) -> None:
    rates = [spec.matrix_flops_per_s.get(dtype) for dtype in ("tf32", "float16", "float8", "float4")]
    present = [rate for rate in rates if rate is not None]
    assert present == sorted(present)


@pytest.mark.parametrize("spec", NVIDIA, ids=by_id)
def test_rates_are_dense(spec: DeviceSpec) -> None:
    # No tensor core does more than 32 dense float16 operations for one float32 operation of its vector lanes.
    if "float16" in spec.matrix_flops_per_s:
        assert spec.matrix_flops_per_s["float16"] <= 32 * spec.vector_flops_per_s["float32"]


@pytest.mark.parametrize("spec", DEVICES, ids=by_id)
def test_bandwidth_suits_the_memory_kind(spec: DeviceSpec) -> None:
    low, high = BANDWIDTH_GB_PER_S[spec.dram_kind]
    assert low <= spec.dram_bandwidth_bytes_per_s / 1e9 <= high


@pytest.mark.parametrize("spec", GPUS, ids=by_id)
def test_shared_memory_is_that_of_a_gpu(spec: DeviceSpec) -> None:
    assert spec.shared_memory_per_sm_bytes <= 256 * 1024


@pytest.mark.parametrize("spec", DEVICES, ids=by_id)
def test_caches_lie_between_registers_and_memory(spec: DeviceSpec) -> None:
    assert spec.shared_memory_per_sm_bytes < spec.l2_capacity_bytes < spec.dram_capacity_bytes
    assert (spec.l2_bandwidth_bytes_per_s or float("inf")) > spec.dram_bandwidth_bytes_per_s


@pytest.mark.parametrize("spec", DEVICES, ids=by_id)
def test_every_device_reaches_its_host_and_computes_in_known_dtypes(spec: DeviceSpec) -> None:
    assert spec not in GPUS or any(link.kind == "pcie" for link in spec.links)
    assert {*spec.matrix_flops_per_s, *spec.vector_flops_per_s} <= set(DTYPES)
    assert 1e-6 <= spec.launch_overhead_s <= 20e-6


def test_capacity_in_the_id_is_the_capacity() -> None:
    for spec in DEVICES:
        said = re.search(r"-(\d+)gb$", spec.id)
        if said:
            assert spec.dram_capacity_bytes == float(said[1]) * 1e9, spec.id


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("p4", "vector_flops_per_s.float32", 5.5e12),
        ("p100-sxm2-16gb", "vector_flops_per_s.float16", 21.2e12),
        ("v100-sxm2-32gb", "matrix_flops_per_s.float16", 125e12),
        ("t4", "tdp_w", 70),
        ("a100-pcie-40gb", "dram_bandwidth_bytes_per_s", 1555e9),
        ("a100-pcie-80gb", "dram_bandwidth_bytes_per_s", 1935e9),
        ("a100-sxm-80gb", "matrix_flops_per_s.tf32", 156e12),
        ("rtx-3090", "matrix_flops_per_s.float16", 71e12),
        ("l4", "matrix_flops_per_s.float16", 121e12),
        ("l40s", "matrix_flops_per_s.bfloat16", 362.05e12),
        ("h100-sxm-80gb", "matrix_flops_per_s.bfloat16", 989.4e12),
        ("h100-sxm-80gb", "l2_capacity_bytes", 50 * 2**20),
        ("h200-sxm-141gb", "dram_bandwidth_bytes_per_s", 4.8e12),
        ("b200-sxm-180gb", "sm_count", 148),
        ("mi100", "matrix_flops_per_s.float32", 46.1e12),
        ("mi300x", "matrix_flops_per_s.float16", 1307.4e12),
        ("arc-pro-b60", "sm_count", 20),
    ],
)
def test_figures_of_the_datasheets(name: str, field: str, value: float) -> None:
    key, _, dtype = field.partition(".")
    figure = getattr(load_device(name), key)
    assert (figure[dtype] if dtype else figure) == pytest.approx(value)


@pytest.mark.parametrize("spec", DEVICES, ids=by_id)
def test_written_file_reads_back_equal(spec: DeviceSpec, tmp_path) -> None:
    path = tmp_path / "copy.toml"
    path.write_text(to_toml(spec), encoding="utf-8")
    assert load_device(str(path)) == spec
