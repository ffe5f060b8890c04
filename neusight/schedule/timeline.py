"""One device, one stream: kernels follow each other, launches overlap with execution, and neither the host nor the
memory can be outrun.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

import numpy as np

from neusight.devices.spec import DeviceSpec
from neusight.engines import Engine, Host, Libraries
from neusight.executors.costs import LAUNCH, LAUNCH_SPREAD, Costs, binding_share, cause_of
from neusight.executors.pricing import sharing_power
from neusight.laws.doubts import NORMAL_90, OWN, common, spread
from neusight.plans.program import TracedStep
from neusight.quick_dataclasses import dataclass
from neusight.requests import Request
from neusight.units import decimal

COMPOSITION_SPREAD = 0.1
"""Standard deviation of the log error of a step as the sum of its operators: sums of measured operators miss measured
steps by 8.7 % on average, on GPUs of all kinds (``experiments/asplos25``), which is 0.11 of a normal error. Without it
86 % of 214 measured steps of nine sources are in their intervals, with it 91 %."""
HOST, COMPOSITION, LIBRARIES = "host", "composition:", "libraries:"
"""Causes of keys of doubts, see ``laws.doubts``: of hosts of devices by engine, of steps by model."""

Errors = dict[str, np.ndarray]
"""Signed standard deviations in seconds by key of ``laws.doubts``, columns of shape (n,)."""


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Time in which no kernel runs although the step is not over.

    ``errors_s`` are signed: where the host decides how long a step takes, errors of the kernels cancel.
    """

    what: str
    limiter: str
    latency_s: float
    low_s: float
    high_s: float
    bound_s: float = 0.0
    errors_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Timeline:
    """A program with its times: for each of its batches the costs in the stream, with errors of one launch by key,
    and what the stream waits for.
    """

    program: TracedStep
    costs: tuple[Costs, ...]
    errors_s: tuple[Errors, ...]
    waits: tuple[Wait, ...]


def one_stream(
    program: TracedStep,
    costs: Sequence[Costs],
    device: DeviceSpec,
    engine: Engine,
    host: Host | None = None,
    *,
    libraries: Libraries | None = None,
) -> Timeline:
    """The program's kernels one after the other, at the clock that their power allows together.

    Args:
        program: what runs.
        costs: of each of its batches, launched alone.
        device: gives the interval between launches, and the memory that distinct bytes come from.
        engine: gives the host of steps that follow each other.
        host: of a step that is called while the device rests.
        libraries: of other versions than those that kernels were measured with.
    """
    counts = [program.counts[at] for _, at in program.batches]
    # A host that is known has its own time for each kernel.
    interval_s = launch_interval_s(engine, device) if host is None else 0.0
    if libraries is not None:
        costs = [c.times(libraries.factor) for c in costs]
    costs_alone = [in_stream(c, interval_s) for c in costs]
    stream = sharing_power(costs_alone, counts)
    composition = composition_key(program.workload.request, engine, device)
    single = [stream_errors_s(c, interval_s, composition, libraries) for c in costs]
    errors = tuple(
        {key: size_s * now.latency_s / before.latency_s for key, size_s in errors_s.items()}
        for now, before, errors_s in zip(stream, costs_alone, single, strict=True)
    )
    totals = _totals(stream, errors, counts)
    if host is not None:
        engine = replace(
            engine, host_s_per_call=-host.ahead_s, host_s_per_operator=host.operator_s, host_spread=host.spread
        )
    cause = cause_of(device, engine.name, HOST)
    dispatch = _host_wait(totals, program.dispatches, engine, cause)
    memory = _memory_wait(totals, dispatch, program.traffic_bytes, device)
    waits = (None if host is None else _call(host, cause), dispatch, memory)
    return Timeline(program, tuple(stream), errors, tuple(w for w in waits if w is not None))


def composition_key(request: Request, engine: Engine, device: DeviceSpec) -> str:
    """Key of the error of a step as the sum of its operators: mostly of that very step, less of its model."""
    words = (request.mode, request.batch, request.seq_len, request.dtype, engine.name, device.id)
    return f"{COMPOSITION}{request.model.replace('/', ' ')}/{' '.join(map(str, words))}"


def _call(host: Host, cause: str) -> Wait:
    """Wait of a device at rest until its first kernel arrives."""
    doubt = float(np.exp(NORMAL_90 * host.spread))
    before_s = host.before_s
    return Wait(
        what="call of the step",
        limiter="host",
        latency_s=before_s,
        low_s=before_s / doubt,
        high_s=before_s * doubt,
        errors_s=common(cause, before_s * host.spread),
    )


def launch_interval_s(engine: Engine, device: DeviceSpec) -> float:
    """Between two launches from one thread [s]; kernels of a graph follow each other without the host."""
    return 0.0 if engine.launch == "graph" else device.launch_overhead_s


