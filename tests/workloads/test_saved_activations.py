"""What units of a decoder keep for their backward pass, against formulas of papers."""

from dataclasses import replace
from typing import Any

import pytest

from neusight.engines import ENGINES, Engine, engine_named
from neusight.errors import ModelError
from neusight.workloads.decoders.build import trained_program
from neusight.workloads.decoders.decoder import Decoder, Prediction
from neusight.workloads.decoders.layers import (
    CrossAttention,
    Experts,
    FeedForward,
    LatentAttention,
    Layer,
    Norm,
    SelfAttention,
    StateSpace,
)
from neusight.workloads.decoders.rank import FLOAT_BYTES
from neusight.workloads.decoders.shares import Local

MEGATRON, FSDP = ENGINES["megatron-te"], ENGINES["fsdp"]
S, B, H, A = 256, 2, 512, 8
UNFUSED = replace(MEGATRON, attention="eager", attention_dropout=True, hidden_dropout=True)
GPT = Layer(
    attention=SelfAttention(heads=A, kv_heads=A, head_dim=H // A),
    feed_forward=FeedForward(ffn=4 * H, gated=False),
    norm=Norm(op="layer_norm", weights=2),
)
SBH = S * B * H
SCORES = A * S * S * B
STATISTICS = 2 * 2 * FLOAT_BYTES * S * B  # mean and deviation of a row, of two norms: left out by the paper


def local(**shared: Any) -> Local:
    return Local(**({"batch": B, "seq_len": S} | shared))


def kept(layer: Layer, of: Local, engine: Engine = UNFUSED, recompute: str = "none") -> float:
    """Of a model that has the layer once."""
    decoder = Decoder(
        name="m", family="m", hidden=H, vocab=128, tied=False, max_len=S, layers=((layer, 1),), order=(0,)
    )
    return trained_program(decoder, of, engine).layers[0].kept_bytes(recompute)


def test_a_layer_of_gpt_keeps_what_the_paper_counts() -> None:
    """Korthikanti et al. 2022, equation 1: s b h (34 + 5 a s / h)."""
    assert kept(GPT, local()) == 34 * SBH + 5 * SCORES + STATISTICS


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_tensor_parallel_ranks_share_all_but_ten(tp: int) -> None:
    """Equation 2: s b h (10 + 24 / t + 5 a s / (h t))."""
    assert kept(GPT, local(tp=tp)) == pytest.approx(SBH * (10 + 24 / tp) + 5 * SCORES / tp + STATISTICS)


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_sequence_parallel_ranks_share_everything(tp: int) -> None:
    """Equation 4: s b h / t (34 + 5 a s / h)."""
    assert kept(GPT, local(tp=tp, sequence_parallel=True)) == pytest.approx(kept(GPT, local()) / tp)


def test_selective_recomputation_drops_the_core_of_attention() -> None:
    """Equation 6: 34 s b h."""
    assert kept(GPT, local(), recompute="selective") == 34 * SBH + STATISTICS


def test_selection_by_operator_keeps_half_of_the_products() -> None:
    """The input, the first and third of what gives 3 h, h, 4 h and h columns, and attention's output, in 16 bits."""
    assert kept(GPT, local(), recompute="operators") == 2 * SBH * (1 + 3 + 4 + 1)


def test_fused_attention_keeps_a_normaliser_a_row_and_flash_its_output_twice() -> None:
    cudnn = kept(GPT, local(), replace(UNFUSED, attention="cudnn"))
    assert cudnn == 34 * SBH + STATISTICS + FLOAT_BYTES * A * S * B
    assert kept(GPT, local(), replace(UNFUSED, attention="flash")) == cudnn + 2 * SBH
    assert kept(GPT, local(), replace(UNFUSED, attention="flash", sequence_first=False)) == cudnn


def test_without_dropout_masks_are_not_kept() -> None:
    bare = replace(UNFUSED, attention_dropout=False, hidden_dropout=False)
    assert kept(GPT, local()) - kept(GPT, local(), bare) == 2 * SBH + 3 * SCORES


def test_context_parallel_ranks_share_the_sequence() -> None:
    fused = replace(UNFUSED, attention="cudnn")
    assert kept(GPT, local(cp=4), fused) == pytest.approx(kept(GPT, local(), fused) / 4)


def test_inputs_of_float8_products_take_a_byte() -> None:
    """Of 34: into query and value 2, into the output's 2, into up 2 and into down 8 become half."""
    assert kept(GPT, local()) - kept(GPT, local(products="float8")) == (2 + 2 + 2 + 8) / 2 * SBH


def test_an_unfused_gate_keeps_what_it_let_through() -> None:
    gated = replace(GPT, feed_forward=FeedForward(ffn=4 * H, gated=True))
    assert kept(gated, local(), FSDP) - kept(gated, local(), replace(FSDP, keeps_activated_gate=False)) == 8 * SBH


def test_one_expert_that_all_take_keeps_a_dense_layer_and_what_weighs_it() -> None:
    even = replace(UNFUSED, expert_load=1.0)
    experts = Experts(expert=FeedForward(ffn=4 * H, gated=False), experts=1, top_k=1)
    extra = kept(replace(GPT, feed_forward=experts), local(), even) - kept(GPT, local(), even)
    scores = 2 * FLOAT_BYTES * S * B
    assert extra == scores + 2 * SBH + 8 * SBH  # rows as sent to the expert, activated before the weight


@pytest.mark.parametrize("shared", [{"ep": 4}, {"tp": 4, "etp": 1, "ep": 4, "sequence_parallel": True}])
def test_experts_of_more_choices_keep_in_proportion(shared: dict[str, Any]) -> None:
    def routed(top_k: int) -> float:
        experts = Experts(expert=FeedForward(ffn=H), experts=8, top_k=top_k)
        return kept(replace(GPT, feed_forward=experts), local(**shared))

    once = routed(2) - routed(1)
    assert once > 0
    assert routed(4) - routed(1) == pytest.approx(3 * once)


def test_latent_attention_keeps_more_than_its_latents() -> None:
    mixer = LatentAttention(heads=8, q_rank=64, kv_rank=32, nope_dim=32, rope_dim=16, value_dim=32)
    whole, shared = (kept(replace(GPT, attention=mixer), local(tp=tp), MEGATRON) for tp in (1, 2))
    assert shared < whole
    assert whole > 2 * S * B * 8 * (2 * 48 + 32)  # queries, keys and values of every head


def test_an_unknown_framework_is_told_the_nearest() -> None:
    with pytest.raises(ModelError, match="unknown engine 'megatro'; did you mean megatron"):
        engine_named("megatro")


def test_mamba_keeps_what_its_products_give_and_its_scan() -> None:
    """The norm's input and result, gate, input, B, C and step, the scan's result, that before its norm and after it:
    2 s b (2 h + 2 d + 2 g n + a) + 6 s b d, with a mean and a deviation of each row.
    """
    mixer = StateSpace(heads=16, head_dim=64, state=32, groups=2)
    inner, products = 1024, 2 * 1024 + 2 * 2 * 32 + 16
    layer = Layer(attention=mixer, norms=1, norm=GPT.norm)
    assert kept(layer, local(), MEGATRON) == 2 * S * B * (2 * H + products + 3 * inner) + STATISTICS / 2


def test_latent_attention_keeps_latents_and_what_attention_takes() -> None:
    """Sequence-parallel ranks keep latents of their own rows; queries, keys and values are put together anew."""
    sizes = {"heads": A, "q_rank": 96, "kv_rank": 64, "nope_dim": 32, "rope_dim": 16, "value_dim": 32}
    plain, normed = (LatentAttention(**sizes, normed=normed) for normed in (False, True))  # type: ignore[arg-type]
    engine = replace(MEGATRON, attention="cudnn")
    stream, heads = 2 * 2 * S * B * H / 2, A / 2 * S * B
    core = heads * (2 * (2 * 48 + 32) + 2 * 32 + FLOAT_BYTES)
    of = local(tp=2, sequence_parallel=True)
    alone = kept(Layer(attention=plain, norms=1, norm=GPT.norm), of, engine)
    assert alone == stream + STATISTICS / 4 + 2 * S * B / 2 * (96 + 64) + core
    assert kept(Layer(attention=normed, norms=1, norm=GPT.norm), of, engine) - alone == 2 * S * B / 2 * (96 + 64)


def test_layers_over_an_encoder_keep_its_keys_and_scores_of_all_of_them() -> None:
    """Beside GPT's: 9 s b h of stream, query, output and dropout, keys and values 4 s' b h, scores 5 a s s' b."""
    cross = CrossAttention(heads=A, kv_heads=A, head_dim=H // A)
    source, decoder = 2 * S, Decoder(
        name="m", family="m", hidden=H, vocab=128, tied=False, max_len=S, order=(0, 1),
        layers=((replace(GPT, encodes=True), 1), (replace(GPT, cross=cross, norms=3), 1)),
    )  # fmt: skip
    encoder, over = trained_program(decoder, local(source_len=source), UNFUSED).layers
    assert encoder.kept_bytes("none") == kept(GPT, Local(batch=B, seq_len=source))
    more = 9 * SBH + 4 * source * B * H + 5 * A * S * source * B + STATISTICS / 2
    assert over.kept_bytes("none") - kept(GPT, local()) == more
    alike = trained_program(decoder, local(), UNFUSED)
    assert alike.layers[1].saved == trained_program(decoder, local(source_len=S), UNFUSED).layers[1].saved


def test_modules_that_are_computed_again_are_not_kept() -> None:
    """A norm's result where no product has the norm in its kernel; all of a mixture but the stream before its norm; of
    its experts what the activation gives, weighted and not.
    """
    experts = Experts(expert=FeedForward(ffn=256, gated=True), experts=4, top_k=2)
    layer = Layer(feed_forward=experts, norms=1)
    whole = kept(layer, local(), MEGATRON)
    rows = MEGATRON.expert_load * S * B * 2
    assert whole - kept(layer, local(), MEGATRON, "moe_act") == pytest.approx(2 * 2 * rows * 256)
    assert whole - kept(layer, local(), MEGATRON, "layernorm") == 2 * SBH
    assert kept(layer, local(), MEGATRON, "layernorm+moe") == 2 * SBH + STATISTICS / 4
    assert kept(GPT, local(), MEGATRON, "layernorm") == kept(GPT, local(), MEGATRON)


def test_a_depth_of_prediction_holds_a_projection_two_norms_more_and_keeps_its_logits() -> None:
    """2 h² and three norms beside its layer's, logits in 32 bits, one embedding where the head is not tied."""
    one = Decoder(name="m", family="m", hidden=H, vocab=128, tied=False, max_len=S, layers=((GPT, 1),), order=(0,))
    both = replace(one, prediction=Prediction(layers=(GPT,), depths=2))
    ends = [trained_program(model, local(), MEGATRON).after for model in (one, both)]
    layer = GPT.parameters(H)
    assert ends[1].parameters - ends[0].parameters == 2 * (layer + 2 * H * H + 3 * H)
    assert ends[1].tied_parameters == 128 * H
    repeated = replace(both, prediction=Prediction(layers=(GPT,), depths=2, repeated=True))
    again = trained_program(repeated, local(), MEGATRON).after
    assert again.parameters - ends[0].parameters == layer + 2 * H * H + 3 * H
    assert again.kept_bytes("none") == ends[1].kept_bytes("none") > ends[0].kept_bytes("none") + 2 * 4 * S * B * 128
