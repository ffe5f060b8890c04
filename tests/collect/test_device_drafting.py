"""Drafts of GPUs' device files: they agree with the catalogue where it knows the device, and say what they assume."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from neusight.collect.drafting import Draft, draft_device
from neusight.collect.drafting.gpu import KIN, GpuReadings, gpu_spec, is_geforce, known_capability, read_gpu
from neusight.collect.drafting.sheet import compared
from neusight.devices import DeviceSpec, list_devices, load_device, to_toml
from neusight.errors import DeviceError

# As deviceQuery and nvidia-smi print them for these boards.
T4 = GpuReadings(
    name="Tesla T4", capability="7.5", sm_count=40, memory_bytes=15_843_721_216, l2_bytes=4_194_304, warp_size=32,
    max_threads_per_sm=1024, shared_memory_per_sm_bytes=65_536, registers_per_sm=65_536, clock_hz=1590e6,
    memory_clock_hz=5001e6, memory_bus_bits=256, power_limit_w=70.0, pcie_generation=3, pcie_lanes=16,
)  # fmt: skip
A100 = replace(
    T4, name="NVIDIA A100-SXM4-40GB", capability="8.0", sm_count=108, memory_bytes=42_298_834_944, l2_bytes=41_943_040,
    max_threads_per_sm=2048, shared_memory_per_sm_bytes=167_936, clock_hz=1410e6, memory_clock_hz=1215e6,
    memory_bus_bits=5120, power_limit_w=400.0, pcie_generation=4, nvlinks=12, nvlink_version="3.0",
)  # fmt: skip
FUTURE = replace(
    T4, name="NVIDIA GeForce RTX 6070 Future", capability="12.7", sm_count=64, memory_bytes=16 * 2**30,
    l2_bytes=48 * 2**20, max_threads_per_sm=1536, shared_memory_per_sm_bytes=102_400, clock_hz=2600e6,
    memory_clock_hz=15_000e6, power_limit_w=250.0, pcie_generation=5,
)  # fmt: skip
BARE = GpuReadings(name="NVIDIA H100 64GB", capability="9.0", sm_count=114, memory_bytes=64 * 2**30)


def as_reported(id_: str, bus_bits: int, transfers: int = 2, **changed: Any) -> GpuReadings:
    """Readings of a driver that reports the catalogue's figures."""
    spec = load_device(id_)
    same = {field: getattr(spec, field) for field in ("sm_count", "warp_size", "registers_per_sm")}
    reported = GpuReadings(
        **same, name=spec.aliases[0], capability=spec.compute_capability, memory_bytes=int(spec.dram_capacity_bytes),
        l2_bytes=int(spec.l2_capacity_bytes), max_threads_per_sm=spec.max_threads_per_sm, clock_hz=spec.boost_clock_hz,
        shared_memory_per_sm_bytes=int(spec.shared_memory_per_sm_bytes), memory_bus_bits=bus_bits,
        memory_clock_hz=spec.dram_bandwidth_bytes_per_s * 8 / transfers / bus_bits, power_limit_w=spec.tdp_w,
    )  # fmt: skip
    return replace(reported, **changed)


H200 = as_reported("h200-sxm-141gb", 6144, pcie_generation=5, pcie_lanes=16, nvlinks=18, nvlink_version="4.0")
# ROCm reports the L2 of one die, memory that transfers four times a clock, and no links.
MI300X = as_reported("mi300x", 8192, transfers=4, l2_bytes=4 * 2**20)

GPUS = [T4, A100, H200, MI300X, FUTURE, BARE]


def reads_back_equal(spec: DeviceSpec, tmp_path: Path) -> bool:
    path = tmp_path / "draft.toml"
    path.write_text(to_toml(spec), encoding="utf-8")
    return load_device(str(path)) == spec


