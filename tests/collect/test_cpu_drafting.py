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
    path = tmp_path / "draft.toml"
    path.write_text(to_toml(spec), encoding="utf-8")
    return load_device(str(path)) == spec


def test_vector_units_by_flags() -> None:
    for vendor, family, model, flags, flops_per_clock in (
        ("AuthenticAMD", 25, "AMD EPYC", "avx512f avx2 fma", 32),
        ("AuthenticAMD", 26, "AMD EPYC", "avx512f avx2 fma", 64),
        ("GenuineIntel", 6, "Intel(R) Xeon(R) Platinum", "avx512f avx2 fma", 64),
        ("GenuineIntel", 6, "11th Gen Intel(R) Core(TM)", "avx512f avx2 fma", 32),
        ("GenuineIntel", 6, "Intel(R) Core(TM)", "avx avx2 fma", 32),
        ("GenuineIntel", 6, "Intel(R) Core(TM)", "avx", 16),
        ("", 0, "aarch64", "fp asimd", 16),
        ("", 0, "aarch64", "fp asimd sve", 32),
        ("", 0, "arm", "", 32),
        ("", 0, "riscv64", "", 8),
    ):
        cpu = CpuReadings(model=model, flags=frozenset(flags.split()), vendor=vendor, family=family)
        assert vector_units(cpu).flops_per_clock == flops_per_clock, cpu


def test_a_cpu_has_the_peak_that_its_clock_gives() -> None:
    spec = cpu_spec(EPYC, SLOW)
    assert (spec.id, spec.vendor, spec.sm_count) == ("cpu-amd-epyc-9654-4c", "other", 4)
    assert spec.boost_clock_hz == 2.4e9
    per_clock = {"float64": 16, "float32": 32, "bfloat16": 32}
    assert spec.vector_flops_per_s == {dtype: 4 * 2.4e9 * flops for dtype, flops in per_clock.items()}
    assert spec.matrix_flops_per_s == {"bfloat16": 4 * 2.4e9 * 64}
    assert spec.l2_capacity_bytes == 32 * 2**20
    assert (spec.shared_memory_per_sm_bytes, spec.registers_per_sm) == (2**20, 8192)


def test_no_peak_lies_below_what_the_probe_reached() -> None:
    for changed in ({"flops_per_s": 412.345e9}, {"thread_flops_per_s": 110.17e9}):
        probe = replace(SLOW, **changed)
        spec, reached = cpu_spec(EPYC, probe), max(probe.flops_per_s, 4 * probe.thread_flops_per_s)
        assert reached <= spec.vector_flops_per_s["float32"] <= 1.01 * reached
        assert spec.base_clock_hz == 2.4e9
        assert spec.sources["boost_clock_hz"].startswith("measured by neusight: float32 products reached")
        assert "2400 MHz are reported" in spec.sources["boost_clock_hz"]
    spec = cpu_spec(EPYC, SLOW)
    assert 20.01e9 <= spec.dram_bandwidth_bytes_per_s <= 20.2e9
    assert spec.sources["dram_bandwidth_bytes_per_s"] == "measured by neusight: copy of 256 MiB"
    assert spec.launch_overhead_s == pytest.approx(1.04e-6)


def test_tiles_and_half_precision_of_the_newest_server_processors() -> None:
    spec = cpu_spec(XEON, SLOW)
    assert spec.id == "cpu-intel-xeon-4c"
    assert spec.matrix_flops_per_s == {"bfloat16": 4 * 2.4e9 * 1024}
    assert spec.vector_flops_per_s["float16"] == 2 * spec.vector_flops_per_s["float32"] == 4 * 2.4e9 * 128


def test_a_rate_beyond_any_clock_means_wider_units(tmp_path: Path) -> None:
    for cpu, reached in ((CpuReadings(model="riscv64"), 100e9), (NOTHING, 1500e9)):
        spec = cpu_spec(cpu, replace(SLOW, thread_flops_per_s=reached))
        assert 3e9 <= spec.boost_clock_hz <= 6.5e9
        assert reached <= spec.vector_flops_per_s["float32"] <= 1.01 * reached
        assert "by measurement wider" in spec.sources["vector_flops_per_s"]
        assert reads_back_equal(spec, tmp_path)


