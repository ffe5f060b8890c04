"""Tables that people write: what is wrong with them is one line, and what is right is asked."""

from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from neusight.api import Predictor
from neusight.devices import load_device
from neusight.engines.torch import TORCH
from neusight.errors import DataError
from neusight.measured import compare, read_table
from neusight.measured.folder import rows_to_fit
from neusight.measured.kernels import skipped_counts
from neusight.plans.states import workspace_bytes

KERNELS = "family,gpu,m,n,k,dtype,engine,timing,latency_ms\n"
STEPS = "model,gpu,mode,batch,seq_len,dtype,latency_ms\n"


def table(folder: Path, text: str) -> Path:
    path = folder / "mine.csv"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu,model,batch,latancy_ms\nl4,gpt2,1,5\n", "unknown column 'latancy_ms'; did you mean latency_ms"),
        ("gpu,model,batch,latency_s\nl4,gpt2,1,0.005\n", "unknown column 'latency_s'"),
        ("gpu,model,batch\nl4,gpt2,1\n", "no measured column"),
        (STEPS, "has no rows"),
        (STEPS + "l4,gpt2,inference,1,64,float16,-3\n", "row 1: latency_ms is '-3"),
        (STEPS + "l4,gpt2,inference,1,64,float16,5 ms\n", "row 1: latency_ms is '5 ms'"),
        ("", "is empty"),
        (
            "op,engine,backend,gpu,rows,cols,latency_ms\nadd,vllm,vllm,l4,8,8,1\n",
            "has column backend twice",
        ),
    ],
)
def test_read_table_names_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        read_table(table(tmp_path, text))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_read_table_tells_variants_apart_that_their_source_names(tmp_path: Path) -> None:
    head = "op,engine,variant,gpu,dtype,weight_dtype,software,tokens,latency_ms\n"
    cells = (
        "cutlass,b200-sxm-180gb,float4,,trtllm 1.3 moe_torch_flow_min_latency",
        "cutlass,b200-sxm-180gb,float4,,trtllm 1.3 moe_torch_flow_cutlass",
        "cutlass,b200-sxm-180gb,float8,mxfp4,trtllm 1.3 moe_torch_flow",
        "triton,h100-sxm-80gb,bfloat16,mxfp4,trtllm 1.3 moe_torch_flow",
    )
    frame = read_table(table(tmp_path, head + "".join(f"forward,trtllm,{each},8,1\n" for each in cells))).frame
    assert frame["variant"].tolist() == ["trtllm_gen", "cutlass", "trtllm_gen", "triton"]


def test_compare_asks_rows_whose_variant_nobody_knows(tmp_path: Path, predictor: Predictor) -> None:
    """Of one device all cells are empty, of another one the source names the kernel."""
    head = "op,engine,variant,gpu,dtype,scaling,software,tokens,hidden,ffn,experts,all_experts,top_k,latency_ms\n"
    layer = "8,512,256,8,8,2,1\n"
    named = f"moe,trtllm,cutlass,b200-sxm-180gb,float4,micro,trtllm 1.3 moe_torch_flow_min_latency,{layer}"
    unnamed = f"moe,vllm,,h100-sxm-80gb,bfloat16,,vllm,{layer}"
    scored, skipped = compare(read_table(table(tmp_path, head + named + unnamed)), predictor)
    assert (len(scored), skipped) == (2, [])


def test_read_table_tells_older_all_reduces_of_sglang_apart(tmp_path: Path) -> None:
    head = "op,family,engine,gpu,ranks,bytes,software,latency_ms\n"
    rows = "".join(f"all_reduce,collective,sglang,h100,8,8,sglang {v} graph,1\n" for v in ("0.5.9", "0.5.14", "0.5.12"))
    assert read_table(table(tmp_path, head + rows)).frame["variant"].eq("vllm").tolist() == [True, False, True]


def test_read_table_refuses_truncated_parquet(tmp_path: Path) -> None:
    path = tmp_path / "cut.parquet"
    path.write_bytes(b"PAR1" + bytes(64))
    with pytest.raises(DataError, match="truncated"):
        read_table(path)


def test_compare_answers_kernels_as_one_by_one(tmp_path: Path) -> None:
    rows = "gemm,l4,512,512,512,float16,torch,stream,0.1\ngemm,l4,64,4096,4096,bfloat16,vllm,graph,0.05\n"
    scored, skipped = compare(read_table(table(tmp_path, KERNELS + rows)), predictor := Predictor.load())
    one = predictor.kernel("gemm", "l4", m=512, n=512, k=512, dtype="float16")
    two = predictor.kernel(
        "gemm", "l4", m=64, n=4096, k=4096, dtype="bfloat16", backend="vllm", timer="cuda_graph", launches_per_graph=1
    )
    np.testing.assert_allclose(scored.predicted, [1e3 * one.latency_s, 1e3 * two.latency_s], rtol=1e-12)
    assert skipped == []


