"""The multi-layer perceptrons of Habitat and NeuSight: ReLU, AdamW, and the weights that validate best."""

from __future__ import annotations

from collections.abc import Callable
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

Answer = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]
"""From the network's outputs (n, outputs) and the rows' constants (n, constants) to predictions (n,)."""
Loss = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]
"""From predictions and targets, both (n,), to one number."""


@dataclass(frozen=True)
class Recipe:
    """How a network is built and trained. The published widths and epochs are larger: see the methods."""

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


@dataclass(frozen=True)
class Lesson:
    """What a network is to learn: rows of ``inputs`` (n, inputs), ``constants`` (n, constants) that ``answer`` takes
    beside the outputs, and the ``target`` (n,) that it should give, with the ``loss`` that says how far off it is.
    """

    inputs: np.ndarray
    constants: np.ndarray
    target: np.ndarray
    outputs: int
    answer: Answer
    loss: Loss


def train_network(lesson: Lesson, recipe: Recipe, seed: int) -> TrainedNetwork:
    """Train on random batches; deterministic for a seed, and without a trace in the caller's random state.

    Args:
        lesson: rows and what to make of them.
        recipe: size and schedule.
        seed: of start, batches and validation rows.
    """
    import torch

    # One thread, so that sums and results are the same everywhere.
    with one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        order = torch.randperm(len(lesson.target))
        cut = int(VALIDATION_SHARE * len(order))
        rows = [torch.tensor(a, dtype=torch.float32) for a in (lesson.inputs, lesson.constants, lesson.target)]
        held, kept = ([a[part] for a in rows] for part in (order[:cut] if cut else order, order[cut:]))
        net = _layers(lesson.inputs.shape[1], lesson.outputs, recipe)
        optimizer = torch.optim.AdamW(net.parameters(), lr=recipe.learning_rate, fused=True)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.learning_rate, total_steps=recipe.steps)
        best = TrainedNetwork(_copied(net), float("inf"))
        for step in range(1, recipe.steps + 1):
            drawn = torch.randint(len(kept[2]), (recipe.batch_rows,))
            inputs, constants, target = (a[drawn] for a in kept)
            optimizer.zero_grad()
            lesson.loss(lesson.answer(net(inputs), constants), target).backward()
            optimizer.step()
            schedule.step()
            if step % -(-recipe.steps // VALIDATIONS) == 0 or step == recipe.steps:
                error = _error(net, lesson, held)
                best = TrainedNetwork(_copied(net), error) if error < best.error else best
    return best


def relative_error(prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean of ``|target - prediction| / target``."""
    return ((target - prediction) / target).abs().mean()


def symmetric_error(prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean of ``|(target - prediction) / (target + prediction)|``."""
    return ((target - prediction) / (target + prediction)).abs().mean()


def _error(net: Any, lesson: Lesson, rows: list[torch.Tensor]) -> float:
    """Relative error of rows that were not trained on, predictions below zero counting as zero."""
    import torch

    with torch.no_grad():
        prediction = lesson.answer(net(rows[0]), rows[1]).clamp(min=0.0)
    return float(relative_error(prediction, rows[2]))


def _layers(inputs: int, outputs: int, recipe: Recipe) -> Any:
    from torch import nn

    widths = [inputs, *[recipe.width] * (recipe.layers - 1), outputs]
    layers: list[Any] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _copied(net: Any) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    linear = [layer for layer in net if hasattr(layer, "weight")]
    return tuple((w.weight.detach().numpy().T.copy(), w.bias.detach().numpy().copy()) for w in linear)
