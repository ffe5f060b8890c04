"""Words of served models: loads, relations between words, and words without effect."""

from typing import Any

import pytest

from neusight.questions import FieldError, Serving
from neusight.serving import Closed, Lengths, Offline, Open, Setup, Static
from neusight.serving.load import Load

MODEL, CONTEXT = "Qwen/Qwen3-8B", 40_960
SIZES: dict[str, Any] = {"model": MODEL, "gpu": "l4", "isl": 512, "osl": 64}


@pytest.mark.parametrize(
    ("words", "load"),
    [
        ({"batch": 3}, Static(batch=3, isl=512, osl=64)),
        ({"concurrency": 2}, Closed(concurrency=2, num_prompts=32, isl=512, osl=64)),
        ({"concurrency": 9, "num_prompts": 12}, Closed(concurrency=9, num_prompts=12, isl=512, osl=64)),
        ({"num_prompts": 5}, Offline(num_prompts=5, isl=512, osl=64)),
        (
            {"request_rate": 2, "arrivals": "uniform", "seed": 4, "replicas": 2},
            Open(request_rate=2.0, num_prompts=1024, isl=512, osl=64, arrivals="uniform", seed=4),
        ),
        ({"concurrency": 1, "isl": "512"}, Closed(concurrency=1, num_prompts=32, isl=512, osl=64)),
        ({"concurrency": 1, "isl": "512/7/9"}, Closed(concurrency=1, num_prompts=32, isl=[512, 7, 9], osl=64)),
        (
            {"concurrency": 1, "isl": "410..512"},
            Closed(
                concurrency=1,
                num_prompts=32,
                osl=64,
                isl=Lengths(mean=461.0, shape="uniform", cv=51 / 461 / 3**0.5, longest=512),
            ),
        ),
        (
            {"request_rate": 2, "burstiness": 0.25},
            Open(request_rate=2.0, num_prompts=512, isl=512, osl=64, arrivals="gamma", cv=2.0),
        ),
        (
            {"stages": "4:60s,16:30s"},
            Open(request_rate=8.0, num_prompts=720, isl=512, osl=64, stages=((4.0, 60.0), (16.0, 30.0))),
        ),
    ],
    ids=["batch", "concurrency", "clients", "offline", "rate", "length", "turns", "range", "bursts", "stages"],
)
def test_resolve_makes_the_load_of_words(words: dict[str, Any], load: Load) -> None:
    assert Serving(**SIZES | words).resolve().load == load


