"""``ServingEstimate``: what a deployment gives under a load, as an object, as plain data and as a flat row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from html import escape
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from neusight.estimates.core import RATES, EstimateCore, core
from neusight.estimates.energy import BoardEnergy
from neusight.laws.doubts import Doubts
from neusight.serving.memory import ServingMemory
from neusight.units import gib, milliseconds

if TYPE_CHECKING:
    from neusight.figures import Chart

DEGREES = ("tp", "pp", "ep", "dp")
"""Of the plan of a replica."""
LATENCIES = ("ttft", "tpot", "itl", "e2e")
"""Time to first token, time per output token, inter-token latency, and end to end."""
_LOAD_COLUMNS = ("batch", "concurrency", "request_rate", "num_prompts", "requests", "isl", "osl")
_RATES = ("output_tokens_per_s_per_device", "output_tokens_per_s_per_user")
_SUFFIXES = {"mean": "", "low": "_low", "high": "_high", "p50": "_p50", "p90": "_p90", "p95": "_p95", "p99": "_p99"}


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A mean with its 90 % interval, and percentiles over requests or tokens."""

    mean: float
    low: float
    high: float
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None


@dataclass(frozen=True, kw_only=True)
class Limiter:
    """What a kind of pass spends its time on: the largest part, its share, and what bounds its kernels."""

    part: str
    share: float
    resource: str
    parts: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class ServingEstimate(EstimateCore):
    """The answer. Times in seconds; rates are of all replicas together, those over the whole load with its ramps, and
    ``steady`` of the middle half of its output.

    Where prompts have devices of their own, ``prefill_pool`` tells them, ``plan`` and ``replicas`` are of those that
    generate, and ``transfer_s`` is what the cache's way between them adds on average.

    ``prefix_hit`` is the share of prompt tokens that the cache held. ``prefill`` and ``decode`` tell what passes with
    prompts and passes that only generate are limited by. ``diverges`` says in words that the load outgrows the
    deployment, ``warnings`` what was approximated, ``assumed`` values of fields that were left open,
    with the reason, ``question`` the words that were asked, {} where objects were given, ``given`` what measurements of
    one's own changed. ``metric_doubts`` are by metric, see ``doubts_of``; ``limiter``, the resource that most of the
    time is limited by, is of ``latency_s``, that of a whole answer; ``usd_per_hour`` is the price of one device, of
    several kinds their mean, ``price_source`` where it is from, ``unpriced`` the devices whose price is not known,
    ``launch`` the command that starts one replica, ``slo_probability`` that a service level holds, None where none is
    asked for.
    """

    model: str
    gpu: str
    engine: str
    precision: str
    kv_dtype: str
    plan: dict[str, int]
    replicas: int
    devices: int
    load: dict[str, Any]
    ttft_s: Metric
    tpot_s: Metric
    itl_s: Metric
    e2e_s: Metric
    metric_doubts: dict[str, Doubts]
    limiter: str
    output_tokens_per_s: Metric
    steady_output_tokens_per_s: Metric
    requests_per_s: float
    total_tokens_per_s: float
    mean_batch: float
    kv_use: float
    time_shares: dict[str, float]
    prefill_pool: dict[str, Any] | None = None
    transfer_s: float | None = None
    prefill: Limiter | None
    decode: Limiter | None
    memory: ServingMemory
    usd_per_hour: float | None
    price_source: str
    unpriced: tuple[str, ...]
    usd_per_million_output_tokens: float | None
    power_w: float
    token_energy: BoardEnergy
    prefix_hit: float
    preempted: int
    diverges: str
    launch: str
    warnings: tuple[str, ...]
    slo_probability: float | None = None
    assumed: Mapping[str, str] = field(default_factory=dict)
    question: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)

    latency_s = property(attrgetter("e2e_s.mean"), doc="Time of a whole answer, to the last token, on average [s].")
    memory_terms = property(attrgetter("memory.terms"), doc="Bytes of a device of the fullest stage, by term.")
    fit = property(attrgetter("memory.fit"), doc="What a device needs before any cache, of the engine's share.")
    fits = property(attrgetter("memory.fits"), doc="Whether there is room for a cache; else there is no estimate.")
    joule_per_output_token = property(attrgetter("token_energy.expected_j"), doc="Boards' energy for a token [J].")

    @property
    def doubts(self) -> Doubts:
        """Signed standard deviations of the logarithm of ``latency_s`` by key."""
        return self.metric_doubts["e2e"]

    def doubts_of(self, metric: str) -> Doubts:
        """Signed standard deviations of the logarithm of a metric by key: one of ``LATENCIES``, or as all answers."""
        name = "throughput" if metric in RATES else metric
        return self.metric_doubts[name] if name in self.metric_doubts else super().doubts_of(metric)

    @property
    def interval(self) -> tuple[float, float]:
        """90 % interval (low, high) of ``latency_s``."""
        return self.e2e_s.low, self.e2e_s.high

    def figure(self, name: str) -> Chart:
        """A chart of ``neusight.serving.figures.CHARTS``: ``memory`` or ``passes``.

        Raises:
            DataError: an unknown chart.
        """
        from neusight.figures import named
        from neusight.serving.figures import CHARTS

        return named(self, name, CHARTS)

    @property
    def memory_lines(self) -> tuple[str, str]:
        """Terms of a device's memory, and how much of it serves."""
        m = self.memory
        low, high = m.kv_tokens_interval
        cache = f"KV cache of {m.kv_tokens:,} tokens (90 %: {low:,} to {high:,}), at most {self.kv_use:.0%} used"
        terms = ", ".join(f"{name} {gib(size)}" for name, size in m.shares.items() if size)
        return terms, f"{m.fit.words} in {gib(m.capacity)} a GPU; {cache}"

    @property
    def board_energy(self) -> BoardEnergy:
        """What the boards of all devices draw in ``latency_s``."""
        return self.token_energy * (self.power_w * self.latency_s / self.joule_per_output_token)

    @property
    def output_tokens_per_s_per_device(self) -> float:
        """Output tokens a second of each device."""
        return self.output_tokens_per_s.mean / self.devices

    @property
    def output_tokens_per_s_per_user(self) -> float | None:
        """How fast an answer comes once it has begun; None where answers have one token."""
        return 1.0 / self.tpot_s.mean if self.tpot_s.mean > 0 else None

    def latency(self, name: str) -> Metric:
        """One of ``LATENCIES`` [s]."""
        metric: Metric = getattr(self, f"{name}_s")
        return metric

    @property
    def where(self) -> str:
        """All devices, in words."""
        if not self.prefill_pool:
            return f"{self.devices} x {self.gpu}"
        prompts = self.prefill_pool["devices"]
        return f"{prompts} x {self.prefill_pool['gpu']} for prompts, {self.devices - prompts} x {self.gpu} for answers"

    @property
    def headline(self) -> str:
        """The answer in a line."""
        times = f"{milliseconds(self.ttft_s.mean)} to the first token, {milliseconds(self.tpot_s.mean)} per token"
        where = self.gpu if self.devices == 1 else self.where
        return f"{self.model} on {where}, {self.engine}: {times}, {self.output_tokens_per_s.mean:,.0f} tokens/s"

    def __repr__(self) -> str:
        return f"<ServingEstimate {self.headline}, limited by {self.limiter}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the answer, its times with their intervals, what was assumed."""
        cells = "".join(_html_row(name, self.latency(name)) for name in LATENCIES)
        table = f"<table><tr><th></th><th>mean</th><th>5 %</th><th>95 %</th></tr>{cells}</table>"
        notes = "".join(f"<li>{escape(text)}</li>" for text in (self.diverges, *self.warnings) if text)
        return f"<p><b>{escape(self.headline)}</b></p>{table}{f'<ul>{notes}</ul>' if notes else ''}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the core of every estimate, and what a load has besides."""
        memory = asdict(self.memory) | {"fits": self.memory.fits}
        own = {name: value for name, value in asdict(self).items() if name != "metric_doubts"}
        return core(self) | own | self._named(*_RATES) | {"memory": memory}

    def row(self) -> dict[str, Any]:
        """One flat row for tables and CSV, times in milliseconds; None where a figure is not there."""
        rate, energy = self.output_tokens_per_s, self.token_energy
        return {
            **self._named("model", "gpu", "engine", "precision", "kv_dtype"),
            **self.plan,
            **self._named("replicas", "devices"),
            "load": self.load["kind"],
            **{name: self.load.get(name) for name in _LOAD_COLUMNS},
            **{key: value for name in LATENCIES for key, value in _latency_columns_ms(name, self.latency(name))},
            "output_tokens_per_s": rate.mean,
            "output_tokens_per_s_low": rate.low,
            "output_tokens_per_s_high": rate.high,
            "steady_output_tokens_per_s": self.steady_output_tokens_per_s.mean,
            **self._named(*_RATES, "total_tokens_per_s", "requests_per_s", "mean_batch", "kv_use"),
            "kv_tokens": self.memory.kv_tokens,
            **{f"{name}_share": value for name, value in self.time_shares.items()},
            **_limiter_columns("prefill", self.prefill),
            **_limiter_columns("decode", self.decode),
            **self._named("usd_per_million_output_tokens", "joule_per_output_token"),
            "joule_per_output_token_low": energy.low_j,
            "joule_per_output_token_high": energy.high_j,
            **self._named("power_w", "prefix_hit", "preempted", "diverges", "slo_probability"),
        }

    def _named(self, *names: str) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names}


def _html_row(name: str, metric: Metric) -> str:
    texts = name, *map(milliseconds, (metric.mean, metric.low, metric.high))
    return f"<tr>{''.join(f'<td>{text}</td>' for text in texts)}</tr>"


def _latency_columns_ms(name: str, metric: Metric) -> list[tuple[str, float | None]]:
    values = {suffix: getattr(metric, statistic) for statistic, suffix in _SUFFIXES.items()}
    return [(f"{name}{suffix}_ms", None if value is None else value * 1e3) for suffix, value in values.items()]


def _limiter_columns(phase: str, limiter: Limiter | None) -> dict[str, str | None]:
    names = {f"{phase}_limiter": "part", f"{phase}_resource": "resource"}
    return {column: getattr(limiter, name, None) for column, name in names.items()}
