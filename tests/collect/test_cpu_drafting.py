"""Drafts of CPUs' device files: no peak below what was measured, stand-ins by name, and a file in every case."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from neusight.collect import drafting
from neusight.collect.drafting import cpu as cpu_module
from neusight.collect.drafting import draft_device
from neusight.collect.drafting.cpu import CpuProbe, CpuReadings, cpu_spec, read_cpu, vector_units
from neusight.devices import DeviceSpec, load_device, to_toml
from neusight.errors import DeviceError

EPYC = CpuReadings(
    model="AMD EPYC 9654 96-Core Processor", flags=frozenset({"avx2", "fma", "avx512f", "avx512_bf16"}),
    vendor="AuthenticAMD", family=25, cores=4, clock_hz=2.4e9, memory_bytes=32 * 2**30, l1_bytes=32 * 2**10,
    l2_bytes=2**20, last_cache_bytes=32 * 2**20,
)  # fmt: skip
XEON = replace(
    EPYC, model="Intel(R) Xeon(R) CPU @ 2.20GHz", vendor="GenuineIntel", family=6,
    flags=frozenset({"avx2", "fma", "avx512f", "amx_bf16", "avx512_bf16", "avx512_fp16"}),
)  # fmt: skip
NOTHING = CpuReadings(model="arm")
SLOW = CpuProbe(
    threads=4, flops_per_s=80e9, thread_flops_per_s=40e9, bytes_per_s=20.01e9, traffic="copy", launch_s=1.04e-6
)


def reads_back_equal(spec: DeviceSpec, tmp_path: Path) -> bool:
    (tmp_path / "draft.toml").write_text(to_toml(spec), encoding="utf-8")
    return load_device(str(tmp_path / "draft.toml")) == spec


@pytest.mark.parametrize(
    ("vendor", "family", "model", "flags", "flops_per_clock"),
    [
        ("AuthenticAMD", 25, "AMD EPYC", "avx512f avx2 fma", 32),
        ("AuthenticAMD", 26, "AMD EPYC", "avx512f avx2 fma", 64),
        ("GenuineIntel", 6, "Intel(R) Xeon(R) Platinum", "avx512f avx2 fma", 64),
        ("GenuineIntel", 6, "11th Gen Intel(R) Core(TM)", "avx512f avx2 fma", 32),
        ("GenuineIntel", 6, "Intel(R) Core(TM)", "avx avx2 fma", 32),
        ("GenuineIntel", 6, "Intel(R) Core(TM)", "avx", 16),
        ("", 0, "aarch64", "fp asimd", 16),
        ("", 0, "aarch64", "fp asimd sve", 32),
        ("", 0, "arm", "", 32),
        ("", 0, "arm", "neon", 8),
        ("", 0, "riscv64", "", 8),
    ],
)
def test_vector_units_follow_flags(vendor: str, family: int, model: str, flags: str, flops_per_clock: int) -> None:
    cpu = CpuReadings(model=model, flags=frozenset(flags.split()), vendor=vendor, family=family)
    assert vector_units(cpu).flops_per_clock == flops_per_clock


def test_cpu_spec_has_the_peaks_of_its_clock(tmp_path: Path) -> None:
    spec = cpu_spec(EPYC, SLOW)
    assert (spec.id, spec.vendor, spec.sm_count, spec.boost_clock_hz) == ("cpu-amd-epyc-9654-4c", "other", 4, 2.4e9)
    per_clock = {"float64": 16, "float32": 32, "bfloat16": 32}
    assert spec.vector_flops_per_s == {dtype: 4 * 2.4e9 * flops for dtype, flops in per_clock.items()}
    assert spec.matrix_flops_per_s == {"bfloat16": 4 * 2.4e9 * 64}
    caches = (spec.l2_capacity_bytes, spec.shared_memory_per_sm_bytes, spec.registers_per_sm)
    assert caches == (32 * 2**20, 2**20, 8192)
    assert spec.sources["dram_bandwidth_bytes_per_s"] == "measured by neusight: copy of 256 MiB"
    assert 20.01e9 <= spec.dram_bandwidth_bytes_per_s <= 20.2e9 and spec.launch_overhead_s == pytest.approx(1.04e-6)
    tiles = cpu_spec(XEON, SLOW)
    assert (tiles.id, tiles.matrix_flops_per_s) == ("cpu-intel-xeon-4c", {"bfloat16": 4 * 2.4e9 * 1024})
    assert tiles.vector_flops_per_s["float16"] == 2 * tiles.vector_flops_per_s["float32"] == 4 * 2.4e9 * 128
    assert reads_back_equal(spec, tmp_path) and reads_back_equal(tiles, tmp_path)
    assert cpu_spec(EPYC, replace(SLOW, threads=2)).id == "cpu-amd-epyc-9654-2c"


@pytest.mark.parametrize(
    ("cpu", "probed", "source"),
    [
        (EPYC, {"flops_per_s": 412.345e9}, "2400 MHz are reported"),
        (EPYC, {"thread_flops_per_s": 110.17e9}, "2400 MHz are reported"),
        # A rate beyond any clock means wider units.
        (CpuReadings(model="riscv64"), {"flops_per_s": 1.0, "thread_flops_per_s": 100e9}, "no clock is reported"),
        (NOTHING, {"flops_per_s": 1.0, "thread_flops_per_s": 1500e9}, "no clock is reported"),
    ],
)
def test_cpu_spec_has_no_peak_below_the_probe(cpu: CpuReadings, probed: dict, source: str, tmp_path: Path) -> None:
    probe = replace(SLOW, **probed)
    spec, reached = cpu_spec(cpu, probe), max(probe.flops_per_s, cpu.cores * probe.thread_flops_per_s)
    assert reached <= spec.vector_flops_per_s["float32"] <= 1.01 * reached
    assert source in spec.sources["boost_clock_hz"] and spec.boost_clock_hz <= 6.5e9
    assert ("by measurement wider" in spec.sources["vector_flops_per_s"]) == (cpu is not EPYC)
    assert reads_back_equal(spec, tmp_path)


def test_cpu_spec_says_what_it_assumes() -> None:
    spec = cpu_spec(NOTHING, SLOW)
    for field in ("dram_capacity_bytes", "l2_capacity_bytes", "shared_memory_per_sm_bytes", "registers_per_sm"):
        assert spec.sources[field].startswith("assumption: "), field
    assert (spec.l2_capacity_bytes, spec.tdp_w) == (2 * 2**20, 10.0)


CPUINFO = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model name\t: Intel(R) Xeon(R) CPU @ 2.20GHz
cpu MHz\t\t: 2200.152
flags\t\t: fpu avx2 fma

processor\t: 1
vendor_id\t: AuthenticAMD"""