# Rates that a product has below its architecture's, for export or by choice; no device of its kind can tell.
HALVED = {
    "l40": "float32 sums at half rate, as on GeForce",
    **dict.fromkeys(("a10g", "l20"), "float32 sums and integers at half rate"),
}
CUT = {
    "h20": "a quarter of Hopper's matrix units",
    **dict.fromkeys(("h800-sxm-80gb", "h800-pcie-80gb"), "float64 removed for export"),
    "rtx-5090-d": "int8 and float4 limited for export",
}
# Of a compute capability that the table takes for another: a draft of an unknown 12.x is no GB10.
ALIKE = {"gb10"}
# Matrix units rated at a lower clock than on the boards with more power; float64 of eight boards rounded to 10 TFLOP/s.
# The tensor cores of GB200 are rated at 0.974 of boost clock, those of B200 at 0.945 (tf32 rounded to 10 TFLOP/s).
TOLERANCE = {"h100-nvl-94gb": 0.08, "h200-nvl-141gb": 0.08, "b300-sxm-288gb": 0.08, "gb200-186gb": 0.06}
DATA_CENTRE = [
    spec
    for spec in list_devices()
    if spec.vendor in ("nvidia", "amd") and not is_geforce(spec.name) and spec.id not in {**HALVED, **CUT}
]
GEFORCE = [spec for spec in list_devices() if is_geforce(spec.name) and spec.id not in CUT]


def rates_off(spec: DeviceSpec) -> list[str]:
    """Where a draft from clock and multiprocessors alone does not reproduce a device's published rates."""
    if known_capability(spec.compute_capability) != spec.compute_capability and spec.id not in ALIKE:
        return [f"{spec.id}: {spec.compute_capability} is not known"]
    draft = gpu_spec(
        GpuReadings(
            name=spec.name,
            capability=spec.compute_capability,
            sm_count=spec.sm_count,
            clock_hz=spec.boost_clock_hz,
            memory_bytes=int(spec.dram_capacity_bytes),
        )
    )
    found, tolerance = [], TOLERANCE.get(spec.id, 0.045)
    for rates, published in (
        (draft.matrix_flops_per_s, spec.matrix_flops_per_s),
        (draft.vector_flops_per_s, spec.vector_flops_per_s),
    ):
        # The datasheets of Ada boards disagree on int4.
        if {*rates} | {"int4"} != {*published} | {"int4"}:
            found.append(f"{spec.id}: {sorted(rates)} instead of {sorted(published)}")
        both = {*rates} & {*published} - {"int4"}
        found += [
            f"{spec.id}: {dtype}" for dtype in sorted(both) if abs(rates[dtype] / published[dtype] - 1) > tolerance
        ]
    return found


def test_devices_of_one_kind_have_the_rates_of_the_catalogue() -> None:
    assert len(DATA_CENTRE) > 20 and len(GEFORCE) > 3
    assert [fault for spec in (*DATA_CENTRE, *GEFORCE) for fault in rates_off(spec)] == []
    for capability, kin in KIN.items():
        for id_ in filter(None, (kin.like, kin.geforce)):
            assert load_device(id_).compute_capability == capability


def test_a_draft_of_a_known_device_has_the_catalogue_s_figures() -> None:
    same = (
        *("sm_count", "boost_clock_hz", "l2_capacity_bytes", "shared_memory_per_sm_bytes", "registers_per_sm"),
        *("max_threads_per_sm", "max_blocks_per_sm", "warp_size", "tdp_w", "launch_overhead_s"),
    )
    for readings in (T4, A100, H200, MI300X):
        known, drafted = load_device(readings.name), gpu_spec(readings)
        assert {f: getattr(drafted, f) for f in same} == {f: getattr(known, f) for f in same}
        assert drafted.dram_bandwidth_bytes_per_s == pytest.approx(known.dram_bandwidth_bytes_per_s, rel=0.005)
        assert drafted.vector_flops_per_s["float32"] == pytest.approx(known.vector_flops_per_s["float32"], rel=0.02)
        assert drafted.matrix_flops_per_s["float16"] == pytest.approx(known.matrix_flops_per_s["float16"], rel=0.02)
        links, said = ({link.kind: link.bandwidth_bytes_per_s for link in d.links} for d in (known, drafted))
        assert said == links


