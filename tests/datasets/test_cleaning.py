from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from neusight.datasets import RULES, by_gpu, clean, explained, rules_named
from neusight.devices import load_device
from neusight.errors import DataError, DeviceError


def removed(frame, rule):
    """Positions that ``rule`` removes, all rules applied: no other may remove anything."""
    result = clean(frame)
    counts = result.report.groupby("rule")["removed"].sum()
    assert set(counts[counts > 0].index) <= {rule}
    assert counts[rule] == len(frame) - len(result.frame)
    return sorted(set(range(len(frame))) - set(result.frame.index))


V100 = load_device("v100-pcie-32gb")


def gemm_ms(utilisation, m=4096, n=4096, k=4096, device=V100):
    """Latency of a product at a given share of the peak."""
    return 2e3 * m * n * k / (utilisation * device.gemm_flops_per_s("float32"))


def test_sound_rows_stay(rows):
    frame = rows({"op": "linear"}, {"op": "bmm"}, {"op": "add"}, {"op": "softmax"}, {"op": "conv2d"})
    result = clean(frame)
    assert len(result.frame) == len(frame) and result.report["removed"].sum() == 0
    assert list(result.frame.columns) == list(frame.columns)


def test_invalid(rows):
    for change in ({"latency_ms": 0.0}, {"latency_ms": np.inf}, {"latency_ms": np.nan}, {"k": 0}):
        assert removed(rows({}, change, {}), "invalid") == [1], change
    assert removed(rows({"op": "conv2d", "padding": 0}), "invalid") == []


def test_faster_than_datasheet_compute(rows):
    frame = rows({"latency_ms": gemm_ms(0.99)}, {"latency_ms": gemm_ms(1.2), "m": 4097})
    assert removed(frame, "faster_than_datasheet") == [1]


