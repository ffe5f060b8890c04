"""Rows of public benchmarks as questions, and what is said of their errors."""

from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from neusight import Predictor
from neusight.datasets.benchmarks import benchmark_step
from neusight.devices import load_device
from neusight.devices.slices import core_of
from neusight.errors import DataError
from neusight.evaluation.hosts import IDLE, half_of
from neusight.evaluation.steps import errors_by_kind, evaluate_steps, memory_verdicts, question_answering
from neusight.workloads import load_workload
from neusight.workloads.dispatch import dispatches, step_kinds

TIMM = {
    "gpu": "rtx-3090", "workload": "training", "model": "resnet18", "precision": "amp_float16", "layout": "nhwc",
    "compile": "eager", "reparam": False, "batch": 64.0, "image_size": 160, "step_ms": 20.0, "torch": "1.12",
    "timm": "0.6.6",
}  # fmt: skip
TORCHVISION = {
    "gpu": "titan-v", "workload": "inference", "model": "vgg11", "precision": "float16", "global_batch": 12,
    "image_size": 224, "host_copy": True, "step_ms": 3.0,
}  # fmt: skip
BENCHMARK = {
    "gpu": "a100-sxm-80gb", "model": "bert_base", "precision": "mixed_float16", "mixed": "apex_o2",
    "sequence_or_image": 384.0, "global_batch": 8, "step_ms": 100.0,
}  # fmt: skip


def test_a_row_of_timm_steps_under_autocast():
    step = benchmark_step(TIMM)
    assert step.model == "timm:resnet18@160"
    assert step.options == {
        "mode": "training", "batch": 64, "dtype": "amp", "layout": "nhwc", "attention": "eager", "launch": "eager",
        "optimizer": "sgd",
    }  # fmt: skip


@pytest.mark.parametrize(
    "torch, attention", [("1.13", "eager"), ("2.1.0", "sdpa"), ("2.4.0", "sdpa"), ("10.0", "sdpa")]
)
def test_attention_is_fused_from_the_version_on_that_fuses_it(torch, attention):
    assert benchmark_step(TIMM | {"torch": torch}).options["attention"] == attention


def test_images_are_copied_from_the_host_of_the_run():
    step = benchmark_step(TORCHVISION | {"run": "TitanV"})
    assert (step.run, step.copied_bytes) == ("TitanV", 12 * 3 * 224**2 * 2)
    assert benchmark_step(TORCHVISION | {"host_copy": False}).copied_bytes == 0
    # Benchmarks that do not wait for each step have no host to wait for.
    assert benchmark_step(TIMM).run is None and benchmark_step(BENCHMARK).run is None


@pytest.mark.parametrize(
    "row, version",
    [
        (BENCHMARK | {"torch": "1.13.0a0+d0d6b1f"}, "torch 1.13"),
        (TORCHVISION | {"cudnn": "7605"}, "cudnn 7.6"),
        (TORCHVISION | {"cudnn": ""}, ""),
        (TIMM, "torch 1.12"),
    ],
)
def test_a_row_names_the_version_of_its_libraries(row, version):
    assert benchmark_step(row).version == version


def test_what_is_left_out_is_said():
    assert "masters" in benchmark_step(BENCHMARK).assumed[0]


def test_bert_answers_questions():
    step = benchmark_step(BENCHMARK)
    build, inputs = question_answering(step)
    assert (step.model, build.__name__) == ("bert_base", "bert_base")
    assert inputs["input_ids"].shape == (8, 384)
    assert step.options["dtype"] == "float16"


@pytest.mark.parametrize(
    "row, reason",
    [
        (TIMM | {"step_ms": 0.0}, "step_ms"),
        (TIMM | {"step_ms": None}, "step_ms 'None'"),
        (TIMM | {"precision": "int8"}, "precision 'int8'"),
        (TIMM | {"reparam": True}, "folded"),
        (TIMM | {"workload": "profile"}, "workload 'profile'"),
        (TORCHVISION | {"global_batch": float("nan")}, "global_batch 'nan'"),
        (BENCHMARK | {"model": "transformer_xl_base"}, "no source"),
        (BENCHMARK | {"mixed": "apex_o1"}, "apex_o1"),
    ],
)
def test_rows_that_are_not_estimated_say_why(row, reason):
    with pytest.raises(DataError, match=reason):
        benchmark_step(row)


def test_kinds_are_blamed_for_the_rows_that_they_fill():
    rows = [{"bias": -40.0, "shares": {"a": 1.0, "wait": 0.0}}, {"bias": 20.0, "shares": {"a": 0.25, "b": 0.75}}]
    found = {row["kind"]: row for row in errors_by_kind(rows)}
    assert found.keys() == {"a", "b"}
    assert found["a"]["bias"] == pytest.approx((-40 * 1.0 + 20 * 0.25) / 1.25)
    assert found["b"] == {"kind": "b", "share": pytest.approx(37.5), "bias": pytest.approx(20.0)}


def test_a_larger_batch_that_did_not_run_is_told():
    assert benchmark_step(TIMM | {"batch_failed": 2 * TIMM["batch"]}).batch_failed == 2 * TIMM["batch"]
    for none in (0, float("nan"), TIMM["batch"]):
        assert benchmark_step(TIMM | {"batch_failed": none}).batch_failed is None


