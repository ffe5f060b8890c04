"""Constants of training steps: what kernels and collectives take in a step, over what they take by themselves."""

from __future__ import annotations

from neusight.laws.constants import constant, group
from neusight.quick_dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StepFactors:
    """Time in a training step over the time by itself, by kind of kernel.

    What slows matrix units in a step, power and the state that others leave caches in, slows them whatever they
    compute: factors of 8-bit products and of attention come on top of that of ``products``.
    """

    products: float = constant(1.0, 0.1, "as by themselves; other kernels took caches and power before them")
    """Of matrix products in 16 and 32 bits."""
    narrow_products: float = constant(1.0, 0.15, "as 16-bit ones; fewer sources measured 8-bit products")
    """Of matrix products in 8 bits and fewer, over ``products``."""
    attention: float = constant(1.0, 0.1, "as products")
    """Of fused attention, forward, over ``products``."""
    attention_backward: float = constant(
        1.16, 0.15, "Dao 2023, section 4.1: 73 % of the peak forward and 63 % backward"
    )
    """The same, backward: five products in place of two, and sums into one another's results."""
    first_attention: float = constant(
        1.8, 0.5, "Dao 2023, section 4.1: FlashAttention-2 is 1.3 to 2.5 times as fast as FlashAttention in Triton"
    )
    """Of the first FlashAttention over the second, forward."""
    first_attention_backward: float = constant(
        1.8, 0.5, "Dao 2023, section 4.1: FlashAttention-2 is 1.3 to 2.5 times as fast as FlashAttention in Triton"
    )
    """The same, backward."""
    rest: float = constant(1.0, 0.2, "as by themselves")
    """Of pointwise kernels, reductions and copies."""
    collectives: float = constant(1.0, 0.3, "as by themselves; ranks wait for the slowest")
    """Of collectives in the way of kernels: of tensors, contexts and experts."""
    exchanges: float = constant(1.0, 0.3, "as by themselves; ranks wait for the slowest")
    """Of what replicas and stages exchange."""


@dataclass(frozen=True, kw_only=True)
class StepPhysics:
    """All constants of training steps."""

    step: StepFactors = group(StepFactors, "training steps with the time of each kind of kernel")
