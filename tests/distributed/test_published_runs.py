"""Steps that were published with their plans, against what was published of them."""

from __future__ import annotations

import pytest

from neusight import Predictor
from neusight.devices import cluster_of, load_cluster
from neusight.distributed.training_run import usual_run
from neusight.workloads.decoders.known import known_decoder

DEEPSEEK = {
    "pp": 16, "ep": 64, "seq_len": 4096, "global_batch_size": 15360, "dtype": "fp8_block", "schedule": "dualpipe",
    "overlap_experts": True, "recompute": "layernorm+mla_up_proj+moe_act",
}  # fmt: skip
"""DeepSeek-AI 2024 (arXiv 2412.19437), sections 3.2 to 3.4 and 4.2; ZeRO-1 is usual. Tokens travel once to each node,
and one more is predicted.
"""


def test_deepseek_v3_takes_180_thousand_gpu_hours_a_trillion_tokens(predictor: Predictor) -> None:
    """Table 1 there: 2.664 million hours of H800 for 14.8 trillion tokens."""
    cluster = cluster_of("h800-sxm-80gb", 8, 256, "8 x 400Gb/s")
    model = known_decoder("deepseek-v3").predicting(1)
    step = predictor.training(usual_run(model, cluster, DEEPSEEK, "megatron-flex"))
    assert step.gpu_hours(1e12) == pytest.approx(180e3, rel=0.15)
    assert step.fits


@pytest.mark.parametrize(("nodes", "tflops"), [(1024, 430), (2048, 400)])
def test_llama_3_405b_reaches_its_utilisation(predictor: Predictor, nodes: int, tflops: float) -> None:
    """Grattafiori et al. 2024 (arXiv 2407.21783), table 4: TFLOP/s a GPU in bfloat16, 8 tensor-parallel ranks, 16
    stages of a layer a chunk, of which the first and the last have the embedding and the head alone.
    """
    plan = {"tp": 8, "pp": 16, "vp": 8, "global_batch_size": 2048, "seq_len": 8192, "shard": "zero1"}
    run = usual_run(known_decoder("llama-3.1-405b"), load_cluster("dgx-h100", nodes), plan, "torchtitan")
    assert predictor.training(run).mfu == pytest.approx(tflops / 989.4, rel=0.06)


def test_tokens_that_travel_beside_kernels_cost_what_kernels_do_not_hide(predictor: Predictor) -> None:
    cluster = cluster_of("h800-sxm-80gb", 8, 8, "8 x 400Gb/s")
    small = {**DEEPSEEK, "pp": 1, "global_batch_size": 128, "schedule": "1f1b", "recompute": "none"}
    hidden = usual_run(known_decoder("deepseek-v3"), cluster, small)
    passes = predictor.timed(hidden).passes
    hidden_s = sum(seconds[2] for seconds in passes.hidden_experts_s(0.1).values())
    shown_s = sum(seconds[2] for seconds in passes.seconds.values())
    exchanges_s = passes.sum_s(passes.times.group == "ep")[2]
    kernels_s = passes.kernels_s[2]
    assert kernels_s < shown_s - hidden_s < shown_s
    assert hidden_s == pytest.approx(0.9 * min(exchanges_s, 0.9 * kernels_s))
