"""Ridge regression on the features and their products (scikit-learn); prediction needs numpy only."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from neusight.executors.gpu.tile_models.protocol import Progress, TrainingSet, log_error, residual_target


def _quadratic(x: np.ndarray) -> np.ndarray:
    """Features, then the products of every pair, squares included."""
    rows, cols = np.triu_indices(x.shape[1])
    return np.concatenate([x, x[:, rows] * x[:, cols]], axis=1)


class LinearModel:
    """``logit(u) = prior + w · [x, x⊗x] + c`` with standardised, clipped x.

    Args:
        alpha: ridge penalty, relative to the number of rows.
        cap: largest correction of the prior.
    """

    backend: ClassVar[str] = "linear"
    weights_file: ClassVar[str] = "weights.safetensors"

    def __init__(self, alpha: float = 1e-3, cap: float = 1.5) -> None:
        self.alpha = alpha
        self.cap = cap
        self.history_: list[float] = []
        self.state_: dict[str, np.ndarray] = {}

    def fit(self, data: TrainingSet, held_out: TrainingSet | None = None, progress: Progress | None = None) -> Self:
        """Weighted least squares in closed form."""
        from sklearn.linear_model import Ridge

        mean, scale = data.features.mean(axis=0), data.features.std(axis=0) + 1e-6
        target, weight = residual_target(data)
        design = _quadratic(np.clip((data.features - mean) / scale, -3, 3))
        fitted = Ridge(alpha=self.alpha * len(data)).fit(design, target, sample_weight=weight / weight.mean())
        self.state_ = {
            "mean": mean,
            "scale": scale,
            "coef": fitted.coef_,
            "intercept": np.atleast_1d(fitted.intercept_),
        }
        error = log_error(self, held_out) if held_out is not None else float("nan")
        self.history_ = [error]
        if progress:
            progress(1, 1, error)
        return self

    def logits(self, features: np.ndarray, prior: np.ndarray) -> np.ndarray:
        """One member."""
        s = self.state_
        x = _quadratic(np.clip((features - s["mean"]) / s["scale"], -3, 3))
        return (prior + self.cap * np.tanh((x @ s["coef"] + s["intercept"]) / self.cap))[None]

    def save(self, folder: Path) -> None:
        """Write the coefficients."""
        from safetensors.numpy import save_file

        save_file(
            {k: np.ascontiguousarray(v, dtype=np.float64) for k, v in self.state_.items()}, folder / self.weights_file
        )

    @classmethod
    def load(cls, folder: Path, parameters: dict[str, Any]) -> Self:
        """Read the coefficients."""
        from safetensors.numpy import load_file

        model = cls(**parameters)
        model.state_ = load_file(folder / cls.weights_file)
        return model
