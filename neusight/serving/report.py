"""An answer under a load as one flat row, with times in milliseconds: for tables and CSV."""

from __future__ import annotations

from typing import Any

from neusight.serving.answer import Figure, Limiter, ServingEstimate
from neusight.serving.slo import Choice

TIMES = ("ttft", "tpot", "itl", "e2e")
ASKED = ("batch", "concurrency", "rate_per_s", "number", "requests", "isl", "osl")
CHOICE = ("gpu", "tp", "holds", "holds_when_slow", "usd_per_hour", "reason")
"""Keys of a ``choice_row`` whether it holds or not."""
DEGREES = ("tp", "pp", "ep", "dp")


def serving_row(e: ServingEstimate) -> dict[str, Any]:
    """Keys in the order of columns; None where a figure is not there."""
    return {
        **{"model": e.model, "gpu": e.gpu, "engine": e.engine, "precision": e.precision, "kv_dtype": e.kv_dtype},
        **{name: e.sharding[name] for name in DEGREES},
        **{"replicas": e.replicas, "devices": e.devices, "load": e.load["kind"]},
        **{name: e.load.get(name) for name in ASKED},
        **{key: value for time in TIMES for key, value in _time_ms(time, getattr(e, f"{time}_s")).items()},
        **_rates(e),
        **{"mean_batch": e.mean_batch, "kv_use": e.kv_use, "kv_tokens": e.memory.kv_tokens},
        **{f"{share}_share": value for share, value in e.time_shares.items()},
        **_limited("prefill", e.prefill),
        **_limited("decode", e.decode),
        "usd_per_million_output_tokens": e.usd_per_million_output_tokens,
        "joule_per_output_token": e.joule_per_output_token,
        "power_w": e.power_w,
        "preempted": e.preempted,
        "diverges": e.diverges,
    }


def choice_row(choice: Choice) -> dict[str, Any]:
    """Of a deployment that was looked at, with the figures of what it holds."""
    row = {
        "gpu": choice.gpu,
        "tp": choice.tp,
        "holds": choice.estimate is not None,
        "holds_when_slow": choice.holds_when_slow,
        "usd_per_hour": choice.usd_per_hour,
        "reason": choice.reason,
    }
    return row if choice.estimate is None else serving_row(choice.estimate) | row


def _time_ms(name: str, figure: Figure) -> dict[str, Any]:
    told = {"mean": "", "low": "_low", "high": "_high", "p50": "_p50", "p90": "_p90", "p95": "_p95", "p99": "_p99"}
    values = {end: getattr(figure, stat) for stat, end in told.items()}
    return {f"{name}{end}_ms": None if value is None else value * 1e3 for end, value in values.items()}


def _rates(e: ServingEstimate) -> dict[str, Any]:
    rate = e.output_tokens_per_s
    return {
        "output_tokens_per_s": rate.mean,
        "output_tokens_per_s_low": rate.low,
        "output_tokens_per_s_high": rate.high,
        "steady_output_tokens_per_s": e.steady_output_tokens_per_s.mean,
        "output_tokens_per_s_per_device": e.output_tokens_per_s_per_device,
        "output_tokens_per_s_per_user": e.output_tokens_per_s_per_user,
        "total_tokens_per_s": e.total_tokens_per_s,
        "requests_per_s": e.requests_per_s,
    }


def _limited(phase: str, limiter: Limiter | None) -> dict[str, Any]:
    part, resource = (limiter.part, limiter.resource) if limiter else (None, None)
    return {f"{phase}_limiter": part, f"{phase}_resource": resource}
