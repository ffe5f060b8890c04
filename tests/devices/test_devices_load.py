"""Loading devices: names, files, variants, and one line for every mistake."""

from __future__ import annotations

import math
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest

import neusight.devices
from neusight.devices import gpu_of, list_devices, list_gpus, load_device, load_gpu, to_toml
from neusight.devices.load import find_device
from neusight.errors import DeviceError, NeusightError, UnitError


@pytest.fixture
def mine(tmp_path: Path):
    """Write the L4's file with one text replaced, and give its path."""

    def write(old: str = "", new: str = "") -> str:
        text = to_toml(load_device("l4"))
        assert old in text
        path = tmp_path / "mine.toml"
        path.write_text(text.replace(old, new, 1) if old else text + new, encoding="utf-8")
        return str(path)

    return write


def faults(load: Callable[[], object], kind: type[NeusightError], parts: Iterable[str]) -> str:
    """What is wrong with the error that something wrong gives; '' for a right one."""
    try:
        load()
    except kind as error:
        message = str(error)
        missing = [part for part in parts if part not in message]
        short = "\n" not in message and "pydantic" not in message.lower()
        return "" if short and not missing else f"{message!r} without {missing}"
    return "accepted"


def test_ids_and_names_that_drivers_report_in_any_case() -> None:
    reported = {
        "Tesla V100-PCIE-32GB": "v100-pcie-32gb",
        "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
        "Tesla T4": "t4",
        "NVIDIA H100 80GB HBM3": "h100-sxm-80gb",
        "AMD Instinct MI100": "mi100",
    } | dict.fromkeys(("l4", "L4", " l4 ", "NVIDIA L4", "nvidia l4"), "l4")
    assert {name: load_device(name).id for name in reported} == reported
    assert not any(find_device(name).request for name in reported)


def test_short_names_are_the_only_device_that_has_them_or_the_customary_one() -> None:
    short = {
        **{"h100": "h100-sxm-80gb", "a100": "a100-sxm-80gb", "v100": "v100-sxm2-16gb", "NVIDIA H100": "h100-sxm-80gb"},
        **dict.fromkeys(("4090", "rtx4090", "RTX 4090", "geforce rtx 4090"), "rtx-4090"),
        **{"H100 SXM": "h100-sxm-80gb", "h100 pcie": "h100-pcie-80gb", "A100 80GB": "a100-sxm-80gb"},
        **{"2080ti": "rtx-2080-ti", "a6000": "rtx-a6000", "6000 ada": "rtx-6000-ada", "b200": "b200-sxm-180gb"},
        # The plain board, where others have its name and more.
        **{"4070": "rtx-4070", "4070 Ti": "rtx-4070-ti", "RTX 4070 SUPER": "rtx-4070-super", "3080": "rtx-3080"},
        **{"rtx 2080": "rtx-2080", "1080": "gtx-1080", "7900 XT": "rx-7900-xt", "4060": "rtx-4060"},
        **{"RTX 4060 Ti": "rtx-4060-ti-8gb", "4060 ti 16gb": "rtx-4060-ti-16gb", "5060 Ti 16GB": "rtx-5060-ti-16gb"},
        **{"titan v": "titan-v", "rtx a2000": "rtx-a2000-12gb", "h800": "h800-sxm-80gb", "gh200": "gh200-96gb"},
    }
    assert {name: find_device(name).name for name in short} == short
    assert find_device("v100 32gb pcie").assumption == "v100 32gb pcie taken as v100-pcie-32gb"
    others = "a100-pcie-40gb, a100-pcie-80gb, a100-sxm-40gb"
    assert find_device("a100").assumption == f"a100 taken as a100-sxm-80gb; others: {others}"
    assert find_device("4090").assumption == "4090 taken as rtx-4090"
    with pytest.warns(UserWarning, match="h100 taken as h100-sxm-80gb"):
        assert load_device("h100").id == "h100-sxm-80gb"


def test_every_customary_device_is_one_that_its_short_name_fits() -> None:
    file = Path(neusight.devices.__file__).parent / "customary.toml"
    customary = tomllib.loads(file.read_text(encoding="utf-8"))
    assert {short: find_device(short).name for short in customary} == customary
    assert all(find_device(short).others for short in customary)


def test_a_file_of_the_user(mine) -> None:
    spec = load_device(mine('id = "l4"', 'id = "mine"'))
    assert spec.id == "mine"
    assert spec.original == load_device("l4")
    assert spec.model_copy(update={"id": "l4", "original": None}) == load_device("l4")


