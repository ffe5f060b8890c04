"""Optimizers that PyTorch does not have, as far as their kernels go: values do not matter in a trace."""

from __future__ import annotations

from typing import Any

import torch


class BertAdam(torch.optim.Optimizer):
    """Adam as NVIDIA's BERT has it for float32 (DeepLearningExamples, ``optimization.py``): without correction of the
    bias, with decay of matrices and tables, one parameter after another and one operator at a time.

    The norm of all gradients is found first; where it exceeds the limit, which is what a step is taken to do, each
    parameter is scaled by both before its update.
    """

    _BETAS, _EPSILON, _DECAY, _RATE, _LIMIT = (0.9, 0.999), 1e-6, 0.01, 1e-3, 1.0

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        updated = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        torch._foreach_norm([p.grad for p in updated])
        for parameter in updated:
            self._update(parameter)

    def _update(self, parameter: torch.Tensor) -> None:
        first, second = (self.state[parameter][name] for name in ("exp_avg", "exp_avg_sq"))
        gradient, (slow, slower) = parameter.grad, self._BETAS
        assert gradient is not None
        scaled = parameter * self._LIMIT / self._LIMIT
        first.mul_(slow).add_(gradient, alpha=1.0 - slow)
        second.mul_(slower).addcmul_(gradient, gradient, value=1.0 - slower)
        update = first / (second.sqrt() + self._EPSILON)
        if parameter.dim() > 1:
            update += self._DECAY * scaled
        scaled.add_(-(self._RATE * update))