def test_faster_than_datasheet_allows_caches(rows):
    def row(elements, speed):
        size = {"rows": elements // 1024, "cols": 1024}
        return {"op": "add", **size, "latency_ms": 1e3 * 12 * elements / (speed * V100.dram_bandwidth_bytes_per_s)}

    frame = rows(row(2**28, 0.9), row(2**27, 1.3), row(2**18, 1.3))
    assert removed(frame, "faster_than_datasheet") == [1]  # the last fits in L2


def test_a_layer_whose_tokens_went_to_fewer_experts_is_removed_whole():
    layer = {"hidden_size": 7168, "ffn_size": 2048, "num_experts": 256, "top_k": 8, "moe_tp_size": 1, "moe_ep_size": 1}
    layer |= {
        "gpu": "h200-sxm-141gb",
        "framework": "sglang",
        "dtype": "fp8_block",
        "family": "moe",
        "op": "moe",
        "split": "train",
    }
    weights_ms = 1e3 * 3 * 7168 * 2048 * 256 / load_device("h200-sxm-141gb").dram_bandwidth_bytes_per_s
    ran = [(kernel, tokens, kind) for kernel in "ab" for tokens, kind in ((32, "balanced"), (1, "power_law_1.01"))]
    frame = pd.DataFrame([layer | {"kernel": k, "num_tokens": n, "distribution": d} for k, n, d in ran])
    frame["latency_ms"] = [1.2 * weights_ms, 1.0, 0.6 * weights_ms, 1.0]
    assert removed(frame, "fewer_experts") == [2, 3]


def test_faster_than_datasheet_allows_winograd(rows):
    work = 2e3 * 16 * 56 * 56 * 128 * 64 * 9 / V100.gemm_flops_per_s("float32")
    frame = rows({"op": "conv2d", "latency_ms": work / 2}, {"op": "conv2d", "latency_ms": work / 5, "in_channels": 128})
    frame.loc[1, "latency_ms"] *= 2  # twice the channels
    assert removed(frame, "faster_than_datasheet") == [1]


def test_conflicting_duplicate(rows):
    same = [{"latency_ms": t} for t in (20.0, 20.4, 27.0)]
    assert removed(rows(*same, {"m": 5000, "latency_ms": 27.0}), "conflicting_duplicate") == [2]


def test_disturbed(rows):
    near = [{"m": 4096 - i, "latency_ms": t} for i, t in enumerate((20.0, 21.0, 40.0, 20.5))]
    assert removed(rows(*near), "disturbed") == [2]
    other_grid = [near[0], near[1], near[2] | {"grid_x": 2}, near[3]]
    assert removed(rows(*other_grid), "disturbed") == []


def test_host_stall(rows):
    small = {"op": "bmm", "batch": 1, "k": 16, "kernel_name": "volta_sgemm_64x64_nn"}
    usual = [small | {"m": m, "n": m, "latency_ms": 0.04} for m in range(20, 30)]
    frame = rows(*usual, small | {"k": 32, "latency_ms": 0.09, "m": 33, "n": 33})
    assert removed(frame, "host_stall") == [10]
    in_graphs = frame.assign(latency_ms=frame["latency_ms"] / 20)  # no host takes part
    assert removed(in_graphs, "host_stall") == []
    for many in ({"framework": "vllm"}, {"timing": "profiler"}):  # means, and what no host is part of
        assert removed(frame.assign(**many), "host_stall") == []
    busy = {"m": 2048, "n": 2048, "grid_x": 32, "grid_y": 32, "latency_ms": 0.09}  # work explains it
    assert removed(rows(*usual, small | busy), "host_stall") == []


def test_launch_loop(rows):
    frame = rows({"op": "conv2d", "kernel_names": ";k" * 9}, {"op": "conv2d", "kernel_names": ";k" * 8, "batch": 17})
    assert removed(frame, "launch_loop") == [0]


def throttled(rows, share):
    """Forty products a split; the train split at ``share`` of the test split's rate, and short ones beside."""
    sizes = range(2048, 2088)
    test = [{"m": m, "split": "test", "latency_ms": gemm_ms(0.8, m)} for m in sizes]
    train = [{"m": 4000 + m, "latency_ms": gemm_ms(0.8 * share, 4000 + m)} for m in sizes]
    short = [{"m": 128, "n": m, "k": 128, "latency_ms": 0.5} for m in sizes]
    return rows(*test, *train, *short)


def test_throttled_split(rows):
    assert removed(throttled(rows, 0.4), "throttled_split") == list(range(40, 80))
    assert removed(throttled(rows, 0.7), "throttled_split") == []
    frame = throttled(rows, 0.4)
    frame.loc[40:79, "gpu"] = "p100-pcie-16gb"  # slower than another card, not than itself
    assert removed(frame, "throttled_split") == []


def test_other_gpus_do_not_matter(rows):
    frame = throttled(rows, 0.4)
    held_out = frame.assign(gpu="l4", latency_ms=frame["latency_ms"] * 3).set_index(frame.index + 1000)
    alone = clean(frame).frame
    together = clean(pd.concat([frame, held_out])).frame
    assert list(together.index[together["gpu"] == "v100-pcie-32gb"]) == list(alone.index)


def test_index_and_columns_survive(rows):
    frame = rows({}, {"k": 0}, {"m": 77}).set_index(np.array([30, 20, 10]))
    assert list(clean(frame).frame.index) == [30, 10]


def test_the_report_counts_by_gpu_and_op(rows):
    report = clean(rows({"k": 0}, {"op": "add"}, {"gpu": "t4"})).report
    first = report[report["rule"] == "invalid"].set_index(["gpu", "op"])
    assert first.loc[("v100-pcie-32gb", "linear"), ["removed", "of"]].tolist() == [1, 1]
    assert first.loc[("t4", "linear"), "removed"] == 0
    assert (report["why"].str.len() > 20).all()
    table = explained(report)
    assert list(table.index) == [r.name for r in RULES]
    assert table.loc["invalid", ["removed", "mostly"]].tolist() == [1, "v100-pcie-32gb linear 1"]
    assert by_gpu(report).index.tolist() == [("invalid", "v100-pcie-32gb", "linear")]


def test_rules_by_name(rows):
    frame = throttled(rows, 0.4)
    chosen = [r.name for r in RULES if r.name != "throttled_split"]
    assert len(clean(frame, rules=rules_named(chosen)).frame) == len(frame)
    with pytest.raises(DataError, match="did you mean host_stall"):
        rules_named(["host_stal"])


def test_given_devices_replace_the_catalogue(rows):
    slow = V100.model_copy(update={"vector_flops_per_s": {"float32": 1e12}, "matrix_flops_per_s": {}})
    assert len(clean(rows({}), {"v100-pcie-32gb": slow}).frame) == 0
    with pytest.raises(DeviceError):
        clean(rows({"gpu": "no-such-gpu"}))
