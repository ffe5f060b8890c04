"""Units of trained decoders against formulas: work, shares of ranks, what is run again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from trained_units import (
    GPT,
    LENGTH,
    LLAMA,
    MIXTURE,
    PRODUCTS,
    SEQUENCES,
    TOKENS,
    built,
    every,
    expert_parameters,
    flops,
    parameters,
    total,
)

from neusight.devices import load_device
from neusight.engines import ENGINES, engine_named
from neusight.errors import ModelError
from neusight.kernels.work import work_of
from neusight.transforms.recompute import recomputed
from neusight.workloads.decoders.decoder import Decoder
from neusight.workloads.decoders.layers import Experts, FeedForward, SelfAttention

TRAINING = [name for name, engine in ENGINES.items() if engine.server is None]
PAIRS = SEQUENCES * LENGTH * (LENGTH + 1) / 2
"""Of a query and a key that it sees, itself among them, of one head."""


def multiplied(decoder: Decoder) -> int:
    """Weights with which every token is multiplied: all of the matrices but the embedding and experts not taken."""
    inside = 0
    for layer, count in decoder.layers:
        assert isinstance(layer.attention, SelfAttention)
        weights = sum(p.weights for p in layer.attention.projections(decoder.hidden))
        fed = layer.feed_forward
        if isinstance(fed, Experts):
            weights += fed.router(decoder.hidden).weights
            weights += fed.top_k * sum(p.weights for p in fed.expert.projections(decoder.hidden))
        elif isinstance(fed, FeedForward):
            weights += sum(p.weights for p in fed.projections(decoder.hidden))
        inside += count * weights
    return inside + decoder.vocab * decoder.hidden


def attended(decoder: Decoder) -> float:
    """FLOP of scores and values, forward: 4 d a pair and head."""
    attention = decoder.layers[0][0].attention
    assert isinstance(attention, SelfAttention)
    return 4.0 * attention.heads * attention.head_dim * PAIRS * decoder.depth


@pytest.mark.parametrize("engine", ["megatron-te", "torchtitan", "torchtitan-compiled", "fsdp"])
@pytest.mark.parametrize("config", [GPT, LLAMA, MIXTURE], ids=["gpt", "llama", "mixture"])
def test_a_step_has_six_flop_a_token_and_weight_and_those_of_attention(config: dict, engine: str) -> None:
    decoder, units = built(config, engine)
    n = multiplied(decoder)
    for which in ("forward", "backward", "weights"):
        assert flops(units, which) == 2 * n * TOKENS, which
    assert flops(units, "forward", families=("attention",)) == attended(decoder)
    assert flops(units, "backward", families=("attention",)) == 2.5 * attended(decoder)


def test_written_out_attention_computes_all_scores() -> None:
    decoder, units = built(GPT, "megatron-local")
    all_pairs = attended(decoder) * 2 * LENGTH / (LENGTH + 1)
    assert flops(units, "forward") == 2 * multiplied(decoder) * TOKENS + all_pairs
    assert flops(units, "backward") == 2 * multiplied(decoder) * TOKENS + 2 * all_pairs
    assert flops(units, families=("attention",)) == 0


@pytest.mark.parametrize("name", TRAINING)
@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("config", [GPT, LLAMA], ids=["gpt", "llama"])
def test_shares_of_tensor_parallel_ranks_make_up_the_whole(config: dict, sequence_parallel: bool, name: str) -> None:
    whole = built(config, name)[1]
    for tp in (2, 4):
        _, share = built(
            config, replace(engine_named(name), vocabulary_multiple=1), tp=tp, sequence_parallel=sequence_parallel
        )
        for which in ("forward", "backward", "weights"):
            assert tp * flops(share, which) == flops(whole, which)
            both = ("attention",)
            assert tp * flops(share, which, families=both) == flops(whole, which, families=both)


def test_ranks_hold_shares_of_matrices_and_all_of_the_vectors() -> None:
    decoder, whole = built(GPT)
    assert parameters(whole) == decoder.parameters
    _, share = built(GPT, tp=2, sequence_parallel=True)
    # Norms, biases after row-parallel products and positions are on every rank.
    copied = decoder.depth * (4 + 2) * decoder.hidden + 2 * decoder.hidden + decoder.positions * decoder.hidden
    assert 2 * parameters(share) == decoder.parameters + copied


def test_sequence_parallelism_moves_no_flop_and_shares_the_stream() -> None:
    def streamed(sequence_parallel: bool) -> float:
        _, units = built(LLAMA, tp=4, sequence_parallel=sequence_parallel)
        norms = (part for unit, _ in every(units) for part in unit.parts if "norm" in str(part.batch.columns.get("op")))
        return sum(float(part.batch["rows"][0]) for part in norms)

    products = [built(LLAMA, tp=4, sequence_parallel=on)[1] for on in (False, True)]
    assert flops(products[0]) == flops(products[1])
    assert streamed(False) == 4 * streamed(True) > 0


@pytest.mark.parametrize("engine", ["megatron-te", "torchtitan"])
@pytest.mark.parametrize("which", ["forward", "backward"])
def test_shares_of_context_parallel_ranks_make_up_the_whole(which: str, engine: str) -> None:
    whole = built(LLAMA, engine)[1]
    for cp, ulysses in ((2, 1), (4, 1), (4, 2), (4, 4)):
        share = built(LLAMA, engine, cp=cp, ulysses=ulysses)[1]
        assert cp * flops(share, which) == flops(whole, which)
        core = ("attention",)
        assert cp * flops(share, which, families=core) == flops(whole, which, families=core)


def test_expert_parallel_ranks_hold_shares_of_the_experts_and_compute_the_same() -> None:
    decoder, whole = built(MIXTURE)
    assert parameters(whole) + expert_parameters(whole) == decoder.parameters
    for ep in (2, 4, 8):
        for dispatcher in ("alltoall", "allgather"):
            _, share = built(MIXTURE, replace(engine_named("megatron-te"), dispatcher=dispatcher), ep=ep)
            assert ep * expert_parameters(share) == expert_parameters(whole)
            assert flops(share) == flops(whole)


def test_experts_may_be_sharded_like_all_else_or_stay_whole_beside_tensor_parallel_ranks() -> None:
    _, whole = built(MIXTURE)
    sliced = built(MIXTURE, tp=2, etp=2)[1]
    gathered = built(MIXTURE, tp=2, etp=2, sequence_parallel=True)[1]
    entire = built(MIXTURE, tp=2, ep=2, etp=1, sequence_parallel=True)[1]
    grouped = ("grouped_gemm",)
    for share in (sliced, gathered, entire):
        assert 2 * flops(share, families=grouped) == flops(whole, families=grouped)
        assert 2 * expert_parameters(share) == expert_parameters(whole)


def test_experts_one_after_the_other_have_the_same_products() -> None:
    apart = replace(engine_named("megatron-te"), grouped_experts=False)
    grouped, alone = built(MIXTURE)[1], built(MIXTURE, apart)[1]
    assert flops(alone) == flops(grouped)
    assert total(alone, lambda part: 1.0) > total(grouped, lambda part: 1.0)


def test_products_of_eight_bits_are_those_inside_layers() -> None:
    wide, narrow = built(GPT)[1], built(GPT, products="fp8")[1]
    assert flops(narrow) == flops(wide)
    inside = [part for part in narrow.layers[0].parts if part.batch.family == "gemm"]
    assert {str(part.batch["dtype"][0]) for part in inside} == {"float8"}
    assert {str(part.batch["dtype"][0]) for part in narrow.after.parts if part.batch.family == "gemm"} == {"bfloat16"}
    # Both inputs that no norm writes, and the gradients of all four products.
    quantised = [part for part in narrow.layers[0].parts if "quantise" in part.name]
    assert [part.name for part in quantised if part.phase == "forward"] == ["output quantise", "down quantise"]
    assert len([part for part in quantised if part.phase == "backward"]) == 4
    assert all(part.batch["write_bytes"][0] == 2 * part.batch["elements"][0] for part in quantised)


@pytest.mark.parametrize(
    ("products", "dtype", "read", "written"),
    [
        # Bytes of a value: 2 in each pass over the wide operand, then copies of 1, or of 9/16 in NVFP4.
        ("fp8", "float8", 2, 2),
        ("FP8-CS", "float8", 4, 2),
        ("fp8_row", "float8", 8, 2),
        ("fp8_block", "float8", 2, 2),
        ("mxfp8", "float8", 2, 2),
        ("nvfp4", "float4", 6, 9 / 8),
    ],
)
def test_a_recipe_says_what_is_read_and_written_for_an_operand(
    products: str, dtype: str, read: float, written: float
) -> None:
    layer = built(GPT, products=products)[1].layers[0]
    inside = [part for part in layer.parts if part.batch.family == "gemm"]
    assert {str(part.batch["dtype"][0]) for part in inside} == {dtype}
    passes = [part for part in layer.parts if part.name in ("down quantise", "down largest")]
    elements = next(float(part.batch["elements"][0]) for part in passes if part.name == "down quantise")
    assert sum(part.runs * float(part.batch["read_bytes"][0]) for part in passes) == read * elements
    casts = [part for part in passes if part.name == "down quantise"]
    assert sum(part.runs * float(part.batch["write_bytes"][0]) for part in casts) == written * elements


def test_units_that_take_any_layout_transpose_no_operand_of_one_scale() -> None:
    for products, copies in (("fp8", 1), ("mxfp8", 2)):
        layer = built(GPT, products=products, transposes=False)[1].layers[0]
        assert not [part for part in layer.parts if part.name.endswith("transpose")]
        casts = [part for part in layer.parts if "quantise" in part.name]
        assert {float(part.batch["write_bytes"][0] / part.batch["elements"][0]) for part in casts} == {copies}


def test_what_ranks_gather_in_few_bits_they_cast_before() -> None:
    """Rows of a rank's own tokens, of all where gathers stay wide."""
    shared = {"tp": 2, "sequence_parallel": True}
    for products, share in (("fp8_current", 2), ("fp8_row", 1)):
        layer = built(GPT, products=products, **shared)[1].layers[0]
        sizes = {part.name: float(part.batch["elements"][0]) for part in layer.parts if "quantise" in part.name}
        assert sizes["up quantise"] == sizes["output gradient quantise"] == TOKENS * 64 / share
        assert sizes["down quantise"] == sizes["up gradient quantise"]


