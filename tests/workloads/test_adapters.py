"""Adapters beside frozen weights against formulas: what is trained, what runs, what lies on a rank."""

from __future__ import annotations

from dataclasses import replace

import pytest
from trained_units import GPT, LLAMA, MIXTURE, TOKENS, built, every, flops, total

from neusight.engines import engine_named
from neusight.errors import ModelError
from neusight.kernels.schemes import scheme_named
from neusight.kernels.work import work_of
from neusight.plans.stages import RankParameters, stage_weights, stages_of
from neusight.plans.states import TrainingStep, states_of
from neusight.requests import Plan
from neusight.workloads.decoders.recipes import QLORA, Adapters
from neusight.workloads.program import Program

RANK = 8
LORA = Adapters(rank=RANK)
WIDTH, HEADS, INNER, LAYERS = 64, 64 + 2 * 32, 96, 3
"""Of ``LLAMA``: its stream, queries with keys and values, its feed-forward, and layers."""
SUMS = {"qkv": WIDTH + HEADS, "output": 2 * WIDTH, "up": WIDTH + 2 * INNER, "down": WIDTH + INNER}
"""Inputs and outputs of its projections."""

NF4_BYTES = scheme_named(QLORA).weight_bytes("bfloat16")


def trained(units: Program) -> int:
    return sum(count * (unit.parameters + unit.expert_parameters) for unit, count in every(units))


def frozen(units: Program) -> int:
    return sum(count * unit.frozen_parameters for unit, count in every(units))


@pytest.mark.parametrize("targets", [("attention", "feed_forward"), ("qkv",), ("output", "down")])
def test_adapters_have_a_row_for_each_input_and_output(targets: tuple[str, ...]) -> None:
    """Hu et al. 2021, section 4.2: r (d + k) of a matrix of d x k, in place of all d k."""
    decoder, units = built(LLAMA, adapters=Adapters(rank=RANK, targets=targets))
    names = {"attention": ("qkv", "output"), "feed_forward": ("up", "down")}
    adapted = [name for target in targets for name in names.get(target, (target,))]
    assert trained(units) == LAYERS * RANK * sum(SUMS[name] for name in adapted)
    assert frozen(units) == decoder.parameters


def test_adapters_of_half_the_rank_of_a_square_matrix_have_as_many_parameters() -> None:
    whole = built(LLAMA, adapters=Adapters(rank=WIDTH // 2, targets=("output",)))[1]
    assert trained(whole) == LAYERS * WIDTH * WIDTH


@pytest.mark.parametrize("config", [GPT, LLAMA, MIXTURE])
def test_frozen_weights_have_no_gradients(config: dict[str, object]) -> None:
    full, units = built(config)[1], built(config, adapters=LORA)[1]
    products = ("gemm", "grouped_gemm")
    for unit, _ in every(units):
        assert all("adapter" in part.name for part in unit.of("weights"))
    assert flops(units, "weights") == flops(units, "forward") - flops(full, "forward")
    beside = [p for u, _ in every(units) for p in u.of("forward") if p.batch.family in products and "adapter" in p.name]
    assert len(beside) == 2 * len(full.layers) * (4 if config is not MIXTURE else 2)


def test_ranks_share_adapters_and_their_work() -> None:
    alone, share = built(LLAMA, adapters=LORA)[1], built(LLAMA, adapters=LORA, tp=4, sequence_parallel=True)[1]
    assert 4 * trained(share) == trained(alone)
    assert 4 * flops(share, "weights") == flops(alone, "weights")


def test_weights_in_nf4_are_made_wide_in_both_passes() -> None:
    units = built(LLAMA, adapters=replace(LORA, method="qlora"))[1]
    weights = LAYERS * (WIDTH * (HEADS + WIDTH) + 3 * WIDTH * INNER)
    for which in ("forward", "backward"):
        moved = total(
            units,
            lambda part: float(work_of(part.batch).bytes[0]) if "dequantise" in part.name else 0.0,
            which, families=("memory",),
        )  # fmt: skip
        assert moved == pytest.approx(weights * (2 + NF4_BYTES), rel=0.001)


def test_only_adapters_have_gradients_and_states() -> None:
    decoder, units = built(LLAMA, adapters=LORA)
    plan = Plan(gradient_dtype="float32")
    stage = stages_of(decoder.order, plan)[0]
    parameters = RankParameters.of(stage_weights(stage, units))
    step = TrainingStep(seq_len=64, engine=engine_named("megatron-te"), adapters=LORA)
    states, own = states_of(parameters, plan, step), trained(units)
    assert (states.gradients, states.optimizer) == (4 * own, (4 + 8) * own)
    assert states.weights == 2 * (own + decoder.parameters)
    narrow = states_of(parameters, plan, replace(step, adapters=replace(LORA, method="qlora")))
    projections = LAYERS * (WIDTH * (HEADS + WIDTH) + 3 * WIDTH * INNER)
    # PEFT makes norms, embedding and head float32, 2 bytes more each.
    others = decoder.parameters - projections
    assert states.weights - narrow.weights == pytest.approx((2 - NF4_BYTES) * projections - 2 * others)
    sharded = states_of(parameters, replace(plan, dp=4, global_batch_size=4, shard="zero3"), step)
    assert sharded.weights == pytest.approx((4 * own + 2 * decoder.parameters) / 4)


def test_scaled_columns_cost_a_product_of_the_weights_and_have_a_magnitude_each() -> None:
    plain, scaled = (built(LLAMA, adapters=replace(LORA, method=method))[1] for method in ("lora", "dora"))
    columns = HEADS + WIDTH + 2 * INNER + WIDTH
    assert trained(scaled) - trained(plain) == LAYERS * columns
    together = LAYERS * 2 * RANK * (WIDTH * (HEADS + WIDTH) + 3 * WIDTH * INNER)
    assert flops(scaled, "forward") - flops(plain, "forward") == together
    assert TOKENS > RANK


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rank": 8, "method": "lore"}, "adapters 'lore'; did you mean lora"),
        ({"rank": 8, "targets": ("head",)}, "adapters 'head'"),
        ({"rank": -1}, "lora -1: give the rank of adapters"),
    ],
)
def test_unknown_words_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Adapters(**wrong)  # type: ignore[arg-type]
