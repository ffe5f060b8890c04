"""Optimisations of training runs."""

from dataclasses import replace

import pytest

from neusight.api import Predictor
from neusight.devices import cluster_of, load_cluster
from neusight.distributed.exchanges import exchanged
from neusight.distributed.training_run import TrainingRun, usual_run
from neusight.errors import InapplicableError, NeusightError
from neusight.what_if import applied
from neusight.workloads.decoders.build import trained_program
from neusight.workloads.decoders.known import known_decoder
from neusight.workloads.decoders.recipes import Adapters

LLAMA = known_decoder("meta-llama/Llama-3.1-8B")


def torchtitan(nodes: int = 1, **given: object) -> TrainingRun:
    words = {"global_batch_size": 8 * nodes, "micro_batch_size": 1, "seq_len": 4096, **given}
    return usual_run(LLAMA, load_cluster("dgx-h100", nodes), words, "torchtitan-compiled")


def test_exchanges_beside_products_need_ranks_that_share_the_stream() -> None:
    with pytest.raises(InapplicableError, match="raise tp"):
        applied(torchtitan(), ["async-tp"])
    (after,) = applied(torchtitan(tp=4, sequence_parallel=True), ["async-tp"])
    assert after.plan.overlap_tp


def test_two_chunks_a_stage_need_a_pipeline() -> None:
    with pytest.raises(InapplicableError, match="no pipeline"):
        applied(torchtitan(), ["interleaving"])
    run = torchtitan(pp=2, global_batch_size=16)
    (after,) = applied(run, ["interleaving"])
    assert after == replace(run, plan=replace(run.plan, vp=2))


def test_recipes_of_float8_exclude_each_other() -> None:
    with pytest.raises(InapplicableError, match="exclude each other"):
        applied(torchtitan(), ["fp8-tensorwise", "fp8-rowwise"])


def on_one(**given: object) -> TrainingRun:
    words = {"global_batch_size": 2, "micro_batch_size": 2, "seq_len": 2048, "optimizer": "adamw", **given}
    run = usual_run(LLAMA, cluster_of("h200-sxm-141gb", 1), words, "torch-eager")
    return replace(run, engine=replace(run.engine, foreach_optimizer=False))


def test_moments_in_few_bits_take_their_bits_and_scales(predictor: Predictor) -> None:
    run = on_one()
    wide = predictor.training(run).memory_terms["optimizer"]
    for name, bytes_each in (("adam-8bit", 1 + 4 / 256), ("adam-4bit", 0.5 + 4 / 128)):
        (after,) = applied(run, [name])
        assert predictor.training(after).memory_terms["optimizer"] == pytest.approx(wide * bytes_each / 2)


def test_weights_stepped_in_the_backward_pass_leave_no_gradients_to_the_step(predictor: Predictor) -> None:
    run = applied(on_one(), ["checkpointing", "chunked-loss"])[-1]
    (after,) = applied(run, ["optimizer-in-backward"])
    before_bytes, after_bytes = predictor.training(run).peak_bytes, predictor.training(after).peak_bytes
    # Gradients have the bytes of weights; those of one layer, and logits, are there still.
    assert after_bytes < before_bytes - 0.5 * predictor.training(run).memory_terms["weights"]
    assert predictor.training(after).latency_s == pytest.approx(predictor.training(run).latency_s)


def test_activations_on_the_host_leave_two_layers_and_wait_for_the_link(predictor: Predictor) -> None:
    run = on_one()
    (after,) = applied(run, ["activation-offload"])
    before, moved = predictor.training(run), predictor.training(after)
    assert moved.memory_terms["activations"] < 4 / 32 * before.memory_terms["activations"]
    link = next(one for one in run.cluster.device.links if one.kind == "pcie")
    kept = sum(s.kept_bytes("none") for s in trained_program(LLAMA, run.local, run.engine).layers) * 32
    assert moved.latency_s >= max(before.latency_s, 2 * kept / link.bandwidth_bytes_per_s)


@pytest.mark.parametrize(("targets", "columns"), [(("query", "value"), 4096 + 1024), (("qkv",), 6144), ((), 0)])
def test_adapters_of_parts_of_a_projection_have_their_columns(targets: tuple[str, ...], columns: int) -> None:
    adapters = Adapters(rank=8, targets=targets)
    assert adapters.columns("qkv", "attention", {0: 4096, 1: 1024, 2: 1024}) == columns
    run = replace(on_one(), adapters=adapters)
    program = trained_program(LLAMA, run.local, run.engine)
    held = sum(each.number for each in program.layers[0].held if not each.frozen)
    products = [n for n in (4096, 1024, 1024) if columns == 6144] or ([4096, 1024] if columns else [])
    assert held == sum(8 * (4096 + n) for n in products)


def test_a_whole_matrix_of_factors_costs_a_product_more_and_scales_cost_none(predictor: Predictor) -> None:
    times = [predictor.training(applied(on_one(), [name])[-1]).latency_s for name in ("ia3", "lora", "loha")]
    assert times == sorted(times)
    with pytest.raises(InapplicableError, match="adapters already"):
        applied(applied(on_one(), ["lora"])[-1], ["ia3"])


