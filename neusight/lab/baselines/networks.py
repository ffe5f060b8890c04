"""The multi-layer perceptrons of NeuSight as published: ReLU, AdamW, and the weights that validate best."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from neusight.executors.gpu.tile_models.protocol import one_thread

if TYPE_CHECKING:
    import torch

VALIDATION_SHARE = 0.2
"""Of the rows, drawn at random, as both artifacts do."""
VALIDATIONS = 20
BLOCK = 4096
"""Rows evaluated together, so that activations stay small."""


@dataclass(frozen=True)
class Recipe:
    """How a network is built and trained. The published widths and epochs are larger: see ``published``."""

    learning_rate: float
    steps: int
    batch_rows: int = 128
    width: int = 128
    layers: int = 8


@dataclass(frozen=True)
class TrainedNetwork:
    """Trained weights, (inputs, outputs) and bias a layer, evaluated with numpy; ``error`` is that of validation."""

    weights: tuple[tuple[np.ndarray, np.ndarray], ...]
    error: float

    def outputs(self, inputs: np.ndarray) -> np.ndarray:
        """Outputs of shape (n, outputs) for inputs of shape (n, inputs)."""
        rows = range(0, max(len(inputs), 1), BLOCK)
        return np.concatenate([self._block(inputs[i : i + BLOCK].astype(np.float32)) for i in rows]).astype(float)

    def _block(self, x: np.ndarray) -> np.ndarray:
        *hidden, last = self.weights
        for weight, bias in hidden:
            x = np.maximum(x @ weight + bias, 0.0)
        return x @ last[0] + last[1]


def train_network(
    inputs: np.ndarray, waves: np.ndarray, target: np.ndarray, recipe: Recipe, seed: int
) -> TrainedNetwork:
    """Train on random batches; deterministic for a seed, and without a trace in the caller's random state.

    Args:
        inputs: of the network, shape (n, inputs).
        waves: of tiles, shape (n,), which make inverse utilisations of the network's two outputs.
        target: inverse utilisation of each row, shape (n,).
        recipe: size and schedule.
        seed: of start, batches and validation rows.
    """
    import torch

    # One thread, so that sums and results are the same everywhere.
    with one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        order = torch.randperm(len(target))
        cut = int(VALIDATION_SHARE * len(order))
        rows = [torch.tensor(a, dtype=torch.float32) for a in (inputs, waves, target)]
        held, kept = ([a[part] for a in rows] for part in (order[:cut] if cut else order, order[cut:]))
        net = _layers(inputs.shape[1], recipe)
        optimizer = torch.optim.AdamW(net.parameters(), lr=recipe.learning_rate, fused=True)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.learning_rate, total_steps=recipe.steps)
        best = TrainedNetwork(_copied(net), float("inf"))
        for step in range(1, recipe.steps + 1):
            drawn = torch.randint(len(kept[2]), (recipe.batch_rows,))
            optimizer.zero_grad()
            symmetric_error(*_predicted(net, [a[drawn] for a in kept])).backward()
            optimizer.step()
            schedule.step()
            if step % -(-recipe.steps // VALIDATIONS) == 0 or step == recipe.steps:
                with torch.no_grad():
                    predicted, expected = _predicted(net, held)
                    error = float(((expected - predicted.clamp(min=0.0)) / expected).abs().mean())
                best = TrainedNetwork(_copied(net), error) if error < best.error else best
    return best


def symmetric_error(prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean of ``|(target - prediction) / (target + prediction)|``."""
    return ((target - prediction) / (target + prediction)).abs().mean()


def _predicted(net: Any, rows: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Inverse utilisations, ``1 / (gamma - alpha / waves)``, beside what they should be."""
    inputs, waves, target = rows
    alpha, gamma = net(inputs).sigmoid().unbind(dim=1)
    return 1.0 / (gamma - alpha / waves), target


def _layers(inputs: int, recipe: Recipe) -> Any:
    from torch import nn

    widths = [inputs, *[recipe.width] * (recipe.layers - 1), 2]
    layers: list[Any] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _copied(net: Any) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    linear = [layer for layer in net if hasattr(layer, "weight")]
    return tuple((w.weight.detach().numpy().T.copy(), w.bias.detach().numpy().copy()) for w in linear)
