"""An optimizer on the host: its cores update all parameters of a node, and copies cross each device's link."""

from __future__ import annotations

from typing import Any

import pytest

from neusight import Predictor, load_device
from neusight.devices import cluster_of
from neusight.distributed.exchanges import exchanged
from neusight.distributed.host import HOST_UPDATE_S
from neusight.distributed.sources import source_of
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


def test_weights_on_the_host_come_to_the_device_before_each_gather() -> None:
    """A device's eighth of a layer's weights in 16 bits, twice a micro-batch (ZeRO-Infinity)."""
    words: dict[str, Any] = {"model": "llama2-7b", "gpu": "a100-sxm-80gb", "dp": 8, "shard": "zero3",
                             "global_batch_size": 8, "engine": "deepspeed"}  # fmt: skip
    run, plain = (Training.named(words | more).resolve() for more in ({"offload": "parameters"}, {}))
    layer = source_of(run).program(run).layers[0]
    (copy,) = [part for part in exchanged(layer, run) if part.batch["op"][0] == "host_copy"]
    assert copy.batch["bytes"][0] * copy.runs == pytest.approx(2 * layer.parameters / 8, rel=1e-3)
    assert not [part for part in exchanged(layer, plain) if part.batch["op"][0] == "host_copy"]
