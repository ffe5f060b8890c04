"""The contract of executors: what every kind of device answers, whichever machine it is."""

from __future__ import annotations

from dataclasses import fields
from itertools import product

import numpy as np
import pytest
from cost_faults import faults
from kernel_grids import MAKERS, grid

from neusight.devices import DeviceSpec, device_ids, load_device
from neusight.errors import DeviceError
from neusight.executors import Options, load_executor
from neusight.executors.base import _HOMES
from neusight.kernels import KernelBatch

PROVENANCE = {"tile_models", "training_gpus", "calibration"}
OPTIONS = {f.name for f in fields(Options)}


def devices(kind: str) -> list[DeviceSpec]:
    found = [load_device(gpu) for gpu in device_ids()]
    return [device for device in found if device.kind == kind]


@pytest.mark.parametrize("kind", _HOMES)
def test_costs_of_every_family(kind: str) -> None:
    executor, wrong = load_executor(kind), []
    for device, family in product(devices(kind), MAKERS):
        batch = grid(family, n=40 if kind == "gpu" else 12)
        found = faults(executor.cost(batch, device, Options()), batch)
        wrong += [(device.id, family, found)] if found else []
    assert wrong == []
    assert len(devices(kind)) >= (40 if kind == "gpu" else 2)


@pytest.mark.parametrize("kind", _HOMES)
def test_products_take_energy_wherever_they_run(kind: str) -> None:
    executor = load_executor(kind)
    for device in devices(kind):
        products = KernelBatch.from_columns("gemm", m=[64, 512, 4096], n=64, k=64, dtype="float32")
        drawn_j = executor.cost(products, device, Options()).drawn.total_j
        assert (drawn_j > 0.0).all() and (np.diff(drawn_j) > 0.0).all(), device.id


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
    lacking = [d for d in devices(kind) if "float8" not in {*d.matrix_flops_per_s, *d.vector_flops_per_s}]
    for device in lacking:
        with pytest.raises(DeviceError, match="does not compute in float8"):
            executor.cost(grid("gemm", n=2, dtype="float8"), device, Options())
    assert lacking


def test_a_kind_without_an_executor_is_named_with_those_that_have_one() -> None:
    with pytest.raises(DeviceError, match=r"kind 'abacus': one of gpu, systolic, microcontroller, tensordash"):
        load_executor("abacus")
