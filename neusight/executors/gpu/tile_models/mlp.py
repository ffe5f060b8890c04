"""An ensemble of small neural networks that corrects the prior: trained with torch, evaluated with numpy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from neusight.executors.gpu.tile_models.protocol import Progress, TrainingSet, log_error, one_thread

if TYPE_CHECKING:
    import torch

_LAYERS = ("w1", "b1", "w2", "b2", "w3", "b3")
HUBER = 0.1
"""Error beyond which the loss grows linearly (numerics)."""
STEPS_PER_EPOCH = 50
"""Batches between two looks at rows that were left out (numerics)."""
BLOCK = 256
"""Rows evaluated together: small enough for the cache, and for BLAS to see that threads would not pay (numerics)."""


class MlpModel:
    """``logit(u) = prior + cap · tanh(net(x) / cap)``, two hidden layers, ``members`` networks.

    The loss is Huber's on log latency, launch floor included, so that relative errors count equally and rows that
    are mostly launch count little. Every (GPU, op) group has an intercept of its own during the fit, centred on zero
    and dropped afterwards: the networks learn shapes, not devices.

    Args:
        epochs: passes of 50 batches, with a cosine schedule.
        stop: epoch after which to stop; default the last. The schedule is that of ``epochs``.
        hidden: width of both hidden layers.
        members: networks in the ensemble, with different starts.
        cap: largest correction of the prior, in logits.
        weight_decay: of AdamW.
        seed: of starts and batches.
    """

    backend: ClassVar[str] = "mlp"
    weights_file: ClassVar[str] = "weights.safetensors"

    def __init__(
        self,
        *,
        epochs: int = 25,
        stop: int | None = None,
        hidden: int = 96,
        members: int = 2,
        cap: float = 1.0,
        learning_rate: float = 3e-3,
        weight_decay: float = 0.05,
        batch_rows: int = 2048,
        seed: int = 0,
    ) -> None:
        self.epochs = epochs
        self.stop = stop
        self.hidden = hidden
        self.members = members
        self.cap = cap
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.batch_rows = batch_rows
        self.seed = seed
        self.history_: list[float] = []
        self.state_: dict[str, np.ndarray] = {}

    def fit(self, data: TrainingSet, held_out: TrainingSet | None = None, progress: Progress | None = None) -> Self:
        """Train on weighted random batches; deterministic for a seed."""
        with one_thread():
            self._train(data, held_out, progress)
        return self

    def _train(self, data: TrainingSet, held_out: TrainingSet | None, progress: Progress | None) -> None:
        import torch

        scale = {"mean": data.features.mean(axis=0), "scale": data.features.std(axis=0) + 1e-6}
        rng = np.random.default_rng(self.seed)
        weights = {k: torch.tensor(v, requires_grad=True) for k, v in self._start(data.features.shape[1], rng).items()}
        device_bias = torch.zeros(int(data.group.max()) + 1, requires_grad=True)
        optimizer, schedule = self._descent([*weights.values()], device_bias)
        tensors = _tensors(data, scale)
        chance = np.cumsum(data.weight / data.weight.sum())
        self._keep(weights, scale)
        # Before the first epoch the network says nothing: the prior alone answers, and may be what is best.
        self.history_ = [self._error(held_out)]
        epochs = self.epochs if self.stop is None else self.stop
        for epoch in range(epochs):
            for _ in range(STEPS_PER_EPOCH):
                picked = np.searchsorted(chance, rng.random(self.batch_rows) * chance[-1])
                loss = self._loss(weights, device_bias, {k: v[picked] for k, v in tensors.items()})
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
            self._keep(weights, scale)
            self.history_.append(self._error(held_out))
            if progress:
                progress(epoch + 1, epochs, self.history_[-1])

    def _descent(self, weights: list[torch.Tensor], device_bias: torch.Tensor) -> tuple[Any, Any]:
        """Optimizer and schedule; device_bias, which are dropped afterwards, are not decayed."""
        import torch

        groups: list[dict[str, Any]] = [{"params": weights}, {"params": [device_bias], "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=self.learning_rate, weight_decay=self.weight_decay)
        steps = self.epochs * STEPS_PER_EPOCH
        return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, self.learning_rate, total_steps=steps)

    def _error(self, held_out: TrainingSet | None) -> float:
        return log_error(self, held_out) if held_out is not None else float("nan")

    def _keep(self, weights: dict[str, torch.Tensor], scale: dict[str, np.ndarray]) -> None:
        self.state_ = scale | {k: v.detach().numpy().copy() for k, v in weights.items()}

    def _start(self, inputs: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        m, h = self.members, self.hidden

        def normal(*shape: int) -> np.ndarray:
            return (rng.standard_normal(shape) / np.sqrt(shape[-2])).astype(np.float32)

        zeros = [np.zeros((m, 1, width), dtype=np.float32) for width in (h, h, 1)]
        values = (normal(m, inputs, h), zeros[0], normal(m, h, h), zeros[1], np.zeros((m, h, 1), np.float32), zeros[2])
        return dict(zip(_LAYERS, values, strict=True))

    def _loss(
        self, weights: dict[str, torch.Tensor], device_bias: torch.Tensor, rows: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """Huber's loss on log latency; rows are drawn by weight, so they count alike here."""
        import torch
        from torch.nn.functional import huber_loss, logsigmoid, silu

        x = rows["features"].expand(self.members, -1, -1)
        h = silu(torch.baddbmm(weights["b1"], x, weights["w1"]))
        h = silu(torch.baddbmm(weights["b2"], h, weights["w2"]))
        correction = torch.baddbmm(weights["b3"], h, weights["w3"])[..., 0]
        own = (device_bias - device_bias.mean())[rows["group"]]
        z = rows["prior"] + self.cap * torch.tanh(correction / self.cap) + own
        error = torch.logaddexp(rows["log_floor"], rows["log_bound"] - logsigmoid(z)) - rows["log_latency"]
        return 100 * huber_loss(error, torch.zeros_like(error), delta=HUBER) + 0.5 * (device_bias**2).mean()

    def logits(self, features: np.ndarray, prior: np.ndarray) -> np.ndarray:
        """All members, in numpy; a network that was stopped before it learned anything corrects nothing."""
        if not (self.state_["w3"].any() or self.state_["b3"].any()):
            return np.repeat(prior[None], len(self.state_["w3"]), axis=0)
        blocks = range(0, max(len(prior), 1), BLOCK)
        return np.concatenate([self._block(features[i : i + BLOCK], prior[i : i + BLOCK]) for i in blocks], axis=1)

    def _block(self, features: np.ndarray, prior: np.ndarray) -> np.ndarray:
        s = self.state_
        x = np.clip((features - s["mean"]) / s["scale"], -3, 3).astype(np.float32)
        h = _silu(x @ s["w1"] + s["b1"])
        h = _silu(h @ s["w2"] + s["b2"])
        return prior + self.cap * np.tanh((h @ s["w3"] + s["b3"])[..., 0] / self.cap)

    def save(self, folder: Path) -> None:
        """Write the weights."""
        from safetensors.numpy import save_file

        save_file({k: np.ascontiguousarray(v) for k, v in self.state_.items()}, folder / self.weights_file)

    @classmethod
    def load(cls, folder: Path, parameters: dict[str, Any]) -> Self:
        """Read the weights."""
        from safetensors.numpy import load_file

        model = cls(**parameters)
        model.state_ = load_file(folder / cls.weights_file)
        return model


def _silu(x: np.ndarray) -> np.ndarray:
    return x / (1.0 + np.exp(-x))


def _tensors(data: TrainingSet, scale: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    import torch

    def single(values: np.ndarray) -> torch.Tensor:
        return torch.tensor(np.asarray(values), dtype=torch.float32)

    return {
        "features": single(np.clip((data.features - scale["mean"]) / scale["scale"], -3, 3)),
        "prior": single(data.prior),
        "log_bound": single(np.log(data.bound_s)),
        "log_floor": single(np.log(data.floor_s)),
        "log_latency": single(np.log(data.latency_s)),
        "group": torch.tensor(data.group, dtype=torch.int64),
    }
