"""``neusight sparsity``: measure and show, for people and for programs, and mistakes in one line."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from neusight.cli.app import app
from neusight.collect.sparsity import OperandSparsity, SparsityProfile
from neusight.kernels.sparsity import LayerSparsity

SMALL = """{"model_type": "resnet", "depths": [1, 1], "hidden_sizes": [16, 32], "embedding_size": 16, "num_channels": 3,
"layer_type": "basic", "hidden_act": "relu", "num_labels": 8, "architectures": ["ResNetForImageClassification"]}"""
LONG = "resnet.encoder.stages.0.layers.0.layer.0.convolution"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["sparsity", *map(str, arguments)])


def error(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sparsity")
    model, path = folder / "small.json", folder / "p.json"
    model.write_text(SMALL)
    options = ("--batch", "1", "--image-size", "32", "--measured-steps", "1", "--prune", "2:4")
    result = run("measure", model, *options, "--out", path, "--format", "json")
    assert result.exit_code == 0, result.output
    assert f"next: neusight sparsity show {path}" in result.stderr
    written = json.loads(path.read_text())
    assert json.loads(result.stdout)["layers"] == written["layers"]
    return path


def test_show_is_a_table_of_80_columns(file: Path) -> None:
    result = run("show", file)
    assert result.exit_code == 0
    head, legend, titles, *rows = result.stdout.splitlines()
    assert head.startswith("small: measured over 1 training step")
    assert "clustering" in legend
    assert titles.split() == ["layer", "activations", "gradients", "weights"]
    assert max(map(len, rows)) <= 80
    assert any(row.startswith("classifier.1") and "0.500 / " in row for row in rows)
    assert rows[-1].split() == ["(all", "others)", "0", "0", "0"]


def test_long_layers_wrap_and_figures_stay(tmp_path: Path) -> None:
    zeros = OperandSparsity(0.123, 0.456, "stream")
    profile = SparsityProfile(model="m", layers={LONG: LayerSparsity(zeros, zeros, zeros)}, source="s")
    rows = run("show", profile.save(tmp_path / "p.json")).stdout.splitlines()
    assert max(map(len, rows)) <= 80
    assert sum(row.count("0.123 / 0.46 stream") for row in rows) == 3


def test_show_as_csv_and_json(file: Path) -> None:
    head, first, *_ = run("show", file, "--format", "csv").stdout.splitlines()
    assert head.split(",")[:4] == ["layer", "activations", "activations_clustering", "activations_cluster"]
    assert first.startswith("resnet.embedder.embedder.convolution,0.0,0.0,stream,")
    shown = json.loads(run("show", file, "-f", "json").stdout)
    assert shown["layers"]["classifier.1"]["weights"]["sparsity"] == 0.5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["measure", "alexxnet"], "did you mean alexnet"),
        (["measure", "alexnet", "--prune", "1.5"], "write it like 0.8"),
        (["measure", "alexnet", "--prune", "4"], "below 1"),
        (["measure", "alexnet", "--prune", "much"], "n:m like 2:4"),
        (["measure", "alexnet", "--seq-len", "8"], "leave out --seq-len"),
        (["measure", "gpt2", "--image-size", "8"], "leave out --image-size"),
        (["measure", "alexnet", "--image-size", "8"], "cannot train 'alexnet'"),
        (["show", "nowhere.json"], "nowhere.json"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], words: str) -> None:
    assert words in error(*arguments)


def test_a_malformed_file_is_one_line(file: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text(file.read_text().replace('"protocol": 1', '"protocol": 9'))
    assert "protocol 9 is not 1" in error("show", broken)


@pytest.mark.parametrize(
    "arguments", [["measure"], ["show"], ["measure", "alexnet", "--measured-steps", "x"], ["nonsense"]]
)
def test_usage_exits_with_2(arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2


def test_help_has_examples() -> None:
    assert "neusight sparsity measure alexnet --out" in run("measure", "--help").stdout
    assert "neusight sparsity show alexnet.json" in run("show", "--help").stdout


def test_profiles_after_fewer_updates_lie_beside_the_last(tmp_path: Path) -> None:
    (tmp_path / "small.json").write_text(SMALL)
    options = ("--batch", "1", "--image-size", "32", "--measured-steps", "1")
    result = run("measure", tmp_path / "small.json", *options, "--updates", "0,2", "--out", tmp_path / "p.json")
    assert result.exit_code == 0, result.output
    for name, count in (("p-after-0.json", "0 updates"), ("p.json", "2 updates")):
        assert f"after {count}" in SparsityProfile.load(tmp_path / name).source
    assert "rising numbers" in error("measure", tmp_path / "small.json", *options, "--updates", "2,1")
    assert "not a whole number" in run("measure", tmp_path / "small.json", "--updates", "two").output
