"""``Setup``: what is deployed, in the words that people use, and the replica that they describe."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from neusight.devices.cluster import USUAL_PER_NODE, Cluster, cluster_of, usual_per_node
from neusight.devices.slices import core_of
from neusight.devices.spec import DeviceSpec
from neusight.engines import Engine, server_named
from neusight.engines.libraries import engine_run, scheme_run
from neusight.engines.limits import Site
from neusight.errors import DeviceError, LoadError, ModelError, shown
from neusight.kernels.moe import check_distribution
from neusight.requests import Plan
from neusight.serving.passes import Pricer, ReplicaPricer
from neusight.serving.simulate import ROUND_ROBIN
from neusight.serving.speculation import LOOKUP, OWN_LAYER, TREE_LAYER, TREE_PASS, TREE_ROUND, Speculation, words_by_key
from neusight.workloads.decoders.decoder import Decoder
from neusight.workloads.decoders.known import known_decoder
from neusight.workloads.decoders.quantisation import ServingPrecision
from neusight.workloads.decoders.shares import AdapterSlots
from neusight.workloads.decoders.vision import Images

_EXAMPLE = "gpu=h100,tp=4"
_MOST = 4096
"""Of devices of a kind of parallelism, or of replicas, that compute prompts."""
PREFILL_KEYS = ("gpu", "tp", "pp", "ep", "dp", "replicas")
"""Of the devices that compute prompts."""


@dataclass(frozen=True, kw_only=True)
class ReplicaSetup:
    """What decides how long the passes of a replica take.

    ``per_node`` devices share a node, None for as many as is usual of them; ``network`` joins nodes, as ``cluster_of``
    takes it.

    ``speculate`` as ``Speculation.named`` has it, ``lora_adapters`` as ``AdapterSlots.parse``, and
    ``images`` of each prompt, whose tokens are among the prompt's, as ``Images.parse``, "" for none.

    ``dtype`` is a scheme of ``schemes.toml`` or an alias (fp8, awq, bf16, …), "" as the model's configuration
    has it; ``kv_dtype`` that of the cache, "" the model's own. ``moe_routing`` says how tokens fall on experts, as
    ``Moe.distribution``, "" as is usual; ``redundant_experts`` copies of those with most tokens are held by all ranks.

    ``engine_version`` picks constants of older engines; without ``graphs`` it launches kernel by kernel
    (``--enforce-eager``). ``overlap`` says whether scheduling overlaps with passes, None as the version does by
    default; ``aiter`` whether AMD's kernels for engines run, None as engines start, without.
    """

    engine: str = "vllm"
    engine_version: str = ""
    dtype: str = ""
    kv_dtype: str = ""
    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1
    per_node: int | None = None
    network: str = ""
    speculate: str = ""
    lora_adapters: str = ""
    images: str = ""
    moe_routing: str = ""
    redundant_experts: int = 0
    graphs: bool = True
    overlap: bool | None = None
    aiter: bool | None = None

    def __post_init__(self) -> None:
        """Raises:
        LoadError: routing of experts or a speculation that makes no sense, or copies of experts that no ranks share.
        """
        if self.moe_routing:
            check_distribution(self.moe_routing)
        if self.redundant_experts and self.ep == 1:
            raise LoadError(f"redundant_experts = {self.redundant_experts}: no ranks share experts: set ep")
        if self.speculation and self.pp > 1:
            raise LoadError(f"speculation with pp = {self.pp}: engines draft on one stage, leave one of them out")

    @property
    def speculation(self) -> Speculation | None:
        """What ``speculate`` says."""
        return Speculation.named(self.speculate) if self.speculate else None

    @property
    def plan(self) -> Plan:
        """How the devices of a replica share the model: experts are held once by all of its attention groups."""
        slices = max(1, self.tp * self.dp // self.ep)
        return Plan(tp=self.tp, pp=self.pp, ep=self.ep, etp=slices, dp=self.dp, global_batch_size=self.dp)

    def replica(self, decoder: Decoder, device: DeviceSpec, pricer: Pricer) -> ReplicaPricer:
        """What each replica serves, ready to be priced.

        Raises:
            ModelError: an unknown engine or precision, more stages than layers. DeviceError: the device lacks a dtype.
        """
        if self.pp > decoder.depth:
            raise ModelError(
                f"pp = {self.pp} is more than the {decoder.depth} layers of {decoder.name}: give each stage one or more"
            )
        slots = AdapterSlots.parse(self.lora_adapters) if self.lora_adapters else decoder.slots
        decoder = replace(decoder, slots=slots).with_routing(self.moe_routing, self.redundant_experts)
        engine = server_named(self.engine, self.engine_version)
        decoder = decoder.shared_among(self.tp) if engine.padded_heads else decoder
        rank_on = core_of(device) if engine.ranks == "core" else device
        precision = self._precision(decoder, engine, device)
        _check_arithmetic(device, precision)
        return _with_draft(
            ReplicaPricer(
                decoder=decoder,
                device=rank_on,
                plan=self.plan,
                precision=precision,
                engine=self.engine_on(device),
                pricer=pricer,
                cluster=self._cluster(device, rank_on),
                speculation=self.speculation,
                images=Images.parse(self.images) if self.images else None,
            )
        )

    def engine_on(self, device: DeviceSpec) -> Engine:
        """The engine as its version starts on a device.

        Raises:
            ModelError: an unknown engine.
        """
        site = Site(
            device=device, ranks=self.tp * self.dp, stages=self.pp, groups=self.dp, speculates=bool(self.speculate)
        )  # fmt: skip
        engine = server_named(self.engine, self.engine_version)
        engine = engine.started_on(site, graphs=self.graphs, overlap=self.overlap, aiter=self.aiter)
        return engine_run(engine, device, aiter=self.aiter)

    def _precision(self, decoder: Decoder, engine: Engine, device: DeviceSpec) -> ServingPrecision:
        """As the engine runs it on the device, in a dtype of activations that the device has, unless one is named."""
        own, wide = decoder.quantisation, served_dtype(decoder.served_dtype, device)
        precision = ServingPrecision.named(self.dtype, own=own, dtype=wide, kv=self.kv_dtype)
        return replace(precision, quantisation=scheme_run(precision.quantisation, engine, device))

    def _cluster(self, device: DeviceSpec, rank_on: DeviceSpec) -> Cluster | None:
        """Where the ranks of a replica are, each a device or a core of one, if that is not one node.

        Raises:
            DeviceError: words that are no network.
        """
        cores = device.core_count // rank_on.core_count
        world, least = self.plan.world, self.per_node or cores * USUAL_PER_NODE
        per_node = least if self.per_node or world <= least else cores * usual_per_node(device)
        if world <= per_node:
            return None
        return cluster_of(rank_on, per_node, -(-world // per_node), self.network)


def served_dtype(dtype: str, device: DeviceSpec) -> str:
    """Dtype of activations on a device where none is named: the model's own, or the first of float16 and float32 that
    the device multiplies (vLLM, ``_resolve_auto_dtype``, ``supported_dtypes``).
    """
    return next((each for each in (dtype, "float16", "float32") if device.multiplies(each)), dtype)


def _check_arithmetic(device: DeviceSpec, precision: ServingPrecision) -> None:
    scheme, dtype = precision.quantisation, precision.quantisation.activations or precision.dtype
    try:
        device.gemm_flops_per_s(dtype)
    except DeviceError as error:
        precision_name = scheme.method or precision.dtype
        wanted = "" if precision_name == dtype else f"; {precision_name} computes in {dtype}"
        raise DeviceError(f"{error}{wanted}: choose another dtype or GPU") from None


def _with_draft(target: ReplicaPricer) -> ReplicaPricer:
    """The same with the model that drafts for it, on the same devices, if one does, and with what the host of an engine
    in PyTorch does for a tree, in the model's passes and the draft's.
    """
    if not target.speculation:
        return target
    draft = _draft(target, target.speculation.draft)
    if not (target.speculation.is_tree and target.engine.eager_passes):
        return replace(target, draft=draft)
    if draft:
        draft = replace(draft, further_dispatches=TREE_LAYER * draft.decoder.depth + TREE_PASS)
    return replace(target, draft=draft, further_dispatches=TREE_LAYER * target.decoder.depth + TREE_ROUND)


def _draft(target: ReplicaPricer, name: str) -> ReplicaPricer | None:
    if name == LOOKUP:
        return None
    if name in OWN_LAYER:
        return replace(target, decoder=target.decoder.with_last_layer_alone(), speculation=None)
    decoder = known_decoder(name)
    scheme = scheme_run(decoder.quantisation, target.engine, target.device)
    dtype = served_dtype(decoder.served_dtype, target.device)
    precision = ServingPrecision(dtype=dtype, kv_cache=target.precision.kv_cache, quantisation=scheme)
    return replace(target, decoder=decoder, precision=precision, speculation=None)


@dataclass(frozen=True, kw_only=True)
class Setup(ReplicaSetup):
    """What is deployed: replicas, how they are started, and how they share a load; ``router`` and ``admitted`` as
    ``Routing`` has them.

    Limits are None where they are the engine's default. ``max_model_len`` is the longest sequence,
    ``gpu_memory_utilization`` the ``memory_share`` of ``Server``, ``prefix_cached_tokens`` those that all prompts begin
    with and the cache holds, ``prefix_hit`` the share of each prompt that is found there; the scheduler looks at new
    requests after ``scheduler_recv_interval`` passes that only generate, prompts wait for more of them, or until each
    attention group has one, for ``batch_wait_timeout_iters`` passes at most; ``host_cache`` bytes of the
    host's memory, of all devices of a replica together, keep what sessions leave.

    ``prefill`` names devices of their own for prompts, ``gpu=h100,tp=4,replicas=2``, each key by default as here; their
    cache travels over ``kv_link``: a network as ``cluster_of`` takes it, "" for one that nobody tells, ``nvlink``
    inside a node, ``none`` in no time. ``kv_overlap``: while later layers are computed.

    ``versions`` of the engine that people run, with their shares, where the version is open; see ``OpenVersion``.
    """

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    chunked_prefill: bool = True
    scheduler_recv_interval: int = 1
    batch_wait_timeout_iters: int = 0
    prefix_cached_tokens: int = 0
    prefix_hit: float = 0.0
    host_cache: float = 0.0
    gpu_memory_utilization: float | None = None
    max_model_len: int | None = None
    replicas: int = 1
    router: str = ROUND_ROBIN
    admitted: int | None = None
    prefill: str = ""
    kv_link: str = ""
    kv_overlap: bool = False
    versions: tuple[tuple[str, float], ...] = ()

    @property
    def priced(self) -> tuple[Any, ...]:
        """What deployments whose passes take the same times have in common."""
        return tuple(getattr(self, one.name) for one in fields(ReplicaSetup))

    def of_prompts(self) -> tuple[str, Setup]:
        """GPU, "" for the same, and setup of the devices that compute prompts.

        Raises:
            LoadError: an unknown key, one given twice, or a number that is none.
        """
        given = words_by_key(self.prefill, "prefill", PREFILL_KEYS, _EXAMPLE)
        for key, value in given.items():
            if key != "gpu" and not (value.isdecimal() and len(value) <= len(str(_MOST)) and 1 <= int(value) <= _MOST):
                raise LoadError(f"prefill: {key} = '{shown(value)}' is no number from 1 to {_MOST:,}: write {_EXAMPLE}")
        degrees: dict[str, Any] = {key: int(value) for key, value in given.items() if key != "gpu"}
        overlaps = server_named(self.engine, self.engine_version).serving.prompts_overlapped
        overlap = self.overlap if overlaps else False
        return given.get("gpu", ""), replace(self, prefill="", speculate="", overlap=overlap, **degrees)
