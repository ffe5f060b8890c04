"""Invariants of training steps on many GPUs: sums, bandwidth, memory, recomputation, intervals, scale."""

from dataclasses import replace
from math import hypot, log

import pytest
from small_runs import GPU, small_run, some_gpus

from neusight import Predictor
from neusight.devices import cluster_of
from neusight.distributed.estimate import TrainingEstimate
from neusight.distributed.exchanges import TIED
from neusight.distributed.step import UPDATE, TimedStep, timed
from neusight.distributed.training_run import TrainingRun
from neusight.errors import DeviceError, ModelError
from neusight.laws.doubts import NORMAL_90, spread
from neusight.questions import Training
from neusight.workloads.decoders.known import known_decoder

FOUR_WAYS = {
    "replicas": {},
    "sharded": {"shard": "zero3"},
    "tensor": {"tp": 4},
    "stages": {"pp": 4, "vp": 2},
}


def times_of(predictor: Predictor, run: TrainingRun) -> TimedStep:
    return timed([run], predictor.on_cluster(run.cluster, run.engine))[0]


def unhosted(run: TrainingRun) -> TrainingRun:
    """On a host that is never waited for."""
    return replace(run, engine=replace(run.engine, host_s_per_operator=0.0))


def test_one_gpu_takes_the_sum_of_its_parts(predictor: Predictor) -> None:
    run = unhosted(small_run(micro_batches=3))
    found = times_of(predictor, run)
    micro_batch_s = sum(float(seconds @ [1, 8, 1]) for seconds in found.passes.seconds.values())
    update_s = found.parts.total_s[found.role == UPDATE].sum()
    step = predictor.training(run)
    assert step.latency_s == pytest.approx(3 * micro_batch_s + update_s)
    assert (step.exposed_s, step.bubble) == pytest.approx((0.0, 0.0), abs=1e-12)


@pytest.mark.parametrize(
    ("engine", "dtype", "read", "written"),
    [
        ("megatron-deepspeed", "bfloat16", 2 + 4 + 4, 4 + 4),
        ("megatron-deepspeed", "float16", 2 + 2, 2),
        ("megatron-local", "bfloat16", 0, 0),
        ("torchtitan", "bfloat16", 0, 0),
    ],
)
def test_gradients_of_products_are_added_by_kernels_where_no_product_does(
    predictor: Predictor, engine: str, dtype: str, read: int, written: int
) -> None:
    run = replace(small_run(some_gpus(), engine, tp=4, sequence_parallel=False), dtype=dtype)
    step, size = times_of(predictor, run), 1024 * 4096 // 4
    added = [part.batch for part in step.parts.parts if part.name == "down accumulate"]
    moved = [(batch["read_bytes"][0], batch["write_bytes"][0]) for batch in added]
    assert moved == ([(read * size, written * size)] if read else [])


def test_sums_over_tensor_parallel_ranks_are_in_the_way_of_products_that_no_function_joins(
    predictor: Predictor,
) -> None:
    for engine, beside in (("megatron-deepspeed", False), ("megatron-local", True)):
        step = times_of(predictor, small_run(some_gpus(), engine, tp=4, sequence_parallel=False))
        assert set(step.parts.overlapped[step.parts.name == "reduce gradient of input"]) == {beside}


def test_parameters_sharded_one_by_one_are_copied_from_what_was_gathered_and_to_what_is_reduced(
    predictor: Predictor,
) -> None:
    """FSDP2: weights of a layer twice, gradients in float32 once, for each micro-batch; flat parameters lie there."""
    run = unhosted(small_run(some_gpus(), "torchtitan", shard="zero3", micro_batches=2))
    flat = replace(run, engine=replace(run.engine, copies_gathered=False))
    copied, plain = (times_of(predictor, each) for each in (run, flat))
    for number, segment in enumerate(copied.program.segments):
        parts, others = (step.passes.times.parts[step.passes.segment == number] for step in (copied, plain))
        moved = [float(p.batch["read_bytes"][0] + p.batch["write_bytes"][0]) for p in parts[len(others) :]]
        assert moved == [4.0 * segment.parameters] * 2 + [6.0 * segment.parameters]
    shared = replace(run, plan=replace(run.plan, shard="zero1"))
    assert len(times_of(predictor, shared).passes.segment) == len(plain.passes.segment)
    assert copied.runs[copied.parts.name == "join gradients"].sum() == 2 * (1 + 8 + 1)
    assert copied.schedule.step_s > plain.schedule.step_s