def test_compare_skips_rows_that_are_no_question(tmp_path: Path) -> None:
    rows = "gemm,l4,512,512,512,float16,torch,stream,0.1\ngemm,l44,8,8,8,float16,torch,stream,0.1\n"
    rows += "gemm,l4,0,8,8,float16,torch,stream,0.1\n"
    scored, skipped = compare(read_table(table(tmp_path, KERNELS + rows)), Predictor.load())
    assert len(scored) == 1
    reasons = [one["reason"] for one in skipped_counts(skipped)]
    assert any("l44" in reason for reason in reasons)
    assert any("m=0: must be at least 1" in reason for reason in reasons)


def test_compare_asks_steps_in_peoples_words(tmp_path: Path) -> None:
    rows = "gpt2,l4,inference,1,64,float16,5\n"
    scored, _ = compare(read_table(table(tmp_path, STEPS + rows)), predictor := Predictor.load())
    estimate = predictor.estimate("gpt2", "l4", batch=1, seq_len=64, dtype="float16")
    assert scored.predicted[0] == pytest.approx(1e3 * estimate.latency_s)
    assert scored.low[0] == pytest.approx(1e3 * estimate.interval[0])


def test_compare_asks_a_collective_over_its_network(tmp_path: Path) -> None:
    text = "family,op,gpu,ranks,per_node,bytes,network,latency_ms\n"
    text += "collective,all_reduce,h100,16,8,1073741824,8 x 400Gb/s,5\ncollective,all_reduce,h100,8,,1073741824,,5\n"
    scored, _ = compare(read_table(table(tmp_path, text)), predictor := Predictor.load())
    words = {"ranks": 16, "per_node": 8, "bytes": 2**30, "network": "8 x 400Gb/s"}
    expected = [predictor.kernel("all_reduce", "h100", **given) for given in (words, {"ranks": 8, "bytes": 2**30})]
    np.testing.assert_allclose(scored.predicted, [1e3 * one.latency_s for one in expected], rtol=1e-12)


def test_compare_skips_rows_with_wrong_conditions_alone(tmp_path: Path) -> None:
    text = "op,gpu,rows,cols,backend,timer,operands,latency_ms\n"
    right, wrong = "add,l4,8,8,torch,events,cold,1\n", ("foo,events,cold", "torch,clock,cold", "torch,events,warm")
    text += right + "".join(f"add,l4,8,8,{words},1\n" for words in wrong) + right
    scored, skipped = compare(read_table(table(tmp_path, text)), Predictor.load())
    assert len(scored) == 2
    assert [rows.tolist() for _, rows in skipped] == [[2], [1], [3]]


def test_compare_reads_names_and_overrides_as_commands_take_them(tmp_path: Path) -> None:
    text = "name,gpu,m,n,k,overrides,latency_ms\ngemm,l4,8192,8192,8192,sm_count=29,1\n"
    scored, skipped = compare(read_table(table(tmp_path, text)), predictor := Predictor.load())
    expected = predictor.kernel("gemm", "l4", ("sm_count=29",), m=8192, n=8192, k=8192)
    assert scored.predicted.tolist() == pytest.approx([1e3 * expected.latency_s]) and skipped == []


def test_compare_answers_peaks_of_memory_of_one_device(tmp_path: Path) -> None:
    text = "model,gpu,mode,batch,peak_allocated_bytes,peak_device_bytes\ngpt2,l4,training,1,3e9,3e9\n"
    scored, _ = compare(read_table(table(tmp_path, text)), predictor := Predictor.load())
    estimate = predictor.estimate("gpt2", "l4", mode="training", batch=1)
    # PyTorch's allocator holds workspaces of cuBLAS, too.
    workspaces = workspace_bytes(load_device("l4"), TORCH, backward=True)
    assert scored.predicted.tolist() == [estimate.peak_bytes + workspaces, estimate.fit.needed_bytes]
    ends = np.stack([scored.low, scored.high])
    assert tuple(ends[:, 1]) == estimate.fit.interval and (ends[0] < scored.predicted).all()
    # What is allocated has no doubt of the context.
    assert np.ptp(ends, axis=0)[0] < np.ptp(ends, axis=0)[1]


