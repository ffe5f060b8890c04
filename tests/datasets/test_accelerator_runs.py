"""Training runs of MaxText, Neuron and Gaudi, in the columns of a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from neusight.datasets.published_runs import canonical_run
from neusight.datasets.runs import training_run
from neusight.errors import DataError
from neusight.evaluation.training import evaluate_training

MAXTEXT: dict[str, Any] = {
    "accelerator": "tpu-v4", "chips": 128, "slices": 2.0, "model": "mine", "seq": 2048.0, "per_chip_batch": 4.0,
    "remat": "full", "hidden": 4096, "layers": 32, "heads": 32, "kv_heads": 32, "head_dim": 128, "ffn": 11008,
    "vocab": 32000, "gated_mlp": True, "tflops_per_chip": 150.0,
}  # fmt: skip


def test_a_rate_of_maxtext_tells_the_step() -> None:
    run = training_run(canonical_run(MAXTEXT))
    # Llama 2 7B has 6.61 billion weights in products; attention is 4 b s^2 d L, halved, and backward takes twice both.
    tokens, weights = 4 * 2048, 32 * (4 * 4096**2 + 3 * 4096 * 11008) + 4096 * 32000
    attention = 0.5 * 4 * tokens * 2048 * 4096 * 32
    assert run.step_ms == pytest.approx(3 * (2 * tokens * weights + attention) / 150e12 * 1e3)
    assert (run.gpu, run.num_gpus, run.engine) == ("tpu-v4", 128, "maxtext")
    assert (run.plan["shard"], run.plan["shard_group"], run.plan["recompute"]) == ("hsdp", 64, "full")
    assert run.plan["global_batch_size"] == 512


def test_plans_of_neuron_count_cores() -> None:
    row = {"accelerator": "trainium1", "instance": "trn1.32xlarge", "model": "Llama-3.1-8B pre-training", "nodes": 32,
           "chips": 512, "plan": "TP=32 DP=32 PP=1 ZeRO-1", "micro_batch": 1, "global_batch": 1024, "seq": 8192.0,
           "sequences_per_s": 50.0}  # fmt: skip
    run = training_run(canonical_run(row))
    assert (run.plan["tp"], run.plan["dp"], run.plan["shard"], run.model) == (32, 32, "zero1", "llama-3.1-8b")
    assert run.step_ms == pytest.approx(1e3 * 1024 / 50.0)


def test_what_a_run_of_neuron_leaves_out_is_told_by_its_chips_and_utilisation() -> None:
    row = {"accelerator": "trainium1", "instance": "trn1.32xlarge", "model": "Llama2-7B pre-training", "nodes": 32,
           "chips": 512, "plan": "TP=8 DP=4 PP=4", "micro_batch": 1, "global_batch": 1024, "sequences_per_s": 82.0,
           "mfu": 14.8, "neuron": "2.15.0"}  # fmt: skip
    run = training_run(canonical_run(row))
    assert run.plan["dp"] == 2 * 512 // (8 * 4)
    # 6 x 7e9 operations a token at 14.8 % of 512 x 190 TFLOP/s are 4180 tokens.
    assert (run.seq_len, run.engine, run.model) == (4096, "neuron-eager", "llama-2-7b")
    with pytest.raises(DataError, match="without seq"):
        canonical_run({name: value for name, value in row.items() if name != "mfu"})
    copies = row | {"plan": "[32xNC(DP)]", "model": "HuggingFace BERT-Large Ph2 pre-training", "dtype": "BF16/AMP"}
    bert = training_run(canonical_run(copies))
    assert (bert.model, bert.seq_len, bert.plan["dp"], bert.engine) == ("bert-large", 512, 1024, "torch-neuronx")
    for changes, message in (({"dtype": "FP32"}, "FP32"), ({"model": "Perceiver"}, "not known")):
        with pytest.raises(DataError, match=message):
            canonical_run(copies | changes)


@pytest.mark.parametrize(("model", "degrees"), [("llama-2-7b", (1, 1, 64)), ("llama-2-70b", (8, 2, 4))])
def test_a_run_of_gaudi_without_a_plan_shares_as_few_cards_as_hold_it(model: str, degrees: tuple[int, ...]) -> None:
    row = {"accelerator": "gaudi2", "cards": 64, "model": model, "seq": 4096, "precision": "fp8", "global_batch": 128,
           "tokens_per_s": 50_000}  # fmt: skip
    plan = training_run(canonical_run(row)).plan
    assert (plan["tp"], plan["pp"], plan["dp"]) == degrees


def test_what_a_row_leaves_out_is_named() -> None:
    assert canonical_run({"gpu": "l4"}) == {"gpu": "l4"}
    for missing, message in (("seq", "without per_chip_batch or seq"), ("ffn", "without step_s or ffn")):
        with pytest.raises(DataError, match=message):
            canonical_run({name: value for name, value in MAXTEXT.items() if name != missing})


@pytest.mark.parametrize(
    ("table", "limit"),
    [("training_llm", 12.0), ("training_neuron", 15.0), ("training_gaudi", 15.0), ("mlperf_training", 12.0)],
)
def test_published_runs_are_met(table: str, limit: float) -> None:
    path = Path(os.environ.get("NEUSIGHT_DATA", "")) / "accelerators" / f"{table}.parquet"
    if not path.is_file():
        pytest.skip("the measured data are not here")
    from neusight.api import Predictor

    assert evaluate_training(path, Predictor.load())["total"]["mean"] <= limit


MLPERF: dict[str, Any] = {
    "benchmark": "resnet", "submitter": "Google", "accelerator": "TPU-v4", "chips": 4096, "global_batch": 32768.0,
    "items_per_s": 1e7, "rate_unit": "epochs", "version": "v2.0", "framework": "Tensorflow",
}  # fmt: skip


def test_results_of_mlperf() -> None:
    run = training_run(canonical_run(MLPERF))
    assert (run.gpu, run.model, run.engine, run.optimizer) == ("tpu-v4", "resnet-50", "torch-compiled", "sgd")
    assert (run.plan["dp"], run.plan["micro_batch_size"], run.plan["shard"]) == (4096, 8, "zero1")
    assert run.step_ms == pytest.approx(1e3 * 32768 / 1e7)
    gpt = {"benchmark": "gpt3", "rate_unit": "tokens", "grad_accum": 128.0, "global_batch": 2048.0}
    gaudi = MLPERF | gpt | {"accelerator": "Intel Gaudi2", "submitter": "Intel-HabanaLabs", "chips": 384}
    stages = training_run(canonical_run(gaudi)).plan
    assert (stages["tp"], stages["pp"], stages["dp"]) == (8, 3, 16)
    packed = training_run(canonical_run(gaudi | {"benchmark": "bert", "chips": 8, "global_batch": 448.0}))
    assert (packed.plan["global_batch_size"], packed.plan["micro_batch_size"], packed.seq_len) == (224, 28, 512)
    slices = training_run(canonical_run(MLPERF | gpt | {"accelerator": "TPU-trillium", "chips": 1024}))
    assert (slices.per_node, slices.plan["shard_group"], slices.plan["micro_batch_size"]) == (256, 256, 2)
    assert slices.step_ms == pytest.approx(1e3 * 2048 * 2048 / 1e7)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"benchmark": "dlrm"}, "dlrm on TPU-v4 is not estimated"),
        ({"suspect": "minutes"}, "without a rate"),
        ({"global_batch": 8.0}, "how they share one is not told"),
        ({"framework": "tinygrad, branch"}, "tinygrad"),
    ],
)
def test_results_of_mlperf_that_are_not_estimated_say_why(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        canonical_run(MLPERF | changes)
