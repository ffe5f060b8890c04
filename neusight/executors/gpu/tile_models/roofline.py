"""No learning: every tile reaches its bound. The floor that learned models must beat."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from neusight.executors.gpu.tile_models.protocol import Progress, TrainingSet


class RooflineModel:
    """Utilisation 1 for every kernel."""

    backend: ClassVar[str] = "roofline"
    weights_file: ClassVar[str] = "weights.txt"

    def __init__(self) -> None:
        self.history_: list[float] = []

    def fit(self, data: TrainingSet, held_out: TrainingSet | None = None, progress: Progress | None = None) -> Self:
        """Nothing to fit."""
        return self

    def logits(self, features: np.ndarray, prior: np.ndarray) -> np.ndarray:
        """Infinite: the sigmoid is one."""
        return np.full((1, len(prior)), np.inf)

    def save(self, folder: Path) -> None:
        """A roofline has no weights; the file says so."""
        (folder / self.weights_file).write_text("roofline: utilisation 1\n")

    @classmethod
    def load(cls, folder: Path, parameters: dict[str, Any]) -> Self:
        """A new roofline."""
        return cls(**parameters)
