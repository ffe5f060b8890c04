"""What ``neusight serving`` was asked, as points: deployments and loads, each with its answer or why there is none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from neusight.cli.options import listed, numbers
from neusight.cli.points import Point
from neusight.errors import NeusightError
from neusight.serving.load import MOST_TOKENS

if TYPE_CHECKING:
    from neusight.api import Predictor
    from neusight.devices import DeviceSpec
    from neusight.serving import Choice, Deployment, EngineOptions, Load, ServingEstimate
    from neusight.serving.load import TokenCounts

KINDS = ("--batch", "--concurrency", "--rate", "--trace", "--frontier", "--slo", "--requests")
"""Options of which one tells the load. ``--requests`` beside ``--concurrency`` or ``--rate`` counts requests."""
_BESIDE = ({"--requests", "--concurrency"}, {"--requests", "--rate"}, {"--slo", "--rate"})
TPS = (1, 2, 4, 8)
"""Degrees that ``--slo`` looks at, unless told."""
MOST_REQUESTS = 100_000
"""Clients, or requests of a batch: what is larger is a slip of the keyboard."""
SLOWEST, FASTEST = 1e-6, 1e6
"""Rates [requests/s], likewise."""
UNBOUNDED = 16
"""Lengths of a model without a longest sequence are cut at so many times their mean (assumption)."""


@dataclass(frozen=True, kw_only=True)
class Loads:
    """Loads as they were typed. ``kind`` is the option of ``KINDS`` that tells them, ``values`` what it lists."""

    kind: str
    values: Sequence[Any]
    number: int | None
    isls: Sequence[int]
    osls: Sequence[int]
    cvs: tuple[float, float]
    seed: int
    most: int | None

    @classmethod
    def of(cls, given: Mapping[str, Any], *, cvs: tuple[float, float], seed: int, most: int | None) -> Loads:
        """Of options by name.

        Raises:
            BadParameter: no load, or several, or lengths that are missing or have no place.
        """
        kind = _kind({name for name in KINDS if given[name]})
        texts = [given[name] for name in ("--isl", "--osl")]
        if kind == "--trace" and (any(texts) or any(cvs)):
            raise typer.BadParameter("brings its own lengths: leave out --isl and --osl", param_hint=kind)
        if kind == "--batch" and any(cvs):
            raise typer.BadParameter("has requests of equal lengths: leave out --isl-cv and --osl-cv", param_hint=kind)
        for name in ("--isl", "--osl"):
            if kind != "--trace" and not given[name]:
                raise typer.BadParameter("is missing: give tokens, such as 1024", param_hint=name)
        isls, osls = (
            ([0], [0])
            if kind == "--trace"
            else (_numbers(text, name, MOST_TOKENS) for text, name in zip(texts, ("--isl", "--osl"), strict=True))
        )
        values = _values(kind, given)
        if kind == "--slo" and max(map(len, (values, isls, osls))) > 1:
            raise typer.BadParameter("is asked for one rate, --isl and --osl at a time", param_hint=kind)
        number = given["--requests"]
        return cls(kind=kind, values=values, number=number, isls=isls, osls=osls, cvs=cvs, seed=seed, most=most)

    def lengths(self, isl: int, osl: int, context: int) -> tuple[TokenCounts, TokenCounts]:
        """Of prompts and answers, drawn where they are to be, and cut so that both fit a model's context."""
        from neusight.serving import Lengths

        most = min(self.most or context or UNBOUNDED * (isl + osl), context or 2**40)
        shares = (isl / (isl + osl), osl / (isl + osl))
        return tuple(
            Lengths(mean=mean, shape="lognormal", cv=cv, longest=max(mean, int(share * most))) if cv else mean
            for mean, cv, share in zip((isl, osl), self.cvs, shares, strict=True)
        )  # type: ignore[return-value]

    def load(self, value: Any, lengths: tuple[TokenCounts, TokenCounts], schedulers: int) -> Load:
        """One load of these, for a deployment with so many schedulers."""
        from neusight.serving import Offline, Open, Static, closed
        from neusight.serving.planning import ARRIVALS

        isl, osl = lengths
        if self.kind == "--trace":
            return value
        if self.kind == "--batch":
            assert isinstance(isl, int)
            assert isinstance(osl, int)
            return Static(batch=value, isl=isl, osl=osl)
        if self.kind == "--requests":
            return Offline(number=value, isl=isl, osl=osl, seed=self.seed)
        if self.kind == "--rate":
            number = self.number or ARRIVALS * schedulers
            return Open(rate_per_s=value, number=number, isl=isl, osl=osl, seed=self.seed)
        return closed(value, isl, osl, number=self.number, seed=self.seed)


def _kind(given: set[str]) -> str:
    if not given:
        raise typer.BadParameter(f"no load: give one of {', '.join(KINDS)}")
    if len(given) > 1 and given not in _BESIDE:
        raise typer.BadParameter(f"{' and '.join(sorted(given))} are two loads: give one of them")
    return min(given, key=lambda name: (name == "--requests", name != "--slo"))


def _values(kind: str, given: Mapping[str, Any]) -> list[Any]:
    if kind == "--trace":
        from neusight.serving import read_trace

        return [read_trace(Path(given[kind]).expanduser())]
    if kind in ("--batch", "--concurrency"):
        return list(_numbers(given[kind], kind, MOST_REQUESTS))
    if kind == "--requests":
        return [given[kind]]
    return rates(given["--rate"]) if given["--rate"] else [None]


