"""Plans from files: own, and those of Megatron-LM, torchtitan and DeepSpeed."""

import json
from pathlib import Path
from typing import Any

import pytest

from neusight.errors import DataError, ModelError
from neusight.plans.read import read_plan, write_plan
from neusight.questions.launch import LaunchLine, read_launch
from neusight.requests import Plan

MEGATRON = """
#!/bin/bash
# --tensor-model-parallel-size 16 in a comment
torchrun --nproc_per_node 8 pretrain_gpt.py \\
    --num-layers 96 --hidden-size 12288 --tensor-model-parallel-size 8 \\
    --pipeline-model-parallel-size=4 --num-layers-per-virtual-pipeline-stage 3 \\
    --micro-batch-size 2 --global-batch-size 512 --seq-length 2048 --sequence-parallel \\
    --use-distributed-optimizer --overlap-grad-reduce --bf16 --fp8-format hybrid \\
    --recompute-granularity full --recompute-method block --recompute-num-layers 5 \\
    --overlap-p2p-communication-warmup-flush --decoder-first-pipeline-num-layers 2 --lr 1e-4
"""
TITAN = """
[training]
local_batch_size = 4
global_batch_size = 64
seq_len = 8192
[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = 4
tensor_parallel_degree = 2
enable_async_tensor_parallel = true
fsdp_reshard_after_forward = "never"
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
[compile]
enable = true
[optimizer]
name = "AdamW"
"""
DEEPSPEED: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 8,
    "train_batch_size": "auto",
    "zero_optimization": {"stage": 2, "overlap_comm": False, "offload_optimizer": {"device": "cpu"}},
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
}


def megatron(arguments: str, depth: int = 0) -> LaunchLine:
    return read_launch(f"pretrain_gpt.py {arguments}", depth)


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_what_is_written_reads_the_same(tmp_path: Path) -> None:
    plan = Plan(dp=4, tp=2, pp=2, vp=4, micro_batch_size=2, global_batch_size=64, shard="zero1", recompute="full")
    write_plan(tmp_path / "plan.toml", plan, {"seq_len": 4096, "dtype": "bf16"})
    told = dict(read_plan(tmp_path / "plan.toml").fields)
    assert (told.pop("seq_len"), told.pop("dtype")) == (4096, "bf16")
    assert Plan(**told) == plan
    with pytest.raises(DataError, match=r"does not end in \.toml: name it so"):
        write_plan(tmp_path / "plan.json", plan, {})


def test_own_json_is_read_too(tmp_path: Path) -> None:
    path = written(tmp_path, "plan.json", '{"tp": 4, "sequence_parallel": true, "engine": "fsdp"}')
    assert read_plan(path).fields == {"tp": 4, "sequence_parallel": True, "engine": "fsdp"}


def test_arguments_of_megatron() -> None:
    line = read_launch(MEGATRON)
    words = {name: value for name, value in line.words.items() if name not in ("model", "config", "per_node")}
    assert words == {
        "tp": 8, "pp": 4, "vp": 8, "micro_batch_size": 2, "global_batch_size": 512, "seq_len": 2048,
        "sequence_parallel": True, "shard": "zero1", "overlap_grad_reduce": True, "overlap_param_gather": False,
        "overlap_tp": False, "dtype": "fp8", "recompute": "full", "recompute_layers": 5,
    }  # fmt: skip
    assert [*line.unread] == ["overlap-p2p-communication-warmup-flush", "decoder-first-pipeline-num-layers"]


def test_recipes_of_products_are_read() -> None:
    words = {
        "--bf16 --fp8-format hybrid": "fp8", "--fp8-format e4m3 --fp8-recipe mxfp8 --bf16": "mxfp8",
        "--bf16 --fp8-format hybrid --fp8-recipe blockwise": "fp8_block", "--bf16 --fp4-format e2m1": "nvfp4",
        "--bf16": "bfloat16",
    }  # fmt: skip
    assert {line: megatron(line).words["dtype"] for line in words} == words
    with pytest.raises(ModelError, match="--fp8-recipe half: one of delayed, tensorwise, blockwise, mxfp8 is read"):
        megatron("--fp8-format e4m3 --fp8-recipe half")


