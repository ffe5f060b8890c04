"""Launch lines read as questions: those of engines' documentation, and those that estimates write."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from neusight import Predictor
from neusight.engines.launch_flags import dashed, engines_with_flags, flags_of
from neusight.errors import NeusightError
from neusight.questions import Question, Serving, Training
from neusight.questions.launch import read_launch
from neusight.serving.launch import launch_command
from neusight.workloads.decoders.known import hub_config

LINES = tomllib.loads(Path(__file__).with_name("launch_lines.toml").read_text(encoding="utf-8"))["line"]
MODEL, MIXTURE = "Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B"
# Names in tables of options that are parts of fields, or that are only written.
PARTS = {
    "quantization", "lora", "adapters", "adapter_rank", "eplb", "draft", "draft_model", "draft_tokens", "draft_layers",
    "draft_depth", "draft_branches", "draft_queries", "attention_dp", "dp_per_node", "started_nodes", "most_images",
    "executor", "multimodal", "nodes", "rank", "first", "policy", "slots",
}  # fmt: skip
POLICIES = ("GUARANTEED_NO_EVICT", "MAX_UTILIZATION")
LIMITS = {"max_model_len": 3000, "max_num_seqs": 64, "max_num_batched_tokens": 4096, "gpu_memory_utilization": 0.8}


def question_of(text: str) -> Question:
    launch = read_launch(text)
    return launch.noun.named(launch.words)


@pytest.mark.parametrize("line", LINES, ids=[line["source"] for line in LINES])
def test_read_launch_reads_lines_of_documentation(line: dict[str, Any]) -> None:
    launch = read_launch(line["text"])
    assert launch.noun.named(launch.words).words() == line["words"]
    assert list(launch.unread) == line.get("unread", [])
    wanted = line.get("remarks", [])
    assert len(launch.remarks) == len(wanted)
    assert all(remark.startswith(start) for remark, start in zip(launch.remarks, wanted, strict=True))


# Words that the line of an estimate does not state: a choice of kernels, how many devices share a node, and how often
# the line is to be run.
UNSTATED = ("attention_backend", "per_node", "replicas")
ASKABLE = [line for line in LINES if hub_config(line["words"]["model"]) and "redundant_experts" not in line["words"]]


@pytest.mark.parametrize("line", ASKABLE, ids=[line["source"] for line in ASKABLE])
def test_lines_of_documentation_are_answered_and_written_back(predictor: Predictor, line: dict[str, Any]) -> None:
    question = question_of(line["text"])
    estimate = predictor.ask(question.changed(gpu="h200-sxm-141gb", isl=64, osl=2, concurrency=1))
    back = question_of(estimate.launch)
    words = {name: value for name, value in question.words().items() if name not in UNSTATED}
    assert {name: getattr(back, name) for name in words} == words


def test_scripts_of_documentation_are_answered(predictor: Predictor) -> None:
    scripts = (question_of(line["text"]) for line in LINES if line["words"]["model"] == "megatron-lm")
    for question, nodes, parameters in zip(scripts, (16, 1, 4, 8), (175e9, 8e9, 46.7e9, 65e9), strict=True):
        estimate = predictor.ask(question.changed(gpu="h100-sxm-80gb", nodes=nodes))
        assert estimate.run.decoder.parameters == pytest.approx(parameters, rel=0.02)


SERVED: list[dict[str, Any]] = [
    {"tp": 2, "dtype": "float16"},
    {"tp": 2, "pp": 2, "kv_dtype": "fp8"},
    {"model": MIXTURE, "dp": 4, "ep": 4},
    {"graphs": False, "chunked_prefill": False},
    {"lora_adapters": "8,rank=32"},
]
# TensorRT-LLM's line names another checkpoint, and counts slots of experts.
SERVED_FROM_16_BITS: list[dict[str, Any]] = [
    {"dtype": "fp8"},
    {"model": MIXTURE, "dp": 4, "ep": 4, "redundant_experts": 8},
]


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        *(("tensorrt-llm", words) for words in SERVED),
        *((engine, words) for engine in ("vllm", "sglang") for words in SERVED + SERVED_FROM_16_BITS),
    ],
    ids=str,
)
def test_read_launch_gives_back_what_launch_command_writes(
    predictor: Predictor, engine: str, words: dict[str, Any]
) -> None:
    question = Serving(**{"model": MODEL, "engine": engine, **LIMITS, **words})
    options = {name: getattr(question, name) for name in (*LIMITS, "chunked_prefill")}
    setup = {name: value for name, value in words.items() if name not in ("model", "chunked_prefill")}
    deployment = predictor.deployment(question.model, "h100-sxm-80gb", 3000, engine=engine, **options, **setup)
    wanted = question
    if engine == "sglang" and not question.chunked_prefill:
        wanted = question.changed(max_num_batched_tokens=None)
    assert question_of(launch_command(deployment)) == wanted


def test_read_launch_reads_files(tmp_path: Path) -> None:
    options = tmp_path / "options.yaml"
    options.write_text(
        "enable_chunked_prefill: true\nlora_config: {max_loras: 4, max_lora_rank: 8}\ncuda_graph_config: null\n"
    )
    script = tmp_path / "serve.sh"
    script.write_text(f"MODEL={MODEL}\nexec trtllm-serve $MODEL --tp_size ${{TP:-2}} --config {options}  # a comment\n")
    assert question_of(str(script)) == Serving(
        model=MODEL, engine="tensorrt-llm", tp=2, lora_adapters="4,rank=8", graphs=False
    )


COUNTED: list[tuple[str, dict[str, Any]]] = [
    (
        f"sglang serve --model-path {MODEL} --tp 4 --dp-size 2 --max-running-requests 64",
        {"model": MODEL, "engine": "sglang", "tp": 4, "replicas": 2, "max_num_seqs": 64},
    ),
    (
        f"sglang serve --model-path {MODEL} --tp 4 --dp 2 --enable-dp-attention --max-running-requests 64",
        {"model": MODEL, "engine": "sglang", "tp": 2, "dp": 2, "max_num_seqs": 32},
    ),
    (
        f"sglang serve --model-path {MIXTURE} --tp 8 --moe-a2a-backend flashinfer --chunked-prefill-size -1",
        {"model": MIXTURE, "engine": "sglang", "tp": 8, "ep": 8, "chunked_prefill": False},
    ),
    (
        f"trtllm-serve {MIXTURE} --enable_attention_dp --tp_size 2 --enable_chunked_prefill",
        {"model": MIXTURE, "engine": "tensorrt-llm", "dp": 2},
    ),
    (
        f"trtllm-serve {MIXTURE} --enable_chunked_prefill --ep_size 8 --tp_size 8 "
        "--set moe_config.load_balancer.num_slots=144 --set max_batch_size=64",
        {"model": MIXTURE, "engine": "tensorrt-llm", "tp": 8, "ep": 8, "redundant_experts": 16, "max_num_seqs": 64},
    ),
    (f"vllm serve {MIXTURE} --data-parallel-size 2", {"model": MIXTURE, "dp": 2}),
    (
        f"vllm serve {MODEL} --max-model-len 25.6k --max-num-batched-tokens 2K",
        {"model": MODEL, "max_model_len": 25_600, "max_num_batched_tokens": 2048},
    ),
    (f"vllm serve {MODEL} --max-model-len auto", {"model": MODEL}),
    (
        f"docker run vllm/vllm-openai:v0.11.2 --model {MODEL} -tp 2 -dp=2 > log 2>&1 &",
        {"model": MODEL, "engine_version": "0.11.2", "tp": 2, "replicas": 2},
    ),
    (f"TP=${{TP:-2}}\nWAYS=$TP\nsrun bash -c 'vllm serve {MODEL} -tp $WAYS' &", {"model": MODEL, "tp": 2}),
]


@pytest.mark.parametrize(("text", "words"), COUNTED, ids=[text for text, _ in COUNTED])
def test_read_launch_counts_degrees_as_each_engine_does(text: str, words: dict[str, Any]) -> None:
    assert question_of(text) == Serving(**words)


@pytest.mark.parametrize("written", ["echo 'max-num-seqs: 8' > o.yml", "cat > o.yml <<E\nmax-num-seqs: 8\nE"])
def test_read_launch_reads_files_that_a_script_writes(written: str) -> None:
    assert question_of(f"{written}\nvllm serve {MODEL} --config ./o.yml") == Serving(model=MODEL, max_num_seqs=8)


def test_read_launch_takes_widths_that_megatron_takes() -> None:
    sizes = "--num-layers 2 --hidden-size 4096 --num-attention-heads 32 --seq-length 512"
    widths = [json.loads(read_launch(f"pretrain_gpt.py {sizes} {gate}").words["config"]) for gate in ("", "--swiglu")]
    assert [config["intermediate_size"] for config in widths] == [16_384, 10_880]
    assert [config["max_position_embeddings"] for config in widths] == [512, 512]


def test_read_launch_takes_a_micro_batch_of_each_replica_without_a_global_batch() -> None:
    line = read_launch("pretrain_gpt.py --micro-batch-size 2 --num-layers $LAYERS --hidden-size 64")
    assert (line.words["micro_batch_size"], line.words["micro_batches"]) == (2, 1)
    assert line.remarks == ("--num-layers $LAYERS is no whole number: it is left out",)


def test_read_launch_names_a_policy_that_no_field_takes() -> None:
    policy = "--set scheduler_config.capacity_scheduler_policy={}"
    usual, other = (read_launch(f"trtllm-serve {MODEL} {policy.format(name)}") for name in POLICIES)
    assert not usual.unread
    assert other.unread == {"capacity-scheduler-policy": "MAX_UTILIZATION"}


def test_read_launch_names_unknown_options_with_the_nearest() -> None:
    launch = read_launch(f"vllm serve {MODEL} --max-num-sequences 8 --trust-remote --compilation-config.level 3")
    unread, unknown = launch.notes()
    assert unread == "options that matter and have no field are left out: --compilation-config.level 3"
    assert unknown.startswith("--max-num-sequences is no known option of vllm; did you mean max-num-seqs")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ollama run llama3", "starts no engine that is known"),
        ("missing.sh", "is no file with text: check the path, or write"),
        (f"vllm serve {MODEL} --config missing.yml", "'missing.yml' is no file with text: check the path$"),
        ("vllm serve 'Qwen/Qwen3-8B", "mend its quotes"),
        (f"vllm serve {MODEL} --tp many", "'many' is not a whole number"),
        (
            f"sglang serve --model-path {MODEL} --tp 3 --dp 2 --enable-dp-attention",
            "dp 3 devices cannot be shared by 2 equally",
        ),
        ("vllm serve --tp 2", "model is missing"),
    ],
)
def test_read_launch_refuses_what_is_no_launch(text: str, message: str) -> None:
    with pytest.raises(NeusightError, match=message):
        _ = question_of(text)


@pytest.mark.parametrize("engine", engines_with_flags())
def test_flags_state_each_option_once(engine: str) -> None:
    flags = flags_of(engine)
    entries = [entry for table in (flags.fields, flags.file) for several in table.values() for entry in several]
    options = [option for entry in entries for option in ([entry] if isinstance(entry, str) else entry)]
    assert len(set(options)) == len(options)
    others = [*flags.passed, *flags.unread, *flags.file_options]
    assert len(set(others)) == len(others)
    assert not set(options) & {*flags.passed, *flags.file_options}
    noun = Training if engine == "megatron" else Serving
    assert set(flags.unset) & set(noun.fields()) <= set(flags.fields) | set(flags.file)
    assert {*flags.fields, *flags.file} - set(noun.fields()) <= PARTS
    assert {dashed(option) for option in flags.values} <= set(flags.names)


@pytest.mark.parametrize(("engine", "variable"), [("vllm", "VLLM_ROCM_USE_AITER"), ("sglang", "SGLANG_USE_AITER")])
@pytest.mark.parametrize("aiter", [True, False])
def test_launch_command_says_by_a_variable_whether_aiter_runs(
    predictor: Predictor, engine: str, variable: str, aiter: bool
) -> None:
    written = launch_command(predictor.deployment(MODEL, "mi300x", 64, engine=engine, aiter=aiter))
    assert read_launch(written).words["aiter"] is aiter
    assert "aiter" not in read_launch(written.replace(f"{variable}={int(aiter)} ", "")).words