def in_stream(single: Costs, interval_s: float) -> Costs:
    """Costs of kernels that follow each other in a stream, from those of single launches.

    A kernel timed alone pays its launch, ``single = overhead + execution``. In a stream the host launches the next
    kernel while this one executes, so that a launch costs nothing until execution is shorter than the interval between
    launches, which then limits:

        stream = max(single - overhead, interval)

    Args:
        single: of single launches.
        interval_s: time between two launches from one host thread [s], known within ``LAUNCH_SPREAD``.
    """
    doubt = np.exp(NORMAL_90 * LAUNCH_SPREAD)
    ends = ((single.latency_s, 1.0), (single.low_s, 1.0 / doubt), (single.high_s, doubt))
    latency_s, low_s, high_s = (np.maximum(part - single.overhead_s, interval_s * factor) for part, factor in ends)
    return replace(
        single,
        latency_s=latency_s,
        low_s=low_s,
        high_s=high_s,
        overhead_s=np.zeros_like(latency_s),
        limiter=np.where(single.execution_s < interval_s, "launch", single.limiter),
    )


def stream_errors_s(single: Costs, interval_s: float, composition: str, libraries: Libraries | None = None) -> Errors:
    """Errors of kernels in the stream by key: of the launches as far as those bind, else of the execution.

    Args:
        single: costs of single launches.
        interval_s: time between two launches from one host thread [s].
        composition: key of the error of a step as the sum of its operators.
        libraries: of other versions than those that kernels were measured with.
    """
    execution_s = single.execution_s
    ratio_spread = np.hypot(np.hypot(single.spread, single.own_spread), LAUNCH_SPREAD)
    launch = binding_share(np.full_like(execution_s, interval_s), execution_s, ratio_spread)
    latency_s = np.maximum(execution_s, interval_s)
    version = {} if libraries is None else {LIBRARIES: (1.0 - launch) * execution_s * libraries.spread}
    return {
        **version,
        **{key: (1.0 - launch) * size_s for key, size_s in single.doubts_s().items()},
        f"{LAUNCH}{single.die}": launch * latency_s * LAUNCH_SPREAD,
        **common(composition, latency_s * COMPOSITION_SPREAD),
    }


@dataclass(frozen=True)
class _Totals:
    """Sums over a stream: expected time, its ends, the kernels' bounds, and errors by source."""

    latency_s: float
    low_s: float
    high_s: float
    bound_s: float
    errors_s: dict[str, float]

    @property
    def spread(self) -> float:
        """Standard deviation of the logarithm of the time."""
        return spread(self.errors_s) / self.latency_s if self.latency_s else 0.0


def _totals(stream: Sequence[Costs], errors: Sequence[Errors], counts: Sequence[np.ndarray]) -> _Totals:
    sums = {
        name: sum(float((n * getattr(c, name)).sum()) for c, n in zip(stream, counts, strict=True))
        for name in ("latency_s", "low_s", "high_s", "bound_s")
    }
    by_key: dict[str, float] = {}
    for of, n in zip(errors, counts, strict=True):
        for key, column in of.items():
            # Kernels' own errors are independent of each other, all others are shared.
            own = key.startswith(OWN)
            by_key[key] = by_key.get(key, 0.0) + float((np.square(n * column) if own else n * column).sum())
    return _Totals(**sums, errors_s={key: size**0.5 if key.startswith(OWN) else size for key, size in by_key.items()})


_NEVER = 1e-3
"""A host that decides with less than this probability is not worth a row."""


def _host_wait(kernels: _Totals, dispatches: float, engine: Engine, cause: str) -> Wait | None:
    """The wait for the host: a step cannot end before its last operator is dispatched.

    The faster the device and the slower the host, the longer it waits.
    """
    host_s = max(0.0, engine.host_s_per_call + dispatches * engine.host_s_per_operator)
    ratio_spread = np.hypot(kernels.spread, engine.host_spread)
    decides = float(binding_share(np.array(host_s), np.array(kernels.latency_s), ratio_spread))
    if decides < _NEVER:
        return None
    doubt = float(np.exp(NORMAL_90 * engine.host_spread))
    ends = ((kernels.latency_s, 1.0), (kernels.high_s, 1.0 / doubt), (kernels.low_s, doubt))
    latency_s, low_s, high_s = (max(0.0, host_s * factor - total) for total, factor in ends)
    shared = {key: -decides * size for key, size in kernels.errors_s.items() if not key.startswith(OWN)}
    return Wait(
        what="dispatch of operators",
        limiter="host",
        latency_s=latency_s,
        low_s=low_s,
        high_s=high_s,
        errors_s=shared | common(cause, decides * host_s * engine.host_spread),
    )


def _memory_wait(kernels: _Totals, host: Wait | None, traffic: Sequence[int], device: DeviceSpec) -> Wait | None:
    """Bound that a step's distinct bytes add to those of its kernels, and the wait where the kernels' time were
    shorter.

    A kernel's own bound charges DRAM with the bytes beyond L2 alone, since what it reads may lie there; a step's
    distinct bytes cannot all lie there.
    """
    beyond = sum(max(0.0, size - device.cached_bytes) for size in traffic)
    bound_s = beyond / device.dram_bandwidth_bytes_per_s
    if bound_s <= kernels.bound_s:
        return None
    missing_s = max(0.0, bound_s - kernels.latency_s - (host.latency_s if host else 0.0))
    return Wait(
        what=f"{decimal(beyond / 1e9)} GB of distinct bytes beyond L2",
        limiter="dram",
        latency_s=missing_s,
        low_s=missing_s,
        high_s=missing_s,
        bound_s=bound_s - kernels.bound_s,
    )
