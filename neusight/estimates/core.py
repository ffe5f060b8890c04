"""What every estimate says, by the same names: a step on one device, on a cluster, an answer of a served model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, TypeVar, cast

from neusight.laws.doubts import Doubts, by_cause, weighed

MEMORY, RATES = ("memory", "peak"), ("throughput", "samples_per_s", "tokens_per_s", "output_tokens_per_s")
"""Metrics that are no times."""


class EstimateCore:
    """Figures that follow from the ``interval``, ``doubts``, ``fit`` and ``board_energy`` of an estimate."""

    @property
    def low_s(self: Any) -> float:
        """Lower end of the 90 % interval."""
        return cast(float, self.interval[0])

    @property
    def high_s(self: Any) -> float:
        """Upper end of the 90 % interval."""
        return cast(float, self.interval[1])

    @property
    def errors(self: Any) -> dict[str, float]:
        """Standard deviations as shares of the time, by cause (device, kernel, launch, host, composition, …): its
        ``doubts`` whose keys begin with that word, in quadrature.
        """
        return by_cause(self.doubts)

    def doubts_of(self: Any, metric: str) -> Doubts:
        """Signed standard deviations of the logarithm of a metric by key: a time, a rate, ``memory`` or ``peak``."""
        if metric in MEMORY:
            return cast(Doubts, self.fit.doubts)
        return weighed([(-1.0 if metric in RATES else 1.0, self.doubts)])

    @property
    def needed_bytes(self: Any) -> float:
        """What the device that needs most must have, with context and allocator [B]."""
        return cast(float, self.fit.needed_bytes)

    @property
    def fits(self: Any) -> bool:
        """Whether every device has that memory."""
        return cast(bool, self.fit.fits)

    @property
    def board_energy_j(self: Any) -> float | None:
        """What the boards of all devices draw in that time [J]; None where nothing tells."""
        return None if self.board_energy is None else self.board_energy.expected_j


def core(estimate: Any) -> dict[str, Any]:
    """Plain data of the core that all estimates have, by their attributes.

    ``model`` runs on ``devices`` of the id ``gpu``; ``latency_s`` is the expected time of a step or of a whole answer
    in a 90 % ``interval`` [s]; ``errors`` are standard deviations by cause, as shares of it, and ``limiter`` is the
    resource that most of it is limited by. ``memory_terms`` are bytes of the device that needs most, ``peak_bytes``
    their sum, ``needed_bytes`` what a device must have, with context and allocator; ``fits`` says whether every device
    has that, ``fit`` how likely that is and within which bytes. ``board_energy_j`` is what the
    boards of all devices draw in that time, ``board_energy`` the same with its interval, ``usd_per_hour`` the price of
    one device, None where none is known, and ``price_source`` its provider, region, date and instance.
    ``question``: the words that were asked; ``assumed``: fields that they left open, with the value that was chosen and
    why. ``given``: what measurements of one's own changed. ``warnings``: what was approximated, or is missing.
    """
    made = {
        "peak_bytes": sum(estimate.memory_terms.values()),
        "fit": estimate.fit.to_dict(),
        "board_energy": estimate.board_energy and asdict(estimate.board_energy),
        "question": dict(getattr(estimate, "question", {})),
    }
    given = columns(estimate, (name for name in _CORE if name not in made))
    return {name: made[name] if name in made else given[name] for name in _CORE}


_CORE = (
    *("model", "gpu", "devices", "latency_s", "low_s", "high_s", "errors", "limiter", "memory_terms", "peak_bytes"),
    *("needed_bytes", "fits", "fit", "board_energy_j", "board_energy", "usd_per_hour", "price_source"),
    *("question", "assumed", "given", "warnings"),
)


def columns(row: Any, names: Iterable[str]) -> dict[str, Any]:
    """Attributes by name; mappings as dictionaries, tuples as lists."""
    values = {name: getattr(row, name) for name in names}
    return {n: dict(v) if isinstance(v, Mapping) else list(v) if isinstance(v, tuple) else v for n, v in values.items()}


Name = TypeVar("Name")


def summed(pairs: Iterable[tuple[Name, float]]) -> dict[Name, float]:
    """The sum of the values of each name."""
    sums: dict[Name, float] = {}
    for name, value in pairs:
        sums[name] = sums.get(name, 0.0) + value
    return sums


def largest(seconds: Mapping[str, float]) -> str:
    """The name with the largest sum, "" of none."""
    return max(seconds, key=lambda name: seconds[name], default="")
