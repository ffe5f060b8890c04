"""Memory of ranks in training, against formulas and invariants; against measured peaks where the data are."""

import os
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from neusight import Predictor
from neusight.devices import load_device
from neusight.engines import ENGINES
from neusight.errors import ModelError
from neusight.measured import evaluate, summarise
from neusight.plans.fits import LENGTH_STEP, largest_micro_batch, longest_sequence, verdict
from neusight.plans.memory import PARTS, RankMemory, memory_of
from neusight.plans.stages import RankParameters, local_of, stage_weights, stages_of, waiting
from neusight.plans.states import TrainingStep, states_of, workspace_bytes
from neusight.requests import Plan
from neusight.workloads.decoders.build import trained_program
from neusight.workloads.decoders.decoder import Decoder
from neusight.workloads.decoders.layers import Experts, FeedForward, Layer, SelfAttention
from neusight.workloads.decoders.shares import Local

MIB = 2**20
VOCAB = 32 * 1024
MEGATRON, FSDP = ENGINES["megatron-te"], ENGINES["fsdp"]
A100, H100 = load_device("a100-sxm-80gb"), load_device("h100-sxm-80gb")
LAYER = Layer(attention=SelfAttention(heads=16, kv_heads=16, head_dim=64), feed_forward=FeedForward(ffn=4096))
TRAINING = TrainingStep(seq_len=1024)


def decoder(depth: int = 8, layer: Layer = LAYER, **fields: Any) -> Decoder:
    return Decoder(
        **(
            {"name": "m", "family": "m", "hidden": 1024, "vocab": VOCAB, "tied": False, "max_len": 4096}
            | {"layers": ((layer, depth),), "order": (0,) * depth}
            | fields
        )
    )


def plan(**fields: Any) -> Plan:
    batches = fields.pop("micro_batches", 8)
    each = fields.get("dp", 1) * fields.get("micro_batch_size", 1)
    return Plan(**({"global_batch_size": batches * each} | fields))


def share(of: Plan) -> Local:
    return local_of(of, TRAINING.seq_len, TRAINING.dtype, TRAINING.products)


def held_parameters(model: Decoder, of: Plan) -> float:
    """On one rank of each stage."""
    program = trained_program(model, share(of), MEGATRON)
    return sum(RankParameters.of(stage_weights(stage, program)).total for stage in stages_of(model.order, of))


def ranks(of: Plan, training: TrainingStep = TRAINING, model: Decoder | None = None) -> dict[str, RankMemory]:
    return {rank.rank: rank for rank in memory_of(model or decoder(), of, training, A100)}


def test_ranks_hold_the_vocabulary_as_the_engine_pads_it() -> None:
    """To a multiple of 128 on each tensor-parallel rank (``--make-vocab-size-divisible-by``), embedding and head."""
    odd, of = decoder(vocab=VOCAB + 1), plan(tp=4)
    assert held_parameters(odd, of) - held_parameters(decoder(), of) == 2 * 128 * odd.hidden


def test_one_rank_keeps_eighteen_bytes_a_parameter() -> None:
    """2 of weights, 4 of gradients, 4 of their float32 copy, 8 of Adam's moments (Rajbhandari et al. 2020 with float32
    gradients)."""
    only = ranks(plan())["only"]
    parameters = decoder().parameters
    assert (only.weights, only.gradients, only.optimizer) == (2 * parameters, 4 * parameters, 12 * parameters)
    assert only.total == sum(only.parts.values())


def test_weights_in_few_bits_are_those_of_matrices_and_may_stand_beside_wide_ones() -> None:
    """8 bits as they are and transposed; embeddings stay wide (Megatron-LM, ``--fp8-param-gather``)."""
    parameters = RankParameters(dense=100.0, dense_matrices=60.0)
    narrow = replace(TRAINING, products="fp8")
    beside = replace(narrow, engine=replace(MEGATRON, wide_weights=True))
    assert states_of(parameters, plan(), narrow).weights == 2 * 60 + 2 * 40
    assert states_of(parameters, plan(), beside).weights == (2 + 2) * 60 + 2 * 40


def test_graphs_are_allocated_while_they_are_captured_and_lie_in_pools_later() -> None:
    """Of attention alone: everything but feed-forwards; of both, all that layers keep."""
    eager, attention, both = (
        ranks(plan(), replace(TRAINING, graphed=of))["only"] for of in ((), ("attn",), ("attn", "mlp"))
    )
    assert eager.allocated == eager.total == attention.total == both.total
    assert 0 < attention.pooled_bytes < both.pooled_bytes == eager.activations
    assert attention.captured_bytes < both.captured_bytes == eager.total
    assert attention.allocated == max(attention.captured_bytes, attention.total - attention.pooled_bytes)


