"""The tile that a library picks: learned from what ran, stored, and handed to devices never seen."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernel_grids import gemms

from neusight.devices import load_device
from neusight.errors import ArtifactError, DataError, DeviceError
from neusight.executors.gpu.tiling import TileChoice
from neusight.executors.gpu.tiling.library import (
    FEATURES,
    TILES,
    Products,
    choice_features,
    least_cost_tile,
    shipped_choice,
)
from neusight.kernels import KernelBatch
from neusight.kernels.conditions import Conditions
from neusight.laws.fitted import shipped_physics
from neusight.learn.tile_choice import ObservedTiles, fit_choice, tile_index
from neusight.learn.training_data import DeviceRows

PHYSICS = shipped_physics().physics

LARGE, SMALL = TILES.index((128, 128)), TILES.index((32, 32))


def shapes(n: int = 50) -> Products:
    batch = gemms(np.random.default_rng(1), n)
    return Products(*(batch[column].astype(float) for column in ("m", "n", "k", "batch")))


def test_library_follows_the_compute_capability(subtests: pytest.Subtests) -> None:
    for gpu, library in [
        *(("p4", "maxwell"), ("p100-pcie-16gb", "maxwell"), ("gtx-1080-ti", "maxwell")),
        *(("v100-pcie-32gb", "volta"), ("t4", "volta")),
        *(("a100-pcie-40gb", "ampere"), ("l4", "ampere"), ("h100-sxm-80gb", "ampere"), ("rtx-5090", "ampere")),
        *(("mi100", "tensile"), ("arc-pro-b60", "other")),
    ]:
        with subtests.test(gpu=gpu, library=library):
            assert load_device(gpu).facts.blas_generation == library


def test_a_device_of_unknown_capability_counts_as_new() -> None:
    device = load_device("p4").model_copy(update={"compute_capability": None})
    assert device.facts.blas_generation == "ampere"


def test_a_capability_that_is_no_number_is_named() -> None:
    device = load_device("l4").model_copy(update={"compute_capability": "sm_89"})
    with pytest.raises(DeviceError, match=r"NVIDIA L4: compute capability 'sm_89' is not a number"):
        _ = device.facts


def test_features_are_finite_and_costs_relative_to_the_cheapest() -> None:
    for gpu in ("p4", "h100-sxm-80gb", "mi300x"):
        found = dict(zip(FEATURES, choice_features(shapes(), load_device(gpu)), strict=True))
        assert all(f.shape == (len(TILES), 50) and np.isfinite(f).all() for f in found.values())
        for cost in ("log_cost", "log_whole_cost"):
            assert np.array_equal(found[cost].min(axis=0), np.zeros(50))
        assert (found["padding"] >= -1e-12).all()


def test_padding_is_the_log_of_the_covered_over_the_useful_area() -> None:
    one = np.ones(1)
    found = choice_features(Products(100 * one, 40 * one, 64 * one, one), load_device("l4"))
    assert found[FEATURES.index("padding")][TILES.index((64, 32)), 0] == pytest.approx(np.log(128 * 64 / (100 * 40)))


def test_tile_index() -> None:
    nan = float("nan")
    index = tile_index(np.array([256.0, 32.0, 17.0, nan]), np.array([128.0, 32.0, 64.0, nan]))
    assert index.tolist() == [0, len(TILES) - 1, -1, -1]


def test_round_trip_picks_the_same(tmp_path: Path) -> None:
    choice = shipped_choice()
    choice.save(tmp_path / "choice.json")
    again = TileChoice.load(tmp_path / "choice.json")
    again.save(tmp_path / "again.json")
    assert (tmp_path / "choice.json").read_bytes() == (tmp_path / "again.json").read_bytes()
    assert again.intercepts.keys() == choice.intercepts.keys()
    for op in ("linear", "bmm"):
        for first, second in zip(
            *(c.pick(op, shapes(), load_device("l4"), PHYSICS) for c in (choice, again)), strict=True
        ):
            assert np.array_equal(first, second)


def changed(path: Path, **entries: Any) -> Path:
    shipped_choice().save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))
    return path


def test_a_foreign_choice_is_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for entries, said in [
        ({"protocol": 99}, "other protocol"),
        ({"tiles": [[128, 128]]}, "other tiles"),
        ({"features": ["log_cost"]}, "other features"),
    ]:
        with subtests.test(entries=entries, said=said), pytest.raises(ArtifactError, match=said):
            TileChoice.load(changed(tmp_path / "choice.json", **entries))


def test_a_broken_choice_is_refused_in_one_line(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for content in [None, "", "{", "[]", '"text"', '{"protocol": 1}']:
        with subtests.test(content=content):
            path = tmp_path / "choice.json"
            if content is not None:
                path.write_text(content)
            with pytest.raises(ArtifactError, match=r"choice\.json.*neusight train") as caught:
                TileChoice.load(path)
            assert "\n" not in str(caught.value)


def test_a_choice_without_a_part_is_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for missing in ["intercepts", "weights", "accuracy"]:
        with subtests.test(missing=missing):
            path = tmp_path / "choice.json"
            shipped_choice().save(path)
            content = json.loads(path.read_text())
            del content[missing]
            path.write_text(json.dumps(content))
            with pytest.raises(ArtifactError, match=missing):
                TileChoice.load(path)


def ran(gpu: str, batch: KernelBatch, tile: np.ndarray) -> DeviceRows:
    """Products of a GPU with the tiles of their kernels' names, by index; -1: the name tells none."""
    size, unknown = len(batch), np.full(len(batch), np.nan)
    height, width = np.vstack([TILES, [np.nan, np.nan]])[tile].T
    split = np.full(size, "")
    return DeviceRows(
        load_device(gpu), batch, unknown, unknown, split, height, width, np.arange(size), Conditions.of(size)
    )