def test_layers_of_a_chunk_count_in_the_layers_of_the_model() -> None:
    line = "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2"
    assert megatron(line, depth=32).words["vp"] == 4
    with pytest.raises(ModelError, match="30 layers in 4 stages cannot be cut so"):
        megatron(line, depth=30)


def test_tables_of_torchtitan(tmp_path: Path) -> None:
    told = read_plan(written(tmp_path, "llama.toml", TITAN))
    assert told.fields == {
        "tp": 2, "dp": 8, "shard": "hsdp", "shard_group": 4, "micro_batch_size": 4, "micro_batches": 1,
        "global_batch_size": 64, "recompute": "operators", "schedule": "1f1b", "engine": "torchtitan-compiled",
        "dtype": "bfloat16", "overlap_tp": True, "seq_len": 8192, "optimizer": "adamw",
    }  # fmt: skip
    assert told.unread == ("fsdp_reshard_after_forward",)


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ('context_parallel_degree = 4\ncontext_parallel_rotate_method = "alltoall"', {"cp": 4, "cp_comm": "p2p"}),
        ("context_parallel_degree = 2", {"cp": 2, "cp_comm": "all_gather", "shard": "zero3"}),
        ('fsdp_reshard_after_forward = "never"', {"shard": "zero2"}),
        ('pipeline_parallel_degree = 2\nfsdp_reshard_after_forward = "always"', {"pp": 2, "shard": "zero3"}),
        ("pipeline_parallel_degree = 2", {"pp": 2, "shard": "zero1"}),
    ],
)
def test_torchtitan_says_how_sequences_are_shared_and_what_stays_gathered(
    tmp_path: Path, more: str, wanted: dict[str, object]
) -> None:
    told = read_plan(written(tmp_path, "more.toml", f"[parallelism]\n{more}"))
    assert {name: told.fields[name] for name in wanted} == wanted
    assert told.unread == ()


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("p2p", {"cp_comm": "p2p"}),
        ("all_gather", {"cp_comm": "all_gather"}),
        ("a2a", {"ulysses": 8}),
        ("a2a+p2p --hierarchical-context-parallel-sizes 2 4", {"ulysses": 2}),
    ],
)
def test_megatron_says_how_sequences_are_shared(words: str, wanted: dict[str, object]) -> None:
    line = megatron(f"--context-parallel-size 8 --cp-comm-type {words}")
    assert {name: word for name, word in line.words.items() if name in ("cp_comm", "ulysses")} == wanted
    assert line.unread == {}


def test_precisions_and_graphs_of_megatron_have_an_effect_or_a_name() -> None:
    line = megatron(
        "--bf16 --main-grads-dtype bf16 --exp-avg-dtype bf16 --exp-avg-sq-dtype fp32 --cuda-graph-impl local"
    )
    assert line.words["gradient_dtype"] == "bfloat16"
    assert line.unread == {"exp-avg-dtype": "bf16", "cuda-graph-impl": "local"}


def test_unknown_ways_to_share_sequences_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"a2a\+p2p: give --hierarchical-context-parallel-sizes"):
        megatron("--context-parallel-size 8 --cp-comm-type a2a+p2p")
    with pytest.raises(ModelError, match=r"--cp-comm-type p2p a2a: one of p2p, all_gather, a2a, a2a\+p2p is read"):
        megatron("--context-parallel-size 8 --cp-comm-type p2p a2a")
    for line, message in (
        ('context_parallel_rotate_method = "ring"', "one of allgather, alltoall is read"),
        ('fsdp_reshard_after_forward = "sometimes"', "one of default, always, never is read"),
    ):
        with pytest.raises(ModelError, match=message):
            read_plan(written(tmp_path, "wrong.toml", f"[parallelism]\n{line}"))
    with pytest.raises(ModelError, match="plan: ulysses 3 does not divide cp 4: choose one that does"):
        Plan(cp=4, ulysses=3)
    with pytest.raises(ModelError, match="unknown cp_comm 'ring': one of p2p, all_gather"):
        Plan(cp=4, cp_comm="ring")


