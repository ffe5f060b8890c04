"""Rows of measured pairs of training as questions."""

import json

import pytest

from neusight.evaluation.what_if.cases import UnnamedModelError, pair_of

TITAN = {
    "set": "training_ladders", "source": "pytorch/torchtitan", "metric": "throughput", "gpu": "h100-sxm-80gb",
    "model": "Llama-3-70B", "n_gpus": 256, "as_written": "async tensor parallelism",
    "told": json.dumps({"plan": "FSDP 32 x TP 8", "ac": "full", "local_batch": "16", "dtype": "float8 rowwise"}),
}  # fmt: skip


def test_a_row_of_torchtitan_is_a_run_with_its_plan() -> None:
    case = pair_of(TITAN)
    before, after = case.before.plan, case.after.plan
    assert (before.dp, before.tp, before.shard, before.recompute) == (32, 8, "zero3", "full")
    assert before.global_batch == 32 * 16
    assert case.before.products == "fp8_row"
    assert (before.overlap_tp, after.overlap_tp) == (False, True)


def test_a_model_without_sizes_is_no_named_one() -> None:
    with pytest.raises(UnnamedModelError, match="no sizes"):
        pair_of({**TITAN, "model": "something"})
