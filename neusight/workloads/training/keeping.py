"""``Keeping``: what a framework holds on to between forward and backward, beside what gradients need in any of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from neusight.errors import ModelError, nearest

AttentionForm = Literal["unfused", "flash", "cudnn"]
EXPERT_LOAD = 1.1
"""Rows of the experts of the fullest rank over an even share, in the fullest of a run's first
steps: routers without capacity are not even. Fitted by ``neusight.evaluation.memory.fitted_expert_load`` to runs on
a100 alone; runs on h100 ask for 1.16."""


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """Habits of a framework that decide over memory.

    ``attention``: ``unfused`` writes the matrix of probabilities, ``flash`` (FlashAttention) and ``cudnn`` keep a
    normaliser a row. FlashAttention wants sequences one after the other: with ``sequence_first`` (Megatron's [s, b, h])
    its output is there twice. ``probability_bytes`` is that of a kept probability of unfused attention.

    ``fused_gate``: the backward pass of a gated activation takes only what went into it. ``logit_bytes`` are of each
    logit while the loss is computed, ``held_logit_bytes`` what of those its backward pass waits for;
    ``deferred_heads`` micro-batches keep the gradient of their logits until the head's weights get theirs.

    ``handles`` threads run cuBLAS, each with a workspace; ``deterministic``: of the size that reproducible results ask
    for. ``transformer_engine`` has a workspace of its own, and four more where it runs experts side by side
    (``grouped_experts``). ``score_buffer``: scores of unfused attention lie in a buffer that stays. ``dense_mask``: a
    mask of [batch, s, s] bytes comes with every micro-batch. ``expert_load``: rows of the fullest rank's experts over
    an even share.
    """

    name: str
    attention: AttentionForm = "cudnn"
    sequence_first: bool = True
    attention_dropout: bool = False
    hidden_dropout: bool = False
    probability_bytes: int = 2
    fused_gate: bool = True
    dense_mask: bool = False
    logit_bytes: float = 6.0
    held_logit_bytes: float = 4.0
    deferred_heads: int = 0
    handles: int = 2
    deterministic: bool = False
    transformer_engine: bool = True
    grouped_experts: bool = True
    expert_load: float = EXPERT_LOAD
    score_buffer: bool = False


MEGATRON = Keeping(name="megatron")
"""Megatron-LM with Transformer Engine: a logit is kept in 16 bits and, for the loss, once in 32 (``VocabParallelCross\
Entropy`` works in place: megatron/core/tensor_parallel/cross_entropy.py)."""
FSDP = Keeping(
    name="fsdp",
    attention="flash",
    sequence_first=False,
    fused_gate=False,
    logit_bytes=14.0,
    transformer_engine=False,
)
"""PyTorch modules under FSDP with its own cross entropy of float32 logits: logits in 16 bits, log-probabilities, their
gradient and that of the logits in 32 (``log_softmax`` and ``nll_loss``, backward)."""
COMPOSER = replace(FSDP, name="composer", fused_gate=True, logit_bytes=2.0, held_logit_bytes=2.0)
"""Composer and llm-foundry: FSDP with FlashAttention's cross entropy, whose gradient takes the place of the logits in
16 bits (llm-foundry, ``loss_fn: fused_crossentropy``, its default)."""
LOCAL = replace(
    MEGATRON, name="megatron-local", attention="unfused", attention_dropout=True, hidden_dropout=True,
    transformer_engine=False,
)  # fmt: skip
"""Megatron-LM of 2022: scores in memory, dropout of attention and of the residual stream."""
_NAMED = {keeping.name: keeping for keeping in (MEGATRON, LOCAL, FSDP, COMPOSER)}
_FRAMEWORKS = {"megatron-te": MEGATRON, "torchtitan": FSDP, "torchtitan-compiled": FSDP}
"""Names of ``frameworks`` whose habits have another."""


def keeping_named(name: str) -> Keeping:
    """The habits of a framework by its name: ``megatron``, ``fsdp``, ``composer``, or one of ``frameworks``.

    Raises:
        ModelError: another name.
    """
    if name in _FRAMEWORKS:
        return _FRAMEWORKS[name]
    if name not in _NAMED:
        raise ModelError(f"unknown framework '{name}'{nearest(name, _NAMED)}: one of {', '.join(_NAMED)}")
    return _NAMED[name]
