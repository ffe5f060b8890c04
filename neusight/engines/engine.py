"""``Engine``: the software that runs a model. Each is a value; what differs between two of them is a field, no branch.

What is described is all that decides over kernels, host time and memory beside model, plan and device: PyTorch as it
runs a traced module, training frameworks and serving engines as they run a decoder.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from neusight.engines.limits import Site
from neusight.engines.server import Server
from neusight.errors import ModelError
from neusight.quick_dataclasses import dataclass

LAUNCHES = ("eager", "compiled", "graph", "cudagraphs", "static")
LAYOUTS = ("nchw", "nhwc")
ATTENTIONS = ("eager", "sdpa", "flash")
"""Forms of attention that a request may ask PyTorch for."""
AttentionForm = Literal["eager", "sdpa", "flash", "cudnn"]
EXPERT_LOAD = 1.1
"""Rows of the experts of the fullest rank over an even share, in the fullest of a run's first steps: routers without
capacity are not even (fitted: ``neusight fit memory``, to runs on a100 alone; runs on h100 ask for 1.16)."""

TRAINER_SPREAD = 0.044
"""``Engine.memory_spread`` of trainers without measured peaks: that between the two that have any, widened as Student's
t of two is against a normal distribution (fitted: ``neusight fit memory``)."""


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
        autograd_functions: layers and what exchanges their activations are functions of autograd written in Python,
            each of which costs the host more than its kernels.
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
        shared_tokens: of served passes up to which experts that all tokens share run with the routed ones, as some
            experts more or in another stream beside them.
        routes_in_experts: the kernels of served experts choose them as well.
        block_product_time: of a product whose operands carry a scale for each block, over that of the kernels that laws
            are of; ``block_experts_time`` the same of experts.
        reduced_norm_bytes: of what ranks that share matrices sum up, up to which one kernel adds it to the residual
            stream and normalises it as well.
        joined_latent_norms: norms of latent queries and keys run as one.
        absorbed_scaling: how 8-bit operands of products around absorbed attention are scaled, where attention's weights
            are 8-bit; "": those products are in the model's dtype.
        quantises_in_products: 8-bit products make their inputs 8-bit within their own time.
        grouped_queries: decodes read keys and values once for all query heads that share them, else once for each.
        calibrated_scales: one scale of a tensor's 8-bit activations was found before, so that what makes them writes
            them narrow.
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
        gathers_matrices: fully sharded weights are gathered one matrix before its product, and each gradient is
            reduced behind its own; else all of a layer at once.
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
        narrow_sums: gradients in float16, and those that replicas share, are summed up in the dtype of weights; others
            stay in that beside their float32 sums.
        narrow_shares: fully sharded weights lie in the dtype of passes beside float32 copies of the optimizer's, with
            which they and their gradients go to the host; else in float32 alone.
        grouped_parameters: of so many at most the optimizer widens gradients at once; 0: of all that it steps.
        live_parameters: of fully sharded weights so many may be gathered before any is released; 0: two layers'.
        bucket_parameters: of the buffer that gradients are reduced in, and of another where whole weights are gathered
            after the step; 0: both are done where they lie.
        accumulation: gradients of weights are added to float32 sums by the ``product`` itself, or ``widened`` by a
            kernel before that of the addition, or by ``none``, since what reduces them does.

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
        connects_at_once: communicators have buffers for rings and trees from their first collective on, as those of
            NCCL before 2.22; else for what is used (NCCL's release notes, lazy connection), which is small enough to
            count as part of the context.
        memory_spread: standard deviation of what a process of it needs beyond what is known of its tensors, as a share
            of them (``neusight fit memory``).
        score_buffer: scores of attention that writes them out lie in a buffer that stays.

    Programs of fixed shapes:
        ranks: what a rank of a plan is: a ``device``, or one of the ``core`` s that a chip shows as devices.
        buckets: a program is compiled for each of a few lengths, powers of two: attention reads the cache, and prompts
            are padded, up to the next one.
        padded_heads: heads that ranks cannot share evenly are padded to more of them.
        vendors: those of whose devices it runs on, any unless given: what is written for one vendor's libraries.

    Serving:
        server: scheduler, limits and own time of an engine that serves requests; None of one that trains or runs steps.
    """

    name: str = "torch-eager"

    launch: str = "eager"
    copies_inputs: bool = False
    host_s_per_operator: float = 9.8e-6
    """Geometric mean of twelve timed days of hosts, 5 to 23 µs (``evaluate_programs``, ``hosts``: all that
    launch eagerly)."""
    host_s_per_call: float = 0.0
    autograd_functions: bool = False
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
    shared_tokens: int = 0
    routes_in_experts: bool = False
    reduced_norm_bytes: float = 0.0
    block_product_time: float = 1.0
    block_experts_time: float = 1.0
    joined_latent_norms: bool = False
    absorbed_scaling: str = ""
    quantises_in_products: bool = False
    grouped_queries: bool = True
    calibrated_scales: bool = False
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
    gathers_matrices: bool = False
    copies_gathered: bool = False
    stops_early: bool = False

    master_weights: bool = True
    foreach_optimizer: bool = False
    wide_weights: bool = False
    narrow_sums: bool = False
    narrow_shares: bool = False
    grouped_parameters: int = 0
    live_parameters: int = 0
    bucket_parameters: int = 0
    accumulation: Literal["product", "widened", "none"] = "none"

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
    connects_at_once: bool = False
    memory_spread: float = TRAINER_SPREAD

    ranks: Literal["device", "core"] = "device"
    buckets: bool = False
    padded_heads: bool = False
    vendors: tuple[str, ...] = ()

    server: Server | None = None

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
            raise ModelError(
                f"{self.name} serves no requests: name one that does, such as vllm, sglang or tensorrt-llm"
            )
        return self.server

    def started_on(self, site: Site, **flags: Any) -> Engine:
        """One that serves, as it runs at a site; see ``Server.started_on``.

        Raises:
            ModelError: it serves no requests, or runs on no device of the vendor.
        """
        if self.vendors and site.device.vendor not in self.vendors:
            vendors = " or ".join(self.vendors)
            raise ModelError(
                f"{self.name} runs on devices of {vendors} alone, not on {site.device.id}: name another engine"
            )
        server = self.serving.started_on(site, **flags)
        return replace(self, server=server, grouped_queries=server.rocm_native or site.device.vendor != "amd")

    @property
    def traces_modules(self) -> bool:
        """Whether it runs any module of PyTorch, operator by operator, so that a step is known by its trace."""
        return self.kernel_timing == "stream"

    @property
    def writes_scores(self) -> bool:
        """Whether attention writes scores and probabilities to memory."""
        return self.attention == "eager"

    def attention_on(self, reads_shared_memory: bool) -> str:
        """Library of fused attention on a GPU, by whether its matrix units read shared memory by themselves."""
        return (reads_shared_memory and self.newer_attention_variant) or self.attention_variant
