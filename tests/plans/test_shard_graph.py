"""Tensor parallelism of traced steps: roles from structure, shards that sum to the whole, all-reduces between them."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest

from neusight.errors import ModelError
from neusight.kernels.work import work_of
from neusight.plans import single
from neusight.plans.products import COLUMNS, ROWS, VOCABULARY, WHOLE, shared_products
from neusight.plans.shard_graph import tensor_parallel
from neusight.workloads import Workload, load_workload
from neusight.workloads.workload import MEMORY_PARTS

BATCH, LENGTH = 2, 64
NORMS = ("aten.native_layer_norm.default", "aten.mean.dim")


@cache
def workload(name: str, mode: str = "training", attention: str = "eager", dtype: str = "float32") -> Workload:
    optimizer = "adam" if mode == "training" else "none"
    return load_workload(
        name, mode=mode, batch=BATCH, seq_len=LENGTH, optimizer=optimizer, attention=attention, dtype=dtype,
        allow_fallback=True,
    )  # fmt: skip


ROLES: dict[str, dict[str, str]] = {
    # Shoeybi et al. 2019, figure 3.
    "gpt2": {"attn.c_attn": COLUMNS, "attn.c_proj": ROWS, "mlp.c_fc": COLUMNS, "mlp.c_proj": ROWS, "wte": VOCABULARY,
             "wpe": WHOLE, "lm_head": VOCABULARY},
    # A norm follows the transform of the head: it needs all features.
    "bert-base": {"self.query": COLUMNS, "self.key": COLUMNS, "self.value": COLUMNS, "attention.output.dense": ROWS,
                  "intermediate.dense": COLUMNS, "predictions.transform.dense": WHOLE, "position_embeddings": WHOLE},
    # As in the base_model_tp_plan of LlamaConfig.
    "llama-3.2-1b": {"q_proj": COLUMNS, "k_proj": COLUMNS, "v_proj": COLUMNS, "o_proj": ROWS, "gate_proj": COLUMNS,
                     "up_proj": COLUMNS, "down_proj": ROWS},
    "t5-small": {"SelfAttention.q": COLUMNS, "EncDecAttention.v": COLUMNS, "EncDecAttention.o": ROWS,
                 "DenseReluDense.wi": COLUMNS, "DenseReluDense.wo": ROWS},
    # Experts are shared, the choice among them is not.
    "switch-base-8": {"router.classifier": WHOLE, "expert_3.wi": COLUMNS, "expert_3.wo": ROWS},
    "opt-350m": {"project_in": WHOLE, "fc1": COLUMNS, "fc2": ROWS, "out_proj": ROWS},
}  # fmt: skip


@pytest.mark.parametrize("name", ROLES)
def test_structure_tells_what_published_plans_say(name: str) -> None:
    found = shared_products(workload(name), 2).layers
    for module, style in ROLES[name].items():
        styles = {of for layer, of in found.items() if layer.endswith(module)}
        assert styles == {style}, module


@pytest.mark.parametrize("name", ["gpt2", "llama-3.2-1b", "t5-small"])
@pytest.mark.parametrize(("attention", "dtype"), [("eager", "float32"), ("sdpa", "float32"), ("sdpa", "bfloat16")])
def test_products_of_all_ranks_sum_to_the_whole(name: str, attention: str, dtype: str) -> None:
    whole = workload(name, attention=attention, dtype=dtype)
    shards = tensor_parallel(whole, 2)
    vocabulary = {"gpt2": 50257}.get(name, 0)
    # An odd vocabulary is padded by one word, in the product of the head and both of its gradients.
    padding = 3 * 2 * BATCH * LENGTH * 768 if vocabulary % 2 else 0
    assert 2 * flops(shards, "gemm") == flops(whole, "gemm") + padding
    assert 2 * flops(shards, "attention") == flops(whole, "attention")


def flops(step: Workload, family: str) -> float:
    program = single(step)
    found = ((batch, program.counts[at]) for batch, at in program.batches if batch.family == family)
    return sum(float((work_of(batch).flops * counts).sum()) for batch, counts in found)


def all_reduces(step: Workload, phase: str) -> list[tuple[int, int]]:
    """(bytes, count) of each size."""
    found = [one for one in step.launches if one.kernel.family == "collective" and one.phase == phase]
    assert all(one.operator == "all_reduce" for one in found)
    return [(one.kernel.bytes, one.count) for one in found]  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["gpt2", "llama-3.2-1b"])
def test_two_all_reduces_a_layer_and_pass_and_one_at_the_ends(name: str) -> None:
    step = tensor_parallel(workload(name), 2)
    layers, width = {"gpt2": (12, 768), "llama-3.2-1b": (16, 2048)}[name]
    # Forward: what words give, attention, feed-forward. Backward: inputs of both, and of the head.
    expected = [(4 * BATCH * LENGTH * width, 2 * layers + 1)]
    assert all_reduces(step, "forward") == expected
    assert all_reduces(step, "backward") == expected


@pytest.mark.parametrize(("name", "positions"), [("gpt2", 1), ("llama-3.2-1b", 0)])
def test_ranks_that_share_tokens_scatter_sums_and_gather_what_products_read(name: str, positions: int) -> None:
    """Korthikanti et al. 2022, figure 5; learned positions are added to all tokens, as Megatron-LM has it."""
    step = tensor_parallel(workload(name), 2, by_tokens=True)
    layers, width = {"gpt2": (12, 768), "llama-3.2-1b": (16, 2048)}[name]
    size, found = 4 * BATCH * LENGTH * width, Counter[tuple[str, str]]()
    for one in step.launches:
        if one.kernel.family == "collective" and one.kernel.bytes == size:
            found[one.phase, one.kernel.op] += one.count
    assert found == Counter({
        ("forward", "all_reduce"): positions,
        ("forward", "reduce_scatter"): 2 * layers + 1 - positions,
        ("forward", "all_gather"): 2 * layers + 1,
        ("backward", "reduce_scatter"): 2 * layers + 1,
        ("backward", "all_gather"): 2 * layers + 1,
    })  # fmt: skip


@pytest.mark.parametrize("name", ["gpt2", "llama-3.2-1b", "t5-small", "bert-base"])
def test_ranks_that_share_tokens_share_norms_and_run_the_same_products(name: str) -> None:
    whole = workload(name, attention="sdpa")
    by_layer, by_tokens = (tensor_parallel(whole, 2, by_tokens=shared) for shared in (False, True))
    # A transform of BERT's head is left whole: of that a rank has its tokens.
    fewer = 3 * 2 * BATCH * LENGTH * 768**2 / 2 if name == "bert-base" else 0.0
    assert flops(by_tokens, "gemm") == flops(by_layer, "gemm") - fewer
    norms = [
        {(one.kernel.rows, one.kernel.cols) for one in step.launches if one.operator in NORMS}
        for step in (whole, by_tokens)
    ]
    assert norms[1] == {(rows // 2, cols) for rows, cols in norms[0]}
    kept = [step.alive[:, MEMORY_PARTS.index("activations")].max() for step in (by_tokens, by_layer)]
    assert kept[0] < kept[1]


def test_logits_are_gathered_where_no_loss_reads_them() -> None:
    for mode, expected in (("inference", [4 * BATCH * LENGTH * 50257]), ("training", [])):
        step = tensor_parallel(workload("gpt2", mode), 2)
        assert [one.kernel.bytes for one in step.launches if one.operator == "all_gather"] == expected  # type: ignore[union-attr]


def test_a_rank_holds_its_share_of_parameters_states_and_activations() -> None:
    whole, shard = workload("llama-3.2-1b"), tensor_parallel(workload("llama-3.2-1b"), 4)
    # All but the norms is shared.
    assert shard.parameters == pytest.approx(whole.parameters / 4, rel=1e-3)
    assert shard.memory.weights == pytest.approx(whole.memory.weights / 4, rel=1e-3)
    assert shard.memory.optimizer == pytest.approx(whole.memory.optimizer / 4, rel=1e-3)
    assert shard.memory.peak < whole.memory.peak / 2
    updated = [one.kernel.elements for one in shard.launches if one.kernel.family == "optimizer"]  # type: ignore[union-attr]
    assert set(updated) == {shard.parameters}


def test_one_rank_is_the_whole() -> None:
    assert tensor_parallel(workload("gpt2"), 1) is workload("gpt2")


def test_a_stated_plan_goes_before_structure() -> None:
    stated = {"h.*.mlp.c_fc": "colwise", "h.*.mlp.c_proj": "rowwise"}
    step = tensor_parallel(workload("gpt2", "inference"), 2, stated)
    shapes = {(one.kernel.n, one.kernel.k) for one in step.launches if one.kernel.family == "gemm"}  # type: ignore[union-attr]
    # The feed-forward is shared, attention's projections and the head are whole.
    assert {(1536, 768), (768, 1536), (2304, 768), (50257, 768)} <= shapes
    assert all_reduces(step, "forward") == [(4 * BATCH * LENGTH * 768, 12)]
    assert "attn.c_attn" in step.warnings[0]


REFUSED: list[tuple[str, int, Any, str]] = [
    ("gpt2", 5, None, "tp 5 does not divide the 2304 outputs of transformer.h.0.attn.c_attn: tp 2, 3, 4, 6, 8"),
    ("gpt2", 32, None, "tp 32 does not divide the 12 heads of transformer.h.0.attn: tp 2, 3, 4, 6, 12 would"),
    ("gpt2", 2, {"h.*.c_fx": "colwise"}, "no product of gpt2 is named 'h.*.c_fx'"),
    ("gpt2", 2, {"h.*.mlp.c_fc": "columns"}, "unknown style 'columns'"),
    ("gpt2", 2, {"h.*.mlp.c_proj": "rowwise"}, "state colwise for the products that feed it"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "tp", "stated", "message"), REFUSED)
def test_what_cannot_be_shared_is_named(name: str, tp: int, stated: Any, message: str) -> None:
    with pytest.raises(ModelError) as error:
        tensor_parallel(workload(name, "inference"), tp, stated)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_convolutions_cannot_be_shared() -> None:
    with pytest.raises(ModelError, match="no product of resnet-18 can be shared by 2 ranks"):
        tensor_parallel(load_workload("resnet-18", batch=1), 2)