def test_read_cpu_counts_caches_and_cores_of_hardware_threads(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_module, "_allowed_cores", lambda: [0, 1, 2, 3])
    files = {"proc/cpuinfo": CPUINFO, "proc/meminfo": "MemTotal:       16000000 kB\nMemFree: 1 kB"}
    for cpu in range(4):
        own, group = f"{cpu % 2},{cpu % 2 + 2}", "0-1" if cpu % 2 else "2-3"
        here = f"sys/devices/system/cpu/cpu{cpu}"
        files[f"{here}/topology/thread_siblings_list"] = own
        first = [("1", "Instruction", "64K", own), ("1", "Data", "48K", own)]
        for index, cache in enumerate([*first, ("2", "Unified", "2048K", own), ("3", "Unified", "36M", group)]):
            names = ("level", "type", "size", "shared_cpu_list")
            files |= {f"{here}/cache/index{index}/{n}": t for n, t in zip(names, cache, strict=True)}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n", encoding="utf-8")
    assert read_cpu(tmp_path) == CpuReadings(
        model="Intel(R) Xeon(R) CPU @ 2.20GHz", flags=frozenset({"fpu", "avx2", "fma"}), vendor="GenuineIntel",
        family=6, cores=2, clock_hz=2200.152e6, memory_bytes=16_000_000 * 1024, l1_bytes=48 * 2**10,
        l2_bytes=2 * 2**20, last_cache_bytes=2 * 36 * 2**20,
    )  # fmt: skip
    bare = read_cpu(tmp_path / "none")
    assert bare.model and bare.cores >= 1
    assert (bare.clock_hz, bare.l1_bytes, bare.last_cache_bytes, bare.flags) == (None, None, None, frozenset())


def test_draft_device_reaches_what_the_probe_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probe, threads = cpu_module.probe_cpu(), torch.get_num_threads()
    monkeypatch.setattr(drafting, "probe_cpu", lambda: probe)
    draft = draft_device("cpu")
    assert not draft.known and draft.differences == () and draft.spec.id.startswith("cpu-")
    assert reads_back_equal(draft.spec, tmp_path)
    # However busy the machine was.
    assert draft.spec.vector_flops_per_s["float32"] >= probe.flops_per_s
    assert draft.spec.dram_bandwidth_bytes_per_s >= probe.bytes_per_s
    cpu_module._product_flops_per_s(threads + 1)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(("target", "index", "message"), [("cpu", 1, "no CPU 1"), ("tpu", 0, "unknown kind .* 'tpu'")])
def test_draft_device_refuses_other_devices(target: str, index: int, message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        draft_device(target, index)
