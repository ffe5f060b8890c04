"""Every command in every form, on the models and devices that ship."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runs import as_csv, as_json, invoke, run

import neusight
from neusight.devices import cluster_ids, device_ids, load_device

HEAVY = {"torch", "transformers", "lightgbm", "sklearn", "scipy", "pandas", "pyarrow", "matplotlib"}
TRAINING = ("predict", "gpt2-large", "--gpu", "l4", "--mode", "training", "--batch", "1")


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_predict_json_says_everything() -> None:
    answer = as_json(*TRAINING)
    low, high = answer["low_s"], answer["high_s"]
    assert 0 < low <= answer["latency_s"] <= high
    assert answer["bound_s"] <= answer["latency_s"]
    assert sum(answer["by_phase"].values()) == pytest.approx(answer["latency_s"])
    assert sum(row["latency_s"] for row in answer["by_operator"]) == pytest.approx(answer["latency_s"])
    assert sum(row["total_s"] for row in answer["by_kernel"]) == pytest.approx(answer["latency_s"])
    assert {"forward", "backward"} <= answer["by_phase"].keys()
    assert answer["limiter"]
    memory = answer["memory"]
    parts = sum(memory[part] for part in ("weights", "gradients", "optimizer", "activations", "temporary"))
    assert memory["peak_bytes"] == parts
    assert answer["fits"] is (memory["peak_bytes"] <= load_device("l4").dram_capacity_bytes)
    assert sum(answer["coverage"].values()) == pytest.approx(1)
    assert isinstance(answer["warnings"], list)
    assert answer["provenance"]["neusight"] == neusight.__version__
    assert answer["provenance"]["gpu_in_training"] is True


def test_training_is_forward_and_backward_and_an_optimizer_on_request() -> None:
    command = ("predict", "gpt2", "--gpu", "a100-pcie-80gb", "--mode", "training")
    plain, adamw = as_json(*command), as_json(*command, "--optimizer", "adamw")
    assert "optimizer" not in plain["by_phase"]
    assert adamw["by_phase"]["optimizer"] > 0
    assert adamw["memory"]["optimizer"] == pytest.approx(2 * adamw["memory"]["weights"], rel=0.01)


def test_json_is_a_list_where_gpus_are_one() -> None:
    step, kernel = ("predict", "gpt2", "--gpu"), ("kernel", "gemm", "m=64", "n=64", "k=64", "--gpu")
    answer = as_json(*step, "l4,NVIDIA L4,t4")
    assert [row["gpu"] for row in answer] == ["l4", "l4", "t4"]
    assert answer[0] == answer[1] == as_json(*step, "l4")
    assert as_json(*step, "l4,") == [answer[0]]
    assert [row["gpu"] for row in as_json(*kernel, "l4,t4")] == ["l4", "t4"]
    assert as_json(*kernel, "l4,") == [as_json(*kernel, "l4")]


def test_short_names_of_gpus_and_dtypes_say_what_they_were_taken_for() -> None:
    step = ("predict", "gpt2", "--gpu", "h100,4090", "--dtype", "bf16", "--format", "json")
    result = run(*step)
    assert [(row["gpu"], row["dtype"]) for row in json.loads(result.stdout)] == [
        ("h100-sxm-80gb", "bfloat16"),
        ("rtx-4090", "bfloat16"),
    ]
    assert "note: h100 taken as h100-sxm-80gb; others: h100-nvl-94gb, h100-pcie-80gb, h100-sxm-96gb" in result.stderr
    assert "note: 4090 taken as rtx-4090\n" in result.stderr
    for command in (
        ("sweep", "gpt2", "--gpu", "a100", "--dtype", "half,float"),
        ("kernel", "gemm", "m=64", "n=64", "k=64", "--gpu", "a100"),
        ("devices", "show", "a100"),
    ):
        assert "note: a100 taken as a100-sxm-80gb" in run(*command).stderr


def test_a_file_s_dtype_is_taken_and_its_quantization_is_not(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    stated = {"n_layer": 1, "n_embd": 32, "n_head": 2, "n_positions": 64, "vocab_size": 100, "torch_dtype": "bfloat16"}
    config.write_text(json.dumps({"model_type": "gpt2", **stated}))
    step = ("predict", config, "--gpu", "l4")
    result = run(*step, "--format", "json")
    assert json.loads(result.stdout)["dtype"] == "bfloat16"
    assert json.loads(result.stdout)["assumed"]["dtype"] == "bfloat16, as the configuration states"
    assert result.stderr == ""
    assert as_json(*step, "--dtype", "float32")["dtype"] == "float32"
    assert [row["dtype"] for row in as_json("sweep", f"gpt2,{config}", "--gpu", "l4")] == ["float32", "bfloat16"]
    config.write_text(json.dumps({"model_type": "gpt2", **stated, "quantization_config": {"quant_method": "awq"}}))
    assert "quantization (awq)" in invoke(*step).stderr
    assert invoke(*step).exit_code == 1
    assert "awq is set aside" in " ".join(run(*step, "--dtype", "fp16").stdout.split())


def test_what_has_no_effect_is_said() -> None:
    stderr = run("predict", "gpt2", "--gpu", "l4", "--sparsity", "weights=0.5", "--simulate", "--compression").stderr
    assert "--simulate has no effect on l4" in stderr
    assert "--compression has no effect on l4" in stderr
    assert "zeros of tensors change nothing on l4" in stderr
    assert "--sparsity has no effect on l4" in run("sweep", "gpt2", "--gpu", "l4", "--sparsity", "weights=0.5").stderr


def test_human_answer_is_80_columns_with_all_parts() -> None:
    result = run(*TRAINING)
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    for part in ("latency", "throughput", "bound", "forward", "backward", "memory", "weights", "based on"):
        assert any(part in line for line in lines), part


def test_csv_rows_sum_to_the_latency() -> None:
    total = as_json(*TRAINING)["latency_s"]
    for by, column in (("operator", "latency_s"), ("phase", "latency_s"), ("kernel", "total_s")):
        rows = as_csv(*TRAINING, "--by", by)
        assert sum(float(row[column]) for row in rows) == pytest.approx(total), by
        assert {row["gpu"] for row in rows} == {"l4"}


def test_csv_rows_of_several_steps_say_in_which_options_they_differ() -> None:
    rows = as_csv("predict", "gpt2", "--gpu", "l4,t4", "--batch", "1,2", "--by", "phase")
    assert {(row["gpu"], row["batch"]) for row in rows} == {("l4", "1"), ("l4", "2"), ("t4", "1"), ("t4", "2")}


def test_hypothetical_device_is_said_on_stderr_and_in_the_data() -> None:
    result = run("predict", "gpt2", "--gpu", "l4", "--set", "dram_bandwidth=600GB/s", "--format", "json")
    answer = json.loads(result.stdout)
    assert answer["provenance"]["hypothetical"] == ["dram_bandwidth=600GB/s"]
    assert "warning: hypothetical device" in result.stderr
    assert answer["latency_s"] < as_json("predict", "gpt2", "--gpu", "l4")["latency_s"]


def test_memory_verdict_of_gpt2_large() -> None:
    command = ("predict", "gpt2-large", "--mode", "training", "--batch", "4", "--attention", "eager", "--gpu")
    assert [row["fits"] for row in as_json(*command, "v100-pcie-32gb,a100-pcie-80gb")] == [False, True]
    assert "does not fit: needs " in run(*command, "v100-pcie-32gb").stdout


def test_user_device_file(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(run("devices", "show", "l40s").stdout.replace('id = "l40s"', 'id = "mine"'))
    answer = as_json("predict", "gpt2", "--gpu", mine)
    assert answer["gpu"] == "mine"
    assert answer["latency_s"] == as_json("predict", "gpt2", "--gpu", "l40s")["latency_s"]


def test_kernel() -> None:
    answer = as_json("kernel", "gemm", "m=1024", "n=1024", "k=1024", "--gpu", "l4")
    # 2 m n k FLOP at the device's peak is a bound that no GEMM beats
    assert answer["latency_s"] >= 2 * 1024**3 / load_device("l4").gemm_flops_per_s("float32")
    assert answer["bound_s"] <= answer["latency_s"]
    rows = as_csv("kernel", "softmax", "rows=64", "cols=64", "--gpu", "l4,t4")
    assert len(rows) == 2
    assert all(float(row["low_s"]) <= float(row["latency_s"]) <= float(row["high_s"]) for row in rows)
    conv = ("batch=1", "in_channels=8", "out_channels=8", "size=9", "kernel=3")
    assert as_json("kernel", "conv2d", *conv, "--gpu", "l4")["kernel"] == "conv2d forward 1x8x9x9 to 8, 3x3"
    assert "softmax 64x64" in run("kernel", "softmax", "rows=64", "cols=64", "--gpu", "l4").stdout


def test_sweep_marks_what_does_not_fit_and_keeps_errors() -> None:
    rows = as_json("sweep", "gpt2-large,gtp2", "--gpu", "l4", "--mode", "training", "--batch", "1,8")
    good, wrong = rows[:2], rows[2:]
    assert [(row["batch"], row["fits"], row["error"]) for row in good] == [(1, True, ""), (8, False, "")]
    assert [row["question"]["kind"] for row in rows] == ["predict"] * 4
    assert good[1]["latency_s"] > good[0]["latency_s"]
    assert all("unknown model 'gtp2'" in row["error"] and row["low_s"] is None for row in wrong)
    assert good[0]["seq_len"] == 1024 and isinstance(good[0]["seq_len"], int)
    low, high = good[0]["low_s"], good[0]["high_s"]
    assert low <= good[0]["latency_s"] <= high
    assert "no fit" in run("sweep", "gpt2-large", "--gpu", "l4", "--mode", "training", "--batch", "8").stdout


def test_a_sweep_says_how_many_steps_failed_and_fails_with_all() -> None:
    assert (
        "warning: 1 of 2 steps could not be estimated: unknown model 'gtp2'"
        in run("sweep", "gpt2,gtp2", "-g", "l4").stderr
    )
    table = run("sweep", "gpt2,gtp2", "--gpu", "l4,t4").stdout
    assert max(map(len, table.splitlines())) <= 80
    assert table.count("unknown model 'gtp2'") == 1
    assert "gtp2, 2 steps" in table
    result = invoke("sweep", "gtp2", "--gpu", "l4,t4", "--format", "json")
    assert result.exit_code == 1
    assert [row["gpu"] for row in json.loads(result.stdout)] == ["l4", "t4"]
    assert result.stderr.startswith("error: 2 of 2 steps could not be estimated: unknown model 'gtp2'")


def test_devices() -> None:
    assert {row["id"] for row in as_csv("devices", "list")} == set(device_ids())
    assert max(map(len, run("devices", "list").stdout.splitlines())) <= 80
    assert as_json("devices", "show", "l4")["sm_count"] == load_device("l4").sm_count


def test_clusters() -> None:
    assert {row["id"] for row in as_csv("clusters", "list")} == set(cluster_ids())
    assert max(map(len, run("clusters", "list").stdout.splitlines())) <= 80
    answer = as_json("clusters", "show", "p5", "--nodes", "4", "--set", "network.reduces=true")
    assert (answer["device"]["id"], answer["per_node"], answer["nodes"]) == ("h100-sxm-80gb", 8, 4)
    assert answer["network"]["reduces"] and answer["hypothetical"] == ["network.reduces=true"]
    shown = run("clusters", "show", "dgx-h100", "--nodes", "2").stdout
    assert "2 x 8 x h100-sxm-80gb, 16 devices" in shown and "8 x 400 Gb/s, 96% sustained" in shown


def test_models() -> None:
    names = {row["name"] for row in as_json("models", "list")}
    assert {"gpt2-large", "bert-large", "resnet-50", "gpt3-175b"} <= names
    assert max(map(len, run("models", "list").stdout.splitlines())) <= 80
    shown = as_json("models", "show", "gpt2", "--mode", "training")
    memory = shown["memory"]
    assert memory.pop("peak_bytes") == sum(memory.values())
    assert any(kernel["family"] == "gemm" and kernel["phase"] == "backward" for kernel in shown["kernels"])


def test_tile_models_and_data_sets_have_cards() -> None:
    names = [row["name"] for row in as_json("tile-models", "list")]
    assert "gemm" in names
    assert as_json("tile-models", "show", "gemm")["training_gpus"]
    assert "gemm" in run("tile-models", "show", "gemm").stdout
    constants = as_json("tile-models", "show", "physics")
    shown = run("tile-models", "show", "physics").stdout.splitlines()
    assert shown[0].startswith(f"{len(constants)} numbers")
    unmoved = {row["name"] for row in constants if (row["kept"] or 0.0) >= 0.6}
    assert unmoved == {line.split()[0] for line in shown if line} & {row["name"] for row in constants}
    assert all(row["moved_by"] in "\n".join(shown) for row in constants if row["origin"] == "prior")
    names = [row["name"] for row in as_json("datasets", "list")]
    assert "neusight-fp32" in names
    assert "MIT" in run("datasets", "show", "neusight-fp32").stdout


def test_help_has_examples_and_the_version_is_known() -> None:
    for command in ("predict", "kernel", "sweep", "train", "bench"):
        assert f"neusight {command}" in run(command, "--help").stdout
    assert run("--version").stdout == f"neusight {neusight.__version__}\n"


COMMANDS = {f"neusight.cli.{name}" for name in ("collect", "devices", "learn", "predict", "serving", "training")}


def loaded_by(*arguments: str, cache: Path) -> set[str]:
    """Modules that a fresh ``neusight`` has loaded when it ends."""
    code = "import sys, atexit; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); "
    code += "from neusight.cli import main; main()"
    environment = os.environ | {"NEUSIGHT_CACHE": str(cache)}
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


def test_cold_start_loads_nothing_heavy(tmp_path: Path) -> None:
    for arguments in (["--help"], ["devices", "list"], ["models", "list"], [*TRAINING]):
        loaded = loaded_by(*arguments, cache=tmp_path)
        assert "neusight" in loaded
        assert loaded & HEAVY == set(), arguments
    assert {name for name in loaded if name in COMMANDS} == {"neusight.cli.predict"}


def test_a_warning_of_python_is_one_line_without_a_place_in_the_code() -> None:
    code = "import atexit, warnings; atexit.register(warnings.warn, 'taken as another'); "
    code += "from neusight.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "--version"], capture_output=True, text=True, check=True)
    assert done.stderr == "warning: taken as another\n"


def test_what_if_target_ends_the_search_at_a_time() -> None:
    answer = as_json("what-if", "gpt2", "--gpu", "l4", "--all", "--target", "34ms")
    assert answer["rungs"][-1]["time"]["after"] <= 0.034 < answer["rungs"][0]["time"]["before"]
