"""Rows of measurements as questions: every column of their questions is a name of the noun, and null the default."""

from typing import Any

import pytest

from neusight.kernels.conditions import Conditions
from neusight.kernels.named import kernel_named
from neusight.questions import FieldError, KernelCall, Question, Serving, Step, Training
from neusight.questions.files import question_of
from neusight.questions.question import like
from neusight.questions.what_if import WhatIfQuestion
from neusight.quick_dataclasses import dataclass

PLANS = (
    "dp tp pp cp vp ulysses micro_batch schedule sequence_parallel shard recompute recompute_layers overlap_gradients"
)
STEPS = (
    "model config gpu overrides mode batch seq_len image_size seconds input dtype layout attention launch engine "
    "engine_options optimizer fused_optimizer grad_scaler operands synchronized host_call_us host_operator_us "
    f"host_spread host_bytes host_ahead_us library_factor library_spread phase {PLANS}"
)
COLUMNS: list[tuple[type[Question], str]] = [
    (
        KernelCall,
        "family gpu overrides op m n k batch bias scaling quantised weight_dtype dtype rows cols elements read_bytes "
        "write_bytes flops passes heads kv_heads q_len kv_len head_dim causal window value_dim shared_kv kv_dtype "
        "selected tokens hidden ffn experts all_experts top_k gated distribution groups largest in_channels "
        "out_channels height width kernel_height kernel_width padding ranks bytes per_node redirected network "
        "algorithm nvls timing launches cycled_bytes one_input engine variant recorded random burst",
    ),
    (Step, STEPS),
    (
        Training,
        f"model config decoder gpu cluster per_node nodes network engine engine_options dtype optimizer seq_len "
        f"source_len lora adapter adapted ep etp global_batch batch shard_group overlap_parameters overlap_tp "
        f"overlap_experts gradient_dtype offload graphed chunk_layers chunk_group embedding_shard {PLANS}",
    ),
    (
        Serving,
        "model config gpu overrides tp pp dp ep replicas per_node network engine engine_version dtype kv_dtype graphs "
        "max_num_seqs max_num_batched_tokens max_len memory_share prefix_cached_tokens speculate batch concurrency "
        "rate arrivals trace requests isl osl isl_cv osl_cv isl_shape osl_shape prefill warmup_requests "
        "scheduler_recv_interval num_scheduler_steps",
    ),
]
PRODUCT = {"family": "gemm", "op": "linear", "gpu": "l4", "m": 8, "n": 16.0, "k": 32, "dtype": "bf16", "bias": True}


@pytest.mark.parametrize(("noun", "columns"), COLUMNS, ids=lambda value: getattr(value, "KIND", None))
def test_today_knows_every_column_of_rows(noun: type[Question], columns: str) -> None:
    names = [name for name in columns.split() if noun is not Training or name != "batch"]
    assert {*map(noun.today, names)} <= {*noun.fields(), *noun.KEYS}


def test_today_refuses_unknown_names() -> None:
    with pytest.raises(FieldError, match="tp_size is no field"):
        Training.today("tp_size")


def test_canonical_reads_former_words_texts_and_lists() -> None:
    kernel, training = KernelCall.fields(), Training.fields()
    assert [kernel["timer"].canonical(word) for word in ("graph", "stream", "wall")] == ["cuda_graph", "events", "wall"]
    assert kernel["overrides"].canonical('["sm_count=60", "l2_bytes=1MB"]') == ("sm_count=60", "l2_bytes=1MB")
    assert kernel["launches_per_graph"].canonical(6.0) == 6
    assert training["chunk_layers"].canonical([2, 4, 2]) == "2,4,2"


def test_question_of_reads_the_shape_and_conditions_of_a_kernel() -> None:
    timed = {"timing": "graph", "launches": None, "cycled_bytes": 4096, "one_input": True, "engine": "vllm",
             "variant": None, "recorded": True, "random": False, "burst": 100}  # fmt: skip
    asked = question_of({**PRODUCT, **timed}, "kernel").resolve()
    assert asked.batch.kernel(0) == kernel_named(
        "gemm", {"m": 8, "n": 16, "k": 32, "dtype": "bf16", "bias": True}
    ).kernel(0)
    same = Conditions.of(
        1, timing="graph", launches=1.0, cycled_bytes=4096.0, one_input=True, engine="vllm", recorded=True,
        random=False, burst=100.0,
    )  # fmt: skip
    assert all((vars(asked.conditions)[name] == column).all() for name, column in vars(same).items())


