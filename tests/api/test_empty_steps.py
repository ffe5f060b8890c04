"""A step that runs nothing has no time, throughput or share: it is refused in one line, however it is asked for."""

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from neusight import Predictor
from neusight.cli.app import app
from neusight.errors import ModelError
from neusight.requests import Plan

MODULE = """
import torch
def identity(batch=1):
    return torch.nn.Identity(), (torch.randn(batch, 64),)
"""


@pytest.mark.parametrize(
    "module", [torch.nn.Identity(), torch.nn.Flatten(), torch.nn.Dropout(), torch.nn.Unflatten(1, (8, 8))]
)
def test_estimate_refuses_modules_that_run_nothing(predictor: Predictor, module: torch.nn.Module) -> None:
    with pytest.raises(ModelError, match="runs nothing on a device"):
        predictor.estimate(module.eval(), "l4", inputs=(torch.randn(4, 64),))


def test_estimate_refuses_them_on_several_devices(predictor: Predictor) -> None:
    with pytest.raises(ModelError, match="runs nothing on a device"):
        predictor.estimate(
            torch.nn.Identity(), "l4", inputs=(torch.randn(1, 64),), plan=Plan(dp=2, global_batch_size=2)
        )


@pytest.mark.parametrize(
    "words",
    [
        *(
            ["predict", "--by", by, "--format", form]
            for by in ("operator", "phase", "kernel")
            for form in ("human", "csv")
        ),
        ["predict", "--gpu", "t4,v100-pcie-32gb", "--format", "json"],
        ["sweep"],
        ["what-if", "--all"],
        ["what-if", "--apply", "cuda-graph"],
    ],
    ids=" ".join,
)
def test_commands_refuse_them_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    (tmp_path / "empty_modules.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    gpu = [] if "--gpu" in words else ["--gpu", "l4"]
    result = CliRunner().invoke(app, [words[0], "empty_modules:identity", *gpu, *words[1:]])
    assert result.exit_code == 1
    assert sum(line.startswith("error: ") for line in result.stderr.splitlines()) == 1
    assert "runs nothing on a device" in result.stderr
