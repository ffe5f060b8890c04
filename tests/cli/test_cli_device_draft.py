"""``neusight devices draft``: the file on stdout or on disk, hints on stderr, one line for every mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from neusight.cli.app import app
from neusight.collect import drafting
from neusight.collect.drafting import Draft
from neusight.devices import load_device, to_toml


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["devices", "draft", *(str(a) for a in arguments)])


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch):
    """A machine whose GPU drafts as given."""

    def install(draft: Draft) -> None:
        monkeypatch.setattr(drafting, "draft_device", lambda target, index: draft)

    return install


def test_a_known_device_is_the_catalogue_s_with_its_differences(gpu) -> None:
    gpu(Draft(load_device("l4"), known=True, differences=("sm_count: driver 60, catalogue 58",)))
    result = run()
    assert result.exit_code == 0
    assert result.stdout == to_toml(load_device("l4"))
    assert "The catalogue knows this device as l4" in result.stderr
    assert "sm_count: driver 60, catalogue 58" in result.stderr
    assert "--out mine.toml" in result.stderr


def test_an_unknown_device_is_written_with_a_word_on_its_use(gpu, tmp_path: Path) -> None:
    gpu(Draft(load_device("l4").model_copy(update={"id": "mine", "name": "NVIDIA New"}), known=False))
    out = tmp_path / "mine.toml"
    result = run("--out", out)
    assert (result.exit_code, result.stdout) == (0, "")
    assert load_device(str(out)).id == "mine"
    assert "does not know NVIDIA New" in result.stderr
    assert f"neusight predict gpt2-large --gpu {out}" in result.stderr


def test_a_file_with_other_content_stays(gpu, tmp_path: Path) -> None:
    gpu(Draft(load_device("l4"), known=True))
    out = tmp_path / "mine.toml"
    assert run("--out", out).exit_code == 0
    assert run("--out", out).exit_code == 0
    out.write_text("corrected by hand", encoding="utf-8")
    result = run("--out", out)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert out.read_text(encoding="utf-8") == "corrected by hand"

    assert run("--out", tmp_path / "mine").exit_code == 2
    assert list(tmp_path.iterdir()) == [out]


def test_no_such_device_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    assert run("--device", "cpu", "--index", 1).stderr.startswith("error: no CPU 1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = run("--device", "cuda")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert "--device cpu" in result.stderr


def test_the_cpu_at_hand_predicts(tmp_path: Path) -> None:
    out = tmp_path / "cpu.toml"
    assert run("--device", "cpu", "--out", out).exit_code == 0
    for request in (
        ("gemm", "m=256", "n=256", "k=256"),
        ("softmax", "rows=512", "cols=512"),
        ("gelu", "elements=4096"),
    ):
        arguments = ["kernel", *request, "--gpu", str(out), "--format", "json"]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        row = json.loads(result.stdout)
        assert 0 < row["bound_s"] <= row["latency_s"]
