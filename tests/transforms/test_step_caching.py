"""Steps of diffusion between whole ones, on a small U-Net."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from neusight.errors import InapplicableError
from neusight.requests import Request
from neusight.steps.questions import Setting, workload_of
from neusight.transforms.step_caching import with_cached_features
from neusight.workloads.target import TargetDevice
from neusight.workloads.workload import Workload


class Block(nn.Module):
    """Layers that are linear maps; on the way up each takes a skip as well."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.resnets = nn.ModuleList(nn.Linear(width, 4) for _ in range(layers))


class UNet(nn.Module):
    """Two blocks of two layers down, two of three up."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_in = nn.Linear(4, 4)
        self.down_blocks = nn.ModuleList(Block(2, 4) for _ in range(2))
        self.up_blocks = nn.ModuleList(Block(3, 8) for _ in range(2))
        self.conv_out = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv_in(x)
        skips = [x, x]
        for block in self.down_blocks:
            for layer in block.resnets:  # type: ignore[union-attr]
                x = layer(x)
                skips.append(x)
        for block in self.up_blocks:
            for layer in block.resnets:  # type: ignore[union-attr]
                x = layer(torch.cat([x, skips.pop()], dim=1))
        return self.conv_out(x)


def step_of(model: Any, mode: str = "inference") -> Workload:
    request = Request.of(mode=mode, batch=2)
    return workload_of(model, request, Setting(), TargetDevice(), {"x": torch.zeros(2, 4)})


def products(step: Workload) -> list[str]:
    return [node.layer.name() for node in step.nodes if any(one.family == "gemm" for one in node.kernels)]


def test_the_outermost_layers_run_alone_and_all_weights_stay() -> None:
    step = step_of(UNet())
    after = with_cached_features(step)
    kept = ["conv_in", "down_blocks.0.resnets.0", "up_blocks.1.resnets.1", "up_blocks.1.resnets.2", "conv_out"]
    assert products(after) == kept
    assert len(products(step)) == 2 + 4 + 6
    assert after.memory.weights == step.memory.weights
    # What comes from within was there before the step.
    made = {one.tensor for node in after.nodes for one in node.writes}
    read = {one.tensor for node in after.nodes for one in node.reads} - made
    assert {after.tensors[at].born for at in read if after.tensors[at].kind == "intermediate"} == {-1}


def test_other_models_and_training_have_no_features_to_keep() -> None:
    with pytest.raises(InapplicableError, match="no U-Net"):
        with_cached_features(step_of(Plain()))
    with pytest.raises(InapplicableError, match="no backward pass"):
        with_cached_features(step_of(UNet(), mode="training"))


class Plain(nn.Module):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)