def hit_rates(choice: TileChoice, rows: DeviceRows) -> dict[str, float]:
    return {op: ObservedTiles.of(rows, op).hit_rate(choice, op) for op in ("linear", "bmm")}


def planted(gpu: str, seed: int, flipped: bool = False) -> DeviceRows:
    """GEMMs of which deep ones ran 128x128 tiles and shallow ones 32x32, or the reverse; some rows without a tile."""
    batch = gemms(np.random.default_rng(seed), 300)
    wide = np.minimum(batch["m"], batch["n"]) >= 200
    tiles = np.where(wide != flipped, LARGE, SMALL)
    tiles[::7] = -1
    return ran(gpu, batch, tiles)


def test_fit_learns_a_planted_preference_and_carries_it_to_a_device_never_seen() -> None:
    choice = fit_choice([planted("v100-pcie-32gb", 1), planted("a100-pcie-40gb", 2)], rows_per_device=300)
    for rates in (hit_rates(choice, planted("a100-pcie-40gb", 3)), hit_rates(choice, planted("a100-sxm-80gb", 4))):
        assert rates["linear"] > 0.85
        assert rates["bmm"] > 0.85
    assert choice.accuracy.keys() == {
        f"{g}/{o}" for g in ("v100-pcie-32gb", "a100-pcie-40gb") for o in ("linear", "bmm")
    }


def test_fit_follows_what_ran_and_no_idea_of_its_own() -> None:
    # A library that always runs one tile is learned to do so, whatever the tile costs.
    always = planted("a100-pcie-40gb", 2)
    odd = TILES.index((32, 128))
    choice = fit_choice([ran(always.device.id, always.batch, np.full(300, odd))], rows_per_device=300)
    m, n = choice.pick("linear", shapes(), load_device("a100-pcie-80gb"), PHYSICS)
    assert set(zip(m, n, strict=True)) == {(32, 128)}


def test_other_compute_capabilities_take_the_tile_of_least_cost() -> None:
    seen, other = load_device("a100-pcie-40gb"), load_device("l4")
    choice = fit_choice([planted(seen.id, 2)], rows_per_device=300)
    assert choice.seen("linear", seen)
    assert not choice.seen("linear", other)
    extents = shapes()
    size = np.full(len(extents.m), 4.0)
    cheapest = least_cost_tile(extents, size, other.gemm_flops_per_s("float32"), device=other, physics=PHYSICS)
    assert np.array_equal(choice.pick("linear", extents, other, PHYSICS), cheapest)


def test_preferences_for_bmm_carry_over_to_other_capabilities_where_they_cost_little() -> None:
    odd = TILES.index((64, 128))
    always = planted("a100-pcie-40gb", 2)
    choice = fit_choice([ran(always.device.id, always.batch, np.full(300, odd))], rows_per_device=300)
    one, other = np.ones(1), load_device("t4")
    picked = choice.pick("bmm", Products(1024 * one, 1024 * one, 512 * one, 64 * one), other, PHYSICS)
    assert (float(picked[0][0]), float(picked[1][0])) == (64, 128)
    # Two rows of C would leave most of a tile 64 high idle.
    two_rows = Products(2 * one, 1024 * one, 512 * one, 640 * one)
    thin = choice.pick("bmm", two_rows, other, PHYSICS)
    assert float(thin[0][0]) == 32
    assert np.array_equal(choice.pick("linear", two_rows, other, PHYSICS)[0], thin[0])


def test_fit_is_deterministic_for_a_seed() -> None:
    one, same, other = (fit_choice([planted("t4", 1)], rows_per_device=200, seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(one.weights["linear"], same.weights["linear"])
    assert not np.array_equal(one.weights["linear"], other.weights["linear"])


def test_libraries_never_seen_take_what_all_share() -> None:
    choice = fit_choice([planted("p4", 1), planted("t4", 2)], rows_per_device=200)
    features, l4 = choice_features(shapes(), load_device("l4")), load_device("l4")
    alone = TileChoice({"any/bmm": choice.intercepts["any/bmm"]}, choice.weights, {})
    assert np.array_equal(choice.scores("bmm", l4, features), alone.scores("bmm", l4, features))
    found = [choice.pick("linear", shapes(), load_device(gpu), PHYSICS) for gpu in ("l4", "mi100", "arc-pro-b60")]
    assert all(np.isin(m * 1000 + n, [a * 1000 + b for a, b in TILES]).all() for m, n in found)


def test_no_row_with_a_tile_is_an_error() -> None:
    nothing = planted("t4", 1)
    with pytest.raises(DataError, match="no linear row has a tile"):
        fit_choice([ran(nothing.device.id, nothing.batch, np.full(300, -1))])


def test_libraries_that_take_one_tile_leave_others_their_costs() -> None:
    """A table of 8.0 with one tile for all, and one of 9.0 with the cheapest, are both learned from all together."""
    batch = gemms(np.random.default_rng(2), 600)
    extents = Products(*(batch[column].astype(float) for column in ("m", "n", "k", "batch")))
    devices = [load_device(gpu) for gpu in ("a100-pcie-40gb", "h100-sxm-80gb")]
    cost = choice_features(extents, devices[1])[FEATURES.index("log_whole_cost")]
    tiles = (np.full(600, LARGE), np.argmin(cost, axis=0))
    observed = [ran(device.id, batch, tile) for device, tile in zip(devices, tiles, strict=True)]
    choice = fit_choice(observed)
    for device in observed:
        assert min(hit_rates(choice, device).values()) > 0.8
