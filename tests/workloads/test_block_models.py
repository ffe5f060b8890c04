"""Blocks by name: every one can be traced in training, and a wrong name or size is one clear line."""

from __future__ import annotations

import pytest

from neusight.errors import ModelError
from neusight.requests import Request
from neusight.workloads import load_workload
from neusight.workloads.models.blocks import BLOCKS
from neusight.workloads.sources.block_models import block_model

SIZES = {"tokens": 16, "hidden": 8, "intermediate": 32, "vocabulary": 64, "batch": 2, "heads": 2}


@pytest.mark.parametrize("name", sorted(BLOCKS))
def test_every_block_runs_forward_and_backward(name: str) -> None:
    def text(round_: int) -> str:
        sizes = {size: SIZES.get(size, round_) for size in BLOCKS[name][0]}
        return f"block:{name}@{','.join(f'{size}={value}' for size, value in sizes.items())}"

    steps = [load_workload(text(n), Request.of(text(n), mode="training", dtype="float32"), cache=False) for n in (0, 2)]
    for step in steps:
        assert {node.phase for node in step.nodes if node.kernels} == {"forward", "backward"}
    # Gradients that are there already are added to.
    assert len([n for n in steps[1].nodes if n.kernels]) > len([n for n in steps[0].nodes if n.kernels])


def test_names_and_sizes_are_checked() -> None:
    assert block_model("gpt2") is None
    with pytest.raises(ModelError, match=r"unknown block 'rms-nom'.*rms-norm"):
        block_model("block:rms-nom@tokens=1")
    for given in ("", "tokens=2", "tokens=2,hidden=0,round=1", "tokens=2,hidden=x,round=1"):
        with pytest.raises(ModelError, match=r"write block:rms-norm@hidden=…,round=…,tokens=…"):
            block_model(f"block:rms-norm@{given}")