@pytest.mark.parametrize("board", ["h100-sxm-80gb", "mi300x", "tpu-v5e", "rtx-4090"])
@pytest.mark.parametrize(("names", "figure"), [(True, 1.0), (True, 1.2), (False, 1.0)])
def test_load_device_knows_the_die_of_a_copy(board: str, names: bool, figure: float, tmp_path: Path) -> None:
    known = load_device(board)
    changes = {"id": "copy", "aliases": (), "dram_bandwidth_bytes_per_s": figure * known.dram_bandwidth_bytes_per_s}
    (tmp_path / "copy.toml").write_text(to_toml(known.model_copy(update=changes | ({} if names else {"name": "Copy"}))))
    copy = load_device(str(tmp_path / "copy.toml"))
    assert copy.original is not None
    assert (copy.original.id, copy.facts) == (board, known.facts)
    assert copy.distance == pytest.approx(math.log(figure), abs=1e-9)
    assert board in copy.likeness[0]
    assert ("20%" in copy.likeness[0]) == (figure > 1.0)


def test_load_device_knows_no_board_of_another_die(mine) -> None:
    other = load_device(mine('id = "l4"\n', 'id = "mine"\n'), ["sm_count=50"])
    assert load_device("l4").likeness == ()
    assert load_device("l4", ["dram_bandwidth=400GB/s"]).likeness == ()
    assert other.likeness == ()
    path = mine("sm_count = 58", "sm_count = 50")
    Path(path).write_text(Path(path).read_text().replace('id = "l4"', 'id = "mine"'))
    assert load_device(path).original is None


def test_names_and_files_that_are_none(tmp_path: Path, mine) -> None:
    (tmp_path / "x.toml").write_bytes(b"\xff\xfe\x00\x80")
    wrong = {
        "a100-pcie-80": ["unknown device 'a100-pcie-80'", "did you mean", "a100-pcie-80gb"],
        "zzzzzzzz": ["neusight devices list"],
        "rtx 5000": ["'rtx 5000' may be quadro-rtx-5000, rtx-5000-ada: name one"],
        "titan": ["may be titan-rtx, titan-v, titan-xp"],
        "6000": ["may be quadro-rtx-6000, rtx-6000-ada, rtx-pro-6000-max-q"],
        "80gb": ["unknown device"],
        "h" * 20_000: ["unknown device 'hhh", "…"],
        str(tmp_path / "absent.toml"): ["absent.toml", "no such file", "check the path"],
        f"{tmp_path}/": ["directory"],
        "~nobody-of-this-name/x.toml": ["no such file"],
        str(tmp_path / "x.toml"): ["x.toml", "UTF-8"],
        mine('name = "NVIDIA L4"', "name = = 4"): ["mine.toml", "line 2"],
    }
    found = {name[:60]: faults(partial(load_device, name), DeviceError, parts) for name, parts in wrong.items()}
    assert not {name: fault for name, fault in found.items() if fault}


