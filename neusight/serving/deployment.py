"""``Deployment``: a model on devices with an engine and its limits, ready to be loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from neusight.defaults import STATED, Default, default_dtype
from neusight.devices.prices import with_prices
from neusight.engines.server import Server
from neusight.errors import ModelError
from neusight.laws.fitted import shipped_links
from neusight.laws.routes import host_link
from neusight.serving.batching import PassTimes
from neusight.serving.disaggregated import CacheTransfer
from neusight.serving.limits import EngineLimits
from neusight.serving.load import Closed, Load, Open, Static, Trace
from neusight.serving.lookup import SMALLEST, PassSizes
from neusight.serving.memory import ServingMemory, serving_memory
from neusight.serving.passes import PassCosts, PipelinedTimes, ReplicaPricer, in_flight
from neusight.serving.setup import Setup
from neusight.serving.simulate import Pool, Routing
from neusight.units import gib
from neusight.workloads.decoders.shares import Steps

_SHORTEST = 4095
"""Tokens up to which everything is priced whatever the load."""


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """``replicas`` of a served model; requests are shared among them, and among the attention groups of each, evenly.

    ``longest`` tokens are those of the longest sequence that is to be served. ``priced_to`` are the new tokens, the
    sequences and the longest sequence that passes are priced to at least, see ``share_prices``.
    """

    replica: ReplicaPricer
    setup: Setup
    longest: int
    prefill: Deployment | None = None
    priced_to: PassSizes = SMALLEST

    @property
    def server(self) -> Server:
        """How the engine of each replica serves."""
        return self.replica.engine.serving

    def called_with(self, load: Load) -> Deployment:
        """The same; of a program that is called with its sequences, a cache and passes for those of the load."""
        if self.server.memory_of != "sequences" or not isinstance(load, Static):
            return self
        tokens = min(self.server.max_num_batched_tokens, load.batch * max(load.isl, self.replica.queries))
        return self.with_setup(
            max_num_seqs=self.setup.max_num_seqs or load.batch,
            max_num_batched_tokens=self.setup.max_num_batched_tokens or tokens,
        )

    def with_setup(self, **changes: Any) -> Deployment:
        """The same replica under other limits, or more of them."""
        return replace(self, setup=replace(self.setup, **changes))

    @property
    def assumed(self) -> dict[str, str]:
        """Precisions, the network and limits where no word gives them, each with the reason."""
        replica, server = self.replica, self.server
        quantised = replica.decoder.quantisation.method
        values = {
            "dtype": Default(quantised, STATED) if quantised else default_dtype(replica.decoder.dtype, replica.engine),
            "kv_dtype": Default(replica.precision.kv_cache, "that of activations"),
        }
        if replica.cluster:
            values["per_node"] = Default(replica.cluster.per_node, f"usual of {replica.device.id}")
            values["network"] = Default("that of measured clusters", "as none is named")
        if server.memory_of != "sequences":
            reason = f"the default of {server.engine}"
            values["max_num_seqs"] = Default(self.limits.max_num_seqs, reason)
            values["max_num_batched_tokens"] = Default(server.pass_tokens(self._context), reason)
            values["gpu_memory_utilization"] = Default(server.memory_share, reason)
        return {name: str(value) for name, value in values.items() if not getattr(self.setup, name)}

    def with_constants(self, constants: Mapping[str, float]) -> Deployment:
        """The same with other constants of its engine, see ``Server.with_constants``."""
        return replace(self, replica=self.replica.with_constants(constants))

    def with_prices(self, file: str | Path = "") -> Deployment:
        """The same with prices of one list for both pools, where prompts have devices apart; see ``with_prices``."""
        # A core has its share of a chip's price already.
        if self.prefill is None or self.replica.device.runs_programs:
            return self
        pools = self.replica, self.prefill.replica
        both = with_prices([pool.device for pool in pools], file)
        # A replica whose price stays keeps what was priced for it.
        own, prefill = (p if p.device is d else replace(p, device=d) for p, d in zip(pools, both, strict=True))
        return replace(self, replica=own, prefill=replace(self.prefill, replica=prefill))

    @property
    def devices(self) -> int:
        """Of all replicas."""
        return self.setup.replicas * self.replica.plan.world

    @property
    def groups(self) -> int:
        """That have a scheduler of their own."""
        return self.setup.replicas * self.replica.plan.dp

    @property
    def routing(self) -> Routing:
        """How the schedulers share a load."""
        return Routing(schedulers=self.groups, policy=self.setup.router, admitted=self.setup.admitted)

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
            return to.sent_s(whole * (own + decoder.state_bytes_per_sequence(to.plan.tp)), self.setup.kv_link)

        return CacheTransfer(of=seconds, layers=decoder.depth if self.setup.kv_overlap else 1)

    @cached_property
    def memory(self) -> ServingMemory:
        """Of each device.

        Raises:
            ModelError: the plan does not divide the model.
        """
        sequences = self.setup.max_num_seqs or self.server.max_num_seqs
        sizes = PassSizes(tokens=self.max_num_batched_tokens, sequences=sequences, length=self.longest)
        return serving_memory(self.replica, sizes, share=self.setup.gpu_memory_utilization)

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
        return self.setup.max_model_len or self.replica.decoder.max_len or self.longest

    @property
    def max_num_batched_tokens(self) -> int:
        """New tokens of a pass."""
        stated = self.setup.max_num_batched_tokens or self.server.pass_tokens(self._context)
        return stated if self.setup.chunked_prefill else max(stated, self.longest)

    @cached_property
    def limits(self) -> EngineLimits:
        """Of each group's scheduler.

        Raises:
            ModelError: weights and activations leave no room for a cache; a sequence beyond the model's context.
        """
        most = self.replica.decoder.max_len
        if most and self.longest > most:
            raise ModelError(
                f"{self.replica.decoder.name}: {self.longest} tokens of prompt and answer exceed its context of "
                f"{most}: shorten one of them"
            )
        self.check_memory()
        running = self.setup.max_num_seqs or self.server.running_seqs(self.memory.kv_tokens, self._context)
        # Tokens of a pass limit prompts alone where they have passes of their own.
        apart, together = self.server.scheduler.prompts_apart, self.max_num_batched_tokens // self.replica.queries
        return EngineLimits(
            max_num_seqs=running if apart else min(running, together),
            # A round of the scheduler is a pass for each stage.
            max_num_batched_tokens=self.replica.plan.pp * self.max_num_batched_tokens,
            chunked_prefill=self.setup.chunked_prefill,
            prefix_cached_tokens=self.setup.prefix_cached_tokens,
            prefix_hit=self.setup.prefix_hit,
            kv_tokens=self.memory.kv_tokens,
            host_tokens=int(self.setup.host_cache / (self.replica.plan.world * self.memory.kv_bytes_per_token)),
            restore_s=self._restore_s,
            block_tokens=self.server.block_tokens,
            max_model_len=self.setup.max_model_len,
            scheduler=self.server.scheduler,
            overlapped=self.server.overlapped,
            recv_interval=self.setup.scheduler_recv_interval,
            batch_wait=self.setup.batch_wait_timeout_iters,
            groups=self.replica.plan.dp,
            speculation=self.replica.speculation,
        )

    @property
    def _restore_s(self) -> float:
        """What a token takes from the host's memory over a device's link [s]; 0 where none is kept there."""
        if not self.setup.host_cache:
            return 0.0
        share: float = shipped_links().physics.rates.host_share
        return self.memory.kv_bytes_per_token / (share * host_link(self.replica.device).bandwidth_bytes_per_s)

    @cached_property
    def tables(self) -> PassTimes:
        """Times of rounds of the scheduler, from passes that are priced once for all deployments of what is served."""
        stages, tables = self.replica.plan.pp, self.replica.tables(self._priced_to)
        return tables if stages == 1 else PipelinedTimes(tables, stages, self.max_num_batched_tokens)

    def interpolate(self, steps: Steps) -> PassCosts:
        """What rounds take part by part, looked up: see ``ReplicaPricer.interpolate``."""
        return self.replica.interpolate(self.in_flight(steps), self._priced_to)

    def in_flight(self, steps: Steps) -> Steps:
        """One of the passes that make up each round of the scheduler: see ``passes``."""
        return in_flight(steps, self.replica.plan.pp, self.max_num_batched_tokens)

    @cached_property
    def _priced_to(self) -> PassSizes:
        """Sizes to which passes are priced: lengths to a power of two, so that loads share what was priced."""
        # A prompt that is cut between the passes of a round counts in both.
        more = 0 if self.replica.plan.pp == 1 else 1
        tokens, sequences, length = map(max, self.priced_to, self.sizes)
        length = 1 << max(_SHORTEST, length - 1).bit_length()
        return PassSizes(tokens=tokens, sequences=sequences + more, length=length)

    @property
    def sizes(self) -> PassSizes:
        """The largest passes that it runs."""
        return PassSizes(self.max_num_batched_tokens, self.limits.max_num_seqs, self.longest)

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
    sizes = PassSizes(*map(max, zip(*(deployment.sizes for deployment in deployments), strict=True)))
    return [replace(deployment, replica=deployments[0].replica, priced_to=sizes) for deployment in deployments]
