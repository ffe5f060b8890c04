"""Launch commands state what an estimate assumed, in the engines' own words."""

import shlex
from typing import Any

import pytest

from neusight import Predictor
from neusight.serving import Deployment
from neusight.serving.launch import launch_command

MODEL, MIXTURE = "Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B"
LIMITED: dict[str, Any] = {"max_num_seqs": 64, "max_num_batched_tokens": 4096, "gpu_memory_utilization": 0.8}


def options_of(deployment: Deployment) -> dict[str, str]:
    """By name; of switches ""; under "" what stands before the first."""
    lines = [line for line in launch_command(deployment).split("\n") if not line.startswith("#")]
    command, *rest = " ".join(lines).replace("\\", "").split(" --")
    if "EOF" in command:
        command = command.split("EOF")[-1].strip()
    named = [shlex.split(each) for each in rest]
    return {"": command} | {each[0]: " ".join(each[1:]) for each in named}


@pytest.mark.parametrize(
    ("engine", "command", "names"),
    [
        (
            "vllm",
            "vllm serve",
            ("tensor-parallel-size", "max-num-seqs", "max-num-batched-tokens", "gpu-memory-utilization",
             "max-model-len"),
        ),
        (
            "sglang",
            "python -m sglang.launch_server",
            ("tp-size", "max-running-requests", "chunked-prefill-size", "mem-fraction-static", "context-length"),
        ),
        (
            "tensorrt-llm",
            "trtllm-serve",
            ("tp_size", "max_batch_size", "max_num_tokens", "kv_cache_free_gpu_memory_fraction", "max_seq_len"),
        ),
    ],
)  # fmt: skip
def test_limits_are_those_of_the_estimate(
    predictor: Predictor, engine: str, command: str, names: tuple[str, ...]
) -> None:
    options = options_of(predictor.deployment(MODEL, "h100-sxm-80gb", 3000, **LIMITED, engine=engine, tp=2))
    assert options[""].startswith(command)
    assert [options[name] for name in names] == ["2", "64", "4096", "0.8", "3000"]
    defaults = predictor.deployment(MODEL, "h100-sxm-80gb", 3000, engine=engine)
    options = options_of(defaults)
    assert [options[name] for name in names[1:4]] == [
        str(defaults.limits.max_num_seqs), str(defaults.max_num_batched_tokens), str(defaults.server.memory_share)
    ]  # fmt: skip
    assert names[0] not in options


@pytest.mark.parametrize(
    ("setup", "stated"),
    [
        ({"dtype": "fp8"}, {"quantization": "fp8"}),
        ({"dtype": "fp16", "kv_dtype": "fp8"}, {"dtype": "float16", "kv-cache-dtype": "fp8"}),
        ({"tp": 2, "pp": 2}, {"tensor-parallel-size": "2", "pipeline-parallel-size": "2"}),
        (
            {"engine": "sglang", "dtype": "fp8", "kv_dtype": "fp8"},
            {"quantization": "fp8", "kv-cache-dtype": "fp8_e4m3"},
        ),
    ],
)
def test_what_differs_from_the_model_is_stated(
    predictor: Predictor, setup: dict[str, Any], stated: dict[str, str]
) -> None:
    plain = options_of(predictor.deployment(MODEL, "h100-sxm-80gb", 64, engine=setup.get("engine", "vllm")))
    options = options_of(predictor.deployment(MODEL, "h100-sxm-80gb", 64, **setup))
    assert {name: value for name, value in options.items() if name not in plain} == stated


@pytest.mark.parametrize(
    ("draft", "vllm", "sglang", "trtllm"),
    [
        ("ngram", '{"method": "ngram", "num_speculative_tokens": 3}', "NGRAM", "NGram, max_draft_len: 3}"),
        ("mtp", '{"method": "mtp", "num_speculative_tokens": 3}', "NEXTN", "MTP, num_nextn_predict_layers: 3}"),
        (
            "Qwen/Qwen3-8B",
            '{"model": "Qwen/Qwen3-8B", "num_speculative_tokens": 3}',
            "STANDALONE --speculative-draft-model-path Qwen/Qwen3-8B",
            "DraftTarget, max_draft_len: 3, speculative_model_dir: Qwen/Qwen3-8B}",
        ),
    ],
)
def test_speculation_is_stated(predictor: Predictor, draft: str, vllm: str, sglang: str, trtllm: str) -> None:
    def command(engine: str) -> str:
        speculate = f"draft={draft},tokens=3,acceptance=0.5"
        deployment = predictor.deployment(MODEL, "h100-sxm-80gb", 64, engine=engine, speculate=speculate)
        return " ".join(launch_command(deployment).replace("\\", "").split())

    assert f"--speculative-config '{vllm}'" in command("vllm")
    assert f"--speculative-algorithm {sglang}" in command("sglang")
    assert "--speculative-num-draft-tokens 4" in command("sglang")
    assert f"speculative_config: {{decoding_type: {trtllm}" in command("trtllm")


@pytest.mark.parametrize(
    ("engine", "stated"),
    [
        ("vllm", "--enable-lora --max-loras 8 --max-lora-rank 32"),
        ("sglang", "--enable-lora --max-loras-per-batch 8 --max-lora-rank 32"),
        ("trtllm", "lora_config: {max_loras: 8, max_lora_rank: 32}"),
    ],
)
def test_adapters_are_stated(predictor: Predictor, engine: str, stated: str) -> None:
    deployment = predictor.deployment(MODEL, "h100-sxm-80gb", 64, engine=engine, lora_adapters="8,rank=32")
    assert stated in " ".join(launch_command(deployment).replace("\\", "").split())


