"""Training from the command line: what it writes, and that nothing is half-written when it is interrupted."""

import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from cli_runs import invoke, run

from neusight.devices import load_device
from neusight.devices.write import to_toml
from neusight.learn.training import TrainOptions
from neusight.paths import data_dir

needs_data = pytest.mark.skipif("NEUSIGHT_DATA" not in os.environ, reason="NEUSIGHT_DATA is not set")
SMALL = ("train", "--regressor", "linear", "--models", "stream,gemm", "--gpus", "t4,p4")


def asked(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> TrainOptions:
    """The options that a command hands to the training room."""
    seen: list[TrainOptions] = []

    def record(options: TrainOptions, report: Any) -> dict[str, Any]:
        seen.append(options)
        return {}

    monkeypatch.setattr("neusight.learn.training.train", record)
    run("train", *arguments)
    return seen[0]


def test_options_arrive_and_defaults_are_those_of_what_ships(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NEUSIGHT_DATA", str(tmp_path))
    options = asked(monkeypatch)
    assert options.files == ()
    assert (options.models, options.gpus, options.backend) == ((), (), "mlp")
    assert (options.resume, options.parameters, options.hold_out) == (False, (), ())
    options = asked(
        monkeypatch,
        *("--data", str(tmp_path), "--out", str(tmp_path / "o"), "--models", "gemm", "--regressor", "gbm"),
        *("--gpus", "NVIDIA L4,t4", "--hold-out", "t4", "--seed", "3", "--epochs", "7", "--resume"),
        *("--against", "linear,mlp", "--fold-rows", "500"),
    )
    assert options == TrainOptions(
        files=(),
        out=tmp_path / "o",
        models=("gemm",),
        backend="gbm",
        gpus=("l4", "t4"),
        hold_out=("t4",),
        seed=3,
        parameters=(("rounds", 7),),
        resume=True,
        against=("linear", "mlp"),
        fold_rows=500,
    )


def test_data_of_one_s_own_are_trained_on_with_all_their_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "devices").mkdir()
    board = load_device("l4").model_copy(update={"id": "board", "name": "Test board", "aliases": ()})
    (tmp_path / "devices" / "board.toml").write_text(to_toml(board))
    file = tmp_path / "mine.parquet"
    pd.DataFrame({"family": ["memory"], "gpu": ["board"], "op": ["copy"], "latency_ms": [1.0]}).to_parquet(file)
    options = asked(monkeypatch, "--data", str(tmp_path))
    assert (options.files, options.refit_to) == ((file,), None)
    assert (options.gpus, options.hold_out) == ((), ())
    named = asked(monkeypatch, "--data", str(tmp_path), "--gpus", "board,NVIDIA L4", "--hold-out", "board")
    assert (named.gpus, named.hold_out) == (("board", "l4"), ("board",))


def test_bad_input_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    out = tmp_path / "out"
    for arguments, code, message in (
        (["--gpus", "l44"], 1, "unknown device 'l44'"),
        (["--models", "gem"], 1, "gem"),
        (["--data", "nowhere.parquet"], 1, "nowhere.parquet"),
        (["--regressor", "linear", "--epochs", "3"], 2, "have no meaning for linear"),
        (["--regressor", "forest"], 2, "forest"),
        (["--against", "gbm,forest"], 2, "forest"),
        (["--seed", "-1"], 2, "--seed"),
    ):
        data = () if "--data" in arguments else ("--data", tmp_path / "in")
        result = invoke("train", *data, *arguments, "--out", out)
        assert (result.exit_code, result.stdout) == (code, "")
        assert message in result.stderr
        assert not out.exists()
    monkeypatch.delenv("NEUSIGHT_DATA", raising=False)
    assert "NEUSIGHT_DATA" in invoke("train", "--out", out).stderr


@needs_data
def test_ctrl_c_keeps_finished_folds_and_resume_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out, folder, finished = tmp_path / "out", tmp_path / "kernels", []
    folder.mkdir()
    for name in ("neusight-fp32-gemm.parquet", "neusight-fp32-elementwise.parquet"):
        (folder / name).symlink_to(data_dir() / "kernels" / name)

    def report(task: str, done: int, of: int, _error: float) -> None:
        if done == of:
            finished.append(task)
        if len(finished) == 2:
            # The second fold is done, so that the first is kept; matrix products are still to come.
            raise KeyboardInterrupt

    command = (*SMALL, "--data", tmp_path, "--out", out)
    with monkeypatch.context() as patched:
        patched.setattr("neusight.cli.learn.tasks", lambda: nullcontext(report))
        stopped = invoke(*command)
    assert finished == ["stream: without nvidia 6.1", "stream: without nvidia 7.5"]
    assert (stopped.exit_code, stopped.stdout) == (130, "")
    assert stopped.stderr.splitlines()[-1].startswith("interrupted: ")
    assert {p.name for p in out.iterdir()} <= {".training", "stream"}
    done = run(*command, "--resume", "--format", "json")
    assert finished[0] not in done.stderr
    rows = json.loads(done.stdout)
    assert [row["name"] for row in rows] == ["stream", "gemm"]
    assert sorted(p.name for p in out.iterdir()) == ["gemm", "physics.json", "stream", "tile_choice.json"]
    assert all(row["training_gpus"] == ["p4", "t4"] for row in rows)
