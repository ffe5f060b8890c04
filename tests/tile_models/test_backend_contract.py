"""What every backend must do, whatever it learns."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tile_models_toys import SMALL, planted

from neusight.errors import ArtifactError
from neusight.executors.gpu.tile_models import BACKENDS, TrainingSet, new_model
from neusight.executors.gpu.tile_models.protocol import (
    backend_class,
    device_levels,
    log_error,
    residual_target,
    utilisation,
)

Fitted = Callable[[str], Any]
LEARNED = ("mlp", "gbm", "linear")


@pytest.mark.parametrize("backend", BACKENDS)
def test_constructors_only_assign_and_fit_returns_the_model(backend: str) -> None:
    parameters = SMALL[backend]
    model = new_model(backend, **parameters)
    assert model.backend == backend
    assert vars(model).items() >= parameters.items()
    assert model.fit(planted(200)) is model


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n", [1, 7, 800])
def test_logits_have_a_row_for_each_member(backend: str, n: int, fitted: Fitted) -> None:
    data = planted()
    logits = fitted(backend).logits(data.features[:n], data.prior[:n])
    assert logits.shape == (SMALL[backend].get("members", 1), n)
    assert not np.isnan(logits).any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_row_does_not_depend_on_its_company(backend: str, fitted: Fitted) -> None:
    data, model = planted(1000), fitted(backend)
    together = model.logits(data.features, data.prior)
    for row in (0, 500, 999):
        alone = model.logits(data.features[row : row + 1], data.prior[row : row + 1])
        np.testing.assert_allclose(alone[:, 0], together[:, row], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", LEARNED)
def test_corrections_stay_within_the_cap(backend: str, fitted: Fitted) -> None:
    model, wild = fitted(backend), np.array([[1e9] * 3, [-1e9] * 3, [0.0] * 3])
    prior = np.array([-5.0, 0.0, 5.0])
    corrected = model.logits(wild, prior) - prior
    assert (np.abs(corrected) <= model.cap * (1 + 1e-6)).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_fits_are_equal_for_a_seed(backend: str, fitted: Fitted) -> None:
    data = planted()
    again = new_model(backend, **SMALL[backend]).fit(data)
    first, second = (m.logits(data.features, data.prior) for m in (fitted(backend), again))
    assert np.array_equal(first, second)


@pytest.mark.parametrize("backend", ["mlp", "gbm"])
def test_fits_differ_for_another_seed(backend: str, fitted: Fitted) -> None:
    data = planted()
    other = new_model(backend, **SMALL[backend], seed=1).fit(data)
    assert not np.array_equal(
        other.logits(data.features, data.prior), fitted(backend).logits(data.features, data.prior)
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_weights_round_trip_bit_equal(backend: str, fitted: Fitted, tmp_path: Path) -> None:
    data, model = planted(seed=5), fitted(backend)
    model.save(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [model.weights_file]
    again = backend_class(backend).load(tmp_path, SMALL[backend])
    assert np.array_equal(again.logits(data.features, data.prior), model.logits(data.features, data.prior))


class Prior:
    """A model that learned nothing."""

    def logits(self, features: np.ndarray, prior: np.ndarray) -> np.ndarray:
        return prior[None]


@pytest.mark.parametrize(("backend", "left"), [("mlp", 0.2), ("gbm", 0.5), ("linear", 0.15)])
def test_learned_models_find_a_planted_correction(backend: str, left: float, fitted: Fitted) -> None:
    # On kernels that no model saw. The correction is a quadratic, which a linear model needs products for.
    unseen = planted(seed=9)
    before, after = log_error(Prior(), unseen), log_error(fitted(backend), unseen)
    assert before > 0.1
    assert after < left * before


@pytest.mark.parametrize("backend", ["gbm", "linear"])
def test_rows_teach_by_their_weight(backend: str) -> None:
    data = planted(800, offsets=(0.0, 1.0))
    heavy = TrainingSet(**{**vars(data), "weight": np.where(data.group == 1, 1.0, 1e-9)})
    probe = planted(300, seed=3, offsets=(1.0,))
    equal, weighted = (log_error(new_model(backend, **SMALL[backend]).fit(d), probe) for d in (data, heavy))
    assert weighted < 0.5 * equal


def test_a_level_is_the_median_of_its_rows() -> None:
    data = planted(5)
    gaps = np.array([0.0, 0.1, 0.2, 0.3, 1.4])
    latency_s = data.floor_s + data.bound_s * (1 + np.exp(-(data.prior + gaps)))
    found = device_levels(Prior(), TrainingSet(**{**vars(data), "latency_s": latency_s}), ["l4/linear"])
    assert found == {"l4/linear": pytest.approx(0.2, abs=1e-4)}


def test_roofline_says_that_every_tile_reaches_its_bound(fitted: Fitted) -> None:
    data = planted(10)
    assert utilisation(fitted("roofline").logits(data.features, data.prior)).tolist() == [1.0] * 10


def test_the_seen_error_is_recorded_for_each_pass() -> None:
    held, seen = planted(100, seed=3), []

    def progress(done: int, of: int, error: float) -> None:
        seen.append((done, of, error))

    for backend, count, of in (("mlp", 6, 6), ("gbm", 3, 30), ("linear", 1, 1)):
        seen.clear()
        model = new_model(backend, **SMALL[backend]).fit(planted(), held, progress)
        assert len(seen) == count
        # A network also says how good the prior is before it has learned anything.
        assert [entry[2] for entry in seen] == model.history_[-count:]
        assert len(model.history_) == count + (backend == "mlp")
        assert seen[-1][:2] == (of, of)
        assert model.history_[-1] == pytest.approx(log_error(model, held))


def test_an_unknown_backend_names_the_known() -> None:
    with pytest.raises(ArtifactError, match=r"no tile-model backend 'mpl': one of mlp, gbm.*did you mean mlp"):
        new_model("mpl")


@given(arrays(float, (3, 4), elements=st.floats(-1e300, 1e300)), st.floats(-50, 50))
def test_utilisation_is_a_share_for_any_finite_logit(values: np.ndarray, level: float) -> None:
    share = utilisation(values, level)
    assert (share > 0).all()
    assert (share <= 1).all()


@pytest.mark.parametrize("value", [np.inf, -np.inf, 8e307, -8e307])
def test_utilisation_is_a_share_at_the_ends(value: float) -> None:
    (share,) = utilisation(np.full((2, 1), value))
    assert 0 < share <= 1
    assert (share == 1) == (value > 0)


@pytest.mark.parametrize("backend", BACKENDS)
@given(scale=st.sampled_from([0.0, 1.0, 1e3, 1e30]), seed=st.integers(0, 1000))
def test_latency_is_never_below_the_bound(backend: str, scale: float, seed: int, fitted: Fitted) -> None:
    rng = np.random.default_rng(seed)
    features, prior = scale * rng.normal(size=(20, 3)), scale * rng.normal(size=20)
    bound_s = np.exp(rng.normal(-10, 3, 20))
    assert (bound_s / utilisation(fitted(backend).logits(features, prior)) >= bound_s).all()


def test_utilisation_averages_members_and_adds_the_level() -> None:
    (share,) = utilisation(np.array([[1.0], [3.0]]), -2.0)
    assert share == pytest.approx(0.5)


@pytest.mark.parametrize("backend", LEARNED)
def test_device_levels_find_planted_offsets(backend: str, fitted: Fitted) -> None:
    offsets = (0.0, 0.6, -0.4)
    found = device_levels(fitted(backend), planted(seed=4, offsets=offsets), ["t4/linear", "l4/linear", "p4/linear"])
    assert list(found) == ["t4/linear", "l4/linear", "p4/linear"]
    assert list(found.values()) == pytest.approx(list(offsets), abs=0.12)


def test_device_levels_are_limited(fitted: Fitted) -> None:
    found = device_levels(fitted("linear"), planted(offsets=(9.0, -9.0)), ["a", "b"])
    assert found == {"a": 1.5, "b": -1.5}


def test_device_levels_go_by_weight(fitted: Fitted) -> None:
    data = planted(seed=6, offsets=(0.0, 1.0))
    merged = {**vars(data), "group": np.zeros(len(data), dtype=int)}
    heavy = np.where(data.group == 1, 10.0, 1.0)
    light = np.where(data.group == 1, 0.1, 1.0)
    model = fitted("linear")
    high, low = (device_levels(model, type(data)(**merged | {"weight": w}), ["x"])["x"] for w in (heavy, light))
    assert high == pytest.approx(1.0, abs=0.2)
    assert low == pytest.approx(0.0, abs=0.2)


def test_residual_target_is_what_was_planted() -> None:
    data = planted(100)
    target, weight = residual_target(data)
    # Slow rows of the toy have their whole correction; rows at their bound weigh next to nothing.
    expected = np.log((u := data.bound_s / (data.latency_s - data.floor_s)) / (1 - u)) - data.prior
    assert target == pytest.approx(expected, abs=1e-9)
    assert weight == pytest.approx(data.weight * (1 - u))


def test_log_error_by_hand(fitted: Fitted) -> None:
    data = planted(2)
    # The roofline says floor + bound.
    errors = np.log(data.latency_s / (data.floor_s + data.bound_s))
    weighted = type(data)(**{**vars(data), "weight": np.array([3.0, 1.0])})
    assert log_error(fitted("roofline"), weighted) == pytest.approx((3 * errors[0] + errors[1]) / 4)


def test_take_selects_rows_of_every_column() -> None:
    data = planted(10, offsets=(0.0, 0.1))
    part = data.take(np.array([7, 2]))
    assert len(part) == 2
    for name, column in vars(part).items():
        assert np.array_equal(column, getattr(data, name)[[7, 2]])
