"""A Gaussian process on the features, correcting the prior; prediction needs numpy only."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from neusight.executors.gpu.tile_models.protocol import Progress, TrainingSet, log_error, residual_target

REWEIGHTINGS = 4
BLOCK = 2048
"""Rows evaluated together."""


class GpModel:
    r"""``logit(u) = prior + f(x)``, f normal around none with covariance ``amplitude² exp(-|x - x'|² / 2 d length²)``
    of d standardised features, conditioned on ``points`` rows that are drawn by their weight.

    Each (GPU, op) group has an intercept of its own, normal with deviation ``group``, which is dropped: the process
    learns shapes, not devices. Rows that miss by more than ``noise`` count as if they were that much noisier (Huber's
    weights).

    Args:
        points: rows that are kept: time grows with their cube.
        length: over which features correlate, in standard deviations of all of them together.
        amplitude, group, noise: standard deviations, in logits.
        cap: largest correction of the prior.
        seed: of the rows that are drawn.

    Source: Rasmussen and Williams 2006, chapter 2.
    """

    backend: ClassVar[str] = "gp"
    weights_file: ClassVar[str] = "process.safetensors"

    def __init__(
        self,
        *,
        points: int = 1500,
        length: float = 1.0,
        amplitude: float = 0.5,
        group: float = 0.3,
        noise: float = 0.3,
        cap: float = 1.5,
        seed: int = 0,
    ) -> None:
        self.points = points
        self.length = length
        self.amplitude = amplitude
        self.group = group
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
        scale = {"mean": data.features.mean(axis=0), "scale": data.features.std(axis=0) + 1e-6}
        inputs, group = _standardised(data.features[chosen], scale), data.group[chosen]
        covariance = self._covariance(inputs, inputs) + self.group**2 * (group[:, None] == group[None, :])
        variance = np.full(count, self.noise**2)
        for _ in range(REWEIGHTINGS):
            factors = np.linalg.solve(covariance + np.diag(variance), target[chosen])
            variance = self.noise * np.maximum(self.noise, np.abs(variance * factors))
        self.state_ = scale | {"inputs": inputs, "factors": factors}
        self.history_ = [log_error(self, held_out) if held_out is not None else float("nan")]
        if progress:
            progress(1, 1, self.history_[-1])
        return self

    def _covariance(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        square = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None] - 2 * a @ b.T
        return np.asarray(self.amplitude**2 * np.exp(-np.maximum(square, 0.0) / (2 * a.shape[1] * self.length**2)))

    def logits(self, features: np.ndarray, prior: np.ndarray) -> np.ndarray:
        """One member."""
        inputs = _standardised(features, self.state_)
        blocks = [inputs[i : i + BLOCK] for i in range(0, max(len(inputs), 1), BLOCK)]
        f = np.concatenate([self._covariance(rows, self.state_["inputs"]) @ self.state_["factors"] for rows in blocks])
        return (prior + self.cap * np.tanh(f / self.cap))[None]

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


def _standardised(features: np.ndarray, scale: dict[str, np.ndarray]) -> np.ndarray:
    return np.clip((features - scale["mean"]) / scale["scale"], -3, 3)
