"""Tables of other projects are read as they lie: devices, dtypes, shapes, units and conditions become those of ours."""

import numpy as np
import pandas as pd
import pytest

from neusight.datasets import clean, conditions_of, device_of, load_kernels, to_batches
from neusight.datasets.load import is_kernel_table, sets_in
from neusight.errors import DataError
from neusight.evaluation.kernels import comparable_kernels

XLA = {"device": "sm_90", "dtypes": "bf16xbf16->bf16", "b": 1, "m": 512, "n": 256, "k": 1024, "time_us": 5.0}
COLLECTIVE = {
    **{"device": "gfx942", "op": "reduce-scatter", "dtype": "BF16", "dims": 2**20, "groups": 1.0, "group_size": 8.0},
    **{"pairs": 0, "network_throughput_bytes_per_s": 2**34},
}
AITER = {
    **{"accelerator": "mi300x-or-mi325x", "op": "gemm", "dtype": "fp8", "scale": "blockscale-1x128x128", "lib": "ck"},
    **{"kernel": "a8w8", "b": 1, "m": 16, "n": 4096, "k": 512, "time_us": 20.0, "split_k": 2},
}
EXPERTS = {
    **{
        "gfx": "gfx942",
        "accelerator": "mi300x",
        "tokens": 64,
        "hidden": 4096,
        "inter": 1536,
        "experts": 128,
        "topk": 8,
    },
    **{"dtype_w": "float8_e4m3fnuz", "quant": "per_1x128", "gated": 1, "kernel1": "fmoe", "time_us": 100.0},
}


def one_batch(path):
    frame = load_kernels(path)
    ((batch, _),) = to_batches(frame)
    return frame, batch, conditions_of(frame, batch, device_of(frame["gpu"][0], {}))


def test_products_of_xla_are_cold_kernels_after_a_rest(parquet):
    rows = pd.DataFrame([XLA, XLA | {"b": 4, "dtypes": "f32xf32->f32"}])
    frame, batch, conditions = one_batch(parquet(rows))
    assert list(frame["gpu"]) == ["h100-sxm-80gb"] * 2
    assert list(frame["latency_ms"]) == [0.005] * 2
    assert list(batch["op"]) == ["linear", "bmm"]
    assert list(batch["batch"]) == [1, 4]
    assert list(batch["dtype"]) == ["bfloat16", "tf32"]
    assert set(conditions.timing) == {"profiler"}
    assert np.isinf(conditions.cycled_bytes).all()
    assert (conditions.burst == 1).all()


def test_kernels_tell_which_of_amds_libraries_they_are_of(parquet):
    products = [XLA | {"device": "gfx942"}, XLA | {"device": "gfx942", "dtypes": "f8e4m3fnuzxf8e4m3fnuz->bf16"}, XLA]
    assert list(one_batch(parquet(pd.DataFrame(products)))[2].variant) == ["rocblas", "", ""]
    tuned = [AITER, AITER | {"lib": "asm"}, AITER | {"lib": None}]
    assert list(one_batch(parquet(pd.DataFrame(tuned)))[2].variant) == ["ck", "asm", "ck"]


def test_formats_of_eight_bits_are_one_dtype_and_wider_results_none(parquet):
    names = ("f8e4m3fnxf8e5m2->bf16", "f8e4m3fnuzxf8e4m3fnuz->f32", "bf16xbf16->f32")
    frame = load_kernels(parquet(pd.DataFrame([XLA | {"dtypes": name} for name in names])))
    assert list(frame["dtype"]) == ["float8", *names[1:]]


def test_rows_that_their_source_marks_are_neither_compared_nor_learned_from(parquet):
    path = parquet(pd.DataFrame([XLA | {"suspect": None}, XLA | {"m": 1024, "suspect": "above the peak"}]))
    frame, _, skipped = comparable_kernels(path)
    assert list(frame["m"]) == [512]
    assert skipped[0]["count"] == 1
    assert "above the peak" in skipped[0]["reason"]
    assert list(clean(load_kernels(path)).frame["m"]) == [512]


def test_throughput_of_a_collective_is_of_the_larger_of_operand_and_result(parquet):
    gather = COLLECTIVE | {"op": "all-gather"}
    permute = COLLECTIVE | {"op": "collective-permute", "group_size": None}
    frame, batch, conditions = one_batch(parquet(pd.DataFrame([COLLECTIVE, gather, permute])))
    assert list(batch["op"]) == ["reduce_scatter", "all_gather", "send_recv"]
    assert list(batch["bytes"]) == [2**24, 2**21, 2**21]
    assert list(batch["ranks"]) == [8, 8, 2]
    np.testing.assert_allclose(frame["latency_ms"], 1e3 * batch["bytes"] / 2**34)
    assert set(conditions.timing) == {"stream"}


