"""Gradient-boosted trees (LightGBM) on the features, correcting the prior."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from neusight.executors.gpu.tile_models.protocol import Progress, TrainingSet, log_error, residual_target

SETTINGS: dict[str, Any] = {
    "objective": "regression_l1",
    "min_data_in_leaf": 100,
    "feature_fraction": 0.8,
    "bagging_fraction": 0.7,
    "bagging_freq": 1,
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 2,
    "verbosity": -1,
}
"""Of LightGBM, chosen by hand; deterministic for a seed (numerics)."""


class GbmModel:
    """``logit(u) = prior + trees(x)``, least absolute deviations, seeded and deterministic.

    Args:
        rounds: trees to grow.
        leaves: leaves a tree.
        learning_rate: shrinkage.
        cap: largest correction of the prior.
        seed: of row and feature sampling.
    """

    backend: ClassVar[str] = "gbm"
    weights_file: ClassVar[str] = "weights.txt"

    def __init__(
        self, rounds: int = 200, leaves: int = 15, learning_rate: float = 0.05, cap: float = 1.5, seed: int = 0
    ) -> None:
        self.rounds = rounds
        self.leaves = leaves
        self.learning_rate = learning_rate
        self.cap = cap
        self.seed = seed
        self.history_: list[float] = []
        self.booster_: Any = None

    def fit(self, data: TrainingSet, held_out: TrainingSet | None = None, progress: Progress | None = None) -> Self:
        """Grow the trees; the held-out device's error is recorded every tenth round."""
        import lightgbm

        target, weight = residual_target(data)
        settings = SETTINGS | {"num_leaves": self.leaves, "learning_rate": self.learning_rate, "seed": self.seed}
        dataset = lightgbm.Dataset(data.features, target, weight=weight / weight.mean())
        self.history_ = []

        def watch(env: Any) -> None:
            done = env.iteration + 1
            if done % 10 and done != self.rounds:
                return
            self.booster_ = env.model
            self.history_.append(log_error(self, held_out) if held_out is not None else float("nan"))
            if progress:
                progress(done, self.rounds, self.history_[-1])

        self.booster_ = lightgbm.train(settings, dataset, num_boost_round=self.rounds, callbacks=[watch])
        return self

    def logits(self, features: np.ndarray, prior: np.ndarray) -> np.ndarray:
        """One member."""
        return (prior + self.cap * np.tanh(self.booster_.predict(features) / self.cap))[None]

    def save(self, folder: Path) -> None:
        """Write LightGBM's text format."""
        (folder / self.weights_file).write_text(self.booster_.model_to_string())

    @classmethod
    def load(cls, folder: Path, parameters: dict[str, Any]) -> Self:
        """Read LightGBM's text format."""
        import lightgbm

        model = cls(**parameters)
        model.booster_ = lightgbm.Booster(model_str=(folder / cls.weights_file).read_text())
        return model
