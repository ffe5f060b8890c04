"""``TrainingEstimate``: how long a step takes on a cluster, what it waits for, and what a run costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from neusight.devices.cluster import Cluster
from neusight.distributed.training_run import TrainingRun
from neusight.plans.fits import verdict
from neusight.plans.memory import RankMemory
from neusight.plans.plan import Plan
from neusight.schedule.run import Run
from neusight.serving.serve import HOUR_S


@dataclass(frozen=True, kw_only=True)
class TrainingEstimate:
    """One training step of a model on the devices of a cluster. Times in seconds.

    Attributes:
        run: what was asked.
        latency_s: of a step, from its first pass to the end of its last update; ``low_s`` and ``high_s`` enclose 90 %.
        errors: source → standard deviation as a share of the latency.
        schedule: the step as it runs, rank by rank.
        parts_s: kind of kernel or collective → what it takes of a step on the rank that has most of it to do.
        limiters: what limits each of these.
        flop: of products and attention of a step on all devices, without what is computed again.
        recomputed_flop: of what is computed again.
        peak_flops_per_s: of a device, in the dtype of its large products.
        memory: of a rank of each kind.
        energy_j: of a step on all devices; None where nothing tells what boards draw.
        notes: what was assumed or approximated.
    """

    run: TrainingRun
    latency_s: float
    low_s: float
    high_s: float
    errors: Mapping[str, float]
    schedule: Run
    parts_s: Mapping[str, float]
    limiters: Mapping[str, str]
    flop: float
    recomputed_flop: float
    peak_flops_per_s: float
    memory: tuple[RankMemory, ...]
    energy_j: float | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def plan(self) -> Plan:
        """How devices share the step."""
        return self.run.plan

    @property
    def cluster(self) -> Cluster:
        """The devices."""
        return self.run.cluster

    @property
    def tokens_per_s(self) -> float:
        """Of all devices together."""
        return self.run.tokens / self.latency_s

    @property
    def mfu(self) -> float:
        """Model FLOP utilisation: products and causal attention that the model needs, over peak (Chowdhery et al. 2022,
        appendix B, who count all of attention).
        """
        return self.flop / (self.latency_s * self.cluster.devices * self.peak_flops_per_s)

    @property
    def hfu(self) -> float:
        """Hardware FLOP utilisation: with what is computed again."""
        return self.mfu * (1.0 + self.recomputed_flop / self.flop)

    @property
    def exposed_s(self) -> float:
        """In which kernels wait for collectives, sends or copies, on the rank that does most."""
        return float(self.schedule.exposed_s.max())

    @property
    def bubble(self) -> float:
        """Share of all ranks' time in which they wait for each other."""
        return self.schedule.bubble

    @property
    def peak_bytes(self) -> float:
        """Of memory on the rank that needs most."""
        return max(rank.total for rank in self.memory)

    @property
    def fits(self) -> bool:
        """Whether every rank has the memory, with its context and the allocator's slack."""
        return verdict(self.memory, self.cluster.device).fits

    def hours(self, tokens: float) -> float:
        """Of a run over so many tokens."""
        return tokens / self.tokens_per_s / HOUR_S

    def gpu_hours(self, tokens: float) -> float:
        """Of all devices over a run of so many tokens."""
        return self.hours(tokens) * self.cluster.devices

    def cost_usd(self, tokens: float, usd_per_hour: float | None = None) -> float | None:
        """Of a run of so many tokens; None where nobody tells a price of a device-hour.

        Args:
            tokens: of the run.
            usd_per_hour: of a device; default that of its file.
        """
        price = self.cluster.device.price_usd_per_hour if usd_per_hour is None else usd_per_hour
        return None if price is None else self.gpu_hours(tokens) * price

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "model": self.run.decoder.name,
            "gpu": self.cluster.device.id,
            "cluster": self.cluster.id,
            "devices": self.cluster.devices,
            "nodes": self.cluster.nodes,
            "seq_len": self.run.seq_len,
            "optimizer": self.run.optimizer,
            "dtype": self.run.products or self.run.dtype,
            "framework": self.run.engine.name,
            "plan": asdict(self.plan),
            "latency_s": self.latency_s,
            "low_s": self.low_s,
            "high_s": self.high_s,
            "errors": dict(self.errors),
            "tokens_per_s": self.tokens_per_s,
            "mfu": self.mfu,
            "hfu": self.hfu,
            "exposed_s": self.exposed_s,
            "bubble": self.bubble,
            "critical_path_s": dict(self.schedule.path_s),
            "parts_s": dict(self.parts_s),
            "limiters": dict(self.limiters),
            "memory": [{"rank": rank.rank, "total": rank.total, **rank.parts} for rank in self.memory],
            "peak_bytes": self.peak_bytes,
            "fits": self.fits,
            "energy_j": self.energy_j,
            "notes": list(self.notes),
        }
