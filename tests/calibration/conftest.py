"""The tile models that ship, and a GPU that none of them saw."""

from __future__ import annotations

import pytest

from neusight.devices import DeviceSpec, load_device
from neusight.executors.gpu.predictor import KernelPredictor


@pytest.fixture(scope="session")
def predictor() -> KernelPredictor:
    return KernelPredictor.load()


@pytest.fixture(scope="session")
def device() -> DeviceSpec:
    return load_device("rtx-a6000")
