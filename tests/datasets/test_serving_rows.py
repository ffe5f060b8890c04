"""Rows of serving engines become the kernels that their columns describe; every measured table is read."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

from neusight.datasets import conditions_of, device_of, load_kernels, to_batches
from neusight.datasets.load import sets_in
from neusight.datasets.measured import unestimated
from neusight.errors import DataError
from neusight.kernels import Attention, Elementwise, Gemm, GroupedGemm, Kernel, KernelBatch, Memory, Moe, work_of
from neusight.paths import checkout_dir

ORIGIN = {"gpu": "h100-sxm-80gb", "framework": "vllm", "kernel": "k", "dtype": "bfloat16", "latency_ms": 1.0}
HEADS = {"batch": 2, "num_heads": 8, "num_kv_heads": 2, "head_dim": 64, "window": 0, "kv_cache_dtype": "bfloat16"}
LATENT = {"batch": 2, "num_heads": 128, "qk_dim": 576, "v_dim": 512, "kv_cache_dtype": "bfloat16"}
EXPERTS = {
    **{"hidden_size": 4096, "ffn_size": 1536, "top_k": 8, "num_experts": 128, "moe_tp_size": 4, "moe_ep_size": 2},
    **{"distribution": "balanced", "num_tokens": 64},
}


def only(frame: pd.DataFrame) -> Kernel:
    ((batch, positions),) = to_batches(frame)
    assert list(positions) == [0]
    return batch.kernel(0)


@pytest.fixture
def read(parquet):
    """The kernel of one row of a file that has no other columns than these."""

    def reading(**row: Any) -> Kernel:
        return only(load_kernels(parquet(pd.DataFrame([ORIGIN | row]))))

    return reading


def test_products_tell_dtypes_scales_and_quantisation(read, subtests):
    for dtype, framework, expected in [
        ("fp8", "sglang", {"dtype": "float8", "scaling": "tensor", "quantised": True}),
        ("fp8_static", "trtllm", {"dtype": "float8", "scaling": "tensor"}),
        ("fp8_block", "vllm", {"dtype": "float8", "scaling": "block", "quantised": True}),
        ("fp8_block", "deepgemm", {"dtype": "float8", "scaling": "block"}),
        ("fp8", "frontier", {"dtype": "float8", "scaling": "row", "quantised": True}),
        ("int8_wo", "trtllm", {"dtype": "float16", "weight_dtype": "int8"}),
        ("int4_wo", "trtllm", {"dtype": "float16", "weight_dtype": "int4"}),
        ("sq", "trtllm", {"dtype": "int8", "scaling": "row"}),
        ("bfloat16", "vllm", {"dtype": "bfloat16"}),
    ]:
        with subtests.test(dtype=dtype, framework=framework):
            found = read(op="linear", m=3, n=256, k=128, dtype=dtype, framework=framework)
            assert found == Gemm(m=3, n=256, k=128, **expected)


def test_a_bias_is_there_where_a_row_says_so(read):
    assert read(op="linear", m=3, n=5, k=7, bias=True).bias
    assert not read(op="linear", m=3, n=5, k=7, bias=False, dtype="float32").bias
    assert read(op="linear", m=3, n=5, k=7, dtype="float32").bias


def test_a_prefix_lies_before_the_new_tokens(read):
    shape = {"batch": 2, "heads": 8, "kv_heads": 2, "head_dim": 64, "causal": True, "dtype": "bfloat16"}
    assert read(**HEADS, seq_len=16) == Attention(**shape, q_len=16, kv_len=16)
    assert read(**HEADS, seq_len=16, prefix_len=100) == Attention(**shape, q_len=16, kv_len=116)


def test_an_empty_cache_leaves_the_new_token(read):
    found = read(**HEADS, kv_len=0)
    assert (found.q_len, found.kv_len) == (1, 1)


def test_latent_attention_decodes_over_one_shared_key(read):
    found = read(**LATENT, phase="generation", q_len=1, kv_len=1023)
    assert (found.kv_heads, found.head_dim, found.value_dim, found.shared_kv) == (1, 576, 512, True)
    assert (found.q_len, found.kv_len, found.selected) == (1, 1024, 0)
    prefill = read(**(LATENT | {"qk_dim": 192, "v_dim": 128}), phase="context", q_len=64, kv_len=64)
    assert (prefill.kv_heads, prefill.head_dim, prefill.value_dim, prefill.shared_kv) == (128, 192, 128, False)
    assert (prefill.q_len, prefill.kv_len) == (64, 64)


def test_sparse_attention_selects_and_its_indexer_scores(read):
    sparse = read(**LATENT, op="sparse_mla", phase="context", q_len=4, kv_len=4096, top_k=2048)
    assert (sparse.op, sparse.selected, sparse.shared_kv, sparse.kv_len) == ("forward", 2048, True, 4096)
    narrow = {"num_heads": 64, "qk_dim": 128, "v_dim": 0, "kv_cache_dtype": "fp8", "dtype": "fp8"}
    indexer = read(**(LATENT | narrow), op="indexer_logits", phase="generation", q_len=1, kv_len=4095, top_k=0)
    assert (indexer.op, indexer.kv_heads, indexer.head_dim, indexer.kv_len) == ("indexer", 1, 128, 4096)
    assert (indexer.dtype, indexer.kv_dtype, indexer.shared_kv, indexer.selected) == ("float8", "", False, 0)


def test_a_layer_of_experts_is_one_gpu_s_share(read):
    expected = Moe(tokens=64, hidden=4096, ffn=384, experts=64, all_experts=128, top_k=8, dtype="bfloat16")
    assert read(**EXPERTS) == expected
    assert not read(**EXPERTS, kernel="moe_torch_flow_nongated").gated
    nemotron = EXPERTS | {"num_experts": 512, "top_k": 22, "ffn_size": 5120, "version": "0.24.0", "framework": "vllm"}
    assert not read(**nemotron).gated
    assert read(**nemotron | {"version": "0.14.0"}).gated, "benchmarks before knew gates alone"
    block = read(**EXPERTS, dtype="fp8_block")
    assert (block.dtype, block.scaling) == ("float8", "block")
    narrow = read(**EXPERTS, dtype="w4a8_mxfp4_mxfp8")
    assert (narrow.dtype, narrow.weight_dtype, narrow.scaling) == ("float8", "mxfp4", "block")
    weights = read(**EXPERTS, dtype="w4a16_mxfp4")
    assert (weights.dtype, weights.weight_dtype, weights.scaling) == ("bfloat16", "mxfp4", "")
    with pytest.raises(DataError, match="row 0: moe_tp_size 5 does not divide ffn_size 1536"):
        read(**(EXPERTS | {"moe_tp_size": 5}))


def test_groups_of_random_height_have_a_fullest(read):
    shape = {"num_groups": 4, "tokens_per_group": 100, "tokens": 391.0, "n": 256, "k": 128, "dtype": "fp8_block"}
    expected = {"groups": 4, "tokens": 391, "n": 256, "k": 128, "dtype": "float8", "scaling": "block"}
    # The expected largest of four numbers between 70 and 130 is 70 + 60 · 4 / 5.
    assert read(**shape) == GroupedGemm(**expected, largest=118)
    assert read(**(shape | {"num_groups": 1})).largest == 391


def test_pointwise_operators_of_engines(read):
    shape = {"rows": 10, "cols": 64}
    size = 2 * 640
    rope = read(op="rope", **shape)
    assert (rope.read_bytes, rope.write_bytes) == (size + 10 * (2 * 128 + 8), size)
    silu = read(op="silu_and_mul", **shape)
    assert isinstance(silu, Elementwise)
    assert (silu.read_bytes, silu.write_bytes, silu.elements) == (2 * size, size, 640)
    assert read(op="rope_eager", **shape).passes == 12
    assert read(op="add_rms_norm", **shape).family == "row_reduction"
    assert read(op="embedding", **shape) == Memory(
        op="embedding", elements=640, read_bytes=size + 80, write_bytes=size, dtype="bfloat16"
    )


def conditions(batch_row: dict[str, Any], gpu: str = "h100-sxm-80gb", **row: Any) -> dict[str, Any]:
    """Conditions of one row of a family, a value a column."""
    frame = pd.DataFrame([ORIGIN | batch_row | row])
    ((batch, _),) = to_batches(frame)
    found = conditions_of(frame, batch, device_of(gpu, {})).take(np.array([0]))
    return {name: column.item() for name, column in vars(found).items()}


PRODUCT = {"family": "gemm", "op": "linear", "m": 1024, "n": 4096, "k": 4096}
A, B, C = 2 * 1024 * 4096, 2 * 4096 * 4096, 2 * 1024 * 4096


def test_products_in_graphs_rotate_as_each_engine_does(subtests):
    for row, launches, cycled in [
        ({"framework": "sglang"}, 6, 6 * (A + B) + C),
        ({"framework": "vllm"}, 6, A + 6 * B + C),
        # 50 MB of L2 hold one B of 34 MB and a part of another.
        ({"framework": "trtllm"}, 2, A + 2 * B + C),
        ({"framework": "trtllm", "n": 65536}, 1, A + 16 * B + 16 * C),
        ({"framework": "trtllm", "n": 64}, 5, A + 5 * B / 64 + C / 64),
        # Six of 8.6 GB would fill more than 45 % of 80 GB.
        ({"framework": "sglang", "n": 65536, "k": 65536, "m": 1}, 4, 2 * (4 * (65536**2 + 65536) + 65536)),
    ]:
        with subtests.test(row=row):
            found = conditions(PRODUCT, **row)
            assert (found["timing"], found["launches"]) == ("graph", launches)
            assert found["cycled_bytes"] == cycled
            assert found["one_input"] == (row["framework"] != "sglang")
            assert found["engine"] == row["framework"]


def test_products_without_a_graph_are_launched_by_themselves():
    eager = conditions(PRODUCT, eager=True, dtype="fp8_block", kernel="DeepGemmFp8BlockScaledMMKernel")
    assert (eager["timing"], eager["launches"], eager["variant"]) == ("stream", 1, "deepgemm")
    layer = conditions(PRODUCT, framework="trtllm", dtype="int8_wo", kernel="trt_flow_/weight_only_quant_matmul_L257")
    assert (layer["timing"], layer["launches"], layer["cycled_bytes"]) == ("stream", 1, np.inf)


def test_only_vllm_s_16_bit_products_are_not_random():
    assert not conditions(PRODUCT)["random"]
    assert conditions(PRODUCT, framework="sglang")["random"]
    assert conditions(PRODUCT, dtype="fp8")["random"]


def test_attention_in_graphs_repeats_its_operands():
    row = {"family": "attention_generation", "op": "attention_generation", **HEADS, "kv_len": 1023}
    found = conditions(row, framework="sglang", kernel="flash_attention")
    assert (found["timing"], found["launches"], found["variant"]) == ("graph", 1, "fa2")
    # Queries, 1024 keys and values of two heads, the output and its sums.
    cache = 2 * 2 * 2 * 2 * 1024 * 64
    assert found["cycled_bytes"] == cache + 2 * 2 * 2 * 8 * 64 + 4 * 2 * 8


def test_experts_run_five_times_but_balanced_ones(subtests):
    for framework, distribution, launches in [
        *(("sglang", "balanced", 5), ("sglang", "power_law_1.2", 5)),
        *(("vllm", "balanced", 1), ("trtllm", "power_law_1.01", 5)),
    ]:
        with subtests.test(framework=framework, distribution=distribution):
            row = {"family": "moe", "op": "moe", **(EXPERTS | {"distribution": distribution})}
            assert conditions(row, framework=framework)["launches"] == launches


def test_other_rows_tell_their_timing_and_operands(subtests):
    sarathi = {"framework": "torch (sarathi)", "timing": "profiler", "operands": "model"}
    frontier = {"framework": "frontier", "timing": "events", "operands": "repeated"}
    for row, timing, cycled, engine, variant in [
        (sarathi, "profiler", np.inf, "torch", "sarathi"),
        (frontier, "stream", A + B + C, "vllm", ""),
        (frontier | {"kernel": "flashinfer_paged"}, "stream", A + B + C, "flashinfer", "flashinfer"),
        ({"framework": "deepgemm", "timing": "wall", "operands": "flushed"}, "wall", np.inf, "deepgemm", ""),
        ({"framework": "torch 2.1.0+cu121"}, "stream", A + B + C, "torch", ""),
    ]:
        with subtests.test(row=row):
            found = conditions(PRODUCT, **row)
            assert (found["timing"], found["engine"], found["variant"]) == (timing, engine, variant)
            assert found["cycled_bytes"] == cycled
            assert found["launches"] == 1


def test_a_collected_row_rotates_through_its_sets():
    row = {"sample": "a", "family": "gemm", "op": "linear", "m": 8, "n": 8, "k": 8, "batch": 1, "layout": "tn"}
    found = conditions(row, bias=False, framework="torch 2.6", kernel=None, operand_sets=40)
    assert (found["timing"], found["engine"]) == ("stream", "torch")
    assert found["cycled_bytes"] == 40 * 2 * 3 * 64
    assert found["random"]


def test_a_collected_row_without_later_fields_has_their_defaults():
    row = {"sample": "a", "family": "gemm", "op": "linear", "m": 8, "n": 8, "k": 8, "batch": 1, "layout": "tn"}
    frame = pd.DataFrame([ORIGIN | row | {"bias": True}])
    assert only(frame) == Gemm(m=8, n=8, k=8, bias=True, dtype="bfloat16")
    later = {"weight_dtype": "int8", "scaling": None, "quantised": None}
    assert only(frame.assign(**later)) == Gemm(m=8, n=8, k=8, bias=True, dtype="bfloat16", weight_dtype="int8")


ROWS = {
    "frontier": {
        **{"gemm": 8516, "attention_context": 1178, "attention_generation": 10656, "moe": 1054},
        "pointwise": 6001,
    },
    "infersim": {
        **{"attention_generation": 287, "attention_mla": 46, "attention_sparse": 42},
        **{"gemm": 110, "grouped_gemm": 136},
    },
    "llm-serving": {
        **{"attention_context": 501011, "attention_generation": 471637, "gemm": 969353, "moe": 744177},
        **{"nccl": 2016, "allreduce": 1380},
    },
    "llm-serving-blackwell": {
        **{"attention_context": 324228, "attention_generation": 312704, "gemm": 742570, "moe": 773674},
        **{"nccl": 1008, "allreduce": 690},
    },
    "llmservingsim": {"attention_context": 19296, "gemm": 149504, "pointwise": 59392},
    "llmservingsim-4090": {
        **{"attention_context": 96, "attention_generation": 99, "attention_mixed": 21457},
        **{"gemm": 648, "pointwise": 608},
    },
    "neusight-fp32": {"conv2d": 24662, "elementwise": 120058, "gemm": 141321, "row_reduction": 19966},
    "neusight-fp32-h100": {"gemm": 3517},
    "vidur-llm": {"gemm": 62088, "pointwise": 22189, "collectives": 20382},
}


def test_every_measured_table_is_read(data, subtests):
    tables = set(data.glob("*/kernels/*.parquet"))
    assert {f"{p.parent.parent.name}/{p.stem}" for p in tables} == {
        f"{name}/{table}" for name, counts in ROWS.items() for table in counts
    }
    for path in sorted(tables):
        with subtests.test(table=f"{path.parent.parent.name}/{path.stem}"):
            frame = load_kernels(path)
            assert len(frame) == ROWS[path.parent.parent.name][path.stem]
            frame = answered(frame)
            for batch, positions in to_batches(frame):
                check_rows(batch, frame.iloc[positions])


def answered(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows that some device answers: all but products in 4 bits, and prompts and decoding in one launch."""
    if "dtype" not in frame:
        return frame
    kinds = frame[["family", "dtype"]].drop_duplicates().itertuples(index=False)
    refused = [kind for kind in map(tuple, kinds) if unestimated(*kind)]
    assert {dtype for family, dtype in refused if family != "attention_mixed"} <= {"nvfp4"}
    return frame[~frame.set_index(["family", "dtype"]).index.isin(refused)]