def test_read_table_asks_the_software_that_ran_where_another_engine_stands_in(tmp_path: Path) -> None:
    """Once it is an engine; the dtype of gradients was the other engine's habit and goes with it."""
    stands_in = '[["engine", "DeepSpeed is none of them: the nearest that is"]]'
    frame = pd.DataFrame(
        {
            "gradient_dtype": "float32", "step_ms": 1.0,
            "engine": [*["fsdp"] * 4, "megatron-te", "torchtitan-compiled"],
            "software": ["DeepSpeed ZeRO-3"] * 2 + ["llm.c", None, "Megatron-DeepSpeed, 2023", "torchtitan 1"],
            "assumed": [stands_in, '[["seq_len", "untold"]]', stands_in, stands_in, None, None],
        }
    )  # fmt: skip
    path = tmp_path / "rows.parquet"
    frame.to_parquet(path)
    read = read_table(path).frame
    assert read["engine"].tolist() == ["deepspeed", *["fsdp"] * 3, "megatron-deepspeed", "torchtitan-compiled"]
    assert read["gradient_dtype"].isna().tolist() == [True, False, False, False, True, False]


def test_rows_have_options_that_scripts_of_their_source_set(tmp_path: Path) -> None:
    rows = [
        {"source": source, "engine": "vllm", "engine_version": version, "model": "m", "concurrency": 4, "tpot_ms": 9.0}
        for source in ("inferencex", "other")
        for version in ("0.10.2", "0.15.1")
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "rows.csv", index=False)
    assert read_table(tmp_path / "rows.csv").frame["overlap"].tolist() == [True, None, None, None]
    pd.DataFrame(rows).assign(overlap="false").to_csv(tmp_path / "told.csv", index=False)
    assert {*read_table(tmp_path / "told.csv").frame["overlap"].astype(str).str.lower()} == {"false"}
    rows[3] |= {"source": "aiconfigurator", "engine": "tensorrt-llm", "engine_version": "1.0.0rc3", "overlap": None}
    rows[2] |= {"overlap": True}
    pd.DataFrame(rows).to_csv(tmp_path / "some.csv", index=False)
    assert read_table(tmp_path / "some.csv").frame["overlap"].map(str).tolist() == ["True", "nan", "True", "False"]


def test_rows_have_what_scripts_ran_where_they_state_something_else(tmp_path: Path) -> None:
    row = {
        "source": "inferencex", "date": "2025-11-02", "engine": "tensorrt-llm", "engine_version": "1.1.0rc2",
        "model": "nvidia/DeepSeek-R1-0528-NVFP4-v2", "isl": 921.5, "osl": 921.5, "tp": 8, "dp": 1, "ep": 1,
        "tpot_ms": 9.0,
    }  # fmt: skip
    changes: list[dict[str, object]] = [
        {"concurrency": 8}, {"concurrency": 32}, {"concurrency": 256}, {"concurrency": 64, "isl": 7372.5},
        {"concurrency": 256, "date": "2026-02-03"}, {"concurrency": 256, "tp": 4},
    ]  # fmt: skip
    pd.DataFrame([row | change for change in changes]).to_csv(tmp_path / "rows.csv", index=False)
    frame = read_table(tmp_path / "rows.csv").frame
    assert frame[["tp", "dp", "ep"]].to_numpy().tolist() == [
        [8, 1, 1], [8, 1, 8], [1, 8, 8], [1, 8, 8], [8, 1, 1], [1, 4, 4]
    ]  # fmt: skip
    assert frame["batch_wait_timeout_iters"].notna().tolist() == [False, False, True, True, False, True]


def test_rows_to_fit_are_those_of_a_split_or_all_that_nobody_doubts(tmp_path: Path) -> None:
    rows = pd.DataFrame({"source": "s", "model": "m", "concurrency": [1, 2, 4], "tpot_ms": 9.0})
    (tmp_path / "serving").mkdir()
    rows.assign(split=["fit", "check", "fit"]).to_parquet(tmp_path / "serving" / "split.parquet")
    rows.assign(suspect=[None, "why", None]).to_parquet(tmp_path / "serving" / "whole.parquet")
    rows.to_parquet(tmp_path / "serving" / "public.parquet")
    left_out: Counter[str] = Counter()
    tables = rows_to_fit(tmp_path, "serving", left_out)
    learned = {table.path.stem: table.frame["concurrency"].tolist() for table in tables}
    assert learned == {"split": [1, 4], "whole": [1, 4]}
    assert left_out == {"why": 1}
