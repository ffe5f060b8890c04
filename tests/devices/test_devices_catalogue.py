"""The catalogue: complete, sourced, and consistent with the physics its figures describe."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from neusight.devices import DeviceSpec, GpuSpec, device_ids, list_devices, load_device, to_toml
from neusight.devices.read import OWN
from neusight.devices.schema import DTYPES, FIGURES, RATES
from neusight.devices.spec import USABLE_SHARE, SystolicSpec

REQUIRED = """
p4 p100-pcie-16gb p100-sxm2-16gb v100-pcie-16gb v100-pcie-32gb v100-sxm2-16gb v100-sxm2-32gb v100-sxm3-32gb t4
gtx-1080-ti rtx-2080-ti quadro-rtx-8000 a100-pcie-40gb a100-pcie-80gb a100-sxm-40gb a100-sxm-80gb a10 a30 a40
rtx-a6000 rtx-3090 rtx-4090 rtx-6000-ada l4 l20 l40 l40s h100-pcie-80gb h100-sxm-80gb h100-nvl-94gb h20 a800-sxm-80gb
h800-sxm-80gb h200-sxm-141gb h200-nvl-141gb gh200-96gb b200-sxm-180gb b300-sxm-288gb gb200-186gb gb300-288gb
rtx-5090 rtx-pro-6000-server mi100 mi210 mi250 mi300x mi325x mi355x arc-pro-b60 tensordash tensordash-dense
a10g a2 a800-pcie-80gb gb10 gh200-144gb gtx-1060-6gb gtx-1070 gtx-1080 gtx-1660-ti h100-sxm-96gb h100-sxm-96gb-hbm2e
h800-pcie-80gb jetson-agx-orin jetson-orin-nano jetson-thor-t5000 m40-12gb mi250x mi350x p40 quadro-rtx-4000
quadro-rtx-5000 quadro-rtx-6000 rtx-2000-ada rtx-2060 rtx-2060-super rtx-2070 rtx-2070-super rtx-2080 rtx-2080-super
rtx-3050 rtx-3060 rtx-3060-ti rtx-3070 rtx-3070-ti rtx-3080 rtx-3080-ti rtx-3090-ti rtx-4000-ada rtx-4000-sff-ada
rtx-4060 rtx-4060-ti-16gb rtx-4060-ti-8gb rtx-4070 rtx-4070-super rtx-4070-ti rtx-4070-ti-super rtx-4080
rtx-4080-super rtx-4090-d rtx-4500-ada rtx-5000-ada rtx-5060 rtx-5060-ti rtx-5060-ti-16gb rtx-5070 rtx-5070-ti
rtx-5080 rtx-5090-d rtx-a2000-12gb rtx-a4000 rtx-a4500 rtx-a5000 rtx-a5500 rtx-pro-6000-max-q rtx-pro-6000-workstation
tpu-v2 tpu-v3 tpu-v4 tpu-v5e tpu-v5p tpu-v6e tpu-v7 trainium1 trainium2 trainium3 inferentia1 inferentia2
gaudi1 gaudi2 gaudi3
arduino-nano-33-ble nucleo-f446re nucleo-f746zg nucleo-h7a3zi-q nucleo-l4r5zi nucleo-l4r5zi-p nucleo-u575zi-q
rx-7700-xt rx-7800-xt rx-7900-xt rx-7900-xtx titan-rtx titan-v titan-xp v100s-pcie-32gb
"""

DEVICES = list_devices()

# float32 lanes a multiprocessor: 64 on the large chips up to GA100 and on Turing, 128 on all others.
LANES = {"6.0": 64, "7.0": 64, "7.5": 64, "8.0": 64}

# Bandwidth that memory of a kind can have on one device, GB/s: slowest to fastest board built with it.
BANDWIDTH_GB_PER_S = {
    "GDDR5": (100, 400),
    "GDDR5X": (300, 600),
    "GDDR6": (200, 1000),
    "GDDR6X": (500, 1100),
    "GDDR7": (400, 2000),
    "LPDDR4": (10, 140),
    "LPDDR5": (50, 250),
    "LPDDR5X": (100, 600),
    "HBM2": (600, 1700),
    "HBM2e": (900, 3300),
    "HBM3": (2500, 6000),
    "HBM3e": (4000, 9000),
}


def test_every_required_device_is_there() -> None:
    missing = set(REQUIRED.split()) - set(device_ids())
    assert not missing


def test_names_and_aliases_belong_to_one_device_each() -> None:
    owner: dict[str, str] = {}
    for spec in DEVICES:
        assert spec.aliases, f"{spec.id}: the name that the driver reports is no alias"
        for name in {spec.id, spec.name.lower(), *(alias.lower() for alias in spec.aliases)}:
            assert owner.setdefault(name, spec.id) == spec.id, name
            assert load_device(name).id == spec.id
            assert load_device(name.upper()).id == spec.id


def names(spec: DeviceSpec) -> Iterator[str]:
    """The file is named after its id, which says the capacity where it says one."""
    if load_device(spec.id) != spec or spec.id != spec.id.lower():
        yield "is not what its id loads"
    said = re.search(r"-(\d+)gb$", spec.id)
    if said and spec.dram_capacity_bytes != float(said[1]) * 1e9:
        yield f"has {spec.dram_capacity_bytes:g} bytes"


def sources(spec: DeviceSpec) -> Iterator[str]:
    """Every figure has a source, which is a document and no address."""
    for key, figure in FIGURES.items():
        value = getattr(spec, figure.field, None)
        if value in (None, {}, ()) or not figure.describes(spec.kind):
            continue
        by_dtype = [f"{figure.field}.{dtype}" for dtype in value] if key in RATES else []
        if figure.field not in spec.sources and not (by_dtype and spec.sources.keys() >= set(by_dtype)):
            yield f"{key} has no source"
    for field, document in spec.sources.items():
        if len(document) < 10 or document == OWN or re.search(r"https?:|www\.", document):
            yield f"source of {field} is {document}"


def peak_of_lanes(spec: DeviceSpec) -> float | None:
    """Two operations a lane and clock [FLOP/s]; CDNA 3 and later and RDNA 3 are rated with two products a lane
    (packed or issued in pairs).
    """
    lanes = {
        "nvidia": LANES.get(spec.compute_capability or "", 128),
        "amd": 128 if spec.architecture in ("CDNA 3", "CDNA 4", "RDNA 3") else 64,
    }
    return 2 * lanes[spec.vendor] * spec.sm_count * spec.boost_clock_hz if spec.vendor in lanes else None


def rates(spec: DeviceSpec) -> Iterator[str]:
    """Of lanes and clocks; matrix units no slower than vectors, narrower dtypes than wider ones; all of them dense."""
    vector, matrix = spec.vector_flops_per_s, spec.matrix_flops_per_s
    if not {*vector, *matrix} <= set(DTYPES):
        yield "computes in unknown dtypes"
    peak = peak_of_lanes(spec)
    if peak and vector["float32"] != pytest.approx(peak, rel=0.02):
        yield f"float32 is {vector['float32']:g}, not {peak:g}"
    if slower := [dtype for dtype, rate in matrix.items() if rate < vector.get(dtype, 0.0)]:
        yield f"vectors are faster in {slower}"
    present = [matrix[dtype] for dtype in ("tf32", "float16", "float8", "float4") if dtype in matrix]
    if present != sorted(present):
        yield "a narrower dtype is slower"
    # No tensor core does more than 32 dense float16 operations for one float32 operation of its vector lanes.
    if spec.vendor == "nvidia" and matrix.get("float16", 0) > 32 * vector["float32"]:
        yield "float16 is not dense"


def sums(spec: DeviceSpec) -> Iterator[str]:
    """GeForce boards sum products at half rate in float32: the file gives that rate, a note the other one."""
    clocks_per_s = spec.sm_count * spec.boost_clock_hz
    half = spec.matrix_flops_per_s.get("float16")
    if "GeForce" not in spec.name or not half:
        return
    if half / clocks_per_s != pytest.approx(512, rel=0.02):
        yield f"{half / clocks_per_s:.0f} float16 operations a clock and multiprocessor, not 512 as GeForce boards do"
    said = re.search(r"with float16 accumulation \(([\d.]+)", spec.notes)
    if not said or float(said[1]) * 1e12 != pytest.approx(2 * half, rel=0.01):
        yield "says not what the rate with float16 accumulation is"


def memory(spec: DeviceSpec) -> Iterator[str]:
    """Bandwidth suits the kind; caches lie between registers and memory; drivers keep a few percent to themselves."""
    low, high = BANDWIDTH_GB_PER_S[spec.dram_kind]
    if not low <= spec.dram_bandwidth_bytes_per_s / 1e9 <= high:
        yield f"{spec.dram_kind} of {spec.dram_bandwidth_bytes_per_s:g} B/s"
    if not spec.shared_memory_per_sm_bytes < spec.l2_capacity_bytes < spec.dram_capacity_bytes:
        yield "its memories do not grow outwards"
    if (spec.l2_bandwidth_bytes_per_s or float("inf")) <= spec.dram_bandwidth_bytes_per_s:
        yield "L2 is slower than DRAM"
    if not spec.dram_bandwidth_bytes_per_s <= spec.memory_cache_bytes_per_s < spec.l2_bytes_per_s:
        yield "a cache before DRAM is slower than that, or faster than L2"
    if spec.vendor != "other" and spec.shared_memory_per_sm_bytes > 256 * 1024:
        yield "shared memory is larger than that of any GPU"
    if spec.dram_usable_bytes is None:
        yield "says not what of its memory is usable"
    elif not USABLE_SHARE <= spec.usable_bytes / spec.dram_capacity_bytes <= 2**30 / 1e9:
        yield f"{spec.usable_bytes / spec.dram_capacity_bytes:.3f} of the capacity is usable"


def host(spec: DeviceSpec) -> Iterator[str]:
    """Every GPU hangs on PCIe, and launches take microseconds."""
    if spec.vendor != "other" and not any(link.kind == "pcie" for link in spec.links):
        yield "has no PCIe"
    if not 1e-6 <= spec.launch_overhead_s <= 20e-6:
        yield f"launches take {spec.launch_overhead_s:g} s"
    if (spec.kind == "gpu") != (spec.vendor != "other"):
        yield f"is of kind {spec.kind}"


def arrays(spec: SystolicSpec) -> Iterator[str]:
    """The rate of 16 bits is that of the multipliers at the clock; memories grow outwards."""
    if spec.matrix_flops_per_s["bfloat16"] != pytest.approx(spec.multiplier_flops_per_s, rel=0.07):
        yield f"bfloat16 is not {spec.multiplier_flops_per_s:g}"
    if not spec.on_chip_capacity_bytes < spec.dram_capacity_bytes:
        yield "its memories do not grow outwards"
    if {link.kind for link in spec.links} & {"ici", "neuronlink", "roce"} == set():
        yield "has no links of its own"


EVERY: tuple[Callable[[DeviceSpec], Iterator[str]], ...] = (names, sources)
RULES: dict[type[DeviceSpec], tuple[Callable[..., Iterator[str]], ...]] = {
    GpuSpec: (rates, sums, memory, host),
    SystolicSpec: (arrays,),
}


@pytest.mark.parametrize("spec", DEVICES, ids=lambda spec: spec.id)
def test_a_device_has_no_fault(spec: DeviceSpec, tmp_path: Path) -> None:
    faults = [fault for rule in (*EVERY, *RULES.get(type(spec), ())) for fault in rule(spec)]
    path = tmp_path / "copy.toml"
    path.write_text(to_toml(spec), encoding="utf-8")
    if load_device(str(path)) != spec:
        faults.append("reads back as another one when it is written")
    assert not faults


def test_the_share_that_is_assumed_to_be_usable_is_the_least_of_the_catalogue() -> None:
    shares = [spec.usable_bytes / spec.dram_capacity_bytes for spec in DEVICES]
    assert min(shares) == pytest.approx(USABLE_SHARE, abs=1e-3)


def test_figures_of_the_datasheets_and_drivers() -> None:
    said = {
        ("p4", "vector_flops_per_s.float32"): 5.5e12,
        ("p100-sxm2-16gb", "vector_flops_per_s.float16"): 21.2e12,
        ("v100-sxm2-32gb", "matrix_flops_per_s.float16"): 125e12,
        ("t4", "tdp_w"): 70,
        ("t4", "usable_bytes"): 14.75 * 2**30,
        ("a100-pcie-40gb", "dram_bandwidth_bytes_per_s"): 1555e9,
        ("a100-pcie-80gb", "dram_bandwidth_bytes_per_s"): 1935e9,
        ("a100-sxm-80gb", "matrix_flops_per_s.tf32"): 156e12,
        ("rtx-3090", "matrix_flops_per_s.float16"): 71e12,
        ("l4", "matrix_flops_per_s.float16"): 121e12,
        ("l4", "usable_bytes"): 22.03 * 2**30,
        ("l40s", "matrix_flops_per_s.bfloat16"): 362.05e12,
        ("h100-sxm-80gb", "matrix_flops_per_s.bfloat16"): 989.4e12,
        ("h100-sxm-80gb", "l2_capacity_bytes"): 50 * 2**20,
        ("h100-sxm-80gb", "usable_bytes"): 79.1 * 2**30,
        ("h200-sxm-141gb", "dram_bandwidth_bytes_per_s"): 4.8e12,
        ("b200-sxm-180gb", "sm_count"): 148,
        ("mi100", "matrix_flops_per_s.float32"): 46.1e12,
        ("mi300x", "matrix_flops_per_s.float16"): 1307.4e12,
        ("arc-pro-b60", "sm_count"): 20,
        ("a10g", "matrix_flops_per_s.bfloat16"): 70e12,
        ("a10g", "sm_count"): 80,
        ("gh200-144gb", "usable_bytes"): 153_008_209_920,
        ("h100-sxm-96gb-hbm2e", "dram_bandwidth_bytes_per_s"): 2.4e12,
        ("m40-12gb", "vector_flops_per_s.float32"): 6.83e12,
        ("p40", "vector_flops_per_s.float32"): 11.76e12,
        ("titan-v", "vector_flops_per_s.float32"): 14.9e12,
        ("quadro-rtx-6000", "matrix_flops_per_s.float16"): 130.5e12,
        ("rtx-2080", "matrix_flops_per_s.float16"): 40.3e12,
        ("rtx-3080", "matrix_flops_per_s.float16"): 59.5e12,
        ("rtx-a5000", "matrix_flops_per_s.bfloat16"): 111.1e12,
        ("rtx-4080", "matrix_flops_per_s.float8"): 194.9e12,
        ("rtx-4090-d", "sm_count"): 114,
        ("rtx-5080", "matrix_flops_per_s.float4"): 900.4e12,
        ("rtx-pro-6000-workstation", "matrix_flops_per_s.float16"): 503.8e12,
        ("rx-7900-xtx", "matrix_flops_per_s.float16"): 122.9e12,
        ("mi350x", "matrix_flops_per_s.float8"): 4613.7e12,
    }
    for (name, field), value in said.items():
        key, _, dtype = field.partition(".")
        figure = getattr(load_device(name), key)
        assert (figure[dtype] if dtype else figure) == pytest.approx(value, rel=1e-3), (name, field)


def test_boards_of_one_die_differ_in_no_fact_of_silicon() -> None:
    """The compute capability, the maker, and the process that a die is made in; H100s with more SMs are cut less."""
    facts: dict[str, set[tuple[object, ...]]] = {}
    for spec in DEVICES:
        if spec.die:
            facts.setdefault(spec.die, set()).add((spec.vendor, spec.compute_capability, spec.process_nm))
    assert {die: known for die, known in facts.items() if len(known) > 1} == {}
    assert load_device("h20").die == load_device("gh200-96gb").die == "GH100"
    assert load_device("l4").die != load_device("l40").die