def test_every_set_of_kernels_is_fitted(data):
    fitted = {path.name for path in sets_in(data)}
    arrays = {"accelerators"}  # `neusight fit arrays` has constants of their own
    assert fitted == {*ROWS, "rocm-kernels", "xla-tables"} | arrays
    shipped = json.loads((checkout_dir("tile_models") / "physics.json").read_text())["data"]
    assert {file.split("/")[0] for file in shipped} >= fitted - arrays | {"matmul-rates"}


def test_prompts_and_decoding_in_one_launch_are_no_single_kernel(data):
    frame = load_kernels(data / "llmservingsim-4090" / "kernels" / "attention_mixed.parquet")
    assert "one launch" in unestimated("attention_mixed", "bfloat16")
    with pytest.raises(DataError, match="rows of 'attention_mixed' are no kernels"):
        to_batches(frame)


def check_rows(batch: KernelBatch, rows: pd.DataFrame) -> None:
    """Work is finite and there is some, and conditions are told, on the GPU with most rows."""
    work = work_of(batch)
    for column in (work.flops, work.read_bytes, work.write_bytes):
        assert np.isfinite(column).all()
    assert (work.read_bytes > 0).all()
    assert (work.write_bytes > 0).all()
    assert (work.flops > 0).all() or batch.family in ("memory", "collective")
    gpu = rows["gpu"].mode()[0]
    own = (rows["gpu"] == gpu).to_numpy()
    found = conditions_of(rows[own], batch.take(own), device_of(gpu, {}))
    assert (found.cycled_bytes >= 0.999 * work.bytes[own]).all()
    assert (found.launches >= 1).all()
    assert (found.engine != "").all()


