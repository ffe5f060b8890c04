"""Drafts of GPUs' device files: they agree with the catalogue where it knows the device, and say what they assume."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from neusight.collect.drafting import Draft, draft_device
from neusight.collect.drafting.gpu import KIN, GpuReadings, gpu_spec, known_capability, read_gpu
from neusight.collect.drafting.sheet import compared
from neusight.devices import DeviceSpec, list_devices, load_device, to_toml
from neusight.errors import DeviceError

# As deviceQuery and nvidia-smi print them for these boards.
T4 = GpuReadings(
    name="Tesla T4", compute_capability="7.5", sm_count=40, dram_capacity_bytes=15_843_721_216, warp_size=32,
    l2_capacity_bytes=4_194_304, max_threads_per_sm=1024, shared_memory_per_sm_bytes=65_536, registers_per_sm=65_536,
    boost_clock_hz=1590e6, memory_clock_hz=5001e6, memory_bus_bits=256, tdp_w=70.0, pcie_generation=3, pcie_lanes=16,
)  # fmt: skip
A100 = replace(
    T4, name="NVIDIA A100-SXM4-40GB", compute_capability="8.0", sm_count=108, dram_capacity_bytes=42_298_834_944,
    l2_capacity_bytes=41_943_040, max_threads_per_sm=2048, shared_memory_per_sm_bytes=167_936, boost_clock_hz=1410e6,
    memory_clock_hz=1215e6, memory_bus_bits=5120, tdp_w=400.0, pcie_generation=4, nvlinks=12, nvlink_version="3.0",
)  # fmt: skip
FUTURE = replace(T4, name="NVIDIA GeForce RTX 6070 Future", compute_capability="12.7", memory_clock_hz=15_000e6)
BARE = GpuReadings(name="NVIDIA H100 64GB", compute_capability="9.0", sm_count=114, dram_capacity_bytes=64 * 2**30)


def as_reported(spec: DeviceSpec, bus_bits: int = 6144, transfers: int = 2, **changed: Any) -> GpuReadings:
    """Readings of a driver that reports the catalogue's figures."""
    names = GpuReadings.__dataclass_fields__.keys() & spec.__dataclass_fields__.keys()
    clock_hz = spec.dram_bandwidth_bytes_per_s * 8 / transfers / bus_bits
    figures = {name: getattr(spec, name) for name in names} | {"name": (*spec.aliases, spec.name)[0]}
    return GpuReadings(**figures | {"memory_bus_bits": bus_bits, "memory_clock_hz": clock_hz} | changed)


H200 = as_reported(load_device("h200-sxm-141gb"), pcie_generation=5, pcie_lanes=16, nvlinks=18, nvlink_version="4.0")
# ROCm reports the L2 of one die, memory that transfers four times a clock, and no links.
MI300X = as_reported(load_device("mi300x"), 8192, 4, l2_capacity_bytes=4 * 2**20)
# Rates that a product has below its architecture's, for export or by choice; no device of its kind can tell.
CUT = {"l40", "a10g", "l20", "h20", "h800-sxm-80gb", "h800-pcie-80gb", "rtx-5090-d"}
# Matrix units rated at a lower clock than on the boards with more power; float64 of eight boards rounded to 10 TFLOP/s.
# The tensor cores of GB200 are rated at 0.974 of boost clock, those of B200 at 0.945 (tf32 rounded to 10 TFLOP/s).
TOLERANCE = {"h100-nvl-94gb": 0.08, "h200-nvl-141gb": 0.08, "b300-sxm-288gb": 0.08, "gb200-186gb": 0.06}
RATED = [spec for spec in list_devices() if spec.id not in CUT and spec.vendor in ("nvidia", "amd")]


@pytest.mark.parametrize("spec", RATED, ids=lambda spec: spec.id)
def test_gpu_spec_has_the_published_rates_of_each_kind(spec: DeviceSpec) -> None:
    # A compute capability that the table takes for another is that of GB10 alone: a draft of an unknown 12.x is none.
    assert known_capability(spec.compute_capability) == spec.compute_capability or spec.id == "gb10"
    bare = {"sm_count": spec.sm_count, "dram_capacity_bytes": int(spec.dram_capacity_bytes)}
    clock = {"compute_capability": spec.compute_capability, "boost_clock_hz": spec.boost_clock_hz}
    draft = gpu_spec(GpuReadings(name=spec.name, **bare, **clock))
    for kind in ("matrix_flops_per_s", "vector_flops_per_s"):
        # The datasheets of Ada boards disagree on int4.
        rates, published = (getattr(of, kind).copy() for of in (draft, spec))
        assert {*rates} | {"int4"} == {*published} | {"int4"}
        ratios = {dtype: rates[dtype] / published[dtype] for dtype in rates if dtype != "int4"}
        assert ratios == pytest.approx(dict.fromkeys(ratios, 1.0), abs=TOLERANCE.get(spec.id, 0.045))


