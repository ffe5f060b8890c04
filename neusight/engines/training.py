"""Frameworks that train decoders on many devices."""

from __future__ import annotations

from dataclasses import replace

from neusight.engines.engine import TRAINER_SPREAD, Engine

MEGATRON = Engine(
    name="megatron-te",
    step_factors=True,
    attention="cudnn",
    autograd_functions=True,
    newer_attention_variant="fa3",
    deferred_bias=True,
    residual="fused",
    joined_norm_gradients=True,
    loss="fused",
    vocabulary_multiple=128,
    regathers=True,
    overlaps_weights=True,
    accumulation="product",
    shard="zero1",
    sequence_first=True,
    keeps_activated_gate=False,
    logit_bytes=6.0,
    transformer_engine=True,
    memory_spread=0.034,
)
"""Megatron Core on Transformer Engine, as NeMo runs it: ``TransformerConfig`` with ``bias_activation_fusion``,
``bias_dropout_fusion``, ``gradient_accumulation_fusion``, ``cross_entropy_loss_fusion``, ``apply_rope_fusion``; padding
by ``--make-vocab-size-divisible-by`` (128); sequence parallelism as in Korthikanti et al. 2022, section 4.2.2. On
Hopper it takes cuDNN's attention (``get_attention_backend``), which runs as fast as FlashAttention 3 (Shah et al. 2024,
figures 5 and 6). A logit is kept in 16 bits and, for the loss, once in 32 (``VocabParallelCrossEntropy`` works in
place: megatron/core/tensor_parallel/cross_entropy.py). Its users share optimizer states among replicas and run what
those exchange beside other work (cited: NeMo's recipes; ``--use-distributed-optimizer``, ``--overlap-grad-reduce``,
``--overlap-param-gather``). Its layers are functions of autograd in Python (``_LayerNormLinear``, ``_Linear``,
``FusedAttnFunc``, ``_ReduceFromModelParallelRegion``; in Megatron-LM of 2022
``LinearWithGradAccumulationAndAsyncCommunication``, ``FusedLayerNormAffineFunction``,
``ScaledUpperTriangMaskedSoftmax``). What ``--tp-comm-overlap`` hides, products in pieces lose: steps of H100 that have
it come out as if they had not, by factors of A100's."""
MEGATRON_LOCAL = replace(
    MEGATRON,
    name="megatron-local",
    attention="eager",
    attention_variant="",
    newer_attention_variant="",
    attention_dropout=True,
    hidden_dropout=True,
    joined_norm_gradients=False,
    loss="written out",
    rotary="complex",
    shard="none",
    overlaps_exchanges=False,
    transformer_engine=False,
    connects_at_once=True,
    memory_spread=TRAINER_SPREAD,
)
"""Megatron-LM of 2022 (Korthikanti et al. 2022; Megatron-LM v3.0): scores in memory, its own fused softmax, Apex's
layer norm, ``vocab_parallel_cross_entropy``, dropout of 0.1 of attention and of the residual stream; replicas keep
copies and exchange gradients after all passes."""
MEGATRON_DEEPSPEED = replace(
    MEGATRON_LOCAL,
    name="megatron-deepspeed",
    overlaps_weights=False,
    accumulation="widened",
    shard="zero1",
    narrow_sums=True,
    bucket_parameters=500_000_000,
)
"""Megatron-LM v2 under DeepSpeed, as BLOOM was trained: column-parallel products are ``F.linear`` behind a function
whose backward pass sums gradients up in their way (megatron/mpu/mappings.py, ``_CopyToModelParallelRegion``; v3.0
brought those that run it beside products and add to float32 sums). ``BF16_Optimizer`` adds gradients of each
micro-batch, widened, to float32 sums (cited: deepspeed/runtime/bf16_optimizer.py, ``update_hp_grads``,
``fp32_groups_gradients_flat``; pipe/engine.py, ``update_hp_grads(clear_lp_grads=False)``), float16 ones are summed up
as they are and widened in the step (zero/stage_1_and_2.py); buffers as ``DEEPSPEED``."""
MEGATRON_FLEX = replace(MEGATRON, name="megatron-flex", dispatcher="once")
"""The same with ``--moe-token-dispatcher-type flex``: DeepEP, or HybridEP within an NVLink domain."""
FSDP = Engine(
    name="fsdp",
    step_factors=True,
    attention="flash",
    cp_comm="all_gather",
    ring="float32",
    repeats_keys=True,
    activation="eager",
    rotary="complex",
    stops_early=True,
    shard="zero3",
)
"""Models in plain PyTorch under ``FullyShardedDataParallel``, such as fms-fsdp's Llama (SDPA, ``F.silu(wg) * w1``), not
compiled, with checkpoints that are not reentrant. Keys and values are expanded to all heads
(``MultiHeadAttention.forward``); sequences are shared by PyTorch's ``context_parallel``, which gathers keys unless told
(``_ContextParallelOptions``). Its cross entropy keeps logits in 16 bits, log-probabilities, their
gradient and that of the logits in 32 (``log_softmax`` and ``nll_loss``, backward)."""
DEEPSPEED = replace(
    FSDP,
    name="deepspeed",
    stops_early=False,
    logit_bytes=16.0,
    narrow_sums=True,
    narrow_shares=True,
    grouped_parameters=1_000_000_000,
    live_parameters=1_000_000_000,
    bucket_parameters=500_000_000,
)
"""Models of Hugging Face under DeepSpeed's ZeRO: weights in 16 bits beside ``fp32_partitioned_groups_flat`` with their
moments, of which ``sub_group_size`` are stepped at once with gradients in float32 (cited: zero/stage3.py,
``_prepare_fp32_grad_for_sub_group``), gradients in ``grad_partitions_flat_buffer``, reduced in a buffer of
``reduce_bucket_size`` (``__ipg_bucket_flat_buffer``), and up to ``stage3_max_live_parameters`` gathered, all by their
defaults (deepspeed/runtime/zero/config.py); sums of gradients as ``get_data_types`` of runtime/engine.py has them. The
model's output keeps the logits in float32 beside log-probabilities, their gradient and that of the logits (transformers
before 4.46, ``LlamaForCausalLM.forward``), and checkpoints are reentrant (``gradient_checkpointing_kwargs``)."""
TORCHTITAN = replace(
    FSDP, name="torchtitan", copies_gathered=True, joined_projections=False, hidden_tp=0.4, memory_spread=0.008
)
"""torchtitan of 2024 with ``compile = false`` and ``norm_type = "fused_rmsnorm"``: separate ``wq``, ``wk``, ``wv``,
``w1``, ``w3``; scaled-dot-product attention by FlashAttention 2; ``F.cross_entropy`` of logits in float32; DTensor
keeps what it gathered, of sequences that lie one after the other; FSDP2, each of whose parameters is sharded by itself
(cited: torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py, ``foreach_all_gather_copy_out``,
``foreach_reduce_scatter_copy_in``); ``torch.utils.checkpoint`` that stops early. Asynchronous tensor parallelism gains
some 8 % of a step of Llama 3 on 64 H100, of whose time exchanges are a fifth (H. Wang et al. 2024, Introducing Async
Tensor Parallelism in PyTorch)."""
TORCHTITAN_COMPILED = replace(
    TORCHTITAN,
    name="torchtitan-compiled",
    launch="compiled",
    activation="fused",
    residual="norm",
    rotary="fused",
    loss="fused",
)
"""The same with each block, and the loss, through ``torch.compile``."""
MAXTEXT = Engine(
    name="maxtext",
    launch="graph",
    attention="flash",
    joined_projections=False,
    residual="norm",
    generated=True,
    loss="generated",
    shard="zero3",
    gathers_matrices=True,
    keeps_activated_gate=False,
    logit_bytes=4.0,
)
"""MaxText: a whole step is one program of XLA, which fuses pointwise work, so that of logits only they and their
gradient, in 16 bits, are ever written; weights, gradients and states are shared among the chips of a slice (cited:
``ici_fsdp_parallelism``), each gathered where its product reads it; attention is a Pallas kernel (``attention:
flash``)."""
NEURON = replace(MAXTEXT, name="neuron", shard="zero1", ranks="core")
"""NeuronX Distributed and neuronx-nemo-megatron: Megatron's tensor and pipeline parallelism among cores in programs of
Neuron's compiler, with ZeRO-1."""
NEURON_EAGER = replace(NEURON, name="neuron-eager", attention="eager", probability_bytes=2)
"""The same before release 2.19, which brought flash attention (cited: release notes of neuronx-distributed 0.8 and
neuronx-nemo-megatron 0.6): scores are products of their own, softmax a loop between them."""
NEURON_NEMO = replace(NEURON_EAGER, name="neuron-nemo", attention_dropout=True, hidden_dropout=True)
"""GPT of neuronx-nemo-megatron as then (``test.sh``: ``hidden_dropout=0.1``)."""
COMPOSER = replace(
    FSDP,
    name="composer",
    attention_generation=1,
    stops_early=False,
    keeps_activated_gate=False,
    logit_bytes=2.0,
    held_logit_bytes=2.0,
)
"""llm-foundry's MPT in Composer, until the end of 2023: ``Wqkv`` in one, FlashAttention in Triton (``attn_impl:
triton``), reentrant or complete checkpoints; FlashAttention's cross entropy, whose gradient takes the place of the
logits in 16 bits (cited: llm-foundry, ``loss_fn: fused_crossentropy``, its default)."""
