"""What every estimate says, by the same names: a step on one device, on a cluster, an answer of a served model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class EstimateCore(Protocol):
    """The core that all estimates have."""

    @property
    def model(self) -> str:
        """What runs."""

    @property
    def gpu(self) -> str:
        """Id of the device."""

    @property
    def devices(self) -> int:
        """That share it."""

    @property
    def latency_s(self) -> float:
        """Expected time: of a step, or of a whole answer."""

    @property
    def interval(self) -> tuple[float, float]:
        """90 % interval (low, high) of it [s]."""

    @property
    def errors(self) -> Mapping[str, float]:
        """Source → standard deviation as a share of the latency."""

    @property
    def limiter(self) -> str:
        """The resource that most of the time is limited by."""

    @property
    def memory_terms(self) -> Mapping[str, float]:
        """Term → bytes, of the device that needs most."""

    @property
    def fits(self) -> bool:
        """Whether every device has the memory."""

    @property
    def board_energy_j(self) -> float | None:
        """What the boards of all devices draw in that time [J]; None where nothing tells."""

    @property
    def usd_per_hour(self) -> float | None:
        """Price of one device; None where nobody tells it."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was assumed, or is missing."""


def core(estimate: EstimateCore) -> dict[str, Any]:
    """Plain data of the core: times in seconds, memory in bytes, energy in joules, shares from 0 to 1."""
    low_s, high_s = estimate.interval
    terms = dict(estimate.memory_terms)
    return {
        "model": estimate.model,
        "gpu": estimate.gpu,
        "devices": estimate.devices,
        "latency_s": estimate.latency_s,
        "low_s": low_s,
        "high_s": high_s,
        "errors": dict(estimate.errors),
        "limiter": estimate.limiter,
        "memory_terms": terms,
        "peak_bytes": sum(terms.values()),
        "fits": estimate.fits,
        "board_energy_j": estimate.board_energy_j,
        "usd_per_hour": estimate.usd_per_hour,
        "warnings": list(estimate.warnings),
    }


def largest(seconds: Mapping[str, float]) -> str:
    """The name with the largest sum, "" of none."""
    return max(seconds, key=lambda name: seconds[name], default="")
