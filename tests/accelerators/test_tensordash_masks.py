"""Random zeros: as many as asked for, as close together as asked for, and the same for the same seed."""

from typing import Any

import numpy as np
import pytest

from neusight.errors import DataError
from neusight.executors.tensordash.masks import CLUSTERS, clustering_of, filled_slots, random_mask
from neusight.executors.tensordash.schedule import schedule_passes

SHAPES = {"stream": (3000, 6, 16), "step": (40, 150, 16), "lane": (80, 40, 16), "slot": (30, 200, 16)}


def draw(shape: tuple[int, int, int], sparsity: float, clustering: float = 0.0, **how: Any) -> np.ndarray:
    return random_mask(np.random.default_rng(5), shape, sparsity, clustering, **how)


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_without_clustering_zeros_are_independent_draws(cluster: str) -> None:
    shape = (4, 50, 16)
    expected = np.random.default_rng(5).random(shape) >= 0.3
    assert (draw(shape, 0.3, cluster=cluster) == expected).all()
    assert draw(shape, 0.3).dtype == np.bool_


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("clustering", [0.0, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("sparsity", [0.1, 0.5, 0.9])
def test_sparsity_and_clustering_are_those_asked_for(cluster: str, clustering: float, sparsity: float) -> None:
    mask = draw(SHAPES[cluster], sparsity, clustering, cluster=cluster)
    groups = np.prod(CLUSTERS[cluster](*mask.shape))
    # The mean of groups whose fractions have variance c s (1 - s), besides the values' own: four standard errors.
    spread = sparsity * (1 - sparsity) * (clustering + (1 - clustering) * groups / mask.size) / groups
    assert 1 - mask.mean() == pytest.approx(sparsity, abs=4 * spread**0.5)
    assert clustering_of(mask, cluster) == pytest.approx(clustering, abs=0.04)


def test_values_of_a_pair_are_alike_as_often_as_the_model_says() -> None:
    mask = draw((40_000, 1, 2), 0.3, 0.4)
    # Both zero: E[q²] = s² + c s (1 - s).
    both = (~mask).all(axis=(1, 2)).mean()
    assert both == pytest.approx(0.3**2 + 0.4 * 0.3 * 0.7, abs=0.008)


@pytest.mark.parametrize(
    ("cluster", "alike", "unrelated"),
    [
        # Where a stream is alike its steps and lanes are, too; 16 lanes of a stream say a sixteenth about it.
        ("stream", (1, 2), ["slot"]),
        ("step", (2,), ["stream", "lane", "slot"]),
        ("lane", (1,), ["stream", "step", "slot"]),
        ("slot", (0,), ["stream", "step", "lane"]),
    ],
)
def test_groups_are_where_their_name_says(cluster: str, alike: tuple[int, ...], unrelated: list[str]) -> None:
    mask = draw((50, 40, 16), 0.5, 1.0, cluster=cluster)
    assert (mask.all(axis=alike) | ~mask.any(axis=alike)).all()
    assert clustering_of(mask, cluster) == pytest.approx(1.0)
    assert [clustering_of(mask, other) for other in unrelated] == pytest.approx([0.0] * len(unrelated), abs=0.1)


@pytest.mark.parametrize("clustering", [0.0, 0.5, 1.0])
def test_no_zeros_and_nothing_but_zeros(clustering: float) -> None:
    assert draw((4, 30, 16), 0.0, clustering).all()
    assert not draw((4, 30, 16), 1.0, clustering).any()


def test_extreme_clustering_is_still_a_mask_of_its_sparsity() -> None:
    mask = draw((20_000, 1, 4), 0.7, 0.9999)
    assert 1 - mask.mean() == pytest.approx(0.7, abs=0.015)


def test_the_same_seed_draws_the_same_mask() -> None:
    assert (draw((4, 30, 16), 0.5, 0.3) == draw((4, 30, 16), 0.5, 0.3)).all()
    rng = np.random.default_rng(5)
    first, second = (random_mask(rng, (4, 30, 16), 0.5, 0.3) for _ in range(2))
    assert (first != second).any()


def test_clustered_streams_cost_more_than_anything_that_rows_share() -> None:
    cycles = {
        cluster: schedule_passes(draw((400, 60, 16), 0.6, 0.5, cluster=cluster), 4).mean()
        for cluster in ("stream", "slot")
    }
    independent = schedule_passes(draw((400, 60, 16), 0.6), 4).mean()
    assert cycles["stream"] > 1.1 * independent
    assert cycles["stream"] > 1.1 * cycles["slot"]


def test_clustering_of_what_says_nothing_is_zero() -> None:
    assert clustering_of(np.ones((4, 5, 16), dtype=bool)) == 0.0
    assert clustering_of(np.zeros((4, 5, 16), dtype=bool), "step") == 0.0
    # With one stream, a slot is a single value.
    assert clustering_of(draw((1, 50, 16), 0.5), "slot") == 0.0


@pytest.mark.parametrize(("taps", "channels", "steps"), [(9, 3, 9), (1, 16, 1), (2, 40, 6), (49, 17, 98)])
def test_slots_beyond_the_last_channel_are_empty(taps: int, channels: int, steps: int) -> None:
    slots = filled_slots(taps, channels)
    assert slots.shape == (steps, 16)
    assert slots.sum() == taps * channels
    per_tap = slots.reshape(taps, -1)
    assert per_tap[:, :channels].all()
    assert not per_tap[:, channels:].any()


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"sparsity": 1.2}, "sparsity lies between 0 and 1, not at 1.2"),
        ({"sparsity": float("nan")}, "sparsity lies between 0 and 1, not at nan"),
        ({"clustering": -0.1}, "clustering lies between 0 and 1"),
        ({"cluster": "streams"}, r"unknown cluster 'streams': one of .*; did you mean stream"),
    ],
)
def test_malformed_requests_end_in_one_line(how: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=says):
        random_mask(np.random.default_rng(0), **{"shape": (2, 3, 16), "sparsity": 0.5} | how)


def test_malformed_masks_and_slots_end_in_one_line() -> None:
    with pytest.raises(DataError, match="not float64"):
        clustering_of(np.ones((2, 3, 16)))
    with pytest.raises(DataError, match="did you mean lane"):
        clustering_of(np.ones((2, 3, 16), dtype=bool), "lanes")
    with pytest.raises(DataError, match="1 or more taps, channels and lanes, not 9, 0 and 16"):
        filled_slots(9, 0)
