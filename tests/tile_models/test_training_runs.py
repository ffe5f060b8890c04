"""Training on a small table made here: what it writes, what it keeps when interrupted, what it does not reuse."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from neusight.devices import list_gpus, load_device
from neusight.errors import ArtifactError, DataError
from neusight.executors.gpu.tile_models import load_artifact
from neusight.executors.gpu.tile_models.artifact import sm_kind
from neusight.executors.gpu.tiling.library import shipped_choice
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.laws.fitted import shipped_physics
from neusight.laws.physics import Physics
from neusight.learn.folds import best_share
from neusight.learn.training import TrainOptions, limited_kinds, train
from neusight.learn.training_data import DeviceRows
from neusight.learn.training_sets import Knowledge

PHYSICS = shipped_physics().physics

GPUS = ("p100-pcie-16gb", "v100-pcie-32gb", "a100-pcie-40gb")
FLOOR_MS = 0.008
SHARE = {"linear": 0.7, "bmm": 0.5}


def measured(gpu: str, n: int = 120) -> pd.DataFrame:
    """GEMMs that run 64x128 tiles of C[m,n] at a fixed share of the slower of arithmetic and memory."""
    rng = np.random.default_rng(GPUS.index(gpu))
    device = load_device(gpu)
    frame = pd.DataFrame({name: 32 * rng.integers(1, 65, n) for name in ("m", "n", "k")})
    # Some launches so small that they show the floor.
    frame.loc[: n // 4, ["m", "n", "k"]] = 32
    frame["op"] = np.where(np.arange(n) % 2 == 0, "linear", "bmm")
    frame["batch"] = np.where(frame["op"] == "bmm", 4, 1)
    flops = 2.0 * frame[["batch", "m", "n", "k"]].astype(float).prod(axis=1)
    moved = 4.0 * frame["batch"] * (frame["m"] * frame["k"] + frame["k"] * frame["n"] + frame["m"] * frame["n"])
    limit_s = np.maximum(flops / device.gemm_flops_per_s("float32"), moved / device.dram_bandwidth_bytes_per_s)
    frame["latency_ms"] = FLOOR_MS + 1e3 * limit_s / frame["op"].map(SHARE)
    told = {"gpu": gpu, "family": "gemm", "dtype": "float32", "split": "train", "timer": "stream"}
    return frame.assign(**told, tile_m=64.0, tile_n=128.0)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("measured") / "gemm.parquet"
    pd.concat([measured(gpu) for gpu in GPUS]).to_parquet(file)
    return file


@pytest.fixture
def options(source: Path, tmp_path: Path) -> Callable[..., TrainOptions]:
    def make(**changes: Any) -> TrainOptions:
        common = {"files": (source,), "out": tmp_path / "out", "models": ("gemm",), "backend": "linear", "gpus": GPUS}
        return TrainOptions(**common | changes)

    return make


class Reports:
    """Counts fits by task; raises ``KeyboardInterrupt`` in the task that is named."""

    def __init__(self, interrupt: str = "") -> None:
        self.tasks: list[str] = []
        self.interrupt = interrupt

    def __call__(self, task: str, done: int, of: int, error: float) -> None:
        self.tasks.append(task)
        if self.interrupt and self.interrupt in task:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def finished(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run, that tests only read."""
    out = tmp_path_factory.mktemp("finished")
    train(TrainOptions(files=(source,), out=out, models=("gemm",), backend="linear", gpus=GPUS))
    return out