def test_a_known_device_is_the_catalogue_s_with_what_differs() -> None:
    more = "sm_count: driver 132, catalogue 108"
    slow = ("boost_clock: driver 1.2 GHz, catalogue 1.59 GHz", "links.pcie: driver 7.875 GB/s, catalogue 15.75 GB/s")
    for readings, id_, differences in (
        (T4, "t4", ()),
        (A100, "a100-sxm-40gb", ("dram_capacity: driver 42.3 GB, catalogue 40 GB",)),
        (H200, "h200-sxm-141gb", ()),
        (MI300X, "mi300x", ()),
        (
            replace(A100, memory_bytes=40 * 10**9, sm_count=132),
            "a100-sxm-40gb",
            (more,),
        ),
        (replace(T4, pcie_lanes=8, clock_hz=1.2e9), "t4", slow),
    ):
        assert compared(gpu_spec(readings)) == Draft(load_device(id_), known=True, differences=differences)


def test_what_was_assumed_is_not_compared() -> None:
    silent = GpuReadings(name="NVIDIA A100-SXM4-40GB", capability="8.0", sm_count=108, memory_bytes=40 * 10**9)
    # Bandwidth and clock of a draft without them are those of another A100.
    assert compared(gpu_spec(silent)).differences == ()


def test_drafted_gpus_read_back_equal(tmp_path: Path) -> None:
    assert all(reads_back_equal(gpu_spec(readings), tmp_path) for readings in GPUS)


def test_an_unknown_card_says_what_it_assumes(tmp_path: Path) -> None:
    draft = compared(gpu_spec(FUTURE))
    spec = draft.spec
    assert not draft.known and draft.differences == ()
    assert spec.id == "nvidia-geforce-rtx-6070-future"
    assert "12.7" in spec.notes and "12.0" in spec.notes
    assert spec.dram_bandwidth_bytes_per_s == 2 * 15e9 * 256 / 8
    for field in ("matrix_flops_per_s", "vector_flops_per_s", "release_date", "max_blocks_per_sm", "base_clock_hz"):
        assert spec.sources[field].startswith("assumption: "), field
    for field in ("sm_count", "boost_clock_hz", "l2_capacity_bytes", "tdp_w", "links"):
        assert spec.sources[field].startswith("reported by the driver"), field


def test_a_silent_driver_leaves_the_figures_of_a_device_of_its_kind() -> None:
    spec, like = gpu_spec(BARE), load_device("h100-sxm-80gb")
    for field in ("boost_clock_hz", "dram_bandwidth_bytes_per_s", "l2_capacity_bytes", "warp_size", "tdp_w", "links"):
        assert getattr(spec, field) == getattr(like, field), field
        assert spec.sources[field] == f"assumption: as {like.name}; the driver does not say"
    assert spec.sources["max_blocks_per_sm"] == like.sources["max_blocks_per_sm"]
    assert spec.vector_flops_per_s["float32"] == pytest.approx(256 * 114 * like.boost_clock_hz, rel=1e-3)


def test_an_unknown_architecture_is_the_newest_known_below_it() -> None:
    taken_as = {"13.0": "12.0", "12.1": "12.0", "10.1": "10.0", "8.8": "8.7", "5.3": "5.2", "5.0": "5.2"}
    taken_as |= {"gfx90c": "gfx90a", "gfx1201": "gfx1101", "gfx906": "gfx908"}
    assert {capability: known_capability(capability) for capability in taken_as} == taken_as


def test_geforce_boards_sum_in_float32_at_half_rate_and_gtx_has_no_matrix_units() -> None:
    board = replace(T4, capability="8.6")
    full, half = (
        gpu_spec(replace(board, name=name)).matrix_flops_per_s
        for name in ("NVIDIA RTX A5000", "NVIDIA GeForce RTX 3080")
    )
    ratios = [half[d] / full[d] for d in ("tf32", "float16", "bfloat16", "int8")]
    assert ratios == pytest.approx([0.5, 0.5, 0.5, 1.0], rel=0.01)
    assert gpu_spec(replace(board, name="NVIDIA GeForce GTX 1660", capability="7.5")).matrix_flops_per_s == {}


def test_l2_of_several_dies_adds_up() -> None:
    for reported, compute_units, mib in ((4, 304, 32), (24, 228, 24), (4, 38, 4)):
        spec = gpu_spec(replace(MI300X, l2_bytes=reported * 2**20, sm_count=compute_units))
        assert spec.l2_capacity_bytes == mib * 2**20


def test_a_figure_that_cannot_be_is_refused_in_one_line() -> None:
    with pytest.raises(DeviceError, match="draft of Tesla T4: tdp = 70 MW is impossibly large") as error:
        gpu_spec(replace(T4, power_limit_w=70e6))
    assert "\n" not in str(error.value)


