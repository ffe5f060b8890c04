"""The contract of executors: what every kind of device answers, whichever machine it is."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from kernel_grids import MAKERS, grid

from neusight.devices import DeviceSpec, device_ids, load_device
from neusight.errors import DeviceError
from neusight.executors import Costs, EnergyUse, Options, load_executor
from neusight.executors.base import _HOMES
from neusight.kernels import KernelBatch

PROVENANCE = {"tile_models", "training_gpus", "calibration"}
OPTIONS = {f.name for f in fields(Options)}


def devices(kind: str) -> list[DeviceSpec]:
    found = [load_device(gpu) for gpu in device_ids()]
    return [device for device in found if device.kind == kind][:3]


def faults(found: Costs, batch: KernelBatch) -> list[str]:
    columns = {f.name: getattr(found, f.name) for f in fields(Costs) if f.name not in ("demand", "energy")}
    if found.energy is not None:
        columns |= {f.name: getattr(found.energy, f.name) for f in fields(EnergyUse)}
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
        "sources": bool((found.source != "").all() and (found.limiter != "").all()),
        "errors": all((error >= 0).all() for error in found.errors_s().values()),
    }
    return [name for name, holds in held.items() if not holds]


@pytest.mark.parametrize("kind", _HOMES)
def test_costs_of_every_family(kind: str) -> None:
    executor = load_executor(kind)
    assert devices(kind)
    wrong = []
    for device in devices(kind):
        for family in MAKERS:
            batch = grid(family, n=12)
            found = executor.cost(batch, device, Options())
            again = executor.cost(batch.take(np.arange(len(batch))[::-1]), device, Options())
            # float32 arithmetic of tile models depends on the rows beside by a rounding or two
            if faults(found, batch) or not np.allclose(again.latency_s[::-1], found.latency_s, rtol=1e-5):
                wrong.append((device.id, family, faults(found, batch)))
    assert wrong == []


@pytest.mark.parametrize("kind", _HOMES)
def test_what_an_executor_says_of_itself(kind: str) -> None:
    executor = load_executor(kind)
    assert executor.takes <= OPTIONS | {"sparsity"}
    for device in devices(kind):
        assert executor.provenance(device).keys() <= PROVENANCE
        for has_zeros in (True, False):
            advice = executor.advice(device, has_zeros)
            assert isinstance(advice, tuple) and all(line and "\n" not in line for line in advice)
        # Zeros that mean nothing there are answered by a line.
        assert bool(executor.advice(device, True)) == ("sparsity" not in executor.takes)
        with pytest.raises(DeviceError, match="does not compute in float8"):
            executor.cost(grid("gemm", n=2, dtype="float8"), device, Options())


def test_a_kind_without_an_executor_is_named_with_those_that_have_one() -> None:
    with pytest.raises(DeviceError, match=r"kind 'abacus': one of gpu, tensordash"):
        load_executor("abacus")
