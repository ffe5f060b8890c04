"""``Costs``: what kernels take on a device, with how wrong that may be, by named source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from neusight.devices.spec import DeviceSpec
from neusight.kernels.columns import ColumnRecord
from neusight.laws.board_power import EnergyUse, metered
from neusight.laws.doubts import NORMAL_90, OWN, common, weighed
from neusight.laws.fitted import shipped_boards
from neusight.laws.power import PowerDemand
from neusight.quick_dataclasses import dataclass

LAUNCH = "launch:"
LAUNCH_SPREAD = 0.25
"""Standard deviation of the logarithm of a launch's time (assumption: hosts of one generation differ by up to half
either way, ln(1.5) / 1.645; launches on more hosts would tell)."""


def cause_of(device: DeviceSpec, kind: str, what: str = "device") -> str:
    """Key of the doubt that kernels of a kind share on a device and other boards of its die."""
    return f"{what}:{(device.die or (device.original or device).id).lower()}/{kind}"


@dataclass(frozen=True, kw_only=True)
class Costs(ColumnRecord):
    """What a batch of kernels costs, each launched alone; every array has shape (n,).

    ``latency_s = overhead_s + bound_s / utilisation`` and ``latency_s >= bound_s`` for any model and input.
    ``low_s <= latency_s <= high_s`` enclose the 90 % interval of each kernel by itself, its launch taken as it is;
    ``interval_s`` has the launch's doubt too. ``source`` names the tile model that answered (``gemm``), a model used
    outside the family it was trained on (``gemm (transferred)``), or ``roofline`` (fallback).
    """

    latency_s: np.ndarray
    low_s: np.ndarray
    high_s: np.ndarray
    bound_s: np.ndarray
    overhead_s: np.ndarray
    utilisation: np.ndarray
    limiter: np.ndarray
    """``compute``, ``dram``, ``l2`` or ``power``: the resource that takes longest; ``launch`` where the launch does. Of
    collectives ``link``, where bytes on their way take most of the time, or ``latency``.
    """
    tile: np.ndarray
    """Tile shape as text, ``128x64``."""
    tile_count: np.ndarray
    waves: np.ndarray
    outside: np.ndarray
    """What of kernel or device lies outside of the answering model's training, in words; "" where nothing does."""
    source: np.ndarray
    spread: np.ndarray
    """Standard deviation of the log error of the execution that all kernels of a cause share on the device."""
    cause: np.ndarray
    """Key of that doubt, ``device:gh100/attention``."""
    demand: PowerDemand | None = None
    """Power that the kernels draw at full clock, for streams that share a budget; None where it is not known."""
    energy: EnergyUse | None = None
    """Of kernels whose energy does not hang on a clock; see ``drawn``."""

    @classmethod
    def of(
        cls,
        bound_s: np.ndarray,
        execution_s: np.ndarray,
        overhead_s: np.ndarray,
        factors: tuple[np.ndarray | float, np.ndarray | float],
        **known: Any,
    ) -> Costs:
        """Costs of executions and launches of so long, with two factors that enclose 90 % of executions."""
        low, high = factors
        return cls(
            latency_s=overhead_s + execution_s,
            low_s=overhead_s + np.maximum(execution_s * low, bound_s),
            high_s=overhead_s + execution_s * high,
            bound_s=bound_s,
            overhead_s=overhead_s,
            utilisation=bound_s / execution_s,
            **known,
        )

    @property
    def drawn(self) -> EnergyUse:
        """What the kernels add to what the board draws all the time, zeros where no law answers."""
        if self.demand is not None:
            return metered(self.demand, shipped_boards().physics.gpu)
        none = np.zeros(len(self.latency_s))
        return self.energy or EnergyUse(compute_j=none, sram_j=none, dram_j=none)

    @property
    def in_domain(self) -> np.ndarray:
        """Whether kernel and device lie within the answering model's training."""
        return np.asarray(self.outside == "")

    @property
    def execution_s(self) -> np.ndarray:
        """Time without the launch."""
        return self.latency_s - self.overhead_s

    @property
    def own_spread(self) -> np.ndarray:
        """Standard deviation of the log error of the execution that a kernel does not share with others."""
        tiny = 1e-15
        low, high = (np.maximum(end - self.overhead_s, tiny) for end in (self.low_s, self.high_s))
        whole = np.log(np.maximum(high / low, 1.0)) / (2 * NORMAL_90)
        return np.sqrt(np.maximum(whole**2 - self.spread**2, 0.0))

    def interval_s(self) -> tuple[np.ndarray, np.ndarray]:
        """90 % interval (low, high) of lone launches: the doubt of the execution and of the launch, in quadrature."""
        launch = np.exp(NORMAL_90 * LAUNCH_SPREAD)
        below = np.hypot(self.latency_s - self.low_s, self.overhead_s * (1.0 - 1.0 / launch))
        above = np.hypot(self.high_s - self.latency_s, self.overhead_s * (launch - 1.0))
        return np.maximum(self.latency_s - below, self.bound_s), self.latency_s + above

    @property
    def die(self) -> str:
        """Chip of the device, or its id; "" of no kernels."""
        return str(self.cause[0]).partition(":")[2].partition("/")[0] if len(self.cause) else ""

    def doubts_s(self) -> dict[str, np.ndarray]:
        """Standard deviations of executions by key [s], shape (n,): of their causes, and each kernel's own."""
        shared_s, causes = self.execution_s * self.spread, dict.fromkeys(self.cause.tolist())
        parts = [common(cause, np.where(self.cause == cause, shared_s, 0.0)) for cause in causes]
        return weighed((1.0, part) for part in (*parts, {f"{OWN}{self.die}": self.execution_s * self.own_spread}))

    def lone_doubts_s(self) -> dict[str, np.ndarray]:
        """Standard deviations of lone launches by key [s], shape (n,)."""
        return self.doubts_s() | {f"{LAUNCH}{self.die}": self.overhead_s * LAUNCH_SPREAD}

    def slower(self, least_s: np.ndarray) -> Costs:
        """The same kernels with no execution shorter than ``least_s``, their new bound."""
        bounded = replace(self, bound_s=np.maximum(self.bound_s, least_s))
        longer = bounded._retimed(lambda time_s: np.maximum(time_s, bounded.overhead_s + bounded.bound_s))
        return replace(longer, limiter=np.where(self.latency_s < longer.latency_s, "dram", self.limiter))

    def times(self, factor: np.ndarray | float) -> Costs:
        """The same kernels with executions that take ``factor`` times as long, and none less than its bound; what hangs
        on no clock draws its power for as long.
        """
        launch_s = self.overhead_s
        longer = self._retimed(lambda time_s: launch_s + np.maximum(factor * (time_s - launch_s), self.bound_s))
        energy = None if self.energy is None else self.energy.times(longer.execution_s / self.execution_s)
        return replace(longer, energy=energy)

    def _retimed(self, change: Callable[[np.ndarray], np.ndarray]) -> Costs:
        """The same kernels with another latency and interval, each changed alike."""
        times: dict[str, Any] = {name: change(getattr(self, name)) for name in ("latency_s", "low_s", "high_s")}
        return replace(self, **times, utilisation=self.bound_s / (times["latency_s"] - self.overhead_s))

    def at_clock(self, clock: float, share: np.ndarray | float = 0.0) -> Costs:
        """The same kernels with the core at a share of its boost clock, whatever each would run at by itself; what
        waits for its launch takes as long.

        Args:
            clock: share of the boost clock [-].
            share: of a step's time that is each kernel's own [-], as far as which it runs by itself.
        """
        demand = self.demand
        if demand is None:
            return self
        stretch = demand.time_s(clock) / (demand.lone ** (1.0 - share) * demand.time_s(demand.running_clock))
        stretched = self.times(np.where(self.limiter == "launch", 1.0, stretch))
        return replace(stretched, demand=replace(demand, clock=clock, lone=np.ones_like(demand.lone)))

    @classmethod
    def in_order(cls, parts: Sequence[tuple[np.ndarray, Costs]]) -> Costs:
        """Costs of parts of a batch, each with the rows that it has there, in the order of the batch."""
        order = np.argsort(np.concatenate([rows for rows, _ in parts]))
        return cls.joined([part for _, part in parts]).take(order)


def binding_share(first_s: np.ndarray, second_s: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Probability that the first of two uncertain times is the longer: Φ(ln(first / second) / spread).

    The larger of two times moves with whichever is larger, so that this is also how much its error follows the first's.

    Args:
        first_s, second_s: expected times [s].
        spread: standard deviation of the logarithm of their ratio.
    """
    ratio = np.log(np.maximum(first_s, 1e-15) / np.maximum(second_s, 1e-15)) / np.maximum(spread, 1e-9)
    # Logistic approximation of the normal distribution (Bowling et al. 2009), within 0.01: no scipy at a cold start.
    return 1.0 / (1.0 + np.exp(-np.clip(1.702 * ratio, -60.0, 60.0)))