def test_muon_keeps_one_moment_of_matrices_and_two_of_all_else() -> None:
    """Shared among replicas as Adam's are (Megatron Core, ``LayerWiseDistributedOptimizer``)."""
    parameters = RankParameters(dense=100.0, dense_matrices=60.0)
    muon = replace(TRAINING, optimizer="muon")
    assert states_of(parameters, plan(), muon).optimizer == 4 * 100 + 4 * 60 + 8 * 40
    assert states_of(parameters, plan(dp=4, shard="zero1"), muon).optimizer == (4 * 100 + 4 * 60 + 8 * 40) / 4
    matrices = sum(12 * 1024**2 * count for _, count in decoder().layers)
    adam, less = (ranks(plan(), training)["only"].optimizer for training in (TRAINING, muon))
    assert adam - less == pytest.approx(4 * matrices, rel=0.4)


@pytest.mark.parametrize("shard", ["none", "zero1", "zero3"])
def test_plain_pytorch_keeps_eight_bytes_a_parameter(shard: str) -> None:
    """Weights, gradients and both of Adam's moments in the module's dtype, without a float32 copy."""
    training = TrainingStep(seq_len=1024, engine=ENGINES["torch-eager"])
    only = ranks(plan(dp=2, shard=shard, gradient_dtype="bfloat16"), training)["only"]
    whole = 2 * decoder().parameters
    sharded, stepped = whole / 2 if shard == "zero3" else whole, whole if shard == "none" else whole / 2
    assert (only.weights, only.gradients, only.optimizer) == (sharded, sharded, 2 * stepped)
    assert tuple(only.parts) == PARTS


@pytest.mark.parametrize(
    ("shard", "expected"), [("none", (2, 4, 12)), ("zero1", (2, 4, 3)), ("zero2", (2, 1, 3)), ("zero3", (1, 1, 2))]
)
def test_stages_of_zero_share_among_replicas(shard: str, expected: tuple[float, ...]) -> None:
    """Of 4 replicas; FSDP's weights are float32 and their own master."""
    states = states_of(RankParameters(dense=100.0), plan(dp=4, shard=shard), TRAINING)
    assert (states.weights, states.gradients, states.optimizer) == tuple(100.0 * each for each in expected)


def test_states_of_experts_are_shared_among_fewer() -> None:
    """8 ranks hold each dense parameter; experts spread over 4 have 2 replicas."""
    of = plan(dp=8, ep=4, shard="zero1")
    assert states_of(RankParameters(expert=100.0), of, TRAINING).optimizer == pytest.approx(12 * 100 / 2)
    assert states_of(RankParameters(dense=100.0), of, TRAINING).optimizer == pytest.approx(12 * 100 / 8)


def test_hsdp_shares_within_a_group() -> None:
    narrow, wide = (states_of(RankParameters(dense=100.0), plan(dp=64, shard=s), TRAINING) for s in ("zero3", "hsdp"))
    assert wide.weights == 8 * narrow.weights
    told = states_of(RankParameters(dense=100.0), plan(dp=64, shard="hsdp", shard_group=16), TRAINING)
    assert told.weights == 4 * narrow.weights


def test_gradients_in_sixteen_bits_are_cast_at_the_step() -> None:
    states = states_of(RankParameters(dense=100.0), plan(gradient_dtype="bfloat16"), TRAINING)
    assert (states.gradients, states.cast) == (200.0, 400.0)
    assert states_of(RankParameters(dense=100.0), plan(), TRAINING).cast == 0.0


def test_an_optimizer_on_the_host_leaves_weights_and_gradients() -> None:
    states = states_of(RankParameters(dense=100.0), plan(offload="optimizer"), TRAINING)
    assert (states.weights, states.gradients, states.optimizer) == (200.0, 400.0, 0.0)


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (4, 2), (2, 4)])
def test_ranks_hold_the_model_once(tp: int, pp: int) -> None:
    """Norms are on each of the ``tp`` ranks; all else is held once."""
    model, of = decoder(), plan(tp=tp, pp=pp)
    held = held_parameters(model, of)
    norms = (2 * 8 + 1) * model.hidden
    assert tp * held == pytest.approx(model.parameters + (tp - 1) * norms)


def test_first_and_last_stage_keep_a_tied_embedding_each() -> None:
    model = decoder(tied=True)
    of = plan(pp=2)
    held = held_parameters(model, of)
    assert held == model.parameters + model.vocab * model.hidden