def test_an_unknown_recipe_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ModelError, match="products in 'fp8_blocks' are not built; did you mean fp8_block"):
        built(GPT, products="fp8_blocks")


def test_gradients_are_added_to_float32_by_the_product_or_beside_it() -> None:
    def moved(accumulation: str) -> float:
        how = replace(engine_named("megatron-te"), accumulation=accumulation)
        _, units = built(LLAMA, how)
        return total(
            units, lambda part: float(work_of(part.batch).bytes[0]), "weights", families=("gemm", "elementwise")
        )

    decoder, _ = built(LLAMA)
    matrices, vectors = multiplied(decoder), (2 * decoder.depth + 1 + decoder.vocab) * decoder.hidden
    # 2 B written become 4 B read and 4 B written; a kernel reads 2 + 4 B and writes 4 B.
    assert moved("product") - moved("none") == 6 * matrices + 10 * vectors
    assert moved("kernel") - moved("none") == 10 * (matrices + vectors)


@pytest.mark.parametrize("name", TRAINING)
def test_what_is_recomputed_is_the_forward_pass(name: str) -> None:
    engine = engine_named(name)
    unit = built(LLAMA, engine, tp=2, sequence_parallel=True)[1].layers[0]
    forward = unit.of("forward")
    assert recomputed(unit, "none", engine) == ()
    assert recomputed(unit, "full", replace(engine, stops_early=False)) == forward
    early = recomputed(unit, "full", replace(engine, stops_early=True))
    assert forward[: len(early)] == early
    assert forward[len(early)].name == "down"
    core = recomputed(unit, "selective", engine)
    assert {part.batch.family for part in core} <= {"attention", "gemm", "row_reduction", "elementwise", "memory"}
    assert 0 < len(core) < len(forward)
    with pytest.raises(ModelError, match="unknown recompute 'most'"):
        recomputed(unit, "most", engine)


