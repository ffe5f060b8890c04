"""Training on rows of one's own: every family and dtype, devices beside the data, executions of their own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from kernel_grids import MAKERS, grid
from tile_models_toys import manifest as toy_manifest

from neusight.devices import DeviceSpec, load_device
from neusight.devices.kinship import Silicon
from neusight.devices.write import to_toml
from neusight.errors import DataError
from neusight.executors.gpu.expected.laws import answering_model
from neusight.executors.gpu.features import load_contract, situate
from neusight.executors.gpu.predictor import KernelPredictor
from neusight.executors.gpu.tile_models import Artifact
from neusight.executors.gpu.tiling.library import shipped_choice
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.kernels.work import winograd_gain, work_of
from neusight.laws.constants import with_values
from neusight.laws.fitted import shipped_physics
from neusight.laws.physics import PRIOR
from neusight.learn.training import TrainOptions, train
from neusight.learn.training_data import MODELS, DeviceRows, load_corpus
from neusight.learn.training_sets import Knowledge, drifting_floor_s, launch_floors, row_floors, training_set
from neusight.paths import tile_models_dir

ROWS = 60
LAUNCH_S = 6e-6
START_S = 2e-6
DTYPES = {"gemm": ("float32", "tf32", "bfloat16", "float16"), "grouped_gemm": ("bfloat16",), "attention": ("float16",)}


def board(name: str, like: str) -> DeviceSpec:
    """A device that the catalogue does not have."""
    return load_device(like).model_copy(update={"id": name, "name": f"Test {name}", "aliases": ()})


BOARDS = {"board-a": board("board-a", "h100-sxm-80gb"), "board-b": board("board-b", "a100-sxm-80gb")}
LEVELS = {"board-a": 1.0, "board-b": 1.3}
"""How much longer than the law says each board takes."""


def batches(family: str, seed: int) -> list[KernelBatch]:
    return [grid(family, ROWS, dtype, seed + i) for i, dtype in enumerate(DTYPES.get(family, ("float32",)))]


def conditions(batch: KernelBatch) -> Conditions:
    """As rows are collected: one set of operands, launched again and again."""
    return Conditions.of(len(batch), cycled_bytes=work_of(batch).bytes, recorded=True)


def expected_s(batch: KernelBatch, device: DeviceSpec) -> np.ndarray:
    names, found = answering_model(batch, device), np.empty(len(batch))
    for name in np.unique(names):
        own = np.flatnonzero(names == name)
        part, known = batch.take(own), conditions(batch).take(own)
        s = situate(part, device, shipped_choice(), physics=shipped_physics().physics, conditions=known)
        # Kernels with a law of their own have their start in it.
        found[own] = s.expected_s + np.where(s.fixed_overhead_s > 0, 0.0, START_S)
    return found


def rows(batch: KernelBatch, device: DeviceSpec, seed: int, graphs: bool = True) -> pd.DataFrame:
    """Rows of a collected table: the law's time at the board's bias, start and launch, and three per cent of noise."""
    rng = np.random.default_rng(seed)
    execution_s = expected_s(batch, device) * LEVELS[device.id]
    noise = np.exp(rng.normal(0, 0.03, (2, len(batch))))
    head = {
        "family": batch.family,
        "gpu": device.id,
        "timer": "stream",
        "cycled_bytes": work_of(batch).bytes,
        "recorded": True,
        "split": np.where(np.arange(len(batch)) % 5, "train", "test"),
        "latency_ms": 1e3 * (execution_s * noise[0] + LAUNCH_S * noise[1]),
    }
    if graphs:
        head["execution_ms"] = 1e3 * execution_s * noise[0]
    return pd.DataFrame({**head, **batch.columns, "repeat": 0})


def write(folder: Path, boards: dict[str, DeviceSpec], families: tuple[str, ...] = (), graphs: bool = True) -> Path:
    for part in ("devices", "kernels"):
        (folder / part).mkdir(parents=True)
    for name, device in boards.items():
        (folder / "devices" / f"{name}.toml").write_text(to_toml(device))
    for family in families or tuple(MAKERS):
        made = [
            rows(batch, device, seed, graphs)
            for seed, device in enumerate(boards.values())
            for batch in batches(family, 10 * seed)
        ]
        pd.concat(made, ignore_index=True).to_parquet(folder / "kernels" / f"{family}.parquet")
    return folder


def tables(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted((folder / "kernels").iterdir()))


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("collected") / "set", BOARDS)


@pytest.fixture(scope="module")
def trained(collected: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of tile models of every family, by the least costly backend."""
    out = tmp_path_factory.mktemp("trained")
    train(TrainOptions(files=tables(collected), out=out, gpus=(), backend="linear"))
    return out