def _numbers(text: str, option: str, most: int) -> list[int]:
    found = numbers(text, option)
    if max(found) > most:
        raise typer.BadParameter(f"{max(found)} cannot be: give numbers from 1 to {most}", param_hint=option)
    return found


def rates(text: str) -> list[float]:
    """``0.5,4`` as numbers.

    Raises:
        BadParameter: something else, or a number beyond all reason.
    """
    try:
        found = [float(part) for part in listed(text, "--rate")]
    except ValueError:
        raise typer.BadParameter(f"'{text}' is no list of numbers: write it like 0.5,4", param_hint="--rate") from None
    if wrong := [rate for rate in found if not SLOWEST <= rate <= FASTEST]:
        message = f"{wrong[0]:g} requests/s cannot be: give numbers from {SLOWEST:g} to {FASTEST:g}"
        raise typer.BadParameter(message, param_hint="--rate")
    return found


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Deployments and loads. ``axes`` are lists as typed of ``tp``, ``replicas`` and ``dtype``."""

    predictor: Predictor
    model: str
    gpus: Sequence[str]
    axes: Mapping[str, str]
    setup: Mapping[str, Any]
    options: EngineOptions
    overrides: Sequence[str]
    loads: Loads
    many: bool

    @property
    def context(self) -> int:
        """Of the model [tokens], 0 where it states none."""
        from neusight.workloads.decoders.known import known_decoder

        return known_decoder(self.model).max_len

    def points(self) -> Iterator[Point[ServingEstimate]]:
        """Every combination, deployment by deployment.

        Raises:
            NeusightError: what is wrong, where one point was asked for; else it stands in the point.
        """
        context, loads = self.context, self.loads
        for gpu, setup in product(self.gpus, self._setups()):
            for isl, osl in product(loads.isls, loads.osls):
                asked = {"model": self.model, "gpu": gpu, **setup, "isl": isl or None, "osl": osl or None}
                lengths = loads.lengths(isl, osl, context) if isl else (0, 0)
                if loads.kind == "--frontier":
                    yield from self._frontier(asked, setup, lengths)
                else:
                    yield from (self._point(asked, setup, value, lengths) for value in loads.values)

    def choices(self, slo: str) -> list[Choice]:
        """What holds, and what does not.

        Raises:
            BadParameter: a list where ``--slo`` takes one value. LoadError: bounds that make no sense.
        """
        from neusight.serving import Demand, Slo

        isl, osl = self.loads.lengths(self.loads.isls[0], self.loads.osls[0], self.context)
        rate = self.loads.values[0]
        demand = Demand(slo=Slo.named(slo), isl=isl, osl=osl, rate_per_s=rate, seed=self.loads.seed)
        setups = [setup for setup in self._setups() if setup["tp"] == self._setups()[0]["tp"]]
        if len(setups) > 1 or setups[0]["replicas"] > 1 or (self.loads.number is not None):
            text = "looks for the load and the replicas itself, in one --dtype: leave --replicas and --requests out"
            raise typer.BadParameter(text, param_hint="--slo")
        tps = numbers(self.axes["tp"], "--tp") if self.axes["tp"] else TPS
        gpus = [self._device(gpu) for gpu in self.gpus] if self.gpus else None
        if gpus is None and self.overrides:
            raise typer.BadParameter("changes a device: name it with --gpu", param_hint="--set")
        setup = {**self.setup, "dtype": setups[0]["dtype"]}
        return self.predictor.cheapest(self.model, gpus, demand, self.options, tps=tps, **setup)

    def _setups(self) -> list[dict[str, Any]]:
        tps, replicas = numbers(self.axes["tp"] or "1", "--tp"), numbers(self.axes["replicas"], "--replicas")
        dtypes = listed(self.axes["dtype"], "--dtype") if self.axes["dtype"] else [""]
        return [{"dtype": d, "tp": t, "replicas": r} for d, t, r in product(dtypes, tps, replicas)]

    def _device(self, gpu: str) -> DeviceSpec:
        from neusight.api import as_device

        return as_device(gpu, self.overrides)

    def _deployment(self, gpu: str, setup: Mapping[str, Any], longest: int) -> Deployment:
        return self.predictor.deployment(
            self.model, self._device(gpu), longest, self.options, **{**self.setup, **setup}
        )  # fmt: skip

    def _point(
        self, asked: dict[str, Any], setup: Mapping[str, Any], value: Any, lengths: Any
    ) -> Point[ServingEstimate]:
        from neusight.serving import serve
        from neusight.serving.load import longest_of

        asked = asked | ({self.loads.kind.removeprefix("--"): value} if self.loads.kind != "--trace" else {})
        try:
            load = self.loads.load(value, lengths, setup["replicas"] * self.setup["dp"])
            # Of what one scheduler gets: its requests are the first of the whole load.
            longest = longest_of(self.loads.load(value, lengths, 1))
            deployment = self._deployment(asked["gpu"], setup, longest)
            return Point(asked=asked, estimate=serve(deployment, load))
        except NeusightError as error:
            if not self.many:
                raise
            return Point(asked=asked, error=str(error))

    def _frontier(
        self, asked: dict[str, Any], setup: Mapping[str, Any], lengths: Any
    ) -> Iterator[Point[ServingEstimate]]:
        from neusight.serving import frontier
        from neusight.serving.load import most_tokens

        try:
            deployment = self._deployment(asked["gpu"], setup, sum(map(most_tokens, lengths)))
            found = frontier(deployment, *lengths, seed=self.loads.seed)
        except NeusightError as error:
            yield Point(asked=asked, error=str(error))
            return
        yield from (Point(asked=asked | {"concurrency": e.load["concurrency"]}, estimate=e) for e in found)
