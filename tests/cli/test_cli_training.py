"""``neusight training``, ``plan`` and ``predict --cluster``: every form, sweeps, mistakes."""

import json
from pathlib import Path

import pytest
from cli_runs import as_csv, as_json, error, invoke, run, unsaid

from neusight import Predictor
from neusight.devices import load_cluster
from neusight.distributed.training_run import usual_run
from neusight.questions.files import questions_of, read_entries
from neusight.workloads.decoders.known import known_decoder

ON_A100 = ("training", "llama-3.1-8b", "--cluster", "dgx-a100", "--nodes", "2", "--seq-len", "4096")
STEP = (*ON_A100, "--global-batch-size", "64")
ROW = (
    "gpu,num_gpus,nodes,model,layers,hidden,heads,ffn,vocab,activation,seq_len,global_batch,"
    "micro_batch,tp,dtype,step_ms"
)


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_json_is_what_python_answers(predictor: Predictor, tmp_path: Path) -> None:
    answer = as_json(*STEP, "--tp", 2, "--pp", 2)
    given = {"tp": 2, "pp": 2, "global_batch_size": 64, "seq_len": 4096}
    same = predictor.training(usual_run(known_decoder("llama-3.1-8b"), load_cluster("dgx-a100", 2), given))
    assert answer.pop("run")["gpu_hours"] == pytest.approx(same.gpu_hours(1e12))
    (tmp_path / "answer.json").write_text(json.dumps(answer))
    again = predictor.ask(questions_of(*read_entries(tmp_path / "answer.json")[0])[0]).to_dict()
    assert answer == json.loads(json.dumps(again, default=str))
    assert answer == json.loads(json.dumps({**same.to_dict(), "question": answer["question"]}, default=str))
    assert (answer["plan"]["dp"], answer["plan"]["shard"], answer["plan"]["sequence_parallel"]) == (4, "zero1", True)


def test_human_answers_are_at_most_eighty_wide_and_say_what_a_planner_asks() -> None:
    text = run(*STEP, "--tp", 2, "--pp", 2, "--recompute", "selective").stdout
    assert max(map(len, text.splitlines())) <= 80
    wanted = ("90 %", "tokens/s", "MFU", "HFU", "nothing hides", "bubble", "longest path", "fits", "first rank",
              "last rank",
              "limited by", "GPU-hours", "USD", "MWh", "selective recomputation")  # fmt: skip
    assert [word for word in wanted if word not in " ".join(text.split())] == []


def test_lists_combine_and_points_that_cannot_be_keep_their_reason() -> None:
    answer = as_json(*STEP, "--tp", "1,3", "--dtype", "bf16,fp8")
    assert ["latency_s" in row for row in answer] == [True, False, False, False]
    assert "does not compute in float8" in answer[1]["error"]
    assert "do not divide a cluster of 16" in answer[2]["error"]
    rows = as_csv(*STEP, "--tp", "1,3,8")
    assert [(row["tp"], bool(row["error"])) for row in rows] == [("1", False), ("3", True), ("8", False)]
    assert float(rows[0]["latency_s"]) < float(rows[2]["latency_s"])
    result = run(*STEP, "--tp", "1,3,8")
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "warning: no estimate for 1 of 3" in result.stderr
    none = invoke(*STEP, "--tp", "3,5")
    assert none.exit_code == 1
    assert none.stderr.startswith("error: no estimate for 1 of 2 (dgx-a100): tp 3 x pp 1")


def test_a_gpu_with_its_network_is_a_cluster_too() -> None:
    words = ("--gpu", "a100-sxm-80gb", "--per-node", 8, "--nodes", 2, "--network", "8 x 200Gb/s")
    given = as_json("training", "llama-3.1-8b", *words, "-s", 4096, "-b", 64, "--engine", "fsdp")
    assert (given["devices"], given["plan"]["shard"], given["engine"]) == (16, "zero3", "fsdp")


def test_predict_trains_on_a_cluster() -> None:
    words = ("gpt3-175b", "--mode", "training", "--cluster", "dgx-a100", "--nodes", 8, "--tp", 8, "--pp", 8)
    answer = as_json("predict", *words, "--micro-batch-size", 1, "-b", 512)
    same = as_json("training", "gpt3-175b", *words[3:], "--micro-batch-size", 1, "--global-batch-size", 512)
    assert answer == same
    assert answer["devices"] == 64
    for wrong in (("--nodes", 2, "--gpu", "l4"), ("--cluster", "dgx-a100"), ()):
        assert invoke("predict", "gpt2", *wrong).exit_code == 2