# The APIs of PyTorch and NVML where no GPU is.


class NVMLError(Exception):
    pass


def refuse(*_: Any) -> Any:
    raise NVMLError


def nvml(**answers: Any) -> SimpleNamespace:
    """A stand-in for pynvml that answers what is given and refuses everything else it knows of."""
    names = ("MaxClockInfo", "MemoryBusWidth", "PowerManagementDefaultLimit", "MaxPcieLinkGeneration")
    refused = {f"nvmlDeviceGet{name}": refuse for name in (*names, "MaxPcieLinkWidth", "NvLinkState", "NvLinkVersion")}
    known = {"NVML_CLOCK_SM": 1, "NVML_CLOCK_MEM": 2, "NVML_NVLINK_MAX_LINKS": 18, "NVMLError": NVMLError}
    handle = {"nvmlInit": lambda: None, "nvmlDeviceGetHandleByUUID": lambda uuid: uuid}
    return SimpleNamespace(**{**refused, **known, **handle, **answers})


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch):
    """Let PyTorch find one GPU with given properties, beside a given NVML (None: not installed)."""
    import torch

    def install(pynvml: Any, hip: str | None = None, **properties: Any) -> None:
        said = SimpleNamespace(**properties)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: said)
        monkeypatch.setattr(torch.version, "hip", hip)
        monkeypatch.setitem(sys.modules, "pynvml", pynvml)

    return install


PROPERTIES = {
    **{"name": "Tesla T4", "major": 7, "minor": 5, "multi_processor_count": 40, "total_memory": 15_843_721_216},
    **{"L2_cache_size": 4_194_304, "warp_size": 32, "max_threads_per_multi_processor": 1024, "uuid": "5a3f"},
    **{"shared_memory_per_multiprocessor": 65_536, "regs_per_multiprocessor": 65_536},
}


def test_pytorch_and_nvml_together_give_the_readings(one_gpu) -> None:
    boards = nvml(
        nvmlDeviceGetMaxClockInfo=lambda handle, kind: {1: 1650, 2: 5001}[kind],
        nvmlDeviceGetMemoryBusWidth=lambda handle: 256,
        nvmlDeviceGetPowerManagementDefaultLimit=lambda handle: 70_000,
        nvmlDeviceGetMaxPcieLinkGeneration=lambda handle: 3,
        nvmlDeviceGetMaxPcieLinkWidth=lambda handle: 16,
    )
    one_gpu(boards, **PROPERTIES, clock_rate=1_590_000)
    assert read_gpu(0) == T4
    assert draft_device("cuda").known
    one_gpu(boards, **PROPERTIES)
    assert read_gpu(0).clock_hz == 1650e6
    up = nvml(nvmlDeviceGetNvLinkState=lambda handle, link: int(link < 12), nvmlDeviceGetNvLinkVersion=lambda h, k: 4)
    one_gpu(up, **PROPERTIES)
    assert (read_gpu(0).nvlinks, read_gpu(0).nvlink_version) == (12, "3.0")


def test_pytorch_alone_gives_what_it_has(one_gpu) -> None:
    silent = replace(T4, power_limit_w=None, pcie_generation=None, pcie_lanes=None)
    for pynvml in (None, nvml(), nvml(nvmlInit=refuse, nvmlDeviceGetHandleByUUID=refuse)):
        one_gpu(pynvml, **PROPERTIES, clock_rate=1_590_000, memory_clock_rate=5_001_000, memory_bus_width=256)
        assert read_gpu(0) == silent
    # ROCm names its architecture, and is asked without NVML.
    one_gpu(None, hip="6.4", **{**PROPERTIES, "name": "AMD Instinct MI300X", "gcnArchName": "gfx942:sramecc+:xnack-"})
    assert read_gpu(0).capability == "gfx942"


def test_no_gpu_and_no_such_gpu_are_one_line(one_gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    one_gpu(None, **PROPERTIES)
    with pytest.raises(DeviceError, match="no GPU 1: PyTorch finds 1"):
        draft_device("cuda", 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match=r"finds no GPU: .* --device cpu"):
        draft_device("cuda")
