"""Steps of serving engines: what runs, how often, in which dtype, and what ranks share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from small_decoders import CONFIGS, config_of

from neusight.engines import ENGINES, Engine, server_named
from neusight.errors import ModelError
from neusight.kernels.work import work_of
from neusight.requests import Plan
from neusight.workloads.decoders.architecture import decoder_of
from neusight.workloads.decoders.build import step_program
from neusight.workloads.decoders.known import known_decoder
from neusight.workloads.decoders.layers import LatentAttention, SelfAttention
from neusight.workloads.decoders.quantisation import ServingPrecision
from neusight.workloads.decoders.shares import Steps
from neusight.workloads.program import Part, Program

MIXED = Steps.of(
    prompts=[1, 2, 0, 0], prompt_tokens=[512, 64, 0, 0], prompt_cached=[0, 256, 0, 0], decodes=[0, 16, 64, 0],
    decode_cached=[0, 700, 1500, 0],
)  # fmt: skip
"""A prompt, chunks beside decodes, decodes, and nothing at all."""
PRODUCTS = ("gemm", "moe")


def parts_of(name: str, steps: Steps = MIXED, precision: str = "none", kv: str = "", **ranks: int) -> list[Part]:
    """Each with its runs in the whole model."""
    return list(program_of(name, steps, precision, kv, **ranks).counted_parts)


def program_of(
    name: str,
    steps: Steps = MIXED,
    precision: str = "none",
    kv: str = "",
    engine: Engine = ENGINES["vllm"],
    **ranks: int,
) -> Program:
    decoder = decoder_of(config_of(name)) if name in CONFIGS else known_decoder(name)
    plan = Plan(**ranks, global_batch_size=ranks.get("dp", 1))
    return step_program(decoder, steps, ServingPrecision.named(precision, kv=kv), plan, engine)


def total(parts: list[Part], what: str, *families: str) -> np.ndarray:
    """Sum over parts of some families, shape (steps,)."""
    chosen = [p for p in parts if p.batch.family in families]
    return np.asarray(sum(getattr(work_of(p.batch), what) * p.runs for p in chosen))


def named(parts: list[Part], what: str) -> Part:
    return next(p for p in parts if p.name == what)


def fields(part: Part, row: int = 0) -> dict[str, Any]:
    return {name: column[row].item() for name, column in part.batch.columns.items()}


@pytest.mark.parametrize("name", CONFIGS)
def test_every_part_has_a_row_a_step_that_can_be_priced(name: str) -> None:
    for part in parts_of(name):
        assert len(part.batch) == len(part.runs) == len(MIXED)
        assert part.runs[-1] == 0 and (part.runs >= 0).all()
        for column in part.batch.columns.values():
            assert len(column) == len(MIXED)
        if part.batch.family != "collective":
            assert (work_of(part.batch).bytes > 0).all()


@pytest.mark.parametrize("name", CONFIGS)
def test_many_steps_at_once_are_each_alone(name: str) -> None:
    together = parts_of(name)
    for row in range(len(MIXED)):
        alone = Steps(**{field: getattr(MIXED, field)[row : row + 1] for field in MIXED.__dataclass_fields__})
        for whole, single in zip(together, parts_of(name, alone), strict=True):
            assert (whole.name, whole.runs[row]) == (single.name, single.runs[0])
            assert whole.batch.kernel(row) == single.batch.kernel(0)


@pytest.mark.parametrize(
    "name", ["meta-llama/Llama-3.1-70B", "mistralai/Mixtral-8x7B-v0.1", "deepseek-ai/DeepSeek-V3",
             "Qwen/Qwen3-235B-A22B", "openai/gpt-oss-120b", "meta-llama/Llama-4-Scout-17B-16E-Instruct"],
)  # fmt: skip
def test_products_are_two_flops_a_parameter_and_token(name: str) -> None:
    """Outside of the embedding; the head runs for one token a sequence."""
    decoder, steps = known_decoder(name), Steps.of(prompts=[1, 4], prompt_tokens=[2048, 256])
    assert all(isinstance(layer.attention, SelfAttention | LatentAttention) for layer, _ in decoder.layers)
    flops = total(parts_of(name, steps), "flops", *PRODUCTS)
    table = decoder.vocab * decoder.hidden
    inside = decoder.active_parameters - table * (1 if decoder.tied else 2)
    assert flops == pytest.approx(2.0 * (steps.tokens * inside + steps.sequences * table), rel=2e-3)


def test_a_step_of_a_dense_model_in_formulas() -> None:
    """Llama-3.1-8B, 1 prompt of 512: shapes of its products, sharded over two."""
    parts = parts_of("meta-llama/Llama-3.1-8B", tp=2)
    products = {p.name: (p.batch["m"][0], p.batch["n"][0], p.batch["k"][0], p.runs[0]) for p in parts if
                p.batch.family == "gemm"}  # fmt: skip
    assert products == {
        "qkv": (512, (4096 + 2 * 1024) // 2, 4096, 32),
        "output": (512, 4096, 2048, 32),
        "gate up": (512, 14336, 4096, 32),
        "down": (512, 4096, 7168, 32),
        "head": (1, 64128, 4096, 1),
    }
    reduced = [p for p in parts if p.name == "reduce output"]
    assert [(p.batch["op"][0], p.batch["ranks"][0], p.batch["bytes"][0], p.runs[0]) for p in reduced] == [
        ("all_reduce", 2, 512 * 4096 * 2, 32)
    ] * 2
    assert named(parts, "gather logits").batch["bytes"][0] == 128256 * 2


@pytest.mark.parametrize(("name", "exchanges"), [("falcon", 1), ("falcon serial", 2)])
def test_ranks_exchange_parallel_branches_of_falcon_at_once(name: str, exchanges: int) -> None:
    reduced = [p for p in parts_of(name, tp=2) if p.name == "reduce output"]
    depth = len(decoder_of(config_of(name)).order)
    assert sum(p.runs.max() for p in reduced) == exchanges * depth


def test_prompts_attend_to_what_is_cached_and_decodes_to_one_more() -> None:
    parts = parts_of("llama")
    prompt, decode = fields(named(parts, "attention of prompts"), 1), fields(named(parts, "attention of decodes"), 1)
    assert (prompt["batch"], prompt["q_len"], prompt["kv_len"], prompt["causal"]) == (2, 64, 320, True)
    assert (decode["batch"], decode["q_len"], decode["kv_len"]) == (16, 1, 701)
    assert named(parts, "attention of prompts").runs.tolist() == [4, 4, 0, 0]
    assert named(parts, "attention of decodes").runs.tolist() == [0, 4, 4, 0]


def test_latent_attention_is_expanded_in_prompts_and_absorbed_in_decodes() -> None:
    parts = parts_of("deepseek-ai/DeepSeek-V3", tp=8)
    prompt, decode = fields(named(parts, "attention of prompts"), 1), fields(named(parts, "attention of decodes"), 1)
    assert [prompt[f] for f in ("heads", "kv_heads", "head_dim", "value_dim", "shared_kv")] == [16, 16, 192, 128, False]
    assert [decode[f] for f in ("heads", "kv_heads", "head_dim", "value_dim", "shared_kv")] == [16, 1, 576, 512, True]
    assert fields(named(parts, "key value up"), 1)["m"] == 2 * 320


def test_sparse_attention_is_absorbed_and_selects() -> None:
    parts = parts_of("zai-org/GLM-5")
    for what in ("attention of prompts", "attention of decodes"):
        assert [fields(named(parts, what), 1)[f] for f in ("kv_heads", "selected")] == [1, 2048]
    scores = fields(named(parts, "indexer scores of decodes"), 2)
    assert [scores[f] for f in ("op", "heads", "head_dim", "kv_len")] == ["indexer", 32, 128, 1501]


@pytest.mark.parametrize("name", ["llama", "qwen3", "mixtral", "glm4_moe", "gemma3_text", "qwen3_next", "llama4_text"])
def test_two_ranks_share_the_arithmetic(name: str) -> None:
    """All but what each does for itself: routers, and a head that is padded."""
    alone, shared = (total(parts_of(name, tp=tp), "flops", *PRODUCTS) for tp in (1, 2))
    assert (shared[:3] >= 0.5 * alone[:3]).all()
    assert shared[:3] == pytest.approx(0.5 * alone[:3], rel=0.05)


def test_key_heads_are_copied_beyond_their_number() -> None:
    qkv = {tp: fields(named(parts_of("Qwen/Qwen3-235B-A22B", tp=tp), "qkv"))["n"] for tp in (4, 8)}
    assert qkv == {4: (16 + 2) * 128, 8: (8 + 2) * 128}


def test_experts_are_sliced_or_shared_whole() -> None:
    kinds = {
        "sliced": {"tp": 4}, "whole": {"tp": 4, "ep": 4}, "groups": {"dp": 4, "ep": 4}, "groups sliced": {"dp": 4},
    }  # fmt: skip
    found = {kind: fields(named(parts_of("Qwen/Qwen3-30B-A3B", **ranks), "experts")) for kind, ranks in kinds.items()}
    shapes = {kind: (k["experts"], k["ffn"], k["tokens"]) for kind, k in found.items()}
    assert shapes == {
        "sliced": (128, 192, 512), "whole": (32, 768, 512), "groups": (32, 768, 2048),
        "groups sliced": (128, 192, 2048),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("dispatcher", "whole"),
    [("allgather", ["all_gather", "reduce_scatter"]), ("alltoall", ["all_to_all", "all_to_all"])],
)
def test_groups_exchange_tokens_and_ranks_of_one_reduce(dispatcher: Any, whole: list[str]) -> None:
    engine = replace(ENGINES["vllm"], dispatcher=dispatcher)
    ops = {
        (tp, dp, ep): [
            (p.batch["op"][0], int(p.batch["ranks"][0]))
            for p in program_of("Qwen/Qwen3-30B-A3B", engine=engine, tp=tp, dp=dp, ep=ep).layers[0].parts
            if p.batch.family == "collective"
        ]
        for tp, dp, ep in ((1, 1, 1), (4, 1, 4), (1, 4, 4), (1, 4, 1))
    }
    assert ops == {
        (1, 1, 1): [],
        (4, 1, 4): [("all_reduce", 4), ("all_reduce", 4)],
        (1, 4, 4): [(op, 4) for op in whole],
        (1, 4, 1): [("all_gather", 4), ("reduce_scatter", 4)],
    }


def test_tokens_are_gathered_in_the_dtype_of_the_experts_and_results_in_16_bits() -> None:
    """512 tokens of each of 4 groups, 2,048 wide."""
    for scheme, size in {"none": 2, "fp8": 1, "w4a16": 2}.items():
        parts = parts_of("Qwen/Qwen3-30B-A3B", precision=scheme, dp=4, ep=4)
        assert fields(named(parts, "gather tokens"))["bytes"] == size * 4 * 512 * 2048
        assert fields(named(parts, "scatter results"))["bytes"] == 2 * 4 * 512 * 2048


def test_a_scheme_reaches_the_kernels_it_is_for() -> None:
    for scheme, expected in {
        "none": ("bfloat16", "", "", False), "fp8": ("float8", "", "tensor", True),
        "fp8_block": ("float8", "", "block", True), "w4a16": ("bfloat16", "int4", "", False),
    }.items():  # fmt: skip
        parts = parts_of("Qwen/Qwen3-30B-A3B", precision=scheme)
        keys = ("dtype", "weight_dtype", "scaling")
        assert tuple(fields(named(parts, "qkv"))[key] for key in (*keys, "quantised")) == expected
        assert tuple(fields(named(parts, "experts"))[key] for key in keys) == expected[:3]
        for kept in ("router", "head"):
            assert fields(named(parts, kept))["dtype"] == "bfloat16"


def test_an_8_bit_cache_halves_what_decodes_read_and_tokens_write() -> None:
    apart = replace(ENGINES["vllm"], attention_does="")
    wide, narrow = (
        list(program_of("meta-llama/Llama-3.1-8B", kv=kv, engine=apart).counted_parts) for kv in ("", "fp8")
    )
    assert fields(named(narrow, "attention of decodes"))["kv_dtype"] == "float8"
    written = [fields(named(parts, "cache write"))["write_bytes"] for parts in (wide, narrow)]
    assert written == [512 * 2 * 8 * 128 * 2, 512 * 2 * 8 * 128]


def test_4_bit_experts_read_a_quarter_and_their_scales() -> None:
    one = Steps.of(decodes=4096, decode_cached=10)
    wide, narrow = (
        named(parts_of("openai/gpt-oss-120b", one, precision), "experts").batch for precision in ("none", "mxfp4")
    )
    weights = 128 * 3 * 2880 * 2880
    saved = work_of(wide).read_bytes - work_of(narrow).read_bytes
    assert saved == pytest.approx(weights * (2 - 4.25 / 8), rel=1e-3)
    assert work_of(wide).flops == work_of(narrow).flops


def test_decodes_of_linear_attention_do_not_grow_with_the_context() -> None:
    steps = Steps.of(decodes=8, decode_cached=[100, 100000])
    parts = list(program_of("Qwen/Qwen3-Next-80B-A3B", steps).layers[0].parts)
    moved = total(parts, "bytes", "gemm", "elementwise", "row_reduction", "memory")
    assert moved[0] == moved[1]
    state = named(parts, "state of decodes")
    assert state.batch["read_bytes"][0] == pytest.approx(8 * (32 * 128 * 128 * 4 + 8192 * 3 * 2))


def test_engines_differ_in_what_they_fuse() -> None:
    decoder, steps = known_decoder("meta-llama/Llama-3.1-8B"), Steps.of(decodes=1, decode_cached=9)
    programs = {
        engine: step_program(decoder, steps, ServingPrecision(), Plan(), server_named(engine))
        for engine in ("vllm", "sglang", "trtllm")
    }
    apart = {
        engine: [name for name in ("rope", "cache write") if any(p.name == name for p in program.parts)]
        for engine, program in programs.items()
    }
    assert apart == {"vllm": ["rope"], "sglang": ["rope"], "trtllm": []}


@pytest.mark.parametrize(
    ("ranks", "message"),
    [({"tp": 3}, "num_attention_heads = 32 cannot be shared by 3 ranks"), ({"ep": 2}, "ep = 2 does not divide"),
     ({"dp": 3, "ep": 3}, "number of experts = 128 cannot be shared by 3 ranks")],
)  # fmt: skip
def test_ranks_that_cannot_share_are_refused(ranks: dict[str, int], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        parts_of("Qwen/Qwen3-30B-A3B", **ranks)
