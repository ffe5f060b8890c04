"""What ranks exchange in training, by the formulas of Megatron's papers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from trained_units import GPT, LENGTH, LLAMA, MIXTURE, SEQUENCES, TOKENS, built, exchanged, flops

from neusight.engines import engine_named
from neusight.errors import ModelError
from neusight.kernels.work import work_of
from neusight.transforms.recompute import recomputed
from neusight.workloads.program import GROUPS, Segment

HIDDEN = 64
STREAM = 2 * TOKENS * HIDDEN
"""Bytes of the residual stream, s b h in 16 bits."""
RING_KEYS = 2 * SEQUENCES * (LENGTH // 4) * 2 * 4 * (HIDDEN // 8)
"""Bytes of keys and values of four heads, of a rank of four."""
WIDE = engine_named("megatron-te")


def passed(unit: Segment, *, hidden: bool | None = None) -> float:
    """Bytes over links, per rank."""
    return sum(
        part.runs * float(work_of(part.batch).read_bytes[0])
        for part in unit.parts
        if part.group and hidden in (None, part.overlapped)
    )


def test_a_rank_alone_exchanges_nothing() -> None:
    for config in (GPT, LLAMA, MIXTURE):
        units = built(config)[1]
        assert not [part for unit in (units.before, *units.layers, units.after) for part in unit.parts if part.group]


def test_tensor_parallel_layers_have_two_all_reduces_forward_and_two_backward() -> None:
    """Shoeybi et al. 2019, section 3."""
    unit = built(GPT, tp=4)[1].layers[0]
    assert exchanged(unit, "forward") == [("all_reduce", "tp", STREAM, False)] * 2
    assert exchanged(unit, "backward") == [("all_reduce", "tp", STREAM, True)] * 2
    assert exchanged(unit, "weights") == []


def test_sequence_parallel_layers_gather_and_scatter_instead_and_gather_inputs_again() -> None:
    """Korthikanti et al. 2022, sections 4.2.1 and 4.2.2."""
    unit = built(GPT, tp=4, sequence_parallel=True)[1].layers[0]
    gather, scatter = ("all_gather", "tp", STREAM), ("reduce_scatter", "tp", STREAM)
    assert exchanged(unit, "forward") == [(*gather, False), (*scatter, False)] * 2
    assert exchanged(unit, "backward") == [(*gather, False), (*gather, True), (*scatter, True)] * 2
    kept = built(GPT, replace(WIDE, regathers=False, overlaps_weights=False), tp=4, sequence_parallel=True)[1].layers[0]
    assert exchanged(kept, "backward") == [(*gather, False), (*scatter, False)] * 2


def test_sequence_parallelism_passes_as_many_bytes_as_all_reduces_beside_what_is_gathered_again() -> None:
    reduced = built(GPT, tp=4)[1].layers[0]
    how = replace(WIDE, regathers=False)
    assert passed(built(GPT, how, tp=4, sequence_parallel=True)[1].layers[0]) == passed(reduced) > 0
    again = built(GPT, tp=4, sequence_parallel=True)[1].layers[0]
    assert passed(again) - passed(reduced) == 2 * STREAM * 3 / 4


@pytest.mark.parametrize(("within", "places"), [(0, 4), (4, 4), (2, 2), (1, 4)])
def test_tokens_travel_once_to_each_rank_or_node(within: int, places: int) -> None:
    """p (1 - (1 - 1 / p)^k) places of p have any of a token's k experts."""
    shared = {"ep": 4, "ep_within": within}
    units = [built(MIXTURE, engine, **shared)[1] for engine in ("megatron-flex", "megatron-te")]
    once, each = (unit.layers[0] for unit in units)
    rows = round(TOKENS * places * (1 - (1 - 1 / places) ** 2))
    assert [size for op, _, size, _ in exchanged(once, "forward") if op == "all_to_all"] == [rows * 64 * 2] * 2
    assert [size for op, _, size, _ in exchanged(each, "forward") if op == "all_to_all"] == [2 * TOKENS * 64 * 2] * 2
    assert flops(units[0]) == flops(units[1])


