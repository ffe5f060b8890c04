"""Simulated tiles: any chunk is the same table, every row can be worked out again, and the law holds on all."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from tensordash_oracle import oracle_cycles

from neusight.errors import DataError, DeviceError
from neusight.executors.tensordash import (
    CLUSTERS,
    TileRanges,
    filled_slots,
    random_mask,
    sample_configs,
    simulate_tiles,
)

SMALL = TileRanges(max_length=40, max_streams=12)


@pytest.fixture(scope="module")
def tiles() -> pd.DataFrame:
    return pd.DataFrame(simulate_tiles(512, seed=1))


def test_chunks_join_to_the_whole(tiles: pd.DataFrame) -> None:
    parts = [pd.DataFrame(simulate_tiles(n, seed=1, start=s)) for s, n in ((0, 3), (3, 250), (253, 7), (260, 252))]
    pd.testing.assert_frame_equal(pd.concat(parts, ignore_index=True), tiles, check_exact=True)


def test_another_seed_is_another_table(tiles: pd.DataFrame) -> None:
    other = pd.DataFrame(simulate_tiles(8, seed=2))
    assert (other["sparsity"] != tiles["sparsity"][:8]).all()


def test_no_tiles_are_empty_columns(tiles: pd.DataFrame) -> None:
    none = simulate_tiles(0, seed=1, start=5)
    assert {name: column.shape for name, column in none.items()} == dict.fromkeys(tiles.columns, (0,))


@pytest.mark.parametrize("options", ["oldest-row", "lookahead-first"])
def test_every_row_can_be_worked_out_again(options: str) -> None:
    tiles = pd.DataFrame(simulate_tiles(40, seed=4, start=9, ranges=SMALL, options=options))
    for i, row in enumerate(tiles.to_dict("records"), start=9):
        shape = (row["row_streams"], row["length"], 16)
        zeros = (row["sparsity"], row["clustering"], row["cluster"])
        mask = random_mask(np.random.default_rng([4, i]), shape, *zeros)
        mask &= filled_slots(row["taps"], row["channels"])
        passes = [mask[first : first + row["rows"]] for first in range(0, row["row_streams"], row["rows"])]
        repeats = -(-row["column_streams"] // row["columns"])
        assert row["index"] == i
        assert row["cycles"] == repeats * sum(oracle_cycles(part, options) for part in passes)
        assert row["dense_cycles"] == repeats * len(passes) * row["length"]
        assert row["density"] == pytest.approx(np.mean([part.mean() for part in passes]))
        bound = sum(row["length"] / min(3, 1 / max(part.mean(), 1e-9)) for part in passes)
        assert row["bound_cycles"] == pytest.approx(repeats * bound)
        assert row["speedup"] == row["dense_cycles"] / row["cycles"]


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_no_tile_is_faster_than_the_law_or_slower_than_dense(depth: int) -> None:
    tiles = pd.DataFrame(simulate_tiles(300, seed=depth, ranges=SMALL, depth=depth))
    assert (tiles.cycles >= tiles.bound_cycles * (1 - 1e-12)).all()
    assert (tiles.cycles <= tiles.dense_cycles).all()
    assert tiles.speedup.between(1, depth).all()
    if depth == 1:
        assert (tiles.cycles == tiles.dense_cycles).all()
    else:
        assert (tiles.cycles > tiles.bound_cycles).mean() > 0.5
        assert (tiles.speedup > 1.2).mean() > 0.5


def test_the_sparser_operand_is_scheduled(tiles: pd.DataFrame) -> None:
    by_second = tiles.second_sparsity > tiles.first_sparsity
    assert 0.3 < by_second.mean() < 0.7
    swapped = tiles[by_second]
    assert (swapped.row_streams == swapped.second_streams).all()
    assert (swapped.column_streams == swapped.first_streams).all()
    assert (swapped.sparsity == swapped.second_sparsity).all()
    assert (tiles[~by_second].row_streams == tiles[~by_second].first_streams).all()
    assert (tiles[~by_second].sparsity == tiles[~by_second].first_sparsity).all()


def test_configurations_fill_their_ranges_evenly() -> None:
    ranges = TileRanges()
    configs = pd.DataFrame(sample_configs(2048, seed=3))
    assert (configs.length == configs.taps * np.ceil(configs.channels / 16)).all()
    assert configs.length.min() == 1
    assert 3000 < configs.length.max() <= ranges.max_length
    for name in ("first_streams", "second_streams"):
        assert (configs[name].min(), configs[name].max()) == (1, 64)
        # Even on a logarithmic scale: half of the points lie below the square root of the longest.
        assert (configs[name] <= 8).mean() == pytest.approx(0.5, abs=0.03)
    for name, options in {"rows": ranges.rows, "columns": ranges.columns, "cluster": tuple(CLUSTERS)}.items():
        shares = configs[name].value_counts(normalize=True)
        assert set(shares.index) == set(options)
        assert shares.to_numpy() == pytest.approx(1 / len(options), abs=0.005)
    assert set(configs.taps) == set(ranges.taps)
    for name, zero, high in (("first_sparsity", 0.15, 0.99), ("clustering", 0.25, 0.9)):
        assert (configs[name] == 0).mean() == pytest.approx(zero, abs=0.005)
        assert configs[name][configs[name] > 0].mean() == pytest.approx(high / 2, abs=0.01)
        assert configs[name].max() <= high


def test_narrow_ranges_are_kept() -> None:
    ranges = TileRanges(taps=(49,), max_length=20, max_streams=1, rows=(4,), columns=(2,), max_sparsity=0.0, lanes=8)
    tiles = simulate_tiles(20, ranges=ranges)
    # Fewer steps than taps cannot be: one block of channels a tap is the least.
    assert set(tiles["length"].tolist()) == {49}
    assert tiles["channels"].max() <= 8
    assert set(tiles["row_streams"].tolist()) == {1}


def test_a_layer_with_few_channels_leaves_lanes_empty() -> None:
    image = TileRanges(taps=(49,), max_length=49, max_sparsity=0.0)
    tiles = pd.DataFrame(simulate_tiles(64, ranges=image))
    narrow = tiles[tiles.channels <= 4]
    assert len(narrow)
    assert narrow.density.to_numpy() == pytest.approx(narrow.channels.to_numpy() / 16)
    assert (narrow.speedup > 1).all()


def test_malformed_requests_end_in_one_line() -> None:
    for name in ("count", "seed", "start"):
        with pytest.raises(DataError, match=f"{name} is a whole number, 0 or more, not -1"):
            simulate_tiles(**{"count": 1} | {name: -1})
    with pytest.raises(DataError, match=r"not 1\.5"):
        sample_configs(1.5)  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match="did you mean lookahead-first"):
        simulate_tiles(0, options="lookahead")
    with pytest.raises(DeviceError, match="depth=0"):
        simulate_tiles(1, depth=0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("taps", ()),
        ("taps", (1, 0)),
        ("rows", (0,)),
        ("columns", (4.0,)),
        ("max_length", 0),
        ("max_streams", -1),
        ("lanes", 0),
    ],
)
def test_ranges_are_counts(field: str, value: Any) -> None:
    with pytest.raises(DataError, match=f"{field} of a tile are whole numbers, 1 or more, not "):
        TileRanges(**{field: value})


@pytest.mark.parametrize("field", ["max_sparsity", "max_clustering"])
def test_ranges_end_at_one(field: str) -> None:
    with pytest.raises(DataError, match=rf"{field} lies between 0 and 1, not at 3\.0"):
        TileRanges(**{field: 3.0})
