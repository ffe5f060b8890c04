"""Where a command is to write is looked at before it works: a path that cannot be costs no time."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runs import invoke

from neusight.errors import DataError
from neusight.paths import writable


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file, below which nothing can be written."""
    path = tmp_path / "file"
    path.write_text("")
    return path


def working(*_: object, **__: object) -> None:
    raise AssertionError("worked before it looked at the path")


@pytest.mark.parametrize(
    ("command", "work"),
    [
        (("calibrate", "plan", "--gpu", "l4", "--count", "5", "--out"), "neusight.collect.plan.chosen_tasks"),
        (("collect", "--device", "cpu", "--out"), "neusight.collect.kernels.collect_kernels"),
        (("collect", "models", "--device", "cpu", "--out"), "neusight.collect.models.collect_models"),
        (("sparsity", "measure", "alexnet", "--out"), "neusight.collect.sparsity.measure"),
        (("fit", "--out"), "neusight.learn.evidence.ConstantsFit.fitted"),
        (("fit", "training", "--out"), "neusight.learn.evidence.ConstantsFit.fitted"),
        (("train", "--out"), "neusight.learn.training.train"),
        (("datasets", "import", "."), "neusight.measured.overview._read"),
    ],
)
def test_a_path_that_cannot_be_written_is_refused_before_any_work(
    command: tuple[str, ...], work: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, working)
    monkeypatch.setenv("NEUSIGHT_DATA", str(file.parent))
    result = invoke(*command, file / "below" / "it")
    assert result.exit_code == 1, result.output
    assert "is a file, not a folder: give another path" in " ".join(result.stderr.split())
    assert not list(file.parent.glob("file/*"))


def test_a_calibration_that_cannot_be_written_is_not_fitted(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neusight.learn.calibration.fit_calibration", working)
    result = invoke("calibrate", "--gpu", "l4", "--data", file, "--out", file / "x.json")
    assert result.exit_code == 1 and "is a file, not a folder" in result.stderr


def test_files_and_folders_are_told_apart_and_nothing_is_made(tmp_path: Path, file: Path) -> None:
    new = tmp_path / "a" / "b"
    assert writable(new) == writable(new, folder=True) == new
    assert writable(file) == file and writable(tmp_path, folder=True) == tmp_path
    with pytest.raises(DataError, match=r"is a folder: give the file to write"):
        writable(tmp_path)
    with pytest.raises(DataError, match=r"is a file: give the folder to write"):
        writable(file, folder=True)
    assert not (tmp_path / "a").exists()


def test_what_may_not_be_written_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(DataError, match="may not be written to"):
        writable(tmp_path / "a" / "b.json")


def test_fit_refuses_former_switches_and_options_without_effect() -> None:
    former = invoke("fit", "--links")
    assert former.exit_code == 2 and "--links is now links, given as TARGET" in former.stderr
    left = invoke("fit", "training", "--hold-out", "l4")
    assert left.exit_code == 2 and "every device is left out once anyway" in left.stderr