@pytest.mark.parametrize(
    ("gpu", "engine", "devices"),
    [("h100-sxm-80gb", "megatron-te", 8), ("tpu-v5p", "maxtext", 8), ("trainium2", "neuron", 64)],
)
def test_devices_train_under_their_usual_engine(predictor: Predictor, gpu: str, engine: str, devices: int) -> None:
    run = Training.named({"model": "llama-2-7b", "cluster": cluster_of(gpu, 8), "global_batch_size": 64}).resolve()
    assert (run.engine.name, run.cluster.devices) == (engine, devices)
    stated = Training.named(
        {"model": "llama-2-7b", "cluster": cluster_of(gpu, 8), "global_batch_size": 64, "engine": engine}
    ).resolve()
    assert replace(stated, defaults=run.defaults) == run
    assert run.assumed["engine"].startswith(engine)


def test_recomputation_takes_exactly_what_runs_again(predictor: Predictor) -> None:
    runs = {how: unhosted(small_run(micro_batches=4, recompute=how)) for how in ("none", "selective", "full")}
    steps = {how: predictor.training(run) for how, run in runs.items()}
    for how, run in runs.items():
        again_s = times_of(predictor, run).passes.recompute_s[1]
        assert steps[how].latency_s - steps["none"].latency_s == pytest.approx(4 * 8 * again_s, rel=1e-6)
    assert steps["none"].peak_bytes > steps["selective"].peak_bytes * 0.999 > steps["full"].peak_bytes * 0.999
    assert steps["none"].peak_bytes > steps["full"].peak_bytes
    assert steps["full"].hfu > steps["full"].mfu
    assert steps["none"].hfu == steps["none"].mfu


@pytest.mark.parametrize("micro_batches", [4, 12])
@pytest.mark.parametrize("front_end", ["described", "traced"])
def test_stages_sum_the_gradient_of_a_tied_embedding_once_a_step(
    predictor: Predictor, front_end: str, micro_batches: int
) -> None:
    """An all-reduce of the whole table between two ranks, whatever the number of micro-batches; none without stages."""
    model = known_decoder("gpt2-large") if front_end == "described" else "gpt2-large"
    options = {"micro_batches": micro_batches, "seq_len": 256, "dtype": "bfloat16", "optimizer": "adamw"}
    run = Training.named(
        {"model": model, "cluster": some_gpus(), **options, "pp": 4, "engine": "torch-compiled"}
    ).resolve()
    found = times_of(predictor, run)
    times = found.parts.take(found.parts.name == TIED)
    assert found.place[found.parts.name == TIED].tolist() == [0, 3]
    batch = times.parts[0].batch
    assert (batch["op"][0], batch["ranks"][0]) == ("all_reduce", 2)
    assert batch["bytes"][0] == 2 * 50257 * 1280
    link_s = batch["bytes"][0] / max(link.bandwidth_bytes_per_s for link in run.cluster.device.links)
    assert 1.0 < times.latency_s[0] / link_s < 3.0
    step = predictor.training(run)
    assert step.parts_s[TIED] == pytest.approx(2 * times.latency_s[0] / 4)
    alone = Training.named(
        {"model": model, "cluster": some_gpus(per_node=1), **options, "engine": "torch-compiled"}
    ).resolve()
    assert TIED not in predictor.training(alone).parts_s