def test_drafted_cpus_read_back_equal_and_fewer_threads_are_the_device(tmp_path: Path) -> None:
    assert all(reads_back_equal(cpu_spec(cpu, SLOW), tmp_path) for cpu in (EPYC, XEON, NOTHING))
    assert cpu_spec(EPYC, replace(SLOW, threads=2)).id == "cpu-amd-epyc-9654-2c"


def test_a_cpu_of_which_nothing_is_known_says_what_it_assumes() -> None:
    spec = cpu_spec(NOTHING, SLOW)
    for field in ("dram_capacity_bytes", "l2_capacity_bytes", "shared_memory_per_sm_bytes", "registers_per_sm"):
        assert spec.sources[field].startswith("assumption: "), field
    assert spec.vector_flops_per_s["float32"] >= 80e9


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n", encoding="utf-8")


CPUINFO = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model name\t: Intel(R) Xeon(R) CPU @ 2.20GHz
cpu MHz\t\t: 2200.152
flags\t\t: fpu avx2 fma

processor\t: 1
vendor_id\t: GenuineIntel"""


def test_caches_and_cores_of_a_machine_with_two_threads_a_core(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_module, "_allowed", lambda: [0, 1, 2, 3])
    write(tmp_path, {"proc/cpuinfo": CPUINFO, "proc/meminfo": "MemTotal:       16000000 kB\nMemFree: 1 kB"})
    for cpu in range(4):
        own, group = f"{cpu % 2},{cpu % 2 + 2}", "0-1" if cpu % 2 else "2-3"
        here = f"sys/devices/system/cpu/cpu{cpu}"
        write(tmp_path, {f"{here}/topology/thread_siblings_list": own})
        first = [("1", "Instruction", "64K", own), ("1", "Data", "48K", own)]
        for index, cache in enumerate([*first, ("2", "Unified", "2048K", own), ("3", "Unified", "36M", group)]):
            names = ("level", "type", "size", "shared_cpu_list")
            write(tmp_path, {f"{here}/cache/index{index}/{n}": t for n, t in zip(names, cache, strict=True)})
    assert read_cpu(tmp_path) == CpuReadings(
        model="Intel(R) Xeon(R) CPU @ 2.20GHz", flags=frozenset({"fpu", "avx2", "fma"}), vendor="GenuineIntel",
        family=6, cores=2, clock_hz=2200.152e6, memory_bytes=16_000_000 * 1024, l1_bytes=48 * 2**10,
        l2_bytes=2 * 2**20, last_cache_bytes=2 * 36 * 2**20,
    )  # fmt: skip
    write(tmp_path, {"sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "3700000"})
    assert read_cpu(tmp_path).clock_hz == 3.7e9


def test_a_machine_that_shows_no_files_still_has_cores(tmp_path: Path) -> None:
    cpu = read_cpu(tmp_path)
    assert cpu.model and cpu.cores >= 1
    assert (cpu.clock_hz, cpu.l1_bytes, cpu.last_cache_bytes, cpu.flags) == (None, None, None, frozenset())


def test_the_cpu_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probe, threads = cpu_module.probe_cpu(), torch.get_num_threads()
    monkeypatch.setattr(drafting, "probe_cpu", lambda: probe)
    draft = draft_device("cpu")
    assert not draft.known and draft.differences == ()
    assert draft.spec.id.startswith("cpu-")
    assert reads_back_equal(draft.spec, tmp_path)
    # What the probe reached can be had, however busy the machine was.
    assert draft.spec.vector_flops_per_s["float32"] >= probe.flops_per_s
    assert draft.spec.dram_bandwidth_bytes_per_s >= probe.bytes_per_s
    cpu_module._product_flops_per_s(threads + 1)
    assert torch.get_num_threads() == threads


def test_devices_that_are_not_there() -> None:
    for target, index, message in (("cpu", 1, "no CPU 1"), ("tpu", 0, r"unknown kind .* 'tpu'")):
        with pytest.raises(DeviceError, match=message):
            draft_device(target, index)
