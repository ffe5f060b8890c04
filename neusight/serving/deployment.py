"""``Deployment``: a model on devices with an engine and its limits, ready to be loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from neusight.defaults import STATED, Default, default_dtype
from neusight.devices.cluster import USUAL_PER_NODE, Cluster, cluster_of, usual_per_node
from neusight.devices.prices import with_prices
from neusight.devices.slices import core_of
from neusight.devices.spec import DeviceSpec
from neusight.engines import server_named
from neusight.engines.limits import Place
from neusight.engines.server import Server
from neusight.errors import DeviceError, LoadError, ModelError, nearest, shown
from neusight.kernels.moe import check_distribution
from neusight.laws.fitted import shipped_links
from neusight.laws.routes import host_link
from neusight.requests import Plan
from neusight.serving.batching import PassTimes
from neusight.serving.disaggregated import CacheTransfer, Pool
from neusight.serving.limits import EngineLimits
from neusight.serving.load import Closed, Load, Open, Static, Trace
from neusight.serving.memory import ServingMemory, serving_memory
from neusight.serving.passes import PassCosts, PipelinedTimes, Pricer, ReplicaPricer, in_flight
from neusight.serving.simulate import ROUND_ROBIN, Routing
from neusight.serving.speculation import LOOKUP, OWN_LAYER, TREE_LAYER, TREE_PASS, TREE_ROUND, Speculation
from neusight.units import gib
from neusight.workloads.decoders.decoder import Decoder
from neusight.workloads.decoders.known import known_decoder
from neusight.workloads.decoders.quantisation import ServingPrecision
from neusight.workloads.decoders.shares import AdapterSlots, Steps
from neusight.workloads.decoders.vision import Images

PREFILL_KEYS = ("gpu", "tp", "pp", "ep", "dp", "replicas")
"""Of the devices that compute prompts."""
_SHORTEST = 4095
"""Tokens up to which everything is priced whatever the load."""


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """What an engine is started with, where that is not its default (None).

    ``max_model_len`` is the longest sequence, ``gpu_memory_utilization`` the ``memory_share`` of ``Server``,
    ``prefix_cached_tokens`` those that all prompts begin with and the cache holds, ``prefix_hit`` the share of each
    prompt that is found there; ``host_cache`` bytes of the host's memory, of all devices of a replica together, keep
    what sessions leave.
    """

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    chunked_prefill: bool = True
    prefix_cached_tokens: int = 0
    prefix_hit: float = 0.0
    host_cache: float = 0.0
    gpu_memory_utilization: float | None = None
    max_model_len: int | None = None


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What is deployed, in the words that people use. ``router`` and ``admitted`` are as in ``Routing``.

    ``prefill`` names devices of their own for prompts, ``gpu=h100,tp=4,replicas=2``, each key by default as here; their
    cache travels over ``kv_link``: a network as ``cluster_of`` takes it, "" for one that nobody tells, ``nvlink``
    inside a node, ``none`` in no time. ``kv_overlap``: while later layers are computed.

    ``per_node`` devices share a node, None for as many as is usual of them; ``network`` joins nodes, as ``cluster_of``
    takes it.

    ``speculate`` as ``Speculation.named`` has it, ``lora_adapters`` as ``AdapterSlots.named``, and
    ``images`` of each prompt, whose tokens are among the prompt's, as ``Images.named``, "" for none.

    ``dtype`` is a scheme of ``quantisation.SCHEMES`` or an alias (fp8, awq, bf16, …), "" as the model's configuration
    has it; ``kv_dtype`` that of the cache, "" the model's own. ``moe_routing`` says how tokens fall on experts, as
    ``Moe.distribution``, "" as is usual; ``redundant_experts`` copies of those with most tokens are held by all ranks.

    ``engine_version`` picks constants of older engines; without ``graphs`` it launches kernel by kernel
    (``--enforce-eager``).
    """

    engine: str = "vllm"
    engine_version: str = ""
    dtype: str = ""
    kv_dtype: str = ""
    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1
    replicas: int = 1
    router: str = ROUND_ROBIN
    admitted: int | None = None
    per_node: int | None = None
    network: str = ""
    prefill: str = ""
    kv_link: str = ""
    kv_overlap: bool = False
    speculate: str = ""
    lora_adapters: str = ""
    images: str = ""
    moe_routing: str = ""
    redundant_experts: int = 0
    graphs: bool = True

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

    def of(
        self,
        decoder: Decoder,
        device: DeviceSpec,
        pricer: Pricer,
        *,
        longest: int,
        options: EngineOptions | None = None,
    ) -> Deployment:
        """The deployment of a model for sequences of up to ``longest`` tokens; see ``replica``."""
        return self.deployed(self.replica(decoder, device, pricer), longest, options)

    def deployed(self, replica: ReplicaPricer, longest: int, options: EngineOptions | None = None) -> Deployment:
        """As many replicas as there are to be, behind their router."""
        routed = {name: getattr(self, name) for name in ("replicas", "router", "admitted", "kv_link", "kv_overlap")}
        return Deployment(
            replica=replica,
            options=options or EngineOptions(),
            longest=longest,
            assumed=self._assumed(replica),
            **routed,
        )

    def _assumed(self, replica: ReplicaPricer) -> dict[str, str]:
        """Precisions and the network, where none is given."""
        quantised, default = replica.decoder.quantisation.method, default_dtype(replica.decoder.dtype, replica.engine)
        assumed = {
            "dtype": str(Default(quantised, STATED) if quantised else default),
            "kv_dtype": str(Default(replica.precision.kv_cache, "that of activations")),
        }
        if replica.cluster:
            assumed["per_node"] = str(Default(replica.cluster.per_node, f"usual of {replica.device.id}"))
            assumed["network"] = str(Default("that of measured clusters", "as none is named"))
        return {name: text for name, text in assumed.items() if not getattr(self, name)}

    def of_prompts(self) -> tuple[str, Setup]:
        """GPU, "" for the same, and setup of the devices that compute prompts.

        Raises:
            LoadError: an unknown key, or a number that is none.
        """
        pairs = [part.partition("=")[::2] for part in self.prefill.split(",") if part.strip()]
        given = {key.strip(): value.strip() for key, value in pairs}
        for key, value in given.items():
            if key not in PREFILL_KEYS:
                known = ", ".join(PREFILL_KEYS)
                raise LoadError(f"unknown key '{shown(key)}' of prefill{nearest(key, PREFILL_KEYS)}: {known}")
            if key != "gpu" and not value.isdigit():
                raise LoadError(f"prefill: {key} = '{shown(value)}' is no number: write it like gpu=h100,tp=4")
        degrees: dict[str, Any] = {key: int(value) for key, value in given.items() if key != "gpu"}
        return given.get("gpu", ""), replace(self, prefill="", speculate="", **degrees)

    def replica(self, decoder: Decoder, device: DeviceSpec, pricer: Pricer) -> ReplicaPricer:
        """What each replica serves, ready to be priced.

        Raises:
            ModelError: an unknown engine or precision, more stages than layers. DeviceError: the device lacks a dtype.
        """
        if self.pp > decoder.depth:
            raise ModelError(
                f"pp = {self.pp} is more than the {decoder.depth} layers of {decoder.name}: give each stage one or more"
            )
        slots = AdapterSlots.named(self.lora_adapters) if self.lora_adapters else decoder.slots
        decoder = replace(decoder, slots=slots).served(self.moe_routing, self.redundant_experts)
        engine = server_named(self.engine, self.engine_version)
        decoder = decoder.shared_among(self.tp) if engine.padded_heads else decoder
        rank_on = core_of(device) if engine.ranks == "core" else device
        own = decoder.quantisation
        precision = ServingPrecision.named(self.dtype, own=own, dtype=decoder.served_dtype, kv=self.kv_dtype)
        precision = replace(precision, quantisation=precision.quantisation.on(device, mxfp8=engine.mxfp8_activations))
        _check_arithmetic(device, precision)
        place = Place(device=device, ranks=self.tp * self.dp, stages=self.pp, groups=self.dp)
        replica = ReplicaPricer(
            decoder=decoder,
            device=rank_on,
            plan=self.plan,
            precision=precision,
            engine=engine.started_on(place, graphs=self.graphs),
            pricer=pricer,
            cluster=self._cluster(device, rank_on),
            speculation=self.speculation,
            images=Images.named(self.images) if self.images else None,
        )
        return self._with_tree(replace(replica, draft=self._draft(replica)))

    def _with_tree(self, target: ReplicaPricer) -> ReplicaPricer:
        """With what the host of an engine in PyTorch does for a tree, in the model's passes and the draft's."""
        if not (target.speculation and target.speculation.is_tree and target.engine.eager_passes):
            return target
        draft = target.draft
        if draft:
            draft = replace(draft, further_dispatches=TREE_LAYER * draft.decoder.depth + TREE_PASS)
        return replace(target, draft=draft, further_dispatches=TREE_LAYER * target.decoder.depth + TREE_ROUND)

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

    def _draft(self, target: ReplicaPricer) -> ReplicaPricer | None:
        """The model that drafts for another, on the same devices; None where none does."""
        if not target.speculation or target.speculation.draft == LOOKUP:
            return None
        if target.speculation.draft in OWN_LAYER:
            return replace(target, decoder=target.decoder.with_last_layer_alone(), speculation=None)
        decoder = known_decoder(target.speculation.draft)
        scheme = decoder.quantisation.on(target.device, mxfp8=target.engine.mxfp8_activations)
        precision = ServingPrecision(
            dtype=decoder.served_dtype, kv_cache=target.precision.kv_cache, quantisation=scheme
        )
        return replace(target, decoder=decoder, precision=precision, speculation=None)


