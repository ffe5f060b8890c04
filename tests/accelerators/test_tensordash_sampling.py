"""Configurations of tiles: any chunk is the same table, and the ranges are filled evenly."""

import numpy as np
import pandas as pd
import pytest

from neusight.errors import DataError
from neusight.executors.tensordash.masks import CLUSTERS
from neusight.learn.tensordash.dataset import TileRanges, sample_configs


@pytest.fixture(scope="module")
def tiles() -> pd.DataFrame:
    return pd.DataFrame(sample_configs(512, seed=1))


def test_chunks_join_to_the_whole(tiles: pd.DataFrame) -> None:
    parts = [pd.DataFrame(sample_configs(n, seed=1, start=s)) for s, n in ((0, 3), (3, 250), (253, 7), (260, 252))]
    pd.testing.assert_frame_equal(pd.concat(parts, ignore_index=True), tiles, check_exact=True)


def test_another_seed_is_another_table(tiles: pd.DataFrame) -> None:
    other = pd.DataFrame(sample_configs(8, seed=2))
    assert (other["sparsity"] != tiles["sparsity"][:8]).all()


def test_no_tiles_are_empty_columns(tiles: pd.DataFrame) -> None:
    none = sample_configs(0, seed=1, start=5)
    assert {name: column.shape for name, column in none.items()} == dict.fromkeys(tiles.columns, (0,))


def test_configurations_fill_their_ranges_evenly() -> None:
    ranges = TileRanges()
    configs = pd.DataFrame(sample_configs(2048, seed=3))
    assert (configs.length == configs.taps * np.ceil(configs.channels / 16)).all()
    assert configs.length.min() == 1
    assert 3000 < configs.length.max() <= ranges.max_length
    for name in ("row_streams", "column_streams"):
        assert (configs[name].min(), configs[name].max()) == (1, 64)
        # Even on a logarithmic scale: half of the points lie below the square root of the longest.
        assert (configs[name] <= 8).mean() == pytest.approx(0.5, abs=0.03)
    for name, options in {"rows": ranges.rows, "columns": ranges.columns, "cluster": tuple(CLUSTERS)}.items():
        shares = configs[name].value_counts(normalize=True)
        assert set(shares.index) == set(options)
        assert shares.to_numpy() == pytest.approx(1 / len(options), abs=0.005)
    assert set(configs.taps) == set(ranges.taps)
    # The sparser of two operands, each even from 0 up, is scheduled.
    for name, zero, mean, high in (("sparsity", 0.15**2, 0.623 * 0.99, 0.99), ("clustering", 0.25, 0.45, 0.9)):
        assert (configs[name] == 0).mean() == pytest.approx(zero, abs=0.005)
        assert configs[name][configs[name] > 0].mean() == pytest.approx(mean, abs=0.01)
        assert configs[name].max() <= high


def test_narrow_ranges_are_kept() -> None:
    ranges = TileRanges(taps=(49,), max_length=20, max_streams=1, rows=(4,), columns=(2,), max_sparsity=0.0)
    tiles = sample_configs(20, ranges=ranges)
    # Fewer steps than taps cannot be: one block of channels a tap is the least.
    assert set(tiles["length"].tolist()) == {49}
    assert tiles["channels"].max() <= 16
    assert set(tiles["row_streams"].tolist()) == {1}


def test_a_negative_count_ends_in_one_line() -> None:
    with pytest.raises(DataError, match="count, seed and start are 0 or more, not -1, 0 and 0"):
        sample_configs(-1)
