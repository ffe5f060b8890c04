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