def test_resolve_cuts_drawn_lengths_to_the_context() -> None:
    words = {"isl": 30_000, "osl": 10_000, "isl_cv": 0.5, "osl_shape": "exponential", "batch": None, "num_prompts": 2}
    load = Serving(**SIZES | words).resolve().load
    assert isinstance(load, Offline)
    assert load.isl == Lengths(mean=30_000, shape="lognormal", cv=0.5, longest=CONTEXT * 3 // 4)
    assert load.osl == Lengths(mean=10_000, shape="exponential", longest=CONTEXT // 4)


def test_resolve_makes_a_setup_of_the_same_names() -> None:
    words: dict[str, Any] = {"tp": 2, "kv_dtype": "fp8", "max_num_seqs": 7, "gpu_memory_utilization": 0.8}
    words |= {"engine_version": "0.19.0"}
    assert Serving(**SIZES, batch=1, **words).resolve().setup == Setup(**words)


@pytest.mark.parametrize(
    ("words", "field", "message"),
    [
        ({}, "concurrency", "is missing, as is any other load"),
        ({"batch": 1, "concurrency": 2}, "batch", "is another load than concurrency"),
        ({"batch": 1, "num_prompts": 2}, "batch", "is another load than num_prompts"),
        ({"batch": 1, "isl": None}, "isl", "is missing: give tokens"),
        ({"batch": 1, "osl": 2.5}, "osl", "lengths that are not drawn are whole numbers"),
        ({"batch": 1, "isl_cv": 0.5}, "batch", "has requests of equal lengths"),
        ({"batch": 1, "isl": "9..12"}, "batch", "has requests of equal lengths"),
        ({"concurrency": 1, "isl": "12..9"}, "isl", "is no range: write it like 819..1024"),
        ({"concurrency": 1, "osl": "9..12..15"}, "osl", "is no range"),
        ({"concurrency": 1, "osl": "0..12"}, "osl", "is out of range"),
        ({"concurrency": 1, "osl": "9/2.5"}, "osl", "2.5: lengths that are not drawn are whole numbers"),
        ({"concurrency": 1, "osl": "9/x"}, "osl", "'x' is not a length: write it like 1024, 819..1024"),
        ({"concurrency": 1, "isl": "819.."}, "isl", "'' is not a length"),
        ({"concurrency": 1, "osl": "9..12", "osl_cv": 0.1}, "osl_cv", "osl states each length"),
        ({"stages": "4:60s", "num_prompts": 9}, "stages", "is another load than num_prompts"),
        ({"stages": "4:60s,16"}, "stages", "'16' is no rate with its time"),
        ({"stages": "4:60s,,4:60s"}, "stages", "'' is no rate with its time"),
        ({"stages": "4:0s"}, "stages", "give a rate and a time above 0"),
        ({"stages": "4:60s,nan:60s"}, "stages", "give a rate and a time above 0"),
        ({"stages": "inf:1s"}, "stages", "give a rate and a time above 0"),
        ({"stages": "1e9:60s"}, "stages", "brings 6e\\+10 requests"),
        ({"stages": "4:1e308s"}, "stages", "brings inf requests"),
        ({"request_rate": 1, "replicas": 10**6}, "request_rate", "brings 5.12e\\+08 requests"),
        ({"batch": 1, "scheduler_recv_interval": 10}, "scheduler_recv_interval", "is an option of sglang alone"),
        ({"batch": 1, "batch_wait_timeout_iters": 9}, "batch_wait_timeout_iters", "is an option of tensorrt-llm alone"),
        ({"batch": 1, "batch_wait_timeout_iters": 0}, "batch_wait_timeout_iters", "is an option of tensorrt-llm alone"),
        ({"batch": 1, "prefix_cached_tokens": 513}, "prefix_cached_tokens", "are among those of prompts, isl 512"),
        ({"request_rate": 1, "arrivals": "uniform", "burstiness": 2}, "burstiness", "of intervals that are drawn"),
        ({"batch": 1, "seed": 3}, "seed", "draws nothing"),
        ({"batch": 1, "kv_link": "nvlink"}, "kv_link", "give prefill"),
        ({"batch": 1, "host_cache": 1e9}, "host_cache", "give a trace with a column session"),
        ({"batch": 1, "gpu": ""}, "gpu", "names no GPU"),
        ({"batch": 1, "config": "7"}, "config", "is no JSON object"),
        ({"trace": "trace.csv"}, "isl", "the trace has its own lengths"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value) or "nothing",
)
def test_resolve_refuses_words_that_exclude_each_other(words: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(FieldError, match=message) as caught:
        Serving(**SIZES | words).resolve()
    assert caught.value.field == field


def test_resolve_refuses_words_of_a_load_beside_a_load() -> None:
    load = Static(batch=1, isl=8, osl=8)
    with pytest.raises(FieldError, match="is given by load: leave it out"):
        Serving(**SIZES).resolve(load=load)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ({"attention_backend": "fa3"}, "attention_backend has no effect"),
        ({"warmup_requests": 3}, "warmup_requests has no effect"),
        ({"router": "least-loaded"}, "router least-loaded has no effect: there is one replica"),
        ({"network": "400Gb/s", "tp": 8}, "network has no effect: it joins nodes, and all 8 devices"),
        ({"arrivals": "uniform"}, "arrivals uniform has no effect"),
        ({"burstiness": 2.0}, "burstiness 2 has no effect"),
        ({"osl_shape": "uniform"}, "osl_shape has no effect: all lengths are equal"),
        ({"isl_shape": "exponential", "isl_cv": 2.0}, "isl_cv has no effect"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_without_effect_names_words_that_change_nothing(words: dict[str, Any], line: str) -> None:
    (text,) = Serving(**SIZES, batch=1, **words).without_effect()
    assert text.startswith(line)
    assert not list(Serving(**SIZES, batch=1).without_effect())


def test_stages_keep_their_mean_rate_and_take_minutes() -> None:
    def load(stages: str) -> Open:
        asked = Serving(**SIZES, stages=stages).resolve().load
        assert isinstance(asked, Open)
        return asked

    assert (load("0.01:30s").request_rate, load("0.01:30s").num_prompts) == (0.01, 1)
    assert load("4:1min,2:0.5h") == load("4:60s,2:1800s")


def test_several_takes_a_list_of_stages_as_one_load() -> None:
    (asked,) = Serving.several({**SIZES, "stages": ["4:60s", "16:30s"]})
    assert asked.stages == "4:60s,16:30s"
