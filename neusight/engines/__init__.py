"""``Engine``: the software that runs a model. Each is a value; what differs between two of them is a field, no branch.

What is described is all that decides over kernels, host time and memory beside model, plan and device: PyTorch as it
runs a traced module, training frameworks and serving engines as they run a decoder.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from neusight.engines.server import ALL_AT_ONCE, NATIVE_OPERATOR_S, SGLANG, TRTLLM, VLLM, Server
from neusight.errors import ModelError, nearest, shown

if TYPE_CHECKING:
    from neusight.devices.spec import DeviceSpec

LAUNCHES = ("eager", "compiled", "graph", "cudagraphs", "static")
LAYOUTS = ("nchw", "nhwc")
ATTENTIONS = ("eager", "sdpa", "flash")
"""Forms of attention that a request may ask PyTorch for."""
AttentionForm = Literal["eager", "sdpa", "flash", "cudnn"]
EXPERT_LOAD = 1.1
"""Rows of the experts of the fullest rank over an even share, in the fullest of a run's first
steps: routers without capacity are not even. Fitted by ``neusight.evaluation.memory.fitted_expert_load`` to runs on
a100 alone; runs on h100 ask for 1.16."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """The host of a step that is called while the device rests, as benchmarks do that synchronise around each call.

    ``call_s`` is what it takes before the first operator of a call: its Python, the guards of compiled code, the start
    of a graph [s]; ``operator_s`` what it takes to dispatch an operator of one pointwise kernel [s], see
    ``workloads.dispatch``; ``spread`` the standard deviation of the logarithm of both. ``copied_bytes`` [B] the step
    copies from pageable memory of the host, at ``copy_bytes_per_s`` [B/s]. ``ahead_s`` [s] the device is busy with what
    came before, such as emptying its cache, when the host begins, which hides as much of what the host does.
    """

    call_s: float
    operator_s: float
    spread: float
    ahead_s: float = 0.0
    copied_bytes: int = 0
    copy_bytes_per_s: float = 3.5e9
    """Between the 2.3 and 5.4 GB/s that copies from pageable memory reach on two hosts (M. Harris 2012, How to Optimize
    Data Transfers in CUDA C/C++, NVIDIA's developer blog)."""

    @property
    def before_s(self) -> float:
        """What passes before the first operator, copies included [s]."""
        return self.call_s + self.copied_bytes / self.copy_bytes_per_s


@dataclass(frozen=True, kw_only=True)
class Libraries:
    """Libraries of other versions than those that kernels were measured with: what their kernels take over those,
    ``factor``, and ``spread``, the standard deviation of its logarithm from one device to another.
    """

    factor: float = 1.0
    spread: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What turns a model into kernels and collectives, launches them, and keeps tensors between them.

    Launching and host:
        launch: ``eager``, operator by operator; ``compiled``, the fused kernels of ``torch.compile`` from its generated
            wrapper, each of which costs the host what an operator of its kind does; ``graph``, all kernels as one CUDA
            graph, which costs the host as much as one operator; ``static``, kernels one after the other from code that
            was compiled ahead of time, each of which costs the host what an operator of one pointwise kernel does.
        copies_inputs: each replay of a graph first copies what it was called with to where the graph reads it.
        host_s_per_operator: what the host's thread takes to dispatch an operator of one pointwise kernel [s]; others
            take shares or multiples of that (``workloads.dispatch``).
        host_s_per_call: what it takes for each call before that, beside what any module takes: guards of compiled code,
            the start of a graph [s].
        host_spread: standard deviation of the logarithm of these times from one host to another.
        layout: order in which images lie in memory: ``nchw``, or ``nhwc`` (``torch.channels_last``), to which the
            module and its inputs were converted before the step.

    Kernels and how they run in a step:
        library: whose kernels run (``Conditions.engine``), "" for those of PyTorch and its libraries.
        kernel_timing: of a kernel by itself: ``stream``, launched one after another, each no shorter than the interval
            between launches; or ``graph``, among many whose launch costs next to nothing.
        step_factors: kernels take in a step what ``training.json`` says over what they take by themselves, which was
            fitted to steps of such engines; else nothing more.

    Attention:
        attention: ``eager`` writes scores and probabilities out; ``sdpa``, ``flash`` and ``cudnn`` are one kernel,
            of PyTorch's choice, FlashAttention's or cuDNN's; '' is what a traced module does, ``sdpa`` where it calls
            ``scaled_dot_product_attention`` and ``eager`` where it writes attention out.
        attention_variant: library of fused attention, as ``Conditions.variant`` names it.
        newer_attention_variant: the same on GPUs whose matrix units read shared memory by
            themselves, "" for the same.
        attention_generation: 1 for FlashAttention before its second version, which split work otherwise.
        cp_comm: how ranks that share sequences bring keys together unless a plan tells, as ``Plan.cp_comm``.
        ring: how they put together what a query got from keys of others: ``fused`` in one kernel a step, and gathered
            keys are attended to at once; or step by step on ``float32`` sums.
        repeats_keys: keys and values are copied for each query head that shares them, before attention.
        attention_dropout: whether probabilities drop out.

    Kernels of other layers:
        joined_projections: query, key and value lie in one matrix, gate and up as well; else each is a product of its
            own. Of a traced module, products of one operand become one where the launch is ``static``.
        activation: ``fused`` with its gate and bias in one kernel, or ``eager``: each operator in its own.
        deferred_bias: biases of outputs are added by the kernel that adds the residual, else by the product.
        residual: ``fused``: bias, dropout and addition in one kernel; ``eager``: one kernel each; ``norm``: in the
            kernel of the norm that follows; ``add_norm``: in a kernel of addition and RMS norm made for that.
        hidden_dropout: whether activations drop out before they are added to the residual stream.
        module_dropout: they do where the model's configuration says so.
        generated: pointwise work between products is what ``torch.compile`` generates for a whole module
            (``transforms.fusion``): gradients that meet are added where they are read, dropout is part of the norm that
            follows, gradients of biases of the activation's.
        written_out: what takes kernels of its own: ``bias`` of products, ``reductions`` of norms and softmax, each in a
            loop apart from what follows from it.
        epilogues: what follows a product or convolution element by element, and alone reads its result, is part of its
            kernel.
        joined_norm_gradients: one kernel has the gradients of a norm's input and weights, else one each.
        rotary: ``fused`` in one kernel a tensor, or ``complex``: written out in float32.
        loss: ``written out`` in float32 over shared logits, ``torch`` (its log-softmax on logits in float32), or
            ``fused``: two passes that leave the gradient where the logits were, ``generated``: statistics of rows
            forward, the gradient from logits and statistics backward.
        dispatcher: how tokens get to experts: ``alltoall``, a row for each, ``once`` to each rank or node that has
            any, or ``allgather``.
        grouped_experts: all experts of a rank in one kernel, else one after the other.
        quantises_in_products: 8-bit products make their inputs 8-bit within their own time.
        grouped_queries: decodes read keys and values once for all query heads that share them, else once for each.
        calibrated_scales: one scale of a tensor's 8-bit activations was found before, so that what makes them writes
            them narrow.
        mxfp8_activations: experts with MXFP4 weights take MXFP8, see ``Quantisation.on``.
        fused_cache_write: keys and values are rotated and written to a paged cache in one kernel.
        eager_passes: norms, rotations and gated activations of served passes are operators of PyTorch, one after
            another (``operators``, ``_eager``).
        grown_cache: each pass copies the cache of a layer to a longer one (``torch.cat``).
        attention_does: what the operator of attention over a cache, as it was timed, does beside: ``write`` new keys
            and values to it, or ``rotate`` and write them.
        vocabulary_multiple: to a multiple of which, times tensor-parallel ranks, the vocabulary is padded.

    Collectives and recomputation:
        regathers: what sequence-parallel ranks gathered is dropped and gathered again in the backward pass.
        overlaps_weights: collectives of the backward pass run beside the products of weight gradients.
        gradient_share: bytes of gradients that copies exchange over those that they have, encoded before and decoded
            after it; ``gathers_gradients``: encoded ones cannot be summed up, and each rank gets those of all.
        gradient_rank: those of matrices travel as two factors of so many columns instead; 0: as they are.
        sums: how copies add gradients up: ``flat`` among all of them; ``levels``: within each node, among nodes and
            within each again (Cho et al. 2019, BlueConnect); ``adaptive``: in pairs, weighed by their dot products
            (Maleki et al. 2021, Adasum).
        hidden_tp: share of what tensor-parallel ranks gather and scatter that a plan's ``overlap_tp`` hides behind
            products in pieces, which take longer than whole ones.
        copies_gathered: what is gathered is copied out of a buffer of all ranks, and what is reduced into one, between
            other kernels: fully sharded weights and gradients, and rows of sequences that tensor-parallel ranks share;
            else they lie there.
        stops_early: a recomputed pass ends with the last value that the backward pass needs.

    Weights, gradients and optimizer:
        master_weights: the optimizer steps a float32 copy of 16-bit weights, whose gradients are summed up in buffers
            that each step clips and zeroes. Else weights, gradients and states have the module's dtype, and gradients
            are new in every step.
        foreach_optimizer: each operation of the optimizer goes over all parameters by itself, as PyTorch has it unless
            told; else one kernel does all of them.
        wide_weights: where products run in few bits, 16-bit weights stay beside the copies that those take.
        accumulation: gradients of weights are added to float32 sums by the ``product`` itself, by a ``kernel`` of
            their own, or by ``none``, since what reduces them does.

    What its users usually choose of a plan, where nothing is said:
        shard: what replicas share of each other's states, as ``Plan.shard``.
        sequence_parallel: tensor-parallel ranks share the residual stream.
        overlaps_exchanges: what replicas exchange runs beside other work.
        balanced_stages: stages of a pipeline take as equal times as can be, else have as equal numbers of layers.

    What is kept for the backward pass:
        sequence_first: activations lie as [s, b, h]. FlashAttention wants sequences one after the other, so that its
            output is there twice.
        probability_bytes: of a kept probability of attention that writes them out.
        keeps_activated_gate: of a gated activation the backward pass takes what the gate let through as well, beside
            what went into it.
        logit_bytes: of each logit while the loss is computed.
        held_logit_bytes: of each logit whose backward pass waits for other micro-batches.
        loss_chunks: pieces of a sequence whose loss is computed one after another: what the loss makes of logits is
            there for one of them.
        steps_in_backward: each weight is stepped as soon as its gradient is there, which then goes.
        offloads_activations: what layers keep lies on the host, copied there and back beside the passes.
        deferred_heads: micro-batches that keep the gradient of their logits until the head's weights get theirs.
        dense_mask: a mask of [batch, s, s] bytes comes with every micro-batch.
        expert_load: rows of the fullest rank's experts over an even share.

    Workspaces of libraries:
        handles: threads that run cuBLAS, each with a workspace.
        deterministic: cuBLAS workspaces of the size that reproducible results ask for.
        transformer_engine: it has a workspace of its own, and four more where it runs experts side by side.
        score_buffer: scores of attention that writes them out lie in a buffer that stays.

    Serving:
        server: scheduler, limits and own time of an engine that serves requests; None of one that trains or runs steps.
    """

    name: str = "torch-eager"

    launch: str = "eager"
    copies_inputs: bool = False
    host_s_per_operator: float = 9.8e-6
    """Geometric mean of twelve timed days of hosts, 5 to 23 µs (``neusight evaluate programs``, ``hosts``: all that
    launch eagerly)."""
    host_s_per_call: float = 0.0
    host_spread: float = 0.41
    """Of the same hosts, the standard deviation of the logarithm."""
    layout: str = "nchw"

    library: str = ""
    kernel_timing: Literal["stream", "graph"] = "graph"
    step_factors: bool = False

    attention: str = ""
    attention_variant: str = "fa2"
    newer_attention_variant: str = ""
    attention_generation: int = 2
    cp_comm: Literal["p2p", "all_gather"] = "p2p"
    ring: Literal["fused", "float32"] = "fused"
    repeats_keys: bool = False
    attention_dropout: bool = False

    joined_projections: bool = True
    activation: Literal["fused", "eager"] = "fused"
    deferred_bias: bool = False
    residual: Literal["fused", "eager", "norm", "add_norm"] = "eager"
    hidden_dropout: bool = False
    module_dropout: bool = False
    generated: bool = False
    written_out: tuple[str, ...] = ()
    epilogues: bool = False
    joined_norm_gradients: bool = False
    rotary: Literal["fused", "complex"] = "fused"
    loss: Literal["written out", "torch", "fused", "generated"] = "torch"
    dispatcher: Literal["alltoall", "once", "allgather"] = "alltoall"
    grouped_experts: bool = True
    quantises_in_products: bool = False
    grouped_queries: bool = True
    calibrated_scales: bool = False
    mxfp8_activations: bool = False
    fused_cache_write: bool = False
    attention_does: Literal["", "write", "rotate"] = ""
    eager_passes: bool = False
    grown_cache: bool = False
    vocabulary_multiple: int = 1

    regathers: bool = False
    overlaps_weights: bool = False
    gradient_share: float = 1.0
    gathers_gradients: bool = False
    gradient_rank: int = 0
    sums: Literal["flat", "levels", "adaptive"] = "flat"
    hidden_tp: float = 0.0
    copies_gathered: bool = False
    stops_early: bool = False

    master_weights: bool = True
    foreach_optimizer: bool = False
    wide_weights: bool = False
    accumulation: Literal["product", "kernel", "none"] = "none"

    shard: Literal["none", "zero1", "zero3"] = "none"
    sequence_parallel: bool = True
    overlaps_exchanges: bool = True
    balanced_stages: bool = False

    sequence_first: bool = False
    probability_bytes: int = 2
    keeps_activated_gate: bool = True
    logit_bytes: float = 14.0
    held_logit_bytes: float = 4.0
    loss_chunks: int = 1
    steps_in_backward: bool = False
    offloads_activations: bool = False
    deferred_heads: int = 0
    dense_mask: bool = False
    expert_load: float = EXPERT_LOAD

    handles: int = 2
    deterministic: bool = False
    transformer_engine: bool = False
    score_buffer: bool = False

    server: Server | None = None

    @classmethod
    def torch(cls, attention: str = "", launch: str = "eager", layout: str = "nchw") -> Engine:
        """PyTorch, by its forms of attention and of launching, and the layout of images."""
        return replace(ENGINES[f"torch-{launch}"], attention=attention, layout=layout)

    def on(self, device: DeviceSpec) -> Engine:
        """As it runs steps on a device: through the compiler of one that runs whole programs alone."""
        if not device.runs_programs or self.server is not None or self.launch not in ("eager", "compiled", "graph"):
            return self
        return replace(_TORCH_PROGRAM, attention=self.attention, layout=self.layout)

    def dispatch_s(self, dispatches: float) -> float:
        """What the host takes to dispatch a pass [s], see ``workloads.dispatch``; a graph it launches at once."""
        return 0.0 if self.launch == "graph" else dispatches * self.host_s_per_operator

    @property
    def serving(self) -> Server:
        """``server`` of an engine that has one.

        Raises:
            ModelError: it serves no requests.
        """
        if self.server is None:
            raise ModelError(f"{self.name} serves no requests: name one of {', '.join(_names(serves=True))}")
        return self.server

    def started_on(self, device: DeviceSpec, *, graphs: bool = True) -> Engine:
        """One that serves, as it runs on a device; without ``graphs`` it launches kernel by kernel."""
        server = self.serving.started_on(device, graphs=graphs)
        return replace(self, server=server, grouped_queries=server.rocm_native or device.vendor != "amd")

    @property
    def writes_scores(self) -> bool:
        """Whether attention writes scores and probabilities to memory."""
        return self.attention == "eager"

    def attention_on(self, reads_shared_memory: bool) -> str:
        """Library of fused attention on a GPU, by whether its matrix units read shared memory by themselves."""
        return (reads_shared_memory and self.newer_attention_variant) or self.attention_variant


_TORCH = Engine(
    name="torch-eager",
    kernel_timing="stream",
    attention="sdpa",
    joined_projections=False,
    activation="eager",
    rotary="complex",
    module_dropout=True,
    master_weights=False,
    foreach_optimizer=True,
    balanced_stages=True,
    sequence_parallel=False,
)
"""A module of the transformers library in plain PyTorch: ``q_proj``, ``k_proj``, ``v_proj``, ``gate_proj`` and
``up_proj`` apart, ``scaled_dot_product_attention``, rotation written out, ``F.cross_entropy`` of logits in float32;
weights, gradients and the optimizer's states in the module's dtype."""
_TORCHSCRIPT = replace(_TORCH, name="torchscript", host_s_per_operator=0.52 * _TORCH.host_s_per_operator)
"""The same operators called by an interpreter in C++ (``torch.jit.trace``), without modules in Python: those of a BERT
of 12 layers, on numbers so small that they count for nothing, take one thread of a CPU 0.54 ms instead of 1.75
(PyTorch 2.13); each of the 210 kernels of a GPU adds a launch of 3.8 us to both (A. Gray 2019, Getting started with
CUDA graphs, NVIDIA's developer blog)."""
_TORCH_COMPILED = replace(
    _TORCH,
    name="torch-compiled",
    launch="compiled",
    host_s_per_call=4e-5,
    activation="fused",
    residual="norm",
    rotary="fused",
    loss="generated",
    generated=True,
    keeps_activated_gate=False,
    logit_bytes=4.0,
    held_logit_bytes=2.0,
)
"""The same through ``torch.compile``: pointwise operators and norms are fused (Ansel et al. 2024, PyTorch 2, section
4); what is cheap is computed again from what goes into it (ibid., section 5.4). A call costs what ``neusight evaluate
programs`` fits to calls of compiled programs beyond those of eager ones: 19 to 66 us on nine hosts, 29 to 90 where a
graph is started; the middle of all is taken."""
_TORCH_GRAPH = replace(_TORCH_COMPILED, name="torch-graph", launch="graph", copies_inputs=True)
"""The same as one CUDA graph (``mode="reduce-overhead"``), whose replays copy what is not a weight to where the graph
reads it (``torch/_inductor/cudagraph_trees.py``, ``_copy_inputs_and_remove_from_src``)."""
_TORCH_PROGRAM = replace(_TORCH_GRAPH, name="torch-program", copies_inputs=False, epilogues=True)
"""A module through XLA, Neuron's compiler or Synapse: one program a step (PyTorch/XLA, lazy tensors; AWS Neuron,
``torch-neuronx``; Intel Gaudi, HPU graphs), in which pointwise work is fused with what it follows from, products among
it (XLA, ``InstructionFusion``)."""
_TORCH_CUDAGRAPHS = replace(
    _TORCH, name="torch-cudagraphs", launch="graph", copies_inputs=True, host_s_per_call=_TORCH_GRAPH.host_s_per_call
)
"""Operators as they are, recorded as one such graph (``torch.compile(backend="cudagraphs")``)."""
_TORCH_STATIC = replace(
    _TORCH_COMPILED,
    name="torch-static",
    launch="static",
    host_s_per_call=0.0,
    host_s_per_operator=0.0,
    joined_projections=True,
    epilogues=True,
)
"""The same through a compiler that works ahead of time: C++ that calls kernels whose epilogues have bias, activation
and addition (AITemplate; TensorRT, Layer fusion). A kernel costs its host a launch and nothing else, which is the
device's interval."""
_TENSORFLOW_XLA = replace(
    _TORCH_STATIC,
    name="tensorflow-xla",
    attention="eager",
    host_s_per_operator=_TORCH.host_s_per_operator,
    joined_projections=False,
    epilogues=False,
    written_out=("bias", "reductions"),
)
"""A graph of TensorFlow with ``global_jit_level``: XLA fuses pointwise chains into the reduction that ends them, never
past one (XLA, ``InstructionFusion``), and calls cuBLAS and cuDNN for the rest, without bias."""
_TENSORFLOW = replace(_TORCH, name="tensorflow", attention="eager", written_out=("bias",))
"""The same graph without it: each operator is a kernel, bias and transposition among them."""
_MEGATRON = Engine(
    name="megatron-te",
    step_factors=True,
    attention="cudnn",
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
)
"""Megatron Core on Transformer Engine, as NeMo runs it: ``TransformerConfig`` with ``bias_activation_fusion``,
``bias_dropout_fusion``, ``gradient_accumulation_fusion``, ``cross_entropy_loss_fusion``, ``apply_rope_fusion``; padding
by ``--make-vocab-size-divisible-by`` (128); sequence parallelism as in Korthikanti et al. 2022, section 4.2.2. On
Hopper it takes cuDNN's attention (``get_attention_backend``), which runs as fast as FlashAttention 3 (Shah et al. 2024,
figures 5 and 6). A logit is kept in 16 bits and, for the loss, once in 32 (``VocabParallelCrossEntropy`` works in
place: megatron/core/tensor_parallel/cross_entropy.py). Its users share optimizer states among replicas and run what
those exchange beside other work (NeMo's recipes; ``--use-distributed-optimizer``, ``--overlap-grad-reduce``,
``--overlap-param-gather``). What ``--tp-comm-overlap`` hides, products in pieces lose: steps of H100 that have it
come out as if they had not, by factors of A100's."""
_MEGATRON_LOCAL = replace(
    _MEGATRON,
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
)
"""Megatron-LM of 2022 (Korthikanti et al. 2022; Megatron-LM v3.0): scores in memory, its own fused softmax, Apex's
layer norm, ``vocab_parallel_cross_entropy``, dropout of 0.1 of attention and of the residual stream; replicas keep
copies and exchange gradients after all passes."""
_MEGATRON_FLEX = replace(_MEGATRON, name="megatron-flex", dispatcher="once")
"""The same with ``--moe-token-dispatcher-type flex``: DeepEP, or HybridEP within an NVLink domain."""
_FSDP = Engine(
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
_TORCHTITAN = replace(_FSDP, name="torchtitan", copies_gathered=True, joined_projections=False, hidden_tp=0.4)
"""torchtitan of 2024 with ``compile = false`` and ``norm_type = "fused_rmsnorm"``: separate ``wq``, ``wk``, ``wv``,
``w1``, ``w3``; scaled-dot-product attention by FlashAttention 2; ``F.cross_entropy`` of logits in float32; DTensor
keeps what it gathered, of sequences that lie one after the other; FSDP2, each of whose parameters is sharded by itself
(torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py, ``foreach_all_gather_copy_out``,
``foreach_reduce_scatter_copy_in``); ``torch.utils.checkpoint`` that stops early. Asynchronous tensor parallelism gains
some 8 % of a step of Llama 3 on 64 H100, of whose time exchanges are a fifth (H. Wang et al. 2024, Introducing Async
Tensor Parallelism in PyTorch)."""
_TORCHTITAN_COMPILED = replace(
    _TORCHTITAN,
    name="torchtitan-compiled",
    launch="compiled",
    activation="fused",
    residual="norm",
    rotary="fused",
    loss="fused",
)
"""The same with each block, and the loss, through ``torch.compile``."""
_MAXTEXT = Engine(
    name="maxtext",
    launch="graph",
    attention="flash",
    joined_projections=False,
    residual="norm",
    generated=True,
    loss="generated",
    shard="zero3",
    keeps_activated_gate=False,
    logit_bytes=6.0,
)
"""MaxText: a whole step is one program of XLA, which fuses pointwise work; weights, gradients and states are shared
among the chips of a slice (``ici_fsdp_parallelism``), attention is a Pallas kernel (``attention: flash``)."""
_NEURON = replace(_MAXTEXT, name="neuron", shard="zero1")
"""NeuronX Distributed: Megatron's tensor and pipeline parallelism in programs of Neuron's compiler, with ZeRO-1."""
_COMPOSER = replace(
    _FSDP,
    name="composer",
    attention_generation=1,
    stops_early=False,
    keeps_activated_gate=False,
    logit_bytes=2.0,
    held_logit_bytes=2.0,
)
"""llm-foundry's MPT in Composer, until the end of 2023: ``Wqkv`` in one, FlashAttention in Triton (``attn_impl:
triton``), reentrant or complete checkpoints; FlashAttention's cross entropy, whose gradient takes the place of the
logits in 16 bits (llm-foundry, ``loss_fn: fused_crossentropy``, its default)."""

_SERVING = Engine(
    name="vllm",
    library="vllm",
    launch="graph",
    attention="flash",
    residual="add_norm",
    quantises_in_products=True,
    dispatcher="allgather",
    attention_does="write",
    vocabulary_multiple=64,
    master_weights=False,
    sequence_parallel=False,
    server=Server(scheduler=VLLM, memory_share=0.9),
)
"""vLLM with its ``gpu_memory_utilization`` of 0.9 and its limits before 0.8 (later ones: ``Server.started_on``);
vocabularies are padded to ``DEFAULT_VOCAB_PADDING_SIZE``."""
_SGLANG = replace(_SERVING, name="sglang", library="sglang", server=Server(scheduler=SGLANG, memory_share=0.88))
"""SGLang with its ``mem_fraction_static`` of about 0.88 and ``chunked_prefill_size`` of 8192."""
_TENSORRT_LLM = replace(
    _SERVING,
    name="tensorrt-llm",
    library="trtllm",
    calibrated_scales=True,
    mxfp8_activations=True,
    fused_cache_write=True,
    attention_does="rotate",
    server=Server(scheduler=TRTLLM, memory_share=0.9, memory_of="free", max_num_seqs=2048, block_tokens=32),
)
"""TensorRT-LLM with its ``free_gpu_memory_fraction`` of 0.9, ``max_batch_size`` 2048, ``max_num_tokens`` 8192, and 32
tokens a block. It rotates and writes to the cache in one kernel (``applyBiasRopeUpdateKVCache``). Models come to it
through ModelOpt, which calibrates scales of tensors (``examples/quantization/quantize.py``); MXFP4 on Blackwell is
W4A8_MXFP4_MXFP8 (``tensorrt_llm/_torch/model_config.py``)."""
_TRANSFORMERS = replace(
    _SERVING,
    name="transformers",
    library="",
    launch="eager",
    attention="sdpa",
    joined_projections=False,
    residual="eager",
    attention_does="",
    quantises_in_products=False,
    grouped_queries=False,
    eager_passes=True,
    grown_cache=True,
    vocabulary_multiple=1,
    server=Server(scheduler=ALL_AT_ONCE, memory_share=1.0, memory_of="sequences", block_tokens=1, decode_graphs=False),
)
"""``generate`` of transformers in eager PyTorch: modules as ``modeling_llama.py`` writes them, ``repeat_kv`` before
attention, ``DynamicCache``, which joins each new key to those before it."""
_GPT_FAST = replace(
    _TRANSFORMERS,
    name="gpt-fast",
    launch="graph",
    joined_projections=True,
    residual="norm",
    grouped_queries=True,
    eager_passes=False,
    grown_cache=False,
    server=Server(scheduler=ALL_AT_ONCE, memory_share=1.0, memory_of="sequences", block_tokens=1),
)
"""gpt-fast and what torchao generates with: ``wqkv`` in one, a cache of the longest sequence that is written in place,
each token one CUDA graph of what ``torch.compile(mode="reduce-overhead")`` generates; prompts run eagerly unless
``--compile_prefill``."""
_TINYCHAT = replace(
    _TRANSFORMERS,
    name="tinychat",
    joined_projections=True,
    grouped_queries=True,
    eager_passes=False,
    grown_cache=False,
    attention_does="rotate",
)
"""TinyChat of AWQ (Lin et al. 2024, section 5): PyTorch with fused norms, ``QuantLlamaAttentionFused``, whose attention
rotates and writes to the cache (``awq_inference_engine``), launched kernel by kernel."""
_LLAMA_CPP = replace(
    _GPT_FAST,
    name="llama.cpp",
    joined_projections=False,
    residual="eager",
    server=Server(
        scheduler=ALL_AT_ONCE, memory_share=1.0, memory_of="sequences", block_tokens=1, max_num_batched_tokens=512,
        operator_s=NATIVE_OPERATOR_S, decode_graphs=False,
    ),
)  # fmt: skip
"""llama.cpp: ``ggml-cuda`` launches a kernel for each node of its graph, from C++; prompts in passes of ``n_ubatch``
tokens, 512 unless stated."""

ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        _TORCH, _TORCHSCRIPT, _TORCH_COMPILED, _TORCH_GRAPH, _TORCH_CUDAGRAPHS, _TORCH_STATIC,
        _TENSORFLOW_XLA, _TENSORFLOW,
        _MEGATRON, _MEGATRON_LOCAL, _MEGATRON_FLEX, _TORCHTITAN, _TORCHTITAN_COMPILED,
        _FSDP, _COMPOSER, _MAXTEXT, _NEURON, _SERVING, _SGLANG, _TENSORRT_LLM,
        _TRANSFORMERS, _GPT_FAST, _TINYCHAT, _LLAMA_CPP,
    )
}  # fmt: skip
"""By name."""
_ALIASES = {"trtllm": "tensorrt-llm", "trt-llm": "tensorrt-llm", "tensorrt_llm": "tensorrt-llm", "hf": "transformers"}


def _names(*, serves: bool) -> tuple[str, ...]:
    return tuple(name for name, engine in ENGINES.items() if (engine.server is not None) == serves)


def engine_named(name: str) -> Engine:
    """The engine of a name that trains or runs the steps of a model.

    Raises:
        ModelError: none has it.
    """
    return ENGINES[_known(name, _names(serves=False))]


def server_named(name: str, version: str = "", artifact: Path | None = None) -> Engine:
    """The engine of a name that serves requests, with the constants that ``neusight fit --engines`` found for it.

    Args:
        name: vllm, sglang, tensorrt-llm (trtllm).
        version: such as 0.15.1; the newest where it is empty.
        artifact: file of constants; default those that ship.

    Raises:
        ModelError: no such engine, or a version that is no number. ArtifactError: the file is not one.
    """
    word = name.strip().lower()
    engine = ENGINES[_known(_ALIASES.get(word, word), _names(serves=True))]
    return replace(engine, server=engine.serving.of_version(engine.name, version, artifact))


def library_named(name: str) -> str:
    """Whose kernels an engine runs, as ``Conditions.engine`` has it: ``torch``, those of PyTorch and its libraries, or
    its own.

    Raises:
        ModelError: no engine has this name.
    """
    libraries = {"torch": "torch"} | {engine.name: engine.library or "torch" for engine in ENGINES.values()}
    return libraries[_known(_ALIASES.get(name, name), tuple(libraries))]


def _known(name: str, known: tuple[str, ...]) -> str:
    if name not in known:
        raise ModelError(f"unknown engine '{shown(name)}'{nearest(name, known)}: one of {', '.join(known)}")
    return name
