"""Persistent memory of a rank: weights, gradients and the optimizer's states, whole or shared among replicas
(Rajbhandari et al. 2020), and buffers of libraries in PyTorch's allocator from the first step on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from neusight.devices.spec import DeviceSpec
from neusight.engines import ENGINES, Engine
from neusight.kernels.optimizers import optimizer_named
from neusight.kernels.precision import stored_bytes
from neusight.plans.stages import RankParameters, local_of
from neusight.requests import Plan
from neusight.workloads.decoders.optimizer import in_passes
from neusight.workloads.decoders.recipes import Adapters, recipe_named
from neusight.workloads.decoders.shares import Local

MASTER_BYTES = 4.0
"""Size of the float32 copy of a 16-bit parameter that the optimizer works on (Micikevicius et al. 2018)."""
PER_NODE = 8
"""Ranks that ``hsdp`` shares among by default: those of a node of eight."""
MIB = 2**20
CUBLAS_BYTES = 4096 * 2 * 2**10 + 16 * 8 * 2**10
"""Workspace of a cuBLAS handle: 2 x 4 MiB and 16 x 8 KiB (PyTorch, aten/src/ATen/cuda/CublasHandlePool.cpp)."""
LARGE_CUBLAS_BYTES = 32 * MIB
"""Workspace of a handle from compute capability 9 on (ibid.), and with ``CUBLAS_WORKSPACE_CONFIG=:4096:8``, one of the
two settings with which results repeat (cuBLAS documentation, 2.1.4)."""
ENGINE_BYTES = 4 * MIB
LARGE_ENGINE_BYTES = 32 * MIB
"""Workspace of Transformer Engine's products, before and from compute capability 9 on
(transformer_engine/pytorch/module/base.py, ``get_cublas_workspace_size_bytes``)."""
CONNECTION_BYTES = 4 * MIB + 120 * 640 * 8 * 8 + 8 * 512 * 8 * 16
"""Buffers for receiving from another rank on a channel, one for each protocol: Simple, LL128, LL (NCCL, src/init.cc,
``DEFAULT_BUFFSIZE``, ``DEFAULT_LL128_BUFFSIZE``, ``DEFAULT_LL_BUFFSIZE``; transport/p2p.cc, ``p2pRecvSetup``)."""
RING_AND_TREE = 3
"""Ranks from which a rank receives: its neighbour in a ring, and in a tree the parent and one child."""
EXPERT_STREAMS = 4
"""Streams on which Transformer Engine runs experts concurrently, each with a separate workspace (ibid.,
``get_multi_stream_cublas_workspace``)."""


@dataclass(frozen=True, kw_only=True)
class TrainingStep:
    """A training step without its plan: sequences of ``seq_len`` tokens, precision, optimizer and engine.

    ``source_len`` is the number of tokens that an encoder reads for each sequence. ``dtype`` is that of activations and
    weights, ``products`` the recipe of large products where those run in fewer bits (``decoders.recipes``),
    ``adapters`` the trained adapters. ``chunk_layers``: layers of each chunk of the pipeline where they differ,
    ``chunk_group``: micro-batches of a chunk before the next where that is not ``pp``. ``moment_dtype`` is that of the
    optimizer's moments, "" for that of the weights that it steps. ``graphed``: modules of layers that run as CUDA
    graphs, of ``attn`` and ``mlp``.
    """

    seq_len: int
    source_len: int = 0
    graphed: tuple[str, ...] = ()
    dtype: str = "bfloat16"
    products: str = ""
    optimizer: str = "adam"
    moment_dtype: str = ""
    engine: Engine = ENGINES["megatron-te"]
    chunk_layers: tuple[int, ...] = ()
    chunk_group: int = 0
    adapters: Adapters = field(default_factory=Adapters)

    def share_of(self, plan: Plan) -> Local:
        """One rank's share of a micro-batch."""
        return local_of(
            plan, self.seq_len, self.dtype, self.products, source_len=self.source_len, adapters=self.adapters
        )


@dataclass(frozen=True, kw_only=True)
class States:
    """Bytes of a rank that stay from step to step. ``cast``: temporary tensors of the optimizer's step, such as float32
    copies of 16-bit gradients.
    """

    weights: float
    gradients: float
    optimizer: float
    cast: float


