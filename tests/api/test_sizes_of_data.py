"""Sizes that depend on data: intervals reach down to a step that selects nothing, unless a share is given."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from neusight import Predictor

GPU = "a100-sxm-80gb"


class Selecting(nn.Module):
    """A product of the rows that a layer selects, in one of several ways."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.gate, self.up, self.how = nn.Linear(512, 8), nn.Linear(512, 4096), how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.gate(x)
        if self.how == "nonzero":
            return self.up(x[(scores[:, 0] > 0).nonzero()[:, 0]])
        if self.how == "mask":
            return self.up(x[scores[:, 0] > 0])
        chosen = scores.topk(2).indices
        out = torch.zeros(len(x), 4096, device=x.device)
        for expert in range(8):
            row, _ = torch.where(chosen == expert)
            out.index_add_(0, row, self.up(x[row]))
        return out


@pytest.mark.parametrize("how", ["nonzero", "mask", "experts"])
def test_interval_reaches_down_to_a_step_that_selects_nothing(predictor: Predictor, how: str) -> None:
    given: dict[str, Any] = {"inputs": (torch.randn(4096, 512),), "dtype": "float32"}
    step = predictor.estimate(Selecting(how), GPU, **given)
    least = predictor.estimate(Selecting(how), GPU, share={"*": 1e-12}, **given)
    half = predictor.estimate(Selecting(how), GPU, share={"*": 0.5}, **given)
    assert step.low_s == pytest.approx(least.low_s)
    assert step.bound_s == pytest.approx(least.bound_s)
    assert least.low_s < half.low_s
    assert (half.least_share, least.least_share) == (1.0, 1.0)
    assert (3 * step).low_s == pytest.approx(3 * step.low_s)


def test_interval_of_fixed_sizes_stays(predictor: Predictor) -> None:
    step = predictor.estimate(nn.Linear(64, 64), GPU, inputs=(torch.randn(8, 64),), dtype="float32")
    assert step.least_share == 1.0
    assert not any("depends on data" in text for text in step.warnings)
