"""Memory of trainers that share states otherwise: DeepSpeed's ZeRO, moments and offload, by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from neusight.devices import load_device
from neusight.engines import ENGINES, Engine
from neusight.errors import DataError, ModelError
from neusight.plans.memory import OVERLAPPED_BUCKETS, RankMemory, memory_of
from neusight.plans.read import read_plan
from neusight.plans.stages import RankParameters
from neusight.plans.states import CONNECTION_BYTES, TrainingStep, communicator_bytes, states_of
from neusight.questions import Training
from neusight.requests import Plan
from neusight.workloads.decoders.decoder import Decoder
from neusight.workloads.decoders.layers import FeedForward, Layer, SelfAttention

DEEPSPEED, FSDP = ENGINES["deepspeed"], ENGINES["fsdp"]
A100 = load_device("a100-sxm-80gb")
HUNDRED = RankParameters(dense=100.0)
GROUP = 10.0
"""Parameters that are stepped at once below."""
LAYER = Layer(attention=SelfAttention(heads=16, kv_heads=16, head_dim=64), feed_forward=FeedForward(ffn=4096))
MODEL = Decoder(
    name="m", family="m", hidden=1024, vocab=32768, tied=False, max_len=4096, layers=((LAYER, 8),), order=(0,) * 8
)  # fmt: skip


def step(engine: Engine = DEEPSPEED, **fields: Any) -> TrainingStep:
    return TrainingStep(seq_len=1024, engine=engine, **fields)


def plan(shard: str, **fields: Any) -> Plan:
    return Plan(**{"dp": 4, "global_batch_size": 4, "shard": shard, "gradient_dtype": "bfloat16"} | fields)


def only(engine: Engine, of: Plan) -> RankMemory:
    (rank,) = memory_of(MODEL, of, step(engine), A100)
    return rank


@pytest.mark.parametrize(
    ("shard", "gradients", "expected"),
    [
        ("zero3", "bfloat16", (2 / 4, 2 / 4, 12 / 4)),
        ("zero2", "bfloat16", (2, 2 / 4, 12 / 4)),
        ("zero1", "float32", (2, 2 + 4, 12 / 4)),
        ("none", "float32", (2, 2 + 4, 12)),
    ],
)
def test_zero_keeps_weights_in_sixteen_bits_beside_float32_copies(
    shard: str, gradients: str, expected: tuple[float, ...]
) -> None:
    """Of 4 replicas; sums in float32 stand beside gradients as they came."""
    states = states_of(HUNDRED, plan(shard, gradient_dtype=gradients), step())
    assert (states.weights, states.gradients, states.optimizer) == pytest.approx([100 * each for each in expected])


def test_zero_widens_the_gradients_of_one_group_at_a_time() -> None:
    grouped = replace(DEEPSPEED, grouped_parameters=10)
    assert states_of(HUNDRED, plan("zero3"), step(grouped)).cast == 4 * GROUP
    assert states_of(HUNDRED, plan("zero3"), step()).cast == 4 * 100 / 4
    assert states_of(HUNDRED, plan("zero3"), step(FSDP)).cast == 0.0


@pytest.mark.parametrize(
    ("offload", "expected"),
    [("none", (50.0, 50.0, 300.0)), ("optimizer", (50.0, 0.0, 0.0)), ("parameters", (0.0, 0.0, 0.0))],
)
def test_what_is_offloaded_leaves_the_device(offload: str, expected: tuple[float, ...]) -> None:
    states = states_of(HUNDRED, plan("zero3", offload=offload), step())
    assert (states.weights, states.gradients, states.optimizer) == expected


def test_parameters_on_the_host_need_shards() -> None:
    with pytest.raises(ModelError, match=r"offload parameters needs .*: set shard to zero3"):
        plan("zero2", offload="parameters")


def test_fully_sharded_weights_stay_gathered_up_to_a_limit() -> None:
    """Not two layers' as FSDP has it: as many as ``stage3_max_live_parameters``, here all 134 million."""
    total, bucket = MODEL.parameters, 1000
    engine = replace(DEEPSPEED, bucket_parameters=bucket)
    whole = only(engine, plan("zero3")).communication
    assert whole == pytest.approx(2 * total + 2 * bucket, rel=0.01)
    few = replace(engine, live_parameters=90_000_000)
    assert only(few, plan("zero3")).communication == pytest.approx(2 * 90e6 + 2 * bucket, rel=0.01)


