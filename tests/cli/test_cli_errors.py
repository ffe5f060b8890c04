"""Bad input at the command line: one line that says what, where and the remedy; exit 1, or 2 for usage."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from neusight.cli.app import app
from neusight.devices import load_device, to_toml
from neusight.paths import tile_models_dir


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def error(*arguments: object) -> str:
    """The one line on stderr of a command that fails with bad input, and writes no data."""
    result = run(*arguments)
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_unknown_device_names_the_nearest() -> None:
    line = error("predict", "gpt2", "--gpu", "a100-pci-80gb")
    assert "a100-pci-80gb" in line
    assert "did you mean a100-pcie-80gb" in line


def test_one_unknown_device_among_several_stops_all() -> None:
    assert "'l44'" in error("predict", "gpt2", "--gpu", "l4,l44", "--format", "json")


def test_unknown_model_names_the_nearest() -> None:
    assert "did you mean gpt2-large" in error("predict", "gpt2-lrage", "--gpu", "l4")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("sm_count = 58", "sm_count = -58", "sm_count"),
        ("sm_count = 58", "sm_cuont = 58", "did you mean sm_count"),
        ('dram_bandwidth = "300 GB/s"', 'dram_bandwidth = "300 GB"', "dram_bandwidth"),
        ('id = "l4"', 'id = "l4', "not valid TOML"),
    ],
)
def test_malformed_device_file(tmp_path: Path, old: str, new: str, said: str) -> None:
    text = to_toml(load_device("l4"))
    assert old in text
    file = tmp_path / "mine.toml"
    file.write_text(text.replace(old, new))
    line = error("predict", "gpt2", "--gpu", file)
    assert said in line
    assert "mine.toml" in line


def test_missing_device_file() -> None:
    assert "nowhere.toml" in error("predict", "gpt2", "--gpu", "./nowhere.toml")


def test_wrong_unit_says_how_to_write_it() -> None:
    line = error("predict", "gpt2", "--gpu", "l4", "--set", "dram_bandwidth=4.8TB")
    assert "unit 'TB'" in line
    assert "4.8TB/s" in line


def test_unknown_figure_to_change() -> None:
    assert "did you mean dram_bandwidth" in error("predict", "gpt2", "--gpu", "l4", "--set", "dram_bandwith=4.8TB/s")


@pytest.mark.parametrize("batch", [0, -3])
def test_batch_below_one(batch: int) -> None:
    line = error("predict", "gpt2", "--gpu", "l4", "--batch", batch)
    assert f"batch {batch}" in line


def test_sequence_longer_than_the_model() -> None:
    line = error("predict", "gpt2-large", "--gpu", "l4", "--seq-len", 4096)
    assert "4096" in line
    assert "1024" in line


def test_dtype_that_the_device_lacks_names_those_it_has() -> None:
    line = error("predict", "gpt2", "--gpu", "v100-pcie-32gb", "--dtype", "bfloat16")
    assert "v100-pcie-32gb does not compute in bfloat16" in line
    assert "float32" in line


def test_dtype_that_does_not_exist() -> None:
    assert "floot32" in error("predict", "gpt2", "--gpu", "l4", "--dtype", "floot32")


def test_config_that_is_none(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    for text in ("{", "{}", "[]"):
        file.write_text(text)
        assert "config.json" in error("predict", file, "--gpu", "l4")


def test_truncated_parquet(tmp_path: Path) -> None:
    file = tmp_path / "gemm.parquet"
    pd.DataFrame({"gpu": ["l4"], "latency_ms": [1.0]}).to_parquet(file)
    file.write_bytes(file.read_bytes()[:-20])
    assert "gemm.parquet" in error("evaluate", "kernels", file)
    assert "gemm.parquet" in error("evaluate", "models", file, "--configs", tmp_path)


def test_foreign_parquet(tmp_path: Path) -> None:
    file = tmp_path / "pets.parquet"
    pd.DataFrame({"cat": ["Tom"], "mouse": ["Jerry"]}).to_parquet(file)
    assert "pets.parquet" in error("evaluate", "kernels", file)
    assert "pets.parquet" in error("evaluate", "models", file, "--configs", tmp_path)


def test_missing_files(tmp_path: Path) -> None:
    assert "none.parquet" in error("evaluate", "kernels", tmp_path / "none.parquet")
    assert "nothing" in error("evaluate", "models", tmp_path / "none.parquet", "--configs", tmp_path / "nothing")


def test_tile_models_that_are_none(tmp_path: Path) -> None:
    assert str(tmp_path) in error("predict", "gpt2", "--gpu", "l4", "--tile-models", tmp_path)
    assert "'nonsense'" in error("models", "show", "nonsense")


def copied_models(folder: Path) -> tuple[Path, Path]:
    """A copy of the tile models that ship, and the manifest of one in it."""
    copy = folder / "models"
    shutil.copytree(tile_models_dir(), copy)
    return copy, copy / "gemm" / "manifest.json"


def test_tile_models_whose_features_differ(tmp_path: Path) -> None:
    models, manifest = copied_models(tmp_path)
    content = json.loads(manifest.read_text())
    content["contract"]["features"][0] = "phase_of_the_moon"
    manifest.write_text(json.dumps(content))
    line = error("predict", "gpt2", "--gpu", "l4", "--tile-models", models)
    assert "phase_of_the_moon" in line
    assert str(manifest) in line


def test_tile_models_of_another_protocol_or_damaged(tmp_path: Path) -> None:
    models, manifest = copied_models(tmp_path)
    content = json.loads(manifest.read_text())
    command = ("predict", "gpt2", "--gpu", "l4", "--tile-models", models)
    for text, said in (
        (json.dumps(content | {"protocol": 99}), "protocol 99"),
        (json.dumps(content | {"weights_sha256": "0" * 64}), "sha256"),
        (manifest.read_text()[:-20], "manifest.json"),
    ):
        manifest.write_text(text)
        assert said in error(*command)


def test_kernel_with_a_wrong_field() -> None:
    assert "gemm has no field 'q'" in error("kernel", "gemm", "m=1", "n=1", "q=1", "--gpu", "l4")
    assert "gemm needs k" in error("kernel", "gemm", "m=1", "n=1", "--gpu", "l4")


STRANGE = """
import torch