def test_kin_are_of_their_compute_capability() -> None:
    kin = {id_: capability for capability, kin in KIN.items() for id_ in (kin.like, kin.geforce) if id_}
    assert {id_: load_device(id_).compute_capability for id_ in kin} == kin


SLOW = ("boost_clock: driver 1.2 GHz, catalogue 1.59 GHz", "links.pcie: driver 7.875 GB/s, catalogue 15.75 GB/s")


@pytest.mark.parametrize(
    ("readings", "id_", "differences"),
    [
        (T4, "t4", ()),
        (A100, "a100-sxm-40gb", ("dram_capacity: driver 42.3 GB, catalogue 40 GB",)),
        (H200, "h200-sxm-141gb", ()),
        (MI300X, "mi300x", ()),
        (replace(T4, pcie_lanes=8, boost_clock_hz=1.2e9), "t4", SLOW),
        # Bandwidth and clock of a draft without them are those of another A100.
        (replace(BARE, name=A100.name, compute_capability="8.0", sm_count=108, dram_capacity_bytes=40 * 10**9),
         "a100-sxm-40gb", ()),
    ],
)  # fmt: skip
def test_compared_names_differences_from_the_catalogue(readings: GpuReadings, id_: str, differences: tuple) -> None:
    assert compared(gpu_spec(readings)) == Draft(load_device(id_), known=True, differences=differences)


@pytest.mark.parametrize("readings", [T4, A100, H200, MI300X, FUTURE, BARE], ids=lambda each: each.name)
def test_drafts_read_back_equal(readings: GpuReadings, tmp_path: Path) -> None:
    (tmp_path / "draft.toml").write_text(to_toml(spec := gpu_spec(readings)), encoding="utf-8")
    assert load_device(str(tmp_path / "draft.toml")) == spec


def test_gpu_spec_says_what_it_assumes_of_an_unknown_card() -> None:
    draft = compared(gpu_spec(FUTURE))
    spec = draft.spec
    assert not draft.known and draft.differences == ()
    assert spec.id == "nvidia-geforce-rtx-6070-future" and "12.7" in spec.notes and "12.0" in spec.notes
    assert spec.dram_bandwidth_bytes_per_s == 2 * 15e9 * 256 / 8
    for field in ("matrix_flops_per_s", "vector_flops_per_s", "release_date", "max_blocks_per_sm", "base_clock_hz"):
        assert spec.sources[field].startswith("assumption: "), field
    for field in ("sm_count", "boost_clock_hz", "l2_capacity_bytes", "tdp_w", "links"):
        assert spec.sources[field].startswith("reported by the driver"), field


def test_gpu_spec_of_a_silent_driver_has_the_figures_of_its_kin() -> None:
    spec, like = gpu_spec(BARE), load_device("h100-sxm-80gb")
    for field in ("boost_clock_hz", "dram_bandwidth_bytes_per_s", "l2_capacity_bytes", "warp_size", "tdp_w", "links"):
        assert getattr(spec, field) == getattr(like, field), field
        assert spec.sources[field] == f"assumption: as {like.name}; the driver does not say"
    assert spec.vector_flops_per_s["float32"] == pytest.approx(256 * 114 * like.boost_clock_hz, rel=1e-3)
    gtx = replace(T4, name="NVIDIA GeForce GTX 1660")
    assert gpu_spec(gtx).matrix_flops_per_s == {}


def test_known_capability_is_the_newest_below() -> None:
    taken_as = {"13.0": "12.0", "12.1": "12.0", "10.1": "10.0", "8.8": "8.7", "5.3": "5.2", "5.0": "5.2"}
    taken_as |= {"gfx90c": "gfx90a", "gfx1201": "gfx1101", "gfx906": "gfx908"}
    assert {capability: known_capability(capability) for capability in taken_as} == taken_as


