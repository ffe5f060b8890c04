"""Checkpointed blocks: their forward kernels run twice, what they keep is gone, nothing else changes."""

from __future__ import annotations

from collections import Counter

import pytest
from torch import zeros
from torch.nn import Linear

from neusight.errors import InapplicableError
from neusight.requests import Request
from neusight.transforms.checkpointed import checkpoint_blocks
from neusight.workloads import load_workload
from neusight.workloads.workload import Workload


def step(model: str, mode: str = "training", **options: int) -> Workload:
    return load_workload(model, Request.of(model, mode=mode, **options))


def kernels(workload: Workload, *phases: str) -> Counter[object]:
    return Counter({launch.kernel: launch.count for launch in workload.launches if launch.phase in phases})


@pytest.mark.parametrize(("model", "options"), [("gpt2", {"seq_len": 128, "batch": 2}), ("resnet-50", {"batch": 4})])
def test_forward_kernels_of_blocks_run_twice_and_no_others(model: str, options: dict[str, int]) -> None:
    before = step(model, **options)
    after = checkpoint_blocks(before)
    assert kernels(after, "forward") == kernels(before, "forward")
    more = kernels(after, "backward") - kernels(before, "backward")
    assert not kernels(before, "backward") - kernels(after, "backward")
    assert more
    assert not more - kernels(before, "forward")
    assert after.memory.activations < before.memory.activations
    assert after.memory.peak < before.memory.peak


def test_a_deep_decoder_keeps_what_its_layers_begin_with() -> None:
    """By the formula: of each layer one residual stream, [batch, s, hidden] in float32."""
    batch, length, hidden, layers = 4, 512, 768, 12
    after = checkpoint_blocks(step("gpt2", seq_len=length, batch=batch))
    ends = [node.id for node in after.nodes if node.phase == "forward"]
    kept = after.alive[max(ends) + 1].sum() - after.memory.weights
    logits = batch * length * 50257 * 4
    assert kept - logits == pytest.approx(layers * batch * length * hidden * 4, rel=0.25)


def test_inference_and_a_model_without_blocks_have_nothing_to_checkpoint() -> None:
    with pytest.raises(InapplicableError, match="inference"):
        checkpoint_blocks(step("gpt2", "inference", seq_len=64))
    with pytest.raises(InapplicableError, match="block"):
        checkpoint_blocks(load_workload(Linear(8, 8), Request.of(mode="training"), inputs=(zeros(4, 8),)))
