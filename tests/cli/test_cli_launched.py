"""``--from``: launch lines as questions of ``training`` and ``serving``."""

from pathlib import Path

from cli_runs import as_json, error, invoke, run

SCRIPT = """
GPUS_PER_NODE=8
ARGS=(
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --num-query-groups 8
    --swiglu --untie-embeddings-and-output-weights --vocab-size 128256 --seq-length 4096 --bf16
    --micro-batch-size 1 --global-batch-size 64 --use-distributed-optimizer --overlap-grad-reduce
    --rampup-batch-size 16 16 5859375
)
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes 2 pretrain_gpt.py ${ARGS[@]}
"""


def test_training_from_a_script_counts_options_first(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(SCRIPT)
    answer = as_json("training", "--from", script, "--gpu", "h100-sxm-80gb", "--tp", 2)
    words = {name: answer["question"][name] for name in ("tp", "per_node", "nodes", "global_batch_size", "shard")}
    assert words == {"tp": 2, "per_node": 8, "nodes": 2, "global_batch_size": 64, "shard": "zero1"}
    again = as_json("training", "llama-3.1-8b", "--from", script, "--cluster", "dgx-h100", "--nodes", 4)
    assert (again["question"]["model"], again["devices"]) == ("llama-3.1-8b", 32)
    assert "config" not in again["question"]


def test_training_from_a_script_names_what_is_left_out() -> None:
    warned = run("training", "--from", SCRIPT, "--gpu", "h100-sxm-80gb").stderr
    assert "warning: options that matter and have no field are left out: --rampup-batch-size 16" in warned
    assert "starts what `neusight serving` predicts" in error("training", "--from", "vllm serve Qwen/Qwen3-8B")
    assert "starts no engine that is known" in error("training", "--from", "ollama run llama3")
    assert invoke("training", "--gpu", "h100-sxm-80gb").exit_code == 2


def test_memory_from_a_script_is_that_of_its_words() -> None:
    words = ("llama-3.1-8b", "--nodes", 2, "--per-node", 8, "-s", 4096, "-b", 64, "--micro-batch-size", 1, "--shard",
             "zero1", "--dtype", "bf16", "--no-sequence-parallel", "--no-overlap-tp")  # fmt: skip
    asked = as_json("memory", "llama-3.1-8b", "--from", SCRIPT, "--gpu", "h100-sxm-80gb")
    assert asked["ranks"] == as_json("memory", *words, "--gpu", "h100-sxm-80gb")["ranks"]


LOAD = ("--gpu", "h100-sxm-80gb", "--isl", 1000, "--osl", 100, "--concurrency", 8)


def test_serving_from_a_launch_line_answers_as_its_words() -> None:
    line = (
        "docker run --gpus all vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-8B -tp 2 --max-num-seqs 64 --dtype float16"
    )
    answer = as_json("serving", "--from", line, *LOAD)
    options = ("--engine-version", "0.11.0", "--tp", 2, "--max-num-seqs", 64, "--dtype", "float16")
    assert answer == as_json("serving", "Qwen/Qwen3-8B", *options, *LOAD)
    both = as_json("serving", "--from", line, "--tp", "1,4", *LOAD)
    assert [row["question"].get("tp", 1) for row in both] == [1, 4]


def test_serving_from_what_launch_command_prints_answers_the_same(tmp_path: Path) -> None:
    words = ("Qwen/Qwen3-8B", "--engine", "sglang", "--tp", 2, "--max-model-len", 3000, "--max-num-seqs", 64,
             "--max-num-batched-tokens", 4096, "--gpu-memory-utilization", 0.8, *LOAD)  # fmt: skip
    script = tmp_path / "serve.sh"
    script.write_text(as_json("serving", *words)["launch"])
    assert as_json("serving", "--from", script, *LOAD) == as_json("serving", *words)


def test_serving_from_a_launch_line_names_what_is_left_out() -> None:
    line = "vllm serve Qwen/Qwen3-8B --block-size 32 --max-num-sequences 4 --host 0.0.0.0"
    unread, unknown = run("serving", "--from", line, *LOAD).stderr.splitlines()[:2]
    assert unread == "warning: options that matter and have no field are left out: --block-size 32"
    assert unknown.startswith("warning: --max-num-sequences is no known option of vllm; did you mean max-num-seqs")
    assert "starts what `neusight training` predicts" in error("serving", "--from", SCRIPT, *LOAD)
    assert "MODEL" in error("serving", *LOAD)


def test_what_if_from_a_line_asks_of_what_it_starts() -> None:
    served = as_json("what-if", "--from", "vllm serve Qwen/Qwen3-8B", "--gpu", "l40s", "--isl", 64, "--osl", 8,
                     "--apply", "int4wo")  # fmt: skip
    assert (served["question"]["kind"], served["question"]["isl"]) == ("what-if", 64)
    trained = as_json("what-if", "llama-3.1-8b", "--from", SCRIPT, "--gpu", "h100-sxm-80gb", "--apply", "fp8")
    assert (trained["question"]["mode"], trained["before"]["devices"]) == ("training", 16)
