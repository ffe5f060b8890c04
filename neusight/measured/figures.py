"""What an estimate says of a measured column, with the ends of its 90 % interval."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from neusight.devices import load_device
from neusight.engines.torch import TORCH
from neusight.errors import DataError
from neusight.estimates.energy import around
from neusight.measured.table import STATISTIC
from neusight.plans.margins import MemoryFit, interval_bytes
from neusight.plans.states import workspace_bytes
from neusight.serving.slo import Slo

Figure = tuple[float, float, float]
_NO = float("nan")
"""End of an interval that is not stated."""


def figure_of(estimate: Any, name: str, measured: Collection[str] = ()) -> Figure:
    """A measured column of an estimate, in the column's unit.

    Args:
        estimate: of the row's question.
        name: of the column, or a service level.
        measured: all columns that the row measured: energy of a token is power over the rate beside it.

    Raises:
        DataError: the estimate does not say such a figure.
    """
    if "=" in name:
        return Slo.named(name).probability(estimate), _NO, _NO
    statistic = STATISTIC.search(name)
    base = STATISTIC.sub("", name, count=1)
    if base in _LATENCIES and hasattr(estimate, "latency"):
        return _latency(estimate.latency(base.removesuffix("_ms")), statistic[1] if statistic else "mean")
    if name == "energy_per_token_j" and hasattr(estimate, "token_energy"):
        return _token_energy(estimate, "steady_tokens_per_s" in measured)
    if name in MEMORY_FIGURES and hasattr(estimate, "fit"):
        ranks = estimate.memory
        allocated = ranks[-1].allocated if isinstance(ranks, tuple) else _allocated(estimate)
        return memory_figure(name, estimate.fit, allocated)
    try:
        return _FIGURES[name](estimate)
    except (KeyError, AttributeError):
        raise DataError(f"an answer to this question has no {name}: leave out the column") from None


def _allocated(estimate: Any) -> float:
    """Peak of PyTorch's allocator [B]: tensors and workspaces of cuBLAS, which it holds too."""
    device = load_device(estimate.gpu)
    workspaces = workspace_bytes(device, TORCH, backward=estimate.mode == "training") if device.has_driver else 0.0
    return float(estimate.peak_bytes + workspaces)


def memory_figure(name: str, fit: MemoryFit, allocated: float) -> Figure:
    """A measured column of ``MEMORY_FIGURES`` with its interval: what the fullest rank needs, and the peak that is
    ``allocated`` [B], on whichever rank that is, with the same doubt as a share.
    """
    if name not in OMITS:
        return fit.probability if name == "fits" else 1.0 - fit.probability, _NO, _NO
    terms = {term: size for term, size in fit.terms.items() if term not in OMITS[name]}
    total = sum(terms.values())
    scale = allocated / total if name == "peak_allocated_bytes" and total else 1.0
    low, high = interval_bytes(terms, fit.shares)
    return scale * total, scale * low, scale * high


_LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")


def _latency(metric: Any, statistic: str) -> Figure:
    """A latency of a served model in ms. The last sequence of a batch is its 99th percentile."""
    value = getattr(metric, {"max": "p99"}.get(statistic, statistic)) or metric.mean
    scale = 1e3 * value / metric.mean
    return scale * metric.mean, scale * metric.low, scale * metric.high


def _time(estimate: Any) -> Figure:
    return 1e3 * estimate.latency_s, 1e3 * estimate.low_s, 1e3 * estimate.high_s


def _energy(estimate: Any) -> Figure:
    energy = estimate.board_energy
    if energy is None:
        raise DataError("the energy of this device is not known")
    return energy.expected_j, energy.low_j, energy.high_j


def _rate(name: str) -> Callable[[Any], Figure]:
    return lambda estimate: (getattr(estimate, name).mean, getattr(estimate, name).low, getattr(estimate, name).high)


def _token_energy(estimate: Any, steady: bool) -> Figure:
    """Energy of an output token of all boards, at the rate that was measured beside it."""
    rate = estimate.steady_output_tokens_per_s if steady else estimate.output_tokens_per_s
    energy = estimate.token_energy * (estimate.power_w / rate.mean / estimate.token_energy.expected_j)
    return energy.expected_j, energy.low_j, energy.high_j


def _power(estimate: Any) -> Figure:
    """Power of all boards, with the interval of one of them."""
    board = around(load_device(estimate.gpu), estimate.power_w / estimate.devices, (1.0, 1.0, 1.0))
    return estimate.power_w, estimate.devices * board.low_j, estimate.devices * board.high_j


_FIGURES: Mapping[str, Callable[[Any], Figure]] = {
    "latency_ms": _time,
    "step_ms": _time,
    "energy_j": _energy,
    "tokens_per_s": _rate("output_tokens_per_s"),
    "steady_tokens_per_s": _rate("steady_output_tokens_per_s"),
    "power_w": _power,
    "mean_batch": lambda estimate: (estimate.mean_batch, _NO, _NO),
}
OMITS = {"peak_device_bytes": (), "peak_reserved_bytes": ("context",), "peak_allocated_bytes": ("context", "fragments")}
"""Peaks of memory, and the terms of a process that each omits."""
MEMORY_FIGURES = ("fits", "oom", *OMITS)