MISTAKES: list[tuple[str, str, type[NeusightError], list[str]]] = [
    ("dram_bandwidth =", "dram_bandwith =", DeviceError, ["unknown key 'dram_bandwith'", "dram_bandwidth"]),
    ('vendor = "nvidia"', 'vendor = "nvidea"', DeviceError, ["vendor", "nvidia"]),
    ("sm_count = 58", "sm_count = 0", DeviceError, ["sm_count = 0", "not above zero"]),
    ("sm_count = 58", "sm_count = -58", DeviceError, ["sm_count", "not above zero"]),
    ("sm_count = 58", 'sm_count = "58"', DeviceError, ["sm_count", "whole number"]),
    ("sm_count = 58", "sm_count = 58.5", DeviceError, ["sm_count", "whole number"]),
    ("sm_count = 58", "sm_count = true", DeviceError, ["sm_count", "whole number"]),
    ("sm_count = 58\n", "", DeviceError, ["sm_count missing", "add it"]),
    ('"300 GB/s"', '"300 TB/s"', DeviceError, ["dram_bandwidth", "impossibly large"]),
    ('"300 GB/s"', '"300 kB/s"', DeviceError, ["dram_bandwidth", "impossibly small"]),
    ('"300 GB/s"', '"300 GB"', UnitError, ["dram_bandwidth", "unit 'GB'", "4.8TB/s"]),
    ('"300 GB/s"', "300", UnitError, ["dram_bandwidth", "no unit"]),
    ('"300 GB/s"', '"fast"', UnitError, ["dram_bandwidth", "cannot read 'fast'"]),
    ('"300 GB/s"', '"-300 GB/s"', DeviceError, ["dram_bandwidth", "not above zero"]),
    ('"300 GB/s"', '"1e999 GB/s"', DeviceError, ["dram_bandwidth", "impossibly large"]),
    ('tdp = "72 W"', 'tdp = "72 GB"', UnitError, ["tdp", "unit 'GB'"]),
    ('base_clock = "795 MHz"', 'base_clock = "2795 MHz"', DeviceError, ["base_clock is above boost_clock"]),
    ('dram_capacity = "24 GB"', 'dram_capacity = "22 GB"', DeviceError, ["dram_usable is above dram_capacity"]),
    ('kind = "gpu"', 'kind = "gpus"', DeviceError, ["unknown kind 'gpus'", "gpu"]),
    ('float32 = "30.3 TFLOP/s"', 'float32 = "-1 TFLOP/s"', DeviceError, ["vector_flops.float32", "not above"]),
    ('bfloat16 = "121 TFLOP/s"', 'bf16 = "121 TFLOP/s"', DeviceError, ["dtype in matrix_flops 'bf16'", "bfloat16"]),
    ("release_date = 2023-03-21", 'release_date = "2023"', DeviceError, ["release_date", "date"]),
    ('compute_capability = "8.9"', "compute_capability = 8.9", DeviceError, ["compute_capability", "text"]),
    ("max_threads_per_sm = 1536", "max_threads_per_sm = 16", DeviceError, ["max_threads_per_sm", "warp_size"]),
    ('kind = "pcie"', 'kind = "pcie3"', DeviceError, ["kind in links", "pcie"]),
    ('bandwidth = "31.5 GB/s"', 'bandwidth = "31.5 GB"', UnitError, ["links.bandwidth", "unit 'GB'"]),
    ('bandwidth = "31.5 GB/s"\n', 'bandwidth = "31.5 GB/s"\ntopology = "zzz"\n', DeviceError, ["topology", "bridge"]),
    ('bandwidth = "31.5 GB/s"\n', "", DeviceError, ["links", "bandwidth missing"]),
    ('name = "NVIDIA L4"', 'name = ""', DeviceError, ["name", "text"]),
    ('aliases = ["NVIDIA L4"]', 'aliases = "NVIDIA L4"', DeviceError, ["aliases", "list of strings"]),
    ('["dram_usable"]', "[]", DeviceError, ["dram_usable without a source", "[sources]"]),
    ('["dram_usable"]', "[7]", DeviceError, ["sources", "list keys"]),
    ('["dram_usable"]', '["dram_usabel"]', DeviceError, ["key in sources", "dram_usable"]),
    ("[vector_flops]\n", '[vector_flops]\nint8 = "1 TFLOP/s"\n', DeviceError, ["vector_flops.int8 without a source"]),
]


def test_each_mistake_is_one_line_with_file_field_and_remedy(mine) -> None:
    found = {
        (old, new): faults(partial(load_device, mine(old, new)), kind, ["mine.toml", *parts])
        for old, new, kind, parts in MISTAKES
    }
    assert not {change: fault for change, fault in found.items() if fault}


def test_figures_that_are_possible_if_unusual_pass(mine) -> None:
    for old, new, field, size in (
        ('l2_capacity = "48 MiB"', 'l2_capacity = "9 GB"', "l2_capacity_bytes", 9e9),
        ('dram_capacity = "24 GB"', 'dram_capacity = "80 GB"', "dram_capacity_bytes", 80e9),
    ):
        assert getattr(load_device(mine(old, new)), field) == size


def test_a_variant_changes_what_was_said_and_says_so() -> None:
    base, spec = load_device("l4"), load_device("l4", ["dram_bandwidth=4.8TB/s", "matrix_flops.bfloat16=2PFLOP/s"])
    assert spec.id == "l4"
    assert spec.dram_bandwidth_bytes_per_s == 4.8e12
    assert spec.matrix_flops_per_s == {**base.matrix_flops_per_s, "bfloat16": 2e15}
    assert spec.vector_flops_per_s == base.vector_flops_per_s
    assert spec.hypothetical == ("dram_bandwidth=4.8TB/s", "matrix_flops.bfloat16=2PFLOP/s")
    assert "set by the user" in spec.sources["dram_bandwidth_bytes_per_s"]
    assert load_device("l4") == base


def test_rates_follow_multiprocessors_and_clock() -> None:
    base, spec = load_device("l4"), load_device("l4", ["sm_count=116", "vector_flops.float32=40TFLOP/s"])
    assert spec.sm_count == 116
    assert spec.matrix_flops_per_s["float16"] == pytest.approx(2 * base.matrix_flops_per_s["float16"])
    assert spec.vector_flops_per_s["float16"] == pytest.approx(2 * base.vector_flops_per_s["float16"])
    assert spec.vector_flops_per_s["float32"] == 40e12
    assert any(change.startswith("rates=x2") for change in spec.hypothetical)