class Strange(torch.nn.Module):
    def forward(self, x):
        return torch.linalg.svd(x)[1] + x.sum()

def build(batch=1):
    return Strange(), {"x": torch.zeros(batch, 64, 64)}
"""


def test_operator_without_a_rule_is_named_and_may_fall_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "strange_model.py").write_text(STRANGE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEUSIGHT_CACHE", str(tmp_path / "cache"))
    command = ("predict", "strange_model:build", "--gpu", "l4", "--format", "json")
    line = error(*command)
    assert "svd" in line
    assert "allow" in line
    result = run(*command, "--allow-fallback")
    assert result.exit_code == 0, result.stderr
    assert "svd" in result.stderr
    found = json.loads(result.stdout)
    assert 0 < found["coverage"]["fallback"] <= 1
    assert any("svd" in text for text in found["warnings"])


def test_verify_of_what_is_not_there(tmp_path: Path) -> None:
    assert "nothing" in error("datasets", "verify", tmp_path / "nothing")


def test_import_refuses_to_overwrite(tmp_path: Path) -> None:
    assert "there already" in error("datasets", "import", tmp_path, tmp_path)


@pytest.mark.parametrize(
    "arguments",
    [
        ["predict", "gpt2"],
        ["predict", "--gpu", "l4"],
        ["predict", "gpt2", "--gpu", "l4", "--mode", "dreaming"],
        ["predict", "gpt2", "--gpu", "l4", "--batch", "many"],
        ["predict", "gpt2", "--gpu", "l4", "--format", "xml"],
        ["kernel", "gemm", "m", "--gpu", "l4"],
        ["sweep", "gpt2", "--gpu", "l4", "--batch", "1,x"],
        ["predict", "gpt2", "--gpu", ","],
        ["predict", "gpt2", "--gpu", "l4", "--optimizer", "adamw"],
        ["sweep", ",", "--gpu", "l4"],
        ["nonsense"],
    ],
)
def test_usage_errors_exit_2_without_data(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Usage:" in result.stderr


def test_ctrl_c_is_one_line_and_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("neusight.devices.load_device", interrupt)
    result = run("devices", "show", "l4")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "interrupted\n")