@pytest.fixture(scope="module")
def interrupted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was interrupted when all of its folds were done."""
    out = tmp_path_factory.mktemp("interrupted")
    with pytest.raises(KeyboardInterrupt):
        train(TrainOptions(files=(source,), out=out, models=("gemm",), backend="linear", gpus=GPUS), Reports(ALL[-1]))
    return out


KINDS = {"a100-pcie-40gb": "nvidia 8.0", "p100-pcie-16gb": "nvidia 6.0", "v100-pcie-32gb": "nvidia 7.0"}
OWN, LAST = "gemm: without some rows", "gemm: all GPUs"
ALL = [*(f"gemm: without {kind}" for kind in KINDS.values()), OWN, LAST]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_training_writes_an_artifact_that_knows_where_it_comes_from(options: Callable[..., TrainOptions]) -> None:
    reports = Reports()
    trained = train(options(), reports)
    assert reports.tasks == ALL
    out = options().out
    assert sorted(p.name for p in out.iterdir()) == ["gemm", "physics.json", "tile_choice.json"]
    manifest = load_artifact(out / "gemm").manifest
    assert trained["gemm"].manifest == manifest
    assert (manifest.training_gpus, manifest.data["rows"], manifest.limited) == (sorted(GPUS), 3 * 120, [])
    # The catalogue's devices are no part of the data.
    assert [name.split("/")[1] for name in manifest.data["sha256"]] == ["gemm.parquet"]
    assert manifest.effects.keys() == {"linear", "bmm"}
    assert all(level.keys() == set(GPUS) for level in manifest.effects.values())
    for errors in (manifest.metrics[name] for name in ("as_shipped", "physics", "learned")):
        assert errors.keys() == set(GPUS)
        assert all(error < 60 for by_op in errors.values() for error in by_op.values())
    assert manifest.doubts.keys() == {"own", "stranger"}, "no two of them are siblings"
    assert all(0 < low <= 1 <= high and spread >= 0 for low, high, spread in manifest.doubts["stranger"].values())
    assert {(row["kinship"], row["family"]) for row in manifest.coverage} == {("own", "gemm"), ("stranger", "gemm")}


def test_training_again_and_resuming_give_the_same_model(options: Callable[..., TrainOptions], finished: Path) -> None:
    whole = load_artifact(finished / "gemm").manifest
    with pytest.raises(KeyboardInterrupt):
        train(options(), Reports(interrupt=ALL[2]))
    out = options().out
    assert not (out / "gemm").exists()
    reports = Reports()
    resumed = train(options(resume=True), reports)["gemm"].manifest
    assert reports.tasks == ALL[2:]
    assert not (out / ".training").exists()
    assert resumed == whole
    assert resumed.weights_sha256 == whole.weights_sha256 != ""
    assert train(options())["gemm"].manifest == whole


def test_an_interruption_leaves_the_existing_model_untouched(
    options: Callable[..., TrainOptions], finished: Path
) -> None:
    out = options().out
    shutil.copytree(finished, out)
    before = contents(out)
    for interrupt in ALL:
        with pytest.raises(KeyboardInterrupt):
            train(options(parameters=(("alpha", 0.5),)), Reports(interrupt=interrupt))
        after = contents(out)
        assert {name: after[name] for name in before} == before, interrupt
        assert all(name.startswith(".training/") and name.endswith(".parquet") for name in after.keys() - before.keys())


def test_folds_are_reused_by_the_same_run_alone(
    options: Callable[..., TrainOptions], interrupted: Path, source: Path, tmp_path: Path
) -> None:
    other, frame = tmp_path / "gemm.parquet", pd.read_parquet(source)
    frame.assign(latency_ms=1.01 * frame["latency_ms"]).to_parquet(other)
    runs: list[dict[str, Any]] = [{"resume": False}, {"parameters": (("alpha", 0.5),)}, {"files": (other,)}]
    for number, changes in enumerate(runs):
        out, reports = tmp_path / str(number), Reports()
        shutil.copytree(interrupted, out)
        train(options(**{"out": out, "resume": True} | changes), reports)
        assert list(dict.fromkeys(reports.tasks)) == ALL, changes


def test_one_gpu_has_no_folds_and_a_wide_interval(options: Callable[..., TrainOptions]) -> None:
    reports = Reports()
    manifest = train(options(gpus=("p100-pcie-16gb",)), reports)["gemm"].manifest
    assert reports.tasks == [OWN, LAST]
    assert manifest.interval[0] <= 0.5 and manifest.interval[1] >= 2.0
    assert {name for name, errors in manifest.metrics.items() if errors} == {"own", "own_physics"}


def test_a_backend_against_itself_errs_alike(options: Callable[..., TrainOptions]) -> None:
    metrics = train(options(against=("linear",)))["gemm"].manifest.metrics
    assert metrics["linear: stranger"] == metrics["as_shipped"]
    assert metrics["linear: own"] == metrics["own"]


def test_constants_of_strangers_are_fitted_without_any_board_of_their_kind(
    options: Callable[..., TrainOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    left_out: list[set[str]] = []

    def refit(gpus: Collection[str]) -> Physics:
        left_out.append(set(gpus))
        return PHYSICS

    monkeypatch.setattr("neusight.learn.training._refits", lambda *_: refit)
    train(options())
    boards = {kind: {d.id for d in list_gpus() if sm_kind(d) == kind} for kind in KINDS.values()}
    assert "a30" in boards["nvidia 8.0"]
    assert [gpus for gpus in left_out if gpus] == list(boards.values())


def left_out(*slopes: float) -> pd.DataFrame:
    """A row of each of some devices whose error, in log time, is lowest at a share of what was learned."""
    learned = {"learned": 1.0, "prior": 0.0, "bound_s": 1.0, "floor_s": 1.0, "weight": 1.0, "real": True}
    rows = [{"gpu": str(number), "latency_s": 2.0 + np.exp(-best)} for number, best in enumerate(slopes)]
    return pd.DataFrame(rows).assign(**learned)


def test_best_share_is_the_least_that_is_not_clearly_worse() -> None:
    # A logit of 0 that what was learned moves by 1 gives 1 + 1 + exp(-share) seconds.
    assert best_share(left_out(0.75, 0.76, 0.74, 0.75)) == 0.75
    assert best_share(left_out(0.0, 0.01, 0.0, 0.02)) == 0.0
    assert best_share(left_out(0.0, 1.0)) == 0.0, "devices that disagree cannot tell the shares apart"
    assert best_share(left_out(0.5)) == 1.0, "nor can one"


def test_what_cannot_be_trained_is_named_and_nothing_is_written(options: Callable[..., TrainOptions]) -> None:
    wrong: list[dict[str, Any]] = [{"models": ("stream", "gemm")}, {"gpus": ("l4",)}, {"backend": "forest"}]
    for changes in wrong:
        with pytest.raises((DataError, ArtifactError), match=r"stream|l4|forest"):
            train(options(**changes))
        assert not list(options().out.glob("*/manifest.json")), changes


def test_kinds_that_a_board_only_ran_limited_by_power_are_named() -> None:
    def rows(gpu: str, extent: int) -> DeviceRows:
        batch = KernelBatch.from_columns("gemm", **dict.fromkeys(("m", "n", "k"), np.full(30, extent)))
        measured_s = dict.fromkeys(("latency_s", "execution_s", "observed_m", "observed_n"), np.full(30, 1.0))
        named = {"split": np.full(30, "train"), "place": np.arange(30), "conditions": Conditions.of(30)}
        return DeviceRows(device=load_device(gpu), batch=batch, **measured_s, **named)  # type: ignore[arg-type]

    known = Knowledge(PHYSICS, shipped_choice(), {})
    assert limited_kinds([rows("l4", 4096), rows("a100-pcie-40gb", 4096)], known) == ["l4/linear"]
    assert limited_kinds([rows("l4", 4096), rows("l4", 32)], known) == []
