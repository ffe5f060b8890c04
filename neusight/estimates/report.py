"""An estimate as people and scripts read it: milliseconds, shares and verdicts, flat enough to print."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from neusight.estimates.estimate import Estimate
from neusight.estimates.records import KernelEstimate, OperatorEstimate


def report(estimate: Estimate) -> dict[str, Any]:
    """Plain data for JSON: times in ms, memory in bytes, shares from 0 to 1. ``to_dict`` is the lossless form."""
    low_s, high_s = estimate.interval
    return {
        "model": estimate.model,
        "gpu": estimate.gpu,
        "devices": estimate.devices,
        "mode": estimate.mode,
        "batch": estimate.batch,
        "seq_len": estimate.seq_len,
        "inputs": list(estimate.inputs),
        "dtype": estimate.dtype,
        "optimizer": estimate.optimizer,
        "attention": estimate.attention,
        "latency_ms": estimate.latency_s * 1e3,
        "interval_ms": [low_s * 1e3, high_s * 1e3],
        "errors": estimate.errors,
        "samples_per_s": estimate.samples_per_s,
        "tokens_per_s": estimate.tokens_per_s,
        "bound_ms": estimate.bound_s * 1e3,
        "limiter": estimate.limiter,
        "by_phase_ms": {phase: seconds * 1e3 for phase, seconds in estimate.by_phase.items()},
        "by_operator": [operator_row(row) for row in estimate.by_operator],
        "by_kernel": [kernel_row(row) for row in costliest(estimate)],
        "memory_bytes": {
            **estimate.memory.parts,
            "peak": estimate.memory.peak_bytes,
            "reserve": estimate.memory.reserve,
            "capacity": int(estimate.memory.capacity_bytes),
        },
        "fits": estimate.fits,
        "coverage": estimate.coverage,
        "energy_j": estimate.energy_j,
        "warnings": list(estimate.warnings),
        "provenance": {
            **asdict(estimate.provenance),
            "in_domain": estimate.in_domain,
            "gpu_in_training": estimate.gpu in estimate.provenance.training_gpus,
        },
    }


def operator_row(row: OperatorEstimate) -> dict[str, Any]:
    """One operator, latency in ms."""
    return {
        "operator": row.operator,
        "phase": row.phase,
        "count": row.count,
        "latency_ms": row.latency_s * 1e3,
        "share": row.share,
        "limiter": row.limiter,
    }


def kernel_row(row: KernelEstimate) -> dict[str, Any]:
    """One kernel, times of one launch in ms; ``total_ms`` is of all."""
    return {
        "kernel": row.kernel,
        "family": row.family,
        "operator": row.operator,
        "phase": row.phase,
        "count": row.count,
        "latency_ms": row.latency_s * 1e3,
        "interval_ms": [row.low_s * 1e3, row.high_s * 1e3],
        "total_ms": row.total_s * 1e3,
        "bound_ms": row.bound_s * 1e3,
        "utilisation": row.utilisation,
        "limiter": row.limiter,
        "tile": row.tile,
        "tile_count": row.tile_count,
        "waves": row.waves,
        "in_domain": row.in_domain,
        "outside": row.outside,
        "source": row.source,
    }


def costliest(estimate: Estimate) -> list[KernelEstimate]:
    """Kernels by their share of the latency, largest first."""
    return sorted(estimate.by_kernel, key=lambda row: -row.total_s)