def test_attention_apart_counts_its_groups_as_each_engine_does(predictor: Predictor) -> None:
    setup = {"dp": 4, "ep": 4}
    vllm = options_of(predictor.deployment(MIXTURE, "h100-sxm-80gb", 64, **LIMITED, **setup))
    assert (vllm["data-parallel-size"], vllm["enable-expert-parallel"], vllm["max-num-seqs"]) == ("4", "", "64")
    sglang = options_of(predictor.deployment(MIXTURE, "h100-sxm-80gb", 64, **LIMITED, engine="sglang", **setup))
    assert [sglang[n] for n in ("tp-size", "dp-size", "ep-size", "max-running-requests", "chunked-prefill-size")] == [
        "4", "4", "4", "256", "16384"
    ]  # fmt: skip
    trtllm = launch_command(predictor.deployment(MIXTURE, "h100-sxm-80gb", 64, **LIMITED, engine="trtllm", **setup))
    assert "enable_attention_dp: true" in trtllm
    assert "--tp_size 4" in trtllm


@pytest.mark.parametrize(
    ("engine", "stated"),
    [
        ("vllm", "--distributed-executor-backend ray"),
        ("sglang", "--nnodes 2 --node-rank $RANK --dist-init-addr $FIRST:20000"),
        ("trtllm", "mpirun -n 16 trtllm-llmapi-launch trtllm-serve deepseek-ai/DeepSeek-V3"),
    ],
)
def test_replicas_across_nodes_say_how_they_are_started(predictor: Predictor, engine: str, stated: str) -> None:
    deployment = predictor.deployment("deepseek-ai/DeepSeek-V3", "h100-sxm-80gb", 64, engine=engine, tp=8, pp=2)
    command = " ".join(launch_command(deployment).replace("\\", "").split())
    assert stated in command
    assert "# over 2 nodes of 8 GPUs" in command


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_pools_apart_are_a_graph(predictor: Predictor, engine: str) -> None:
    """Each service with its devices, replicas and the options that its pool has by itself."""
    yaml = pytest.importorskip("yaml")
    setup = {"engine": engine, "tp": 2, "replicas": 3, "prefill": "gpu=l40s,tp=4,replicas=5"}
    graph = yaml.safe_load(launch_command(predictor.deployment(MODEL, "h100-sxm-80gb", 3000, **LIMITED, **setup)))
    assert graph["kind"] == "DynamoGraphDeployment"
    services = graph["spec"]["services"]
    assert {name: (s["replicas"], s.get("resources")) for name, s in services.items()} == {
        "Frontend": (1, None),
        "prefill": (5, {"limits": {"gpu": "4"}}),
        "decode": (3, {"limits": {"gpu": "2"}}),
    }
    for role, gpu, tp in (("prefill", "l40s", 4), ("decode", "h100-sxm-80gb", 2)):
        container = services[role]["extraPodSpec"]["mainContainer"]
        alone = options_of(predictor.deployment(MODEL, gpu, 3000, **LIMITED, engine=engine, tp=tp))
        for name, value in alone.items():
            assert not name or container["args"][container["args"].index(f"--{name}") + 1] == value
        assert container["command"][-1] == f"dynamo.{engine}"
        assert MODEL in container["args"]
        assert any(role in word for word in container["args"])


def test_what_no_option_does_is_remarked(predictor: Predictor) -> None:
    awq = launch_command(predictor.deployment(MODEL, "h100-sxm-80gb", 64, dtype="awq", replicas=3))
    assert "# needs a checkpoint of Qwen/Qwen3-8B in w4a16" in awq
    assert "# on each of 3 replicas, behind a round-robin router" in awq
    half = launch_command(predictor.deployment(MIXTURE, "h100-sxm-80gb", 64, dp=4, ep=2))
    assert "experts over 2 GPUs, this engine over all 4" in half
    for engine, switch in (
        ("vllm", "--enforce-eager"),
        ("sglang", "--disable-cuda-graph"),
        ("trtllm", "_config: null"),
    ):
        eager = predictor.deployment(MODEL, "h100-sxm-80gb", 64, engine=engine, graphs=False)
        assert switch in launch_command(eager)
        assert switch not in launch_command(predictor.deployment(MODEL, "h100-sxm-80gb", 64, engine=engine))
    whole = predictor.deployment(MODEL, "h100-sxm-80gb", 64, chunked_prefill=False)
    assert "--no-enable-chunked-prefill" in launch_command(whole)


def test_launch_command_cuts_prompts_where_older_vllm_would_not(predictor: Predictor) -> None:
    new, old = (
        launch_command(predictor.deployment(MODEL, "h100-sxm-80gb", 3000, engine_version=version, **LIMITED))
        for version in ("", "0.6.3")
    )
    assert "chunked-prefill" not in new
    assert "--enable-chunked-prefill" in old


def test_setup_starts_sglang_with_few_requests_that_speculate(predictor: Predictor) -> None:
    setup = {"engine": "sglang", "tp": 2, "speculate": "draft=eagle,tokens=2,acceptance=0.7"}
    assert predictor.deployment(MODEL, "h100-sxm-80gb", 3000, **setup).limits.max_num_seqs == 48
