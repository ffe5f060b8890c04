"""A Gaussian process on the features, correcting the prior: its mean is kernel ridge regression (scikit-learn)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from neusight.executors.gpu.tile_models.protocol import Progress, TrainingSet, log_error, residual_target


class GpModel:
    r"""``logit(u) = prior + f(x)``, f normal around none with covariance ``amplitude² exp(-|x - x'|² / 2 d length²)``
    of d standardised features, conditioned on ``points`` rows that are drawn by their weight.

    Args:
        points: rows that are kept: time grows with their cube.
        length: over which features correlate, in standard deviations of all of them together.
        amplitude, noise: standard deviations of f and of a row, in logits.
        cap: largest correction of the prior.
        seed: of the rows that are drawn.

    Source: Rasmussen and Williams 2006, equation 2.25.
    """

    backend: ClassVar[str] = "gp"
    weights_file: ClassVar[str] = "process.safetensors"

    def __init__(
        self,
        *,
        points: int = 1500,
        length: float = 1.0,
        amplitude: float = 0.5,
        noise: float = 0.3,
        cap: float = 1.5,
        seed: int = 0,
    ) -> None:
        self.points = points
        self.length = length
        self.amplitude = amplitude
        self.noise = noise
        self.cap = cap
        self.seed = seed
        self.history_: list[float] = []
        self.state_: dict[str, np.ndarray] = {}

    def fit(self, data: TrainingSet, held_out: TrainingSet | None = None, progress: Progress | None = None) -> Self:
        """Condition on the rows that are drawn."""
        target, weight = residual_target(data)
        count = min(self.points, int((weight > 0).sum()))
        chosen = np.random.default_rng(self.seed).choice(len(data), count, replace=False, p=weight / weight.sum())
        self.state_ = {"mean": data.features.mean(axis=0), "scale": data.features.std(axis=0) + 1e-6}
        fitted = self._process(data.features.shape[1]).fit(self._inputs(data.features[chosen]), target[chosen])
        self.state_ |= {"rows": fitted.X_fit_, "factors": fitted.dual_coef_}
        self.history_ = [log_error(self, held_out) if held_out is not None else float("nan")]
        if progress:
            progress(1, 1, self.history_[-1])
        return self

    def _process(self, features: int) -> Any:
        from sklearn.kernel_ridge import KernelRidge

        gamma = 1 / (2 * features * self.length**2)
        return KernelRidge(alpha=(self.noise / self.amplitude) ** 2, kernel="rbf", gamma=gamma)

    def _inputs(self, features: np.ndarray) -> np.ndarray:
        return np.clip((features - self.state_["mean"]) / self.state_["scale"], -3, 3)

    def logits(self, features: np.ndarray, prior: np.ndarray) -> np.ndarray:
        """One member."""
        process = self._process(features.shape[1])
        process.X_fit_, process.dual_coef_ = self.state_["rows"], self.state_["factors"]
        return (prior + self.cap * np.tanh(process.predict(self._inputs(features)) / self.cap))[None]

    def save(self, folder: Path) -> None:
        """Write the rows and their factors."""
        from safetensors.numpy import save_file

        save_file({k: np.ascontiguousarray(v) for k, v in self.state_.items()}, folder / self.weights_file)

    @classmethod
    def load(cls, folder: Path, parameters: dict[str, Any]) -> Self:
        """Read them."""
        from safetensors.numpy import load_file

        model = cls(**parameters)
        model.state_ = load_file(folder / cls.weights_file)
        return model