def manifest_of(folder: Path, family: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / family / "manifest.json").read_text())
    return content


def test_every_family_has_a_model_whose_predictions_are_near_what_was_measured(trained: Path, collected: Path) -> None:
    assert sorted(p.name for p in trained.iterdir()) == sorted([*MODELS, "physics.json", "tile_choice.json"])
    corpus, predictor = load_corpus(tables(collected)), KernelPredictor.load(trained)
    for model, parts in corpus.rows.items():
        for r in parts:
            found = predictor.predict(r.batch, r.device, r.conditions)
            assert set(answering_model(r.batch, r.device)) == {*found.source} == {model}
            assert (found.latency_s >= found.bound_s).all()
            # Rows that are mostly launch say little: neither does their interval, which is of the execution.
            long = r.execution_s > 50e-6
            if model != "conv2d":
                assert np.median(np.abs(found.latency_s / r.latency_s - 1)[long]) < 0.08, (model, r.device.id)
                assert ((found.low_s < r.latency_s) & (r.latency_s < found.high_s))[long].mean() > 0.75


def test_manifests_know_rows_devices_and_dtypes(trained: Path) -> None:
    manifest = manifest_of(trained, "matrix")
    assert manifest["domain"]["dtypes"] == ["bfloat16", "float16", "tf32"]
    assert manifest["training_gpus"] == ["board-a", "board-b"]
    assert manifest["data"]["sha256"].keys() >= {"kernels/gemm.parquet", "devices/board-a.toml", "devices/board-b.toml"}
    # An effect of its own for every kind of kernel; both 16-bit dtypes are one.
    products = {f"{op} {dtype}" for op in ("linear", "bmm") for dtype in ("float16", "tf32")}
    assert all(manifest["effects"][kind].keys() == set(BOARDS) for kind in products)
    assert "board-a" in manifest_of(trained, "gemm")["effects"]["linear"]
    assert "board-b" in manifest_of(trained, "gemm")["effects"]["bmm"]


def test_a_level_goes_by_kind_and_then_by_what_is_nearest() -> None:
    effects = {"linear": {"b": 0.25}, "linear float16": {"b": 0.75}, "bmm float16": {"b": -0.5}}
    board, other = (load_device("t4").model_copy(update={"id": gpu}) for gpu in "bc")
    artifact = Artifact(toy_manifest("linear", effects=effects), None)  # type: ignore[arg-type]
    assert artifact.effect(board, "linear") == 0.25
    assert artifact.effect(board, "linear float16") == 0.75
    assert artifact.effect(board, "linear tf32") == 0.5  # the mean of the op's kinds
    assert artifact.effect(board, "bmm") == -0.5
    assert artifact.effect(board, "addmm") == pytest.approx(0.5 / 3)
    assert artifact.effect(other, "linear") == 0.0


