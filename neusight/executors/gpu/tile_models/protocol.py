"""What every tile model can do, and what it learns from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from neusight.errors import ArtifactError, nearest
from neusight.kernels.columns import ColumnRecord
from neusight.quick_dataclasses import dataclass

Progress = Callable[[int, int, float], None]
"""Called after each epoch or round with (done, of, error): error in log-latency on the held-out device, or nan."""


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread of torch: the order of sums, and so the result, is the same on every machine."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True, kw_only=True)
class TrainingSet(ColumnRecord):
    """Measured kernels of one family as a tile model sees them. All columns have n rows.

    ``latency_s`` includes ``floor_s``, the time of an empty launch as measured on that GPU. ``group`` numbers the
    (GPU, op) pairs: the bias of a device is a random effect that a model must not learn as if it were a law.
    """

    features: np.ndarray
    prior: np.ndarray
    bound_s: np.ndarray
    floor_s: np.ndarray
    latency_s: np.ndarray
    weight: np.ndarray
    group: np.ndarray


class TileModel(Protocol):
    """Learns ``logit(u) - prior`` from features; the sigmoid and the law are applied outside, for every backend."""

    backend: ClassVar[str]
    weights_file: ClassVar[str]

    def fit(self, data: TrainingSet, held_out: TrainingSet | None = None, progress: Progress | None = None) -> Self:
        """Fit on ``data``; with ``held_out`` (another device) record its error after each epoch in ``history_``."""

    def logits(self, features: np.ndarray, prior: np.ndarray) -> np.ndarray:
        """logit(u) of each ensemble member, shape (members, n)."""

    def save(self, folder: Path) -> None:
        """Write ``weights_file`` into ``folder``."""

    @classmethod
    def load(cls, folder: Path, parameters: dict[str, Any]) -> Self:
        """Read a fitted model back, bit-equal."""


BACKENDS = {"mlp": "MlpModel", "gbm": "GbmModel", "linear": "LinearModel", "roofline": "RooflineModel"}


def backend_class(backend: str) -> Any:
    """The class of a backend, imported on first use.

    Raises:
        ArtifactError: an unknown backend.
    """
    if backend not in BACKENDS:
        raise ArtifactError(
            f"no tile-model backend '{backend}': one of {', '.join(BACKENDS)}{nearest(backend, BACKENDS)}"
        )
    return getattr(import_module(f"neusight.executors.gpu.tile_models.{backend}"), BACKENDS[backend])


def new_model(backend: str, **parameters: Any) -> TileModel:
    """An unfitted model of a backend."""
    return backend_class(backend)(**parameters)


def utilisation(logits: np.ndarray, effect: np.ndarray | float = 0.0) -> np.ndarray:
    """Mean over ensemble members of logit(u), plus the device's effect, then the sigmoid: always in (0, 1]."""
    mean = np.clip(logits.mean(axis=0) + effect, -13.0, None)
    return 1.0 / (1.0 + np.exp(-mean))


def log_error(model: TileModel, data: TrainingSet) -> float:
    """Weighted mean of |log(predicted / measured)| over a training set."""
    predicted = data.floor_s + data.bound_s / utilisation(model.logits(data.features, data.prior))
    error = np.abs(np.log(predicted / data.latency_s))
    return float((error * data.weight).sum() / data.weight.sum())


LAUNCH_SHARE = 0.3
"""A row is mostly execution when its launch takes less than this share of it (definition)."""


def device_effects(model: TileModel, data: TrainingSet, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """How much closer to its bound each group in ``data`` comes than the model says: its own logit, by kind and device,
    of which a group's name consists (``effect_name``).

    The weighted median over the group's rows, of which only those are heard that are mostly execution where there are
    any: what is left of a short row after its launch is noise. A device in training is predicted with its level; one
    that is not, with none.
    """
    kernel_s = np.maximum(data.latency_s - data.floor_s, data.bound_s * 1.001)
    share = np.clip(data.bound_s / kernel_s, 1e-5, 0.999)
    gap = np.log(share / (1 - share)) - model.logits(data.features, data.prior).mean(axis=0)
    effects: dict[str, dict[str, float]] = {}
    for number in np.unique(data.group):
        rows = np.flatnonzero(data.group == number)
        long = rows[data.floor_s[rows] < LAUNCH_SHARE * data.latency_s[rows]]
        rows = long if len(long) else rows
        order = rows[np.argsort(gap[rows])]
        cumulated = np.cumsum(data.weight[order])
        middle = order[np.searchsorted(cumulated, cumulated[-1] / 2)]
        gpu, _, kind = names[number].partition("/")
        effects.setdefault(kind, {})[gpu] = round(float(np.clip(gap[middle], -1.5, 1.5)), 4)
    return effects


def residual_target(data: TrainingSet) -> tuple[np.ndarray, np.ndarray]:
    """(target, weight) for regressors that cannot see the latency itself.

    Target: observed logit(u) minus the prior. Weight: the row's, times the slope of log latency, ``1 - u``.
    """
    kernel_s = np.maximum(data.latency_s - data.floor_s, data.bound_s * 1.001)
    share = np.clip(data.bound_s / kernel_s, 1e-5, 0.999)
    target = np.log(share / (1 - share)) - data.prior
    return np.clip(target, -3.0, 3.0), data.weight * (1 - share)