def test_products_in_pieces_hide_a_share_of_what_they_exchange() -> None:
    whole, split = (built(GPT, "torchtitan", tp=4, sequence_parallel=True, overlap_tp=on)[1].layers[0] for on in (0, 1))
    assert passed(split) == pytest.approx(passed(whole))
    assert passed(whole, hidden=True) == 0.0
    assert passed(split, hidden=True) == pytest.approx(engine_named("torchtitan").hidden_tp * passed(whole))
    assert built(GPT, tp=4, sequence_parallel=True, overlap_tp=True)[1] == built(GPT, tp=4, sequence_parallel=True)[1]


def test_rows_that_lie_by_sequences_are_copied_around_what_ranks_exchange() -> None:
    """All of them once, behind a gather and before a scatter; rows of [s, b, h] are in their order."""

    def copies(which: str, engine: str = "torchtitan", **more: bool) -> list[tuple[str, float]]:
        unit = built(GPT, engine, tp=4, sequence_parallel=True, **more)[1].layers[0]
        parts = [part for part in unit.parts if part.phase == which and part.name.startswith("order ")]
        assert all(part.batch["read_bytes"][0] == part.batch["write_bytes"][0] == STREAM for part in parts)
        return [(part.name, part.runs) for part in parts]

    assert copies("forward") == [("order gather input", 1), ("order scatter output", 1)] * 2
    assert copies("backward") == [("order scatter output gradient", 1), ("order gather input gradient", 1)] * 2
    assert copies("forward", "megatron-te") == copies("backward", "megatron-te") == []
    pieces = 1 - engine_named("torchtitan").hidden_tp
    assert [runs for _, runs in copies("forward", overlap_tp=True)] == [pieces] * 4


def test_selection_by_operators_gathers_again_and_keeps_what_was_scattered_or_sent_to_experts() -> None:
    """torchtitan, ``_save_list``."""
    engine = engine_named("torchtitan")
    unit = built(MIXTURE, engine, tp=4, ep=2, etp=2, sequence_parallel=True)[1].layers[0]
    again = {str(part.batch["op"][0]) for part in recomputed(unit, "operators", engine) if part.group}
    assert {op for op, *_ in exchanged(unit, "forward")} == {"all_gather", "reduce_scatter", "all_to_all"}
    assert again == {"all_gather"}