@pytest.mark.parametrize(("overlap", "times"), [(False, 1.0), (True, OVERLAPPED_BUCKETS)])
@pytest.mark.parametrize(("shard", "buffers"), [("zero1", 2), ("zero2", 2), ("zero3", 1)])
def test_buckets_are_those_of_the_documentation(overlap: bool, times: float, shard: str, buffers: int) -> None:
    """5e8 x 2 bytes x 2 x 4.5 = 9 GB of stages 1 and 2 where they overlap; fewer of a model that is smaller."""
    engine = replace(DEEPSPEED, live_parameters=0, bucket_parameters=1_000_000)
    of = plan(shard, overlap_grad_reduce=overlap)
    without = replace(engine, bucket_parameters=0)
    added = only(engine, of).communication - only(without, of).communication
    assert added == pytest.approx(times * buffers * 2e6)


def test_buckets_need_replicas() -> None:
    single = Plan(global_batch_size=1, gradient_dtype="bfloat16")
    assert only(DEEPSPEED, single).communication == 0.0


@pytest.mark.parametrize(("dtype", "bytes_each"), [("", 4.0), ("bfloat16", 2.0), ("float16", 2.0)])
def test_moments_take_the_dtype_that_is_given(dtype: str, bytes_each: float) -> None:
    """Beside 4 bytes of the float32 copy; narrow optimizers have their own width."""
    megatron = step(ENGINES["megatron-te"], moment_dtype=dtype)
    assert states_of(HUNDRED, Plan(), megatron).optimizer == pytest.approx(100 * (4 + 2 * bytes_each))
    narrow = replace(megatron, optimizer="adamw8bit")
    assert states_of(HUNDRED, Plan(), narrow).optimizer == pytest.approx(100 * (4 + 2 * (1 + 4 / 256)))


@pytest.mark.parametrize(("name", "states"), [("lion", 1), ("adagrad", 1), ("adafactor", 0), ("sgd", 1), ("adamw", 2)])
def test_optimizers_of_the_table_keep_their_moments(name: str, states: int) -> None:
    assert states_of(HUNDRED, Plan(), step(FSDP, optimizer=name)).optimizer == 100 * (4 + 4 * states)


def test_moments_of_a_question_move_less_and_need_less() -> None:
    words = {"model": "gpt2", "gpu": "h100-sxm-80gb", "engine": "megatron-te", "global_batch_size": 8}
    run = Training.named({**words, "moment_dtype": "bf16"}).resolve()
    assert run.moment_dtype == "bfloat16"
    eight = Training.named({**words, "moment_dtype": "bf16", "optimizer": "adamw8bit"}).resolve()
    assert any("moment_dtype has no effect" in line for line in eight.without_effect())
    with pytest.raises(ModelError, match="moment_dtype of a traced model is not estimated"):
        Training.named({**words, "engine": "torch-eager", "moment_dtype": "bf16"}).resolve()


def test_communicators_of_older_nccl_have_buffers_for_rings_and_trees() -> None:
    """Of tensor, data and pipeline groups, of a model's ranks and of all: 24 channels, three ranks each."""
    older, newer = ENGINES["megatron-deepspeed"], ENGINES["megatron-te"]
    each = 3 * 24 * CONNECTION_BYTES
    assert communicator_bytes(A100, Plan(dp=4, tp=4, pp=2, global_batch_size=4), older) == 5 * each
    assert communicator_bytes(A100, Plan(tp=8), older) == each
    assert communicator_bytes(A100, Plan(), older) == 0.0
    assert communicator_bytes(A100, Plan(dp=4, tp=4, global_batch_size=4), newer) == 0.0


def test_json_of_deepspeed_gives_sizes_and_offload(tmp_path: Path) -> None:
    zero = {"stage": 3, "reduce_bucket_size": 2e8, "stage3_max_live_parameters": 5e8, "sub_group_size": "auto"}
    zero |= {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"zero_optimization": zero}))
    fields = read_plan(path).fields
    assert (fields["engine"], fields["shard"], fields["offload"]) == ("deepspeed", "zero3", "parameters")
    assert json.loads(fields["engine_options"]) == {"bucket_parameters": 200_000_000, "live_parameters": 500_000_000}
    path.write_text("{")
    with pytest.raises(DataError):
        read_plan(path)


SEVEN = {"model": "llama2-7b", "gpu": "a100-sxm-80gb", "dp": 8, "shard": "zero3", "global_batch_size": 8,
         "seq_len": 2048, "recompute": "full"}  # fmt: skip


def test_a_trainer_without_measured_peaks_is_less_certain() -> None:
    def width(engine: str) -> float:
        run = Training.named(SEVEN | {"engine": engine}).resolve()
        assert isinstance(run.decoder, Decoder)
        fit = memory_of(run.decoder, run.plan, run, run.cluster.device)[0].fit(run.cluster.device)
        low, high = fit.interval
        return (high - low) / fit.needed_bytes

    assert width("fsdp") == pytest.approx(width("deepspeed"), rel=0.1)
    assert width("fsdp") > 1.5 * width("torchtitan")
