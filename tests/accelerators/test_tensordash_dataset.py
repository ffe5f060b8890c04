"""The simulated data set: the same whenever and however it is made, and what the committed manifest describes."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from neusight.errors import DataError
from neusight.executors.tensordash.masks import filled_slots, random_mask
from neusight.executors.tensordash.schedule import schedule_passes
from neusight.executors.tensordash.tile_model import load_tile_model
from neusight.learn.tensordash import dataset as dataset_module
from neusight.learn.tensordash.dataset import (
    NAME,
    PARTS,
    TileRanges,
    draws_of,
    make_dataset,
    simulate_passes,
)
from neusight.learn.tensordash.train import train_tensordash
from neusight.learn.training import TrainOptions, train
from neusight.measured.manifest import find_description

SMALL = TileRanges(count=40, max_length=12, max_streams=6, rows=(1, 2, 4))
TWO = {"whole": SMALL, "short": TileRanges(count=16, max_length=4, max_streams=4)}


@pytest.fixture(autouse=True)
def short_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset_module, "CHUNK", 16)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    make_dataset(tmp_path / NAME, 3, TWO)
    return tmp_path / NAME


def test_chunks_join_to_the_whole() -> None:
    whole = pd.DataFrame(simulate_passes(60, seed=2, ranges=SMALL))
    parts = [pd.DataFrame(simulate_passes(n, 2, s, SMALL)) for s, n in ((0, 7), (7, 50), (57, 3))]
    pd.testing.assert_frame_equal(pd.concat(parts, ignore_index=True), whole, check_exact=True)


def test_means_are_those_of_independent_draws() -> None:
    passes = simulate_passes(24, seed=6, ranges=SMALL)
    rng = np.random.default_rng(1)
    for i in range(24):
        row = {name: column[i].item() for name, column in passes.items()}
        shape = (row["rows"], row["length"], 16)
        zeros = row["sparsity"], row["clustering"], row["cluster"]
        masks = [random_mask(rng, shape, *zeros) for _ in range(400)]
        filled = filled_slots(row["taps"], row["channels"])
        cycles = schedule_passes(np.concatenate(masks) & filled, row["rows"])
        error = np.hypot(cycles.std() / 20, cycles.mean() * row["scatter"] / np.sqrt(row["draws"]))
        assert abs(cycles.mean() - row["cycles"]) <= 4.5 * error + 1e-9


def test_short_and_clustered_passes_are_drawn_more_often() -> None:
    assert draws_of(1, 1, 0.0, "stream") == 512
    assert draws_of(16, 4096, 0.0, "stream") == draws_of(16, 4096, 0.5, "step") == 1
    assert draws_of(16, 4096, 0.5, "stream") == draws_of(16, 4096, 0.5, "lane") == 48


def test_a_data_set_is_the_same_again(made: Path, tmp_path: Path) -> None:
    again = make_dataset(tmp_path / "again", 3, TWO)
    for file in (made / "passes").iterdir():
        assert file.read_bytes() == (tmp_path / "again" / "passes" / file.name).read_bytes()
    assert again.groupby("part").size().to_dict() == {"short": 16, "whole": 40}


def test_parts_differ_in_seed(made: Path) -> None:
    frame = make_dataset(made, 3, TWO)
    whole, short = (frame[frame["part"] == part].reset_index(drop=True) for part in ("whole", "short"))
    assert (whole["sparsity"][:16] != short["sparsity"]).all()


def test_training_from_nothing_writes_a_model_that_loads(made: Path, tmp_path: Path) -> None:
    quick = {"epochs": 1, "hidden": 8, "members": 1}
    first = train_tensordash(tmp_path / "out", 3, TWO, quick)
    second = train_tensordash(tmp_path / "again", 3, TWO, quick)
    assert first.manifest == second.manifest
    assert first.manifest.data["rows"] == 49
    (errors,) = first.manifest.metrics["own"].values()
    assert errors["short"] > 0 and any(name.startswith("whole, zeros by ") for name in errors)
    assert load_tile_model(tmp_path / "out" / "tensordash").manifest == first.manifest


def test_train_makes_the_passes_of_tensordash_without_any_table(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^count, seed and start are 0 or more, not 16, -100 and 0$"):
        train(TrainOptions(files=(), out=tmp_path, models=("tensordash",), seed=-1))


def test_the_committed_manifest_describes_what_the_model_was_trained_on() -> None:
    manifest, trained = find_description(NAME), load_tile_model().manifest
    hashes = {f.path: f.sha256 for f in manifest.files if f.path.endswith(".parquet")}
    assert hashes == trained.data["sha256"]
    assert manifest.rows == sum(ranges.count for ranges in PARTS.values())
    assert {f.path.split("/")[-1].rsplit("-", 1)[0] for f in manifest.files if f.rows} == PARTS.keys()
