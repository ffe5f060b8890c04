"""The network: devices' biases are no law; it stops where it is told."""

from typing import Any

import numpy as np
import pytest
from tile_models_toys import SMALL, correction, planted

from neusight.executors.gpu.tile_models import TrainingSet
from neusight.executors.gpu.tile_models.mlp import MlpModel

OPTIONS: dict[str, Any] = {**SMALL["mlp"], "epochs": 10}


def offset_by_feature(offset: float) -> TrainingSet:
    """Two devices that share a correction; the second, whose first feature is larger on average, has an offset."""
    a, b = planted(600, seed=1), planted(600, seed=2, offsets=(offset,))
    keep_a, keep_b = np.flatnonzero(a.features[:, 0] < 0.4), np.flatnonzero(b.features[:, 0] > -0.4)
    a, b = a.take(keep_a), b.take(keep_b)
    columns = {name: np.concatenate([getattr(a, name), getattr(b, name)]) for name in vars(a)}
    return TrainingSet(**columns | {"group": np.repeat([0, 1], [len(a), len(b)])})


def learned(data: TrainingSet) -> np.ndarray:
    probe = planted(300, seed=3)
    return MlpModel(**OPTIONS).fit(data).logits(probe.features, probe.prior).mean(axis=0) - probe.prior


def test_a_device_s_level_is_not_learned_as_a_law() -> None:
    grouped = offset_by_feature(0.8)
    ungrouped = TrainingSet(**{**vars(grouped), "group": np.zeros(len(grouped), dtype=int)})
    probe = planted(300, seed=3)

    def error(data: TrainingSet) -> tuple[float, float]:
        """How much more than planted the network adds: for each unit of the first feature, and on average."""
        slope, middle = np.polyfit(probe.features[:, 0], learned(data) - correction(probe.features), 1)
        return float(slope), float(middle)

    # The offset comes with large first features: without groups it is taken for a law of that feature.
    assert error(ungrouped)[0] > 0.3
    # Levels are centred, so that the network speaks of the mean device: half the offset, whatever the feature.
    assert error(grouped) == pytest.approx((0.0, 0.4), abs=0.05)
    assert error(offset_by_feature(0.0)) == pytest.approx((0.0, 0.0), abs=0.05)


def test_stop_ends_early_on_the_same_path() -> None:
    held, data = planted(100, seed=8), planted()
    whole = MlpModel(**OPTIONS).fit(data, held)
    short = MlpModel(**OPTIONS, stop=3).fit(data, held)
    # The prior's error, then one an epoch.
    assert len(whole.history_) == 11
    # The schedule is that of all epochs, so that the first three are the same.
    assert short.history_ == whole.history_[:4]


def test_no_epochs_leave_the_prior_as_it_is() -> None:
    data = planted()
    model = MlpModel(**OPTIONS, stop=0).fit(data)
    assert np.allclose(model.logits(data.features, data.prior), data.prior)


def test_weights_count() -> None:
    # A row that weighs nothing teaches nothing.
    data, lies = planted(400, seed=1), planted(400, seed=2, offsets=(2.0,))
    columns = {name: np.concatenate([getattr(data, name), getattr(lies, name)]) for name in vars(data)}
    silent = TrainingSet(**columns | {"weight": np.repeat([1.0, 0.0], 400), "group": np.zeros(800, dtype=int)})
    loud = TrainingSet(**columns | {"weight": np.repeat([1.0, 1.0], 400), "group": np.zeros(800, dtype=int)})
    truth = correction(planted(300, seed=3).features)
    assert np.abs(learned(silent) - truth).mean() == pytest.approx(0.0, abs=0.1)
    assert np.abs(learned(loud) - truth).mean() > 0.3