@pytest.mark.parametrize("pp", [2, 4, 8])
def test_one_forward_one_backward_waits_for_the_stages_behind(pp: int) -> None:
    of = plan(pp=pp, micro_batches=16)
    assert [waiting(stage, of) for stage in stages_of(decoder().order, of)] == [(pp - at,) for at in range(pp)]


def test_no_more_micro_batches_wait_than_there_are() -> None:
    of = plan(pp=8, micro_batches=3)
    assert [sum(waiting(stage, of)) for stage in stages_of(decoder().order, of)] == [3, 3, 3, 3, 3, 3, 2, 1]


def test_gpipe_keeps_all_and_zero_bubbles_a_pipeline_full() -> None:
    stages = stages_of(decoder().order, plan(pp=4))
    assert {waiting(stage, plan(pp=4, schedule="gpipe")) for stage in stages} == {(8,)}
    assert {waiting(stage, plan(pp=4, schedule="zero-bubble")) for stage in stages} == {(4,)}


def test_interleaving_waits_for_twice_the_stages_behind_and_all_but_one_chunk() -> None:
    """Narayanan et al. 2021: 2 (p - i - 1) + (v - 1) p + 1 chunks."""
    of = plan(pp=4, vp=2, micro_batches=16)
    counts = [waiting(stage, of) for stage in stages_of(decoder().order, of)]
    assert [sum(each) for each in counts] == [2 * (3 - at) + 4 + 1 for at in range(4)]
    assert counts[3] == (4, 1)
    assert waiting(stages_of(decoder().order, of)[3], of, group=5) == (5, 1)


def test_chunks_of_a_stage_lie_apart() -> None:
    model = decoder(layers=((LAYER, 4), (replace(LAYER, norms=4), 4)), order=(0, 0, 0, 0, 1, 1, 1, 1))
    assert stages_of(model.order, plan(pp=2, vp=2))[0].chunks == ((0, 0), (1, 1))


def test_layers_over_go_to_the_middle() -> None:
    assert [len(stage.kinds) for stage in stages_of(decoder(10).order, plan(pp=4))] == [2, 3, 3, 2]
    # Embedding and loss count as layers where there are as many chunks: 126 of Llama-3.1-405B in 16 x 8.
    assert [len(stage.kinds) for stage in stages_of(decoder(10).order, plan(pp=4, vp=3))] == [2, 3, 3, 2]
    assert [len(s.kinds) for s in stages_of(decoder(10).order, plan(pp=4), (1, 4, 4, 1))] == [1, 4, 4, 1]


@pytest.mark.parametrize(("pp", "layers"), [(16, ()), (2, (4, 5)), (2, (8,))])
def test_layers_that_are_not_the_models_are_refused(pp: int, layers: tuple[int, ...]) -> None:
    with pytest.raises(ModelError, match="layers"):
        stages_of(decoder().order, plan(pp=pp), layers)


def test_the_first_rank_keeps_one_layers_activations_for_each_micro_batch() -> None:
    """Without head and embedding, activations of stage i are (p - i) times those of one micro-batch."""
    found = ranks(plan(pp=4))
    ids = 16 * 1024
    middle = found["middle"].activations / 3
    assert found["first"].activations == pytest.approx(4 * (middle + ids))


def test_logits_take_two_bytes_and_four_for_the_loss() -> None:
    only = ranks(plan())["only"]
    assert only.moment == "loss"
    assert only.loss == 6 * 1024 * VOCAB
    assert ranks(plan(tp=4))["only"].loss == only.loss / 4


def test_full_recomputation_keeps_inputs_of_layers_alone() -> None:
    """s b h 2 bytes a layer (Korthikanti et al. 2022, section 5)."""
    stream = 2 * 1024 * 1024
    kept = {depth: ranks(plan(recompute="full"), model=decoder(depth))["only"].activations for depth in (8, 9)}
    assert kept[9] - kept[8] == stream


def test_recomputation_of_some_layers_trades_exactly() -> None:
    none, some, most, full = (
        ranks(plan(recompute=word, recompute_layers=count))["only"].activations
        for word, count in (("none", 0), ("full", 2), ("full", 4), ("full", 0))
    )
    assert none - some == pytest.approx(some - most)
    assert none - full == pytest.approx(4 * (none - some))