@pytest.mark.parametrize(
    ("row", "kind", "message"),
    [
        ({**PRODUCT, "m": 1.5}, "kernel", "m=1.5: not a whole number"),
        ({**PRODUCT, "m": [1, 2]}, "kernel", r"m=\[1, 2\]: not a whole number"),
        ({**PRODUCT, "launches": 3}, "kernel", "launches_per_graph counts kernels of a graph"),
        ({**PRODUCT, "algorithm": "tree"}, "kernel", "algorithm is of collectives"),
        ({"family": "all_gather", "gpu": "h100", "ranks": 8, "bytes": 1, "algorithm": "tree"}, "kernel", "all_reduce"),
        ({"command": "training", "model": "gpt3-175b", "optimizer": "ftrl"}, "", "optimizer 'ftrl' is unknown"),
        ({"command": "train", "model": "gpt2"}, "", "unknown kind 'train'"),
    ],
)
def test_question_of_refuses_in_one_line(row: dict[str, Any], kind: str, message: str) -> None:
    with pytest.raises(Exception, match=message) as caught:
        question_of(row, kind).resolve()
    assert "\n" not in str(caught.value)


def test_what_if_reads_a_row_of_gains() -> None:
    row = {"command": "training", "model": "llama-3.2-1b", "gpu": "h100", "per_node": 8, "batch": 8,
           "apply": "fp8,compile", "upon": None, "metric": "throughput",
           "then": '{"micro_batch": 2, "tp": null}'}  # fmt: skip
    asked = WhatIfQuestion.named(row)
    assert (asked.apply, asked.upon, asked.then) == (("fp8", "compile"), (), (("micro_batch", 2), ("tp", None)))
    assert (asked.question.KIND, asked.metric) == ("training", "throughput")
    assert asked.question.changed(**dict(asked.then)).words()["micro_batch_size"] == 2
    for words, message in (({"metric": "ttft"}, "is of served models"), ({"metric": "speed"}, "is unknown"),
                           ({"then": "tp=2"}, "is no JSON object")):  # fmt: skip
        with pytest.raises(FieldError, match=message):
            WhatIfQuestion.named({**row, **words})


def test_record_keeps_whole_numbers_whole() -> None:
    words = {"model": "Qwen/Qwen3-8B", "gpu": "l4", "isl": "512", "osl": 64.0, "request_rate": 2, "batch": 1.0}
    record = Serving.named(words).record()
    assert [type(record[name]) for name in ("isl", "osl", "request_rate", "batch")] == [int, int, int, int]
    assert Serving.named({**words, "isl": 512.5}).isl == 512.5


def test_like_refuses_a_default_out_of_bounds() -> None:
    class Wrong(Question):
        batch: int = like(Step, "batch", default=0)

    with pytest.raises(FieldError, match="batch 0 is out of range"):
        dataclass(frozen=True, kw_only=True)(Wrong).fields()


@pytest.mark.parametrize("config", ["1.5", "[1]", '"gpt2"', "{"])
def test_resolve_refuses_a_configuration_that_is_no_object(config: str) -> None:
    with pytest.raises(FieldError, match="config is no JSON"):
        Step(model="gpt2", gpu="l4", config=config).resolve()


@pytest.mark.parametrize(("word", "value"), [("768x512", "768x512"), ("512X512", 512), (512.0, 512), ("224", 224)])
def test_image_size_is_one_edge_or_two(word: object, value: int | str) -> None:
    step = Step.named({"model": "vit-base", "gpu": "l4", "image_size": word})
    assert step.image_size == value
    assert Step.named(step.record()) == step


@pytest.mark.parametrize("word", ["768x", "0x5", "axb", 0, 1.5, True])
def test_image_size_refuses_what_is_no_edge(word: object) -> None:
    with pytest.raises(FieldError, match="image_size"):
        Step.named({"model": "vit-base", "gpu": "l4", "image_size": word})
