"""Training sets whose answer is known, and artifacts made of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from neusight.executors.gpu.features import FeatureContract
from neusight.executors.gpu.tile_models import TrainingSet
from neusight.executors.gpu.tile_models.artifact import Manifest

FEATURES = ("log2_waves", "wave_efficiency", "padding_efficiency")
FLOOR_S = 5e-6
SMALL: dict[str, dict[str, Any]] = {
    "mlp": {"epochs": 6, "members": 2, "hidden": 16, "batch_rows": 256, "learning_rate": 1e-2},
    "gbm": {"rounds": 30, "learning_rate": 0.3},
    "linear": {},
    "roofline": {},
}


def correction(features: np.ndarray) -> np.ndarray:
    """What a model should learn: a smooth function of the shape, well within every backend's cap."""
    return 0.5 * features[:, 0] - 0.4 * features[:, 1] * features[:, 1] + 0.2


def planted(n: int = 800, seed: int = 0, offsets: tuple[float, ...] = (0.0,)) -> TrainingSet:
    """Kernels whose logit(u) is the prior plus ``correction`` plus the offset of their group."""
    rng = np.random.default_rng(seed)
    features = rng.uniform(-1, 1, (n, len(FEATURES)))
    group = np.arange(n) % len(offsets)
    prior = rng.uniform(-2.0, 1.0, n)
    bound_s = np.exp(rng.uniform(np.log(1e-5), np.log(1e-2), n))
    share = 1 / (1 + np.exp(-(prior + correction(features) + np.array(offsets)[group])))
    return TrainingSet(
        features=features,
        prior=prior,
        bound_s=bound_s,
        floor_s=np.full(n, FLOOR_S),
        latency_s=FLOOR_S + bound_s / share,
        weight=np.full(n, 1 / n),
        group=group,
    )


def manifest(backend: str, **changes: Any) -> Manifest:
    content: dict[str, Any] = {
        "name": "toy",
        "backend": backend,
        "parameters": SMALL[backend],
        "contract": FeatureContract(family="gemm", version=1, target="logit_utilisation", features=FEATURES),
        "data": {"rows": 800, "sha256": {"toy.parquet": "ab" * 32}},
        "training_gpus": ["p4", "t4"],
        "seed": 0,
        "doubts": {"own": {"*": [0.75, 1.5, 0.1]}, "stranger": {"*": [0.5, 2.25, 0.2]}},
        "effects": {"linear": {"t4": 0.25, "p4": -0.5}, "bmm": {"t4": 0.75}},
        "domain": {
            **{"low": [-1.0] * 3, "high": [1.0] * 3, "size_low": [0.0] * 2, "size_high": [30.0] * 2},
            **{"ops": ["linear", "bmm"], "dtypes": ["float32"]},
        },
        "launch_floors_s": {"linear": FLOOR_S},
        "metrics": {
            name: {"p4": {"linear": 12.34}, "t4": {"linear": 5.0, "bmm": 6.0}}
            for name in ("as_shipped", "physics", "learned")
        },
        "versions": {"neusight": "0"},
    }
    return Manifest(**content | changes)