def test_older_files_of_torchtitan(tmp_path: Path) -> None:
    text = """
        [training]
        batch_size = 8
        data_parallel_shard_degree = -1
        tensor_parallel_degree = 1
        compile = false
        [experimental]
        pipeline_parallel_degree = 4
        pipeline_parallel_schedule = "Interleaved1F1B"
        [activation_checkpoint]
        mode = "selective"
        selective_ac_option = "2"
        [float8]
        enable_float8_linear = true
        """
    told = read_plan(written(tmp_path, "old.toml", text), depth=32).fields
    wanted = {"tp": 1, "pp": 4, "shard": "zero1", "micro_batch_size": 1, "micro_batches": 8, "vp": 2,
              "dtype": "fp8_current", "engine": "torchtitan", "recompute": "full", "recompute_layers": 4}  # fmt: skip
    assert {name: told[name] for name in wanted} == wanted
    assert "dp" not in told


def test_json_of_deepspeed(tmp_path: Path) -> None:
    zero = DEEPSPEED["zero_optimization"] | {"zero_hpz_partition_size": 8, "offload_param": {"device": "none"}}
    told = read_plan(written(tmp_path, "ds.json", json.dumps(DEEPSPEED | {"zero_optimization": zero})))
    assert told.fields == {
        "engine": "deepspeed", "shard": "zero2", "overlap_grad_reduce": False, "micro_batch_size": 4,
        "micro_batches": 8, "offload": "optimizer", "dtype": "bfloat16", "optimizer": "adamw",
    }  # fmt: skip
    assert told.unread == ("zero_hpz_partition_size",)


WRONG = {
    "key.toml": ("tensor = 4", "unknown key 'tensor'"),
    "value.toml": ("tp = 1.5", "tp = 1.5: give a whole number"),
    "broken.toml": ("tp = = 1", "does not read as toml"),
    "list.json": ("[1]", "holds no table"),
    "nested.json": ("[" * 100_000, "does not read as json"),
    "stage.json": ('{"zero_optimization": {"stage": 4}}', "zero_optimization.stage = 4: one of 0, 1, 2, 3"),
    "batch.json": ('{"train_batch_size": "large"}', "train_batch_size = large: give a whole number"),
    "schedule.toml": ('[parallelism]\npipeline_parallel_schedule = "ZBV"', "one of 1F1B, Interleaved1F1B, GPipe"),
    "mode.toml": ('[activation_checkpoint]\nmode = "some"', "activation_checkpoint.mode = some"),
    "degree.toml": ("[parallelism]\ntensor_parallel_degree = 0", "give a whole number of at least 1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_are_told_with_their_place(tmp_path: Path, name: str) -> None:
    text, said = WRONG[name]
    with pytest.raises((DataError, ModelError)) as caught:
        read_plan(written(tmp_path, name, text))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--recompute-granularity most", "one of selective, full is read"),
        ("--tensor-model-parallel-size many", "--tensor-model-parallel-size many: give a whole number"),
    ],
)
def test_mistakes_in_arguments_of_megatron_are_told(line: str, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        megatron(line)


def test_what_is_no_text_is_no_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(DataError, match="is no text"):
        read_plan(path)


def test_read_plan_reads_former_names(tmp_path: Path) -> None:
    text = (
        "tp = 2\nmicro_batch = 2\nglobal_batch = 64\noverlap_gradients = true\noverlap_parameters = false\nlora = 8\n"
    )
    assert read_plan(written(tmp_path, "old.toml", text)).fields == {
        "tp": 2, "micro_batch_size": 2, "global_batch_size": 64, "overlap_grad_reduce": True,
        "overlap_param_gather": False, "lora_rank": 8,
    }  # fmt: skip