@pytest.mark.parametrize("degree", ["tp", "pp", "cp"])
def test_more_ranks_never_need_more(degree: str) -> None:
    needed = [max(r.total for r in ranks(plan(**{degree: n, "micro_batches": 1})).values()) for n in (1, 2, 4, 8)]
    assert needed == sorted(needed, reverse=True)


@pytest.mark.parametrize("shard", ["zero1", "zero2", "zero3"])
def test_more_replicas_never_need_more(shard: str) -> None:
    needed = [ranks(plan(dp=n, shard=shard))["only"].total for n in (1, 2, 4, 64)]
    assert needed == sorted(needed, reverse=True)


def test_experts_are_spread() -> None:
    layer = replace(LAYER, feed_forward=Experts(expert=FeedForward(ffn=512), experts=8, top_k=2))
    one, four = (ranks(plan(dp=4, ep=ep), model=decoder(layer=layer))["only"].weights for ep in (1, 4))
    assert one - four == pytest.approx(2 * 8 * (8 - 2) * 3 * 512 * 1024)


def test_experts_need_ranks_to_be_spread_over() -> None:
    layer = replace(LAYER, feed_forward=Experts(expert=FeedForward(ffn=512), experts=8, top_k=2))
    with pytest.raises(ModelError, match="ep x etp = 8 does not divide dp x cp x tp = 2"):
        ranks(plan(dp=2, ep=8), model=decoder(layer=layer))


def test_fsdp_gathers_two_layers_and_what_is_outside_of_layers() -> None:
    """Two layers' weights and one's gradient in 16 bits, that gradient in 32, embedding, norm and head in 16."""
    training = replace(TRAINING, engine=FSDP)
    layer, outside = LAYER.parameters(1024), 2 * VOCAB * 1024 + 1024
    assert ranks(plan(dp=8, shard="zero3"), training)["only"].communication == (3 * 2 + 4) * layer + 2 * outside


def test_programs_that_gather_matrices_hold_two_of_them_and_one_gradient() -> None:
    """The widest is the embedding: twice in 16 bits, its gradient in 16 and in 32."""
    training = replace(TRAINING, engine=replace(FSDP, gathers_matrices=True))
    assert ranks(plan(dp=8, shard="zero3"), training)["only"].communication == (3 * 2 + 4) * VOCAB * 1024


def test_stages_keep_a_buffer_of_each_chunk_that_they_receive_and_one_that_they_send() -> None:
    """2 bytes of 1024 x 1024 values in and out, of each of the chunks; nothing without a pipeline."""
    stream = 2 * 1024 * 1024
    assert {rank.communication for rank in ranks(plan(pp=2)).values()} == {2 * stream}
    assert {rank.communication for rank in ranks(plan(pp=2, vp=2)).values()} == {4 * stream}
    assert ranks(plan())["only"].communication == 0.0


def test_logits_of_all_micro_batches_wait_where_all_forward_passes_come_first() -> None:
    """4 bytes of a logit of each but the one whose loss is computed, which has 6 (``held_logit_bytes``,
    ``logit_bytes``)."""
    logits = 1024 * VOCAB
    for schedule, waiting_batches in (("1f1b", 0), ("gpipe", 7)):
        last = ranks(plan(pp=2, schedule=schedule))["last"]
        computed = MEGATRON.logit_bytes if last.moment == "loss" else 0.0
        assert last.loss == (waiting_batches * MEGATRON.held_logit_bytes + computed) * logits


def test_what_layers_keep_on_the_host_is_on_the_device_for_two_of_them() -> None:
    """Beside what the head keeps, whose backward pass comes first; none of it goes while layers pass."""
    program = trained_program(decoder(), share(plan()), MEGATRON)
    offloading = replace(TRAINING, engine=replace(MEGATRON, offloads_activations=True))
    only = ranks(plan(), offloading)["only"]
    kept = 2 * program.layers[0].kept_bytes("none") + program.after.kept_bytes("none")
    assert only.moment != "step" and only.activations == kept


def test_layers_behind_the_widest_have_freed_what_they_kept_unless_it_is_on_the_host() -> None:
    wide = replace(LAYER, feed_forward=FeedForward(ffn=65536))
    model = decoder(vocab=256, layers=((wide, 1), (LAYER, 1)), order=(0, 1))
    program = trained_program(model, share(plan()), MEGATRON)
    first, second = (layer.kept_bytes("none") for layer in program.layers)
    ends = program.before.kept_bytes("none") + program.after.kept_bytes("none")
    only = ranks(plan(), model=model)["only"]
    assert only.moment == "backward" and only.activations == first + ends
    offloading = replace(TRAINING, engine=replace(MEGATRON, offloads_activations=True))
    held = ranks(plan(), offloading, model)["only"].activations
    assert held == 2 * max(first, second) + program.after.kept_bytes("none")