@pytest.mark.parametrize(("reported", "compute_units", "mib"), [(4, 304, 32), (24, 228, 24), (4, 38, 4)])
def test_l2_of_several_dies_adds_up(reported: int, compute_units: int, mib: int) -> None:
    readings = replace(MI300X, l2_capacity_bytes=reported * 2**20, sm_count=compute_units)
    assert gpu_spec(readings).l2_capacity_bytes == mib * 2**20


def test_gpu_spec_refuses_an_impossible_figure() -> None:
    with pytest.raises(DeviceError, match=r"^draft of Tesla T4: tdp = 70 MW is impossibly large.*$"):
        gpu_spec(replace(T4, tdp_w=70e6))


# The APIs of PyTorch and NVML where no GPU is.


class NVMLError(Exception):
    pass


def nvml(**answers: Any) -> Any:
    """A stand-in for pynvml that gives these answers, and refuses everything else."""

    def ask(name: str) -> Any:
        def answer(*_: Any) -> Any:
            if name not in answers:
                raise NVMLError
            return answers[name]

        return answer

    constants = {"NVML_CLOCK_SM": 1, "NVML_CLOCK_MEM": 2, "NVML_NVLINK_MAX_LINKS": 18, "NVMLError": NVMLError}
    names = ("MaxClockInfo", "MemoryBusWidth", "PowerManagementDefaultLimit", "MaxPcieLinkGeneration")
    asked = [*names, "MaxPcieLinkWidth", "NvLinkState", "NvLinkVersion", "HandleByUUID"]
    return SimpleNamespace(nvmlInit=lambda: None, **{f"nvmlDeviceGet{n}": ask(n) for n in asked}, **constants)


PROPERTIES = {
    **{"name": "Tesla T4", "major": 7, "minor": 5, "multi_processor_count": 40, "total_memory": 15_843_721_216},
    **{"L2_cache_size": 4_194_304, "warp_size": 32, "max_threads_per_multi_processor": 1024, "uuid": "5a3f"},
    **{"shared_memory_per_multiprocessor": 65_536, "regs_per_multiprocessor": 65_536},
}


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch):
    """Let PyTorch find one GPU with given properties, beside a given NVML (None: not installed)."""
    import torch

    def install(pynvml: Any, hip: str | None = None, **properties: Any) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(**PROPERTIES | properties))
        monkeypatch.setattr(torch.version, "hip", hip)
        monkeypatch.setitem(sys.modules, "pynvml", pynvml)

    return install


def test_read_gpu_joins_pytorch_and_nvml(one_gpu) -> None:
    limits = {"MemoryBusWidth": 256, "PowerManagementDefaultLimit": 70_000, "MaxClockInfo": 1650}
    boards = nvml(HandleByUUID="board", **limits, MaxPcieLinkGeneration=3, MaxPcieLinkWidth=16)
    one_gpu(boards, clock_rate=1_590_000, memory_clock_rate=5_001_000)
    assert read_gpu(0) == T4
    assert draft_device("cuda").known
    one_gpu(boards)
    assert read_gpu(0).boost_clock_hz == 1650e6
    one_gpu(nvml(HandleByUUID="board", NvLinkState=1, NvLinkVersion=4))
    assert (read_gpu(0).nvlinks, read_gpu(0).nvlink_version) == (18, "3.0")


@pytest.mark.parametrize("pynvml", [None, nvml(), nvml(HandleByUUID="board")])
def test_read_gpu_takes_what_pytorch_alone_knows(one_gpu, pynvml: Any) -> None:
    one_gpu(pynvml, clock_rate=1_590_000, memory_clock_rate=5_001_000, memory_bus_width=256)
    assert read_gpu(0) == replace(T4, tdp_w=None, pcie_generation=None, pcie_lanes=None)
    # ROCm names its architecture, and is asked without NVML.
    one_gpu(pynvml, hip="6.4", name="AMD Instinct MI300X", gcnArchName="gfx942:sramecc+:xnack-")
    assert read_gpu(0).compute_capability == "gfx942"


def test_draft_device_refuses_a_missing_gpu(one_gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    one_gpu(None)
    with pytest.raises(DeviceError, match="no GPU 1: PyTorch finds 1"):
        draft_device("cuda", 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match=r"finds no GPU: .* --device cpu"):
        draft_device("cuda")
