"""Bad input at the command line: one line that says what, where and the remedy; exit 1, or 2 for usage."""

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from cli_runs import error, invoke, run, unsaid

from neusight.devices import load_device, to_toml
from neusight.paths import tile_models_dir

ON_L4 = ("predict", "gpt2", "--gpu", "l4")


def test_names_figures_and_sizes_that_are_none() -> None:
    wrong: dict[tuple[object, ...], str] = {
        ("predict", "gpt2", "--gpu", "a100-pci-80gb"): "'a100-pci-80gb'; did you mean a100-pcie-80gb",
        ("predict", "gpt2", "--gpu", "l4,l44", "--format", "json"): "'l44'",
        ("predict", "gpt2", "--gpu", "6000"): "may be quadro-rtx-6000, rtx-6000-ada, rtx-pro-6000-max-q",
        ("predict", "gpt2-lrage", "--gpu", "l4"): "did you mean gpt2-large",
        ("predict", "gpt2", "--gpu", "./nowhere.toml"): "nowhere.toml",
        (*ON_L4, "--set", "dram_bandwidth=4.8TB"): "unit 'TB'",
        (*ON_L4, "--set", "dram_bandwith=4.8TB/s"): "did you mean dram_bandwidth",
        (*ON_L4, "--set", "tdp=80W", "--set", "tdp=90W"): "--set tdp: given twice",
        ("predict", "gpt2-large", "--gpu", "l4", "--seq-len", 4096): "longer than gpt2-large allows: at most 1024",
        ("predict", "gpt2", "--gpu", "v100-pcie-32gb", "--dtype", "bf16"): "does not compute in bfloat16: it has float",
        (*ON_L4, "--dtype", "floot32"): "floot32",
        (*ON_L4, "--sparsity", "weights=2"): "weights",
        ("sweep", "gpt2", "--gpu", "l4,l44"): "'l44'",
        ("kernel", "gemm", "m=1", "n=1", "q=1", "--gpu", "l4"): "gemm has no field 'q'",
        ("kernel", "gemm", "m=1", "n=1", "--gpu", "l4"): "gemm needs k",
        ("tile-models", "show", "nonsense"): "'nonsense'",
    }
    assert not unsaid(wrong)
    assert "4.8TB/s" in error(*ON_L4, "--set", "dram_bandwidth=4.8TB")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("workloads", "list"), "`neusight workloads` is now `neusight models`"),
        (("models", "list", "--serving"), "--serving is now --decoders"),
        (("models", "list", "--tile-models", "here"), "--tile-models is now an option of `neusight tile-models`"),
        (("models", "show", "gemm"), "give `neusight tile-models show gemm`"),
        (("models", "show", "physics"), "give `neusight tile-models show physics`"),
    ],
)
def test_former_commands_name_those_of_today(words: tuple[str, ...], line: str) -> None:
    result = invoke(*words)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert line in result.stderr


def test_malformed_device_files(tmp_path: Path) -> None:
    text, file = to_toml(load_device("l4")), tmp_path / "mine.toml"
    for old, new, message in (
        ("sm_count = 58", "sm_count = -58", "sm_count"),
        ("sm_count = 58", "sm_cuont = 58", "did you mean sm_count"),
        ('dram_bandwidth = "300 GB/s"', 'dram_bandwidth = "300 GB"', "dram_bandwidth"),
        ('id = "l4"', 'id = "l4', "not valid TOML"),
    ):
        assert old in text
        file.write_text(text.replace(old, new))
        line = error("predict", "gpt2", "--gpu", file)
        assert message in line
        assert "mine.toml" in line


def test_files_that_are_none(tmp_path: Path) -> None:
    good = tmp_path / "good.parquet"
    pd.DataFrame({"gpu": ["l4"], "latency_ms": [1.0]}).to_parquet(good)
    (tmp_path / "cut.parquet").write_bytes(good.read_bytes()[:-20])
    pd.DataFrame({"cat": ["Tom"], "mouse": ["Jerry"]}).to_parquet(tmp_path / "pets.parquet")
    for name in ("cut.parquet", "pets.parquet", "none.parquet"):
        assert name in error("evaluate", tmp_path / name)
    wrong: dict[tuple[object, ...], str] = {
        ("evaluate", tmp_path / "good.parquet"): "model is missing",
        ("evaluate", tmp_path / "no*.csv"): "no file matches",
        (*ON_L4, "--tile-models", tmp_path): str(tmp_path),
        ("bench", "--tile-models", tmp_path): str(tmp_path),
        ("datasets", "verify", tmp_path / "nothing"): "nothing",
        ("datasets", "import", tmp_path, tmp_path): "there already",
    }
    assert not unsaid(wrong)
    config = tmp_path / "config.json"
    for text in ("{", "{}", "[]", '{"a":' * 6000):
        config.write_text(text)
        assert "config.json" in error("predict", config, "--gpu", "l4")