def test_sequences_are_shared_by_keys_or_by_heads() -> None:
    """Keys that are gathered first stand in the way; a ring passes them on beside attention."""
    usual, gathered, heads = (
        as_json(*STEP, "--cp", 4, *more) for more in ((), ("--cp-comm", "all_gather"), ("--ulysses", 4))
    )
    assert [answer["plan"]["ulysses"] for answer in (usual, gathered, heads)] == [1, 1, 4]
    assert len({answer["latency_s"] for answer in (usual, gathered, heads)}) == 3
    assert "plan: dp 4, cp 4, keys by all_gather" in run(*STEP, "--cp", 4, "--cp-comm", "all_gather").stdout
    assert "cp_comm p2p has no effect: no keys travel" in " ".join(run(*STEP, "--cp-comm", "p2p").stderr.split())
    assert "ulysses 3 does not divide cp 4" in error(*STEP, "--cp", 4, "--ulysses", 3)
    assert "--cp-comm: 'ring' is unknown: one of p2p, all_gather" in error(*STEP, "--cp", 4, "--cp-comm", "ring")


def test_adapters_are_trained_in_place_of_all_weights() -> None:
    full, lora = (json.loads(run(*STEP, *options, "--format", "json").stdout) for options in ((), ("--lora-rank", 16)))
    assert 0.6 * full["latency_s"] < lora["latency_s"] < full["latency_s"]
    assert lora["memory"][0]["optimizer"] < 0.05 * full["memory"][0]["optimizer"]
    eager = json.loads(run(*STEP, "--lora-rank", 16, "--engine", "torch-eager", "--format", "json").stdout)
    assert eager["latency_s"] > lora["latency_s"]
    for options, message in {
        ("--adapter", "qlora"): "adapters without a rank: give lora_rank",
        ("--lora-rank", 8, "--adapted", "head"): "adapters 'head'",
    }.items():
        assert message in invoke(*STEP, *options).stderr


def test_faults_lengthen_a_whole_run() -> None:
    calm, rough = (json.loads(run(*STEP, *o, "--format", "json").stdout)["run"] for o in ((), ("--gpu-mtbf", 1000)))
    assert "faults" not in calm
    assert rough["gpu_hours"] * rough["faults"]["useful"] == pytest.approx(calm["gpu_hours"])
    assert "of the time useful" in " ".join(run(*STEP, "--checkpoint", 30).stdout.split())


def test_traces_open_in_perfetto(tmp_path: Path) -> None:
    run(*STEP, "--pp", 2, "--timeline", tmp_path / "step.json")
    events = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1}
    assert invoke(*STEP, "--pp", "1,2", "--timeline", tmp_path / "many.json").exit_code == 2