def test_siblings_lend_their_bias_where_they_ran_the_same() -> None:
    board, sibling = (load_device(gpu) for gpu in ("h100-sxm-80gb", "h200-sxm-141gb"))
    content = {
        "effects": {"linear float16": {"h100-sxm-80gb": 0.5}},
        "silicon": {board.id: list(vars(Silicon.of(board)).values())},
        "measured": {board.id: ["linear float16, torch  stream", "linear float16, torch cutlass stream"]},
        "training_gpus": [board.id],
        "shares": {"own": 1.0, "sibling": 0.5, "stranger": 0.0},
    }
    artifact = Artifact(toy_manifest("linear", **content), None)  # type: ignore[arg-type]
    assert artifact.effect(sibling, "linear float16") == 0.25
    assert artifact.effect(sibling, "linear") == 0.0
    assert artifact.effect(load_device("l4"), "linear float16") == 0.0
    batch = KernelBatch.from_columns("gemm", m=np.full(3, 64), n=64, k=64, dtype="float16")
    ran_by = Conditions.of(3, variant=np.array(["", "cutlass", "triton"]))
    kinship = artifact.kinship(sibling, batch, ran_by)
    assert kinship.tolist() == ["sibling", "sibling", "stranger"]
    assert artifact.learned_share(kinship).tolist() == [0.5, 0.5, 0.0]
    assert set(artifact.kinship(board, batch, ran_by)) == {"own"}


def test_without_observed_tiles_the_shipped_tile_choice_is_kept(trained: Path) -> None:
    ours, theirs = (folder / "tile_choice.json" for folder in (trained, tile_models_dir()))
    assert ours.read_text() == theirs.read_text()