def test_collectives_name_a_machine(data):
    frame = load_kernels(data / "vidur-llm" / "kernels" / "collectives.parquet")
    assert set(frame["gpu"]) == {"a100-sxm-80gb", "a100-pcie-80gb", "h100-sxm-80gb", "h100-nvl-94gb"}


ROW = {"gpu": "l40s", "num_gpus": 4, "bytes": 4096, "latency_ms": 0.01}
OWN = {"framework": "vllm", "version": "1", "kernel": "custom"}


@pytest.mark.parametrize(
    ("told", "op", "engine", "timing"),
    [
        ({"nccl_version": "2", "collective": "alltoall", "dtype": "half"}, "all_to_all", "torch", "profiler"),
        ({**OWN, "mode": "graph"}, "all_reduce", "vllm", "graph"),
        ({**OWN, "mode": "eager"}, "all_reduce", "vllm", "stream"),
    ],
)
def test_who_runs_a_collective_and_how_it_is_timed(parquet, told, op, engine, timing):
    frame = load_kernels(parquet(pd.DataFrame([ROW | told]), "rows.parquet"))
    ((batch, _),) = to_batches(frame)
    found = conditions_of(frame, batch, device_of("l40s", {}))
    assert batch.columns["op"][0] == op and (batch["ranks"][0], batch["per_node"][0]) == (4, 0)
    assert (found.engine[0], found.timing[0]) == (engine, timing)


def test_ranks_of_several_nodes(parquet):
    row = {"node": "a100_dgx", "collective": "all_reduce", "num_gpus": 16, "devices_per_node": 8, "bytes": 4096}
    frame = load_kernels(parquet(pd.DataFrame([row | {"latency_ms": 0.1}]), "rows.parquet"))
    ((batch, _),) = to_batches(frame)
    assert (frame["gpu"][0], batch["ranks"][0], batch["per_node"][0]) == ("a100-sxm-80gb", 16, 8)