def _check_arithmetic(device: DeviceSpec, precision: ServingPrecision) -> None:
    scheme, dtype = precision.quantisation, precision.quantisation.activations or precision.dtype
    try:
        device.gemm_flops_per_s(dtype)
    except DeviceError as error:
        precision_name = scheme.method or precision.dtype
        wanted = "" if precision_name == dtype else f"; {precision_name} computes in {dtype}"
        raise DeviceError(f"{error}{wanted}: choose another dtype or GPU") from None


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """``replicas`` of a served model; requests are shared among them, and among the attention groups of each, evenly.

    ``longest`` tokens are those of the longest sequence that is to be served. ``priced_to`` are the new tokens, the
    sequences and the longest sequence that passes are priced to at least, see ``share_prices``.
    """

    replica: ReplicaPricer
    options: EngineOptions
    longest: int
    replicas: int = 1
    router: str = ROUND_ROBIN
    admitted: int | None = None
    prefill: Deployment | None = None
    kv_link: str = ""
    kv_overlap: bool = False
    priced_to: tuple[int, int, int] = (1, 1, 1)
    assumed: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.options, EngineOptions):
            raise LoadError(
                f"options {shown(self.options)}: give EngineOptions, such as EngineOptions(max_num_seqs=64)"
            )

    @property
    def server(self) -> Server:
        """How the engine of each replica serves."""
        return self.replica.engine.serving

    def called_with(self, load: Load) -> Deployment:
        """The same; of a program that is called with its sequences, a cache and passes for those of the load."""
        if self.server.memory_of != "sequences" or not isinstance(load, Static):
            return self
        queries = self.replica.speculation.queries if self.replica.speculation else 1
        seqs = self.options.max_num_seqs or load.batch
        tokens = min(self.server.max_num_batched_tokens, load.batch * max(load.isl, queries))
        tokens = self.options.max_num_batched_tokens or tokens
        return replace(self, options=replace(self.options, max_num_seqs=seqs, max_num_batched_tokens=tokens))

    @property
    def assumed_limits(self) -> dict[str, str]:
        """Limits that no flag gives, of an engine that has such flags."""
        server = self.server
        if server.memory_of == "sequences":
            return {}
        limits = {
            "max_num_seqs": self.limits.max_num_seqs, "max_num_batched_tokens": server.pass_tokens(self._context),
            "gpu_memory_utilization": server.memory_share,
        }  # fmt: skip
        reason = f"the default of {server.engine}"
        return {name: str(Default(v, reason)) for name, v in limits.items() if getattr(self.options, name) is None}

    def with_constants(self, constants: Mapping[str, float]) -> Deployment:
        """The same with other constants of its engine, see ``Server.with_constants``."""
        return replace(self, replica=self.replica.with_constants(constants))

    def with_prices(self, file: str | Path = "") -> Deployment:
        """The same with prices of one list for both pools, where prompts have devices apart; see ``with_prices``."""
        # A core has its share of a chip's price already.
        if self.prefill is None or self.replica.device.runs_programs:
            return self
        both = with_prices([self.replica.device, self.prefill.replica.device], file)
        own, prefill = (replace(p.replica, device=d) for p, d in zip((self, self.prefill), both, strict=True))
        return replace(self, replica=own, prefill=replace(self.prefill, replica=prefill))

    @property
    def devices(self) -> int:
        """Of all replicas."""
        return self.replicas * self.replica.plan.world

    @property
    def groups(self) -> int:
        """That have a scheduler of their own."""
        return self.replicas * self.replica.plan.dp

    @property
    def routing(self) -> Routing:
        """How the schedulers share a load."""
        return Routing(schedulers=self.groups, policy=self.router, admitted=self.admitted)

    @property
    def pool(self) -> Pool:
        """Its engines, as a part of devices apart."""
        return Pool(limits=self.limits, times=self.tables, routing=self.routing)

    @property
    def transfer(self) -> CacheTransfer:
        """Of a prompt's cache from the devices of prompts to these: ranks send and receive at once, the side with fewer
        of them all that it has; priced as what two devices send each other.

        Raises:
            DeviceError: a link that is none.
        """
        assert self.prefill is not None
        to, decoder = self.replica, self.replica.decoder
        ranks = min(p.tp * p.pp for p in (to.plan, self.prefill.replica.plan))
        whole = float(to.plan.tp) / ranks

        def seconds(tokens: np.ndarray) -> np.ndarray:
            own = decoder.kv_bytes(tokens, to.precision.kv_cache, to.plan.tp)
            return to.sent_s(whole * (own + decoder.state_bytes_per_sequence(to.plan.tp)), self.kv_link)

        return CacheTransfer(of=seconds, layers=decoder.depth if self.kv_overlap else 1)

    @cached_property
    def memory(self) -> ServingMemory:
        """Of each device.

        Raises:
            ModelError: the plan does not divide the model.
        """
        s = self.replica
        own = s.speculation is not None and s.speculation.draft in OWN_LAYER
        return serving_memory(
            s.decoder.with_last_layer_again() if own else s.decoder, s.device, s.precision, s.plan, s.engine,
            max_tokens=self.max_num_batched_tokens, length=self.longest,
            max_num_seqs=self.options.max_num_seqs or self.server.max_num_seqs,
            share=self.options.gpu_memory_utilization, tower=s.decoder.vision_tower,
            draft=(s.draft.decoder, s.draft.precision) if s.draft and not own else None,
            verified=s.speculation.queries if s.speculation else 1,
        )  # fmt: skip

    def check_memory(self) -> None:
        """Raises:
        ModelError: weights and activations leave no room for a cache.
        """
        memory = self.memory
        if not memory.fits:
            needs, share = memory.fit.needed_bytes - memory.reserve, memory.capacity - memory.reserve
            raise ModelError(
                f"{self.replica.decoder.name} does not fit on {self.replica.device.id} by {gib(self.missing_bytes)}: "
                f"weights and activations take {gib(needs)} of the engine's {gib(share)}; raise tp or pp, choose a "
                "narrower precision, or a device with more memory"
            )

    @property
    def missing_bytes(self) -> float:
        """By which weights and activations exceed what the engine may take of a device, 0 where they do not."""
        return max(-self.memory.fit.spare_bytes, 0.0)

    @property
    def _context(self) -> int:
        """Tokens of the longest sequence that the engine takes."""
        return self.options.max_model_len or self.replica.decoder.max_len or self.longest

    @property
    def max_num_batched_tokens(self) -> int:
        """New tokens of a pass."""
        stated = self.options.max_num_batched_tokens or self.server.pass_tokens(self._context)
        return stated if self.options.chunked_prefill else max(stated, self.longest)

    @cached_property
    def limits(self) -> EngineLimits:
        """Of each group's scheduler.

        Raises:
            ModelError: weights and activations leave no room for a cache; a sequence beyond the model's context.
        """
        name, memory = self.replica.decoder.name, self.memory
        most = self.replica.decoder.max_len
        if most and self.longest > most:
            raise ModelError(
                f"{name}: {self.longest} tokens of prompt and answer exceed its context of {most}: shorten one of them"
            )
        self.check_memory()
        queries = self.replica.speculation.queries if self.replica.speculation else 1
        running = self.options.max_num_seqs or self.server.running_seqs(memory.kv_tokens, self._context)
        # Tokens of a pass limit prompts alone where they have passes of their own.
        together = running if self.server.scheduler.prompts_apart else self.max_num_batched_tokens // queries
        return EngineLimits(
            max_num_seqs=min(running, together),
            # A round of the scheduler is a pass for each stage.
            max_num_batched_tokens=self.replica.plan.pp * self.max_num_batched_tokens,
            chunked_prefill=self.options.chunked_prefill,
            prefix_cached_tokens=self.options.prefix_cached_tokens,
            prefix_hit=self.options.prefix_hit,
            kv_tokens=memory.kv_tokens,
            host_tokens=int(self.options.host_cache / (self.replica.plan.world * memory.kv_bytes_per_token)),
            restore_s=self._restore_s,
            block_tokens=self.server.block_tokens,
            max_model_len=self.options.max_model_len,
            scheduler=self.server.scheduler,
            speculation=self.replica.speculation,
        )

    @property
    def _restore_s(self) -> float:
        """What a token takes from the host's memory over a device's link [s]; 0 where none is kept there."""
        if not self.options.host_cache:
            return 0.0
        share: float = shipped_links().links.rates.host_share
        return self.memory.kv_bytes_per_token / (share * host_link(self.replica.device).bandwidth_bytes_per_s)

    @cached_property
    def tables(self) -> PassTimes:
        """Times of rounds of the scheduler, from passes that are priced once for all deployments of what is served."""
        stages, tables = self.replica.plan.pp, self.replica.tables(**self._priced_to)
        return tables if stages == 1 else PipelinedTimes(tables, stages, self.max_num_batched_tokens)

    def interpolate(self, steps: Steps) -> PassCosts:
        """What rounds take part by part, looked up: see ``ReplicaPricer.interpolate``."""
        return self.replica.interpolate(self.in_flight(steps), **self._priced_to)

    def in_flight(self, steps: Steps) -> Steps:
        """One of the passes that make up each round of the scheduler: see ``passes``."""
        return in_flight(steps, self.replica.plan.pp, self.max_num_batched_tokens)

    @cached_property
    def _priced_to(self) -> dict[str, int]:
        """EngineLimits to which passes are priced: lengths to a power of two, so that loads share what was priced."""
        tokens, sequences, longest = self.priced_to
        # A prompt that is cut between the passes of a round counts in both.
        more = 0 if self.replica.plan.pp == 1 else 1
        return {
            "max_tokens": max(tokens, self.max_num_batched_tokens),
            "max_num_seqs": max(sequences, self.limits.max_num_seqs) + more,
            "max_len": 1 << max(_SHORTEST, longest - 1, self.longest - 1).bit_length(),
        }

    def share_of(self, load: Load) -> Load:
        """What one group gets of a load; all of it where the router looks at what they do."""
        return self.in_turn(load) if self.apart else load

    @property
    def apart(self) -> bool:
        """Whether each scheduler's share of a load can be served by itself."""
        return self.routing.apart and self.prefill is None

    def in_turn(self, load: Load) -> Load:
        """What one group gets of a load in turn: the most that any of them gets, where it does not divide.

        Each n-th of independent intervals that add up is a gamma's, whose coefficient of variation is their own over
        the root of n.
        """
        n = self.groups
        if n == 1:
            return load
        if isinstance(load, Trace):
            return load.each(n)
        counts = {name: getattr(load, name, None) for name in ("batch", "concurrency", "num_prompts")}
        shares: dict[str, Any] = {name: -(-count // n) for name, count in counts.items() if count is not None}
        if isinstance(load, Open):
            shares["request_rate"] = load.request_rate / n
            if load.arrivals != "uniform":
                shares |= {"arrivals": "gamma", "cv": (load.cv if load.arrivals == "gamma" else 1.0) / n**0.5}
        return replace(load, **shares)

    def shares(self, load: Load) -> float:
        """How many times what ``share_of`` gives the whole load is: ``groups``, or fewer where it does not divide."""
        share = self.share_of(load)
        if not self.apart:
            return 1.0
        if isinstance(load, Open):
            return float(self.groups)
        if isinstance(load, Closed):
            assert isinstance(share, Closed)
            return load.concurrency / share.concurrency
        return len(load.requests()) / len(share.requests())


def share_prices(deployments: Sequence[Deployment]) -> list[Deployment]:
    """Deployments of the same model on the same devices by the same engine, under other limits: passes of all are
    priced once.
    """
    tokens = max(d.max_num_batched_tokens for d in deployments)
    sizes = (tokens, max(d.limits.max_num_seqs for d in deployments), max(d.longest for d in deployments))
    return [replace(deployment, replica=deployments[0].replica, priced_to=sizes) for deployment in deployments]
