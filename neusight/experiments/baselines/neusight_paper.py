"""NeuSight as published: Lee et al., "Forecasting GPU Performance for Deep Learning Training and Inference", ASPLOS'25.

The tile of a kernel is that of the nearest observed row. A network an operator type sees four ratios of the tile to one
SM's share of the device and gives ``alpha`` and ``gamma``, both through a sigmoid; with ``waves = ceil(tiles / SMs)``

    utilisation = gamma - alpha / waves
    latency = waves * (seconds of a wave at full rate) / utilisation

Nothing keeps the utilisation above zero: the artifact calls a latency below zero zero, and so does ``predict_s``;
``utilisation`` tells how often. Loss, optimizer, depth and the choice of large rows for memory-bound operators are
the artifact's. Its networks are 512 wide and see a hundred epochs; here most are 128 wide and see a few thousand
batches at rates raised in return, so that all five train on a CPU core in a minute. Gradients count with their forward
operators. Other kernels (convolutions among them, which the paper does not predict) take the roofline's time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from neusight.devices.spec import DeviceSpec
from neusight.errors import DataError
from neusight.experiments.baselines.networks import Lesson, Network, Recipe, symmetric_error, train_network
from neusight.experiments.baselines.operators import operator_types
from neusight.experiments.baselines.paper_tiles import PaperTiles, TileTable
from neusight.experiments.baselines.roofline import roofline_s
from neusight.kernels import KernelBatch
from neusight.laws.bounds import flops_per_s
from neusight.learn.training_data import DeviceRows

if TYPE_CHECKING:
    import torch

RECIPES: Mapping[str, Recipe] = {
    "linear": Recipe(learning_rate=2e-3, steps=8000),
    "bmm": Recipe(learning_rate=1e-3, steps=6000),
    "elementwise": Recipe(learning_rate=1e-3, steps=4000),
    "softmax": Recipe(learning_rate=8e-6, steps=2400, batch_rows=16, width=256),
    "layer_norm": Recipe(learning_rate=8e-6, steps=2400, batch_rows=16, width=256),
}
"""The artifact's learning rates are 5e-3, 1e-5, 5e-4, 1e-6 and 1e-6, in batches of 128, 128, 64, 16 and 16. The last
two hardly move a network from its start, which is what lets it extrapolate: steps times rate are kept near theirs.
"""
LARGE_ELEMENTS = 8192 * 512
LARGE_ROWS, LARGE_COLS = 4096, 512
"""The artifact trains on elementwise kernels and row reductions above these sizes, clear of the launch."""


class NeusightPaper:
    """A network for each of linear, bmm, elementwise, softmax and layer_norm.

    Args:
        seed: of networks and batches.
        recipes: how each is trained.
    """

    name: ClassVar[str] = "neusight-paper"

    def __init__(self, seed: int = 0, recipes: Mapping[str, Recipe] = RECIPES) -> None:
        self.seed = seed
        self.recipes = recipes
        self.tiles_ = TileTable({})
        self.networks_: dict[str, Network] = {}

    def fit(self, rows: Sequence[DeviceRows]) -> Self:
        """Fill the tile table and train a network an operator type.

        Raises:
            DataError: no row has a tile and is of a type that the paper predicts.
        """
        self.tiles_ = TileTable.of(rows)
        lessons = _lessons(rows)
        if not lessons:
            raise DataError("NeuSight learns from products, elementwise kernels, softmax and layer_norm with tiles")
        self.networks_ = {kind: train_network(x, self.recipes[kind], self.seed) for kind, x in lessons.items()}
        return self

    def predict_s(self, batch: KernelBatch, device: DeviceSpec) -> np.ndarray:
        """Seconds of each kernel, shape (n,): zero where the utilisation is not above zero."""
        latency_s = roofline_s(batch, device)
        for rows, full_s, share in self._answers(batch, device):
            latency_s[rows] = np.where(share > 0, full_s / np.where(share > 0, share, 1.0), 0.0)
        return latency_s

    def utilisation(self, batch: KernelBatch, device: DeviceSpec) -> np.ndarray:
        """``gamma - alpha / waves`` of each kernel, shape (n,); NaN where no network answers."""
        found = np.full(len(batch), np.nan)
        for rows, _, share in self._answers(batch, device):
            found[rows] = share
        return found

    def _answers(self, batch: KernelBatch, device: DeviceSpec) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """For each network the rows that it answers, their seconds at full rate, and their utilisation."""
        kinds = operator_types(batch)
        for kind in sorted(set(kinds.tolist()) & self.networks_.keys()):
            rows = np.flatnonzero(kinds == kind)
            part, peak = batch.take(rows), flops_per_s(batch, device)[rows]
            cut = PaperTiles.of(part, self.tiles_.tiles(part, device), kind)
            alpha, gamma = _sigmoid(self.networks_[kind].outputs(cut.inputs(peak, device)).T)
            waves = cut.waves(device)
            yield rows, waves * cut.wave_s(peak, device), gamma - alpha / waves


def _lessons(rows: Sequence[DeviceRows]) -> dict[str, Lesson]:
    """What each network learns: inputs, and seconds of a wave over those at full rate, the inverse of utilisation."""
    parts: dict[str, list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = {}
    for r in rows:
        kinds, learnable = operator_types(r.batch), _learnable(r)
        for kind in sorted(set(kinds[learnable].tolist()) & RECIPES.keys()):
            parts.setdefault(kind, []).append(_learned(r.take(learnable & (kinds == kind)), kind))
    return {kind: _lesson(*(np.concatenate(column) for column in zip(*p, strict=True))) for kind, p in parts.items()}


def _learned(own: DeviceRows, kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs (n, 4), waves (n,) and target (n,) of rows of one operator type."""
    peak = flops_per_s(own.batch, own.device)
    cut = PaperTiles.of(own.batch, np.stack([own.observed_m, own.observed_n], axis=1), kind)
    waves = cut.waves(own.device)
    return cut.inputs(peak, own.device), waves, own.latency_s / (waves * cut.wave_s(peak, own.device))


def _lesson(inputs: np.ndarray, waves: np.ndarray, target: np.ndarray) -> Lesson:
    return Lesson(
        inputs=inputs,
        constants=waves[:, None],
        target=target,
        outputs=2,
        answer=_inverse_utilisation,
        loss=symmetric_error,
    )


def _inverse_utilisation(outputs: torch.Tensor, constants: torch.Tensor) -> torch.Tensor:
    alpha, gamma = outputs.sigmoid().unbind(dim=1)
    return 1.0 / (gamma - alpha / constants[:, 0])


def _learnable(r: DeviceRows) -> np.ndarray:
    """Rows with a tile, and of memory-bound families the large ones, as a mask."""
    batch = r.batch
    if batch.family == "row_reduction":
        return (batch["rows"] > LARGE_ROWS) & (batch["cols"] > LARGE_COLS)
    known = np.isfinite(r.observed_m) & np.isfinite(r.observed_n)
    return known & (batch["elements"] > LARGE_ELEMENTS) if batch.family == "elementwise" else known


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 + 0.5 * np.tanh(0.5 * x)