def test_attention_comes_from_the_library_that_a_gpu_has() -> None:
    megatron, torchtitan = engine_named("megatron-te"), engine_named("torchtitan")
    gpus = ("mi300x", "a100-sxm-80gb", "h100-sxm-80gb", "b200-sxm-180gb", "rtx-5090")
    newer = [load_device(gpu).facts.reads_shared_memory for gpu in gpus]
    assert [megatron.attention_on(reads) for reads in newer] == ["fa2", "fa2", "fa3", "fa3", "fa2"]
    assert {torchtitan.attention_on(reads) for reads in newer} == {"fa2"}


def test_recomputing_by_operator_keeps_every_other_product_and_attention() -> None:
    engine = engine_named("torchtitan")
    unit = built(LLAMA, engine)[1].layers[0]
    again = [part.name for part in recomputed(unit, "operators", engine) if part.batch.family in PRODUCTS]
    assert again == ["qkv", "output", "gate up"]
    assert "attention" not in [part.name for part in recomputed(unit, "operators", engine)]


def test_what_ranks_cannot_share_is_told_with_a_degree_that_would_do() -> None:
    with pytest.raises(ModelError, match=r"num_attention_heads = 8 cannot be shared by 3 ranks: choose .* 1, 2, 4, 8"):
        built(GPT, tp=3)
    with pytest.raises(ModelError, match="seq_len = 64 cannot be shared by 3 ranks"):
        built(GPT, cp=3)
    with pytest.raises(ModelError, match=r"seq_len = 62 cannot be cut into 4 chunks, .* cp = 2 ranks: choose 64"):
        built(LLAMA, cp=2, seq_len=62)
    with pytest.raises(ModelError, match="number of experts = 8 cannot be shared by 3 ranks"):
        built(MIXTURE, ep=3)
    with pytest.raises(ModelError, match="choose ep = 1 and etp = 2, or turn sequence parallelism on"):
        built(MIXTURE, tp=2, ep=2)
    with pytest.raises(ModelError, match="writes scores out, which cp = 2 ranks cannot share: choose cp = 1"):
        built(GPT, "megatron-local", cp=2)
    with pytest.raises(ModelError, match=r"61 tokens cannot be shared by tp = 4 .* choose a seq_len of 64"):
        built(GPT, tp=4, sequence_parallel=True, seq_len=61, batch=1)
    with pytest.raises(ModelError, match="products in 'fp4' are not built"):
        built(GPT, products="fp4")
    with pytest.raises(ModelError, match="training of LinearAttention layers is not built"):
        built("qwen3_next")
    with pytest.raises(ModelError, match="training of sparse attention is not built"):
        built("deepseek_v32")
    with pytest.raises(ModelError, match="unknown engine 'megatron'; did you mean megatron-te"):
        engine_named("megatron")


