"""``Estimate``: the answer to "how long does this step take there", as a sum over kernels that adds and multiplies."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, field, fields, replace
from functools import cached_property
from math import exp
from typing import TYPE_CHECKING, Any, Literal

from neusight.errors import DataError, DeviceError
from neusight.estimates.core import EstimateCore, largest, summed
from neusight.estimates.energy import BoardEnergy
from neusight.estimates.records import (
    HOST,
    KernelEstimate,
    MemoryEstimate,
    OperatorEstimate,
    Provenance,
    joined,
    union,
)
from neusight.estimates.report import headline, html
from neusight.laws.doubts import NORMAL_90, spread, weighed
from neusight.laws.fitted import with_sources
from neusight.plans.margins import MemoryFit
from neusight.quick_dataclasses import dataclass

if TYPE_CHECKING:
    from neusight.figures import Chart

Source = Literal["trained", "transferred", "fallback"]


ENERGY_PARTS = ("compute", "sram", "dram")


@dataclass(frozen=True, kw_only=True)
class Estimate(EstimateCore):
    """Latency of one step of a model on one device, with everything that makes it up. Times in seconds.

    An estimate is its ``by_kernel`` rows; latency, interval, bound, phases, operators and coverage are sums over them.
    So estimates add (one step after the other) and multiply (``1000 * step``) without losing detail:

        >>> from neusight import Predictor
        >>> step = Predictor.load().estimate("gpt2-large", "a100-sxm-80gb", mode="training", batch=4)
        >>> day = step.samples_per_s * 86400            # sequences a day on one GPU
        >>> hours = step.gpu_hours(samples=10_000_000)  # GPU-hours for ten million sequences
        >>> dollars = step.cost_usd(samples=10_000_000, usd_per_hour=1.8)

    ``samples`` is the number of samples that all steps of the estimate process; ``batch`` is that of one step. Where
    several ``devices`` share a step, rows and memory are those of one of them; hours and cost are of all.
    """

    model: str
    gpu: str
    mode: str
    batch: int
    seq_len: int | None
    dtype: str
    optimizer: str
    attention: str
    samples: float
    by_kernel: tuple[KernelEstimate, ...]
    memory: MemoryEstimate
    provenance: Provenance
    uncovered: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    usd_per_hour: float | None = None
    price_source: str = ""
    """Provider, region, date and instance of the price."""
    devices: int = 1
    board_energy: BoardEnergy | None = None
    """What the boards of all devices draw in that time; None where nothing tells."""
    assumed: Mapping[str, str] = field(default_factory=dict)
    """Fields that the question left open -> the value that was chosen, with the reason."""
    question: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """The words that were asked: ``Step.named`` makes the question of them again."""
    given: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """What measurements of one's own changed, {} where none was given; ``remains``: share of doubts that is left."""
    unit: str = ""
    """The work that a step is of, in words, where a reader may take it for another."""
    parts: tuple[tuple[str, str], ...] = ()
    """Modules whose times are told apart, with their names."""
    least_share: float = 1.0
    """Share of the latency that a step takes at least in which nothing is selected by values that are not known."""

    @cached_property
    def latency_s(self) -> float:
        """Expected latency."""
        return sum(k.total_s for k in self.by_kernel)

    @cached_property
    def interval(self) -> tuple[float, float]:
        """90 % interval (low, high) around the latency, never below the bound: all errors in quadrature, and down to a
        step that selects nothing where sizes depend on values that are not known.
        """
        factor = exp(NORMAL_90 * spread(self.doubts))
        low_s = max(self.latency_s / factor, self.bound_s)
        return min(low_s, self.latency_s * self.least_share), self.latency_s * factor

    @cached_property
    def doubts(self) -> dict[str, float]:
        """Signed standard deviations of the logarithm of the latency by key: of kinds of kernels on the device, of each
        kernel by itself, of launches, the host, and the sum of a step (``composition``).

        Doubts of one key add up; kernels' own cancel over a step of hundreds.
        """
        if not self.latency_s:
            return {}
        stated = weighed((row.count / self.latency_s, row.doubts_s) for row in self.by_kernel)
        return weighed([(self.given.get("remains", 1.0), with_sources(stated, "step", self.model))])

    @cached_property
    def bound_s(self) -> float:
        """No faster than this by physics: the sum of the kernels' bounds, or the time in which the step's distinct
        bytes beyond L2 come from memory, if that is longer.
        """
        return sum(k.count * k.bound_s for k in self.by_kernel)

    @cached_property
    def limiter(self) -> str:
        """The law with the largest share of the latency.

        In a step that waits for the host, kernels that are limited by their launch wait for the same host.
        """
        waits = any(k.limiter == HOST and k.total_s for k in self.by_kernel)
        names = {"launch": HOST} if waits else {}
        return largest(summed((names.get(k.limiter, k.limiter), k.total_s) for k in self.by_kernel))

    @cached_property
    def by_phase(self) -> dict[str, float]:
        """Phase (forward, backward, optimizer, host) → seconds; only phases that occur."""
        return summed((k.phase, k.total_s) for k in self.by_kernel if k.total_s)

    @cached_property
    def by_part(self) -> dict[str, float]:
        """Part of a model that has several → seconds; what is of none of them, such as waits, under "other"."""
        names = dict(self.parts)
        seconds = ((names.get(module.partition(".")[0], "other"), s) for (module, _), s in self.by_module.items())
        return summed(seconds) if names else {}

    @cached_property
    def by_operator(self) -> tuple[OperatorEstimate, ...]:
        """Operators by phase, costliest first."""
        groups: dict[tuple[str, str], list[KernelEstimate]] = {}
        for kernel in (row for row in self.by_kernel if row.total_s):
            groups.setdefault((kernel.operator, kernel.phase), []).append(kernel)
        rows = (self._operator(*key, kernels) for key, kernels in groups.items())
        return tuple(sorted(rows, key=lambda row: -row.latency_s))

    def _operator(self, operator: str, phase: str, kernels: list[KernelEstimate]) -> OperatorEstimate:
        latency_s = sum(k.total_s for k in kernels)
        return OperatorEstimate(
            operator=operator,
            phase=phase,
            count=sum(k.count for k in kernels),
            latency_s=latency_s,
            share=latency_s / self.latency_s if self.latency_s else 0.0,
            limiter=largest(summed((k.limiter, k.total_s) for k in kernels)),
        )

    @cached_property
    def coverage(self) -> dict[str, float]:
        """Share of the kernels' latency that comes from a tile model trained on such kernels (``trained``), on others
        (``transferred``: another operator, family or dtype), or from no rule or model (``fallback``). Host time does
        not count.
        """
        kernels = [k for k in self.by_kernel if k.source]
        sums = summed((self._origin(k), k.total_s) for k in kernels)
        total = sum(sums.values()) or 1.0
        return {origin: sums.get(origin, 0.0) / total for origin in ("trained", "transferred", "fallback")}

    def _origin(self, kernel: KernelEstimate) -> Source:
        # Rules are by operator, whatever its overload: aten.foo covers aten.foo.default.
        without_rule = {kernel.operator, kernel.operator.rpartition(".")[0]} & set(self.uncovered)
        if without_rule or kernel.source.startswith("roofline"):
            return "fallback"
        return "transferred" if kernel.source.endswith("(transferred)") else "trained"

    @cached_property
    def in_domain(self) -> float:
        """Share of the latency of trained kernels that lie, with their device, within their tile model's training.

        Kernels of other operators or dtypes than a model was trained on count in ``coverage`` instead.
        """
        return 1.0 - sum(self.outside.values())

    @cached_property
    def outside(self) -> dict[str, float]:
        """What the rest lies outside of, in words, with its share of the latency of trained kernels; largest first."""
        kernels = [k for k in self.by_kernel if k.source and self._origin(k) == "trained"]
        total = sum(k.total_s for k in kernels)
        sums = summed((k.outside, k.total_s) for k in kernels if k.outside)
        return {reason: sums[reason] / total for reason in sorted(sums, key=lambda reason: -sums[reason])}

    @cached_property
    def energy_j(self) -> dict[str, float]:
        """Part (compute, sram, dram) → joules that kernels add to what boards draw all the time, in the proportions in
        which they ask for them; empty where the device's energy is not known.
        """
        parts = {name: sum(k.count * getattr(k, f"{name}_j") for k in self.by_kernel) for name in ENERGY_PARTS}
        if self.board_energy is None or not any(parts.values()):
            return {}
        share = (self.board_energy.expected_j - self.board_energy.idle_j) / sum(parts.values())
        return {name: share * joules for name, joules in parts.items()}

    @property
    def memory_terms(self) -> dict[str, int]:
        """Term → bytes at the peak."""
        return self.memory.parts

    @property
    def peak_bytes(self) -> int:
        """Of memory, the sum of its terms."""
        return self.memory.peak_bytes

    @property
    def fit(self) -> MemoryFit:
        """What the step needs of the device's memory."""
        return self.memory.fit

    @property
    def samples_per_s(self) -> float:
        """Throughput of the device, or of all that share the step."""
        return self.samples / self.latency_s if self.latency_s else 0.0

    @property
    def tokens_per_s(self) -> float | None:
        """Throughput in tokens, or None for a model without a sequence."""
        return None if self.seq_len is None else self.samples_per_s * self.seq_len

    def gpu_hours(self, samples: float) -> float:
        """Hours of devices that ``samples`` samples take: with several, of all of them together."""
        return self.devices * samples * self.latency_s / self.samples / 3600

    def cost_usd(self, samples: float, usd_per_hour: float | None = None) -> float:
        """Cost of ``samples`` samples at the device's price an hour, or at the given one.

        Raises:
            DeviceError: the device has no price and none is given.
        """
        price = self.usd_per_hour if usd_per_hour is None else usd_per_hour
        if price is None:
            raise DeviceError(f"no price of {self.gpu} is known: give usd_per_hour")
        return self.gpu_hours(samples) * price

    def __add__(self, other: Estimate) -> Estimate:
        """One after the other on the same device: times add, memory is that of the larger."""
        if not isinstance(other, Estimate):
            return NotImplemented
        names, tuples = (
            ("model", "gpu", "mode", "dtype", "optimizer", "attention", "unit"),
            ("uncovered", "inputs", "warnings"),
        )
        changes: dict[str, Any] = {name: joined(getattr(self, name), getattr(other, name)) for name in names}
        changes |= {name: union(getattr(self, name), getattr(other, name)) for name in tuples}
        return replace(
            self,
            **changes,
            assumed={**self.assumed, **other.assumed},
            seq_len=self.seq_len if self.seq_len == other.seq_len else None,
            samples=self.samples + other.samples,
            by_kernel=_merged((*self.by_kernel, *other.by_kernel)),
            memory=max(self.memory, other.memory, key=lambda m: m.fit.needed_bytes / m.fit.usable_bytes),
            provenance=self.provenance.merged(other.provenance),
            parts=self.parts if self.parts == other.parts else (),
            least_share=min(self.least_share, other.least_share),
            usd_per_hour=self.usd_per_hour if self.usd_per_hour == other.usd_per_hour else None,
            price_source=self.price_source if self.price_source == other.price_source else "",
            board_energy=_both(self.board_energy, other.board_energy),
        )

    def __radd__(self, other: int) -> Estimate:
        """So that ``sum`` of estimates, which begins with 0, is one."""
        return self if other == 0 else NotImplemented

    def __mul__(self, times: float) -> Estimate:
        """The same step ``times`` times, one after the other; memory stays."""
        if not isinstance(times, int | float):
            return NotImplemented
        if times < 0:
            raise ValueError(f"a step cannot run {times} times")
        kernels = tuple(replace(k, count=k.count * times) for k in self.by_kernel)
        energy = None if self.board_energy is None else self.board_energy * times
        return replace(self, samples=self.samples * times, by_kernel=kernels, board_energy=energy)

    __rmul__ = __mul__

    @cached_property
    def by_module(self) -> dict[tuple[str, str], float]:
        """(module, limiter) → seconds, modules by the patterns of their paths; what is of no module under ""."""
        parts = (
            ((module, row.limiter), row.total_s * count / sum(each for _, each in row.modules or (("", 1),)))
            for row in self.by_kernel
            for module, count in row.modules or (("", 1),)
        )
        return summed(parts)

    def figure(self, name: str) -> Chart:
        """A chart of ``neusight.estimates.figures.CHARTS``: ``memory``, ``time``, ``operators``, ``roofline`` or
        ``modules``.

        >>> predictor.estimate("gpt2-large", "h100", mode="training").figure("roofline").save("roofline.png")

        Raises:
            DataError: an unknown chart. DeviceError: a roofline of a device that the catalogue lacks.
        """
        from neusight.estimates.figures import CHARTS
        from neusight.figures import named

        return named(self, name, CHARTS)

    def __repr__(self) -> str:
        return f"<Estimate {headline(self)}, limited by {self.limiter}, {'fits' if self.fits else 'does not fit'}>"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return html(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain data in SI units that ``from_dict`` reads back to an equal estimate."""
        return asdict(self)

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Estimate:
        """Read what ``to_dict`` wrote.

        Raises:
            DataError: a field is missing or unknown.
        """
        try:
            nested = {
                "by_kernel": tuple(_kernel(k) for k in data["by_kernel"]),
                "memory": MemoryEstimate(**data["memory"]),
                "provenance": Provenance(**_tuples(data["provenance"])),
                "parts": tuple(map(tuple, data.get("parts", ()))),
                "board_energy": BoardEnergy(**energy) if (energy := data.get("board_energy")) else None,
            }
            return Estimate(**{**_tuples(data), **nested})
        except (KeyError, TypeError) as error:
            names = ", ".join(f.name for f in fields(Estimate))
            raise DataError(f"not an estimate: {error}: it needs {names}") from None

    def to_json(self) -> str:
        """``to_dict`` as JSON; floats keep every digit."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @staticmethod
    def from_json(text: str) -> Estimate:
        """Read what ``to_json`` wrote.

        Raises:
            DataError: not JSON, or not an estimate.
        """
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise DataError(f"not an estimate: no valid JSON at {error.lineno}:{error.colno}") from None
        return Estimate.from_dict(data)


def _both(first: BoardEnergy | None, second: BoardEnergy | None) -> BoardEnergy | None:
    return None if first is None or second is None else first + second


def _kernel(data: dict[str, Any]) -> KernelEstimate:
    pairs = {name: tuple(map(tuple, data.get(name, ()))) for name in ("errors_s", "modules")}
    return KernelEstimate(**data | pairs)


def _tuples(data: dict[str, Any]) -> dict[str, Any]:
    """JSON has lists only; the fields of an estimate are tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}


def _merged(kernels: Iterable[KernelEstimate]) -> tuple[KernelEstimate, ...]:
    """Rows that differ in their count alone become one."""
    counts: Counter[KernelEstimate] = Counter()
    for kernel in kernels:
        counts[replace(kernel, count=0)] += kernel.count  # type: ignore[assignment]
    return tuple(replace(kernel, count=count) for kernel, count in counts.items())