def test_tile_models_that_differ_or_are_damaged(tmp_path: Path) -> None:
    models = tmp_path / "models"
    shutil.copytree(tile_models_dir(), models)
    manifest = models / "gemm" / "manifest.json"
    content = json.loads(manifest.read_text())
    features = ["phase_of_the_moon", *content["contract"]["features"][1:]]
    strange = content | {"contract": content["contract"] | {"features": features}}
    for text, message in (
        (json.dumps(strange), "phase_of_the_moon"),
        (json.dumps(content | {"protocol": 99}), "protocol 99"),
        (json.dumps(content | {"weights_sha256": "0" * 64}), "sha256"),
        (manifest.read_text()[:-20], "manifest.json"),
        ("[" * 6000, "manifest.json"),
    ):
        manifest.write_text(text)
        line = error(*ON_L4, "--tile-models", models)
        assert message in line
        assert str(manifest.parent) in line


STRANGE = """
import torch

class Strange(torch.nn.Module):
    def forward(self, x):
        return torch.special.airy_ai(x) + x.sum()

def build(batch=1):
    return Strange(), {"x": torch.zeros(batch, 64, 64)}
"""


def test_operator_without_a_rule_is_named_and_may_fall_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "strange_model.py").write_text(STRANGE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEUSIGHT_CACHE", str(tmp_path / "cache"))
    command = ("predict", "strange_model:build", "--gpu", "l4", "--format", "json")
    line = error(*command)
    assert "airy" in line
    assert "allow" in line
    result = run(*command, "--allow-fallback")
    assert "airy" in result.stderr
    answer = json.loads(result.stdout)
    assert 0 < answer["coverage"]["fallback"] <= 1
    assert any("airy" in text for text in answer["warnings"])


def test_usage_errors_exit_2_without_data() -> None:
    for arguments in (
        ["predict", "gpt2"],
        ["predict", "--gpu", "l4"],
        [*ON_L4, "--mode", "dreaming"],
        [*ON_L4, "--batch", "many"],
        [*ON_L4, "--batch", 10**12],
        [*ON_L4, "--batch", 0],
        [*ON_L4, "--seq-len", -3],
        [*ON_L4, "--format", "xml"],
        [*ON_L4, "--optimizer", "adamw"],
        [*ON_L4, f"--{'x' * 20_000}"],
        ["kernel", "gemm", "m", "--gpu", "l4"],
        ["kernel", "gemm", "m=1", "n=1", "k=1", "m=2", "--gpu", "l4"],
        ["sweep", "gpt2", "--gpu", "l4", "--batch", "1,x"],
        ["sweep", "gpt2", "--gpu", "l4", "--batch", "1,0"],
        ["sweep", "gpt2", "--gpu", "l4", "--mode", "training,dreaming"],
        ["sweep", "gpt2", "--gpu", "l4", "--optimizer", "adamw"],
        ["predict", "gpt2", "--gpu", ","],
        ["sweep", ",", "--gpu", "l4"],
        ["nonsense"],
    ):
        result = invoke(*arguments)
        assert (result.exit_code, result.stdout) == (2, ""), arguments
        assert re.fullmatch(r"error: .+; see [a-z ]+ --help\n", result.stderr), result.stderr
        assert len(result.stderr) < 1000, arguments


def test_usage_errors_are_in_plain_words() -> None:
    for arguments, words in (
        ((*ON_L4, "--batch", 1.5), "--batch: '1.5' is not a whole number: write it like 8"),
        ((*ON_L4, "--seconds", "long"), "--seconds: 'long' is not a number: write it like 1.5"),
        ((*ON_L4, "--mode", "dreaming"), "'dreaming' is unknown: one of inference, training"),
        (("devices", "list", "--nope"), "No such option: --nope; see neusight devices list --help"),
        (("plan", "gpt2", "--cluster", "dgx-h100"), "--global-batch-size: is missing"),
        (("kernel", "gemm", "--gpu", "l4", "--m", 8), "a field has no dashes, write it like m=8"),
        (("what-if", *ON_L4[1:], "--apply", "amp", "--goal", "memory"), "--goal: is of a search: give --all"),
        (("training", *ON_L4[1:], "--network", "8x400"), "network '8x400': write it like 400Gb/s"),
    ):
        line = invoke(*arguments).stderr
        assert words in line.replace("root", "neusight")
        assert "Value error" not in line


def test_ctrl_c_is_one_line_and_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("neusight.devices.load_devices", interrupt)
    result = invoke("devices", "show", "l4")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "interrupted\n")