def test_memory_is_right_where_what_ran_fits_and_what_failed_does_not():
    rows = [{"fits": True, "failed_fits": None}, {"fits": False, "failed_fits": False}]
    assert memory_verdicts(rows) == {
        "ran_fits": {"count": 2, "right": 50.0},
        "failed_does_not_fit": {"count": 1, "right": 100.0},
    }
    assert "failed_does_not_fit" not in memory_verdicts(rows[:1])


@pytest.mark.parametrize(("mixed", "optimizer"), [("apex_o2", "adam"), ("", "bert_adam")])
def test_bert_has_the_optimizer_of_its_example(mixed, optimizer):
    step = benchmark_step(BENCHMARK | {"mixed": mixed, "precision": "mixed_float16" if mixed else "tf32"})
    assert step.options["optimizer"] == optimizer


@pytest.mark.skipif(find_spec("torchvision") is None, reason="needs the extra vision")
def test_a_table_is_compared_row_by_row(tmp_path):
    import pyarrow as pa

    from neusight.api import Predictor
    from neusight.evaluation import evaluate_steps

    small = TORCHVISION | {"image_size": 64, "model": "squeezenet1_1"}
    file = tmp_path / "steps.parquet"
    pq.write_table(pa.Table.from_pylist([small, small | {"gpu": "no-such-gpu"}]), file)
    found = evaluate_steps(file, Predictor.load())
    (row,) = found["rows"]
    assert row["ape"] == pytest.approx(100 * abs(row["predicted_ms"] / 3.0 - 1))
    assert row["low_ms"] <= row["predicted_ms"] <= row["high_ms"]
    assert sum(row["shares"].values()) == pytest.approx(1.0)
    assert "no-such-gpu" in found["skipped"][0]["reason"]


@pytest.mark.skipif(find_spec("torchvision") is None, reason="needs torchvision")
def test_steps_wait_for_the_host_that_other_models_tell(tmp_path: Path, predictor: Predictor):
    rows = []
    for model in ("resnet18", "squeezenet1_1", "shufflenet_v2_x0_5", "mnasnet0_5"):
        row = TORCHVISION | {"model": model, "gpu": "a100-sxm-40gb", "host_copy": False, "run": "slow"}
        step = benchmark_step(row)
        units = dispatches(step_kinds(load_workload(step.model, allow_fallback=True, **step.options)))
        rows.append(row | {"step_ms": 1.0 + 0.1 * units})
    assert {half_of(benchmark_step(row).model) for row in rows} == {0, 1}
    pd.DataFrame(rows).to_csv(tmp_path / "steps.csv", index=False)
    own = evaluate_steps(tmp_path / "steps.csv", predictor)
    assert own["total"]["worst"] < 25
    # Without steps of any other host it is as fast as hosts are before one is seen.
    assert evaluate_steps(tmp_path / "steps.csv", predictor, hosts="others")["total"]["bias"] < -50
    with pytest.raises(DataError, match="hosts 'none'"):
        evaluate_steps(tmp_path / "steps.csv", predictor, hosts="none")


@pytest.mark.skipif(find_spec("torchvision") is None, reason="needs torchvision")
def test_old_libraries_are_as_slow_as_on_other_boards(tmp_path: Path, predictor: Predictor):
    model = {"model": "vgg11", "host_copy": False, "precision": "float32", "cudnn": "7605"}
    rows = [TORCHVISION | model | {"gpu": gpu, "run": gpu} for gpu in ("titan-v", "titan-rtx", "titan-xp")]
    step = benchmark_step(rows[0])
    for row in rows:
        estimate = predictor.estimate(step.model, row["gpu"], host=IDLE, allow_fallback=True, **step.options)
        row["step_ms"] = 1e3 * 1.5 * estimate.latency_s
    for table, versions in (("told", rows), ("not told", [row | {"cudnn": ""} for row in rows])):
        pd.DataFrame(versions).to_csv(tmp_path / f"{table}.csv", index=False)
    known, unknown = (evaluate_steps(tmp_path / f"{table}.csv", predictor)["rows"] for table in ("told", "not told"))
    for told, guessed in zip(known, unknown, strict=True):
        assert told["ape"] < 10 < 20 < guessed["ape"]


def test_a_worker_of_neuron_is_a_core(tmp_path: Path) -> None:
    columns = {"accelerator": "trainium1", "seq": 128.0, "latency_p50_ms": 1.0}
    rows = [{**columns, "model": "bert-base-uncased", "batch": 2}, {**columns, "model": "other", "batch": 1}]
    pd.DataFrame(rows).to_parquet(tmp_path / "neuron.parquet")
    found = evaluate_steps(tmp_path / "neuron.parquet", Predictor.load())
    [row] = found["rows"]
    core = core_of(load_device("trainium1"))
    alone = Predictor.load().estimate("bert-base", core, batch=2, seq_len=128, dtype="bfloat16", attention="eager")
    # A pooler and a head of two classes stand behind the same layers.
    assert row["predicted_ms"] == pytest.approx(1e3 * alone.latency_s, rel=0.05)
    assert [each["model"] for each in found["skipped"]] == ["other"]
