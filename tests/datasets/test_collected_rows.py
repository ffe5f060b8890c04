from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from collected_sets import LAUNCH_S, STAND_IN, execution_s, family_rows, rows_of, write_rows, write_set
from kernel_grids import MAKERS, grid

from neusight.datasets import (
    About,
    by_gpu,
    clean,
    device_of,
    devices_beside,
    load_kernels,
    observed_tiles,
    to_batches,
)
from neusight.datasets.clean import alike, invalid
from neusight.datasets.load import kernel_columns
from neusight.datasets.measured import measured, unable
from neusight.datasets.schema import COLLECTED_TABLES
from neusight.devices import load_device
from neusight.errors import DataError, DeviceError
from neusight.kernels import Attention
from neusight.kernels.work import work_of
from neusight.laws.bounds import flops_per_s

DEVICES = {STAND_IN.id: STAND_IN}
ABOUT = About(title="A stand-in", origin="a test", licence="MIT")
NCCL = {"nccl_version": "2.27", "collective": "all_reduce", "dtype": "float16", "num_gpus": 2, "bytes": 1024}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A whole set that tests only read."""
    return write_set(tmp_path_factory.mktemp("sets") / "made", n=12)


@pytest.fixture
def own(tmp_path):
    """A set that a test may change."""
    return write_set(tmp_path / "own", n=4)


def removed(frame, rule):
    """Positions that ``rule`` removes, all rules applied: no other may remove anything."""
    result = clean(frame, DEVICES)
    counts = result.report.groupby("rule")["removed"].sum()
    assert set(counts[counts > 0].index) <= {rule}
    return sorted(set(range(len(frame))) - set(result.frame.index))


def test_kernels_come_back_as_they_were(tmp_path):
    for family in MAKERS:
        given = grid(family, 30, "bfloat16")
        ((batch, positions),) = to_batches(load_kernels(write_rows(tmp_path / "rows.parquet", rows_of(given, "x"))))
        assert list(positions) == list(range(30)), family
        assert [batch.kernel(i) for i in range(30)] == [given.kernel(i) for i in range(30)], family


def test_a_set_its_kernels_and_its_files_read_alike(made):
    whole = load_kernels(made)
    assert set(whole["family"]) == set(MAKERS) and whole["sample"].is_unique
    pd.testing.assert_frame_equal(whole, load_kernels(made / "kernels"))
    part = load_kernels(made / "kernels" / "gemm-part-0001.parquet")
    assert set(part["sample"]) < set(whole["sample"])
    assert {f.name for f in (made / "kernels").glob("gemm*")} == {"gemm-part-0001.parquet", "gemm-part-0002.parquet"}
    gemms = load_kernels(made, ["gemm"])
    assert len(gemms) == len(family_rows("gemm", 12)) and set(gemms["family"]) == {"gemm"}


def test_files_of_other_families_are_not_opened(own):
    (own / "kernels" / "attention-part-0003.parquet").write_bytes(b"PAR1")
    assert set(load_kernels(own, ["gemm", "memory"])["family"]) == {"gemm", "memory"}
    with pytest.raises(DataError, match="attention-part-0003"):
        load_kernels(own)


def test_one_batch_a_family_also_among_other_families(made):
    frame = load_kernels(made)
    batches = to_batches(frame)
    assert sorted(b.family for b, _ in batches) == sorted(MAKERS)
    assert sorted(np.concatenate([p for _, p in batches])) == list(range(len(frame)))
    flags = {batch.family: batch for batch, _ in batches}
    assert flags["attention"]["causal"].dtype == bool and flags["gemm"]["bias"].dtype == bool


def test_a_sample_is_kept_once_on_each_gpu(own):
    before = load_kernels(own)
    rows = family_rows("attention", 4)
    write_rows(own / "kernels" / "attention-part-0007.parquet", rows.head(3))
    assert len(load_kernels(own)) == len(before)
    write_rows(own / "kernels" / "attention-part-0008.parquet", rows.head(3).assign(gpu="l4"))
    assert len(load_kernels(own)) == len(before) + 3


def test_a_faulty_cell_is_located_and_a_missing_field_named(tmp_path):
    empty = ("kv_len", "causal", "sample", "latency_ms")
    faults = [(name, None, f"{name} is empty in row 2") for name in empty]
    faults += [("family", "atention", "family 'atention' is not known: one of .*did you mean attention")]
    for name, value, said in faults:
        frame = family_rows("attention", 4).astype(object)
        frame.loc[2, name] = value
        with pytest.raises(DataError, match=said) as error:
            load_kernels(write_rows(tmp_path / "rows.parquet", frame))
        assert "\n" not in str(error.value) and "rows.parquet" in str(error.value)
    path = write_rows(tmp_path / "rows.parquet", family_rows("conv2d", 4))
    pd.read_parquet(path).drop(columns="dilation").to_parquet(path)
    with pytest.raises(DataError, match="lacks dilation of a conv2d table"):
        load_kernels(path)


def test_columns_without_a_value_keep_their_kind(tmp_path):
    path = write_rows(tmp_path / "rows.parquet", family_rows("gemm", 4))
    table = pq.read_table(path).drop(["grid_x", "execution_ms"])
    for name in ("grid_x", "execution_ms"):
        table = table.append_column(name, pa.nulls(len(table)))
    pq.write_table(table, path)
    frame = load_kernels(path)
    assert frame["grid_x"].dtype.kind == frame["execution_ms"].dtype.kind == "f"
    assert observed_tiles(frame)["tile_m"].isna().all()


def test_attention_of_a_serving_engine_stays_what_it_is(tmp_path, made):
    serving = {
        "kernel": "flash",
        "framework": "vllm",
        "version": "1",
        "kv_cache_dtype": "bfloat16",
        "dtype": "bfloat16",
    }
    shape = {"batch": 3, "num_heads": 8, "num_kv_heads": 2, "head_dim": 64, "window": 0, "seq_len": 15}
    folder = tmp_path / "mixed"
    folder.mkdir()
    pd.DataFrame([{"gpu": "l4", "latency_ms": 1.0, **serving, **shape}]).to_parquet(
        folder / "attention_context.parquet"
    )
    write_rows(folder / "attention.parquet", family_rows("attention", 4))
    frame = load_kernels(folder)
    assert set(frame["family"]) == {"attention", "attention_context"}
    kernels = {frame["family"].iloc[p[0]]: b.kernel(0) for b, p in to_batches(frame)}
    told = {"batch": 3, "heads": 8, "kv_heads": 2, "q_len": 15, "kv_len": 15, "head_dim": 64}
    assert kernels["attention_context"] == Attention(**told, causal=True, dtype="bfloat16")
    assert kernels["attention"] == grid("attention", 4, "float32").kernel(0)


def test_another_origins_rows_beside_are_read_by_their_shape(rows, parquet):
    path = parquet(rows({"m": 3, "n": 5, "k": 7}).assign(sample=1.5), "mixed/linear.parquet")
    write_rows(path.parent / "gemm.parquet", family_rows("gemm", 4))
    batches = to_batches(load_kernels(path.parent))
    assert [b.family for b, _ in batches] == ["gemm", "gemm"]
    assert batches[1][0].kernel(0).layout == "tn" and len(batches[1][0]) == 1


def test_devices_lie_beside_the_data(made, tmp_path):
    for path in (made, made / "kernels", made / "kernels" / "conv2d.parquet"):
        assert devices_beside(path)["stand-in"].sm_count == STAND_IN.sm_count
    assert devices_beside(tmp_path) == {}
    assert device_of("stand-in", DEVICES) == STAND_IN and device_of("t4", DEVICES) == load_device("t4")
    with pytest.raises(DeviceError, match=r"unknown device 'stand-in'.*devices/ of the data set"):
        device_of("stand-in", {})


def test_work_and_rates_are_those_of_the_laws():
    for family in MAKERS:
        batch = grid(family, 60, "bfloat16", seed=3)
        work, law = measured(rows_of(batch, "x"), DEVICES), work_of(batch)
        np.testing.assert_allclose(work["flops"], law.flops, rtol=1e-12, err_msg=family)
        np.testing.assert_allclose(work["bytes"], law.bytes, rtol=1e-12, err_msg=family)
        np.testing.assert_allclose(work["flops_per_s"], flops_per_s(batch, STAND_IN), err_msg=family)
        assert unable(STAND_IN, family, "bfloat16") == "" and unable(STAND_IN, family, "fp6"), family
    # Only products need a rate of their dtype.
    assert "does not compute in int64" in unable(STAND_IN, "gemm", "int64")
    assert unable(STAND_IN, "memory", "int64") == ""


def test_sound_rows_of_every_family_stay(made):
    frame = load_kernels(made)
    result = clean(frame, devices_beside(made))
    assert len(result.frame) == len(frame)
    assert set(result.report["family"]) == set(MAKERS)
    with pytest.raises(DeviceError, match="stand-in"):
        clean(frame)


def test_extents_below_one_are_invalid():
    may = {"padding", "window", "largest", "read_bytes", "write_bytes", "flops", "kv_len", "value_dim", "selected"}
    may |= {"output_height", "output_width"}  # 0: as the input's size and the filter have it
    may |= {"top_k"}  # of sparse attention's tables; no layer of experts can be made of it
    for family in MAKERS:
        names = [c.name for c in kernel_columns(family) if c.kind == "integer"]
        zero = pd.concat([rows_of(grid(family, 1), name).assign(**{name: 0}) for name in names], ignore_index=True)
        assert list(invalid(zero)) == [name not in may for name in names], family
        assert invalid(zero.assign(**dict.fromkeys(names, -1))).all(), family
        frame = pd.concat([rows_of(grid(family, 1), "sound"), zero[[n not in may for n in names]]], ignore_index=True)
        assert removed(frame, "invalid") == list(range(1, len(frame))), family


def test_unstable_and_throttled_rows_go():
    frame = family_rows("attention", 8)
    frame.loc[2, "stable"] = False
    assert removed(frame, "unstable") == [2]
    heat = family_rows("attention", 8)
    heat.loc[[1, 3, 4], "throttle"] = ["sw_power_cap", "hw_thermal_slowdown", "sw_power_cap;hw_power_brake_slowdown"]
    assert removed(heat, "throttled") == [3, 4]
    heat.loc[5, "throttle"] = None  # nothing is known of it
    assert removed(heat, "throttled") == [3, 4]


def test_a_repetition_far_off_takes_both_along():
    frame = family_rows("memory", 8)
    again = frame.index[(frame["repeat"] == 1)][0]
    first = frame.index[(frame["repeat"] == 0) & (frame["elements"] == frame["elements"][again])][0]
    assert removed(frame, "conflicting_duplicate") == []
    frame.loc[again, ["latency_ms", "execution_ms"]] *= 1.5
    assert removed(frame, "conflicting_duplicate") == [first, again]


def test_kernels_that_differ_in_one_field_are_no_duplicates():
    batch = grid("attention", 1)
    rows = rows_of(batch, "a")
    other = rows_of(batch, "b").assign(causal=~rows["causal"], latency_ms=5 * rows["latency_ms"])
    assert removed(pd.concat([rows, other], ignore_index=True), "conflicting_duplicate") == []


def test_the_execution_may_not_beat_the_datasheet():
    frame = rows_of(grid("attention", 40, "bfloat16"), "x")
    long = int(frame["execution_ms"].argmax())
    frame.loc[long, "execution_ms"] /= 3  # the bound is half of the time
    assert removed(frame, "faster_than_datasheet") == [long]
    frame.loc[long, "execution_ms"] = np.nan  # and the latency is slow enough
    assert removed(frame, "faster_than_datasheet") == []


def test_alike_is_the_same_launch_of_nearly_the_same_kernel():
    frame = pd.concat([rows_of(grid("memory", 1), f"{i}") for i in range(5)], ignore_index=True)
    frame = frame.assign(kernel_name="copy", grid_x=[64] * 5, grid_y=1, grid_z=1, block_x=128, block_y=1, block_z=1)
    size = frame["elements"][0]
    frame["elements"] = [size, size + 1, size + 2, size + 3, 4 * size]
    frame.loc[4, "read_bytes"] *= 4
    frame["latency_ms"] *= [1, 1, 1, 1.8, 4]
    work = measured(frame, DEVICES)
    assert len(set(alike(work)[:4])) == 1 and alike(work)[4] != alike(work)[0]
    assert removed(frame, "disturbed") == [3]


def test_tiles_of_pointwise_kernels_come_from_their_elements():
    frame = rows_of(grid("elementwise", 1), "x").assign(elements=100_000, kernel_name="vectorized_elementwise_kernel")
    frame = frame.assign(grid_x=196, grid_y=1, grid_z=1, block_x=128, block_y=1, block_z=1)
    assert observed_tiles(frame)[["tile_m", "tile_n"]].iloc[0].tolist() == [1, 512]


def test_medians_have_no_host_stalls_and_loops_over_experts_are_planned():
    small = pd.concat([rows_of(grid("gemm", 1), f"{m}").assign(m=m, n=m, k=16) for m in range(20, 30)])
    frame = small.reset_index(drop=True).assign(latency_ms=0.04)
    frame.loc[4, "latency_ms"] = 0.08
    assert removed(frame, "host_stall") == []
    experts = rows_of(grid("grouped_gemm", 4), "x").assign(kernel_names=";k" * 20)
    assert removed(experts, "launch_loop") == []
    convolutions = rows_of(grid("conv2d", 4), "x").assign(kernel_names=";k" * 20)
    assert removed(convolutions, "launch_loop") == [0, 1, 2, 3]


def test_an_op_of_several_families_is_reported_with_its_family():
    frame = pd.concat([family_rows("conv2d", 8), family_rows("attention", 8)], ignore_index=True)
    frame = pd.concat([frame, family_rows("memory", 8)], ignore_index=True).assign(stable=False)
    named = {op for _, _, op in by_gpu(clean(frame, DEVICES).report).index}
    assert {"conv2d forward", "attention forward", "attention backward", "copy"} <= named
    assert not {"forward", "backward", "memory copy"} & named


def test_the_schema_has_every_family():
    assert set(COLLECTED_TABLES) == {*MAKERS, "collective"}
    frame = rows_of(grid("gemm", 3), "x")
    np.testing.assert_allclose(
        frame["latency_ms"], frame["execution_ms"] + 1e3 * LAUNCH_S
    )  # what the tests above rest on
    np.testing.assert_allclose(frame["execution_ms"], 1e3 * execution_s(grid("gemm", 3), STAND_IN), rtol=0.021)
