"""``Framework``: which kernels a training framework runs for a model. Each framework is a value, not a branch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from neusight.errors import ModelError, nearest
from neusight.requests import Engine


@dataclass(frozen=True, kw_only=True)
class Framework:
    """How a framework turns a decoder into kernels and collectives.

    Attributes:
        attention: ``flash`` in one kernel, or ``unfused``: products, softmax and dropout over written-out scores.
        attention_variant: library of flash attention, as ``Conditions.variant`` names it.
        attention_generation: 1 for FlashAttention before its second version, which split work otherwise.
        context: how ranks that share sequences bring keys together: ``ring`` passes them on beside the attention of
            the ones before, ``gather`` gathers them first.
        joined: query, key and value lie in one matrix, gate and up as well; else each is a product of its own.
        activation: ``fused`` with its gate and bias in one kernel, or ``eager``: each operator in its own.
        deferred_bias: biases of outputs are added by the kernel that adds the residual, else by the product.
        residual: ``fused``: bias, dropout and addition in one kernel; ``eager``: one kernel each; ``norm``: in the
            kernel of the norm that follows.
        joined_norm_gradients: one kernel has the gradients of a norm's input and weights, else one each.
        rotary: ``fused`` in one kernel a tensor, or ``complex``: written out in float32.
        loss: ``written out`` in float32 over shared logits, ``torch`` (its log-softmax on logits in float32), or
            ``fused``: two passes that leave the gradient where the logits were.
        accumulation: gradients of weights are added to float32 sums by the ``product`` itself, by a ``kernel`` of
            their own, or by ``none``, since what reduces them does.
        regathers: what sequence-parallel ranks gathered is dropped and gathered again in the backward pass.
        overlaps_weights: collectives of the backward pass run beside the products of weight gradients.
        dispatcher: how tokens get to experts, ``alltoall`` or ``allgather``.
        grouped: all experts of a rank in one kernel, else one after the other.
        vocabulary_multiple: to a multiple of which, times tensor-parallel ranks, the vocabulary is padded.
        stops_early: a recomputed pass ends with the last value that the backward pass needs.
        scaling: of 8-bit tensors, ``delayed`` (by maxima of earlier steps) or ``current`` (a pass looks for it first).
        dropout: whether activations and probabilities of attention drop out.
        launch: ``eager``, ``graph`` or ``compiled``.
        host_s_per_operator: what the host takes to dispatch one operator [s], as ``Engine`` has it for PyTorch.
        newer_attention_variant: library of flash attention on GPUs of compute capability 9 and 10, "" for the same.
    """

    name: str
    attention: Literal["flash", "unfused"] = "flash"
    attention_variant: str = "fa2"
    attention_generation: int = 2
    context: Literal["ring", "gather"] = "ring"
    joined: bool = True
    activation: Literal["fused", "eager"] = "fused"
    deferred_bias: bool = False
    residual: Literal["fused", "eager", "norm"] = "eager"
    joined_norm_gradients: bool = False
    rotary: Literal["fused", "complex"] = "fused"
    loss: Literal["written out", "torch", "fused"] = "torch"
    accumulation: Literal["product", "kernel", "none"] = "none"
    regathers: bool = False
    overlaps_weights: bool = False
    dispatcher: Literal["alltoall", "allgather"] = "alltoall"
    grouped: bool = True
    vocabulary_multiple: int = 1
    stops_early: bool = False
    scaling: Literal["delayed", "current"] = "delayed"
    dropout: bool = False
    launch: Literal["eager", "graph", "compiled"] = "eager"
    host_s_per_operator: float = Engine().host_s_per_operator
    newer_attention_variant: str = ""

    def attention_on(self, capability: float | None) -> str:
        """Library of flash attention on a GPU of a CUDA compute capability, None for those that have none."""
        newer = capability is not None and NEWER_CAPABILITIES[0] <= capability < NEWER_CAPABILITIES[1]
        return (newer and self.newer_attention_variant) or self.attention_variant


NEWER_CAPABILITIES = (9.0, 12.0)
"""From Hopper on, to before consumer Blackwell: those whose matrix units read shared memory by themselves."""

_MEGATRON = Framework(
    name="megatron-te",
    deferred_bias=True,
    residual="fused",
    joined_norm_gradients=True,
    loss="fused",
    accumulation="product",
    regathers=True,
    overlaps_weights=True,
    vocabulary_multiple=128,
    newer_attention_variant="fa3",
)
"""Megatron Core on Transformer Engine, as NeMo runs it: ``TransformerConfig`` with ``bias_activation_fusion``,
``bias_dropout_fusion``, ``gradient_accumulation_fusion``, ``cross_entropy_loss_fusion``, ``apply_rope_fusion``; padding
by ``--make-vocab-size-divisible-by`` (128); sequence parallelism as in Korthikanti et al. 2022, section 4.2.2. On
Hopper it takes cuDNN's attention (``get_attention_backend``), which runs as fast as FlashAttention 3 (Shah et al. 2024,
figures 5 and 6)."""
_MEGATRON_LOCAL = replace(
    _MEGATRON,
    name="megatron-local",
    attention="unfused",
    attention_variant="",
    newer_attention_variant="",
    joined_norm_gradients=False,
    loss="written out",
    rotary="complex",
    dropout=True,
)
"""Megatron-LM of 2022 (Korthikanti et al. 2022; Megatron-LM v3.0): scores in memory, its own fused softmax, Apex's
layer norm, ``vocab_parallel_cross_entropy``, dropout of 0.1."""
_TORCHTITAN = Framework(
    name="torchtitan",
    context="gather",
    joined=False,
    activation="eager",
    rotary="complex",
    stops_early=True,
)
"""torchtitan of 2024 with ``compile = false`` and ``norm_type = "fused_rmsnorm"``: separate ``wq``, ``wk``, ``wv``,
``w1``, ``w3``; scaled-dot-product attention by FlashAttention 2; ``F.cross_entropy`` of logits in float32; DTensor
keeps what it gathered; ``torch.utils.checkpoint`` that stops early."""
_COMPILED = replace(
    _TORCHTITAN,
    name="torchtitan-compiled",
    activation="fused",
    residual="norm",
    rotary="fused",
    loss="fused",
    launch="compiled",
)
"""The same with each block, and the loss, through ``torch.compile``: pointwise operators and norms are fused (Ansel et
al. 2024, PyTorch 2, section 4)."""
_FSDP = Framework(name="fsdp", activation="eager", rotary="complex", stops_early=True)
"""Models in plain PyTorch under ``FullyShardedDataParallel``, such as fms-fsdp's Llama (SDPA, ``F.silu(wg) * w1``), not
compiled, with checkpoints that are not reentrant."""
_COMPOSER = replace(_FSDP, name="composer", attention_generation=1, stops_early=False)
"""llm-foundry's MPT in Composer, until the end of 2023: ``Wqkv`` in one, FlashAttention in Triton (``attn_impl:
triton``), reentrant or complete checkpoints."""

FRAMEWORKS: dict[str, Framework] = {
    framework.name: framework for framework in (_MEGATRON, _MEGATRON_LOCAL, _TORCHTITAN, _COMPILED, _FSDP, _COMPOSER)
}
"""By name."""


def framework_named(name: str) -> Framework:
    """The framework of a name.

    Raises:
        ModelError: none has it.
    """
    if name not in FRAMEWORKS:
        raise ModelError(f"unknown framework '{name}'{nearest(name, FRAMEWORKS)}: one of {', '.join(FRAMEWORKS)}")
    return FRAMEWORKS[name]