@pytest.mark.parametrize("told", FOUR_WAYS.values(), ids=FOUR_WAYS)
def test_more_bandwidth_is_never_slower(predictor: Predictor, told: dict[str, object]) -> None:
    """Where the host decides, no bandwidth does: a step of its dispatches is equal but for rounding."""

    def step_s(network: str, *changes: str) -> float:
        cluster = cluster_of(GPU, 2, 2, network, changes)
        return predictor.training(unhosted(small_run(cluster, **told))).latency_s

    base = "dram_bandwidth=3.35TB/s"
    usual = step_s("2 x 100Gb/s", base)
    assert step_s("2 x 400Gb/s", base) <= usual
    assert step_s("2 x 100Gb/s", "dram_bandwidth=5TB/s") <= usual
    assert step_s("2 x 100Gb/s", base, "links.nvlink=900GB/s") <= usual


def test_a_faster_network_shortens_what_waits_for_it(predictor: Predictor) -> None:
    slow, fast = (
        predictor.training(small_run(some_gpus(nodes=2, network=words), shard="zero3"))
        for words in ("10Gb/s", "400Gb/s")
    )
    assert slow.latency_s > 1.2 * fast.latency_s
    assert slow.exposed_s > 2.0 * fast.exposed_s


def test_memory_falls_with_what_is_shared(predictor: Predictor) -> None:
    cluster = some_gpus()

    def peak(**told: object) -> float:
        return predictor.training(small_run(cluster, **told)).peak_bytes

    kinds = [peak(shard=shard) for shard in ("none", "zero1", "zero2", "zero3")]
    assert kinds == sorted(kinds, reverse=True)
    assert kinds[0] > kinds[1] > kinds[3]
    alone = peak(shard="none")
    assert peak(tp=2, shard="none") < alone
    assert peak(pp=2, shard="none") < alone
    assert peak(cp=2, shard="none") < alone


@pytest.mark.parametrize("gpu", ["h100-sxm-80gb", "mi300x"])
def test_naming_the_trainer_narrows_the_interval_where_its_steps_were_measured(predictor: Predictor, gpu: str) -> None:
    place = cluster_of(gpu, 4)
    named, usual = (predictor.training(small_run(place, engine)) for engine in ("megatron-te", ""))
    assert named.latency_s == usual.latency_s
    assert ("engine" in named.assumed, "engine" in usual.assumed) == (False, True)
    if gpu == "h100-sxm-80gb":
        assert spread(named.doubts) < spread(usual.doubts)
    else:  # Steps were measured on GPUs of another vendor alone.
        assert named.doubts == usual.doubts


@pytest.mark.parametrize("told", FOUR_WAYS.values(), ids=FOUR_WAYS)
def test_intervals_enclose_and_errors_add_in_quadrature(predictor: Predictor, told: dict[str, object]) -> None:
    step = predictor.training(small_run(some_gpus(nodes=2, per_node=2), **told))
    assert step.interval[0] < step.latency_s < step.interval[1]
    total = hypot(*step.errors.values())
    assert log(step.interval[1] / step.latency_s) == pytest.approx(NORMAL_90 * total)
    assert log(step.latency_s / step.interval[0]) == pytest.approx(NORMAL_90 * total)
    assert sum(step.schedule.path_s.values()) == pytest.approx(step.latency_s)


def test_parts_of_a_step_are_shares_of_it(predictor: Predictor) -> None:
    step = predictor.training(small_run(some_gpus(), tp=2, pp=2))
    assert 0.0 < step.mfu < 1.0
    assert 0.0 < step.bubble < 1.0
    assert step.tokens_per_s == pytest.approx(step.run.tokens / step.latency_s)
    assert set(step.limiters) == set(step.parts_s)
    assert step.gpu_hours(1e9) == pytest.approx(4 * step.hours(1e9))


def scaled(predictor: Predictor, nodes: int) -> TrainingEstimate:
    """As many sequences for each replica, whatever the number of nodes."""
    cluster = cluster_of(GPU, 8, nodes, "8 x 400Gb/s")
    return predictor.training(small_run(cluster, tp=2, pp=2, micro_batches=8))