def test_encoded_gradients_travel_in_their_bits() -> None:
    run = usual_run(
        LLAMA, load_cluster("dgx-h100", 2), {"global_batch_size": 16, "seq_len": 128, "shard": "none"}, "fsdp"
    )
    unit = trained_program(LLAMA, run.local, run.engine).layers[0]

    def sent(one: TrainingRun) -> tuple[str, float]:
        part = next(part for part in exchanged(unit, one) if part.group)
        return str(part.batch["op"][0]), float(part.batch["bytes"][0] * part.runs)

    signs, largest = (applied(run, [name])[-1] for name in ("gradient-1bit", "gradient-top-k"))
    whole = 4.0 * unit.parameters
    assert sent(run) == ("all_reduce", pytest.approx(whole))
    assert sent(signs) == ("all_reduce", pytest.approx(whole / 32))
    assert sent(largest) == ("all_gather", pytest.approx(16 * whole * 2 / 1000, rel=1e-3))
    assert [part.name for part in exchanged(unit, signs)][1:] == ["encode gradients", "decode gradients"]
    with pytest.raises(InapplicableError, match="shard none"):
        applied(torchtitan(), ["gradient-1bit"])


def several(**given: object) -> TrainingRun:
    words = {"global_batch_size": 16, "seq_len": 128, "shard": "none", **given}
    return usual_run(LLAMA, load_cluster("dgx-h100", 2), words, "fsdp")


def sums_of(run: TrainingRun) -> list[tuple[str, int, float]]:
    """Collectives of a layer's gradients: what, among how many, bytes."""
    unit = trained_program(LLAMA, run.local, run.engine).layers[0]
    parts = [part for part in exchanged(unit, run) if part.group]
    return [(str(p.batch["op"][0]), int(p.batch["ranks"][0]), float(p.batch["bytes"][0] * p.runs)) for p in parts]


def test_factors_of_gradients_have_their_columns() -> None:
    (after,) = applied(several(), ["powersgd"])
    h, f, kv = 4096, 14336, 1024
    apart, joined = (
        [(h, h), (h, kv), (h, kv), (h, h), (h, f), (h, f), (f, h)],
        [(h, h + 2 * kv), (h, h), (h, 2 * f), (f, h)],
    )
    factors = sum(4 * (m + n) for m, n in (joined if after.engine.joined_projections else apart))
    norms = 2 * h
    assert sums_of(after) == [("all_reduce", 16, pytest.approx(4.0 * (factors + norms), rel=1e-4))]


def test_sums_by_level_send_a_share_between_nodes() -> None:
    before, after = several(), applied(several(), ["sums-by-level"])[-1]
    ((_, _, whole),) = sums_of(before)
    stages = sums_of(after)
    assert [stage[:2] for stage in stages] == [("reduce_scatter", 8), ("all_reduce", 2), ("all_gather", 8)]
    assert [stage[2] for stage in stages] == pytest.approx([whole, whole / 8, whole], rel=1e-5)
    with pytest.raises(InapplicableError, match="one level"):
        applied(
            usual_run(LLAMA, load_cluster("dgx-h100"), {"global_batch_size": 8, "shard": "none"}, "fsdp"),
            ["blueconnect"],
        )


def test_adaptive_sums_read_both_halves_of_each_pair() -> None:
    after = applied(several(), ["adasum"])[-1]
    unit = trained_program(LLAMA, after.local, after.engine).layers[0]
    dots = next(part for part in exchanged(unit, after) if part.name == "dot products of gradients")
    assert dots.batch["read_bytes"][0] == pytest.approx(2 * 15 / 16 * 4.0 * unit.parameters)


def test_switches_that_reduce_need_a_network(predictor: Predictor) -> None:
    run = several(overlap_grad_reduce=False)
    after = applied(run, ["in-network-sums"])[-1]
    assert after.cluster.network is not None and after.cluster.network.reduces
    assert predictor.training(after).latency_s <= predictor.training(run).latency_s
    with pytest.raises(InapplicableError, match="no network"):
        applied(
            usual_run(LLAMA, load_cluster("dgx-h100"), {"global_batch_size": 8, "shard": "none"}, "fsdp"), ["panama"]
        )


def test_slices_by_priority_are_hidden_by_both_passes(predictor: Predictor) -> None:
    run = several(global_batch_size=16, seq_len=2048)
    after = applied(run, ["p3"])[-1]
    assert predictor.training(after).latency_s < predictor.training(run).latency_s
    with pytest.raises(InapplicableError, match="shard none"):
        applied(after, ["p3"])


def test_a_pipeline_without_flush_has_no_bubble(predictor: Predictor) -> None:
    run = torchtitan(pp=4, global_batch_size=8, seq_len=1024)
    before, after = (predictor.training(one) for one in (run, applied(run, ["pipemare"])[-1]))
    assert before.bubble > 0.05
    # The slowest stage alone decides.
    assert after.latency_s < before.latency_s * (1 - 0.5 * before.bubble)
    assert applied(run, ["no-flush"])[-1] == applied(run, ["pipemare"])[-1]


def test_products_of_four_bits_need_a_device_with_them() -> None:
    with pytest.raises(NeusightError, match="float4"):
        applied(torchtitan(), ["nvfp4"])
    run = usual_run(LLAMA, cluster_of("b200", 8), {"global_batch_size": 8, "seq_len": 1024}, "megatron-te")
    assert applied(run, ["nvfp4"])[-1].products == "nvfp4"


def test_muon_keeps_one_moment_of_matrices(predictor: Predictor) -> None:
    run = on_one()
    after = applied(run, ["muon"])[-1]
    before_bytes, after_bytes = (predictor.training(one).memory_terms["optimizer"] for one in (run, after))
    assert 0.5 * before_bytes < after_bytes < 0.65 * before_bytes
