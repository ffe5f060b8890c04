"""An optimizer on the host: its cores update all parameters of a node, and copies cross each device's link."""

from __future__ import annotations

from typing import Any

import pytest

from neusight import Predictor, load_device
from neusight.devices import cluster_of
from neusight.distributed.host import HOST_UPDATE_S
from neusight.laws.routes import host_link
from neusight.questions import Training


def test_the_host_updates_what_the_devices_hold(predictor: Predictor) -> None:
    """By the formula: 8 billion parameters at 0.25 ns, whoever holds them, and 2 bytes of each there and back."""
    cluster = cluster_of("h100-sxm-80gb", 8, 1)
    given: dict[str, Any] = {"tp": 8, "global_batch_size": 8, "seq_len": 2048}
    plain, offloaded = (
        predictor.timed(Training.named({"model": "llama-3.1-8b", "cluster": cluster, **(given | more)}).resolve())
        for more in ({}, {"offload": "optimizer"})
    )
    parameters = 8.03e9
    assert offloaded.times.optimizer.sum() == pytest.approx(parameters * HOST_UPDATE_S, rel=0.03)
    link = host_link(load_device("h100-sxm-80gb")).bandwidth_bytes_per_s
    assert offloaded.times.to_device.sum() == pytest.approx(2 * parameters / 8 / link, rel=0.03)
    assert offloaded.times.to_host.sum() == pytest.approx(offloaded.times.to_device.sum())
    assert offloaded.schedule.step_s > plain.schedule.step_s
