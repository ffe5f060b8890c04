"""Passes whose kernels a host launches one by one: as long as it needs, or as its kernels take."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from neusight.api import Predictor
from neusight.devices import load_device
from neusight.engines import server_named
from neusight.engines.limits import Site
from neusight.engines.server import HOST
from neusight.serving import PassSizes, Setup
from neusight.serving.passes import ReplicaPricer
from neusight.workloads.decoders.architecture import decoder_of
from neusight.workloads.decoders.shares import Steps
from neusight.workloads.dispatch import DISPATCHES

CONFIG = {
    "model_type": "llama", "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 6,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 8192,
}  # fmt: skip
STEPS = Steps.of(prompts=[0, 1, 1], prompt_tokens=[0, 256, 8192], decodes=[4, 4, 4], decode_cached=512)


def replica(predictor: Predictor, operator_s: float = 1e-3, **setup: Any) -> ReplicaPricer:
    chosen = Setup(**setup).replica(decoder_of(CONFIG, "small"), load_device("l4"), predictor._priced)
    server = replace(chosen.engine.serving, operator_s=operator_s, pass_s=1e-3, sequence_s=1e-5)
    return replace(chosen, engine=replace(chosen.engine, server=server))


@pytest.mark.parametrize(
    ("setup", "launched"),
    [
        ({"engine": "vllm"}, [False, False, True]),
        ({"engine": "vllm", "engine_version": "0.5"}, [False, True, True]),
        ({"engine": "sglang", "engine_version": "0.5.9"}, [False, True, True]),
        ({"engine": "sglang"}, [False, False, True]),
        ({"engine": "tensorrt-llm", "engine_version": "0.17"}, [False, False, False]),
        ({"engine": "tensorrt-llm", "engine_version": "1.0"}, [False, True, True]),
        ({"engine": "vllm", "graphs": False}, [True, True, True]),
    ],
)
def test_which_passes_are_no_graph(predictor: Predictor, setup: dict[str, object], launched: list[bool]) -> None:
    assert (replica(predictor, **setup).dispatches(STEPS) > 0).tolist() == launched


def test_v0_launches_kernel_by_kernel_on_amd_and_reads_keys_for_each_query_head() -> None:
    old, new = (server_named("vllm", version) for version in ("0.6.1", "0.15"))
    amd, nvidia = load_device("mi300x"), load_device("h100-sxm-80gb")
    assert [old.started_on(Site(device=d)).serving.decode_graphs for d in (amd, nvidia)] == [False, True]
    assert [old.started_on(Site(device=d)).grouped_queries for d in (amd, nvidia)] == [False, True]
    assert new.started_on(Site(device=amd)).serving.decode_graphs
    assert new.started_on(Site(device=amd)).grouped_queries
    assert old.started_on(Site(device=amd)).serving.era == "vllm before 0.8 on ROCm"


def test_a_pass_takes_the_longer_of_its_launches_and_its_kernels(predictor: Predictor) -> None:
    free, slow = (replica(predictor, operator_s=s, graphs=False, overlap=False) for s in (0.0, 1e-3))
    kernels_s = free.predict(STEPS).latency_s - free._host_s(STEPS)
    launches_s = 1e-3 * slow.dispatches(STEPS)
    expected = free._host_s(STEPS) + np.maximum(kernels_s, launches_s)
    assert slow.predict(STEPS).latency_s == pytest.approx(expected)
    barely = replica(predictor, operator_s=float(kernels_s[2] / slow.dispatches(STEPS)[2]), graphs=False, overlap=False)
    assert barely.predict(STEPS).waits_s[2] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("graphs", [True, False])
def test_an_overlapped_pass_takes_the_longer_of_host_and_kernels_and_a_gap(predictor: Predictor, graphs: bool) -> None:
    pricer = replica(predictor, graphs=graphs, overlap=True).with_constants({"gap_s": 3e-4})
    kernels_s = pricer.with_constants(dict.fromkeys(HOST, 0.0)).predict(STEPS).latency_s
    for host_s in (1e-9, float(kernels_s.mean()), 1.0):
        slow = pricer.with_constants({"pass_s": host_s})
        ready_s = slow._host_s(STEPS) + 1e-3 * slow.dispatches(STEPS)
        costs = slow.predict(STEPS)
        assert costs.latency_s == pytest.approx(np.maximum(kernels_s, ready_s) + 3e-4)
        assert costs.waits_s == pytest.approx(np.maximum(ready_s - kernels_s, 0.0))


def test_schedules_overlap_by_version_and_flag() -> None:
    site = Site(device=load_device("h100-sxm-80gb"))
    old = {"vllm": "0.13", "sglang": "0.3.6", "tensorrt-llm": "0.19"}
    assert not any(server_named(name, version).started_on(site).serving.overlapped for name, version in old.items())
    assert all(server_named(name).started_on(site).serving.overlapped for name in old)
    assert not any(server_named(name).started_on(site, overlap=False).serving.overlapped for name in old)
    piped = replace(site, stages=2)
    staged = {name: server_named(name).started_on(piped).serving.overlapped for name in old}
    assert staged == {"vllm": False, "sglang": False, "tensorrt-llm": True}


def test_a_layer_counts_its_operators(predictor: Predictor) -> None:
    """Of a layer that generates: four products and an attention of libraries, norm, rotation, write, activation."""
    one, two = (
        replace(replica(predictor, graphs=False), decoder=decoder_of(CONFIG | {"num_hidden_layers": n}, "small"))
        for n in (1, 2)
    )
    decode = Steps.of(decodes=1, decode_cached=16)
    each = float((two.dispatches(decode) - one.dispatches(decode))[0])
    assert each >= 5 * DISPATCHES["library"] + 4 * DISPATCHES["pointwise"]
    assert each <= 5 * DISPATCHES["library"] + 4 * DISPATCHES["pointwise"] + 2 * DISPATCHES["reduction"]


def test_tables_have_the_same_times_as_passes(predictor: Predictor) -> None:
    pricer = replica(predictor, engine="sglang")
    tables = pricer.tables(PassSizes(tokens=8192, sequences=16, length=8192))
    times_s = [tables.pass_s(4, [], 4, 4 * 512.0), tables.pass_s(260, [(256, 0)], 4, 4 * 512.0)]
    assert times_s == pytest.approx(pricer.predict(STEPS).latency_s[:2].tolist(), rel=1e-3)
