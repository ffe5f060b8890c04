"""Attention: whether scores are written to memory, and by which kernels it runs."""

from __future__ import annotations

from neusight.what_if.questions import StepQuestion
from neusight.what_if.transforms import transform


@transform(
    "sdpa", group="attention", source="Rabe & Staats 2021; PyTorch, scaled_dot_product_attention",
    aliases=("xformers", "memory-efficient-attention"),
)  # fmt: skip
def sdpa(step: StepQuestion) -> StepQuestion:
    """Attention by the fused kernel that PyTorch picks; scores stay on the chip."""
    return step.running(attention="sdpa")


@transform("flash", group="attention", source="Dao 2023, FlashAttention-2", effort="a library")
def flash(step: StepQuestion) -> StepQuestion:
    """Attention by FlashAttention 2."""
    return step.running(attention="flash")
