"""What every backend must do, whatever it learns."""

from collections.abc import Callable, Iterator
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
    device_effects,
    log_error,
    residual_target,
    utilisation,
)

Fitted = Callable[[str], Any]
LEARNED = ("mlp", "gbm", "linear")
LEFT = {"mlp": 0.2, "gbm": 0.5, "linear": 0.15}
"""Share of the prior's error that is left on kernels that no model saw: the correction is a quadratic."""


class Prior:
    """A model that learned nothing."""

    def logits(self, features: np.ndarray, prior: np.ndarray) -> np.ndarray:
        return prior[None]


def faults_of_fitting(backend: str, model: Any) -> Iterator[str]:
    """Constructors only assign; fits are equal for a seed and differ for another."""
    fresh, data = new_model(backend, **SMALL[backend]), planted()
    if fresh.backend != backend or not vars(fresh).items() >= SMALL[backend].items():
        yield "the constructor does more than assign"
    if fresh.fit(data) is not fresh:
        yield "fit does not return the model"
    said = model.logits(data.features, data.prior)
    if not np.array_equal(fresh.logits(data.features, data.prior), said):
        yield "another fit of the same seed differs"
    if backend in ("mlp", "gbm"):
        other = new_model(backend, **SMALL[backend], seed=1).fit(data)
        if np.array_equal(other.logits(data.features, data.prior), said):
            yield "a fit of another seed is the same"


def faults_of_logits(backend: str, model: Any) -> Iterator[str]:
    """A row for each member, whatever its company; corrections within the cap; never faster than the bound."""
    data = planted(1000)
    together = model.logits(data.features, data.prior)
    for n in (1, 7, 1000):
        logits = model.logits(data.features[:n], data.prior[:n])
        if logits.shape != (SMALL[backend].get("members", 1), n) or np.isnan(logits).any():
            yield f"{n} rows give {logits.shape}"
    for row in (0, 500, 999):
        alone = model.logits(data.features[row : row + 1], data.prior[row : row + 1])
        if not np.allclose(alone[:, 0], together[:, row], rtol=1e-5, atol=1e-6):
            yield f"row {row} depends on its company"
    wild, prior = np.array([[1e9] * 3, [-1e9] * 3, [0.0] * 3]), np.array([-5.0, 0.0, 5.0])
    if backend in LEARNED and (np.abs(model.logits(wild, prior) - prior) > model.cap * (1 + 1e-6)).any():
        yield "corrections go beyond the cap"


def faults_of_laws(model: Any) -> Iterator[str]:
    """Latency is never below the bound, whatever the inputs."""
    for seed in range(8):
        rng, scale = np.random.default_rng(seed), (0.0, 1.0, 1e3, 1e30)[seed % 4]
        features, prior = scale * rng.normal(size=(20, 3)), scale * rng.normal(size=20)
        bound_s = np.exp(rng.normal(-10, 3, 20))
        if not (bound_s / utilisation(model.logits(features, prior)) >= bound_s).all():
            yield f"seed {seed}: faster than the bound"


def faults_of_saving(backend: str, model: Any, folder: Path) -> Iterator[str]:
    data = planted(seed=5)
    model.save(folder)
    if [p.name for p in folder.iterdir()] != [model.weights_file]:
        yield "writes other files than its weights"
    again = backend_class(backend).load(folder, SMALL[backend])
    if not np.array_equal(again.logits(data.features, data.prior), model.logits(data.features, data.prior)):
        yield "is not read back bit-equal"


def faults_of_learning(backend: str, model: Any) -> Iterator[str]:
    """Finds a planted correction, and planted offsets of devices."""
    unseen, offsets = planted(seed=9), [0.0, 0.6, -0.4]
    before, after = log_error(Prior(), unseen), log_error(model, unseen)
    if not (before > 0.1 and after < LEFT[backend] * before):
        yield f"leaves {after:.3f} of an error of {before:.3f}"
    names = ["t4/linear", "l4/linear", "p4/linear"]
    found = device_effects(model, planted(seed=4, offsets=tuple(offsets)), names)["linear"]
    if list(found) != ["t4", "l4", "p4"] or list(found.values()) != pytest.approx(offsets, abs=0.12):
        yield f"effects are {found}"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backend_keeps_the_contract(backend: str, fitted: Fitted, tmp_path: Path) -> None:
    model = fitted(backend)
    faults = [*faults_of_fitting(backend, model), *faults_of_logits(backend, model), *faults_of_laws(model)]
    faults += [*faults_of_saving(backend, model, tmp_path)]
    faults += [*faults_of_learning(backend, model)] if backend in LEARNED else []
    assert not faults


def test_rows_teach_by_their_weight() -> None:
    data, probe = planted(800, offsets=(0.0, 1.0)), planted(300, seed=3, offsets=(1.0,))
    heavy = TrainingSet(**{**vars(data), "weight": np.where(data.group == 1, 1.0, 1e-9)})
    for backend in ("gbm", "linear"):
        equal, weighted = (log_error(new_model(backend, **SMALL[backend]).fit(d), probe) for d in (data, heavy))
        assert weighted < 0.5 * equal, backend


def test_a_level_is_the_median_of_its_rows_by_weight_within_limits(fitted: Fitted) -> None:
    data = planted(5)
    gaps = np.array([0.0, 0.1, 0.2, 0.3, 1.4])
    latency_s = data.floor_s + data.bound_s * (1 + np.exp(-(data.prior + gaps)))
    found = device_effects(Prior(), TrainingSet(**{**vars(data), "latency_s": latency_s}), ["l4/linear"])
    assert found == {"linear": {"l4": pytest.approx(0.2, abs=1e-4)}}
    model = fitted("linear")
    assert device_effects(model, planted(offsets=(9.0, -9.0)), ["a/bmm", "b/bmm"]) == {"bmm": {"a": 1.5, "b": -1.5}}
    data = planted(seed=6, offsets=(0.0, 1.0))
    merged = {**vars(data), "group": np.zeros(len(data), dtype=int)}
    weights = (np.where(data.group == 1, weight, 1.0) for weight in (10.0, 0.1))
    effects = [device_effects(model, TrainingSet(**merged | {"weight": w}), ["x/bmm"])["bmm"]["x"] for w in weights]
    assert effects == pytest.approx([1.0, 0.0], abs=0.2)


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


def test_utilisation_is_of_the_mean_of_members_at_a_level() -> None:
    for value in (np.inf, -np.inf):
        assert 0 < utilisation(np.full((2, 1), value))[0] <= 1
    (share,) = utilisation(np.array([[1.0], [3.0]]), -2.0)
    assert share == pytest.approx(0.5)


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
    weighted = TrainingSet(**{**vars(data), "weight": np.array([3.0, 1.0])})
    assert log_error(fitted("roofline"), weighted) == pytest.approx((3 * errors[0] + errors[1]) / 4)