@pytest.mark.parametrize("engine", ["torch-compiled", "torchtitan-compiled"])
@pytest.mark.parametrize(
    ("config", "norms", "read", "written"),
    [
        # Stream and branch in, stream and norm out, for both branches.
        ("llama", 2, 4, 4),
        # Stream and both branches in, stream and both norms out (Inductor makes one kernel of both norms).
        ("gpt_neox", 1, 3, 3),
        ("cohere", 1, 3, 2),
        # A branch's result and the stream in, their sum out.
        ("olmo2", 2, 4, 2),
        ("gpt_neox serial", 2, 4, 4),
    ],
)
def test_generated_norms_add_each_branch_to_the_stream_once(
    config: str, norms: int, read: int, written: int, engine: str
) -> None:
    decoder, units = built(config, engine)
    wide = [
        part
        for part in units.layers[0].of("forward")
        if part.batch.family == "row_reduction" and part.batch["cols"][0] == decoder.hidden
        and part.batch["rows"][0] == TOKENS
        and not part.name.startswith(("query", "key"))
    ]  # fmt: skip
    assert len(wide) == norms
    streams = 2 * TOKENS * decoder.hidden
    assert sum(int(part.batch["read_bytes"][0]) for part in wide) // streams == read
    assert sum(int(part.batch["write_bytes"][0]) for part in wide) // streams == written
    assert not [part for part in units.layers[0].of("forward") if part.name == "residual"]
    held = {name: units.layers[0].parameters for name, units in ((engine, units), ("eager", built(config, "fsdp")[1]))}
    assert held[engine] == held["eager"]


def test_norms_of_parallel_branches_have_their_gradients_in_one_kernel() -> None:
    """Both norms' gradients, the norms' input and the stream's gradient in, one out; weights each by itself."""
    decoder, units = built("gpt_neox", "torch-compiled")
    unit, streams = units.layers[0], 2 * TOKENS * decoder.hidden
    (norm,) = [part for part in unit.of("backward") if part.name == "norm gradient"]
    assert [int(norm.batch[moved][0]) // streams for moved in ("read_bytes", "write_bytes")] == [4, 1]
    assert len([part for part in unit.of("weights") if part.name == "norm weight gradient"]) == 2