def test_plans_are_read_and_options_come_before_them(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text(
        "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --micro-batch-size 2 --global-batch-size 32 "
        "--use-distributed-optimizer --overlap-grad-reduce --recompute-granularity selective "
        "--recompute-modules core_attn moe_act --fp8-margin 1"
    )
    result = run(*ON_A100, "--from", tmp_path / "train.sh", "--tp", 2, "--format", "json")
    plan = json.loads(result.stdout)["plan"]
    assert [plan[name] for name in ("dp", "tp", "pp", "micro_batch_size", "global_batch_size")] == [4, 2, 2, 2, 32]
    assert plan["recompute"] == "core_attn+moe_act"
    assert "options that matter and have no field are left out: --fp8-margin" in result.stderr


def test_the_best_plan_is_written_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "best.toml"
    words = ("llama-3.1-8b", "--cluster", "dgx-a100", "--seq-len", 4096)
    few = ("-b", 16, "--longest-micro-batch", 1, "--schedules", "1f1b", "--count", 2)
    answer = as_json("plan", *words, *few, "--out", path)
    best = as_json("training", *words, "--from", path)
    assert best["latency_s"] == pytest.approx(answer["best"][0]["latency_s"], rel=1e-6)
    assert best["plan"] == answer["best"][0]["plan"]
    assert answer["plans"] > answer["simulated"] > 1
    difference = sum(answer["first_less_second_s"].values())
    assert difference == pytest.approx(best["latency_s"] - answer["best"][1]["latency_s"], rel=1e-4)
    text = run("plan", *words, *few).stdout
    assert max(map(len, text.splitlines())) <= 80
    assert [word for word in ("fastest", "less memory", "The first beats the second by") if word not in text] == []


def test_mistakes_are_one_line_with_what_would_work(tmp_path: Path) -> None:
    wrong: dict[tuple[object, ...], str] = {
        (*STEP, "--tp", 3): "do not divide a cluster of 16",
        (*STEP, "--dp", 4): "dp 16 would fit",
        (*STEP, "--pp", 8, "--vp", 8): "need as many layers",
        (*ON_A100, "--pp", 8, "--vp", 2, "-b", 18): "a multiple of 8 is needed, such as 8",
        (*ON_A100, "-b", 60): "48 would be",
        (*STEP, "--dtype", "fp8"): "a100-sxm-80gb does not compute in float8",
        (*STEP, "--dtype", "fp9"): "fp9",
        (*STEP, "--engine", "megtron"): "did you mean megatron-te",
        (*STEP, "--engine", "torchscript"): "'torchscript' is unknown: one of torch-eager, torch-compiled",
        (*STEP, "--schedule", "chimera"): "'chimera' is unknown: one of 1f1b",
        (*STEP, "--ep", 4): "has no experts",
        (*STEP, "--from", tmp_path / "nowhere.toml"): "check the path",
        (*STEP, "--set", "network.bandwidth=fast"): "network.bandwidth",
        ON_A100: "give global_batch_size",
        ("training", "llama-3.1-8b", "--cluster", "dgx-a1000", "-b", 8): "did you mean dgx-a100",
        ("training", "llama-3.1-8bb", "--cluster", "dgx-a100", "-b", 8): "unknown model",
        ("training", "llama-3.1-8b", "--gpu", "tensordash", "-b", 8, "--per-node", 8): "states no links",
        ("training", "llama-3.1-8b", "--gpu", "l4", "--nodes", 2, "--network", "fast", "-b", 8): "400Gb/s",
        ("plan", "llama-3.1-8b", "--cluster", "dgx-a100", "-b", 8, "--schedules", "chimera"): "'chimera' is unknown",
        ("plan", "llama-3.1-405b", "--gpu", "l4", "--per-node", 1, "-b", 1): "take more devices",
    }
    assert unsaid(wrong) == {}


def test_an_error_that_follows_from_a_default_names_the_option_that_changes_it() -> None:
    pod, nodes = (
        ("--cluster", "tpu-v5p-pod", "--nodes", 64, "-b", 1024),
        "(64 nodes of 8960: --nodes, or --set per_node=",
    )
    wrong: dict[tuple[object, ...], str] = {
        ("training", "llama-3.1-70b", *pod): nodes,
        ("plan", "llama-3.1-70b", *pod): nodes,
        ("what-if", "llama-3.1-70b", "--mode", "training", *pod, "--all"): nodes,
        ("training", "gpt2", "--gpu", "h100-sxm-80gb", "-b", 60): "(1 node of 8: --nodes, or --per-node 4,",
        ("training", "gpt2", "--gpu", "h100-sxm-80gb", "--tp", 16, "-b", 64): "of 8 devices (1 node of 8: --nodes, or",
        ("training", "dlrm-terabyte", "--cluster", "dgx-a100", "--engine", "torch-eager", "-b", 60): "--set per_node=4",
    }
    assert unsaid(wrong) == {}


def test_predict_and_training_have_the_same_defaults_under_pytorch() -> None:
    step = ("-b", 8, "-s", 128, "--tp", 2)
    training = as_json(
        "training", "gpt2", "--gpu", "a100-sxm-80gb", "--per-node", 4, *step, "--engine", "torch-compiled"
    )
    predicted = as_json(
        "predict", "gpt2", "--gpu", "a100-sxm-80gb", "--mode", "training", "--launch", "compiled", *step, "--dp", 2,
        "--optimizer", "adam",
    )  # fmt: skip
    assert predicted["latency_s"] == pytest.approx(training["latency_s"], rel=1e-12)


def test_a_run_ends_the_more_probably_the_later_and_half_the_time_in_its_expected_days() -> None:
    days = as_json(*STEP)["run"]["days"]
    runs = [as_json(*STEP, "--within-days", share * days)["run"] for share in (0.5, 1.0, 2.0)]
    few, expected, many = (run["within_probability"] for run in runs)
    assert expected == pytest.approx(0.5)
    assert few < 0.1 < 0.9 < many
    later = as_json(*STEP, "--within-days", days, "--gpu-mtbf", 100)["run"]
    assert later["within_probability"] < 0.5
    (row,) = as_csv(*STEP, "--within-days", days)
    assert float(row["within_probability"]) == pytest.approx(0.5)
    assert "ends within 1 days with a probability of below 1%" in run(*STEP, "--within-days", 1).stdout