def test_eight_times_the_replicas_take_a_little_longer(predictor: Predictor) -> None:
    small, large = scaled(predictor, 16), scaled(predictor, 128)
    assert (small.cluster.devices, large.cluster.devices) == (128, 1024)
    assert small.latency_s <= large.latency_s < 1.5 * small.latency_s
    assert large.peak_bytes < small.peak_bytes
    assert large.tokens_per_s > 5 * small.tokens_per_s


def test_a_batch_of_runs_is_timed_as_each_alone(predictor: Predictor) -> None:
    """But for how closely the clock under a power limit is solved for."""
    cluster = some_gpus()
    runs = [small_run(cluster, **told, global_batch_size=16) for told in FOUR_WAYS.values()]
    together = timed(runs, predictor.on_cluster(cluster, runs[0].engine))
    for run, one in zip(runs, together, strict=True):
        alone = times_of(predictor, run)
        for name, value in vars(alone.times).items():
            assert vars(one.times)[name] == pytest.approx(value, rel=1e-6), name


WRONG: dict[str, tuple[dict[str, object], str]] = {
    "world": ({"tp": 3}, "tp 3 x pp 1 x cp 1 = 3 devices of a replica do not divide a cluster of 4"),
    "told world": ({"dp": 2}, "2 devices on a cluster of 4; dp 4 would fit"),
    "stages": ({"pp": 4, "vp": 4}, "4 stages of 4 chunks need as many layers: small has 8"),
    "interleaved": ({"pp": 4, "vp": 2, "global_batch_size": 6}, "6 micro-batches over 4 pipeline ranks"),
    "batch": ({"global_batch_size": 6}, "global batch 6 is no multiple of dp 4: 4 would be"),
    "no batch": ({"micro_batches": 0}, "without a batch: give global_batch_size"),
    "experts": ({"ep": 2}, "small has no experts that ep 2 ranks could share"),
    "sequence": ({"seq_len": 2047, "tp": 2}, "choose a seq_len of 2048"),
    "dtype": ({"dtype": "float8", "cluster": cluster_of("a100-sxm-80gb", 4)}, "does not compute in float8"),
    "optimizer": ({"optimizer": "lamb"}, "unknown optimizer 'lamb': one of none, sgd, adam"),
    "word": ({"shard": "zero4"}, "unknown shard 'zero4'; did you mean"),
    "field": ({"tensor": 4}, "unknown field 'tensor' of a training step"),
    "engine": ({"engine": "megatron"}, "unknown engine 'megatron'"),
}


@pytest.mark.parametrize(("told", "said"), WRONG.values(), ids=WRONG)
def test_mistakes_say_what_would_do(predictor: Predictor, told: dict[str, object], said: str) -> None:
    given = {"cluster": some_gpus(), **told}
    with pytest.raises((ModelError, DeviceError)) as caught:
        predictor.training(small_run(**given))
    assert said in str(caught.value)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_module_without_equal_layers_trains_in_the_dtype_of_its_weights(predictor: Predictor, dtype: str) -> None:
    import torch

    module = torch.nn.Linear(64, 64, dtype=getattr(torch, dtype))
    inputs = [torch.zeros(8, 64, dtype=getattr(torch, dtype))]
    two = cluster_of("h100-sxm-80gb", 2)
    run = Training.named({"model": module, "cluster": two, "global_batch_size": 2, "engine": "torch-eager"}).resolve(
        inputs=inputs
    )
    estimate = predictor.training(run)
    assert run.dtype == dtype
    assert estimate.latency_s > 0.0


def test_experts_that_no_ranks_exchange_tokens_for_hide_nothing(predictor: Predictor) -> None:
    step = times_of(predictor, small_run(overlap_experts=True))
    assert all((hidden == 0.0).all() for hidden in step.passes.hidden_experts_s(0.1).values())