def test_deferred_heads_keep_the_gradient_of_their_logits() -> None:
    """And what the head keeps, of each micro-batch whose head's weights get theirs later."""
    program = trained_program(decoder(), share(plan()), MEGATRON)
    deferring = replace(TRAINING, engine=replace(MEGATRON, deferred_heads=3))
    more = ranks(plan(), deferring)["only"].activations - ranks(plan())["only"].activations
    assert more == 3 * (program.after.kept_bytes("none") + 2 * 1024 * VOCAB)


def test_a_dense_mask_is_a_byte_of_each_pair_of_tokens() -> None:
    masked = replace(TRAINING, engine=replace(MEGATRON, dense_mask=True))
    for size in (1, 2):
        of = plan(micro_batch_size=size)
        assert ranks(of, masked)["only"].temporary - ranks(of)["only"].temporary == size * 1024**2


def test_workspaces_of_libraries() -> None:
    """A handle for each of two threads; Transformer Engine's own; five of those for experts side by side."""
    assert workspace_bytes(A100, MEGATRON) == (2 * 8.125 + 4) * MIB
    assert workspace_bytes(H100, MEGATRON) == (2 * 32 + 32) * MIB
    assert workspace_bytes(A100, replace(MEGATRON, deterministic=True)) == (2 * 32 + 4) * MIB
    assert workspace_bytes(H100, MEGATRON, experts=True) == (2 * 32 + 5 * 32) * MIB
    assert workspace_bytes(A100, FSDP) == 2 * 8.125 * MIB
    assert workspace_bytes(H100, FSDP, backward=False) == 32 * MIB


def test_the_largest_that_fits_fits_and_the_next_does_not() -> None:
    tried = []

    def spare_bytes(of: Plan, seq_len: int = TRAINING.seq_len) -> float:
        tried.append(of)
        return verdict(memory_of(decoder(), of, replace(TRAINING, seq_len=seq_len), A100), A100).spare_bytes

    batch = largest_micro_batch(plan(), spare_bytes)
    assert len(tried) < 12
    assert spare_bytes(plan(micro_batch_size=batch)) >= 0.0 > spare_bytes(plan(micro_batch_size=batch + 1))
    length = longest_sequence(plan(), lambda tokens: spare_bytes(plan(), tokens))
    assert spare_bytes(plan(), length) >= 0.0 > spare_bytes(plan(), length + LENGTH_STEP)


@pytest.mark.parametrize("largest", [0, 1, 2, 3, 100, 4097, 2**20])
@pytest.mark.parametrize("curve", [lambda n: n, lambda n: n * n, lambda n: n**0.5, lambda n: n // 7 * 7 + n / 1e3])
def test_largest_micro_batch_is_found_on_any_rising_curve(curve: Callable[[float], float], largest: int) -> None:
    def spare_bytes(of: Plan) -> float:
        return curve(largest + 0.5) - curve(of.micro_batch_size) if of.micro_batch_size <= 2 * largest else -inf

    tried = largest_micro_batch(plan(), spare_bytes)
    assert spare_bytes(plan(micro_batch_size=max(1, tried))) >= 0.0 or tried == 0
    assert spare_bytes(plan(micro_batch_size=tried + 1)) < 0.0


def test_a_verdict_names_the_rank_that_decides() -> None:
    small = load_device("t4")
    found = verdict(memory_of(decoder(96), plan(pp=2), TRAINING, small), small)
    assert str(found).startswith(f"does not fit: the {found.rank} rank needs ")


def test_an_unknown_optimizer_is_refused() -> None:
    with pytest.raises(ModelError, match="unknown optimizer 'adem'; did you mean adam"):
        memory_of(decoder(), plan(), replace(TRAINING, optimizer="adem"), A100)


DATA = os.environ.get("NEUSIGHT_DATA")
measured = pytest.mark.skipif(not DATA, reason="needs NEUSIGHT_DATA")


@measured
def test_peaks_of_measured_runs(predictor: Predictor) -> None:
    """Small models with every flag of Megatron-LM."""
    evaluation = evaluate([Path(DATA or "") / "training" / "megatron-lm-tests.parquet"], predictor)
    (peaks,) = summarise(evaluation.columns(["quantity"]), ["quantity"])
    assert (peaks["quantity"], peaks["answered"]) == ("peak_allocated_bytes", 100.0)
    assert peaks["mean"] < 1.5
