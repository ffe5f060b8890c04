"""Intervals from what was left out: they hold what another device misses by, whatever little is known of a kind."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm
from scipy.stats import t as student

from neusight.executors.gpu.tile_models.doubts import doubt_of, levels
from neusight.laws.doubts import NORMAL_90
from neusight.learn.doubts import SEEN_SHARE, Residuals, coverage, doubts, doubts_by_kinship

PERCENT = np.linspace(0.005, 0.995, 101)


def residuals(
    gpu: str, mean: float = 0.0, scatter: float = 0.1, *, name: str = "linear float16", rows: int = 1000
) -> Residuals:
    values = norm.ppf(PERCENT, mean, scatter).tolist()
    return Residuals(gpu=gpu, die=gpu[0], family="gemm", name=name, rows=rows, quantiles=values)


def boards(count: int, shared: float, scatter: float, name: str = "linear float16") -> list[Residuals]:
    """Devices whose means are spread evenly over a normal distribution."""
    means = shared * norm.ppf((np.arange(count) + 0.5) / count)
    return [residuals(f"{number}", mean, scatter, name=name) for number, mean in enumerate(means)]


def test_a_name_is_one_of_what_is_alike() -> None:
    assert levels("linear float16 int4, throttled") == (
        *("linear float16 int4, throttled", "* float16 int4, throttled"),
        *("*, throttled", "*"),
    )
    one_kind = {"linear": [0.9, 1.1, 0.1], "*": [0.5, 2.0, 0.3]}
    assert doubt_of(one_kind, "bmm float16, throttled") == one_kind["*"]
    assert doubt_of(one_kind, "linear, throttled") == one_kind["linear"], "nothing limited was measured"
    assert doubt_of(one_kind | {"*, throttled": [0.4, 3.0, 0.5]}, "linear, throttled") == [0.4, 3.0, 0.5]


def test_intervals_of_many_devices_are_those_of_what_they_share_and_scatter() -> None:
    low, high, spread = doubts(boards(60, 0.2, 0.1))["linear float16"]
    whole = NORMAL_90 * np.hypot(0.2, 0.1)
    assert (np.log(low), np.log(high)) == pytest.approx((-whole, whole), rel=0.05)
    assert spread == pytest.approx(0.2, rel=0.05)


def test_few_devices_say_less_than_they_show() -> None:
    shown = [float(np.std([np.mean(r.quantiles) for r in boards(count, 0.2, 0.05)])) for count in (4, 60)]
    few, many = (doubts(boards(count, 0.2, 0.05))["linear float16"][2] for count in (4, 60))
    widening = student.ppf(0.95, 4) / NORMAL_90
    assert (few / shown[0], many / shown[1]) == (pytest.approx(widening, rel=0.01), pytest.approx(1.0, rel=0.05))


def test_a_kind_with_few_rows_is_as_those_that_are_alike() -> None:
    others = boards(20, 0.1, 0.1, "bmm float16")
    odd = residuals("a", 1.0, 0.1, rows=2)
    found = doubts([*others, odd])
    assert found["linear float16"][1] < 1.3 * found["* float16"][1]
    assert doubts([*others, residuals("a", 1.0, 0.1)])["linear float16"][1] > 1.5 * found["* float16"][1]


def test_boards_of_a_die_count_once_for_strangers() -> None:
    """Three boards that are off alike tell of one die."""
    lone = [residuals("a", 0.3), *boards(5, 0.05, 0.05)]
    alike = [replace(r, gpu=f"a{n}", die="a") for n in range(3) for r in lone[:1]]
    found = doubts_by_kinship([], [], [*alike, *lone[1:]])["stranger"]
    assert found["*"] == pytest.approx(doubts([replace(r, gpu=r.die) for r in lone])["*"], rel=0.01)
    assert found["*"][1] < doubts([*alike, *lone[1:]])["*"][1]


def test_few_siblings_stand_beside_known_boards_and_strangers() -> None:
    """A sibling that happens to be met exactly says little; one that is far off is believed the less."""
    own, strangers = boards(12, 0.02, 0.1), boards(12, 0.2, 0.1)
    known = {mean: doubts_by_kinship(own, [residuals("a", mean, 0.01)], strangers) for mean in (0.0, 0.5)}
    exact, off = (known[mean]["sibling"]["*"][1] for mean in (0.0, 0.5))
    assert known[0.0]["own"]["*"][1] < exact < known[0.0]["stranger"]["*"][1]
    assert exact < off < doubts([residuals("a", 0.5, 0.01)])["*"][1]


def test_each_side_is_what_was_missed_on_it() -> None:
    values = np.concatenate([np.full(50, -0.05), np.full(51, 0.5)]).tolist()
    late = [Residuals(gpu=g, die=g, family="gemm", name="linear", rows=500, quantiles=values) for g in "abcdefgh"]
    low, high, _ = doubts(late)["linear"]
    assert -np.log(low) < 0.25 * np.log(high)


def test_throttled_kernels_have_doubts_of_their_own() -> None:
    free, limited = boards(20, 0.05, 0.1), boards(20, 0.3, 0.1, "linear float16, throttled")
    found = doubts([*free, *limited])
    assert found["linear float16, throttled"][2] > 2 * found["linear float16"][2]


def test_a_device_that_is_off_by_far_more_is_a_fault_of_the_data() -> None:
    sound = boards(8, 0.1, 0.1)
    assert doubts([*sound, residuals("z", np.log(7.0))]) == doubts(sound)
    assert doubts([residuals("z", np.log(7.0))])["*"][1] > 7.0, "where there is nothing else"


def test_nine_in_ten_rows_of_a_device_that_taught_nothing_are_inside() -> None:
    rows = coverage({"own": boards(30, 0.2, 0.1), "sibling": [], "stranger": []})
    assert [(row["family"], row["gpus"], row["rows"]) for row in rows] == [("gemm", 30, 30_000)]
    assert rows[0]["inside"] == pytest.approx(90, abs=3)
    assert rows[0]["width"] == pytest.approx(1.0, abs=0.1)
    assert rows[0]["crps"] == pytest.approx(np.hypot(0.2, 0.1) / np.sqrt(np.pi), rel=0.05)
    assert rows[0]["kinship"] == "own"
    one_die = [replace(r, die="only") for r in boards(30, 0.2, 0.1)]
    assert coverage({"own": [], "sibling": [], "stranger": one_die}) == []


def test_strangers_are_known_by_devices_left_out_or_else_by_twice_of_what_one_misses() -> None:
    own, strangers = boards(8, 0.0, 0.05), boards(8, 0.2, 0.1)
    found = doubts_by_kinship(own, [], strangers)
    assert found.keys() == {"own", "stranger"}
    assert found["stranger"] == doubts(strangers)
    assert found["own"]["*"][:2] == doubts(own)["*"][:2]
    assert found["own"]["*"][2] == pytest.approx(SEEN_SHARE * found["stranger"]["*"][2], abs=1e-4)
    alone = doubts_by_kinship(own[:1], [], [])
    assert alone["stranger"]["*"][:2] == [0.5, 2.0], "nothing tells how GPUs differ"
    assert doubts_by_kinship([residuals("a", rows=10)], [], [])["own"]["*"][:2] == [0.5, 2.0], "too few have no tails"
