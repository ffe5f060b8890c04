"""Optimisations of training runs."""

from dataclasses import replace

import pytest

from neusight.api import Predictor
from neusight.devices import cluster_of, load_cluster
from neusight.distributed.exchanges import exchanged
from neusight.distributed.training_run import TrainingRun, usual_run
from neusight.errors import InapplicableError
from neusight.what_if import applied
from neusight.workloads.decoders.build import trained_program
from neusight.workloads.decoders.known import known_decoder
from neusight.workloads.decoders.recipes import Adapters

LLAMA = known_decoder("meta-llama/Llama-3.1-8B")


def torchtitan(nodes: int = 1, **given: object) -> TrainingRun:
    words = {"global_batch": 8 * nodes, "micro_batch": 1, "seq_len": 4096, **given}
    return usual_run(LLAMA, load_cluster("dgx-h100", nodes), words, "torchtitan-compiled")


def test_exchanges_beside_products_need_ranks_that_share_the_stream() -> None:
    with pytest.raises(InapplicableError, match="raise tp"):
        applied(torchtitan(), ["async-tp"])
    (after,) = applied(torchtitan(tp=4, sequence_parallel=True), ["async-tp"])
    assert after.plan.overlap_tp


def test_two_chunks_a_stage_need_a_pipeline() -> None:
    with pytest.raises(InapplicableError, match="no pipeline"):
        applied(torchtitan(), ["interleaving"])
    run = torchtitan(pp=2, global_batch=16)
    (after,) = applied(run, ["interleaving"])
    assert after == replace(run, plan=replace(run.plan, vp=2))


def test_recipes_of_float8_exclude_each_other() -> None:
    with pytest.raises(InapplicableError, match="exclude each other"):
        applied(torchtitan(), ["fp8-tensorwise", "fp8-rowwise"])


def on_one(**given: object) -> TrainingRun:
    words = {"global_batch": 2, "micro_batch": 2, "seq_len": 2048, "optimizer": "adamw", **given}
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
    run = usual_run(LLAMA, load_cluster("dgx-h100", 2), {"global_batch": 16, "seq_len": 128, "shard": "none"}, "fsdp")
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