def test_links_of_a_variant() -> None:
    spec = load_device("h100-sxm-80gb", ["links.nvlink=900GB/s", "links.xe-link=1GB/s"])
    speed = {link.kind: link.bandwidth_bytes_per_s for link in spec.links}
    assert speed == {"pcie": 63e9, "nvlink": 900e9, "xe-link": 1e9}


def test_how_links_join_devices() -> None:
    joined = {gpu: load_device(gpu).links[0].joins for gpu in ("h100-sxm-80gb", "h100-pcie-80gb", "v100-sxm2-32gb")}
    assert joined == {"h100-sxm-80gb": "switch", "h100-pcie-80gb": "bridge", "v100-sxm2-32gb": "mesh"}
    assert (load_device("l4").links[0].joins, load_device("mi300x").links[0].joins) == ("host", "mesh")
    faster = load_device("a40", ["links.nvlink=900GB/s"])
    assert {link.kind: link.joins for link in faster.links} == {"nvlink": "bridge", "pcie": "host"}


def test_a_variant_written_and_read_stays_a_variant(tmp_path: Path) -> None:
    spec = load_device("l4", ["sm_count=144", "matrix_flops.float4=1PFLOP/s", "links.nvlink=900GB/s"])
    path = tmp_path / "variant.toml"
    path.write_text(to_toml(spec), encoding="utf-8")
    assert load_device(str(path)) == spec


WRONG_CHANGES: list[tuple[list[str], type[NeusightError], list[str]]] = [
    (["dram_bandwidth"], DeviceError, ["--set dram_bandwidth", "key=value"]),
    (["dram_bandwidth="], DeviceError, ["key=value"]),
    (["dram_bandwith=1TB/s"], DeviceError, ["unknown key 'dram_bandwith'", "dram_bandwidth"]),
    (["dram_bandwidth=1TB"], UnitError, ["dram_bandwidth", "unit 'TB'"]),
    (["dram_bandwidth=4.8"], UnitError, ["dram_bandwidth", "no unit"]),
    (["dram_bandwidth=480TB/s"], DeviceError, ["impossibly large"]),
    (["tdp=-1W"], DeviceError, ["tdp", "not above zero"]),
    (["sm_count=many"], DeviceError, ["sm_count", "whole number"]),
    (["sm_count=-4"], DeviceError, ["sm_count", "not above zero"]),
    (["matrix_flops=1PFLOP/s"], DeviceError, ["needs its dtype"]),
    (["matrix_flops.bf16=1PFLOP/s"], DeviceError, ["bf16", "bfloat16"]),
    (["links.nvlnk=1GB/s"], DeviceError, ["nvlnk", "nvlink"]),
    (["base_clock=9GHz"], DeviceError, ["base_clock is above boost_clock"]),
    (["name=other"], DeviceError, ["unknown key 'name'"]),
    (["sm_count=99", "tdp=80W", " sm_count =98"], DeviceError, ["--set sm_count: given twice"]),
    (["l2_capacity=9GB", "dram_capacity=8GB"], DeviceError, ["l2_capacity is not below dram_capacity"]),
    (["memory_cache_capacity=64MiB"], DeviceError, ["memory_cache_bandwidth go together", "give both"]),
]


def test_mistakes_in_variants() -> None:
    found = {
        str(changes): faults(partial(load_device, "l4", changes), kind, ["--set", *parts])
        for changes, kind, parts in WRONG_CHANGES
    }
    assert not {changes: fault for changes, fault in found.items() if fault}


def test_dtype_that_the_device_lacks() -> None:
    rate = partial(load_device("v100-pcie-32gb").gemm_flops_per_s, "bfloat16")
    assert not faults(rate, DeviceError, ["v100-pcie-32gb", "bfloat16", "float16"])


def test_loading_a_device_imports_nothing_heavy() -> None:
    heavy = {"torch", "numpy", "pandas", "transformers", "lightgbm", "sklearn", "matplotlib", "scipy", "pyarrow"}
    code = "import sys; from neusight.devices import load_device; load_device('l4'); print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not heavy & set(out.stdout.split())


def test_only_the_file_that_is_asked_for_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    real = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path, **kw: read.append(path.name) or real(path, **kw))
    load_device("l4")
    assert read == ["l4.toml"]


def test_what_must_be_a_gpu_refuses_another_kind() -> None:
    with pytest.raises(DeviceError, match="tpu-v4 is a device of kind systolic"):
        gpu_of(load_device("tpu-v4"))
    assert load_gpu("t4") == load_device("t4")
    assert {spec.kind for spec in list_gpus()} == {"gpu"} != {spec.kind for spec in list_devices()}