def test_eight_bits_are_gathered_as_such() -> None:
    unit = built(GPT, tp=4, sequence_parallel=True, products="fp8")[1].layers[0]
    sizes = {
        op: {size for kind, _, size, _ in exchanged(unit, "forward") if kind == op}
        for op in ("all_gather", "reduce_scatter")
    }
    assert sizes == {"all_gather": {STREAM // 2}, "reduce_scatter": {STREAM}}


def test_logits_stay_where_they_are_and_statistics_of_rows_travel() -> None:
    """Shoeybi et al. 2019, section 3: b s values a reduction instead of b s v."""
    written = built(GPT, "megatron-local", tp=4)[1].after
    assert exchanged(written, "forward") == [("all_reduce", "tp", 4 * TOKENS, False)] * 3
    assert exchanged(written, "backward") == [("all_reduce", "tp", STREAM, True)]
    fused = built(GPT, tp=4)[1].after
    assert exchanged(fused, "forward") == [("all_gather", "tp", 3 * 4 * TOKENS * 4, False)]


def test_embeddings_are_reduced_forward_and_gathered_backward() -> None:
    gather = [("all_gather", "tp", STREAM, False)]
    assert exchanged(built(LLAMA, tp=4)[1].before, "forward") == [("all_reduce", "tp", STREAM, False)]
    assert exchanged(built(LLAMA, tp=4)[1].before, "backward") == []
    assert exchanged(built(LLAMA, tp=4, sequence_parallel=True)[1].before, "backward") == gather
    scattered = exchanged(built(LLAMA, tp=4, sequence_parallel=True)[1].before, "forward")
    assert scattered == [("reduce_scatter", "tp", STREAM, False)]
    # Learned positions are added to all tokens.
    positioned = built(GPT, tp=4, sequence_parallel=True)[1].before
    assert exchanged(positioned, "forward") == [("all_reduce", "tp", STREAM, False)]


def test_keys_go_round_a_ring_beside_attention() -> None:
    """Liu et al. 2023: c - 1 steps of a rank's keys and values, and their gradients once more."""
    unit = built(LLAMA, cp=4)[1].layers[0]
    there, back = (("send_recv", "cp", times * RING_KEYS, True) for times in (3, 4))
    assert exchanged(unit, "forward") == [there]
    assert exchanged(unit, "backward") == [there, back]


def test_keys_are_gathered_where_a_window_hides_the_early_ones() -> None:
    unit = built("mistral", cp=2, seq_len=32)[1].layers[0]
    keys = 2 * SEQUENCES * 32 * 2 * 2 * 16
    assert exchanged(unit, "forward") == [("all_gather", "cp", keys, False)]
    assert exchanged(unit, "backward") == [("reduce_scatter", "cp", keys, False)]


def test_keys_are_gathered_instead_where_a_plan_says_so() -> None:
    """Llama 3, section 3.3.2: all keys once, and what all ranks have of their gradients summed up."""
    unit = built(LLAMA, cp=4, cp_comm="all_gather")[1].layers[0]
    assert exchanged(unit, "forward") == [("all_gather", "cp", 4 * RING_KEYS, False)]
    assert exchanged(unit, "backward") == [("reduce_scatter", "cp", 4 * RING_KEYS, False)]


@pytest.mark.parametrize(("launch", "beside"), [("eager", True), ("compiled", False)])
def test_a_ring_on_float32_sums_sends_gradients_of_all_heads_twice_as_wide(launch: str, beside: bool) -> None:
    """PyTorch's context_parallel: keys of repeated heads once, gathered or round; gradients c times."""
    how, keys = replace(engine_named("torchtitan"), launch=launch), 2 * RING_KEYS  # 8 heads of 4 that share keys
    gathered, ring = (built(LLAMA, how, cp=4, cp_comm=comm)[1].layers[0] for comm in ("", "p2p"))
    assert exchanged(gathered, "forward") == [("all_gather", "cp", 4 * keys, beside)]
    assert exchanged(ring, "forward") == [("send_recv", "cp", 3 * keys, beside)]
    for unit in (gathered, ring):
        assert exchanged(unit, "backward")[1:] == [("send_recv", "cp", 4 * 2 * keys, beside)]


def test_generated_kernels_of_a_ring_move_fewer_bytes_than_operators_one_by_one() -> None:
    """Forward, of a value of outputs: 2 + 4 widened c times, 12 + 8 + 12 of each later step, 4 + 2 narrowed."""

    def moved(launch: str, name: str) -> float:
        unit = built(LLAMA, replace(engine_named("torchtitan"), launch=launch), cp=4)[1].layers[0]
        parts = [part for part in unit.of("forward") if part.name.startswith(name)]
        return sum(
            part.runs * float(part.batch["read_bytes"][0] + part.batch["write_bytes"][0])
            / (SEQUENCES * LENGTH // 4 * HIDDEN) for part in parts
        )  # fmt: skip

    assert moved("eager", "outputs ") == 4 * 6 + 3 * 32 + 6
    assert moved("compiled", "outputs ") == 3 * 10


@pytest.mark.parametrize("engine", ["megatron-te", "torchtitan"])
def test_ulysses_exchanges_heads_for_tokens_and_attends_as_one_rank(engine: str) -> None:
    """Jacobs et al. 2023, section 3.2: queries, keys and values there, outputs back; sequences are whole."""
    unit = built(LLAMA, engine, cp=4, ulysses=4)[1].layers[0]
    kept = 8 if engine == "torchtitan" else 4
    there, back = (2 * TOKENS // 4 * heads * (HIDDEN // 8) for heads in (8 + 2 * kept, 8))
    sent = [("all_to_all", "ulysses", size, False) for size in (there, back)]
    assert exchanged(unit, "forward") == sent
    assert exchanged(unit, "backward") == sent[::-1]
    core = next(part.batch for part in unit.of("forward") if part.name == "attention")
    assert (core["heads"][0], core["q_len"][0], core["kv_len"][0], core["causal"][0]) == (2, LENGTH, LENGTH, True)


def test_a_ring_of_ranks_that_exchange_heads_has_keys_of_fewer_heads() -> None:
    unit = built(LLAMA, cp=4, ulysses=2)[1].layers[0]
    ring = [size for op, group, size, _ in exchanged(unit, "forward") if (op, group) == ("send_recv", "cp")]
    # Half the heads of twice the tokens, once instead of three times.
    assert ring == [RING_KEYS]
    with pytest.raises(ModelError, match="heads that ulysses shares: kv_heads = 4"):
        built(LLAMA, cp=8, ulysses=8)
    with pytest.raises(ModelError, match="a window of 16 keys goes round no ring: set cp_comm to all_gather"):
        built("mistral", cp=2, seq_len=32, cp_comm="p2p")


@pytest.mark.parametrize("ep", [2, 8])
def test_tokens_go_to_experts_and_back_once_in_each_pass(ep: int) -> None:
    """Lepikhin et al. 2020, section 2.2: k rows of each token, there and back."""
    unit = built(MIXTURE, ep=ep)[1].layers[0]
    there = ("all_to_all", "ep", 2 * STREAM, False)
    assert exchanged(unit, "forward") == exchanged(unit, "backward") == [there, there]


def test_tokens_of_all_ranks_are_gathered_by_the_other_dispatcher() -> None:
    unit = built(MIXTURE, replace(WIDE, dispatcher="allgather"), ep=4)[1].layers[0]
    there, back = ("all_gather", "ep", 4 * STREAM, False), ("reduce_scatter", "ep", 4 * STREAM, False)
    assert exchanged(unit, "forward") == exchanged(unit, "backward") == [there, back]


def test_ranks_that_share_experts_gather_tokens_among_neighbours() -> None:
    unit = built(MIXTURE, tp=2, ep=2, etp=2, sequence_parallel=True)[1].layers[0]
    pairs = 2 * STREAM // 2
    mixture = exchanged(unit, "forward")[2:]
    assert mixture == [
        ("all_to_all", "ep", pairs, False),
        ("all_gather", "tp", 2 * pairs, False),
        ("reduce_scatter", "tp", 2 * pairs, False),
        ("all_to_all", "ep", pairs, False),
    ]


def test_latents_are_gathered_and_not_the_stream() -> None:
    """DeepSeek-V2, section 2.1: 24 values of queries, 32 + 8 of keys."""
    unit = built("deepseek_v3", tp=2, sequence_parallel=True)[1].layers[0]
    assert exchanged(unit, "forward")[0] == ("all_gather", "tp", 2 * TOKENS * (24 + 32 + 8), False)
    assert flops(built("deepseek_v3", tp=2, etp=2)[1]) > 0


def test_every_collective_joins_a_known_group_that_the_rank_has() -> None:
    degrees = {"tp": 2, "cp": 2, "ulysses": 2, "ep": 4, "etp": 1}
    units = built(MIXTURE, sequence_parallel=True, **(degrees | {"cp": 4}))[1]
    parts = [part for unit in (units.before, *units.layers, units.after) for part in unit.parts if part.group]
    assert {part.group for part in parts} == set(GROUPS) - {""}
    assert all(part.batch["ranks"][0] == degrees[part.group] for part in parts)
    assert all(part.batch["per_node"][0] == 0 and len(part.batch) == 1 for part in parts)
    assert np.all([part.batch["bytes"][0] > 0 for part in parts])
