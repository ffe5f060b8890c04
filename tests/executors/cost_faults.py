"""What must hold of costs, whoever gives them."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from neusight.executors import Costs, EnergyUse
from neusight.kernels import KernelBatch

LIMITERS = ("compute", "dram", "l2", "power", "launch", "link", "latency")


def faults(found: Costs, batch: KernelBatch) -> list[str]:
    columns = {f.name: getattr(found, f.name) for f in fields(Costs) if f.name not in ("demand", "energy")}
    columns |= {f.name: getattr(found.drawn, f.name) for f in fields(EnergyUse)}
    held = {name: np.shape(column) == (len(batch),) for name, column in columns.items()}
    low_s, high_s = found.interval_s()
    held |= {
        "finite": all(np.isfinite(c).all() for c in columns.values() if c.dtype.kind == "f"),
        "0 < bound <= latency": bool(((found.bound_s > 0) & (found.bound_s <= found.latency_s)).all()),
        "low <= latency <= high": bool(((found.low_s <= found.latency_s) & (found.latency_s <= found.high_s)).all()),
        "a lone launch's interval": bool(((low_s <= found.latency_s) & (found.latency_s < high_s)).all()),
        "bound <= low": bool((found.bound_s <= low_s * (1 + 1e-12)).all()),
        "utilisation": bool(((found.utilisation > 0) & (found.utilisation <= 1 + 1e-12)).all()),
        "overhead": bool(((found.overhead_s >= 0) & (found.overhead_s <= found.latency_s)).all()),
        "latency = overhead + bound / utilisation": np.allclose(
            found.latency_s, found.overhead_s + found.bound_s / found.utilisation
        ),
        "sources": bool((found.source != "").all() and np.isin(found.limiter, LIMITERS).all()),
        "energy": all((c >= 0).all() for c in vars(found.drawn).values()),
        "errors": all((error >= 0).all() for error in found.lone_doubts_s().values()),
    }
    return [name for name, holds in held.items() if not holds]