def test_tiles_are_learned_from_float32_rows_alone(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", {"board-b": BOARDS["board-b"]}, ("gemm",))
    file = folder / "kernels" / "gemm.parquet"
    frame = pd.read_parquet(file)
    big = pd.concat([frame] * 3, ignore_index=True)
    float32 = big["dtype"] == "float32"
    tiles = {"tile_m": np.where(float32, 64.0, 32.0), "tile_n": np.where(float32, 128.0, 32.0)}
    big.assign(**tiles).to_parquet(file)
    train(TrainOptions(files=tables(folder), out=tmp_path / "out", gpus=(), backend="linear"))
    learned = json.loads((tmp_path / "out" / "tile_choice.json").read_text())
    assert learned["accuracy"] == {"board-b/linear": 1.0, "board-b/bmm": 1.0}
    best = learned["tiles"][int(np.argmax(learned["intercepts"][f"{BOARDS['board-b'].compute_capability}/linear"]))]
    assert best == [64, 128]


def timed(latency: list[float], execution: list[float]) -> DeviceRows:
    n = len(latency)
    batch = KernelBatch.from_columns("memory", op="copy", elements=[1] * n, read_bytes=4, write_bytes=4)
    unknown = np.full(n, np.nan)
    columns = (np.array(latency), np.array(execution), np.full(n, "train"), unknown, unknown, np.arange(n))
    return DeviceRows(BOARDS["board-a"], batch, *columns, conditions(batch))


def test_floors_by_hand() -> None:
    # The two shortest of twenty rows launch in 4 and 8 us, the others in 50. All of them start: 97 % of 2 us.
    r = timed([6e-6, 10e-6, *[1e-3] * 18], [2e-6, 2e-6, *[950e-6] * 18])
    assert row_floors(r, {})[:3] == pytest.approx([0.97 * 6e-6, 0.97 * 10e-6, 51.94e-6])
    assert launch_floors([r]) == {"copy": pytest.approx(6e-6 + 1.94e-6)}
    # Few rows, or none that is short, show no start: what is left beside the execution is the launch.
    assert row_floors(timed([10e-6, 14e-6], [6e-6, 6e-6]), {}) == pytest.approx([4e-6, 8e-6])
    assert row_floors(timed([90e-6] * 20, [80e-6] * 20), {}) == pytest.approx([10e-6] * 20)
    # A replay that took longer than the launch alone: no launch is left, but its logarithm stays finite.
    assert row_floors(timed([10e-6], [11e-6]), {}) == pytest.approx([1e-9])
    # Some replays failed. Zero is no execution.
    mixed = timed([10e-6, 20e-6, 30e-6], [6e-6, float("nan"), 0.0])
    assert row_floors(mixed, {"copy": 9e-6}) == pytest.approx([4e-6, 4e-6, 4e-6])
    # No replay anywhere: the fastest of enough rows, and none that is slow.
    assert launch_floors([timed([20e-6] * 20, [float("nan")] * 20)]) == {"copy": pytest.approx(0.97 * 20e-6)}
    assert launch_floors([timed([80e-6] * 20, [float("nan")] * 20)]) == {}


def test_drifting_floor_s_finds_a_launch_that_grows_and_none_that_stays() -> None:
    rng, place = np.random.default_rng(0), np.arange(2000)
    least_s = 10 ** (3.0 * (0.618034 * place % 1.0) - 6.0)
    for growth in (2.0, 0.0):
        launch_s = 8e-6 * (1.0 + growth * (place / 2000) ** 2)
        floor_s = drifting_floor_s(place, least_s + launch_s * np.exp(np.abs(rng.normal(0, 0.1, 2000))), least_s)
        if growth:
            assert floor_s == pytest.approx(launch_s, rel=0.05)
        else:
            assert floor_s is None


def test_rows_weigh_by_the_share_that_is_work_and_measured_shares_by_their_square() -> None:
    def weight(execution: list[float]) -> np.ndarray:
        r = timed([10e-6, 20e-6], execution)
        # Kernels that start at once, and hide nothing of their launch.
        physics = with_values(PRIOR, {"start.hidden": 1e-9, "stream.start_cycles": 1e-9})
        known = Knowledge(physics, shipped_choice(), {"copy": 5e-6})
        return training_set([r], load_contract("stream"), known).weight

    # A launch of 5 and 15 us leaves a half and a quarter; the floor of the op, 5 us, a half and three quarters.
    assert weight([5e-6, 5e-6]) == pytest.approx([4 / 5, 1 / 5])
    assert weight([float("nan")] * 2) == pytest.approx([2 / 5, 3 / 5])


def test_ops_with_few_rows_take_the_start_of_their_family() -> None:
    many, few = timed([6e-6] * 20, [2e-6] * 20), timed([30e-6], [25e-6])
    batch = KernelBatch.from_columns("memory", op=["copy"] * 20 + ["fill"], elements=1, read_bytes=4, write_bytes=4)
    both = replace(DeviceRows.joined([many, few]), device=BOARDS["board-a"], batch=batch, conditions=conditions(batch))
    assert launch_floors([both])["fill"] == pytest.approx(5e-6 + 1.94e-6)


def test_what_was_measured_once_more_is_not_trained_on(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", BOARDS, ("memory",))
    file = folder / "kernels" / "memory.parquet"
    frame = pd.read_parquet(file)
    pd.concat([frame, frame.iloc[:20].assign(repeat=1)], ignore_index=True).to_parquet(file)
    kept = load_corpus(tables(folder))
    assert sum(len(r) for r in kept.rows["stream"]) == 2 * ROWS
    # Sampled and taken from workloads alike.
    assert {str(s) for r in kept.rows["stream"] for s in r.split} == {"train", "test"}


def test_convolutions_that_are_products_are_left_out_and_counted(collected: Path, trained: Path) -> None:
    fast = sum(int((winograd_gain(b) > 1).sum()) for seed in (0, 10) for b in batches("conv2d", seed))
    manifest = manifest_of(trained, "conv2d")
    assert manifest["data"]["rows"] == fast < 2 * ROWS
    assert manifest["cleaning"]["no_fast_algorithm"] == 2 * ROWS - fast
    assert manifest["domain"]["ops"] == ["forward", "input_grad", "weight_grad"]


def test_gpus_and_families_can_be_left_out(collected: Path, tmp_path: Path) -> None:
    options = {"files": tables(collected), "backend": "linear", "models": ("stream",), "gpus": ()}
    made = train(TrainOptions(out=tmp_path / "out", hold_out=("board-b",), **options))
    assert made["stream"].manifest.training_gpus == ["board-a"]
    assert list(made) == ["stream"]
    with pytest.raises(DataError, match="has no kernels on any GPU that is not held out"):
        train(TrainOptions(out=tmp_path / "none", hold_out=("board-a", "board-b"), **options))
    assert not (tmp_path / "none").exists()