def shared_parameters(parameters: RankParameters, plan: Plan) -> float:
    """Parameters whose states one rank keeps of those that replicas and context-parallel ranks share, or
    ``shard_group`` of them.
    """
    replicas = plan.dp * plan.cp * plan.directions
    group = plan.shard_group or (min(PER_NODE, replicas) if plan.shard == "hsdp" else replicas)
    copies = max(1, replicas // group)
    return parameters.dense / group + parameters.expert / max(1, plan.expert_dp * plan.directions // copies)


def states_of(parameters: RankParameters, plan: Plan, training: TrainingStep) -> States:
    """Persistent bytes of a rank with some parameters.

    ``none`` to ``zero2`` keep weights as they are used and, in 16 bits, a float32 copy with the optimizer's states;
    ``zero3`` and ``hsdp`` keep only a share of float32 weights, or in 16 bits and a copy
    (``narrow_shares``). Weights of narrow products are kept in the dtypes of their recipe, in addition to the
    optimizer's copy.
    Without the engine's ``master_weights`` there is no copy, and states have the dtype of weights.

    Args:
        parameters: parameters on the rank.
        plan: states that replicas share, the dtype of gradients, and states that are stored on the host.
        training: precision and optimizer, and whether its engine works on float32 copies, and over all parameters
            operation by operation, with a list of results between two of them.

    Raises:
        ModelError: an unknown optimizer.
    """
    engine, dtype, master_weights = training.engine, training.dtype, training.engine.master_weights
    optimizer = optimizer_named(training.optimizer)
    used, wide = _weight_bytes(training)
    share = shared_parameters(parameters, plan)
    gradient = stored_bytes(plan.gradient_dtype)
    whole = plan.shard in ("none", "zero1")
    gradients = gradient * (parameters.total if whole else share)
    stepped = parameters.total if plan.shard == "none" else share
    copied = master_weights and dtype != "float32"
    state = MASTER_BYTES if master_weights else stored_bytes(dtype)
    if engine.narrow_sums and whole and gradient > stored_bytes(dtype):
        gradients += stored_bytes(dtype) * parameters.total
    at_once = min(stepped, engine.grouped_parameters or stepped)
    cast = MASTER_BYTES * at_once if gradient < MASTER_BYTES and copied else 0.0
    if in_passes(optimizer, foreach=engine.foreach_optimizer):
        cast = state * stepped
    matrices = parameters.matrices
    stepped_matrices = matrices.total if plan.shard == "none" else shared_parameters(matrices, plan)
    moment_bytes = optimizer.moment_bytes or (stored_bytes(training.moment_dtype) if training.moment_dtype else state)
    moments = moment_bytes * optimizer.states(stepped, stepped_matrices)
    master = MASTER_BYTES * stepped if copied else 0.0
    frozen = _frozen_bytes(parameters, training)
    weights = used * matrices.total + wide * (parameters.total - matrices.total)
    if plan.shard in ("zero3", "hsdp"):
        frozen = frozen * shared_parameters(RankParameters(dense=1.0), plan)
        narrow = engine.narrow_shares and copied
        weights, master, cast = (wide * share, master, cast) if narrow else (state * share, 0.0, 0.0)
    on_device = float(plan.offload == "none")
    if engine.narrow_shares and not whole:
        gradients, cast = on_device * gradients, on_device * cast
    weights = 0.0 if plan.offload == "parameters" else weights
    return States(weights=weights + frozen, gradients=gradients, optimizer=on_device * (master + moments), cast=cast)


def _weight_bytes(training: TrainingStep) -> tuple[float, float]:
    """Bytes of a weight in a matrix of layers, in the dtypes of its recipe and also in the step's dtype where the
    engine keeps both (Megatron-LM without ``--fp8-param-gather``); and of any other weight.
    """
    wide, kept_dtypes = stored_bytes(training.dtype), recipe_named(training.products).held or (training.dtype,)
    wide_copy = wide if training.engine.wide_weights and training.dtype not in kept_dtypes else 0.0
    return wide_copy + sum(map(stored_bytes, kept_dtypes)), wide


def _frozen_bytes(parameters: RankParameters, training: TrainingStep) -> float:
    """Bytes of weights that are not trained, which have neither gradients nor states nor a copy."""
    projections, others = parameters.frozen_projections, parameters.frozen - parameters.frozen_projections
    used, wide = _weight_bytes(training)
    sizes = (
        training.adapters.frozen_bytes(used, projection=True),
        training.adapters.frozen_bytes(wide, projection=False),
    )
    return projections * sizes[0] + others * sizes[1]


def workspace_bytes(device: DeviceSpec, engine: Engine, *, experts: bool = False, backward: bool = True) -> float:
    """Workspaces of a rank [B]: a cuBLAS handle for each thread, the forward pass's and, with a ``backward`` pass,
    autograd's; and Transformer Engine's.
    """
    large = device.facts.large_blas_workspace
    handle = LARGE_CUBLAS_BYTES if large or engine.deterministic else CUBLAS_BYTES
    engine_handle = LARGE_ENGINE_BYTES if large else ENGINE_BYTES
    streams = 1 + EXPERT_STREAMS * (experts and engine.grouped_experts)
    handles = engine.handles if backward else 1
    return float(handles * handle + (streams * engine_handle if engine.transformer_engine else 0))


def communicator_bytes(device: DeviceSpec, plan: Plan, engine: Engine) -> float:
    """Buffers of the communicators of a rank in device memory, outside of PyTorch's allocator: one of each group of a
    plan, of the ranks of a model, and of all.
    """
    if not engine.connects_at_once or device.vendor != "nvidia":
        return 0.0
    groups = {"tp": plan.tp, "dp": plan.dp * plan.cp, "pp": plan.pp, "cp": plan.cp, "ep": plan.ep}
    sizes = [*groups.values(), plan.tp * plan.pp if min(plan.tp, plan.pp) > 1 else 1]
    sizes += [plan.world] if plan.world > max(sizes) else []
    connections = RING_AND_TREE * device.facts.channels
    return float(sum(size > 1 for size in sizes) * connections * CONNECTION_BYTES)
