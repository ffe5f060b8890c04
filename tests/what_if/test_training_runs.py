"""Optimisations of training runs."""

from dataclasses import replace

import pytest

from neusight.devices import load_cluster
from neusight.distributed.training_run import TrainingRun, usual_run
from neusight.errors import InapplicableError
from neusight.what_if import applied
from neusight.workloads.decoders.known import known_decoder

LLAMA = known_decoder("meta-llama/Llama-3.1-8B")


def torchtitan(nodes: int = 1, **given: object) -> TrainingRun:
    words = {"global_batch": 8 * nodes, "micro_batch": 1, "seq_len": 4096, **given}
    return usual_run(LLAMA, load_cluster("dgx-h100", nodes), words, "torchtitan-compiled")


def test_exchanges_beside_products_need_ranks_that_share_the_stream() -> None:
    with pytest.raises(InapplicableError, match="raise tp"):
        applied(torchtitan(), ["async-tp"])
    (after,) = applied(torchtitan(tp=4, sequence_parallel=True), ["async-tp"])
    assert after.plan.overlap_tp


def test_two_chunks_a_stage_need_a_pipeline() -> None:
    with pytest.raises(InapplicableError, match="no pipeline"):
        applied(torchtitan(), ["interleaving"])
    run = torchtitan(pp=2, global_batch=16)
    (after,) = applied(run, ["interleaving"])
    assert after == replace(run, plan=replace(run.plan, vp=2))


def test_recipes_of_float8_exclude_each_other() -> None:
    with pytest.raises(InapplicableError, match="exclude each other"):
        applied(torchtitan(), ["fp8-tensorwise", "fp8-rowwise"])
