"""Rows of measured pairs of training as questions."""

import json

import pytest

from neusight.evaluation.what_if.cases import UnnamedModelError, pair_of

TITAN = {
    "set": "training_ladders", "source": "pytorch/torchtitan", "metric": "throughput", "mode": "training",
    "gpu": "h100-sxm-80gb", "model": "Llama-3-70B", "n_gpus": 256, "as_written": "async tensor parallelism",
    "told": json.dumps({"plan": "FSDP 32 x TP 8", "ac": "full", "local_batch": "16", "dtype": "float8 rowwise"}),
}  # fmt: skip


def test_a_row_of_torchtitan_is_a_run_with_its_plan() -> None:
    case = pair_of(TITAN)
    before, after = case.before.plan, case.after.plan
    assert (before.dp, before.tp, before.shard, before.recompute) == (32, 8, "zero3", "full")
    assert before.global_batch_size == 32 * 16
    assert case.before.products == "fp8_row"
    assert (before.overlap_tp, after.overlap_tp) == (False, True)


def test_a_model_without_sizes_is_no_named_one() -> None:
    with pytest.raises(UnnamedModelError, match="no sizes"):
        pair_of({**TITAN, "model": "something"})


def test_peft_trains_queries_and_values_and_time_is_of_the_mean_sample() -> None:
    told = {"peft": "lora/llama-3.2-3B-rank64", "batch": 4, "dtype": "bfloat16"}
    row = {**TITAN, "source": "huggingface/peft", "gpu": "l40s", "n_gpus": 1, "model": "meta-llama/Llama-3.2-3B"}
    time, memory = (
        pair_of({**row, "metric": metric, "as_written": "PEFT lora", "told": json.dumps(told)})
        for metric in ("time", "memory")
    )
    assert (time.after.adapters.rank, time.after.adapters.targets) == (64, ("query", "value"))
    assert not time.before.adapters
    assert time.before.seq_len < memory.before.seq_len == 768


def test_samples_one_by_one_come_before_what_a_row_adds() -> None:
    row = {
        "set": "training_ladder_hf_issues_and_small_tables", "metric": "memory", "gpu": "v100-sxm2-16gb",
        "model": "bert-large-uncased", "as_written": "8-bit Adam (bitsandbytes)", "optimisation": "quantisation",
        "told": json.dumps({"batch": "1x4", "ac": "yes", "dtype": "fp16 amp", "seq": "512"}),
    }  # fmt: skip
    case = pair_of(row)
    assert case.applied == ("adam-8bit",)
    assert (case.before.request.batch, case.before.setting.plan.micro_batches) == (1, 4)
    assert case.before.request.precision.autocast
