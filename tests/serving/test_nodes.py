"""Replicas that span nodes: what they exchange crosses a network, and what stays inside does not change."""

from __future__ import annotations

import numpy as np
import pytest

from neusight import Predictor
from neusight.devices import load_device
from neusight.devices.cluster import usual_per_node
from neusight.errors import DeviceError
from neusight.questions import FieldError, Serving
from neusight.serving import Closed
from neusight.serving.passes import ReplicaPricer
from neusight.workloads.decoders.shares import Steps

MODEL = "meta-llama/Llama-3.1-70B"
STEPS = Steps.of(prompts=[1, 0], prompt_tokens=[2048, 0], decodes=[0, 32], decode_cached=[0, 1000])


def replica(predictor: Predictor, gpu: str = "h100-sxm-80gb", model: str = MODEL, **setup: object) -> ReplicaPricer:
    return predictor.deployment(model, gpu, 4096, **setup).replica


def test_one_node_has_no_cluster(predictor: Predictor) -> None:
    assert replica(predictor, tp=8).cluster is None
    assert replica(predictor, "gb200-186gb", tp=16).cluster is None
    assert usual_per_node(load_device("gb200-186gb")) == 72
    assert usual_per_node(load_device("l4")) == 8
    two = replica(predictor, tp=16).cluster
    assert two is not None
    assert (two.nodes, two.per_node) == (2, 8)


def test_ranks_of_several_nodes_exchange_over_a_network(predictor: Predictor) -> None:
    inside = replica(predictor, tp=16, per_node=16).predict(STEPS)
    across = replica(predictor, tp=16).predict(STEPS)
    # An InfiniBand adapter a device is assumed: long messages take half as long again, short ones five times as long.
    assert (across.groups_s["collectives"] > np.array([1.3, 3.0]) * inside.groups_s["collectives"]).all()
    for group in ("products", "context", "decode", "rest"):
        assert across.groups_s[group] == pytest.approx(inside.groups_s[group])


def test_a_faster_network_is_faster(predictor: Predictor) -> None:
    times = [
        replica(predictor, tp=16, network=network).predict(STEPS).latency_s
        for network in ("8 x 100Gb/s ethernet", "8 x 200Gb/s", "8 x 800Gb/s")
    ]
    assert (times[0] > times[1]).all()
    assert (times[1] > times[2]).all()


def test_stages_send_each_other_the_stream_and_no_more(predictor: Predictor) -> None:
    """Of two stages each is a node: what tensor-parallel ranks exchange stays inside."""
    one, two = (replica(predictor, tp=8, pp=2, per_node=n).predict(STEPS) for n in (16, 8))
    sent = "send to the next stage"
    assert (two.parts_s[sent] > one.parts_s[sent]).all()
    reduced = [sum(s for name, s in c.parts_s.items() if name.startswith("reduce")) for c in (one, two)]
    assert reduced[0] == pytest.approx(reduced[1])
    # Rank by rank, a slice of 2,048 tokens of 8,192 values in 16 bits over an adapter of 50 GB/s.
    assert two.parts_s[sent][0] > 2048 * 8192 * 2 / 8 / 50e9
    assert sent not in replica(predictor, tp=8).predict(STEPS).parts_s


def test_experts_over_nodes_are_reached_over_the_network(predictor: Predictor) -> None:
    setup = {"model": "deepseek-ai/DeepSeek-R1", "dp": 16, "ep": 16}
    inside, across = (replica(predictor, per_node=n, **setup).predict(STEPS) for n in (16, 8))
    assert (across.groups_s["collectives"] > 1.03 * inside.groups_s["collectives"]).all()
    assert np.isclose(across.groups_s["experts"], inside.groups_s["experts"]).all()


def test_an_unknown_network_is_stated(predictor: Predictor) -> None:
    load = Closed(concurrency=2, num_prompts=4, isl=64, osl=8)
    unknown = predictor.serving(MODEL, "h100-sxm-80gb", load, tp=16)
    known = predictor.serving(MODEL, "h100-sxm-80gb", load, tp=16, network="8 x 400Gb/s")
    assert any("2 nodes of 8 devices, whose network is unknown" in text for text in unknown.warnings)
    assert not any("network" in text for text in known.warnings)


def test_what_is_no_network_or_node_is_refused(predictor: Predictor) -> None:
    with pytest.raises(DeviceError, match="write it like 400Gb/s"):
        replica(predictor, tp=16, network="fast")
    with pytest.raises(FieldError, match="per_node -1 is out of range"):
        Serving(model="Qwen/Qwen3-8B", per_node=-1)