def test_benchmarks_of_a_tpu_are_a_copy_and_sums_over_chips_or_slices(parquet):
    common = {"accelerator": "tpu-v6e", "bytes": 2**20, "gb_s": 10.0, "time_us": None}
    rows = [
        common | {"op": "hbm copy (read+write)", "topology": "chip", "time_us": 50.0},
        common | {"op": "psum ici", "topology": "v6e-256 16x16"},
        common | {"op": "psum dcn", "topology": "2 x v6e-256"},
    ]
    frame = load_kernels(parquet(pd.DataFrame(rows)))
    batches = {batch.family: batch for batch, _ in to_batches(frame)}
    assert (batches["memory"]["op"][0], batches["memory"]["elements"][0]) == ("copy", 2**19)
    sums = batches["collective"]
    assert [sums[name].tolist() for name in ("ranks", "per_node", "bytes")] == [[256, 2], [256, 1], [2**20, 2**19]]
    # A ring's rank sends 2 (n - 1) / n of its tensor.
    assert frame["latency_ms"].to_numpy() == pytest.approx([0.05, 2e-7 * 2**20 * 255 / 256, 1e-7 * 2**19])


def test_products_of_aiter_arrive_quantised(parquet):
    rows = [AITER, AITER | {"dtype": "int8", "scale": "row/token"}, AITER | {"dtype": "bfloat16", "op": "bmm", "b": 16}]
    frame, batch, conditions = one_batch(parquet(pd.DataFrame(rows)))
    assert set(frame["gpu"]) == {"mi300x"}
    assert list(batch["dtype"]) == ["float8", "int8", "bfloat16"]
    assert list(batch["scaling"]) == ["block", "row", ""]
    assert not batch["quantised"].any()
    assert list(batch["batch"]) == [1, 1, 16]
    assert set(conditions.engine) == {"aiter"}
    assert (conditions.burst == 101).all()


def test_layers_of_experts_of_aiter_are_one_devices_share(parquet):
    plain = EXPERTS | {"gated": 0, "dtype_w": "bfloat16", "quant": "No", "kernel1": "moe_ck2stages"}
    frame, batch, conditions = one_batch(parquet(pd.DataFrame([EXPERTS, plain])))
    assert list(batch["dtype"]) == ["float8", "bfloat16"]
    assert list(batch["scaling"]) == ["block", ""]
    assert list(batch["gated"]) == [True, False]
    assert list(batch["experts"]) == list(batch["all_experts"]) == [128, 128]
    assert list(batch["ffn"]) == [1536] * 2
    assert list(conditions.variant) == ["asm", "ck"]
    assert list(frame["latency_ms"]) == [0.1] * 2


@pytest.mark.parametrize(
    ("named", "gpu"),
    [
        ({"device": "gfx950"}, "mi350x"),
        ({"device": "B200"}, "b200-sxm-180gb"),
        ({"gpu": "gb200-186gb"}, "gb200-186gb"),
        ({"accelerator": "mi355x"}, "mi355x"),
    ],
)
def test_any_device_of_the_catalogue_may_be_named(parquet, named, gpu):
    assert list(load_kernels(parquet(pd.DataFrame([XLA | named])))["gpu"]) == [gpu]


def test_an_unknown_device_says_what_to_do(parquet):
    with pytest.raises(DataError, match="add a column gpu"):
        load_kernels(parquet(pd.DataFrame([XLA | {"device": "sm_300"}])))


def test_a_set_of_published_tables_is_one_of_several_and_passes_over_cycles_of_scalars(parquet, tmp_path):
    parquet(pd.DataFrame([XLA]), "mine/matmul.parquet")
    parquet(pd.DataFrame([{"device": "sm_90", "op": "add", "dtype": "F32", "clock_cycles": 4}]), "mine/cycles.parquet")
    parquet(pd.DataFrame([{"gpu": "h100", "tokens_per_s": 4.0}]), "other/cells.parquet")
    assert sets_in(tmp_path) == [tmp_path / "mine"]
    assert len(load_kernels(tmp_path / "mine")) == 1


def test_every_published_row_is_a_kernel(data):
    for name, rows in {"xla-tables": 3375 + 960, "rocm-kernels": 23497 + 79}.items():
        frame = load_kernels(data / name)
        assert len(frame) == rows
        frame = frame[frame["dtype"] != "bf16xbf16->f32"]
        assert sum(len(where) for _, where in to_batches(frame)) == len(frame)
    assert is_kernel_table(("dtypes", "b", "m", "n", "k", "time_us"))


@pytest.mark.parametrize(("gpu", "variant"), [("rtx-4090", "fa2"), ("h100-sxm-80gb", "fa3"), ("a100-sxm-80gb", "fa2")])
def test_attention_of_vllm_that_names_no_library_is_flash_attention(parquet, gpu, variant):
    shape = {"batch": 1, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128, "window": 0, "seq_len": 256}
    who = {"gpu": gpu, "framework": "vllm", "dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "latency_ms": 1.0}
    rows = pd.DataFrame([shape | who | {"kernel": "vllm_attention_layer", "timing": "profiler", "operands": "model"}])
    _, _, conditions = one_batch(parquet(rows))
    assert list(conditions.variant) == [variant]
