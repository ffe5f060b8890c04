"""Tables that people bring: what is no table is one line for every command, what nothing reads is named or refused."""

from __future__ import annotations

from typing import Any

import pytest

from neusight.datasets.rows import unread_columns
from neusight.datasets.runs import peak_run, training_run
from neusight.errors import DataError
from neusight.workloads.decoders.table_rows import decoder_of_columns

RUN = {
    "model": "small", "gpu": "h100-sxm-80gb", "num_gpus": 8, "layers": 2, "hidden": 512, "heads": 8, "ffn": 2048,
    "vocab": 32000, "seq_len": 1024, "micro_batch": 1, "global_batch": 8, "step_ms": 20.0,
}  # fmt: skip
PEAK = {
    "case": "small", "gpu": "h100-sxm-80gb", "layers": 2, "hidden": 512, "heads": 8, "head_dim": 64, "ffn": 2048,
    "vocab_padded": 32000, "seq_len": 1024, "micro_batch": 1, "global_batch": 1, "memory_peak_bytes": 2**31,
}  # fmt: skip


def test_a_column_counts_where_any_row_says_more_than_no() -> None:
    rows = [{"a": 0, "b": False, "c": 1, "d": "x", "e": "y"}, {"c": 0, "d": "", "e": "y"}]
    assert unread_columns(rows, {"d"}, {"e"}) == [{"column": "c", "rows": 2}]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("fp4", "e2m1"), ("capacity_factor", 1.5), ("precision_aware_optimizer", True), ("cpu_offload", True),
    ],
)  # fmt: skip
def test_a_peak_that_would_be_another_one_is_refused(column: str, value: Any) -> None:
    assert peak_run(PEAK)["flags"] == {}
    assert peak_run(PEAK | {column: 0 if isinstance(value, int) else "none"})
    with pytest.raises(DataError, match=f"{column} = .* is not read from a table"):
        peak_run(PEAK | {column: value})


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"kind": "distil"}, "kind 'distil' of training is not estimated: one of pretrain, sft"),
        ({"cpu_offload": True}, "cpu_offload"),
        ({"async_tp": True, "framework": "NeMo"}, "async_tp of another framework"),
        ({"optimizer": "muon"}, "optimizer 'muon'"),
        ({"dtype": "nvfp8"}, "unknown dtype 'nvfp8'"),
        ({"dtype": "float8", "fp8_recipe": "FP8-XY"}, "unknown fp8_recipe 'fp8-xy' of a run: one of fp8, delayed"),
        ({"shard": "sharded"}, "unknown shard 'sharded'"),
        ({"num_gpus": "many"}, "num_gpus 'many' is no whole number"),
        ({"recompute": "some"}, "unknown recompute 'some'"),
    ],
)
def test_a_run_that_is_not_estimated_is_refused(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        training_run(RUN | columns)


def test_columns_of_a_run_reach_its_plan() -> None:
    titan = RUN | {"framework": "torchtitan 820504e", "tp": 2, "dp": 4}
    assert training_run(titan).plan["overlap_tp"] is False
    compiled = training_run(titan | {"async_tp": True, "compile": True, "etp": 1, "overlap_grad_reduce": False})
    assert (compiled.engine, compiled.plan["overlap_tp"], compiled.plan["etp"]) == ("torchtitan-compiled", True, 1)
    assert compiled.plan["overlap_grad_reduce"] is False
    networks = [training_run(RUN | {"nodes": 1, "interconnect": words}).network for words in (
        "400 Gb/s a node", "NVLink in a host, 400 Gb/s RDMA a GPU", "4x100Gb/s EFA per node",
    )]  # fmt: skip
    gpus = training_run(RUN).num_gpus
    assert networks == [f"{gpus} x {400 / gpus:g}Gb/s infiniband", f"{gpus} x 400Gb/s infiniband", "4 x 100Gb/s efa"]
    assert training_run(RUN | {"kind": "pretrain"}).plan == training_run(RUN).plan
    grouped = training_run(RUN | {"shard": "fsdp64"}).plan
    assert (grouped["shard"], grouped["shard_group"]) == ("hsdp", 64)
    with pytest.raises(DataError, match="unknown shard 'fsdp' of a run: one of none, zero1"):
        training_run(RUN | {"shard": "fsdp"})


def test_a_recipe_of_a_run_is_that_of_its_words() -> None:
    words = ("FP8-CS", "FP8-MX", "tensorwise, dynamic", "rowwise", "blockwise", "FP8-DS", "")
    rows = [training_run(RUN | {"dtype": "float8", "fp8_recipe": word}) for word in words]
    named = ["fp8_current", "mxfp8", "fp8_current", "fp8_row", "fp8_block", "fp8", "fp8"]
    assert [row.products for row in rows] == named
    assert {row.dtype for row in rows} == {"bfloat16"}
    assert training_run(RUN | {"dtype": "nvfp4"}).products == "nvfp4"
    assert training_run(RUN | {"fp8_recipe": "FP8-CS"}).products == ""


def test_runs_of_adapters_train_them_alone() -> None:
    assert training_run(RUN).adapters == training_run(RUN | {"kind": "sft"}).adapters == {}
    row = training_run(RUN | {"kind": "LoRA"})
    assert row.adapters == {"rank": 16, "method": "lora", "targets": ("qkv",)}
    assert "adapters" in {what for what, _, _ in row.assumed}
    assert training_run(RUN | {"kind": "qlora", "lora_rank": 64}).adapters["rank"] == 64


def test_releases_of_megatron_bridge_send_tokens_as_they_did() -> None:
    words = ("Megatron-Bridge, 25.11 NeMo Container", "Megatron-Bridge, 26.04.01 NeMo Container", "NeMo, recipe v25.05")
    engines = [training_run(RUN | {"framework": each}).engine for each in words]
    assert engines == ["megatron-te", "megatron-flex", "megatron-te"]


def test_pipelines_of_torchtitan_take_sequences_one_by_one() -> None:
    titan = RUN | {"framework": "torchtitan 9dec370", "pp": 4, "dp": 2, "local_batch": 32, "shard": "zero3"}
    titan = {name: value for name, value in titan.items() if name not in ("micro_batch", "global_batch")}
    names = ("micro_batch_size", "global_batch_size", "vp", "schedule", "shard")
    plans = [training_run(titan | {"schedule": words}).plan for words in ("1F1B", "Interleaved 1F1B", "GPipe")]
    assert [[plan[name] for name in names] for plan in plans] == [
        [1, 64, 1, "1f1b", "zero1"], [1, 64, 2, "1f1b", "zero1"], [1, 64, 1, "gpipe", "zero1"],
    ]  # fmt: skip
    assert training_run(titan | {"micro_batch": 4}).plan["micro_batch_size"] == 4
    assert training_run(titan | {"pp": 1, "dp": 8}).plan["micro_batch_size"] == 32
    with pytest.raises(DataError, match="unknown schedule 'chimera' of a run: one of 1f1b, gpipe"):
        training_run(titan | {"schedule": "Chimera"})


def test_a_block_of_recomputed_layers_is_read() -> None:
    block = {"recompute": "full", "recompute_method": "block", "recompute_layers": 3}
    assert peak_run(PEAK | block)["recompute_layers"] == 3
    # Uniform: all layers, so many at a time.
    assert peak_run(PEAK | block | {"recompute_method": "uniform"})["recompute_layers"] == 0


def test_a_shared_expert_and_learned_positions_are_parts_of_the_model() -> None:
    row = PEAK | {"model": "m", "experts": 4, "top_k": 2, "moe_ffn": 1024, "activation": "swiglu", "bias": True}
    decoders = {
        name: decoder_of_columns(row | more)
        for name, more in {
            "routed": {},
            "shared": {"shared_expert_ffn": 256},
            "learned": {"position_embedding": "learned_absolute", "max_position": 2048},
        }.items()
    }
    parameters = {name: decoder.parameters for name, decoder in decoders.items()}
    # Gate, up and down with their biases, in both layers.
    assert parameters["shared"] - parameters["routed"] == 2 * (3 * 512 * 256 + 2 * 256 + 512)
    assert parameters["learned"] - parameters["routed"] == 2048 * 512
